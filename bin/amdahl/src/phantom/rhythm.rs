//! When the next look is due, and when it is time to look at who is to be looked at.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amdahl_phantom::{Pace, thread_cpu_ns};

/// Between two looks at who there is, at least.
const REFRESH: Duration = Duration::from_secs(1);

/// Looks at a pace that costs little; each bears its part of the refreshing in between.
pub struct Rhythm {
    pace: Pace,
    due: Instant,
    refresh_due: Instant,
    refresh_cost: Duration,
    /// Refreshing takes one of so many parts of a CPU at most.
    refresh_share: u32,
}

impl Rhythm {
    /// Begins now.
    pub fn new(interval: Duration, refresh_share: u32) -> Rhythm {
        let now = Instant::now();
        Rhythm {
            pace: Pace::new(interval),
            due: now,
            refresh_due: now + REFRESH,
            refresh_cost: Duration::ZERO,
            refresh_share,
        }
    }

    /// Time between looks, unless they turn out to be dear.
    pub fn interval(&self) -> Duration {
        self.pace.interval()
    }

    /// Whether to look at who there is.
    pub fn is_refresh_due(&self) -> bool {
        Instant::now() >= self.refresh_due
    }

    /// That was done, at this cost.
    pub fn refreshed(&mut self, cost: Duration) {
        self.refresh_cost = cost;
        self.refresh_due = Instant::now() + REFRESH.max(cost * self.refresh_share);
    }

    /// A look took so much: waits for the next one. Whoever sets `stop` unparks this thread.
    pub fn wait(&mut self, cost: Duration, stop: &AtomicBool) {
        let part = self.pace.interval().as_secs_f64().min(1.0);
        self.pace.spent(cost + self.refresh_cost.mul_f64(part));
        self.due = (self.due + self.pace.interval()).max(Instant::now());
        while !stop.load(Ordering::Relaxed) {
            let left = self.due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
    }
}

/// What `work` comes to, and the CPU time of this thread that it takes.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let cpu_ns = thread_cpu_ns();
    let done = work();
    let cost_ns = thread_cpu_ns().saturating_sub(cpu_ns);
    (done, Duration::from_nanos(cost_ns))
}
