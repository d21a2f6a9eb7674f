//! Where a memory is, and how it is reached.

use std::io;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::meet::Tls;
use crate::tls::Fresh;
use crate::wire::Secret;
use crate::{Credentials, Error, resolve};

/// Where a memory is, and how to get there.
#[derive(Clone, Debug)]
pub struct Connect {
    /// Host and port.
    pub address: String,
    /// The name in the server's certificate; `None`: the host in `address`.
    pub name: Option<String>,
    /// `None`: without TLS.
    pub credentials: Option<Credentials>,
    /// What the server wants to be shown ([`Serve::secret`](crate::Serve::secret)), if it does. One that does not want it takes it for nonsense.
    pub secret: Option<Secret>,
    /// Connections, at least 1. With more than one the first is kept for what somebody waits for.
    pub streams: usize,
    /// How long an answer may take, with all tries to connect again; the time in which the other side is away, up to `recovery`, is not counted.
    pub timeout: Duration,
    /// How long a connection that owes something may say nothing until it is taken for dead and made again. `None`: a third of `timeout`.
    pub silence: Option<Duration>,
    /// How long the other side may be away, beside `timeout`, until it is taken for lost: from when no connection is there, or none has said anything for `silence`, until an answer comes. All
    /// the while it is tried again. So a read ends within `timeout` and `recovery`, and those that begin when it is lost within `timeout`.
    pub recovery: Duration,
}

impl Connect {
    /// With the usual limits, and without TLS.
    pub fn new(address: impl Into<String>) -> Connect {
        Connect {
            address: address.into(),
            name: None,
            credentials: None,
            secret: None,
            streams: 4,
            timeout: Duration::from_secs(10),
            silence: None,
            recovery: Duration::ZERO,
        }
    }

    /// How long a connection that owes something may say nothing.
    pub(crate) fn silence(&self) -> Duration {
        self.silence.unwrap_or(self.timeout / 3)
    }
}

/// Where the other side is now, and what it is to be called.
#[derive(Clone)]
pub(crate) struct Place {
    pub address: String,
    name: Option<ServerName<'static>>,
}

impl Place {
    pub fn new(connect: &Connect, address: &str) -> Result<Place, Error> {
        let name = connect.name.as_deref().unwrap_or(resolve::host_of(address));
        let name = connect.credentials.is_some().then(|| {
            ServerName::try_from(name.to_owned()).map_err(|error| Error::Address {
                address: name.to_owned(),
                error: io::Error::new(io::ErrorKind::InvalidInput, error),
            })
        });
        Ok(Place {
            address: address.to_owned(),
            name: name.transpose()?,
        })
    }

    pub fn tls<'a>(&self, config: &'a Option<Fresh<ClientConfig>>) -> Option<Tls<'a>> {
        Some((config.as_ref()?, self.name.clone()?))
    }
}
