//! Runs that differ by more than what is read from them can bear.

use amdahl_report::schema::Spread;

/// Runs are noisy whose extremes are farther apart than this part of the median.
const NOISE: f64 = 0.10;

/// The runs of one CPU count, by what tells them apart.
pub struct Runs {
    /// What differs, in words.
    pub what: &'static str,
    /// Those that speedups are made of.
    pub counted: Spread,
    /// Those with the probe, where they are others.
    pub probed: Option<Spread>,
}

impl Runs {
    /// By how much they differ and what to do about it, if it is noise: the end of a sentence.
    pub fn noise(&self) -> Option<String> {
        let counted = noise(&self.counted);
        let probed = self.probed.as_ref().and_then(noise);
        let what = self.what;
        let found = match (counted, probed) {
            (None, None) => return None,
            (Some(counted), None) => format!("the {what} differ by {}", percent(counted)),
            (Some(counted), Some(probed)) => format!(
                "the {what} differ by {}, those with the probe by {}",
                percent(counted),
                percent(probed)
            ),
            (None, Some(probed)) => format!(
                "the {what} with the probe, which the stack divides, differ by {}",
                percent(probed)
            ),
        };
        Some(format!(
            "{found}: the machine is noisy. Use more --runs, stop other work, or make the runs longer."
        ))
    }
}

fn noise(spread: &Spread) -> Option<f64> {
    let apart = (spread.max - spread.min) / spread.median;
    // A median of zero has no parts.
    (spread.runs.len() > 1 && apart.is_finite() && apart > NOISE).then_some(apart)
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(runs: [f64; 3]) -> Spread {
        Spread {
            median: runs[1],
            min: runs[0],
            max: runs[2],
            runs: runs.to_vec(),
        }
    }

    fn noise(counted: [f64; 3], probed: Option<[f64; 3]>) -> Option<String> {
        let runs = Runs {
            what: "runs",
            counted: spread(counted),
            probed: probed.map(spread),
        };
        runs.noise()
    }

    const QUIET: [f64; 3] = [0.96, 1.0, 1.05];
    const NOISY: [f64; 3] = [0.9, 1.0, 1.13];
    const NOISIER: [f64; 3] = [1.0, 1.2, 2.2];

    #[test]
    fn noise_of_either_kind_of_runs_is_told() {
        assert_eq!(noise(QUIET, Some(QUIET)), None);
        assert_eq!(noise(QUIET, None), None);
        for (counted, probed, found) in [
            (NOISY, None, "the runs differ by 23 %: "),
            (NOISY, Some(QUIET), "the runs differ by 23 %: "),
            (
                NOISY,
                Some(NOISIER),
                "the runs differ by 23 %, those with the probe by 100 %: ",
            ),
            // Only these used to be looked at by nobody.
            (
                QUIET,
                Some(NOISIER),
                "the runs with the probe, which the stack divides, differ by 100 %: ",
            ),
        ] {
            let text = noise(counted, probed).expect("noise");
            assert!(text.starts_with(found), "{text}");
            assert!(text.contains("--runs"), "{text}");
        }
    }

    #[test]
    fn what_cannot_differ_is_quiet() {
        assert_eq!(noise([0.0; 3], Some([0.0, 0.0, 5.0])), None);
        let one = Spread {
            runs: vec![1.0],
            ..spread(NOISY)
        };
        let one = Runs {
            what: "runs",
            counted: one,
            probed: None,
        };
        assert_eq!(one.noise(), None);
    }
}
