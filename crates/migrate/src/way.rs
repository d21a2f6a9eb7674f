//! How the two sides reach each other.

use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use amdahl_remote::Credentials;

use crate::Error;
use crate::link::{Stream, tls_accept, tls_connect};

/// Where the other side is, as people write it: `unix:PATH`, `tcp:HOST:PORT` or `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// A socket of this host.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

impl FromStr for Way {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Way, &'static str> {
        const WRONG: &str = "unix:PATH or tcp:HOST:PORT is needed, such as tcp:127.0.0.1:7000";
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err(WRONG),
                false => Ok(Way::Unix(path.into())),
            };
        }
        let address = text.strip_prefix("tcp:").unwrap_or(text);
        let parts = address.rsplit_once(':');
        let fits =
            parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        match fits {
            true => Ok(Way::Tcp(address.to_owned())),
            false => Err(WRONG),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Unix(path) => write!(f, "unix:{}", path.display()),
            Way::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// A connection, with what [`Departure`](crate::Departure) and [`Arrival`](crate::Arrival) want to know of it.
pub struct Connection {
    /// Itself.
    pub stream: Box<dyn Stream>,
    /// Where pages are served after the switch-over: [`Departure::listen`](crate::Departure::listen).
    pub here: String,
    /// Where they are fetched from: [`Arrival::host`](crate::Arrival::host).
    pub there: String,
}

/// Who we are for the other side, and the name in its certificate where that is not the host that we connect to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trust<'a> {
    /// Without them only this host is reached.
    pub credentials: Option<&'a Credentials>,
    /// The other side's name.
    pub name: Option<&'a str>,
}

impl Way {
    /// Connects. `within` is for all addresses that the name stands for, and for looking it up.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::Insecure`] for another host without credentials; what is wrong with those.
    pub fn connect(&self, trust: Trust<'_>, within: Duration) -> Result<Connection, Error> {
        let unreachable = |error: std::io::Error| Error::Unreachable {
            way: self.to_string(),
            why: error.to_string(),
        };
        match self {
            Way::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(unreachable)?;
                Ok(Connection::of_unix(stream))
            }
            Way::Tcp(address) => {
                let until = Instant::now() + within;
                let socket = amdahl_remote::connect(address, until).map_err(unreachable)?;
                // What the user has named is looked for in the certificate, not what that stands for.
                let name = trust.name.or(Some(amdahl_remote::host_of(address)));
                Connection::of_tcp(socket, Trust { name, ..trust }, true)
            }
        }
    }
}

impl Connection {
    /// Of this host; pages go over its loopback interface.
    pub fn of_unix(stream: UnixStream) -> Connection {
        Connection {
            stream: Box::new(stream),
            here: "127.0.0.1:0".to_owned(),
            there: "127.0.0.1".to_owned(),
        }
    }

    /// With TLS where there are credentials; by the side that has connected (`is_client`), or that was connected to.
    ///
    /// # Errors
    /// [`Error::Insecure`]: another host, and no credentials. What is wrong with those, or with the socket.
    pub fn of_tcp(
        socket: TcpStream,
        trust: Trust<'_>,
        is_client: bool,
    ) -> Result<Connection, Error> {
        let addresses = socket
            .local_addr()
            .and_then(|here| Ok((here.ip(), socket.peer_addr()?.ip())));
        let (here, there) = addresses.map_err(|error| Error::Cut(error.to_string()))?;
        let stream: Box<dyn Stream> = match trust.credentials {
            // The memory of a VM goes this way.
            None if !is_local(there) => return Err(Error::Insecure(there)),
            None => Box::new(socket),
            Some(credentials) if is_client => {
                let name = trust.name.map_or_else(|| there.to_string(), str::to_owned);
                Box::new(tls_connect(socket, credentials, &name)?)
            }
            Some(credentials) => Box::new(tls_accept(socket, credentials)?),
        };
        Ok(Connection {
            stream,
            here: SocketAddr::new(here, 0).to_string(),
            there: there.to_string(),
        })
    }
}

fn is_local(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_read_and_written_again() {
        for (text, way, again) in [
            ("unix:/a b", Way::Unix("/a b".into()), "unix:/a b"),
            ("tcp:[::1]:7", Way::Tcp("[::1]:7".into()), "tcp:[::1]:7"),
            ("host:7000", Way::Tcp("host:7000".into()), "tcp:host:7000"),
        ] {
            assert_eq!(text.parse(), Ok(way.clone()));
            assert_eq!(way.to_string(), again);
        }
        for wrong in [
            "",
            "unix:",
            "/run/way",
            "tcp:",
            "tcp::1",
            "tcp:a:99999",
            "systemd",
        ] {
            assert!(wrong.parse::<Way>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_name_that_was_typed_is_looked_for_in_the_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = |names: &[&str]| {
            let files = amdahl_test_certificates::make_for(folder.path(), names[0], names).unwrap();
            Credentials {
                certificates: files.certificate,
                key: files.key,
                authorities: files.authority,
            }
        };
        for (names, is_right) in [(["localhost"], true), (["127.0.0.1"], false)] {
            let credentials = credentials(&names);
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let way = Way::Tcp(format!(
                "localhost:{}",
                listener.local_addr().unwrap().port()
            ));
            let trust = Trust {
                credentials: Some(&credentials),
                name: None,
            };
            std::thread::scope(|scope| {
                let there = scope.spawn(|| {
                    let (socket, _) = listener.accept().unwrap();
                    let mut there = Connection::of_tcp(socket, trust, false)?.stream;
                    there
                        .write_all(&[7])
                        .map_err(|error| Error::Cut(error.to_string()))
                });
                let here = way.connect(trust, Duration::from_secs(60));
                let read = here.and_then(|mut here| {
                    let mut byte = [0];
                    let read = here.stream.read_exact(&mut byte);
                    read.map_err(|error| Error::Cut(error.to_string()))
                });
                assert_eq!(read.is_ok(), is_right, "{names:?}: {read:?}");
                let _ = there.join().unwrap();
            });
        }
    }

    #[test]
    fn nobody_there_is_told_with_the_name() {
        let nobody: Way = "unix:/nowhere/at all".parse().unwrap();
        let refused = nobody.connect(Trust::default(), Duration::from_secs(1));
        let why = refused.err().unwrap().to_string();
        assert!(why.starts_with("unix:/nowhere/at all: "), "{why}");
    }
}
