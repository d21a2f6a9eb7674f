//! TLS 1.3 in which both sides prove who they are: keys and certificates from PEM files.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::{Error, lock};

/// Files in PEM. Each connection is made with what they hold then; one that is open goes on with what it began with.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Our certificate, and those between it and one that the other side trusts.
    pub certificates: PathBuf,
    /// Our key.
    pub key: PathBuf,
    /// Whom we trust: who shows no certificate of one of these is not talked to.
    pub authorities: PathBuf,
}

/// What tells that a file is another than before: its place, its length, its times of change.
type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    Some((
        file.dev(),
        file.ino(),
        file.size(),
        file.mtime(),
        file.mtime_nsec(),
        file.ctime(),
        file.ctime_nsec(),
    ))
}

/// What was made of credentials, and is made anew for the next connection when their files have changed.
pub(crate) struct Fresh<C> {
    credentials: Credentials,
    make: fn(&Credentials) -> Result<Arc<C>, Error>,
    last: Mutex<Last<C>>,
}

struct Last<C> {
    stamps: [Stamp; 3],
    made: Arc<C>,
    /// Of which files `trouble` was told.
    wrong: Option<[Stamp; 3]>,
    trouble: Option<String>,
}

impl<C> Fresh<C> {
    /// # Errors
    /// Those of `make`.
    pub fn new(
        credentials: &Credentials,
        make: fn(&Credentials) -> Result<Arc<C>, Error>,
    ) -> Result<Fresh<C>, Error> {
        // Before they are read: what changes meanwhile is noticed later.
        let stamps = credentials.stamps();
        let made = make(credentials)?;
        Ok(Fresh {
            credentials: credentials.clone(),
            make,
            last: Mutex::new(Last {
                stamps,
                made,
                wrong: None,
                trouble: None,
            }),
        })
    }

    /// As the files are now. While they are not right, because one of them has been replaced and the other not yet, as they were when they were.
    pub fn get(&self) -> Arc<C> {
        let mut last = lock(&self.last);
        let stamps = self.credentials.stamps();
        if stamps == last.stamps {
            last.trouble = None;
            return last.made.clone();
        }
        match (self.make)(&self.credentials) {
            Ok(made) => {
                *last = Last {
                    stamps,
                    made,
                    wrong: None,
                    trouble: None,
                };
            }
            Err(error) if last.wrong != Some(stamps) => {
                last.wrong = Some(stamps);
                last.trouble = Some(format!(
                    "the files of the certificates have changed and cannot be used: {error}; connections are made with \
                     what they held before"
                ));
            }
            Err(_) => {}
        }
        last.made.clone()
    }

    /// Why the files as they were at the last connection cannot be used; once for each change of them.
    pub fn take_trouble(&self) -> Option<String> {
        lock(&self.last).trouble.take()
    }
}

/// Read credentials.
struct Read {
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authorities: RootCertStore,
}

fn wrong(path: &Path) -> impl Fn(pem::Error) -> Error {
    move |error| Error::Credentials {
        path: path.to_owned(),
        why: match error {
            pem::Error::Io(error) => error.to_string(),
            pem::Error::NoItemsFound => "there is none of what is needed in it".to_owned(),
            error => error.to_string(),
        },
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all = CertificateDer::pem_file_iter(path).map_err(wrong(path))?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(wrong(path))?;
    if all.is_empty() {
        return Err(wrong(path)(pem::Error::NoItemsFound));
    }
    Ok(all)
}

impl Credentials {
    fn stamps(&self) -> [Stamp; 3] {
        [&self.certificates, &self.key, &self.authorities].map(|path| stamp(path))
    }

    fn read(&self) -> Result<Read, Error> {
        let mut authorities = RootCertStore::empty();
        for certificate in certificates(&self.authorities)? {
            authorities
                .add(certificate)
                .map_err(|error| Error::Credentials {
                    path: self.authorities.clone(),
                    why: error.to_string(),
                })?;
        }
        Ok(Read {
            certificates: certificates(&self.certificates)?,
            key: PrivateKeyDer::from_pem_file(&self.key).map_err(wrong(&self.key))?,
            authorities,
        })
    }

    /// For the side that is connected to, also of connections of other protocols. Clients without a certificate of the authorities are refused.
    ///
    /// # Errors
    /// [`Error::Credentials`], [`Error::Tls`].
    pub fn server(&self) -> Result<Arc<ServerConfig>, Error> {
        let read = self.read()?;
        let provider = Arc::new(default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(read.authorities.into(), provider.clone())
                .build()
                .map_err(|error| Error::Credentials {
                    path: self.authorities.clone(),
                    why: error.to_string(),
                })?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(clients)
            .with_single_cert(read.certificates, read.key)?;
        // Each connection is checked anew: certificates may have ended meanwhile, and connections are few.
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// For the side that connects, also of connections of other protocols.
    ///
    /// # Errors
    /// [`Error::Credentials`], [`Error::Tls`].
    pub fn client(&self) -> Result<Arc<ClientConfig>, Error> {
        let read = self.read()?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(read.authorities)
            .with_client_auth_cert(read.certificates, read.key)?;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}
