//! TLS by itself: certificates, and how long one connection takes that does nothing else.

use std::error::Error;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use amdahl_remote::Credentials;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, Stream,
};

/// For both sides, who call each other by that name, in files.
pub fn credentials(folder: &Path, name: &str) -> Result<Credentials, Box<dyn Error>> {
    let files = amdahl_test_certificates::make_for(folder, "bench", &[name])?;
    Ok(Credentials {
        certificates: files.certificate,
        key: files.key,
        authorities: files.authority,
    })
}

/// Seconds that all of `memory` takes through one connection, written and read in large pieces.
pub fn one_stream(credentials: &Credentials, memory: &Arc<[u8]>) -> Result<f64, Box<dyn Error>> {
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(&credentials.certificates)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(&credentials.key)?;
    let mut authorities = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(&credentials.authorities)? {
        authorities.add(authority?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(authorities)
        .with_no_client_auth();

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let memory = memory.clone();
    let writes = thread::spawn(move || -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let (mut socket, _) = listener.accept().map_err(text)?;
        let mut tls = ServerConnection::new(Arc::new(server)).map_err(|error| error.to_string())?;
        let mut stream = Stream::new(&mut tls, &mut socket);
        // The reader is there.
        stream.read_exact(&mut [0]).map_err(text)?;
        for piece in memory.chunks(256 << 10) {
            stream.write_all(piece).map_err(text)?;
        }
        stream.flush().map_err(text)
    });
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let mut tls = ClientConnection::new(Arc::new(client), ServerName::try_from("127.0.0.1")?)?;
    let mut stream = Stream::new(&mut tls, &mut socket);
    stream.write_all(&[0])?;
    let begun = Instant::now();
    let mut into = vec![0; 256 << 10];
    let mut left = super::LEN;
    while left > 0 {
        let len = left.min(into.len());
        stream.read_exact(&mut into[..len])?;
        left -= len;
    }
    let seconds = begun.elapsed().as_secs_f64();
    writes.join().expect("does not panic")?;
    Ok(seconds)
}
