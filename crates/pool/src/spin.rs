//! How long who waits looks out before it sleeps: the policy's `Spin`, fed with what is measured here.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use amdahl_placement::{Partner, Spin, SpinFacts, SpinState};

/// No spin is longer: a wake-up takes less, nearly everywhere.
const MAX_NS: u64 = 200_000;

/// A gap between two looks at the clock beyond this: the CPU was taken away meanwhile.
const GAP: Duration = Duration::from_micros(50);

/// Waits after a CPU was lost in which nobody spins.
const CALM: u32 = 64;

/// One in so many sleeps begins with a spin that experience did not recommend, of at most this length.
pub(crate) const TRIAL: u32 = 8;
pub(crate) const TRIAL_NS: u64 = 50_000;

/// The pools of the process whose CPUs are crowded.
static CROWDED: AtomicU32 = AtomicU32::new(0);

/// Whether a pool's CPUs are crowded. What a pool has found out about the machine holds for everybody in the process, until
/// that pool finds something else or is gone: one that does nothing knows nothing.
pub(crate) struct Crowd {
    is_crowded: AtomicBool,
    pools: &'static AtomicU32,
}

impl Crowd {
    pub(crate) fn new() -> Self {
        Self::among(&CROWDED)
    }

    fn among(pools: &'static AtomicU32) -> Self {
        Crowd {
            is_crowded: AtomicBool::new(false),
            pools,
        }
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, is_crowded: bool) {
        if self.is_crowded.swap(is_crowded, Ordering::Relaxed) == is_crowded {
            return;
        }
        match is_crowded {
            true => self.pools.fetch_add(1, Ordering::Relaxed),
            false => self.pools.fetch_sub(1, Ordering::Relaxed),
        };
    }
}

/// With one CPU the partner cannot run while one spins. A quota is another matter: as long as it lasts both run, and
/// of spinning and sleeping that is chosen which takes less CPU time.
fn is_alone() -> bool {
    static ALONE: OnceLock<bool> = OnceLock::new();
    *ALONE.get_or_init(|| amdahl_topology::allowed().map_or(1, |cpus| cpus.len()) < 2)
}

/// Whether and how long one side of something spins: learns from its own waits.
#[derive(Debug, Default)]
pub(crate) struct Spinner {
    state: SpinState,
    calm: u32,
    sleeps: u32,
}

impl Spinner {
    fn length(&mut self, partner: Partner) -> Duration {
        if self.calm > 0 {
            self.calm -= 1;
            return Duration::ZERO;
        }
        let facts = SpinFacts {
            partner: if is_alone() {
                Partner::Waiting
            } else {
                partner
            },
            wanted: CROWDED.load(Ordering::Relaxed) > 0,
        };
        let learnt = Spin::Adaptive { max_ns: MAX_NS }.ns(&self.state, facts);
        // Two who sleep wait for each other's wake-ups, and never learn how fast they would be awake: now and then
        // one spins as long as a wake-up takes.
        let is_trial = self.sleeps.is_multiple_of(TRIAL);
        let trial = Spin::Fixed {
            ns: self.state.wake_ns().min(TRIAL_NS),
        }
        .ns(&self.state, facts);
        Duration::from_nanos(learnt.max(if is_trial { trial } else { 0 }))
    }

    /// Looks at `is_ready` as long as it pays to wait for `partner`. Whether it became true.
    #[inline(never)]
    pub(crate) fn spin(
        &mut self,
        begun: Instant,
        partner: Partner,
        is_ready: &mut dyn FnMut() -> bool,
    ) -> bool {
        let length = self.length(partner);
        let mut last = begun;
        while last - begun < length {
            for _ in 0..16 {
                if is_ready() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now - last > GAP {
                // Whoever took the CPU away may be who is waited for.
                self.calm = CALM;
                return is_ready();
            }
            last = now;
        }
        is_ready()
    }

    /// A wait is over: it took so long until the event, and if it slept so long from the wake-up to running.
    pub(crate) fn waited(&mut self, until_event: Duration, woken_after: Option<Duration>) {
        self.state.waited(until_event.as_nanos() as u64);
        if let Some(latency) = woken_after {
            self.sleeps = self.sleeps.wrapping_add(1);
            self.state.woke(latency.as_nanos() as u64);
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    /// A pool that did nothing cleared what a crowded one had found out.
    #[test]
    fn crowded_pools_are_counted() {
        static POOLS: AtomicU32 = AtomicU32::new(0);
        let (crowded, idle) = (Crowd::among(&POOLS), Crowd::among(&POOLS));
        let pools = |crowd: &Crowd, is_crowded| {
            crowd.set(is_crowded);
            POOLS.load(Ordering::Relaxed)
        };
        assert_eq!((pools(&crowded, true), pools(&crowded, true)), (1, 1));
        assert_eq!(pools(&idle, false), 1);
        assert_eq!((pools(&idle, true), pools(&crowded, false)), (2, 1));
        assert!(idle.is_crowded() && !crowded.is_crowded());
        assert_eq!((pools(&idle, false), pools(&idle, false)), (0, 0));
    }

    #[test]
    fn long_waits_stop_the_spinning_and_short_ones_bring_it_back() {
        let mut spinner = Spinner::default();
        for _ in 0..200 {
            spinner.waited(Duration::from_millis(5), Some(Duration::from_micros(20)));
        }
        spinner.sleeps = 1;
        assert_eq!(spinner.length(Partner::Unknown), Duration::ZERO);
        spinner.sleeps = TRIAL;
        assert!(
            is_alone() || spinner.length(Partner::Unknown) > Duration::from_micros(10),
            "a trial"
        );
        for _ in 0..200 {
            spinner.waited(Duration::from_micros(1), None);
        }
        assert!(is_alone() || spinner.length(Partner::Unknown) > Duration::ZERO);
        assert_eq!(spinner.length(Partner::Waiting), Duration::ZERO);
        spinner.calm = 1;
        assert_eq!(
            spinner.length(Partner::Unknown),
            Duration::ZERO,
            "the CPU was lost"
        );
        assert_eq!(spinner.calm, 0);
    }
}
