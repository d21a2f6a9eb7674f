//! The command line of `amdahl pager offload` as typed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

pub(super) const OFFLOAD_EXAMPLES: &str = "\
Examples:
  ch-remote --api-socket vm.sock receive-migration \\
    receiver_url=unix:/tmp/restore.sock,memory_mode=postcopy &
  amdahl pager offload --snapshot /var/snapshots/vm1 --to unix:/tmp/restore.sock

The snapshot is what Cloud Hypervisor's own offload_daemon writes: migration_config.json, state.json,
and memory-N for each slot of memory, which may also be packed (amdahl pager pack memory-0 -o
memory-0.ami). The VM's pages arrive when it touches them, and in the background. It needs this program
as long as it runs: another cannot take over. If this one is killed Cloud Hypervisor finds its connection
closed; with --on-loss kill it is killed, too.";

/// What becomes of a VM that cannot have a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLoss {
    /// Cloud Hypervisor is told.
    Tell,
    /// Its process is killed.
    Kill,
}

/// `amdahl pager offload`.
#[derive(Debug, Args)]
pub struct PagerOffload {
    /// The folder of the snapshot
    #[arg(long, value_name = "FOLDER")]
    pub snapshot: PathBuf,
    /// Where Cloud Hypervisor waits for the VM: unix:PATH
    #[arg(long, value_name = "WHERE", value_parser = super::serve::socket)]
    pub to: PathBuf,
    /// Leave the VM paused
    #[arg(long)]
    pub paused: bool,
    /// Fetch only what is touched
    #[arg(long)]
    pub no_fill: bool,
    /// Seconds that a page may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub read_timeout: u64,
    /// What becomes of a VM that cannot have a page, since the snapshot cannot be read or this program
    /// is killed: Cloud Hypervisor is told (by an error, or the end of the connection), or is killed
    #[arg(long, value_name = "WHAT", default_value = "tell")]
    pub on_loss: OnLoss,
    /// No progress
    #[arg(long, short)]
    pub quiet: bool,
}
