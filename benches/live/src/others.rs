//! How much CPU time others take meanwhile.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// Since when, and what was used until then.
pub struct Others {
    begin: Instant,
    used_s: Option<f64>,
}

/// CPU seconds of the whole machine, time that the hypervisor gave to others included, without this process's.
fn used_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<f64> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guests are within user.
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all: f64 = ticks.iter().take(8).sum();
    let own = clock_gettime(ClockId::ProcessCPUTime);
    let own_s = own.tv_sec as f64 + own.tv_nsec as f64 / 1e9;
    Some((all - idle) / rustix::param::clock_ticks_per_second() as f64 - own_s)
}

impl Others {
    pub fn begin() -> Others {
        Others {
            begin: Instant::now(),
            used_s: used_s(),
        }
    }

    /// The share of the machine's CPU time that others took since the beginning; 0 where the kernel does not tell.
    pub fn share(&self, cpus: usize) -> f64 {
        let (Some(before), Some(now)) = (self.used_s, used_s()) else {
            return 0.0;
        };
        (now - before).max(0.0) / (self.begin.elapsed().as_secs_f64() * cpus as f64)
    }
}
