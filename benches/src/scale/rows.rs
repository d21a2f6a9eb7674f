//! The rows of the table, each from what was measured or from why it was not.

use super::planted::Case;
use super::sweep::Sweep;
use crate::programs::Program;
use crate::rounds::{Round, Watcher, fastest_ratio, taken_share, wall_ratio};
use crate::spread::{Median, beside_another, beside_nobody};
use amdahl_figures::{Figure, Target, Unit};

/// Share of the capacity that may stay unexplained.
const UNEXPLAINED: Target = Target::Below(0.05);
/// What the tool may take besides its runs, in relation to them.
const BESIDES: Target = Target::Below(1.0);
/// Bound of the tool's resident set on a long run.
const RESIDENT_MIB: Target = Target::AtMost(1024.0);

/// The kinds of rows, in the order of the table.
#[derive(Default)]
pub struct Rows {
    unexplained: Vec<Figure>,
    unaccounted: Vec<Figure>,
    costs: Vec<Figure>,
    takes: Vec<Figure>,
    rivals: Vec<Figure>,
    besides: Vec<Figure>,
    memory: Vec<Figure>,
}

impl Rows {
    /// All rows in order.
    pub fn into_figures(self) -> Vec<Figure> {
        [
            self.unexplained,
            self.unaccounted,
            self.costs,
            self.takes,
            self.rivals,
            self.besides,
            self.memory,
        ]
        .concat()
    }

    /// What stays unexplained, and how long the explanation takes.
    pub fn explained(&mut self, name: &str, cpus: u32, swept: &Result<Sweep, String>) {
        let most = said(swept, Sweep::unexplained_most);
        self.unexplained.push(Figure {
            name: format!("unexplained: {name}"),
            value: figure_of(swept, Sweep::unexplained),
            unit: Unit::Capacity,
            target: UNEXPLAINED,
            versus: format!("{cpus} CPUs x wall time of the runs with the probe{most}"),
        });
        self.unaccounted.push(Figure {
            name: format!("unaccounted: {name}"),
            value: figure_of(swept, |sweep| sweep.unaccounted().map(f64::abs)),
            unit: Unit::Capacity,
            target: UNEXPLAINED,
            versus: "the kernel's account of the workload's CPU time".to_owned(),
        });
        self.besides(name, swept);
    }

    fn besides(&mut self, name: &str, swept: &Result<Sweep, String>) {
        let analysis = said(swept, |sweep| {
            format!("; analysis alone {:.3}", sweep.analysis())
        });
        self.besides.push(Figure {
            name: format!("post-processing / run: {name}"),
            value: figure_of(swept, Sweep::besides_runs),
            unit: Unit::Ratio,
            target: BESIDES,
            versus: format!(
                "all that the tool takes besides its runs (start, analysis, names, files) / \
                 wall time of the runs{analysis}"
            ),
        });
    }

    /// A run of ten seconds: the same, and memory.
    pub fn long(&mut self, name: &str, swept: &Result<Sweep, String>) {
        let name = format!("{name}, long");
        self.besides(&name, swept);
        let run = said(swept, |sweep| {
            let events: u64 = sweep.result.points.iter().map(|point| point.events).sum();
            format!("; a run of {:.1} s with {events} events", sweep.runs_s())
        });
        self.memory.push(Figure {
            name: format!("peak memory: {name}"),
            value: figure_of(swept, |sweep| {
                Some(sweep.resident_bytes_max as f64 / f64::from(1 << 20))
            }),
            unit: Unit::MiB,
            target: RESIDENT_MIB,
            versus: format!("a bound; largest resident set of the tool{run}"),
        });
    }

    /// What stays unexplained of the planted programs: the worst of them.
    pub fn planted(&mut self, cpus: u32, measured: &Result<Vec<Case>, String>) {
        let worst = measured.as_ref().map_err(Clone::clone).and_then(|cases| {
            let share = |case: &Case| Some((case.sweep.unexplained()?, case.name));
            let shares = cases.iter().filter_map(share);
            let worst = shares.max_by(|a, b| a.0.total_cmp(&b.0));
            worst.ok_or_else(|| "the result has no stack".to_owned())
        });
        let of = worst.as_ref().map_or("", |(_, name)| name);
        self.unexplained.push(Figure {
            name: "unexplained: planted, worst of 6".to_owned(),
            unit: Unit::Capacity,
            target: UNEXPLAINED,
            versus: format!("{cpus} CPUs x wall time of the runs of {of} with the probe"),
            value: worst.map(|(share, _)| share),
        });
    }

    /// What the probe takes of the CPUs while a program runs, by account; tells it.
    pub fn takes(
        &mut self,
        program: &Program,
        cpus: u32,
        accounts: &Result<Vec<Round>, String>,
    ) -> Option<f64> {
        let rounds = accounts.as_ref().map_err(Clone::clone);
        let share = rounds.and_then(|rounds| {
            taken_share(rounds, Watcher::Amdahl, cpus)
                .ok_or_else(|| "there was no round".to_owned())
        });
        let share = share.map(|median| median.value);
        let taken = share.as_ref().ok().copied();
        let what = "CPU time of its BPF programs, of the interrupts of its samples and its own / all CPU time while the program runs";
        self.takes.push(Figure {
            name: format!("probe takes: {}", program.name),
            unit: Unit::Capacity,
            target: Target::AtMost(program.cost_max - 1.0),
            versus: what.to_owned(),
            value: share,
        });
        taken
    }

    /// What the probe costs a program; `taken` is what it takes by account.
    pub fn cost(
        &mut self,
        program: &Program,
        taken: Option<f64>,
        rounds: &Result<Vec<Round>, String>,
    ) {
        let ratio = ratio(rounds, Watcher::Amdahl, Watcher::Nobody);
        let target = beside_nobody(program.cost_max, ratio.as_ref().ok(), taken);
        self.costs.push(cost(
            format!("probe cost: {}", program.name),
            ratio,
            target,
            format!(
                "wall time with the probe / with no tool there, all CPUs{}",
                fastest(rounds, Watcher::Amdahl, Watcher::Nobody)
            ),
        ));
    }

    /// The same in relation to what another tool costs. `missing`: why that one is not there.
    ///
    /// Cost is compared at equal or more information. The other tools record events alone; so ours does beside them, and what
    /// samples of running code cost besides is stated. Beside one that takes samples too it does as ever.
    pub fn rival(
        &mut self,
        program: &Program,
        rival: Watcher,
        missing: Option<String>,
        rounds: &Result<Vec<Round>, String>,
    ) {
        let command = rival.name();
        let own = ratio(rounds, rival, Watcher::Nobody);
        let own = own.map_or_else(
            |_| String::new(),
            |own| format!("; {command} itself costs {:.3}", own.value),
        );
        let mut row = |ours: Watcher, what: &str, is_equal: bool| {
            let ratio = match &missing {
                Some(why) => Err(why.clone()),
                None => ratio(rounds, ours, rival),
            };
            let target = match is_equal {
                true => beside_another(ratio.as_ref().ok(), None),
                false => Target::Stated,
            };
            self.rivals.push(cost(
                format!("{what} / {command} cost: {}", program.name),
                ratio,
                target,
                format!(
                    "wall time under {} / under {command} in the same round{own}{}",
                    ours.name(),
                    fastest(rounds, ours, rival)
                ),
            ));
        };
        let equal = rival.ours();
        let mut row_of = |ours, what| row(ours, what, equal == Some(ours));
        if equal != Some(Watcher::Amdahl) {
            row_of(Watcher::AmdahlEvents, "events cost");
        }
        row_of(Watcher::Amdahl, "probe cost");
    }
}

fn figure_of(
    swept: &Result<Sweep, String>,
    figure: impl Fn(&Sweep) -> Option<f64>,
) -> Result<f64, String> {
    let sweep = swept.as_ref().map_err(Clone::clone)?;
    figure(sweep).ok_or_else(|| "the result has no stack".to_owned())
}

fn said(swept: &Result<Sweep, String>, say: impl Fn(&Sweep) -> String) -> String {
    swept.as_ref().map_or_else(|_| String::new(), say)
}

fn ratio(
    rounds: &Result<Vec<Round>, String>,
    watcher: Watcher,
    other: Watcher,
) -> Result<Median, String> {
    let rounds = rounds.as_ref().map_err(Clone::clone)?;
    wall_ratio(rounds, watcher, other).ok_or_else(|| "there was no round".to_owned())
}

fn fastest(rounds: &Result<Vec<Round>, String>, ours: Watcher, other: Watcher) -> String {
    let ratio = rounds
        .as_ref()
        .ok()
        .and_then(|rounds| fastest_ratio(rounds, ours, other));
    ratio.map_or_else(String::new, |ratio| {
        format!("; fastest against fastest {ratio:.3}")
    })
}

fn cost(name: String, ratio: Result<Median, String>, target: Target, what: String) -> Figure {
    Figure {
        name,
        unit: Unit::Ratio,
        target,
        versus: match &ratio {
            Ok(median) => median.versus(&what, target),
            Err(_) => what,
        },
        value: ratio.map(|median| median.value),
    }
}
