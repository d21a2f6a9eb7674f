//! Results as JSON and as text.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::result::{Latency, RunResult};
use crate::time::{Ns, show};

/// Name and version of [`Document`].
pub const SCHEMA: &str = "amdahl.sim/1";

/// What `amdahl sim run --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the program.
    pub amdahl_version: String,
    /// The runs: all seeds of the first policy, then those of the next one. Reproducible to the bit.
    pub runs: Vec<RunResult>,
    /// What simulating each of them took: of the machine that did it.
    pub host: Vec<HostRow>,
}

/// What simulating a run took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRow {
    /// Time.
    pub wall_s: f64,
    /// Events in a second.
    pub events_per_s: f64,
    /// Simulated seconds in a second.
    pub simulated_s_per_s: f64,
}

impl HostRow {
    /// Of a run that took `wall_s`.
    pub fn new(run: &RunResult, wall_s: f64) -> HostRow {
        let each = |sum: f64| if wall_s > 0.0 { sum / wall_s } else { 0.0 };
        HostRow {
            wall_s,
            events_per_s: each(run.events as f64),
            simulated_s_per_s: each(run.makespan_ns as f64 / 1e9),
        }
    }
}

impl Document {
    /// Of runs, and what each took.
    pub fn new(amdahl_version: &str, runs: Vec<RunResult>, host: Vec<HostRow>) -> Document {
        Document {
            schema: SCHEMA.to_owned(),
            amdahl_version: amdahl_version.to_owned(),
            runs,
            host,
        }
    }
}

/// Middle value; the mean of the two in the middle.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Columns that are as wide as needed; the first one to the left.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(line, "  {cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|&cell| cell.to_owned()).collect()
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// The runs of each policy, in order.
fn policies(runs: &[RunResult]) -> Vec<(&str, Vec<&RunResult>)> {
    let mut groups: Vec<(&str, Vec<&RunResult>)> = vec![];
    for run in runs {
        match groups.last_mut() {
            Some((policy, group))
                if *policy == run.policy && !group.iter().any(|other| other.seed == run.seed) =>
            {
                group.push(run)
            }
            _ => groups.push((&run.policy, vec![run])),
        }
    }
    groups
}

/// The document as a person reads it: policies beside each other, then details of each one's first run.
pub fn report(document: &Document) -> String {
    let Some(first) = document.runs.first() else {
        return "No run was finished.\n".to_owned();
    };
    let groups = policies(&document.runs);
    let mut text = format!(
        "{} on {} ({} CPUs), costs: {}\n",
        first.workload, first.machine, first.cpus, first.costs
    );
    let params: Vec<String> = first
        .params
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if !params.is_empty() {
        let _ = writeln!(text, "{}", params.join(" "));
    }
    let seeds = groups[0].1.len();
    let _ = match seeds {
        1 => writeln!(text, "seed {}\n", first.seed),
        n => writeln!(text, "medians of {n} runs, seeds {} and on\n", first.seed),
    };
    let mut rows = vec![row(&[
        "policy",
        "makespan",
        "spread",
        "speed-up",
        "busy",
        "search",
        "wake-up p50",
        "p99",
        "p99.9",
        "steals",
        "migrations",
        "idle entries",
    ])];
    let of = |group: &[&RunResult], figure: &dyn Fn(&RunResult) -> f64| {
        median(group.iter().map(|run| figure(run)))
    };
    let base = of(&groups[0].1, &|run| run.makespan_ns as f64);
    for (policy, group) in &groups {
        let makespan = of(group, &|run| run.makespan_ns as f64);
        let least = group.iter().map(|run| run.makespan_ns).min().unwrap_or(0);
        let most = group.iter().map(|run| run.makespan_ns).max().unwrap_or(0);
        let count = |figure: &dyn Fn(&RunResult) -> f64| format!("{:.0}", of(group, figure));
        let time = |figure: &dyn Fn(&RunResult) -> f64| show(of(group, figure) as Ns);
        rows.push(vec![
            (*policy).to_owned(),
            show(makespan as Ns),
            if makespan > 0.0 {
                percent((most - least) as f64 / makespan)
            } else {
                String::new()
            },
            if makespan > 0.0 {
                format!("{:.3}", base / makespan)
            } else {
                String::new()
            },
            percent(of(group, &|run| run.busy)),
            percent(of(group, &|run| run.search)),
            time(&|run| run.wakeup_ns.p50 as f64),
            time(&|run| run.wakeup_ns.p99 as f64),
            time(&|run| run.wakeup_ns.p999 as f64),
            count(&|run| run.sched.steals as f64),
            count(&|run| run.migrations() as f64),
            count(&|run| run.sched.idle_entries as f64),
        ]);
    }
    text += &table(&rows);
    for (policy, group) in &groups {
        details(&mut text, policy, group[0]);
    }
    for run in document.runs.iter().filter(|run| !run.is_complete()) {
        let _ = writeln!(
            text,
            "\n{}, seed {}: ended by {} after {}",
            run.policy,
            run.seed,
            run.end,
            show(run.makespan_ns)
        );
        run.why.iter().for_each(|line| {
            let _ = writeln!(text, "  {line}");
        });
    }
    let rate = |figure: fn(&HostRow) -> f64| median(document.host.iter().map(figure));
    if !document.host.is_empty() {
        let _ = writeln!(
            text,
            "\nSimulated {:.3} s per second and thread of this machine, {:.1} million events/s.",
            rate(|host| host.simulated_s_per_s),
            rate(|host| host.events_per_s) / 1e6
        );
    }
    text
}

fn details(text: &mut String, policy: &str, run: &RunResult) {
    let _ = writeln!(text, "\n{policy}, seed {}", run.seed);
    let total: Ns = run.used_ns.values().sum();
    let used: Vec<String> = run
        .used_ns
        .iter()
        .map(|(name, &ns)| format!("{name} {}", percent(ns as f64 / total.max(1) as f64)))
        .collect();
    let _ = writeln!(text, "  CPU time: {}", used.join(", "));
    let migrations = &run.sched.migrations;
    let _ = writeln!(
        text,
        "  {} switches, {} wake-ups, {} preemptions; migrations within core {}, LLC {}, node {}, between nodes {}",
        run.sched.switches,
        run.sched.wakeups,
        run.sched.preemptions,
        migrations.core,
        migrations.llc,
        migrations.node,
        migrations.remote
    );
    let seconds = run.makespan_ns as f64 / 1e9;
    for (name, count) in &run.counters {
        let _ = writeln!(
            text,
            "  {name}: {count}, {:.1} a second",
            *count as f64 / seconds.max(1e-9)
        );
    }
    if !run.histograms.is_empty() {
        let mut rows = vec![row(&[
            "time", "count", "mean", "p50", "p99", "p99.9", "max",
        ])];
        for (
            name,
            Latency {
                count,
                mean,
                p50,
                p99,
                p999,
                max,
                ..
            },
        ) in &run.histograms
        {
            rows.push(vec![
                name.clone(),
                count.to_string(),
                show(*mean as Ns),
                show(*p50),
                show(*p99),
                show(*p999),
                show(*max),
            ]);
        }
        *text += &table(&rows);
    }
    let mut rows = vec![row(&[
        "task",
        "count",
        "ran",
        "spun",
        "waited",
        "slept",
        "switches",
        "migrations",
    ])];
    for task in &run.tasks {
        rows.push(vec![
            task.name.clone(),
            task.count.to_string(),
            show(task.ran_ns),
            show(task.spun_ns),
            show(task.waited_ns),
            show(task.slept_ns),
            task.switches.to_string(),
            task.migrations.to_string(),
        ]);
    }
    *text += &table(&rows);
    if run.locks.iter().any(|lock| lock.contended > 0) {
        let mut rows = vec![row(&[
            "lock",
            "taken",
            "waited for",
            "waits",
            "longest",
            "held",
            "handed over",
        ])];
        for lock in &run.locks {
            rows.push(vec![
                lock.lock.clone(),
                lock.acquired.to_string(),
                lock.contended.to_string(),
                show(lock.waited_ns),
                show(lock.waited_ns_max),
                show(lock.held_ns),
                show(lock.handed_ns),
            ]);
        }
        *text += &table(&rows);
    }
    if run.sched.affinity_broken > 0 {
        let _ = writeln!(
            text,
            "  {} tasks may run anywhere since all CPUs of their masks went offline",
            run.sched.affinity_broken
        );
    }
}
