//! What was seen, as a table, as lines, as JSON.

use std::fmt::Write;
use std::time::Duration;

use amdahl_phantom::{Estimate, Taken};
use amdahl_report::plain::{elide, plain};
use amdahl_report::schema::{Machine, Source};
use serde::Serialize;

use super::account::{Figure, Figures};
use super::host::Host;
use super::look::Found;
use crate::failure::Failure;
use crate::watch::machine;

/// Of the result.
const SCHEMA: &str = "amdahl.phantom/1";
/// Of a line of `--watch --json`.
const TICK_SCHEMA: &str = "amdahl.phantom-tick/1";
/// Rows of a result at most.
const TAKERS_MAX: usize = 1000;
/// What a terminal has at least.
const COLUMNS: usize = 80;

/// What is known before anything is seen.
pub struct About {
    /// The command, if there was one.
    pub command: Vec<String>,
    /// What was watched.
    pub target: String,
    /// When.
    pub started: String,
    /// By what.
    pub sources: Vec<Source>,
}

/// The documented result.
#[derive(Debug, Serialize)]
pub struct Outcome {
    schema: &'static str,
    amdahl_version: &'static str,
    started: String,
    machine: Machine,
    target: String,
    command: Vec<String>,
    partial: bool,
    seconds: f64,
    ticks: u64,
    interval_s: f64,
    allowed_cpus: f64,
    allowed_list: String,
    quota_cpus: Option<f64>,
    figures: Figures,
    host_page: Option<HostPage>,
    takers: Vec<Taker>,
    takers_are_of: &'static str,
    takers_left_out: usize,
    threads_lost: u64,
    sources: Vec<Source>,
}

/// What was made of the host's page.
#[derive(Debug, Serialize)]
struct HostPage {
    path: String,
    used: bool,
    why: String,
    used_s: f64,
    runnable_cpus: Option<Figure>,
    steal_by: &'static str,
    writer: Option<u32>,
    source: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Taker {
    name: String,
    processes: usize,
    pid: u32,
    cpus: f64,
}

/// Makes it of what was found.
pub fn result(about: &About, found: &Found, is_partial: bool) -> Outcome {
    let wall_s = found.wall.as_secs_f64().max(1e-9);
    let taker = |taken: &Taken| Taker {
        name: taken.name.clone(),
        processes: taken.processes,
        pid: taken.pid,
        cpus: taken.ns as f64 / 1e9 / wall_s,
    };
    let heard = found.account.host;
    let host_page = found.host.as_ref().map(|host| HostPage {
        path: host.path.clone(),
        used: host.said.is_ok(),
        why: host.said.err().map_or(String::new(), |why| why.to_string()),
        used_s: heard.seconds,
        runnable_cpus: (heard.seconds > 0.0).then_some(heard.runnable_cpus),
        steal_by: if heard.tells_steal { "host" } else { "guest" },
        writer: host.said.ok().map(|said| said.writer),
        source: host.said.ok().map(|said| said.source.name()),
    });
    let sources = about.sources.iter().cloned();
    Outcome {
        schema: SCHEMA,
        amdahl_version: env!("CARGO_PKG_VERSION"),
        started: about.started.clone(),
        machine: machine::describe(),
        target: about.target.clone(),
        command: about.command.clone(),
        partial: is_partial,
        seconds: wall_s,
        ticks: found.account.ticks,
        interval_s: found.interval.as_secs_f64(),
        allowed_cpus: found.account.allowed,
        allowed_list: found.cpus.clone(),
        quota_cpus: found.account.quota,
        figures: found.account.figures,
        host_page,
        takers: found.taken.iter().take(TAKERS_MAX).map(taker).collect(),
        takers_are_of: if found.is_of_allowed {
            "allowed CPUs"
        } else {
            "all CPUs"
        },
        takers_left_out: found.taken.len().saturating_sub(TAKERS_MAX),
        threads_lost: found.lost,
        sources: sources
            .chain(found.host.as_ref().map(Host::source))
            .collect(),
    }
}

/// As JSON, with a line end.
pub fn json(result: &Outcome) -> Result<String, Failure> {
    serde_json::to_string_pretty(result)
        .map(|text| text + "\n")
        .map_err(|error| Failure::result(error.to_string()))
}

/// As a table for people, within 80 columns.
pub fn table(result: &Outcome, found: &Found, rows: usize) -> String {
    let mut text = String::new();
    let whom = elide(&plain(&result.target), 40, "...");
    let how = result.sources.first().map_or("", |source| &source.how);
    let mut line = |args: std::fmt::Arguments<'_>| {
        let _ = text.write_fmt(args);
        text.push('\n');
    };
    line(format_args!(
        "{whom}: {:.1} s, {} looks, by {how}",
        result.seconds, result.ticks
    ));
    let list = elide(&plain(&result.allowed_list), 40, "...");
    line(format_args!(
        "  CPUs allowed {} ({list})",
        result.allowed_cpus
    ));
    if let Some(quota) = result.quota_cpus {
        line(format_args!(
            "  quota {quota:.2} CPUs; it held back {:.2} on average",
            result.figures.throttled.mean
        ));
    }
    if result.ticks == 0 {
        line(format_args!(
            "It was over before anything could be compared."
        ));
        return text;
    }
    line(format_args!(""));
    line(format_args!(
        "{:34}{:>8}{:>8}{:>8}",
        "", "mean", "min", "max"
    ));
    let f = &result.figures;
    let figures: [(&str, &Figure); 5] = [
        ("runnable CPUs", &f.runnable_cpus),
        ("running threads", &f.running),
        ("phantoms (could run, no CPU)", &f.phantom_avg),
        ("idle CPUs, for a while", &f.idle_avg),
        ("threads of others, runnable", &f.others_threads),
    ];
    for (name, figure) in figures {
        line(format_args!(
            "  {name:32}{:8.2}{:8.2}{:8.2}",
            figure.mean, figure.min, figure.max
        ));
    }
    if let Some(host) = &result.host_page
        && let Some(figure) = &host.runnable_cpus
    {
        line(format_args!(
            "  {:32}{:8.2}{:8.2}{:8.2}",
            "CPUs of the guest, by its host", figure.mean, figure.min, figure.max
        ));
    }
    line(format_args!(""));
    line(format_args!(
        "{:42}{:>8}{:>8}",
        "who had the allowed CPUs", "CPUs", "share"
    ));
    let mut row = |name: &str, cpus: f64| {
        let share = cpus / result.allowed_cpus.max(1.0) * 100.0;
        let name = elide(&plain(name), 40, "...");
        // Wide characters take two columns of a name that is at most 40.
        let pad = 40_usize.saturating_sub(columns(&name));
        line(format_args!("  {name}{:pad$}{cpus:8.2}{share:6.1} %", ""));
    };
    row(&result.target, f.running.mean);
    let shown = &result.takers[..result.takers.len().min(rows)];
    // Named processes are part of others only where both are of the same CPUs.
    if found.is_of_allowed && result.target != "the system" {
        let mut named = 0.0;
        for taker in shown {
            row(&name_of(taker), taker.cpus);
            named += taker.cpus;
        }
        if f.others.mean - named > 0.005 {
            row("others", f.others.mean - named);
        }
    } else if result.target != "the system" {
        row("others", f.others.mean);
    }
    let is_by_host = result
        .host_page
        .as_ref()
        .is_some_and(|host| host.steal_by == "host");
    row(
        if is_by_host {
            "steal, by the host's page"
        } else {
            "steal (the hypervisor)"
        },
        f.steal.mean,
    );
    row("nobody", f.idle.mean);
    line(format_args!(
        "  interrupts, in whatever they interrupted: {:.2}",
        f.interrupts.mean
    ));
    if (!found.is_of_allowed || result.target == "the system") && !shown.is_empty() {
        line(format_args!(""));
        let of = if result.target == "the system" {
            "who ran"
        } else {
            "who else ran, on all CPUs"
        };
        line(format_args!("{of:42}{:>8}", "CPUs"));
        for taker in shown {
            let name = elide(&plain(&name_of(taker)), 40, "...");
            let pad = 40_usize.saturating_sub(columns(&name));
            line(format_args!("  {name}{:pad$}{:8.2}", "", taker.cpus));
        }
    }
    if result.threads_lost > 0 {
        line(format_args!(
            "{} threads were not followed: there are too many.",
            result.threads_lost
        ));
    }
    for source in &result.sources {
        if !source.missing.is_empty() {
            line(format_args!(""));
            let words = format!("{} To get more: {}.", source.missing, source.remedy);
            for part in wrapped(&plain(&words)) {
                line(format_args!("{part}"));
            }
        }
    }
    text
}

fn name_of(taker: &Taker) -> String {
    match taker.processes {
        1 => format!("{} ({})", taker.name, taker.pid),
        n => format!("{} ({n} processes)", taker.name),
    }
}

/// Columns of a name without characters of no width.
fn columns(text: &str) -> usize {
    text.chars()
        .map(|c| 1 + usize::from(c as u32 >= 0x1100 && !c.is_ascii()))
        .sum()
}

/// Lines of at most 80 columns.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        if !line.is_empty() && line.len() + 1 + word.len() > COLUMNS {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// Prints a line at once. `false` if nobody reads any more.
pub fn line(text: &str) -> Result<bool, Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::result(format!(
            "cannot write to standard output: {error}"
        ))),
        Ok(()) => Ok(true),
    }
}

/// Looks as lines, one after the other.
pub struct Lines {
    is_json: bool,
    interval: Duration,
    shown: u64,
    begun_ns: u64,
}

#[derive(Serialize)]
struct Tick {
    schema: &'static str,
    time_ns: u64,
    window_s: f64,
    runnable_cpus: f64,
    phantom_avg: f64,
    idle_avg: f64,
    running: f64,
    others: f64,
    others_threads: f64,
    idle: f64,
    steal: f64,
    interrupts: f64,
    throttled: f64,
    allowed_cpus: f64,
    quota_cpus: Option<f64>,
    host_runnable_cpus: Option<f64>,
    host_others_threads: Option<f64>,
}

impl Lines {
    /// Every `interval` one.
    pub fn new(is_json: bool, interval: Duration) -> Lines {
        Lines {
            is_json,
            interval,
            shown: 0,
            begun_ns: 0,
        }
    }

    /// The next one, with a head now and then.
    pub fn next(&mut self, estimate: &Estimate) -> String {
        let w = &estimate.window;
        if self.is_json {
            let tick = Tick {
                schema: TICK_SCHEMA,
                time_ns: estimate.at_ns,
                window_s: w.span_ns as f64 / 1e9,
                runnable_cpus: w.runnable,
                phantom_avg: w.phantom,
                idle_avg: estimate.idle_avg,
                running: w.running,
                others: w.others,
                others_threads: w.others_threads,
                idle: w.idle,
                steal: w.steal,
                interrupts: w.irq,
                throttled: w.throttled,
                allowed_cpus: w.allowed,
                quota_cpus: w.quota,
                host_runnable_cpus: w.host_runnable,
                host_others_threads: w.host_others,
            };
            return serde_json::to_string(&tick).expect("plain numbers") + "\n";
        }
        let mut text = String::new();
        if self.shown.is_multiple_of(20) {
            text.push_str(
                "  seconds  runnable  phantoms    idle  running  others   steal  throttled\n",
            );
        }
        if self.shown == 0 {
            let interval_ns = self.interval.as_nanos() as u64;
            self.begun_ns = estimate.at_ns.saturating_sub(interval_ns);
        }
        self.shown += 1;
        let seconds = estimate.at_ns.saturating_sub(self.begun_ns) as f64 / 1e9;
        let _ = writeln!(
            text,
            "{seconds:9.2}{:10.2}{:10.2}{:8.2}{:9.2}{:8.2}{:8.2}{:11.2}",
            w.runnable, w.phantom, estimate.idle_avg, w.running, w.others, w.steal, w.throttled
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amdahl_phantom::Silence;

    use crate::phantom::account::Account;

    fn found(is_of_allowed: bool) -> Found {
        let row = |name: &str, processes, ns| Taken {
            name: name.to_owned(),
            processes,
            pid: 7,
            ns,
        };
        let mut account = Account::default();
        (account.ticks, account.allowed, account.quota) = (3, 2.0, Some(1.5));
        account.figures.running.mean = 0.5;
        account.figures.others.mean = 1.25;
        account.host.seconds = 0.5;
        account.host.tells_steal = true;
        Found {
            account,
            taken: vec![
                row(
                    "a\u{1b}[31mname\u{202e} that is longer than any column is wide",
                    3,
                    1_000_000_000,
                ),
                row("日本語", 1, 5),
            ],
            is_of_allowed,
            cpus: "0-1".to_owned(),
            wall: Duration::from_secs(1),
            interval: Duration::from_millis(100),
            lost: 0,
            host: Some(Host {
                path: "/sys/bus/pci/devices/0000:00:02.0/resource2".to_owned(),
                said: Err(Silence::Stale(1_500_000_000)),
            }),
            failed: None,
            is_over: false,
        }
    }

    fn about(target: &str) -> About {
        About {
            command: Vec::new(),
            target: target.to_owned(),
            started: String::new(),
            sources: vec![super::super::look::source(
                "it",
                "/proc",
                &"much is missing ".repeat(20),
                "privileges",
            )],
        }
    }

    #[test]
    fn tables_fit_and_hold_nothing_foreign() {
        let long = format!("control group {}", "/x".repeat(100));
        for target in ["process 7", "the system", &long] {
            for is_of_allowed in [true, false] {
                let found = found(is_of_allowed);
                let result = result(&about(target), &found, false);
                let text = table(&result, &found, 10);
                for line in text.lines() {
                    assert!(line.chars().count() <= COLUMNS, "{line}");
                }
                assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
                assert!(text.contains("日本語 (7)"), "{text}");
                for words in [
                    "CPUs of the guest, by its host",
                    "steal, by the host's page",
                    "it has not changed for 1.5 s",
                ] {
                    let text = text.replace('\n', " ");
                    assert!(text.contains(words), "{text}");
                }
            }
        }
    }

    #[test]
    fn named_processes_are_part_of_others() {
        let found = found(true);
        let text = table(&result(&about("process 7"), &found, false), &found, 1);
        let others = text
            .lines()
            .find(|line| line.starts_with("  others"))
            .expect("a row");
        assert!(others.contains("0.25"), "{text}");
    }

    #[test]
    fn too_short_a_look_says_so() {
        let mut found = found(true);
        found.account = Account::default();
        let text = table(&result(&about("process 7"), &found, false), &found, 1);
        assert!(text.contains("before anything could be compared"), "{text}");
    }

    #[test]
    fn json_has_the_documented_fields() {
        let found = found(true);
        let text = json(&result(&about("process 7"), &found, true)).expect("JSON");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["schema"], SCHEMA);
        assert_eq!(value["partial"], true);
        assert_eq!(value["figures"]["running"]["mean"], 0.5);
        assert_eq!(value["takers"][0]["processes"], 3);
        assert_eq!(value["host_page"]["used"], false);
        assert_eq!(value["host_page"]["steal_by"], "host");
        assert_eq!(value["sources"][1]["how"], "missing");
        let documented = include_str!("../../../../docs/phantom.md");
        for field in value["host_page"].as_object().expect("an object").keys() {
            assert!(documented.contains(&format!("`{field}`")), "{field}");
        }
        for field in value.as_object().expect("an object").keys() {
            assert!(documented.contains(&format!("`{field}`")), "{field}");
        }
        for field in value["figures"].as_object().expect("an object").keys() {
            assert!(documented.contains(&format!("`{field}`")), "{field}");
        }
    }
}
