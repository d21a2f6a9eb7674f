//! Amdahl's law and the Universal Scalability Law.
//!
//! Both say how the speedup S on n CPUs falls behind n:
//!
//! * Amdahl: `S(n) = 1 / (s + (1 - s) / n)`, where s is the fraction of the
//!   one-CPU time that runs on one CPU only.
//!   (G. M. Amdahl, *Validity of the single processor approach to achieving large
//!   scale computing capabilities*, AFIPS 1967.)
//! * Universal Scalability Law: `S(n) = n / (1 + a (n - 1) + b n (n - 1))`,
//!   where a is contention (waiting for what only one can have at a time) and b
//!   is coherence (each has to come to terms with each other). With b > 0 the speedup has a
//!   peak at `sqrt((1 - a) / b)` CPUs. With b = 0 it is Amdahl's law.
//!   (N. J. Gunther, *Guerrilla Capacity Planning*, Springer 2007.)
//!
//! A law describes, it does not explain: where the time goes is said by the
//! speedup stack (Eyerman, Du Bois and Eeckhout, ISPASS 2012), which needs no law.
//!
//! # How they are fitted
//!
//! Times of runs scatter by a factor, not by seconds, so the logarithms of the times are fitted by
//! least squares; all runs count alike. The one-CPU time is a parameter as well:
//! the runs on one CPU scatter like all others, and a law can be fitted without any of them.
//!
//! The 95 % confidence intervals are those of nonlinear regression, Student's t
//! times the standard error. A bootstrap over runs was rejected: with the usual three to
//! five runs per count it knows too few values and its intervals are too narrow. The residual
//! variance comes from all runs, unless the counts are farther away from the law than the
//! scatter of their runs allows (F test of lack of fit at 5 %): then the deviations of the counts
//! are the error, with as many degrees of freedom as there are more counts than parameters.
//! Intervals end where the parameter's range does.
//!
//! # When there is no model
//!
//! A fit is refused, with the reason, if it would say more than the data do: see [`NoModel`].
//! Gunther allows negative contention for programs that scale better than linearly. Here
//! a, b and s are not negative: superlinear speedup has causes of its own (more cache with more
//! CPUs, a slow one-CPU run) that neither law describes, and extrapolating it is nonsense.

mod regression;

use std::collections::BTreeMap;
use std::fmt;

use regression::{Regression, Sample};

/// Counts needed for Amdahl's law: its two parameters and one to see how well it fits.
const AMDAHL_POINTS_MIN: usize = 3;
/// The same for the Universal Scalability Law, which has three.
const USL_POINTS_MIN: usize = 4;
/// A wider interval of a fraction of the time tells nothing.
const FRACTION_CI_WIDTH_MAX: f64 = 0.5;
/// A law whose times are farther off than this (root mean square) does not describe the program.
const RELATIVE_RMSE_MAX: f64 = 0.2;
/// A peak is told up to this multiple of the largest measured count.
const PEAK_REACH: u32 = 2;

/// Wall times of the runs on some CPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Number of CPUs.
    pub cpus: u32,
    /// Seconds, one for each run; none is no observation.
    pub wall_s: Vec<f64>,
}

/// Amdahl's law for a program.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct AmdahlFit {
    /// Fraction of the one-CPU time that is serial, 0 to 1.
    pub serial_fraction: f64,
    /// Its 95 % confidence interval.
    pub serial_fraction_ci: [f64; 2],
    /// Seconds on one CPU according to the law.
    pub one_cpu_s: f64,
    /// Root of the mean squared relative distance between the law and the mean time of a count.
    pub relative_rmse: f64,
    /// Counts it was fitted to.
    pub points: u32,
}

/// The Universal Scalability Law for a program.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct UslFit {
    /// Contention a, at least 0.
    pub contention: f64,
    /// Its 95 % confidence interval.
    pub contention_ci: [f64; 2],
    /// Coherence b, at least 0.
    pub coherence: f64,
    /// Its 95 % confidence interval.
    pub coherence_ci: [f64; 2],
    /// Where the speedup is largest.
    pub peak: Peak,
    /// Seconds on one CPU according to the law.
    pub one_cpu_s: f64,
    /// Root of the mean squared relative distance between the law and the mean time of a count.
    pub relative_rmse: f64,
    /// Counts it was fitted to.
    pub points: u32,
}

/// Where the speedup of a program is largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Peak {
    /// At this many CPUs.
    At {
        /// Number of CPUs, at least 1.
        cpus: f64,
    },
    /// Not up to this many CPUs, beyond which the measurements tell nothing.
    NotWithin {
        /// Number of CPUs.
        cpus: u32,
    },
}

impl fmt::Display for Peak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peak::At { cpus } => write!(f, "peak at {cpus:.0} CPUs"),
            Peak::NotWithin { cpus } => write!(f, "no peak within {cpus} CPUs"),
        }
    }
}

/// Why there is no model; the text says what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NoModel {
    /// Fewer different CPU counts than the law needs.
    #[error(
        "too few points for a model: {have} CPU counts measured, {need} needed; \
         measure more counts, e.g. with --cpus"
    )]
    TooFewPoints {
        /// Different CPU counts with at least one run.
        have: usize,
        /// How many the law needs.
        need: usize,
    },
    /// The measurements allow almost any value of the parameter.
    #[error(
        "the runs scatter too much for a model ({parameter} between {low:.3} and {high:.3}); \
         measure more runs, a wider range of CPU counts, or on a quieter machine"
    )]
    Unstable {
        /// Name of the parameter.
        parameter: &'static str,
        /// Ends of its 95 % confidence interval.
        low: f64,
        /// The same.
        high: f64,
    },
    /// The program scales better than linearly.
    #[error(
        "the speedup is superlinear ({speedup:.2} times as fast on {cpus} CPUs as on {base_cpus}), \
         which no serial part or contention explains; \
         look at why few CPUs are slow, e.g. cache misses"
    )]
    Superlinear {
        /// Number of CPUs where it is most so.
        cpus: u32,
        /// The smallest measured count.
        base_cpus: u32,
        /// Speedup between the two.
        speedup: f64,
    },
    /// The program becomes slower with more CPUs, which Amdahl's law does not know.
    #[error(
        "the program becomes slower with more CPUs, which no serial part explains; \
         measure four CPU counts or more for the Universal Scalability Law"
    )]
    Retrograde,
    /// The law does not describe the program.
    #[error(
        "the law misses the measured times by {:.0} %; the program changes its way of working \
         between these CPU counts (other algorithm, SMT siblings, a second socket): \
         fit a range within which it does not", 100.0 * relative_rmse
    )]
    Misfit {
        /// Root mean square of the relative distance between law and measurement.
        relative_rmse: f64,
    },
    /// A time is not positive and finite, or a number of CPUs is 0.
    #[error("{wall_s} seconds on {cpus} CPUs is no measurement; leave this run out")]
    BadObservation {
        /// Number of CPUs.
        cpus: u32,
        /// Seconds.
        wall_s: f64,
    },
}

impl AmdahlFit {
    /// Speedup on `cpus` CPUs according to the law.
    pub fn speedup(&self, cpus: f64) -> f64 {
        1.0 / (self.serial_fraction + (1.0 - self.serial_fraction) / cpus)
    }
}

impl UslFit {
    /// Speedup on `cpus` CPUs according to the law.
    pub fn speedup(&self, cpus: f64) -> f64 {
        cpus / (1.0 + (cpus - 1.0) * (self.contention + self.coherence * cpus))
    }
}

/// Fits Amdahl's law.
///
/// Observations may come in any order, several of one count are put together.
///
/// ```
/// use amdahl_speedup::model::{Observation, fit_amdahl};
/// let wall_s = |cpus: u32| 10.0 * (0.1 + 0.9 / f64::from(cpus));
/// let runs = [1, 2, 4, 8].map(|cpus| Observation { cpus, wall_s: vec![wall_s(cpus)] });
/// let fit = fit_amdahl(&runs)?;
/// assert!((fit.serial_fraction - 0.1).abs() < 1e-6);
/// # Ok::<(), amdahl_speedup::model::NoModel>(())
/// ```
///
/// # Errors
/// [`NoModel`] says why the law cannot be fitted or would mislead.
pub fn fit_amdahl(observations: &[Observation]) -> Result<AmdahlFit, NoModel> {
    let points = Points::new(observations, AMDAHL_POINTS_MIN)?;
    let free = points.regression([true, false])?;
    let [low, high] = free.interval(0);
    if high < 0.0 {
        return Err(points.superlinear());
    }
    if low > 1.0 {
        return Err(NoModel::Retrograde);
    }
    let serial_fraction = free.parameters[0].clamp(0.0, 1.0);
    let ci = [low.clamp(0.0, 1.0), high.clamp(0.0, 1.0)];
    points
        .check([serial_fraction, 0.0])
        .and_then(|()| check_width("serial fraction", ci, 1.0))
        .map_err(|reason| match free.parameters[0] {
            beyond if beyond > 1.0 => NoModel::Retrograde,
            _ => reason,
        })?;
    Ok(AmdahlFit {
        serial_fraction,
        serial_fraction_ci: ci,
        one_cpu_s: points.one_cpu_s([serial_fraction, 0.0]),
        relative_rmse: points.relative_rmse([serial_fraction, 0.0]),
        points: points.counts() as u32,
    })
}

/// Fits the Universal Scalability Law.
///
/// Observations may come in any order, several of one count are put together.
///
/// # Errors
/// [`NoModel`] says why the law cannot be fitted or would mislead.
pub fn fit_usl(observations: &[Observation]) -> Result<UslFit, NoModel> {
    let points = Points::new(observations, USL_POINTS_MIN)?;
    let free = points.regression([true, true])?;
    let intervals = [free.interval(0), free.interval(1)];
    if intervals[0][1] < 0.0 {
        return Err(points.superlinear());
    }
    let [contention, coherence] = points.feasible(&free)?;
    points.check([contention, coherence])?;
    if intervals[1][1] < 0.0 {
        // Every count more helps more than the last.
        let relative_rmse = points.relative_rmse([contention, coherence]);
        return Err(NoModel::Misfit { relative_rmse });
    }
    // A parameter that was held at 0 moves the other: the interval takes it in.
    let within = |[low, high]: [f64; 2], value: f64| [low.clamp(0.0, value), high.max(value)];
    let contention_ci = within(intervals[0], contention);
    let coherence_ci = within(intervals[1], coherence);
    check_width("contention", contention_ci, 1.0)?;
    check_width("coherence", coherence_ci, f64::from(points.largest()))?;
    Ok(UslFit {
        contention,
        contention_ci,
        coherence,
        coherence_ci,
        peak: peak(contention, coherence, coherence_ci, points.largest()),
        one_cpu_s: points.one_cpu_s([contention, coherence]),
        relative_rmse: points.relative_rmse([contention, coherence]),
        points: points.counts() as u32,
    })
}

/// Where the law has its peak, if the measurements bear it out.
fn peak(contention: f64, coherence: f64, coherence_ci: [f64; 2], largest: u32) -> Peak {
    let reach = largest.saturating_mul(PEAK_REACH);
    // Coherence 0 is below every number: no interval bears out a peak then.
    let cpus = ((1.0 - contention).max(0.0) / coherence).sqrt().max(1.0);
    if coherence_ci[0] > 0.0 && cpus <= f64::from(reach) {
        Peak::At { cpus }
    } else if contention >= 1.0 {
        Peak::At { cpus: 1.0 }
    } else {
        Peak::NotWithin { cpus: reach }
    }
}

fn check_width(parameter: &'static str, [low, high]: [f64; 2], scale: f64) -> Result<(), NoModel> {
    // Written so that a NaN is no pass.
    if scale * (high - low) <= FRACTION_CI_WIDTH_MAX {
        Ok(())
    } else {
        Err(NoModel::Unstable {
            parameter,
            low,
            high,
        })
    }
}

/// Checked observations.
struct Points {
    /// One for each run, by count.
    samples: Vec<Sample>,
    /// Mean of the logarithms of the times, for each count, rising.
    means: Vec<Sample>,
}

impl Points {
    fn new(observations: &[Observation], need: usize) -> Result<Points, NoModel> {
        let mut by_count: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for Observation { cpus, wall_s } in observations {
            for &wall_s in wall_s {
                if *cpus == 0 || !wall_s.is_normal() || wall_s < 0.0 {
                    return Err(NoModel::BadObservation {
                        cpus: *cpus,
                        wall_s,
                    });
                }
                by_count.entry(*cpus).or_default().push(wall_s.ln());
            }
        }
        if by_count.len() < need {
            return Err(NoModel::TooFewPoints {
                have: by_count.len(),
                need,
            });
        }
        let sample = |cpus: u32, log_s: f64| Sample {
            cpus: f64::from(cpus),
            log_s,
        };
        let mean = |logs: &Vec<f64>| logs.iter().sum::<f64>() / logs.len() as f64;
        Ok(Points {
            means: by_count
                .iter()
                .map(|(cpus, logs)| sample(*cpus, mean(logs)))
                .collect(),
            samples: by_count
                .iter()
                .flat_map(|(cpus, logs)| logs.iter().map(move |log_s| sample(*cpus, *log_s)))
                .collect(),
        })
    }

    fn counts(&self) -> usize {
        self.means.len()
    }

    fn largest(&self) -> u32 {
        self.means.last().map_or(0, |mean| mean.cpus as u32)
    }

    /// The fit with the free parameters wherever they belong, beyond their ranges too.
    fn regression(&self, free: [bool; 2]) -> Result<Regression, NoModel> {
        Regression::fit(&self.samples, self.counts(), free).ok_or(NoModel::Unstable {
            parameter: if free[1] {
                "contention"
            } else {
                "serial fraction"
            },
            low: 0.0,
            high: if free[1] { f64::INFINITY } else { 1.0 },
        })
    }

    /// The best parameters of the law that are not negative.
    fn feasible(&self, free: &Regression) -> Result<[f64; 2], NoModel> {
        if free.parameters.iter().all(|parameter| *parameter >= 0.0) {
            return Ok(free.parameters);
        }
        // On the edges of the quadrant; its corner is on both.
        let edges = [[true, false], [false, true]].map(|edge| self.regression(edge));
        let [contention, coherence] = edges;
        let edges = [contention?, coherence?].map(|edge| edge.parameters.map(|p| p.max(0.0)));
        let sum = |parameters: &[f64; 2]| regression::squares(&self.samples, *parameters);
        let [first, second] = edges;
        Ok(if sum(&first) <= sum(&second) {
            first
        } else {
            second
        })
    }

    fn one_cpu_s(&self, parameters: [f64; 2]) -> f64 {
        regression::log_one_cpu(&self.samples, parameters).exp()
    }

    fn relative_rmse(&self, parameters: [f64; 2]) -> f64 {
        // T1 as all runs have it; the distance is that of the counts.
        let one_cpu = regression::log_one_cpu(&self.samples, parameters);
        let squares = self.means.iter().map(|mean| {
            let relative =
                (mean.log_s - one_cpu - regression::log_time(mean.cpus, parameters)).exp() - 1.0;
            relative * relative
        });
        (squares.sum::<f64>() / self.counts() as f64).sqrt()
    }

    fn check(&self, parameters: [f64; 2]) -> Result<(), NoModel> {
        let relative_rmse = self.relative_rmse(parameters);
        if relative_rmse <= RELATIVE_RMSE_MAX {
            Ok(())
        } else {
            Err(NoModel::Misfit { relative_rmse })
        }
    }

    fn superlinear(&self) -> NoModel {
        let base = self.means[0];
        let speedup = |mean: &Sample| (base.log_s - mean.log_s).exp();
        let most = self
            .means
            .iter()
            .max_by(|a, b| {
                let per_cpu = |mean: &Sample| speedup(mean) / mean.cpus;
                per_cpu(a).total_cmp(&per_cpu(b))
            })
            .unwrap_or(&base);
        NoModel::Superlinear {
            cpus: most.cpus as u32,
            base_cpus: base.cpus as u32,
            speedup: speedup(most),
        }
    }
}
