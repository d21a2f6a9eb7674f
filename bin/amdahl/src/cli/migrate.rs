//! The command line of `amdahl pager migrate` as typed.

use std::path::PathBuf;

use clap::Args;

use super::tls::Tls;

pub(super) const MIGRATE_EXAMPLES: &str = "\
Examples:
  amdahl pager migrate --listen unix:/tmp/way            # first; in another terminal:
  amdahl pager migrate --to unix:/tmp/way
  amdahl pager migrate --to tcp:127.0.0.1:7000 --memory 1G --write-rate 50000 --downtime 20
  amdahl pager migrate --to unix:/tmp/way --no-post-copy --auto-converge --json
  amdahl pager migrate --listen tcp:0.0.0.0:7000 --tls-certificate here.pem --tls-key here.key \\
    --tls-authorities ca.pem

What is moved is a demonstration: threads that write memory and know what each page has to
hold. They go on at the other side, which checks every page. Programs and VMMs do the same with
their own memory by the library amdahl-migrate (crates/migrate/README.md).

If the source is lost after the switch-over, a thread that touches what is missing gets SIGBUS,
and the program with it.

Ends with 1 if the memory did not move: the threads go on here, and what they wrote is checked.
The source needs Linux 6.7 and access to userfaultfd: root, or
setfacl -m u:USER:rw /dev/userfaultfd. What is printed: docs/pager-migrate.md.";

/// `amdahl pager migrate`.
#[derive(Debug, Args)]
pub struct PagerMigrate {
    /// Where the memory goes: unix:PATH or tcp:HOST:PORT, at which another amdahl listens
    #[arg(
        long,
        value_name = "WHERE",
        value_parser = way,
        required_unless_present = "listen",
        conflicts_with = "listen"
    )]
    pub to: Option<Way>,
    /// Where memory is waited for, once: unix:PATH or tcp:ADDRESS:PORT
    #[arg(long, value_name = "WHERE", value_parser = way)]
    pub listen: Option<Way>,
    /// How much memory, the same at both sides
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    pub memory: usize,
    /// Threads that write
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "listen", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Pages that all of them write a second, about; 0: as many as they can
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2000,
        conflicts_with = "listen"
    )]
    pub write_rate: u32,
    /// Milliseconds for which the threads may stand still
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 100,
        conflicts_with = "listen"
    )]
    pub downtime: u64,
    /// Rounds while the threads run
    #[arg(long, value_name = "N", default_value_t = 30, conflicts_with = "listen", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Give up rather than fetch pages after the switch-over
    #[arg(long, conflicts_with = "listen")]
    pub no_post_copy: bool,
    /// Slow the threads down when they write faster than is sent
    #[arg(long, conflicts_with = "listen")]
    pub auto_converge: bool,
    /// Seconds for which the other side may say nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
    #[command(flatten)]
    pub tls: Tls,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// No progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// How the two sides reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// A socket of this host.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

fn way(text: &str) -> Result<Way, String> {
    let wrong = "unix:PATH or tcp:HOST:PORT is needed, such as tcp:127.0.0.1:7000";
    if let Some(address) = text.strip_prefix("tcp:") {
        let parts = address.rsplit_once(':');
        let fits =
            parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        return fits
            .then(|| Way::Tcp(address.to_owned()))
            .ok_or(wrong.to_owned());
    }
    match text.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(Way::Unix(path.into())),
        _ => Err(wrong.to_owned()),
    }
}

fn size(text: &str) -> Result<usize, String> {
    super::pager::bytes(text)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|bytes| bytes.is_multiple_of(4096) && (1 << 20..=1 << 40).contains(bytes))
        .ok_or_else(|| "a multiple of 4K from 1M to 1T is needed, such as 64M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_read() {
        assert_eq!(way("unix:/a b"), Ok(Way::Unix("/a b".into())));
        assert_eq!(way("tcp:[::1]:7"), Ok(Way::Tcp("[::1]:7".into())));
        for wrong in [
            "",
            "unix:",
            "/run/way",
            "tcp:",
            "tcp::1",
            "tcp:a:99999",
            "systemd",
        ] {
            assert!(way(wrong).is_err(), "{wrong}");
        }
        assert_eq!(size("64M"), Ok(64 << 20));
        for wrong in ["", "4K", "1000001", "2T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
