//! Least squares on the logarithms of times, with confidence intervals.

use statrs::distribution::{ContinuousCDF, FisherSnedecor, StudentsT};

/// Steps of the iteration; it usually takes five.
const STEPS_MAX: usize = 100;
/// Halvings of a step that does not lead downhill.
const HALVINGS_MAX: usize = 40;

/// The logarithm of a time on some CPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) cpus: f64,
    pub(super) log_s: f64,
}

/// A fit of `log T(n) = log T(1) + log((1 + a (n - 1) + b n (n - 1)) / n)`.
#[derive(Clone, Debug)]
pub(super) struct Regression {
    /// a and b; one that is not free is 0.
    pub(super) parameters: [f64; 2],
    /// Half the width of their 95 % confidence intervals.
    half_widths: [f64; 2],
}

/// Time on `cpus` CPUs divided by that on one, logarithm; NaN where the law has no positive time.
pub(super) fn log_time(cpus: f64, parameters: [f64; 2]) -> f64 {
    (slowdown(cpus, parameters) / cpus).ln()
}

/// CPU time on `cpus` CPUs divided by that on one.
fn slowdown(cpus: f64, [a, b]: [f64; 2]) -> f64 {
    1.0 + (cpus - 1.0) * (a + b * cpus)
}

/// The best logarithm of the one-CPU time for these parameters.
pub(super) fn log_one_cpu(samples: &[Sample], parameters: [f64; 2]) -> f64 {
    let sum: f64 = samples
        .iter()
        .map(|sample| sample.log_s - log_time(sample.cpus, parameters))
        .sum();
    sum / samples.len() as f64
}

/// Sum of the squared residuals; NaN where the law has no positive time.
pub(super) fn squares(samples: &[Sample], parameters: [f64; 2]) -> f64 {
    let one_cpu = log_one_cpu(samples, parameters);
    samples
        .iter()
        .map(|sample| (sample.log_s - one_cpu - log_time(sample.cpus, parameters)).powi(2))
        .sum()
}

impl Regression {
    /// `None` if the iteration does not converge or the samples determine no parameters.
    ///
    /// `samples` are ordered by count, `counts` is how many there are of those.
    pub(super) fn fit(samples: &[Sample], counts: usize, free: [bool; 2]) -> Option<Regression> {
        let mut parameters = [0.0; 2];
        let mut sum = squares(samples, parameters);
        for _ in 0..STEPS_MAX {
            let normal = Normal::at(samples, parameters, free);
            let inverse = normal.inverse(free)?;
            let step = [0, 1]
                .map(|i| inverse[i][0] * normal.gradient[0] + inverse[i][1] * normal.gradient[1]);
            // Towards the minimum, until it is one: the Gauss-Newton step may be too long.
            let mut scale = 1.0;
            let next = (0..HALVINGS_MAX).find_map(|_| {
                let next = [0, 1].map(|i| parameters[i] + scale * step[i]);
                scale /= 2.0;
                let next_sum = squares(samples, next);
                (next_sum < sum).then_some((next, next_sum))
            });
            let Some((next, next_sum)) = next else {
                // Downhill is nowhere.
                return Regression::with_intervals(samples, counts, free, parameters);
            };
            let moved = [0, 1].map(|i| (next[i] - parameters[i]).abs() / (1e-9 + next[i].abs()));
            (parameters, sum) = (next, next_sum);
            if moved.iter().all(|moved| *moved < 1e-9) {
                return Regression::with_intervals(samples, counts, free, parameters);
            }
        }
        None
    }

    fn with_intervals(
        samples: &[Sample],
        counts: usize,
        free: [bool; 2],
        parameters: [f64; 2],
    ) -> Option<Regression> {
        let inverse = Normal::at(samples, parameters, free).inverse(free)?;
        let fitted = 1 + free.iter().filter(|free| **free).count();
        let (variance, freedom) = residual_variance(samples, counts, fitted, parameters)?;
        let t = StudentsT::new(0.0, 1.0, freedom).ok()?.inverse_cdf(0.975);
        let half_widths = [0, 1].map(|i| t * (variance * inverse[i][i]).sqrt());
        half_widths
            .iter()
            .chain(&parameters)
            .all(|value| value.is_finite())
            .then_some(Regression {
                parameters,
                half_widths,
            })
    }

    /// The 95 % confidence interval of a parameter.
    pub(super) fn interval(&self, parameter: usize) -> [f64; 2] {
        let (value, half) = (self.parameters[parameter], self.half_widths[parameter]);
        [value - half, value + half]
    }
}

/// Variance of a residual and its degrees of freedom.
fn residual_variance(
    samples: &[Sample],
    counts: usize,
    fitted: usize,
    parameters: [f64; 2],
) -> Option<(f64, f64)> {
    let all = squares(samples, parameters);
    // Scatter of the runs of one count around their mean, whatever the law.
    let within: f64 = samples
        .chunk_by(|a, b| a.cpus == b.cpus)
        .map(|runs| {
            let mean = runs.iter().map(|run| run.log_s).sum::<f64>() / runs.len() as f64;
            runs.iter()
                .map(|run| (run.log_s - mean).powi(2))
                .sum::<f64>()
        })
        .sum();
    let freedom = samples.len().checked_sub(fitted).filter(|f| *f > 0)? as f64;
    let freedom_of_fit = counts.checked_sub(fitted).filter(|f| *f > 0)? as f64;
    let freedom_within = (samples.len() - counts) as f64;
    let lack = (all - within).max(0.0) / freedom_of_fit;
    if freedom_within > 0.0 {
        let test = FisherSnedecor::new(freedom_of_fit, freedom_within).ok()?;
        let scatter = within / freedom_within;
        // Rounding is no lack of fit.
        let fits = lack <= 1e-24 || scatter > 0.0 && test.cdf(lack / scatter) <= 0.95;
        if fits {
            return Some((all / freedom, freedom));
        }
    }
    Some((lack, freedom_of_fit))
}

/// The normal equations of a Gauss-Newton step for a and b, the one-CPU time eliminated.
struct Normal {
    matrix: [[f64; 2]; 2],
    gradient: [f64; 2],
}

impl Normal {
    fn at(samples: &[Sample], parameters: [f64; 2], free: [bool; 2]) -> Normal {
        let count = samples.len() as f64;
        let one_cpu = log_one_cpu(samples, parameters);
        let derivative = |cpus: f64| {
            let per_slowdown = (cpus - 1.0) / slowdown(cpus, parameters);
            [per_slowdown, per_slowdown * cpus]
        };
        let mut mean = [0.0; 2];
        for sample in samples {
            let derivative = derivative(sample.cpus);
            for i in 0..2 {
                mean[i] += derivative[i] / count;
            }
        }
        let mut normal = Normal {
            matrix: [[0.0; 2]; 2],
            gradient: [0.0; 2],
        };
        for sample in samples {
            let residual = sample.log_s - one_cpu - log_time(sample.cpus, parameters);
            let derivative = derivative(sample.cpus);
            let centred = [0, 1].map(|i| {
                if free[i] {
                    derivative[i] - mean[i]
                } else {
                    0.0
                }
            });
            for i in 0..2 {
                normal.gradient[i] += centred[i] * residual;
                for j in 0..2 {
                    normal.matrix[i][j] += centred[i] * centred[j];
                }
            }
        }
        normal
    }

    /// Inverse over the free parameters, 0 elsewhere; `None` if it is singular.
    fn inverse(&self, free: [bool; 2]) -> Option<[[f64; 2]; 2]> {
        let [[aa, ab], [ba, bb]] = self.matrix;
        let inverse = match free {
            [true, true] => {
                let determinant = aa * bb - ab * ba;
                // Relative to its terms: counts that tell a and b apart only by rounding do not.
                if determinant.abs() <= 1e-10 * (aa * bb).abs() {
                    return None;
                }
                [
                    [bb / determinant, -ab / determinant],
                    [-ba / determinant, aa / determinant],
                ]
            }
            [true, false] => [[1.0 / aa, 0.0], [0.0, 0.0]],
            [false, true] => [[0.0, 0.0], [0.0, 1.0 / bb]],
            [false, false] => [[0.0; 2]; 2],
        };
        inverse
            .iter()
            .flatten()
            .all(|value| value.is_finite())
            .then_some(inverse)
    }
}
