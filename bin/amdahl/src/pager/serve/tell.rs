//! What is said of VMs: a line each, for people or as JSON.

use std::fmt::Write as _;
use std::io::Write;
use std::time::{Duration, Instant};

use amdahl_pager::Stats;
use serde_json::{Value, json};

use super::outlet::Outlet;
use crate::pager::meter::size;

/// The version of the lines.
pub const FORMAT: &str = "amdahl.pager-serve/1";

/// Prints lines. The last are written when it is dropped, unless nobody reads them.
pub struct Teller {
    begun: Instant,
    is_json: bool,
    is_quiet: bool,
    out: Outlet,
    err: Outlet,
}

/// How long the last lines wait for somebody who reads none.
const PATIENCE: Duration = Duration::from_secs(5);

/// A line in both forms.
pub struct Line {
    event: &'static str,
    text: String,
    fields: Value,
    is_trouble: bool,
}

impl Line {
    /// Something happened; `fields` is an object.
    pub fn new(event: &'static str, text: String, fields: Value) -> Line {
        Line {
            event,
            text,
            fields,
            is_trouble: false,
        }
    }

    /// Something went wrong: it is said even if little is wanted.
    pub fn trouble(event: &'static str, text: String, fields: Value) -> Line {
        Line {
            is_trouble: true,
            ..Line::new(event, text, fields)
        }
    }

    /// With its end.
    fn print(&self, is_json: bool, begun: Instant) -> String {
        let mut text = match is_json {
            true => self.json(begun),
            false => amdahl_report::plain::plain(&self.text).to_string(),
        };
        text.push('\n');
        text
    }

    fn json(&self, begun: Instant) -> String {
        let mut object = json!({
            "event": self.event,
            "at_s": seconds(begun.elapsed()),
        });
        if let (Value::Object(object), Value::Object(fields)) = (&mut object, &self.fields) {
            object.extend(fields.clone());
        }
        object.to_string()
    }
}

impl Teller {
    /// From now on.
    pub fn new(is_json: bool, is_quiet: bool) -> Teller {
        let begun = Instant::now();
        let left_out = move |count: u64| {
            let why = format!("{count} lines were left out, since nobody read them");
            let line = Line::trouble("trouble", why.clone(), json!({ "why": why }));
            line.print(is_json, begun)
        };
        Teller {
            begun,
            is_json,
            is_quiet,
            out: Outlet::new(
                |line| {
                    let mut out = std::io::stdout().lock();
                    let _ = out.write_all(line.as_bytes());
                    let _ = out.flush();
                },
                left_out,
            ),
            err: Outlet::new(
                |line| drop(anstream::stderr().lock().write_all(line.as_bytes())),
                left_out,
            ),
        }
    }

    /// Prints a line, whole, and waits for nobody. A pipe that is closed harms no VM; of one that is full and not read lines are left out.
    pub fn tell(&self, line: &Line) {
        if self.is_quiet && !line.is_trouble {
            return;
        }
        let text = line.print(self.is_json, self.begun);
        // Trouble is an error for people, and a line as any other for programs.
        match line.is_trouble && !self.is_json {
            true => self.err.say(text),
            false => self.out.say(text),
        }
    }

    /// Waits until all is written, or nothing was for so long.
    pub fn flush(&self, patience: Duration) {
        self.out.flush(patience);
        self.err.flush(patience);
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.flush(PATIENCE);
    }
}

/// To a millisecond.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).round() / 1e3
}

/// Who a line is about.
#[derive(Clone, Copy, Debug)]
pub struct Vm {
    /// Counted from 1.
    pub number: u64,
    /// The process that connected.
    pub pid: Option<u32>,
}

impl Vm {
    /// As lines begin.
    pub fn name(self) -> String {
        match self.pid {
            Some(pid) => format!("VM {} (pid {pid})", self.number),
            None => format!("VM {}", self.number),
        }
    }

    /// As objects begin.
    pub fn fields(self, more: Value) -> Value {
        let mut fields = json!({ "vm": self.number, "pid": self.pid });
        if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
            fields.extend(more);
        }
        fields
    }
}

/// How serving a VM ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is present: it goes on without us.
    Complete,
    /// Its memory is no more.
    Gone,
    /// Some of what was missing could not be had.
    Incomplete,
    /// We were told to end at once.
    Abandoned,
}

impl Outcome {
    /// In JSON.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Complete => "complete",
            Outcome::Gone => "gone",
            Outcome::Incomplete => "incomplete",
            Outcome::Abandoned => "abandoned",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Outcome::Complete => "is complete and served no more",
            Outcome::Gone => "has ended",
            Outcome::Incomplete => "is served no more, with pages missing that could not be had",
            Outcome::Abandoned => "is served no more, with pages missing",
        }
    }
}

/// What is said when serving a VM ends.
pub struct End<'a> {
    /// Which.
    pub vm: Vm,
    /// How.
    pub outcome: Outcome,
    /// How long it was served.
    pub served: Duration,
    /// When all was present, if that is known to have been.
    pub present: Option<Duration>,
    /// Pages that it has.
    pub pages: usize,
    /// Pages that were missing then.
    pub missing: usize,
    /// What was done.
    pub stats: &'a Stats,
    /// What becomes of the VM, if that is not clear.
    pub fate: Option<&'a str>,
}

impl End<'_> {
    /// The line.
    pub fn line(&self) -> Line {
        let stats = self.stats;
        let quantile_us = |q| stats.latency_ns.quantile(q).map(|ns| ns as f64 / 1e3);
        let (p50, p99) = (quantile_us(0.5), quantile_us(0.99));
        let mut text = format!(
            "{} {} after {}: {} faults",
            self.vm.name(),
            self.outcome.words(),
            duration(self.served),
            stats.faults
        );
        if let (Some(p50), Some(p99)) = (p50, p99) {
            let _ = write!(text, ", p50 {p50:.0} us, p99 {p99:.0} us");
        }
        let _ = write!(
            text,
            "; of {} pages {} read, {} zero ({} of these ahead of faults), {} lost, {} given up by the VM, {} never needed",
            self.pages,
            stats.pages,
            stats.zero_pages,
            stats.background_pages,
            stats.lost_pages,
            stats.removed_pages,
            self.missing,
        );
        if let Some(present) = self.present {
            let _ = write!(text, "; all present after {}", duration(present));
        }
        if let Some(fate) = self.fate {
            let _ = write!(text, "; it {fate}");
        }
        let fields = json!({
            "outcome": self.outcome.name(),
            "served_s": seconds(self.served),
            "present_after_s": self.present.map(seconds),
            "pages": self.pages,
            "faults": stats.faults,
            "fault_us_p50": p50,
            "fault_us_p99": p99,
            "pages_read": stats.pages,
            "pages_zero": stats.zero_pages,
            "pages_ahead": stats.background_pages,
            "pages_lost": stats.lost_pages,
            "pages_given_up": stats.removed_pages,
            "pages_missing": self.missing,
            "retries": stats.retries,
            "fate": self.fate,
        });
        let is_good = matches!(self.outcome, Outcome::Complete | Outcome::Gone);
        let fields = self.vm.fields(fields);
        match is_good {
            true => Line::new("end", text, fields),
            false => Line::trouble("end", text, fields),
        }
    }
}

/// For people.
pub fn duration(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.2} s", time.as_secs_f64()),
        60..3600 => format!("{:.1} min", time.as_secs_f64() / 60.0),
        _ => format!("{:.1} h", time.as_secs_f64() / 3600.0),
    }
}

/// Bytes of pages, for people.
pub fn pages(pages: usize) -> String {
    size((pages * amdahl_pager::PAGE) as u64)
}
