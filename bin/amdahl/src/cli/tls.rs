//! What commands that reach other hosts are told of TLS.

use std::path::PathBuf;

use amdahl_remote::Credentials;
use clap::Args;

/// All of the first three or none.
#[derive(Debug, Args)]
pub struct Tls {
    /// Our certificate, and those between it and one that the other side trusts (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_authorities"])]
    pub tls_certificate: Option<PathBuf>,
    /// Our key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
    /// Who vouches for the other side (PEM): nobody else is served or asked
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_authorities: Option<PathBuf>,
    /// The name in the other side's certificate, if it is not its address
    #[arg(long, value_name = "NAME", requires = "tls_certificate")]
    pub tls_name: Option<String>,
}

impl Tls {
    /// `None`: without TLS.
    pub fn credentials(&self) -> Option<Credentials> {
        Some(Credentials {
            certificates: self.tls_certificate.clone()?,
            key: self.tls_key.clone()?,
            authorities: self.tls_authorities.clone()?,
        })
    }
}
