//! What is taken from runs.

use std::str::FromStr;

use amdahl_des::RunResult;

/// A measure of a run: a sum, or one divided by another. Sums grow in proportion to the length of a run, so they are
/// what is extrapolated.
#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    MakespanS,
    BusyPercent,
    SearchPercent,
    StealsPerCpu,
    IdleEntriesPerCpu,
    WakeupsPerCpu,
    Examined,
    /// A counter of the workload, a second. Of one that it does not have, as of such a stopwatch, not a number: never near.
    Rate(String),
    /// CPU time of some uses, in seconds, and as a share of all.
    UsedS(Vec<String>),
    UsedPercent(Vec<String>),
    /// From wake-up to running, us.
    WakeupP99Us,
    /// The 99th percentile of a stopwatch, us.
    P99Us(String),
}

impl FromStr for Measure {
    type Err = String;

    fn from_str(text: &str) -> Result<Measure, String> {
        let (word, of) = text.split_once(' ').unwrap_or((text, ""));
        let uses = || of.split('+').map(str::to_owned).collect();
        Ok(match (word, of) {
            ("makespan_s", "") => Measure::MakespanS,
            ("busy_percent", "") => Measure::BusyPercent,
            ("search_percent", "") => Measure::SearchPercent,
            ("steals_per_cpu", "") => Measure::StealsPerCpu,
            ("idle_entries_per_cpu", "") => Measure::IdleEntriesPerCpu,
            ("wakeups_per_cpu", "") => Measure::WakeupsPerCpu,
            ("examined", "") => Measure::Examined,
            ("wakeup_p99_us", "") => Measure::WakeupP99Us,
            ("rate", name) if !name.is_empty() => Measure::Rate(name.to_owned()),
            ("p99_us", name) if !name.is_empty() => Measure::P99Us(name.to_owned()),
            ("used_s", name) if !name.is_empty() => Measure::UsedS(uses()),
            ("used_percent", name) if !name.is_empty() => Measure::UsedPercent(uses()),
            _ => return Err(format!("there is no measure `{text}`")),
        })
    }
}

fn seconds(result: &RunResult) -> f64 {
    result.makespan_ns as f64 / 1e9
}

fn used(result: &RunResult, uses: &[String]) -> f64 {
    let ns = uses.iter().filter_map(|name| result.used_ns.get(name));
    ns.sum::<u64>() as f64 / 1e9
}

impl Measure {
    /// By the runs of each length, one for each seed; `lengths` are short, long and full.
    pub fn of(&self, runs: &[Vec<RunResult>], lengths: Option<[f64; 3]>) -> f64 {
        let full = |of: &dyn Fn(&RunResult) -> f64| match (lengths, runs) {
            (Some([at_short, at_long, full]), [short, long]) => {
                let [short, long] = [short, long].map(|results| median(results, of));
                // Beginning and end are the same: what the longer one has more is what goes on in between.
                short + (long - short) / (at_long - at_short) * (full - at_short)
            }
            _ => median(&runs[0], of),
        };
        let cpus = f64::from(runs[0][0].cpus);
        match self {
            Measure::MakespanS => full(&seconds),
            Measure::BusyPercent => full(&|r| r.busy * 100.0 * seconds(r)) / full(&seconds),
            Measure::SearchPercent => full(&|r| r.search * 100.0 * seconds(r)) / full(&seconds),
            Measure::StealsPerCpu => full(&|r| r.sched.steals as f64) / cpus,
            Measure::IdleEntriesPerCpu => full(&|r| r.sched.idle_entries as f64) / cpus,
            Measure::WakeupsPerCpu => full(&|r| r.sched.wakeups as f64) / cpus,
            Measure::Examined => full(&|r| r.sched.examined as f64),
            Measure::Rate(name) => {
                let count = |r: &RunResult| r.counters.get(name).map_or(f64::NAN, |&n| n as f64);
                full(&|r| count(r) / seconds(r))
            }
            Measure::UsedS(uses) => full(&|r| used(r, uses)),
            Measure::UsedPercent(uses) => {
                full(&|r| used(r, uses) * 100.0) / (full(&seconds) * cpus)
            }
            Measure::WakeupP99Us => full(&|r| r.wakeup_ns.p99 as f64 / 1000.0),
            Measure::P99Us(name) => full(&|r| {
                let of = r.histograms.get(name);
                of.map_or(f64::NAN, |latency| latency.p99 as f64 / 1000.0)
            }),
        }
    }
}

fn median(results: &[RunResult], of: &dyn Fn(&RunResult) -> f64) -> f64 {
    amdahl_des::median(results.iter().map(of))
}
