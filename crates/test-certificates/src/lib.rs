//! An authority and a certificate of it, made up for a test or a bench, as files in PEM.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Where they are.
#[derive(Clone, Debug)]
pub struct Files {
    /// For `127.0.0.1` and `pages.test`, if no other names were given.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who vouches for it.
    pub authority: PathBuf,
}

/// Makes both, in files of `folder` whose names begin with `name`.
///
/// # Errors
/// The folder cannot be written to.
pub fn make(folder: &Path, name: &str) -> Result<Files, Box<dyn Error>> {
    make_for(folder, name, &["127.0.0.1", "pages.test"])
}

/// The same with a certificate for other names.
///
/// # Errors
/// The folder cannot be written to.
pub fn make_for(folder: &Path, name: &str, names: &[&str]) -> Result<Files, Box<dyn Error>> {
    let mut params = CertificateParams::new(vec![])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate()?;
    let authority = params.self_signed(&authority_key)?;
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate()?;
    let names =
        CertificateParams::new(names.iter().map(|name| (*name).into()).collect::<Vec<_>>())?;
    let certificate = names.signed_by(&key, &issuer)?;
    let file = |what: &str, text: String| {
        let path = folder.join(format!("{name}-{what}.pem"));
        fs::write(&path, text).map(|()| path)
    };
    Ok(Files {
        certificate: file("certificate", certificate.pem())?,
        key: file("key", key.serialize_pem())?,
        authority: file("authority", authority.pem())?,
    })
}
