//! What the command line means here.

use std::time::Duration;

use amdahl_pager::{BLOCK, Background, Features, Support};

use super::vm::background;
use crate::cli::serve::{OnLoss, PagerServe};
use crate::failure::Failure;

/// How VMs are served.
pub struct Plan {
    /// At once.
    pub max_vms: u32,
    /// Memory for unpacked clusters, of all VMs together.
    pub cache_bytes: usize,
    /// Memory for pages on their way, of each VM.
    pub staging_bytes: usize,
    /// Threads beside the reader, of each VM.
    pub workers: usize,
    /// What is fetched that nobody touches.
    pub background: Background,
    /// Bytes a second of what is fetched ahead, for each VM.
    pub budget: Option<u64>,
    /// What becomes of a VM that cannot have a page.
    pub on_loss: OnLoss,
    /// The kernel can make pages deadly.
    pub can_poison: bool,
    /// How long a hand-off may take.
    pub handoff_timeout: Duration,
    /// How long reading a page may take.
    pub read_timeout: Duration,
    /// Between lines.
    pub progress: Duration,
}

/// Threads of a VM that fetch at most: more wait for the kernel's locks on its memory.
const WORKERS: usize = 4;
/// A VM needs so many blocks at least: fewer would make its threads wait for each other.
const BLOCKS: u64 = 2;

impl Plan {
    /// Of the command line, on this machine.
    pub fn new(args: &PagerServe) -> Result<Plan, Failure> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let (cache, blocks) = divide(args.memory, args.max_vms)?;
        Ok(Plan {
            max_vms: args.max_vms,
            cache_bytes: usize::try_from(cache).unwrap_or(usize::MAX),
            staging_bytes: blocks * BLOCK,
            workers: cpus.min(WORKERS).min(blocks),
            background: background(args.fill),
            budget: args.budget,
            on_loss: args.on_loss,
            can_poison: Support::probe().features.contain(Features::POISON),
            handoff_timeout: Duration::from_secs(args.handoff_timeout),
            read_timeout: Duration::from_secs(args.read_timeout),
            progress: Duration::from_secs(args.progress),
        })
    }
}

/// Half of the memory is the cache of all, the other half is for the VMs' pages on their way: bytes, and blocks of each VM.
fn divide(memory: u64, vms: u32) -> Result<(u64, usize), Failure> {
    let each = memory / 2 / u64::from(vms) / BLOCK as u64;
    if each < BLOCKS {
        let least = 2 * BLOCKS * BLOCK as u64 * u64::from(vms);
        return Err(Failure::usage(format!(
            "--memory: {vms} VMs (--max-vms) need {} MiB at least",
            least >> 20
        )));
    }
    // What a VM's threads fill at once, and as much that waits.
    let each = each.min(4 * WORKERS as u64);
    Ok((memory - each * BLOCK as u64 * u64::from(vms), each as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_divided_and_not_exceeded() {
        for (memory, vms) in [
            (512 << 20, 32),
            (8 << 20, 1),
            (1 << 40, 4096),
            (800 << 20, 100),
        ] {
            let (cache, blocks) = divide(memory, vms).unwrap();
            assert!(blocks >= 2 && cache >= memory / 2);
            assert!(cache + (blocks * BLOCK) as u64 * u64::from(vms) <= memory);
        }
        let refused = divide(7 << 20, 1).unwrap_err();
        assert!(refused.message.contains("8 MiB"), "{}", refused.message);
        assert!(divide(512 << 20, 65).is_err());
    }
}
