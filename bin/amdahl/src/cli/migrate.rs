//! The command line of `amdahl pager migrate` and `demo-vm` as typed.

use amdahl_migrate::Way;
use clap::Args;

use super::tls::Tls;

pub(super) const MIGRATE_EXAMPLES: &str = "\
Examples:
  amdahl pager migrate --pid 4711 --to host:7000 --tls-certificate here.pem --tls-key here.key \\
    --tls-authorities ca.pem
  amdahl pager migrate --pid 4711 --to host:7000 --downtime 20 --auto-converge --json

  amdahl pager migrate --listen unix:/tmp/way            # a trial; in another terminal:
  amdahl pager migrate --to unix:/tmp/way --memory 1G --write-rate 50000

With --pid the memory of another process moves, and what it does goes on at the other side. The
process does it by itself: it must be one that can be asked, which are `amdahl pager demo-vm`
and programs that open a door by the library amdahl-migrate. Any other process is left alone, and
this says so: its registers, files and sockets could not come along. Until the switch-over
Ctrl-C, the end of this command and every failure leave it running where it is. Afterwards there
is no way back: it serves what is missing at the other side until all is there, by itself.

Without --pid threads of this command are moved; --listen takes them in, checks every page
and ends.

If the connection ends after the switch-over, what needs missing pages waits at the destination for
up to --recover seconds, while the source tries WHERE again: a name is looked up each time, and the
source's own address may be another one. Nothing is lost if it comes back in time. If it does not,
what needs its pages stops there, and the command ends with 1. Give both sides the same.

The source needs Linux 6.7 and access to userfaultfd: root, or
setfacl -m u:USER:rw /dev/userfaultfd. What is printed: docs/pager-migrate.md.";

pub(super) const DEMO_VM_EXAMPLES: &str = "\
Examples:
  there$ amdahl pager demo-vm --listen tcp:0.0.0.0:7000 --tls-certificate there.pem \\
           --tls-key there.key --tls-authorities ca.pem
  here$  amdahl pager demo-vm --memory 1G &
  here$  amdahl pager migrate --pid $! --to there:7000 --tls-certificate here.pem \\
           --tls-key here.key --tls-authorities ca.pem

Threads write the memory, and look at each page before: whatever is not as they left it ends this
with 1. It runs until it has moved, or is told to end by Ctrl-C; then all pages are checked. With
--listen it begins when one arrives, and can be moved on when all its pages are there.";

/// `amdahl pager migrate`.
#[derive(Debug, Args)]
pub struct PagerMigrate {
    /// The process whose memory moves; without: threads of this command
    #[arg(
        long,
        value_name = "PID",
        requires = "to",
        conflicts_with_all = ["listen", "memory", "threads", "write_rate"],
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub pid: Option<u32>,
    /// Where the memory goes: HOST:PORT, tcp:HOST:PORT or unix:PATH, at which another amdahl listens
    #[arg(
        long,
        value_name = "WHERE",
        required_unless_present = "listen",
        conflicts_with = "listen"
    )]
    pub to: Option<Way>,
    /// Where memory is waited for, once: unix:PATH or tcp:ADDRESS:PORT
    #[arg(long, value_name = "WHERE")]
    pub listen: Option<Way>,
    #[command(flatten)]
    pub demo: DemoSize,
    /// Milliseconds for which it may stand still
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 100,
        conflicts_with = "listen"
    )]
    pub downtime: u64,
    /// Rounds while it runs
    #[arg(long, value_name = "N", default_value_t = 30, conflicts_with = "listen", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Give up rather than fetch pages after the switch-over
    #[arg(long, conflicts_with = "listen")]
    pub no_post_copy: bool,
    /// Slow it down when it writes faster than is sent
    #[arg(long, conflicts_with = "listen")]
    pub auto_converge: bool,
    #[command(flatten)]
    pub way: WayArgs,
}

/// `amdahl pager demo-vm`.
#[derive(Debug, Args)]
pub struct PagerDemoVm {
    /// Begin with one that arrives here: unix:PATH or tcp:ADDRESS:PORT
    #[arg(long, value_name = "WHERE")]
    pub listen: Option<Way>,
    #[command(flatten)]
    pub demo: DemoSize,
    #[command(flatten)]
    pub way: WayArgs,
}

/// What a demonstration is.
#[derive(Clone, Debug, Args)]
pub struct DemoSize {
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
}

/// How the two sides speak, and what is said of it.
#[derive(Debug, Args)]
pub struct WayArgs {
    /// Seconds for which the other side may say nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
    /// After the switch-over, seconds for which a side that is away is waited for, and tried again; 0: it is lost at once
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub recover: u64,
    #[command(flatten)]
    pub tls: Tls,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// No progress
    #[arg(long, short)]
    pub quiet: bool,
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
    fn sizes_are_read() {
        assert_eq!(size("64M"), Ok(64 << 20));
        for wrong in ["", "4K", "1000001", "2T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
