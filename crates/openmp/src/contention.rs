//! Whether others take this program's CPUs, found out by the threads themselves.
//!
//! A thread that was not disturbed since it last looked (see `rseq`) knows so at the price of a load. One that was
//! compares the clock with its own CPU time: what is missing, and was not slept away by itself, was taken from it.
//! While it spins, a gap between two looks at the clock tells the same without a system call. Who was woken and comes
//! late had to wait for its CPU behind others.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{rseq, sys};

/// Losses are looked at no more often than this: the look costs two clocks.
const LOOK_NS: u64 = 200_000;
/// Where the kernel does not tell of disturbances, this often.
const LOOK_BLIND_NS: u64 = 2_000_000;
/// Shorter losses are interrupts and housekeeping, which a dedicated machine has too.
const SMALL_LOSS_NS: u64 = 300_000;
/// What was taken once is expected to be taken again for so many times the loss ...
const EXPECT_FACTOR: u64 = 8;
/// ... but at least and at most this long.
const EXPECT_NS: (u64, u64) = (10_000_000, 100_000_000);
/// Teams of more threads than CPUs hand a CPU on by `sched_yield` as long as it comes back sooner: others who take it
/// keep it for a slice (0.7 ms times the logarithm of the CPUs on Linux 6.12 and later, a tick where the clock is coarser) ...
const YIELD_NS: u64 = 1_000_000;
/// ... and if it does not, they sleep for so long, twice as long each time.
const YIELD_PAUSE_NS: (u64, u64) = (20_000_000, 1_280_000_000);
/// Two looks at the clock in a spin loop lie microseconds apart, if the thread runs.
pub(crate) const GAP_NS: u64 = 50_000;

/// What the threads of one process found out together.
#[derive(Debug)]
pub struct Contention {
    /// Until when (monotonic) CPUs are expected to be taken away.
    until_ns: AtomicU64,
    /// Nanoseconds taken from threads, in all that was noticed.
    lost_ns: AtomicU64,
    /// From when on (monotonic) CPUs may be yielded again.
    yields_from_ns: AtomicU64,
    /// How long they were not, the last time.
    yield_pause_ns: AtomicU64,
    /// Threads of this process that can run at once; see `runnable`.
    runnable: AtomicU32,
}

impl Default for Contention {
    fn default() -> Contention {
        Contention::new()
    }
}

impl Contention {
    /// Nobody has lost anything.
    pub const fn new() -> Contention {
        Contention {
            until_ns: AtomicU64::new(0),
            lost_ns: AtomicU64::new(0),
            yields_from_ns: AtomicU64::new(0),
            yield_pause_ns: AtomicU64::new(0),
            runnable: AtomicU32::new(u32::MAX),
        }
    }

    /// Threads of this process that can run at once; `u32::MAX` where nothing is known.
    #[inline]
    pub fn runnable(&self) -> u32 {
        self.runnable.load(Ordering::Relaxed)
    }

    /// So many can run from now on.
    pub fn set_runnable(&self, threads: u32) {
        // Waiters read its line again and again.
        if self.runnable() != threads {
            self.runnable.store(threads, Ordering::Relaxed);
        }
    }

    /// Whether a CPU that is yielded at `now` is expected back soon.
    #[inline]
    pub fn may_yield(&self, now: u64) -> bool {
        now >= self.yields_from_ns.load(Ordering::Relaxed)
    }

    /// A CPU that was yielded came back at `now`, after `took` nanoseconds. Several threads may say so at once.
    pub fn yielded(&self, now: u64, took: u64) {
        let from = self.yields_from_ns.load(Ordering::Relaxed);
        let pause = self.yield_pause_ns.load(Ordering::Relaxed);
        if took > YIELD_NS {
            // Who yielded before it was found out says nothing new.
            if now.saturating_sub(took) >= from {
                let (least, most) = YIELD_PAUSE_NS;
                let pause = (2 * pause).clamp(least, most);
                self.yield_pause_ns.store(pause, Ordering::Relaxed);
                self.yields_from_ns.store(now + pause, Ordering::Relaxed);
            }
        } else if pause != 0 && now.saturating_sub(from) > pause {
            // It went well for longer than it was left.
            self.yield_pause_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Whether CPUs are expected to be taken away at `now`.
    #[inline]
    pub fn is_expected(&self, now: u64) -> bool {
        now < self.until_ns.load(Ordering::Relaxed)
    }

    /// A thread was off its CPU for `lost` nanoseconds until `now`, although it had work.
    pub fn lost(&self, now: u64, lost: u64) {
        self.lost_ns.fetch_add(lost, Ordering::Relaxed);
        if lost < SMALL_LOSS_NS {
            return;
        }
        let expected = (lost.saturating_mul(EXPECT_FACTOR)).clamp(EXPECT_NS.0, EXPECT_NS.1);
        self.until_ns
            .fetch_max(now.saturating_add(expected), Ordering::Relaxed);
    }

    /// A thread that was to be on a CPU at `awake` is there `now`: others had it meanwhile, unless that was quick.
    pub fn woken(&self, now: u64, awake: u64) {
        let late = now.saturating_sub(awake);
        if late >= SMALL_LOSS_NS {
            self.lost(now, late);
        }
    }

    /// Nanoseconds taken from threads until now, as far as they noticed.
    pub fn lost_ns(&self) -> u64 {
        self.lost_ns.load(Ordering::Relaxed)
    }
}

/// What one thread remembers between its looks.
#[derive(Debug, Default)]
pub(crate) struct Own {
    looked_ns: u64,
    cpu_ns: u64,
    /// Slept of its own will since the last look.
    slept_ns: u64,
    /// Something took the CPU since the last look, and is not to be seen any more.
    was_disturbed: bool,
}

impl Own {
    /// Called where a thread begins to wait: were CPUs taken from it while it worked?
    #[inline]
    pub(crate) fn look(&mut self, shared: &Contention) {
        if self.was_disturbed || rseq::is_armed() == Some(false) {
            self.look_closer(shared, LOOK_NS);
        }
    }

    /// From now on it is seen whether anything takes the CPU.
    pub(crate) fn watch(&mut self) {
        self.was_disturbed |= rseq::is_armed() == Some(false);
        rseq::arm();
    }

    /// The same for a wait that reads the clock anyway: also where disturbances are not told.
    #[inline]
    pub(crate) fn look_at(&mut self, shared: &Contention) {
        if rseq::is_armed().is_none() {
            self.look_closer(shared, LOOK_BLIND_NS);
        }
    }

    #[cold]
    fn look_closer(&mut self, shared: &Contention, at_least_ns: u64) {
        let now = sys::monotonic_ns();
        if now.saturating_sub(self.looked_ns) < at_least_ns {
            return;
        }
        let cpu = sys::thread_cpu_ns();
        if self.looked_ns != 0 {
            let lost = taken(
                now.saturating_sub(self.looked_ns),
                cpu.saturating_sub(self.cpu_ns),
                self.slept_ns,
            );
            shared.lost(now, lost);
        }
        *self = Own {
            looked_ns: now,
            cpu_ns: cpu,
            slept_ns: 0,
            was_disturbed: false,
        };
        rseq::arm();
    }

    /// This thread slept because it wanted to.
    pub(crate) fn slept(&mut self, ns: u64) {
        self.slept_ns += ns;
    }
}

/// Nanoseconds that a thread neither ran nor slept.
fn taken(wall_ns: u64, cpu_ns: u64, slept_ns: u64) -> u64 {
    wall_ns.saturating_sub(cpu_ns).saturating_sub(slept_ns)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn small_losses_expect_nothing_and_large_ones_end() {
        let shared = Contention::new();
        shared.lost(1_000_000_000, 100_000);
        assert!(!shared.is_expected(1_000_000_000));
        shared.lost(1_000_000_000, 3_000_000);
        assert!(shared.is_expected(1_023_999_999));
        assert!(!shared.is_expected(1_024_000_000));
        shared.lost(1_000_000_000, u64::MAX);
        assert!(!shared.is_expected(1_000_000_000 + EXPECT_NS.1));
    }

    #[test]
    fn who_comes_late_from_sleep_has_lost_and_wake_ups_are_not_losses() {
        let shared = Contention::new();
        shared.woken(1_000_000, 1_000_000 - (SMALL_LOSS_NS - 1));
        shared.woken(1_000_000, 2_000_000);
        assert_eq!(shared.lost_ns(), 0);
        shared.woken(4_000_000, 1_000_000);
        assert_eq!(shared.lost_ns(), 3_000_000);
        assert!(shared.is_expected(4_000_000));
    }

    #[test]
    fn who_loses_a_cpu_by_yielding_waits_longer_each_time() {
        let shared = Contention::new();
        let (pause, most) = YIELD_PAUSE_NS;
        assert!(shared.may_yield(0));
        let mut now = 1_000_000_000;
        shared.yielded(now, YIELD_NS);
        assert!(shared.may_yield(now));
        shared.yielded(now, 3 * YIELD_NS);
        // Another one that had yielded at the same time.
        shared.yielded(now + YIELD_NS, 3 * YIELD_NS);
        assert!(!shared.may_yield(now + pause - 1));
        now += pause;
        assert!(shared.may_yield(now));
        shared.yielded(now + 2 * YIELD_NS, 2 * YIELD_NS);
        now += 2 * YIELD_NS;
        assert!(!shared.may_yield(now + 2 * pause - 1));
        for _ in 0..10 {
            assert!(shared.may_yield(now + most));
            now += most + 2 * YIELD_NS;
            shared.yielded(now, 2 * YIELD_NS);
        }
        assert!(!shared.may_yield(now + most - 1));
        // After as long without a loss it begins anew.
        shared.yielded(now + 2 * most + 1, 1_000);
        shared.yielded(now + 2 * most + 2, 2 * YIELD_NS);
        assert!(shared.may_yield(now + 2 * most + 2 + pause));
    }

    #[test]
    fn sleep_is_not_loss() {
        assert_eq!(taken(100, 40, 60), 0);
        assert_eq!(taken(100, 40, 50), 10);
        assert_eq!(taken(100, 140, 0), 0);
    }
}
