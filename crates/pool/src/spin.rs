//! How long who waits looks out before it sleeps: the policy's `Spin`, fed with what is measured here.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use amdahl_placement::{Partner, SpinFacts};

/// A gap between two looks at the clock beyond this: the CPU was taken away meanwhile.
const GAP: Duration = Duration::from_micros(50);

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
    let known = ALLOWED.load(Ordering::Relaxed);
    if known == 0 {
        set_allowed(amdahl_topology::allowed().map_or(1, |cpus| cpus.len()));
    }
    ALLOWED.load(Ordering::Relaxed) == 1
}

/// CPUs that this process may use, as far as a pool has looked; 0: nobody has.
static ALLOWED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Pools on the real machine say so when they look.
pub(crate) fn set_allowed(cpus: usize) {
    // None at all is an error of reading.
    ALLOWED.store(cpus.max(1), Ordering::Relaxed);
}

/// Whether and how long one side of something spins: learns from its own waits. The decisions are the policies' `Spinner`.
#[derive(Debug, Default)]
pub(crate) struct Spinner(amdahl_placement::Spinner);

impl Spinner {
    fn length(&mut self, partner: Partner) -> Duration {
        let facts = SpinFacts {
            partner: if is_alone() {
                Partner::Waiting
            } else {
                partner
            },
            wanted: CROWDED.load(Ordering::Relaxed) > 0,
        };
        Duration::from_nanos(self.0.length_ns(facts))
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
                self.0.lost_cpu();
                return is_ready();
            }
            last = now;
        }
        is_ready()
    }

    /// A wait is over: it took so long until the event, and if it slept so long from the wake-up to running.
    pub(crate) fn waited(&mut self, until_event: Duration, woken_after: Option<Duration>) {
        let ns = |time: Duration| time.as_nanos() as u64;
        self.0.waited(ns(until_event), woken_after.map(ns));
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
}
