//! How fast code makes progress, without an instruction counter.
//!
//! Many machines (virtual ones above all) have no hardware counters, yet "the same
//! instructions took longer" (`slow-work`) must be told from "more instructions ran"
//! (`extra-work`). A loop gives itself away: two samples of one thread in the same
//! frame of the same function show registers (or stack words, in unoptimised code)
//! that moved on by the same amount in the same time. Such a register is a progress
//! counter; the ratio of its rates on one and on n CPUs is how much slower the same
//! code runs. A register counts only if its rate is steady over many pairs of samples, and if it holds nothing that
//! the thread drew from where others draw as well ([`Shared`](crate::spin::Shared)): that tells how fast all of them are together.

use rustc_hash::FxHashMap;

use crate::event::{CpuId, Ns, Tid};

/// Registers and stack words looked at: registers first, then halves of stack words.
pub const SLOTS: usize = 16 + 2 * (STACK_WORDS + WORDS_BELOW);
/// Stack words looked at, from the stack pointer upwards.
pub const STACK_WORDS: usize = 16;
/// Stack words below the stack pointer looked at.
pub const WORDS_BELOW: usize = 8;

/// The state of a thread in user mode.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// When.
    pub ts: Ns,
    /// Where it ran.
    pub cpu: CpuId,
    /// Stack pointer: which frame.
    pub sp: u64,
    /// Which function: any stable id.
    pub function: u64,
    /// Low halves of the registers, then both halves of stack words, first those from the stack pointer on, then those below it. What
    /// is not the thread's own progress is 0.
    pub values: [u32; SLOTS],
}

/// Rates by function, register by register.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    last: FxHashMap<Tid, Snapshot>,
    rates: FxHashMap<u64, Vec<[f32; SLOTS]>>,
    pairs: usize,
}

/// Pairs kept per function.
const PAIRS_MAX: usize = 2000;
/// Pairs kept in all: functions that run much come up early.
const ALL_PAIRS_MAX: usize = 100_000;
/// Threads whose last sample is kept: many more than there are CPUs for.
const LAST_MAX: usize = 1 << 14;
/// Pairs needed to believe in a rate.
const PAIRS_MIN: usize = 6;

impl Progress {
    /// Takes a sample of `tid`; `period` is the usual distance of two samples.
    pub fn sample(&mut self, tid: Tid, now: Snapshot, period: Ns) {
        if self.last.len() > LAST_MAX {
            let old = now.ts.saturating_sub(2 * period);
            self.last.retain(|_, seen| seen.ts >= old);
        }
        let Some(before) = self.last.insert(tid, now) else {
            return;
        };
        let dt = now.ts.saturating_sub(before.ts);
        let same = before.function == now.function && before.sp == now.sp && before.cpu == now.cpu;
        // Farther apart, the thread was not running all the time.
        if !same || dt < period / 4 || dt > period + period / 4 {
            return;
        }
        let rates = self.rates.entry(now.function).or_default();
        if rates.len() < PAIRS_MAX && self.pairs < ALL_PAIRS_MAX {
            self.pairs += 1;
            rates.push(std::array::from_fn(|slot| {
                let moved = now.values[slot].wrapping_sub(before.values[slot]) as i32;
                moved as f32 / dt as f32
            }));
        }
    }

    /// Adds what another run of the same kind has seen.
    pub fn merge(&mut self, other: &Progress) {
        for (&function, rates) in &other.rates {
            let all = self.rates.entry(function).or_default();
            all.extend(rates.iter().take(PAIRS_MAX.saturating_sub(all.len())));
        }
    }

    /// How many times slower `function` runs here than in `base`; `None` if nothing tells.
    pub fn slowdown(&self, base: &Progress, function: u64) -> Option<f64> {
        let (one, many) = (base.rates.get(&function)?, self.rates.get(&function)?);
        if one.len() < PAIRS_MIN || many.len() < PAIRS_MIN {
            return None;
        }
        let steady = (0..SLOTS).filter_map(|slot| {
            let base = Rate::of(one, slot)?;
            let here = Rate::of(many, slot)?;
            let usable = base.deviation < 0.25
                && here.deviation < 0.6
                && (base.median > 0.0) == (here.median > 0.0);
            usable.then(|| (base.deviation, f64::from(base.median / here.median)))
        });
        let best = steady.min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(best.1.clamp(0.2, 1000.0))
    }

    /// Functions with rates.
    pub fn functions(&self) -> impl Iterator<Item = u64> + '_ {
        self.rates.keys().copied()
    }
}

struct Rate {
    median: f32,
    /// Median absolute deviation relative to the median.
    deviation: f32,
}

impl Rate {
    fn of(pairs: &[[f32; SLOTS]], slot: usize) -> Option<Rate> {
        let mut values: Vec<f32> = pairs.iter().map(|pair| pair[slot]).collect();
        let median = median(&mut values);
        if median == 0.0 {
            return None;
        }
        let mut deviations: Vec<f32> = values.iter().map(|value| (value - median).abs()).collect();
        Some(Rate {
            median,
            deviation: self::median(&mut deviations) / median.abs(),
        })
    }
}

fn median(values: &mut [f32]) -> f32 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f32::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop counter in slot 2, noise in the others.
    fn run(step_per_ms: u32, function: u64) -> Progress {
        let mut progress = Progress::default();
        let (mut counter, mut noise) = (7u32, 12345u32);
        for i in 0..50u64 {
            counter = counter.wrapping_add(step_per_ms);
            let mut values = [0; SLOTS];
            for value in &mut values {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *value = noise;
            }
            values[2] = counter;
            let snapshot = Snapshot {
                ts: i * 1_000_000,
                cpu: 0,
                sp: 64,
                function,
                values,
            };
            progress.sample(1, snapshot, 1_000_000);
        }
        progress
    }

    #[test]
    fn a_loop_that_runs_at_a_third_of_the_speed_is_three_times_slower() {
        let slowdown = run(1000, 9).slowdown(&run(3000, 9), 9).unwrap();
        assert!((slowdown - 3.0).abs() < 1e-3, "{slowdown}");
    }

    #[test]
    fn noise_and_constants_are_no_counters() {
        let mut quiet = run(1000, 9);
        for pair in quiet.rates.get_mut(&9).unwrap() {
            pair[2] = 0.0;
        }
        assert_eq!(quiet.slowdown(&quiet.clone(), 9), None);
        assert_eq!(quiet.slowdown(&quiet.clone(), 8), None);
    }

    #[test]
    fn pairs_across_a_preemption_do_not_count() {
        let mut progress = Progress::default();
        for i in 0..20u64 {
            let snapshot = Snapshot {
                ts: i * 5_000_000,
                cpu: 0,
                sp: 64,
                function: 1,
                values: [i as u32; SLOTS],
            };
            progress.sample(1, snapshot, 1_000_000);
        }
        assert_eq!(progress.functions().count(), 0);
    }
}
