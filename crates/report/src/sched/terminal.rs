//! A result of `amdahl sched` as text for a terminal.

use std::collections::BTreeMap;

use super::schema::{ChainEntry, Latency, Migrations, SchedResult};
use crate::number::{percent, seconds, significant};
use crate::plain::{command_line, elide};
use crate::terminal::page::{Page, bold, dim, text};
use crate::terminal::table::{self, Column};
use crate::terminal::{Style, machine_line};

const THREADS: usize = 20;
const CPUS: usize = 16;
const PAIRS: usize = 8;
const WAKERS: usize = 10;
const CHAINS: usize = 3;
const LINKS: usize = 8;
const GUESTS: usize = 32;

/// What was found, in sentences; also the head of the page.
pub(crate) fn headline(result: &SchedResult) -> (String, String) {
    let cpus = result.cpus.len();
    let waited = result.wake_latency.total_s + result.preempt_latency.total_s;
    let (wasted, lasting) = (result.wasted.total_s(), result.wasted.lasting_s());
    let limit = short(result.wasted.brief_limit_s);
    let capacity = result.wall_s * cpus as f64;
    // Without events only the sums per thread are known.
    if !result.has_events() {
        let waited: f64 = result.threads.iter().map(|row| row.wait_s).sum();
        return (
            format!("Threads waited {} for a CPU.", seconds(waited)),
            String::new(),
        );
    }
    let first = format!(
        "Threads waited {} for one of {cpus} CPU{}; 99 of 100 woken ones ran within {}.",
        seconds(waited),
        if cpus == 1 { "" } else { "s" },
        short(result.wake_latency.p99_s),
    );
    let second = if wasted <= 0.0 {
        "No CPU idled while a thread waited elsewhere.".to_owned()
    } else if lasting <= 0.0 {
        format!(
            "No CPU idled for {limit} or longer while a thread waited elsewhere; shorter turns are {} together.",
            short(wasted),
        )
    } else {
        let share = if capacity > 0.0 {
            lasting / capacity
        } else {
            0.0
        };
        let brief = match result.wasted.brief_s {
            brief if brief > 0.0 => format!(", and {} in shorter turns", short(brief)),
            _ => String::new(),
        };
        let turns = match result.wasted.brief_limit_s {
            0.0 => String::new(),
            _ => format!(" in turns of {limit} or longer"),
        };
        format!(
            "CPUs idled for {}{turns} while threads waited elsewhere: {} of the machine{brief}.",
            seconds(lasting),
            percent(share),
        )
    };
    (first, second)
}

/// The whole result, at most `width` columns wide (clamped to 40..=200). Foreign text in it is
/// free of control characters.
pub fn render(result: &SchedResult, width: usize, style: Style) -> String {
    let mut page = Page::new(width, style);
    let (first, second) = headline(result);
    page.paragraph(0, 0, &[bold(first)]);
    if !second.is_empty() {
        page.paragraph(0, 0, &[text(second)]);
    }
    page.blank();
    let command = elide(&command_line(&result.command), 400, page.ellipsis());
    page.paragraph(0, 2, &[dim(command)]);
    page.paragraph(0, 2, &[dim(machine_line(&result.machine))]);
    latencies(&mut page, result);
    wasted(&mut page, result);
    cpus(&mut page, result);
    threads(&mut page, result);
    guests(&mut page, result);
    wakers(&mut page, result);
    chains(&mut page, result);
    migrations(&mut page, result);
    notices(&mut page, result);
    page.finish()
}

fn latencies(page: &mut Page, result: &SchedResult) {
    let rows: Vec<Vec<String>> = [
        ("after a wake-up", &result.wake_latency),
        ("after a preemption", &result.preempt_latency),
        ("time slice", &result.slices),
    ]
    .into_iter()
    .filter(|(_, latency)| latency.count > 0)
    .map(|(name, latency)| {
        let mut row = vec![name.to_owned(), latency.count.to_string()];
        row.extend(quantiles(latency));
        row
    })
    .collect();
    if rows.is_empty() {
        return;
    }
    page.heading("Run queue latency");
    let columns = [
        Column::new("", false, 0),
        Column::new("count", true, 3),
        Column::new("mean", true, 1),
        Column::new("p50", true, 0),
        Column::new("p90", true, 2),
        Column::new("p99", true, 0),
        Column::new("max", true, 0),
    ];
    table::draw(page, &columns, &rows);
    let totals = &result.totals;
    let per_s = |count: u64| significant(count as f64 / result.wall_s.max(1e-9));
    page.paragraph(
        0,
        2,
        &[dim(format!(
            "{} switches/s, {} of them preemptions; {} wake-ups/s, {} new threads, {} migrations.",
            per_s(totals.switches),
            percent(totals.preemptions as f64 / totals.switches.max(1) as f64),
            per_s(totals.wakeups),
            totals.forks,
            totals.migrations,
        ))],
    );
}

fn quantiles(latency: &Latency) -> [String; 5] {
    [
        latency.mean_s,
        latency.p50_s,
        latency.p90_s,
        latency.p99_s,
        latency.max_s,
    ]
    .map(short)
}

/// Three digits are enough for a latency.
pub(crate) fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let (scaled, unit) = match value.abs() {
        v if v >= 1.0 => (value, "s"),
        v if v >= 1e-3 => (value * 1e3, "ms"),
        v if v >= 1e-6 => (value * 1e6, "µs"),
        _ => return format!("{:.0}\u{a0}ns", value * 1e9),
    };
    let digits = match scaled.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$}\u{a0}{unit}")
}

/// What each reason means and what to do.
pub(crate) const REASONS: [(&str, &str); 4] = [
    (
        "affinity",
        "the thread may not run on any CPU that idled: widen its affinity or spread the threads",
    ),
    (
        "placement",
        "the thread was woken onto a busy queue while another CPU was idle",
    ),
    (
        "balancing",
        "a CPU went idle, and nobody moved a waiting thread there for more than a tick",
    ),
    (
        "transient",
        "the same for less than a tick, which no balancing could be quicker than",
    ),
];

fn wasted(page: &mut Page, result: &SchedResult) {
    let wasted = &result.wasted;
    if wasted.total_s() <= 0.0 {
        return;
    }
    page.heading("Wasted: a CPU idled while a thread waited elsewhere");
    let sums = REASONS.into_iter().zip(wasted.by_reason());
    for ((name, why), (_, sum)) in sums.filter(|(_, (_, sum))| *sum > 0.0) {
        let line = [bold(format!("{name:<10}{:>10}  ", short(sum))), text(why)];
        page.paragraph(0, 22, &line);
    }
    if wasted.brief_s > 0.0 {
        let why = format!(
            "of it in turns shorter than {}",
            short(wasted.brief_limit_s)
        );
        let line = [
            bold(format!("{:<10}{:>10}  ", "brief", short(wasted.brief_s))),
            text(why),
        ];
        page.paragraph(0, 22, &line);
    }
    page.blank();
    let columns = [
        Column::new("idle CPU", true, 0),
        Column::new("busy CPU", true, 0),
        Column::new("why", false, 0),
        Column::new("time", true, 0),
        Column::new("stretches", true, 2),
        Column::new("longest", true, 1),
    ];
    let rows: Vec<Vec<String>> = wasted
        .pairs
        .iter()
        .take(PAIRS)
        .map(|pair| {
            vec![
                pair.idle_cpu.to_string(),
                pair.busy_cpu.to_string(),
                elide(&pair.reason, 12, "..."),
                short(pair.total_s),
                pair.stretches.to_string(),
                short(pair.longest_s),
            ]
        })
        .collect();
    table::draw(page, &columns, &rows);
    more(page, wasted.pairs.len(), PAIRS, "pairs of CPUs");
}

fn more(page: &mut Page, all: usize, shown: usize, what: &str) {
    if all > shown {
        page.paragraph(0, 2, &[dim(format!("and {} more {what}", all - shown))]);
    }
}

fn cpus(page: &mut Page, result: &SchedResult) {
    if result.cpus.is_empty() {
        return;
    }
    page.heading("CPUs");
    let columns = [
        Column::new("CPU", true, 0),
        Column::new("busy", true, 0),
        Column::new("wasted idle", true, 1),
        Column::new("overloaded", true, 3),
        Column::new("queue", true, 2),
        Column::new("max", true, 5),
        Column::new("switches/s", true, 4),
        Column::new("preempt/s", true, 6),
        Column::new("p99 wait", true, 1),
        Column::new("steal", true, 1),
    ];
    let steal: BTreeMap<u32, f64> = result
        .steal
        .iter()
        .map(|entry| (entry.cpu, entry.steal_s))
        .collect();
    // Empty everywhere, and so no column, where there is no hypervisor that takes any.
    let steal = |cpu: u32| match steal.get(&cpu) {
        Some(&s) => percent(s / result.wall_s.max(1e-9)),
        None => String::new(),
    };
    let wall = result.wall_s.max(1e-9);
    let mut order: Vec<usize> = (0..result.cpus.len()).collect();
    if order.len() > CPUS {
        order.sort_by(|&a, &b| {
            result.cpus[b]
                .idle_wasted_s
                .total_cmp(&result.cpus[a].idle_wasted_s)
        });
        order.truncate(CPUS);
    }
    let rows: Vec<Vec<String>> = order
        .into_iter()
        .map(|i| {
            let cpu = &result.cpus[i];
            vec![
                cpu.cpu.to_string(),
                percent(cpu.run_s / wall),
                percent(cpu.idle_wasted_s / wall),
                percent(cpu.overloaded_s / wall),
                format!("{:.2}", cpu.queue_mean),
                cpu.queue_max.to_string(),
                significant((cpu.switches as f64 / wall).round()),
                significant((cpu.preemptions as f64 / wall).round()),
                short(cpu.latency.p99_s),
                steal(cpu.cpu),
            ]
        })
        .collect();
    table::draw(page, &columns, &rows);
    more(page, result.cpus.len(), CPUS, "CPUs, with less wasted time");
}

fn threads(page: &mut Page, result: &SchedResult) {
    if result.threads.is_empty() {
        return;
    }
    page.heading("Threads");
    let columns = [
        Column::new("thread", false, 0),
        Column::new("tid", true, 4),
        Column::new("ran", true, 0),
        Column::new("waited", true, 0),
        Column::new("p99", true, 1),
        Column::new("max", true, 2),
        Column::new("slice", true, 5),
        Column::new("preempted", true, 3),
        Column::new("moved", true, 6),
    ];
    let rows: Vec<Vec<String>> = result
        .threads
        .iter()
        .take(THREADS)
        .map(|thread| {
            let (wake, preempt) = (&thread.wake_latency, &thread.preempt_latency);
            let has_events = result.has_events();
            let figure = |text: String| if has_events { text } else { String::new() };
            vec![
                elide(&thread.name, 18, page.ellipsis()),
                match thread.tid {
                    0 => format!("{} gone", thread.threads),
                    tid => tid.to_string(),
                },
                short(thread.run_s),
                short(thread.wait_s),
                figure(short(wake.p99_s.max(preempt.p99_s))),
                figure(short(wake.max_s.max(preempt.max_s))),
                figure(short(thread.slices.mean_s)),
                figure(thread.preempted.to_string()),
                figure(thread.migrations.total().to_string()),
            ]
        })
        .collect();
    table::draw(page, &columns, &rows);
    let elsewhere = result.threads_elsewhere.threads as usize;
    more(page, result.threads.len() + elsewhere, THREADS, "threads");
}

fn guests(page: &mut Page, result: &SchedResult) {
    if !result.guests.is_empty() {
        page.heading("CPUs of guests");
        let columns = [
            Column::new("guest", false, 0),
            Column::new("pid", true, 2),
            Column::new("CPU", true, 0),
            Column::new("ran", true, 0),
            Column::new("in queues", true, 0),
            Column::new("blocked", true, 0),
            Column::new("phantom", true, 1),
            Column::new("p99", true, 4),
            Column::new("longest", true, 3),
            Column::new("preempted", true, 5),
        ];
        let rows: Vec<Vec<String>> = result
            .guests
            .iter()
            .take(GUESTS)
            .map(|guest| {
                let phantom = guest.phantom_s + guest.blocked_s;
                let wanted = guest.run_s + phantom;
                vec![
                    elide(&guest.vmm, 16, page.ellipsis()),
                    guest.pid.to_string(),
                    guest
                        .guest_cpu
                        .map_or("?".to_owned(), |cpu| cpu.to_string()),
                    short(guest.run_s),
                    short(guest.phantom_s),
                    short(guest.blocked_s),
                    percent(if wanted > 0.0 { phantom / wanted } else { 0.0 }),
                    short(guest.phantom_p99_s),
                    short(guest.phantom_max_s),
                    guest.preempted.to_string(),
                ]
            })
            .collect();
        table::draw(page, &columns, &rows);
        more(page, result.guests.len(), GUESTS, "of them");
        let words = "Phantom time is what the guest believes its CPU to run while the thread waits in a run queue, or is \
                     blocked in the host: sleeps uninterruptibly, as one that the guest has halted does not.";
        page.paragraph(0, 2, &[dim(words)]);
    }
    let steal: f64 = result.steal.iter().map(|cpu| cpu.steal_s).sum();
    if steal > 0.0 {
        let most = result
            .steal
            .iter()
            .max_by(|a, b| a.steal_s.total_cmp(&b.steal_s));
        let most = most.map_or(String::new(), |cpu| {
            format!(", most of CPU {} ({})", cpu.cpu, short(cpu.steal_s))
        });
        let line = format!(
            "The hypervisor took {} of this guest's CPU time{most}.",
            short(steal)
        );
        page.blank();
        page.paragraph(0, 0, &[text(line)]);
    }
}

fn wakers(page: &mut Page, result: &SchedResult) {
    if result.wakers.is_empty() {
        return;
    }
    page.heading("Who wakes whom");
    let columns = [
        Column::new("waker", false, 0),
        Column::new("woken", false, 0),
        Column::new("per s", true, 0),
        Column::new("latency", true, 0),
        Column::new("max", true, 1),
        Column::new("to other LLC", true, 2),
    ];
    let wall = result.wall_s.max(1e-9);
    let rows: Vec<Vec<String>> = result
        .wakers
        .iter()
        .take(WAKERS)
        .map(|row| {
            vec![
                elide(&row.waker, 18, page.ellipsis()),
                elide(&row.woken, 18, page.ellipsis()),
                significant(row.count as f64 / wall),
                short(row.latency_mean_s),
                short(row.latency_max_s),
                row.to_other_llc.to_string(),
            ]
        })
        .collect();
    table::draw(page, &columns, &rows);
    more(page, result.wakers.len(), WAKERS, "pairs");
}

fn chains(page: &mut Page, result: &SchedResult) {
    if result.chains.is_empty() {
        return;
    }
    page.heading("Longest wake-up chains");
    for chain in result.chains.iter().take(CHAINS) {
        page.paragraph(
            0,
            4,
            &[
                bold(short(chain.total_s)),
                text(format!(" {}", chain_words(chain))),
            ],
        );
    }
}

/// A chain in words: who waited for how long and then worked for how long.
pub(crate) fn chain_words(chain: &ChainEntry) -> String {
    let mut words = match (chain.is_cut, chain.began_by.as_str()) {
        (true, _) => "... ".to_owned(),
        (false, "timer") => "timer > ".to_owned(),
        (false, "interrupt") => "interrupt > ".to_owned(),
        _ => String::new(),
    };
    let skipped = chain.links.len().saturating_sub(LINKS);
    if skipped > 0 {
        words += &format!("({skipped} more) > ");
    }
    let links = chain.links[skipped..].iter().map(|link| {
        let name = elide(&link.name, 18, "...");
        format!(
            "{name} {} (waited {}, active {})",
            link.tid,
            short(link.waited_s),
            short(link.active_s)
        )
    });
    words + &links.collect::<Vec<_>>().join(" > ")
}

/// Distances with their share, in words; also on the page.
pub(crate) fn migration_words(migrations: &Migrations) -> String {
    let all = migrations.total().max(1) as f64;
    let parts = [
        ("within a core", migrations.core),
        ("within a last-level cache", migrations.llc),
        ("within a node", migrations.node),
        ("across nodes", migrations.across),
        ("to CPUs not in the topology", migrations.unknown),
    ];
    let parts = parts.into_iter().filter(|(_, count)| *count > 0);
    let words =
        parts.map(|(what, count)| format!("{count} {what} ({})", percent(count as f64 / all)));
    words.collect::<Vec<_>>().join(", ")
}

fn migrations(page: &mut Page, result: &SchedResult) {
    if result.migrations.total() == 0 {
        return;
    }
    page.heading("Migrations");
    page.paragraph(0, 2, &[text(migration_words(&result.migrations))]);
}

fn notices(page: &mut Page, result: &SchedResult) {
    let missing = result
        .sources
        .iter()
        .filter(|source| !source.missing.is_empty());
    let totals = &result.totals;
    let mut notes: Vec<(String, String)> = missing
        .map(|source| {
            (
                source.what.clone(),
                format!("{} {}", source.missing, source.remedy),
            )
        })
        .collect();
    if totals.events_lost > 0 {
        let share = totals.events_lost as f64 / (totals.events + totals.events_lost).max(1) as f64;
        let words = format!(
            "{} events ({}) found their buffer full; what they would have told is missing from all figures.",
            totals.events_lost,
            percent(share)
        );
        notes.push(("lost".to_owned(), words));
    }
    if totals.events_refused > 0 {
        let words = format!(
            "{} events were left out, for there were more CPUs or living threads than there is room for; what they would have \
             told is missing from all figures.",
            totals.events_refused
        );
        notes.push(("refused".to_owned(), words));
    }
    if let Some(recording) = result
        .recording
        .as_ref()
        .filter(|recording| recording.events_dropped > 0)
    {
        let words = format!(
            "The oldest {} events gave way on disk; the figures above are of all of them, the file holds the last {}.",
            recording.events_dropped, recording.events
        );
        notes.push(("space".to_owned(), words));
    }
    notes.extend(
        result
            .warnings
            .iter()
            .map(|notice| (notice.code.clone(), notice.text.clone())),
    );
    if notes.is_empty() {
        return;
    }
    page.heading("To know about these figures");
    for (what, words) in notes {
        page.paragraph(
            0,
            2,
            &[bold(elide(&what, 40, "...")), text(format!(" {words}"))],
        );
    }
}
