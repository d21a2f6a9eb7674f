//! What the host publishes of the guest that we are in: where it is, and whether it is used.

use std::path::Path;

use amdahl_phantom::{HostPage, Sampler, Silence};
use amdahl_phantom_page::{Foreign, ForeignError, OpenError};
use amdahl_report::schema::Source;

use super::look::source;
use crate::cli::Phantom;
use crate::failure::Failure;

/// Finds it, as `args` say.
pub fn follow(args: &Phantom, sampler: &mut Sampler) -> Result<(), Failure> {
    let page = match &args.host_page {
        None => HostPage::found(),
        Some(path) if path == Path::new("off") => None,
        Some(path) => Some(HostPage::named(path).map_err(|error| {
            let why = match error {
                OpenError::NotFound => "there is no such file".to_owned(),
                error => error.to_string(),
            };
            Failure::machine(format!("--host-page {}: {why}", path.display()))
        })?),
    };
    if let Some(page) = page {
        sampler.follow_host(page);
    }
    Ok(())
}

/// How it was at the end.
pub struct Host {
    /// Where it is.
    pub path: String,
    /// What it said last, or why it is not used.
    pub said: Result<Foreign, Silence>,
}

impl Host {
    /// `None` if there is none, or what is there has nothing to do with us.
    pub fn of(sampler: &Sampler) -> Option<Host> {
        let page = sampler.host().filter(|page| !page.is_something_else())?;
        Some(Host {
            path: page.path().display().to_string(),
            said: page.fresh(),
        })
    }

    /// In a sentence, without its end.
    pub fn words(&self) -> String {
        match &self.said {
            Ok(_) => format!("the host's page {} is used", self.path),
            Err(why) => format!("the host's page {} is ignored: {why}", self.path),
        }
    }

    /// As a source of results.
    pub fn source(&self) -> Source {
        const WHAT: &str = "CPUs of the whole guest";
        match &self.said {
            Ok(_) => source(WHAT, "the host's page", "", ""),
            Err(why) => source(
                WHAT,
                "missing",
                &format!("The host's page {} is ignored: {why}.", self.path),
                match why {
                    Silence::Unreadable(ForeignError::Open(OpenError::System {
                        errno: libc::EACCES | libc::EPERM,
                        ..
                    })) => "root, without lockdown of the kernel",
                    _ => "amdahl phantom --serve --vm PID --page FILE on the host",
                },
            ),
        }
    }
}

/// Tells when it begins or ceases to be used.
#[derive(Default)]
pub struct Teller {
    was_used: Option<bool>,
}

impl Teller {
    /// Says how it is, if it was otherwise.
    pub fn look(&mut self, sampler: &Sampler) {
        use std::io::Write;
        let Some(host) = Host::of(sampler) else {
            return;
        };
        if self.was_used.replace(host.said.is_ok()) != Some(host.said.is_ok()) {
            // Nobody may read it.
            let _ = writeln!(anstream::stderr(), "amdahl: {}", host.words());
        }
    }
}
