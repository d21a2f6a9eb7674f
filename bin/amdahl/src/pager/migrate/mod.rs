//! `amdahl pager migrate`: memory moves to another amdahl while it is written; that of another process, which is asked to, or of threads here.

pub mod arrive;
mod ask;
pub mod demo;
mod depart;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use amdahl_migrate::{Error, Outage, TellOutage, Trust};

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

/// An outage as a line; `what` is done meanwhile.
fn outage(outage: &Outage, what: &str) -> String {
    match outage {
        Outage::Begun { why, within } => paused(why, *within, what),
        Outage::Over { lasted } => recovered(*lasted),
        other => format!("{other:?}"),
    }
}

fn paused(why: &str, within: Duration, what: &str) -> String {
    format!("paused: {why}; {what} for {} s", within.as_secs())
}

fn recovered(lasted: Duration) -> String {
    format!("recovered after {:.1} s", lasted.as_secs_f64())
}

fn tells(quiet: bool, what: &'static str) -> Option<Arc<TellOutage>> {
    Some(Arc::new(move |now: &Outage| {
        tell(quiet, &outage(now, what))
    }))
}

impl WayArgs {
    /// `None`: who is away is lost.
    fn recovery(&self) -> Option<Duration> {
        (self.recover > 0).then(|| Duration::from_secs(self.recover))
    }

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

    /// How connections are made as who we are.
    fn by<T, Y, F>(&self, make: F) -> impl Fn(T) -> Y + use<T, Y, F>
    where
        F: Fn(T, Trust<'_>) -> Y,
    {
        let (credentials, name) = (self.tls.credentials(), self.tls.tls_name.clone());
        move |from| {
            let trust = Trust {
                credentials: credentials.as_ref(),
                name: name.as_deref(),
            };
            make(from, trust)
        }
    }
}
