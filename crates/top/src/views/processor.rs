//! What each CPU does.

use amdahl_report::sched::schema::{CpuEntry, SchedResult, WastedPair};

use super::sched::reason;
use crate::grid::{Cell, Column, Grid, Row};
use crate::layout::seconds_text;

pub static COLUMNS: &[Column] = &[
    Column::figure("cpu", 4, 0, "its number"),
    Column::figure("run", 7, 2, "time that threads ran on it"),
    Column::figure("idle", 7, 1, "time that nobody did"),
    Column::figure("wasted", 7, 0, "of that, while a thread waited elsewhere"),
    Column::text(
        "why",
        9,
        1,
        "the commonest reason: affinity, wake-up (placed on a busy CPU), balancing (nobody moved the thread), \
         transient (for less than a tick)",
    ),
    Column::figure(
        "overl",
        7,
        4,
        "time with a thread that waited beside the one that ran",
    ),
    Column::figure("switches", 8, 3, "from one thread to another"),
    Column::figure(
        "preempt",
        7,
        6,
        "of these, how many took the CPU from a thread",
    ),
    Column::figure("p99", 7, 5, "99 of 100 waits for this CPU are not longer"),
    Column::figure(
        "queue",
        6,
        7,
        "the most threads that waited in its queue at a time",
    ),
    Column::figure("steal", 7, 3, "in a guest: what the hypervisor took of it"),
];

/// Time for which `cpu` idled in vain, by reason, the longest first.
fn reasons(result: &SchedResult, cpu: u32) -> Vec<(&str, f64)> {
    let mut reasons: Vec<(&str, f64)> = Vec::new();
    for pair in result
        .wasted
        .pairs
        .iter()
        .filter(|pair| pair.idle_cpu == cpu)
    {
        let known = reasons.iter_mut().find(|(known, _)| *known == pair.reason);
        match known {
            Some((_, seconds)) => *seconds += pair.total_s,
            None => reasons.push((pair.reason.as_str(), pair.total_s)),
        }
    }
    reasons.sort_by(|a, b| b.1.total_cmp(&a.1));
    reasons
}

fn steal(result: &SchedResult, cpu: u32) -> f64 {
    let entry = result.steal.iter().find(|entry| entry.cpu == cpu);
    entry.map_or(0.0, |entry| entry.steal_s)
}

pub fn grid(result: &SchedResult) -> Grid {
    let has_events = result.has_events();
    let told = |cell: Cell| if has_events { cell } else { Cell::Unknown };
    let rows = result.cpus.iter().enumerate();
    let rows = rows.map(|(index, cpu)| {
        let why = reasons(result, cpu.cpu)
            .first()
            .map_or("", |(why, _)| reason(why));
        Row {
            key: cpu.cpu.to_string(),
            cells: vec![
                Cell::Number(cpu.cpu.into()),
                Cell::Seconds(cpu.run_s),
                Cell::Seconds(cpu.idle_s),
                told(Cell::Seconds(cpu.idle_wasted_s)),
                Cell::text(why),
                told(Cell::Seconds(cpu.overloaded_s)),
                told(Cell::Count(cpu.switches)),
                told(Cell::Count(cpu.preemptions)),
                told(Cell::Seconds(cpu.latency.p99_s)),
                told(Cell::Count(cpu.queue_max)),
                Cell::Seconds(steal(result, cpu.cpu)),
            ],
            index,
            is_faint: false,
        }
    });
    Grid {
        columns: COLUMNS,
        rows: rows.collect(),
    }
}

pub fn detail(result: &SchedResult, index: usize) -> Vec<(usize, String)> {
    let Some(cpu) = result.cpus.get(index) else {
        return Vec::new();
    };
    let mut lines = vec![
        (0, format!("CPU {}", cpu.cpu)),
        (0, String::new()),
        (0, times(result, cpu)),
    ];
    if !result.has_events() {
        return lines;
    }
    let latency = &cpu.latency;
    lines.push((
        0,
        format!(
            "{} switches, {} of them preemptions; {} threads waited in its queue on average, {} at most; \
             {} waits: p50 {}, p99 {}, longest {}",
            cpu.switches,
            cpu.preemptions,
            amdahl_report::number::estimate(cpu.queue_mean),
            cpu.queue_max,
            latency.count,
            seconds_text(latency.p50_s),
            seconds_text(latency.p99_s),
            seconds_text(latency.max_s)
        ),
    ));
    let pairs = &result.wasted.pairs;
    let idle: Vec<&WastedPair> = pairs
        .iter()
        .filter(|pair| pair.idle_cpu == cpu.cpu)
        .collect();
    let busy: Vec<&WastedPair> = pairs
        .iter()
        .filter(|pair| pair.busy_cpu == cpu.cpu)
        .collect();
    for (title, pairs, other) in [
        ("It idled while threads waited for:", idle, true),
        ("Threads waited for it while these idled:", busy, false),
    ] {
        if pairs.is_empty() {
            continue;
        }
        lines.push((0, String::new()));
        lines.push((0, title.to_owned()));
        lines.extend(pairs.iter().take(20).map(|pair| {
            let cpu = if other { pair.busy_cpu } else { pair.idle_cpu };
            let text = format!(
                "CPU {cpu}: {} by {}, {} times, longest {}",
                seconds_text(pair.total_s),
                reason(&pair.reason),
                pair.stretches,
                seconds_text(pair.longest_s)
            );
            (2, amdahl_report::plain::plain(&text))
        }));
    }
    lines
}

fn times(result: &SchedResult, cpu: &CpuEntry) -> String {
    let mut text = format!(
        "busy {}, idle {}",
        seconds_text(cpu.run_s),
        seconds_text(cpu.idle_s)
    );
    if result.has_events() {
        text += &format!(
            ", {} of it while threads waited elsewhere; overloaded {}",
            seconds_text(cpu.idle_wasted_s),
            seconds_text(cpu.overloaded_s)
        );
    }
    text + &format!(
        "; the hypervisor took {}",
        seconds_text(steal(result, cpu.cpu))
    )
}
