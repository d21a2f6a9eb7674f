//! Rounds: in each one all sides run, one after the other, beside the same load.

use std::collections::BTreeMap;

use amdahl_figures::median;
use serde::Serialize;

use crate::case::{self, Case, Trouble};
use crate::quota::Group;
use crate::rivals::Side;
use crate::stage::{KERNELS, Measured, Run, RunError, SHARE, Stage};

/// What is measured in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// GCC's runtime with a thread for each CPU, which nobody else wants.
    Alone,
    /// In the case.
    Beside(Side),
}

/// How often a runtime may be slower than it must be, before it is cut, and how long it gets at most.
const PATIENCE: f64 = 10.0;
const UNIT_S_MAX: f64 = 5.0;

/// What a case gave.
pub struct Results {
    /// Which.
    pub case: Case,
    /// Rounds that were meant.
    pub rounds: usize,
    /// By kernel, side and round; what failed says why.
    pub runs: BTreeMap<(&'static str, Who, usize), Result<Measured, String>>,
    /// How much longer a kernel must take than alone, by kernel and round.
    pub bounds: BTreeMap<(&'static str, usize), f64>,
    /// Why there is nothing.
    pub missing: Option<String>,
}

impl Results {
    /// Of a case of which nothing is known yet.
    pub fn new(case: Case, rounds: usize) -> Results {
        Results {
            case,
            rounds,
            runs: BTreeMap::new(),
            bounds: BTreeMap::new(),
            missing: None,
        }
    }
}

/// How much is measured.
pub struct Extent {
    /// Parts of names of cases and kernels.
    pub only: Vec<String>,
    /// Short runs, one round.
    pub is_quick: bool,
    /// Instead of those of each case.
    pub rounds: Option<usize>,
}

impl Extent {
    fn rounds(&self, case: Case) -> usize {
        self.rounds.unwrap_or_else(|| case.rounds(self.is_quick))
    }

    fn kernels(&self, case: Case) -> Vec<&'static str> {
        let name = case.to_string();
        let wanted = |kernel: &&str| case::is_wanted(&self.only, &name, kernel);
        KERNELS.into_iter().filter(wanted).collect()
    }

    /// All cases of which something is wanted.
    pub fn cases(&self, cpus: usize) -> Vec<Case> {
        let cases = case::all(cpus).into_iter();
        cases
            .filter(|case| !self.kernels(*case).is_empty())
            .collect()
    }

    /// Seconds that all of it lasts if no runtime is slow.
    pub fn seconds(&self, cpus: usize) -> f64 {
        let of = |case: &Case| {
            let sides = Side::all().count() as f64;
            let run = case.seconds(self.is_quick) + 0.1;
            let alone = match case.trouble {
                Trouble::Nobody => 0.0,
                _ => alone_s(*case, self.is_quick) + 0.1,
            };
            let kernels = self.kernels(*case).len() as f64;
            self.rounds(*case) as f64 * (kernels * (sides * run + alone) + run)
        };
        self.cases(cpus).iter().map(of).sum()
    }
}

fn alone_s(case: Case, is_quick: bool) -> f64 {
    case.seconds(is_quick).min(0.2)
}

/// Measures a case. What is interrupted is what was measured until then.
pub fn case(stage: &Stage, extent: &Extent, case: Case, progress: &str) -> Results {
    let mut results = Results::new(case, extent.rounds(case));
    let group = match case.trouble {
        Trouble::Quota { percent } => match Group::new(percent, stage.cpus) {
            Ok(group) => Some(group),
            Err(why) => {
                results.missing = Some(why);
                return results;
            }
        },
        _ => None,
    };
    let mut sides: Vec<Side> = Side::all().collect();
    sides.retain(|side| stage.runtimes.missing(*side).is_none());
    let mut kernels = extent.kernels(case);
    if case.trouble != Trouble::Nobody {
        kernels.push(SHARE);
    }
    for (number, kernel) in kernels.into_iter().enumerate() {
        let sides = if kernel == SHARE {
            vec![Side::Gcc]
        } else {
            sides.clone()
        };
        for round in 0..results.rounds {
            // The same steps for all sides, others in each round and for each kernel.
            let seed = (1 + round * 100 + number) as u64;
            let bound = case.bound(stage.cpus, extent.is_quick, seed);
            results.bounds.insert((kernel, round), bound);
            let mut alone_unit_s = None;
            let mut run = |who, alone_unit_s: Option<f64>| {
                let (case, side, seconds) = match who {
                    Who::Alone => {
                        let trouble = Trouble::Nobody;
                        let threads = stage.cpus;
                        let seconds = alone_s(case, extent.is_quick);
                        (Case { trouble, threads }, Side::Gcc, seconds)
                    }
                    Who::Beside(side) => (case, side, case.seconds(extent.is_quick)),
                };
                let measured = stage.run(&Run {
                    kernel,
                    side,
                    case,
                    seconds,
                    seed,
                    group: group.as_ref().filter(|_| who != Who::Alone),
                    unit_s_max: (PATIENCE * bound * alone_unit_s.unwrap_or(0.5)).min(UNIT_S_MAX),
                });
                let measured = match measured {
                    Err(RunError::Interrupted) => return None,
                    measured => measured.map_err(|error| error.to_string()),
                };
                let wall_s = measured.as_ref().ok().map(|measured| measured.wall_s);
                results.runs.insert((kernel, who, round), measured);
                Some(wall_s)
            };
            if case.trouble != Trouble::Nobody {
                let Some(wall_s) = run(Who::Alone, None) else {
                    return results;
                };
                alone_unit_s = wall_s;
            }
            for i in 0..sides.len() {
                // Another one begins in each round.
                let side = sides[(i + round) % sides.len()];
                if run(Who::Beside(side), alone_unit_s).is_none() {
                    return results;
                }
            }
        }
        eprintln!("{progress} {case}/{kernel}: {}", said(&results, kernel));
    }
    results
}

/// What a kernel's rounds gave, in a line.
fn said(results: &Results, kernel: &'static str) -> String {
    let of = |who| {
        let runs = (0..results.rounds).filter_map(|round| results.runs.get(&(kernel, who, round)));
        let runs: Vec<&Result<Measured, String>> = runs.collect();
        let walls = runs.iter().filter_map(|run| run.as_ref().ok());
        let is_cut = walls.clone().any(|run| run.is_cut);
        let wall_s = median(walls.map(|run| run.wall_s).collect());
        let why = runs.iter().find_map(|run| run.as_ref().err());
        (wall_s, is_cut, why)
    };
    let base = match results.case.trouble {
        Trouble::Nobody => Who::Beside(Side::Gcc),
        _ => Who::Alone,
    };
    let (alone_s, ..) = of(base);
    let bounds = (0..results.rounds).filter_map(|round| results.bounds.get(&(kernel, round)));
    let bound = median(bounds.copied().collect());
    let mut words = format!("alone {:.3} ms; bound {bound:.2}", alone_s * 1e3);
    for side in Side::all() {
        match of(Who::Beside(side)) {
            (_, _, Some(why)) => words += &format!("; {} failed: {why}", side.name()),
            (wall_s, ..) if wall_s.is_nan() => {}
            (wall_s, is_cut, None) => {
                let ratio = wall_s / alone_s;
                let more = if is_cut { ">= " } else { "" };
                words += &format!("; {} {more}{ratio:.2}", side.name());
            }
        }
    }
    words
}
