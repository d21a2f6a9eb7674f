//! What sampling takes from the program that it interrupts, beside the sample itself.
//!
//! On bare metal an overflow takes some microseconds. On a virtual machine the timer that makes it belongs to the hypervisor, and
//! each may take ten times as long: a rate that nobody notices here costs more than all other hooks there.

use std::time::{Duration, Instant};

use super::{Counter, count_of, enable, open, overflowing};

/// Rates of sampling: primes, so as not to march in step with timers.
const RATES: [u32; 6] = [499, 397, 293, 197, 149, 97];
/// The least that samples are thinned to, per CPU and second.
const LEAST: u32 = 49;
/// Looks of which the median counts: others may disturb one for all of its time.
const LOOKS: usize = 5;
/// How long is measured in each, and how often an event overflows meanwhile: about as often as when it samples, since what comes often
/// finds its code in the caches.
const TIME: Duration = Duration::from_millis(20);
const OVERFLOWS: u64 = 10;
/// Memory that is walked over meanwhile, as programs do: more than fits the caches of one core.
const WALKED: usize = 2 << 20;
const LINE: usize = 64;

/// What the interrupts of one sample take on the CPU of the calling thread, in nanoseconds, as measured for 100 ms. `clock_hz` is
/// about the clock of that CPU. `None` where nothing can be measured.
pub fn interruption_ns(clock_hz: u64) -> Option<u64> {
    let mut looks: Vec<u64> = (0..LOOKS).map_while(|_| look_ns(clock_hz)).collect();
    looks.sort_unstable();
    looks.get(looks.len() / 2).copied()
}

/// The same, measured once.
fn look_ns(clock_hz: u64) -> Option<u64> {
    let each = TIME.as_nanos() as u64 / OVERFLOWS;
    let cycles = clock_hz / 1_000_000 * each / 1000;
    // With cycles come samples of instructions, at most about as many.
    let cost = overflow_ns(Counter::Cycles, cycles | 1).map(|cost| 2 * cost);
    cost.or_else(|| overflow_ns(Counter::Clock, each))
}

/// The highest usual rate of samples per CPU and second whose interrupts, of `cost` nanoseconds each, take at most `share` of a CPU;
/// the lowest one, if none does.
pub fn rate_within(share: f64, cost: u64) -> u32 {
    let mut rates = RATES.into_iter();
    let found = rates.find(|&rate| f64::from(rate) * cost as f64 <= share * 1e9);
    found.unwrap_or(RATES[RATES.len() - 1])
}

/// One in how many of `hz` samples a second takes at most `share` of a CPU, if the interrupts of each take `cost` nanoseconds; not
/// fewer than 49 a second.
pub fn one_in(hz: u32, share: f64, cost: u64) -> u32 {
    let wanted = f64::from(hz) * cost as f64 / (share * 1e9);
    (wanted.ceil() as u32).clamp(1, (hz / LEAST).max(1))
}

/// Nanoseconds for which an overflow of `counter` interrupts a program, if it overflows once in `period`.
fn overflow_ns(counter: Counter, period: u64) -> Option<u64> {
    let mut attr = overflowing(counter, period);
    // What happens in the kernel is not everybody's to see.
    attr.set_exclude_kernel(1);
    let event = open(&mut attr, 0, -1).ok()?;
    let mut memory = vec![1; WALKED];
    enable(&event, true).ok()?;
    let gaps = interruptions(TIME, &mut memory);
    enable(&event, false).ok()?;
    let overflows = count_of(&event).ok()? / period;
    typical(gaps, overflows as usize)
}

/// How long this thread does not get on, each time, in nanoseconds, while it walks over `memory`.
fn interruptions(time: Duration, memory: &mut [u8]) -> Vec<u64> {
    // Reserved, so that no page fault is among them.
    let mut gaps = Vec::with_capacity(1024);
    let mut lines = (0..memory.len()).step_by(LINE).cycle();
    let begin = Instant::now();
    let mut last = begin;
    while last - begin < time {
        for at in lines.by_ref().take(2) {
            memory[at] = std::hint::black_box(memory[at].wrapping_add(1));
        }
        let now = Instant::now();
        let gap = (now - last).as_nanos() as u64;
        if gap >= 1000 && gaps.len() < gaps.capacity() {
            gaps.push(gap);
        }
        last = now;
    }
    gaps
}

/// The median of the `expected` longest gaps: others may interrupt as well, for shorter or for much longer.
fn typical(mut gaps: Vec<u64>, expected: usize) -> Option<u64> {
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    gaps.truncate(expected);
    gaps.get(gaps.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dear_interruptions_are_rare() {
        // 499 of 10 us in a second are half a percent; of 11 us they are more.
        assert_eq!(rate_within(0.005, 10_000), 499);
        assert_eq!(rate_within(0.005, 11_000), 397);
        assert_eq!(rate_within(0.005, 28_000), 149);
        assert_eq!(rate_within(0.005, 0), 499);
        assert_eq!(rate_within(0.005, 1_000_000), 97);
    }

    #[test]
    fn samples_are_thinned_as_far_as_they_are_dear() {
        assert_eq!(one_in(499, 0.003, 2_000), 1);
        assert_eq!(one_in(499, 0.003, 28_000), 5);
        assert_eq!(one_in(499, 0.003, 1_000_000), 10);
        assert_eq!(one_in(499, 0.003, 0), 1);
        assert_eq!(one_in(20, 0.003, 1_000_000), 1);
    }

    #[test]
    fn others_interruptions_do_not_count() {
        let gaps = [vec![25_000; 40], vec![600; 100], vec![4_000_000; 3]].concat();
        assert_eq!(typical(gaps, 40), Some(25_000));
        assert_eq!(typical(vec![700], 40), Some(700));
        assert_eq!(typical(Vec::new(), 40), None);
        assert_eq!(typical(vec![700], 0), None);
    }

    #[test]
    fn an_interruption_has_a_cost_where_it_can_be_measured() {
        let mut attr = overflowing(Counter::Clock, 1_000_000);
        attr.set_exclude_kernel(1);
        if open(&mut attr, 0, -1).is_err() {
            println!("SKIPPED: perf events are not allowed here");
            return;
        }
        assert!(interruption_ns(2_000_000_000).is_some_and(|cost| cost > 0));
    }
}
