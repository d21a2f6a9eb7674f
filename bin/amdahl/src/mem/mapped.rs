//! Mappings for a live view: looked at again and again, for a bounded share of the time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use amdahl_mem::first_touch::Touches;
use amdahl_report::mem::schema::MemResult;

use super::look::{BUDGET, Looked, Looker};
use super::pages::{self, BlockUse, Machine};
use super::sources;
use crate::cli::Selection;

/// What is saved for looking while nobody asks, at most; there is so much at first.
const CREDIT_MAX: Duration = Duration::from_millis(100);

/// Reading what blocks are used for takes one of so many parts of the time, at most.
const BLOCKS_BUDGET: u32 = 1000;

/// The mappings of those who are watched, as they are now.
pub struct Mapped {
    looker: Looker,
    looked: Looked,
    /// The machine when it began.
    before: Machine,
    blocks: BlockUse,
    /// When they are read again.
    next_blocks: Instant,
    /// Nanoseconds that it may look. Below zero after a look that took longer than what was saved.
    credit: i64,
    at: Instant,
}

impl Mapped {
    /// Of whom `selection` says. Nothing is looked at yet.
    pub fn new(selection: &Selection) -> Mapped {
        let (blocks, next_blocks) = timed_blocks();
        Mapped {
            looker: Looker::new(selection),
            looked: Looked::default(),
            before: Machine::with(blocks.clone()),
            blocks,
            next_blocks,
            credit: ns(CREDIT_MAX),
            at: Instant::now(),
        }
    }

    /// Huge pages as far as no process has to be looked at.
    pub fn of_the_machine(&mut self, result: &mut MemResult) {
        let now = self.machine();
        result.huge = pages::of_the_machine(&self.before, &now);
        now.warn_of_hints(&self.before, result);
    }

    /// Looks, and tells mappings and processes.
    pub fn tell(&mut self, touches: &Touches, result: &mut MemResult) {
        self.look();
        let now = self.machine();
        let pages = pages::pages(&self.before, &now, &self.looked, touches);
        (result.huge, result.processes, result.numa) = (pages.huge, pages.processes, pages.numa);
        now.warn_of_hints(&self.before, result);
        result.sources.push(sources::mappings(&self.looked));
        result.sources.push(sources::no_sizes_live());
        let refused = self.before.no_block_types();
        result.sources.extend(sources::blocks(refused));
    }

    fn machine(&mut self) -> Machine {
        if Instant::now() >= self.next_blocks {
            (self.blocks, self.next_blocks) = timed_blocks();
        }
        Machine::with(self.blocks.clone())
    }

    /// At those with most memory; those first that were looked at longest ago. Reading `smaps` holds the
    /// address-space lock of whom it is about.
    fn look(&mut self) {
        let earned = ns(self.at.elapsed() / BUDGET);
        self.credit = (self.credit + earned).min(ns(CREDIT_MAX));
        let largest = self.looker.largest();
        let present: BTreeSet<u32> = largest.iter().map(|&(_, pid)| pid).collect();
        self.looked.seen.retain(|pid, _| present.contains(pid));
        for (bytes, pid) in self.looked.longest_ago_first(largest) {
            if self.credit <= 0 {
                break;
            }
            let begun = Instant::now();
            self.looked.keep(pid, bytes, None);
            self.credit -= ns(begun.elapsed());
        }
        self.at = Instant::now();
    }
}

/// What blocks are used for, and when it may be read again.
fn timed_blocks() -> (BlockUse, Instant) {
    let begun = Instant::now();
    let blocks = BlockUse::now();
    let now = Instant::now();
    (blocks, now + (now - begun) * BLOCKS_BUDGET)
}

fn ns(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ProbeKind;

    /// Of a process, or of the system.
    fn selection(pid: Option<u32>) -> Selection {
        Selection {
            pid,
            cgroup: None,
            system: pid.is_none(),
            duration: None,
            memory: 16,
            probe: ProbeKind::Proc,
            quiet: true,
            command: Vec::new(),
        }
    }

    #[test]
    fn who_is_there_is_looked_at_and_who_is_gone_is_forgotten() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .expect("sleep");
        let mut mapped = Mapped::new(&selection(Some(child.id())));
        let tell = |mapped: &mut Mapped| {
            let mut result = MemResult::default();
            mapped.tell(&Touches::default(), &mut result);
            result
        };
        let seen = tell(&mut mapped);
        let of_child = |pid: u32| pid == child.id();
        assert!(
            seen.huge.mappings.iter().any(|row| of_child(row.pid)),
            "{seen:?}"
        );
        assert!(seen.processes.iter().all(|row| of_child(row.pid)));
        child.kill().expect("killed");
        child.wait().expect("reaped");
        let gone = tell(&mut mapped);
        assert!(gone.huge.mappings.is_empty() && gone.processes.is_empty());
    }

    #[test]
    fn without_credit_nobody_is_looked_at() {
        let mut mapped = Mapped::new(&selection(None));
        // A look that took a second longer than it should is paid back first.
        mapped.credit = -1_000_000_000;
        mapped.look();
        assert!(mapped.looked.seen.is_empty());
        mapped.credit = 0;
        // In the future: nothing is earned.
        mapped.at = Instant::now() + Duration::from_secs(3600);
        mapped.look();
        assert!(mapped.looked.seen.is_empty());
        mapped.credit = ns(CREDIT_MAX);
        mapped.look();
        assert!(!mapped.looked.seen.is_empty());
    }
}
