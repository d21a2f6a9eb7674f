//! Whether others take this program's CPUs, found out by the threads themselves.
//!
//! A thread that was not disturbed since it last looked (see `rseq`) knows so at the price of a load. One that was
//! compares the clock with its own CPU time: what is missing, and was not slept away by itself, was taken from it.
//! While it spins, a gap between two looks at the clock tells the same without a system call. Who was woken and comes
//! late had to wait for its CPU behind others.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::lateness::{Awaited, Lateness};
use crate::schedule::FULL_SPEED;
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
    /// How often threads passed their turns.
    passes: AtomicU64,
    /// Nanoseconds that others had their CPUs then.
    passed_ns: AtomicU64,
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
            passes: AtomicU64::new(0),
            passed_ns: AtomicU64::new(0),
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

    /// A thread passed its turn, and others had its CPU for so many nanoseconds.
    pub fn passed(&self, given_ns: u64) {
        self.passes.fetch_add(1, Ordering::Relaxed);
        self.passed_ns.fetch_add(given_ns, Ordering::Relaxed);
    }

    /// How often threads have passed their turns.
    pub fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// Nanoseconds until now that others had CPUs of threads that could run: taken from them, or passed on.
    pub fn missed_ns(&self) -> u64 {
        self.lost_ns() + self.passed_ns.load(Ordering::Relaxed)
    }

    /// Nanoseconds taken from threads until now, as far as they noticed.
    pub fn lost_ns(&self) -> u64 {
        self.lost_ns.load(Ordering::Relaxed)
    }
}

/// The speed of a thread is that of about this long.
const SPEED_NS: u64 = 10_000_000;

/// What one thread remembers between its looks.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// What it knows of its waits for all of a team, and for a master.
    lateness: [Lateness; 2],
    /// [`FULL_SPEED`] less its speed.
    slowness: u32,
    looked_ns: u64,
    cpu_ns: u64,
    /// Slept of its own will since the last look.
    slept_ns: u64,
    /// Lost since the last look, and told already.
    told_ns: u64,
    /// Something took the CPU since the last look, and is not to be seen any more.
    was_disturbed: bool,
}

impl Own {
    /// Called where a thread begins to wait: were CPUs taken from it while it worked?
    #[inline]
    pub(crate) fn look(&mut self, shared: &Contention) {
        // Who is slow sees at the clock only that it is not any more.
        if self.was_disturbed || self.slowness != 0 || rseq::is_armed() == Some(false) {
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
            shared.lost(now, lost.saturating_sub(self.told_ns));
            self.slowness = slowness(self.slowness, cpu.saturating_sub(self.cpu_ns), lost);
        }
        *self = Own {
            lateness: self.lateness,
            slowness: self.slowness,
            looked_ns: now,
            cpu_ns: cpu,
            slept_ns: 0,
            told_ns: 0,
            was_disturbed: false,
        };
        rseq::arm();
    }

    /// How much of a CPU the thread gets where it wants one, of [`FULL_SPEED`].
    #[inline]
    pub(crate) fn speed(&self) -> u32 {
        FULL_SPEED - self.slowness
    }

    /// While this thread spun the CPU was taken from it for so long, until `now`: the next look does not tell of that again.
    pub(crate) fn lost(&mut self, shared: &Contention, now: u64, ns: u64) {
        shared.lost(now, ns);
        self.told_ns += ns;
    }

    /// What this thread knows of its waits for such.
    pub(crate) fn lateness(&mut self, awaited: Awaited) -> Option<&mut Lateness> {
        match awaited {
            Awaited::Team => Some(&mut self.lateness[0]),
            Awaited::Master => Some(&mut self.lateness[1]),
            Awaited::Other => None,
        }
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

/// [`FULL_SPEED`] less the speed of a thread, for which it was `before`, that has run for `ran_ns` and lost `lost_ns` since:
/// a mean in which older times count less and less. Nearly nothing is nothing.
fn slowness(before: u32, ran_ns: u64, lost_ns: u64) -> u32 {
    let (full, all_ns) = (u64::from(FULL_SPEED), ran_ns.saturating_add(lost_ns));
    if all_ns == 0 {
        return before;
    }
    // All that is divided here has less than 64 bits: times are cut to the time that counts.
    let weight = full * all_ns.min(SPEED_NS) / SPEED_NS;
    let lost = (u128::from(full) * u128::from(lost_ns) / u128::from(all_ns)) as u64;
    let mean = (u64::from(before) * (full - weight) + lost * weight) / full;
    if mean < full / 64 { 0 } else { mean as u32 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_speed_follows_what_a_thread_gets_of_its_cpu() {
        const MS: u64 = 1_000_000;
        // Alone, with interrupts.
        assert_eq!(slowness(0, 100 * MS, MS), 0);
        // Half of the time, in slices: about half of the speed, and back again in a few times as long as counts.
        let mut slow = 0;
        for _ in 0..20 {
            slow = slowness(slow, 3 * MS, 3 * MS);
        }
        assert!(slow.abs_diff(FULL_SPEED / 2) < FULL_SPEED / 50, "{slow}");
        let recovers = (1..200).find(|_| {
            slow = slowness(slow, MS / 2, 0);
            slow == 0
        });
        assert!(recovers.is_some_and(|looks| looks > 20), "{recovers:?}");
        assert_eq!(slowness(7, 0, 0), 7);
        assert_eq!(slowness(0, 0, u64::MAX), FULL_SPEED);
    }

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

    /// It sleeps here, and does not say that it wanted to.
    #[test]
    fn what_was_told_while_spinning_is_not_told_again() {
        const LOST_NS: u64 = 9_000_000;
        let shared = [Contention::new(), Contention::new()];
        let mut own = Own::default();
        own.look_closer(&shared[0], 0);
        let mut again = Own { ..own };
        while sys::monotonic_ns() < own.looked_ns + 2 * LOST_NS {
            std::thread::sleep(std::time::Duration::from_nanos(LOST_NS));
        }
        own.lost(&shared[0], sys::monotonic_ns(), LOST_NS);
        assert_eq!(shared[0].lost_ns(), LOST_NS);
        own.look_closer(&shared[0], 0);
        assert_eq!(own.told_ns, 0);
        // Looks later, and so has lost no less.
        again.look_closer(&shared[1], 0);
        assert!(shared[0].lost_ns() <= shared[1].lost_ns());
        assert!(own.slowness > 0);
    }

    #[test]
    fn sleep_is_not_loss() {
        assert_eq!(taken(100, 40, 60), 0);
        assert_eq!(taken(100, 40, 50), 10);
        assert_eq!(taken(100, 140, 0), 0);
    }
}
