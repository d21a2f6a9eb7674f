//! Whether the machine does something else.

use std::fs;
use std::time::Duration;

/// How long it is watched.
const WATCHED: Duration = Duration::from_millis(300);

/// CPUs that are busy while this program does nothing; `None` where that cannot be read.
pub fn busy_cpus() -> Option<f64> {
    let read = || times(&fs::read_to_string("/proc/stat").ok()?);
    let before = read()?;
    std::thread::sleep(WATCHED);
    let after = read()?;
    let busy = after.0.saturating_sub(before.0) as f64;
    let tick_s = 1.0 / rustix::param::clock_ticks_per_second() as f64;
    let idle = after.1.saturating_sub(before.1) as f64;
    let cpus = (busy + idle) * tick_s / WATCHED.as_secs_f64();
    Some(busy / (busy + idle).max(1.0) * cpus)
}

/// Ticks that all CPUs were busy (hypervisor steal included) and idle, of `/proc/stat`.
fn times(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Option<Vec<u64>> = line
        .split_whitespace()
        .map(|word| word.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal, and guests, who are in user and nice already.
    let ticks = ticks.filter(|ticks| ticks.len() >= 8)?;
    let idle = ticks[3] + ticks[4];
    Some((ticks[..8].iter().sum::<u64>() - idle, idle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_devices_is_idle_and_stolen_time_is_busy() {
        let stat = "cpu  100 5 20 1000 50 1 2 30 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(times(stat), Some((158, 1050)));
        assert_eq!(times("cpu 1 2 3\n"), None);
        assert_eq!(times(""), None);
    }
}
