//! Runs to figures.

use std::collections::BTreeMap;

use amdahl_figures::{Figure, Target, Unit, median};

use crate::case::Trouble;
use crate::measure::{Results, Who};
use crate::rivals::Side;
use crate::stage::{KERNELS, Measured, SHARE};

type Of = fn(&Measured) -> Option<f64>;

const WALL: Of = |run| Some(run.wall_s);
const CPU: Of = |run| Some(run.cpu_s);
/// Time for some work, so that more is worse as with the others.
const LOAD: Of = |run| Some(1.0 / run.load_per_s?);

/// Of a quotient in each round.
#[derive(Clone, Debug, PartialEq)]
struct Ratio {
    median: f64,
    least: f64,
    most: f64,
    rounds: Vec<f64>,
}

impl Ratio {
    fn of(rounds: Vec<f64>) -> Option<Ratio> {
        let least = rounds.iter().copied().min_by(f64::total_cmp)?;
        let most = rounds.iter().copied().max_by(f64::total_cmp)?;
        Some(Ratio {
            median: median(rounds.clone()),
            least,
            most,
            rounds,
        })
    }

    fn spread(&self, rounds: usize) -> String {
        match rounds {
            1 => "one round".to_owned(),
            n => format!("{n} rounds, {:.3} to {:.3}", self.least, self.most),
        }
    }
}

/// The best of the competitors.
struct Best {
    side: Side,
    /// Ours in relation to the one that was best in the other rounds.
    ratio: Ratio,
    /// And to the one that is best of all rounds.
    of_all: f64,
}

impl Best {
    fn chosen(&self) -> String {
        match self.ratio.least == self.ratio.most && self.ratio.median == self.of_all {
            true => String::new(),
            false => format!(
                ", chosen in each round by the others ({:.3} if by the same)",
                self.of_all
            ),
        }
    }
}

impl Results {
    fn value(&self, kernel: &'static str, who: Who, round: usize, of: Of) -> Option<f64> {
        let run = self.runs.get(&(kernel, who, round))?;
        run.as_ref().ok().and_then(of)
    }

    /// Kernels of which there is something.
    fn kernels(&self) -> Vec<&'static str> {
        let has = |kernel: &&'static str| self.runs.keys().any(|(of, ..)| of == kernel);
        KERNELS.into_iter().filter(has).collect()
    }

    /// Why a side has not done all of it.
    fn fault(&self, who: Who) -> Option<String> {
        let kernels = self.kernels();
        for kernel in &kernels {
            for round in 0..self.rounds {
                match self.runs.get(&(kernel, who, round)) {
                    Some(Ok(_)) => {}
                    Some(Err(why)) => return Some(why.clone()),
                    None => return Some("not measured to the end".to_owned()),
                }
            }
        }
        kernels
            .is_empty()
            .then(|| "not measured to the end".to_owned())
    }

    /// One side in relation to another: in each round the geometric mean over the kernels.
    fn ratio(
        &self,
        kernels: &[&'static str],
        a: Who,
        b: Who,
        of: Of,
        scale: impl Fn(&'static str, usize) -> f64,
    ) -> Option<Ratio> {
        let round = |round| {
            let logarithms = kernels.iter().map(|kernel| {
                let (a, b) = (
                    self.value(kernel, a, round, of)?,
                    self.value(kernel, b, round, of)?,
                );
                Some((a / b / scale(kernel, round)).ln())
            });
            let logarithms: Option<Vec<f64>> = logarithms.collect();
            let logarithms = logarithms?;
            Some((logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp())
        };
        let rounds: Option<Vec<f64>> = (0..self.rounds).map(round).collect();
        Ratio::of(rounds?).filter(|ratio| ratio.median.is_finite())
    }

    /// The competitor that is best on these kernels, with what ours is in relation to it.
    ///
    /// Of several that are as good the one that was lucky would be taken, and that by as much as rounds differ. So in each round ours is compared with the one that
    /// was best in the others, and it is said what the comparison with the best of all rounds would have been.
    fn best(&self, ours: Side, kernels: &[&'static str], of: Of) -> Option<Best> {
        let beside = |side: Side| {
            let (ours, other) = (Who::Beside(ours), Who::Beside(side));
            Some((side, self.ratio(kernels, ours, other, of, plain)?.rounds))
        };
        let all: Vec<_> = Side::COMPETITORS.into_iter().filter_map(beside).collect();
        // Leaving out that round, if there are others.
        let best_without = |out: Option<usize>| {
            let medians = all.iter().map(|(side, rounds)| {
                let kept = rounds.iter().enumerate();
                let kept = kept.filter(|(round, _)| rounds.len() == 1 || Some(*round) != out);
                (
                    *side,
                    rounds,
                    median(kept.map(|(_, ratio)| *ratio).collect()),
                )
            });
            medians.max_by(|a, b| a.2.total_cmp(&b.2))
        };
        let (side, _, of_all) = best_without(None)?;
        let rounds = (0..self.rounds).map(|round| Some(best_without(Some(round))?.1[round]));
        let rounds: Option<Vec<f64>> = rounds.collect();
        Some(Best {
            side,
            ratio: Ratio::of(rounds?)?,
            of_all,
        })
    }

    fn are_cut(&self, side: Side) -> usize {
        let runs = self.runs.iter();
        runs.filter(|((_, who, _), run)| {
            *who == Who::Beside(side) && run.as_ref().is_ok_and(|run| run.is_cut)
        })
        .count()
    }
}

fn plain(_: &'static str, _: usize) -> f64 {
    1.0
}

/// The rows of a case; `missing`: why there is no runtime of ours.
pub fn of_case(results: &Results, cpus: usize, missing: Option<&str>) -> Vec<Figure> {
    let rows = Rows {
        results,
        title: results.case.title(cpus),
        missing: results
            .missing
            .clone()
            .or_else(|| missing.map(str::to_owned))
            .or_else(|| results.fault(Who::Beside(Side::Ours))),
    };
    match results.case.trouble {
        Trouble::Nobody => rows.dedicated(),
        _ => rows.contended(cpus),
    }
}

struct Rows<'a> {
    results: &'a Results,
    title: String,
    missing: Option<String>,
}

impl Rows<'_> {
    fn figure(&self, name: &str, target: Target, found: Option<(Ratio, String)>) -> Figure {
        let title = &self.title;
        let rounds = self.results.rounds;
        let (value, versus) = match (&self.missing, found) {
            (Some(why), _) => (Err(why.clone()), String::new()),
            (None, Some((ratio, versus))) => (
                Ok(ratio.median),
                format!("{versus}; {}", ratio.spread(rounds)),
            ),
            (None, None) => (
                Err("what it is compared with failed, or was not measured to the end".to_owned()),
                String::new(),
            ),
        };
        Figure {
            name: format!("{title}: {name}"),
            value,
            unit: Unit::Ratio,
            target,
            versus,
        }
    }

    fn dedicated(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (what, of, limit) in [("time", WALL, 1.02), ("CPU time", CPU, 1.05)] {
            for kernel in self.results.kernels() {
                let best = self.results.best(Side::Ours, &[kernel], of);
                let found = best.map(|best| {
                    let others = self.others(&[kernel], Who::Beside(best.side), of, plain);
                    let versus = format!(
                        "{what} of ours / of the best setting, {}{}: {others}",
                        best.side.name(),
                        best.chosen()
                    );
                    (best.ratio, versus)
                });
                let name = format!("{kernel}: {what} / best setting");
                figures.push(self.figure(&name, Target::AtMost(limit), found));
            }
        }
        figures
    }

    fn contended(&self, cpus: usize) -> Vec<Figure> {
        let results = self.results;
        let kernels = results.kernels();
        let ours = Who::Beside(Side::Ours);
        let bound = |kernel: &'static str, round| {
            let bound = results.bounds.get(&(kernel, round));
            bound.copied().unwrap_or(f64::NAN)
        };
        let mut figures = Vec::new();
        let to_bound = |side| results.ratio(&kernels, Who::Beside(side), Who::Alone, WALL, bound);
        figures.push(self.figure(
            "time / bound",
            Target::AtMost(1.1),
            to_bound(Side::Ours).map(|ratio| {
                let others = self.others(&kernels, Who::Alone, WALL, bound);
                let bounds = median(results.bounds.values().copied().collect());
                let versus = format!(
                    "geometric mean over {} of time / (alone with {cpus} threads of libgomp x bound, in the median {bounds:.2}): {others}{}",
                    kernels.join(", "),
                    self.granted(bound),
                );
                (ratio, versus)
            }),
        ));
        let llvm = match results.case.threads > cpus {
            true => Target::AtMost(0.25),
            false => Target::Stated,
        };
        for (name, side, target) in [
            ("time / libgomp", Side::Gcc, Target::AtMost(0.65)),
            ("time / LLVM", Side::Llvm, llvm),
        ] {
            let other = Who::Beside(side);
            let ratio = results.ratio(&kernels, ours, other, WALL, plain);
            // What there is to win.
            let least = results.ratio(&kernels, Who::Alone, other, WALL, |kernel, round| {
                1.0 / bound(kernel, round)
            });
            let least = least.map_or(f64::NAN, |ratio| ratio.median);
            let cut = match results.are_cut(side) {
                0 => String::new(),
                n => format!(", which was cut in {n} runs and counts with the time it had"),
            };
            let found = ratio.map(|ratio| {
                let versus = format!(
                    "time of ours / of {}{cut}, geometric mean over the kernels; the bound itself is {least:.3} of it",
                    side.name()
                );
                (ratio, versus)
            });
            figures.push(self.figure(name, target, found));
        }
        figures.extend(self.to_best(Side::Ours, "", &kernels));
        // Who lets the runtime choose the number of threads does so with any runtime.
        let name = "OMP_DYNAMIC, ";
        let versus =
            "time of ours with OMP_DYNAMIC=true / (alone x bound), geometric mean over the kernels";
        figures.push(self.figure(
            &format!("{name}time / bound"),
            Target::Stated,
            to_bound(Side::OursDynamic).map(|ratio| (ratio, versus.to_owned())),
        ));
        figures.extend(self.to_best(Side::OursDynamic, name, &kernels));
        if results.case.loads(cpus) > 0 {
            let gcc = Who::Beside(Side::Gcc);
            let found = results.ratio(&kernels, ours, gcc, LOAD, plain).map(|ratio| {
                let versus = "time that the processes beside need for their work, beside ours / beside libgomp; what is within 2 % is not told apart".to_owned();
                (ratio, versus)
            });
            figures.push(self.figure("load beside, time / libgomp", Target::AtMost(1.02), found));
        }
        figures
    }

    /// One of ours in relation to the best of the others.
    fn to_best(&self, ours: Side, name: &str, kernels: &[&'static str]) -> Vec<Figure> {
        let row = |(what, of, limit): (&str, Of, f64)| {
            let found = self.results.best(ours, kernels, of).map(|best| {
                let each = kernels.iter().filter_map(|kernel| {
                    let best = self.results.best(ours, &[kernel], of)?;
                    Some((best.ratio.median, *kernel, best.side))
                });
                let worst = each
                    .max_by(|a, b| a.0.total_cmp(&b.0))
                    .map(|(ratio, kernel, side)| {
                        format!(
                            "; the worst kernel is {kernel}, {ratio:.3} of {}",
                            side.name()
                        )
                    });
                let others = self.others(kernels, Who::Beside(best.side), of, plain);
                let versus = format!(
                    "geometric mean over the kernels, best setting of all: {}{}: {others}{}",
                    best.side.name(),
                    best.chosen(),
                    worst.unwrap_or_default()
                );
                (best.ratio, versus)
            });
            let name = format!("{name}{what} / best setting");
            self.figure(&name, Target::AtMost(limit), found)
        };
        [("time", WALL, 1.02), ("CPU time", CPU, 1.05)]
            .map(row)
            .into()
    }

    /// All sides in relation to one.
    fn others(
        &self,
        kernels: &[&'static str],
        to: Who,
        of: Of,
        scale: impl Fn(&'static str, usize) -> f64 + Copy,
    ) -> String {
        let mut words = Vec::new();
        for side in Side::all() {
            let who = Who::Beside(side);
            if let Some(ratio) = self.results.ratio(kernels, who, to, of, scale) {
                let cut = match self.results.are_cut(side) {
                    0 => "",
                    _ => " at least",
                };
                words.push(format!("{}{cut} {:.2}", side.name(), ratio.median));
            } else if let Some(Err(why)) = self
                .results
                .runs
                .iter()
                .find_map(|((_, of, _), run)| (*of == who && run.is_err()).then_some(run))
            {
                words.push(format!("{} failed ({why})", side.name()));
            }
        }
        words.join(", ")
    }

    /// What the scheduler gave to threads that need nothing of each other.
    fn granted(&self, bound: impl Fn(&'static str, usize) -> f64) -> String {
        let (there, alone) = (Who::Beside(Side::Gcc), Who::Alone);
        match self.results.ratio(&[SHARE], there, alone, WALL, bound) {
            Some(ratio) => format!(
                "; threads that need nothing of each other take {:.2} of the bound",
                ratio.median
            ),
            None => String::new(),
        }
    }
}

/// Nanoseconds of a construct by side and round.
pub type Overheads = BTreeMap<(String, Side), Vec<f64>>;

/// What runtimes' constructs cost.
pub fn of_overheads(all: &Overheads, missing: Option<&str>) -> Vec<Figure> {
    let mut constructs: Vec<&String> = all.keys().map(|(construct, _)| construct).collect();
    constructs.dedup();
    let of = |construct: &str, side| all.get(&(construct.to_owned(), side));
    let figure = |construct: &String| {
        let pair = of(construct, Side::Ours).zip(of(construct, Side::Gcc));
        let ratio = pair.and_then(|(ours, gcc)| {
            // What is below a nanosecond is not told apart from nothing.
            let ratios = ours.iter().zip(gcc);
            Ratio::of(ratios.map(|(a, b)| a.max(1.0) / b.max(1.0)).collect())
        });
        let told: Vec<String> = Side::all()
            .filter_map(|side| {
                let ns = median(of(construct, side)?.clone());
                Some(format!("{} {ns:.0} ns", side.name()))
            })
            .collect();
        let rounds = pair.map_or(0, |(ours, gcc)| ours.len().min(gcc.len()));
        Figure {
            name: format!("overhead: {construct}"),
            value: match (&ratio, missing) {
                (Some(ratio), _) => Ok(ratio.median),
                (None, Some(why)) => Err(why.to_owned()),
                (None, None) => Err("a runtime failed, or it was not measured to the end".into()),
            },
            unit: Unit::Ratio,
            target: Target::AtMost(1.0),
            versus: format!(
                "of ours / of libgomp: {}; {}",
                told.join(", "),
                ratio.map_or(String::new(), |ratio| ratio.spread(rounds))
            ),
        }
    };
    constructs.into_iter().map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;

    fn run(wall_s: f64, load_per_s: Option<f64>) -> Result<Measured, String> {
        Ok(Measured {
            wall_s,
            cpu_s: wall_s / 2.0,
            load_per_s,
            is_cut: false,
        })
    }

    /// Two kernels, two rounds; alone 1 s, ours at 2.2 and 1.98 of it, libgomp at 4, passive at 2, LLVM at 20.
    fn busy() -> Results {
        let case = Case {
            trouble: Trouble::Busy,
            threads: 4,
        };
        let mut results = Results::new(case, 2);
        for round in 0..2 {
            for (kernel, ours) in [("lu", 2.2), ("cg", 1.98)] {
                results.bounds.insert((kernel, round), 1.5);
                for (who, wall_s, load) in [
                    (Who::Alone, 1.0, None),
                    (Who::Beside(Side::Ours), ours, Some(100.0)),
                    (Who::Beside(Side::OursDynamic), 1.8, Some(100.0)),
                    (Who::Beside(Side::Gcc), 4.0, Some(110.0)),
                    (Who::Beside(Side::GccPassive), 2.0, Some(120.0)),
                    (Who::Beside(Side::Llvm), 20.0, Some(90.0)),
                ] {
                    results.runs.insert((kernel, who, round), run(wall_s, load));
                }
            }
        }
        results
    }

    fn value(figures: &[Figure], name: &str) -> f64 {
        let figure = figures.iter().find(|figure| figure.name.ends_with(name));
        *figure.unwrap().value.as_ref().unwrap()
    }

    #[test]
    fn rows_are_geometric_means_over_the_kernels() {
        let figures = of_case(&busy(), 2, None);
        let ours = (2.2f64 * 1.98).sqrt();
        let near = |name: &str, expected: f64| {
            let found = value(&figures, name);
            assert!(
                (found - expected).abs() < 1e-9,
                "{name}: {found}, {expected}"
            );
        };
        near(": time / bound", ours / 1.5);
        near(": time / libgomp", ours / 4.0);
        near(": time / LLVM", ours / 20.0);
        near(": time / best setting", ours / 2.0);
        near(": CPU time / best setting", ours / 2.0);
        near(": OMP_DYNAMIC, time / bound", 1.8 / 1.5);
        near(": OMP_DYNAMIC, time / best setting", 1.8 / 2.0);
        near(": OMP_DYNAMIC, CPU time / best setting", 1.8 / 2.0);
        // The load does less beside ours.
        near("load beside, time / libgomp", 1.1);
        assert_eq!(figures.len(), 9);
        let best = &figures[3];
        assert!(
            best.versus.contains("libgomp passive") && best.versus.contains("worst kernel is lu"),
            "{}",
            best.versus
        );
    }

    #[test]
    fn a_wrong_result_of_ours_is_no_figure_and_one_of_a_competitor_no_rival() {
        let mut results = busy();
        let wrong = || Err("result 1 to 2, right is 1".to_owned());
        let key = ("lu", Who::Beside(Side::GccPassive), 0);
        results.runs.insert(key, wrong());
        let figures = of_case(&results, 2, None);
        let ours = (2.2f64 * 1.98).sqrt();
        assert!((value(&figures, ": time / best setting") - ours / 4.0).abs() < 1e-9);
        assert!(
            figures[0].versus.contains("libgomp passive failed"),
            "{}",
            figures[0].versus
        );
        results
            .runs
            .insert(("cg", Who::Beside(Side::Ours), 1), wrong());
        let figures = of_case(&results, 2, None);
        assert!(figures.iter().all(|figure| {
            figure
                .value
                .as_ref()
                .is_err_and(|why| why.contains("right"))
        }));
    }

    #[test]
    fn what_was_interrupted_is_no_figure() {
        let mut results = busy();
        results.runs.remove(&("cg", Who::Beside(Side::Gcc), 1));
        let figures = of_case(&results, 2, None);
        assert!(figures[1].value.is_err(), "{}", figures[1].name);
        assert!(figures[3].value.is_ok(), "{}", figures[3].name);
    }

    #[test]
    fn each_kernel_has_its_best_setting_on_a_dedicated_machine() {
        let mut results = busy();
        results.case.trouble = Trouble::Nobody;
        let key = |side| ("cg", Who::Beside(side), 0);
        results.runs.insert(key(Side::GccPassive), run(5.0, None));
        let key = |side| ("cg", Who::Beside(side), 1);
        results.runs.insert(key(Side::GccPassive), run(5.0, None));
        let figures = of_case(&results, 2, None);
        assert_eq!(figures.len(), 4);
        assert_eq!(value(&figures, "lu: time / best setting"), 1.1);
        assert!(figures[0].versus.contains("libgomp passive:"));
        assert_eq!(value(&figures, "cg: time / best setting"), 1.98 / 4.0);
    }

    #[test]
    fn luck_of_one_round_does_not_make_the_best_setting_of_that_round() {
        let mut results = busy();
        for kernel in ["lu", "cg"] {
            for (round, passive, gcc) in [(0, 1.6, 2.4), (1, 2.4, 1.6)] {
                let mut set = |side, wall_s| {
                    let key = (kernel, Who::Beside(side), round);
                    results.runs.insert(key, run(wall_s, None));
                };
                set(Side::Ours, 2.0);
                set(Side::GccPassive, passive);
                set(Side::Gcc, gcc);
            }
        }
        let figures = of_case(&results, 2, None);
        let near = |found: f64| (found - 2.0 / 2.4).abs() < 1e-9;
        assert!(near(value(&figures, ": time / best setting")));
        let versus = &figures[3].versus;
        assert!(versus.contains("(1.042 if by the same)"), "{versus}");
        // Of one round nothing else is known.
        results.rounds = 1;
        let figures = of_case(&results, 2, None);
        assert_eq!(value(&figures, ": time / best setting"), 2.0 / 1.6);
    }

    #[test]
    fn overheads_are_compared_with_gccs_round_by_round() {
        let mut all = Overheads::new();
        let key = |side| ("barrier".to_owned(), side);
        all.insert(key(Side::Ours), vec![100.0, 300.0, 90.0]);
        all.insert(key(Side::Gcc), vec![200.0, 300.0, 300.0]);
        let figures = of_overheads(&all, None);
        assert_eq!(value(&figures, "overhead: barrier"), 0.5);
        // Less than nothing is nothing.
        all.insert(key(Side::Gcc), vec![-5.0; 3]);
        let figures = of_overheads(&all, None);
        assert_eq!(value(&figures, "overhead: barrier"), 100.0);
        all.remove(&key(Side::Ours));
        let figures = of_overheads(&all, Some("no runtime"));
        assert_eq!(figures[0].value, Err("no runtime".to_owned()));
    }
}
