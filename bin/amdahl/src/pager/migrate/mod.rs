//! `amdahl pager migrate`: memory moves to another amdahl while it is written; that of another process, which is asked to, or of threads here.

pub mod arrive;
mod ask;
pub mod demo;
mod depart;

use std::io::Write;
use std::time::Duration;

use amdahl_migrate::{Error, Trust};

use crate::cli::migrate::{PagerMigrate, WayArgs};
use crate::failure::Failure;

/// Moves memory, to us or from us, or has it moved.
pub fn main(args: &PagerMigrate) -> Result<u8, Failure> {
    match (args.pid, &args.to, &args.listen) {
        (Some(pid), Some(way), _) => ask::main(args, pid, way),
        (None, Some(way), _) => depart::main(args, way),
        (_, None, Some(way)) => arrive::main(args, way),
        (_, None, None) => Err(Failure::usage("--to or --listen is needed".to_owned())),
    }
}

pub fn failure(error: Error) -> Failure {
    match error {
        Error::Unavailable(why) => Failure::machine(why),
        Error::Config(_) => Failure::usage(error.to_string()),
        Error::Insecure(there) => Failure::usage(format!(
            "{there} is another host: give --tls-certificate, --tls-key and --tls-authorities"
        )),
        error => Failure::result(error.to_string()),
    }
}

/// A line for who watches.
pub fn tell(is_quiet: bool, line: &str) {
    if !is_quiet {
        let _ = writeln!(anstream::stderr(), "{line}");
    }
}

pub fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

impl WayArgs {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Does something as who we are for the other side.
    fn trusting<T>(&self, act: impl FnOnce(Trust<'_>) -> T) -> T {
        let credentials = self.tls.credentials();
        act(Trust {
            credentials: credentials.as_ref(),
            name: self.tls.tls_name.as_deref(),
        })
    }
}
