//! Random numbers and distributions, the same on every machine.

use crate::time::{Ns, TIME_MAX};

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a counter in steps of the golden ratio, mixed.
///
/// Each task has one of its own. Those that are there from the beginning are seeded by the run's seed and the task's
/// number, a child by its parent's seed and how many the parent had made before. So what a task draws depends neither on
/// when it runs nor on what others make, and two policies are compared on the same draws.
#[derive(Clone, Copy, Debug)]
pub struct Rng(u64);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The generator of one stream of a run.
    pub fn new(seed: u64, stream: u64) -> Rng {
        Rng(mix(seed ^ mix(stream.wrapping_add(GOLDEN))))
    }

    /// The generator of the `n`-th child of a task whose own, before anything was drawn, is this.
    pub fn child(self, n: u64) -> Rng {
        Rng::new(self.0, n)
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Uniform below `bound`, 0 if that is 0. The bias is below `bound` / 2^64.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Exponential with mean 1. `libm` is plain Rust: the same bits everywhere.
    fn exponential(&mut self) -> f64 {
        -libm::log(self.unit())
    }
}

/// How long something takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dist {
    /// Always the same.
    Const(Ns),
    /// Uniform between both, both included.
    Uniform(Ns, Ns),
    /// Exponential with this mean.
    Exp(Ns),
    /// Normal with mean and standard deviation, as the sum of twelve uniform numbers, cut at 0 and
    /// at six deviations.
    Normal(Ns, Ns),
    /// Pareto: the least value, and the shape in thousandths.
    Pareto(Ns, u32),
    /// The second in so many of a million cases, else the first.
    Bimodal(Ns, Ns, u32),
}

impl Dist {
    /// Draws. At most [`TIME_MAX`].
    pub fn draw(&self, rng: &mut Rng) -> Ns {
        match *self {
            Dist::Const(ns) => ns,
            Dist::Uniform(low, high) => low + rng.below((high - low).saturating_add(1)),
            Dist::Exp(mean) => limited(mean as f64 * rng.exponential()),
            Dist::Normal(mean, deviation) => {
                let sum: u64 = (0..12).map(|_| rng.bits() >> 32).sum();
                let z = (sum as f64 - 6.0 * 4_294_967_295.0) / 4_294_967_296.0;
                limited(mean as f64 + deviation as f64 * z)
            }
            Dist::Pareto(least, shape) => {
                let exponent = rng.exponential() * 1000.0 / f64::from(shape);
                limited(least as f64 * libm::exp(exponent))
            }
            Dist::Bimodal(usual, rare, ppm) => {
                if rng.below(1_000_000) < u64::from(ppm) {
                    rare
                } else {
                    usual
                }
            }
        }
    }
}

/// To the next integer; what is no time becomes the nearest that is one.
fn limited(ns: f64) -> Ns {
    (ns + 0.5).clamp(0.0, TIME_MAX as f64) as Ns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(dist: Dist) -> (f64, f64) {
        let mut rng = Rng::new(7, 3);
        let n = 200_000;
        let draws: Vec<f64> = (0..n).map(|_| dist.draw(&mut rng) as f64).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(n);
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
        (mean, variance.sqrt())
    }

    #[test]
    fn moments_are_those_of_theory() {
        // Five standard errors of the mean, with the seed fixed.
        let near = |(mean, deviation): (f64, f64), theory: (f64, f64)| {
            let error = 5.0 * theory.1 / 200_000f64.sqrt() + 0.5;
            assert!(
                (mean - theory.0).abs() < error,
                "mean {mean}, theory {}",
                theory.0
            );
            assert!(
                (deviation / theory.1 - 1.0).abs() < 0.02,
                "deviation {deviation}, theory {}",
                theory.1
            );
        };
        near(moments(Dist::Exp(10_000)), (10_000.0, 10_000.0));
        near(
            moments(Dist::Uniform(1_000, 5_000)),
            (3_000.0, 4_000.0 / 12f64.sqrt()),
        );
        near(moments(Dist::Normal(50_000, 5_000)), (50_000.0, 5_000.0));
        near(
            moments(Dist::Bimodal(1_000, 9_000, 250_000)),
            (3_000.0, 8_000.0 * (0.25f64 * 0.75).sqrt()),
        );
        // Shape 6: mean 1.2, variance 6 / (25 * 4).
        near(
            moments(Dist::Pareto(10_000, 6_000)),
            (12_000.0, 10_000.0 * 0.06f64.sqrt()),
        );
    }

    #[test]
    fn the_stream_is_pinned() {
        // Results name their seed: these numbers must never change.
        let mut rng = Rng::new(1, 0);
        let drawn = [rng.bits(), rng.bits(), Dist::Exp(1_000_000).draw(&mut rng)];
        assert_eq!(drawn, PINNED);
    }

    const PINNED: [u64; 3] = [9_639_420_846_141_804_449, 5_283_499_334_869_912_440, 51_873];
}
