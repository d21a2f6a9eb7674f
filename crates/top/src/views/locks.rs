//! Waits for locks.

use amdahl_report::locks::lines::{chain, function, is_partner, place, releaser, whose};
use amdahl_report::locks::schema::{CodeSite, LockRow, LocksResult, Owner};
use amdahl_report::plain::plain;

use crate::grid::{Cell, Column, Grid, Row};
use crate::layout::seconds_text;
use crate::snapshot::{By, Tab};

const WHAT: Column = Column::text("what", 10, 0, "what was waited for");
const WHOSE: Column = Column::text("whose", 10, 2, "the thread, process or lock of the row");
const WHERE: Column = Column::text("where", 14, 0, "the code that waits");
const TIMES: Column = Column::figure("times", 7, 3, "calls that waited");
const TOTAL: Column = Column::figure("total", 7, 1, "waiting time of all together");
const MAX: Column = Column::figure("max", 7, 4, "the longest wait");
const MEAN: Column = Column::figure("mean", 7, 5, "the usual wait");
const P99: Column = Column::figure("p99", 7, 6, "99 of 100 waits are not longer");
const THREADS: Column = Column::figure("thr", 5, 7, "different threads that waited, at least");

static OF_ALL: [Column; 8] = [WHAT, WHERE, TIMES, TOTAL, MAX, MEAN, P99, THREADS];
static OF_ONE: [Column; 9] = [WHOSE, WHAT, WHERE, TIMES, TOTAL, MAX, MEAN, P99, THREADS];

fn has_whose(by: By) -> bool {
    matches!(by, By::Thread | By::Process | By::Lock)
}

pub fn columns(by: By) -> &'static [Column] {
    if has_whose(by) { &OF_ONE } else { &OF_ALL }
}

pub fn by(result: &LocksResult) -> By {
    let all = Tab::Locks.groupings().iter();
    let found = all.copied().find(|by| by.name() == result.by);
    found.unwrap_or_default()
}

pub fn grid(result: &LocksResult) -> Grid {
    let by = by(result);
    let rows = result.rows.iter().enumerate();
    Grid {
        columns: columns(by),
        rows: rows.map(|(index, row)| line(row, by, index)).collect(),
    }
}

fn line(row: &LockRow, by: By, index: usize) -> Row {
    let place = place(&row.site);
    let mut cells = Vec::with_capacity(9);
    if has_whose(by) {
        cells.push(Cell::text(&whose(row)));
    }
    let known = if row.at_least { "at least" } else { "" };
    let key = format!(
        "{}|{}|{}|{}|{}|{place}|{known}",
        row.what, row.pid, row.tid, row.address, row.in_kernel
    );
    let key = match by {
        By::Stack => key + &row.stack.join(";"),
        _ => key,
    };
    cells.extend([
        Cell::text(&row.what),
        Cell::text(&place),
        Cell::Count(row.times),
        Cell::Seconds(row.total_s),
        Cell::Seconds(row.max_s),
        Cell::Seconds(row.mean_s),
        Cell::seconds(row.p99_s),
        Cell::Count(row.threads),
    ]);
    Row {
        key,
        cells,
        index,
        is_faint: is_partner(row),
    }
}

pub fn headline(result: &LocksResult) -> String {
    let of = |partners: bool| -> f64 {
        let rows = result.rows.iter();
        rows.filter(|row| is_partner(row) == partners)
            .map(|row| row.total_s)
            .sum()
    };
    format!(
        "waited {} for locks and barriers, {} for partners (conditions, idle workers)",
        seconds_text(of(false)),
        seconds_text(of(true))
    )
}

pub fn detail(result: &LocksResult, index: usize) -> Vec<(usize, String)> {
    let Some(row) = result.rows.get(index) else {
        return Vec::new();
    };
    let mut lines = vec![(0, format!("{} ({})", row.what, row.class))];
    let whose = whose(row);
    if !whose.is_empty() {
        lines.push((0, format!("of {whose}")));
    }
    lines.push((0, format!("in {}", whole_place(&row.site))));
    if !row.from.symbol.is_empty() {
        lines.push((0, format!("called from {}", whole_place(&row.from))));
    }
    lines.push((0, String::new()));
    lines.push((0, figures(row)));
    lines.push((0, extent(row)));
    owners(row, &mut lines);
    if !row.nested.is_empty() {
        lines.push((0, String::new()));
        lines.push((
            0,
            "While others waited, holders waited themselves:".to_owned(),
        ));
        for nested in &row.nested {
            let (time, chain) = (seconds_text(nested.seconds), chain(nested));
            lines.push((2, format!("{time} in {} waits: {chain}", nested.times)));
        }
    }
    stack(&row.stack, &mut lines);
    lines
        .into_iter()
        .map(|(indent, text)| (indent, plain(&text)))
        .collect()
}

/// Call stack, innermost first.
pub fn stack(frames: &[String], lines: &mut Vec<(usize, String)>) {
    lines.push((0, String::new()));
    if frames.is_empty() {
        lines.push((0, "No call stack was taken.".to_owned()));
        return;
    }
    lines.push((0, "Call stack, innermost first:".to_owned()));
    lines.extend(frames.iter().map(|frame| (2, plain(frame))));
}

fn figures(row: &LockRow) -> String {
    let least = if row.at_least { "at least " } else { "" };
    let p99 = row.p99_s.map_or("unknown".to_owned(), seconds_text);
    format!(
        "{least}{} waits, {least}{} together: mean {}, p99 {p99}, longest {}",
        row.times,
        seconds_text(row.total_s),
        seconds_text(row.mean_s),
        seconds_text(row.max_s)
    )
}

fn extent(row: &LockRow) -> String {
    format!(
        "{} sleeps in them; {} not ended yet; {} threads, {} locks, {} sites",
        row.sleeps, row.open, row.threads, row.locks, row.sites
    )
}

fn owners(row: &LockRow, lines: &mut Vec<(usize, String)>) {
    lines.push((0, String::new()));
    if row.owners.is_empty() {
        let text = "Nobody was seen to end these waits.".to_owned();
        return lines.push((0, text));
    }
    lines.push((0, "Who released it and ended waits:".to_owned()));
    let owner = |owner: &Owner| {
        let (who, place) = (releaser(owner), place(&owner.site));
        let time = seconds_text(owner.seconds);
        (
            2,
            format!("{time} in {} sleeps: {who} in {place}", owner.times),
        )
    };
    lines.extend(row.owners.iter().map(owner));
    if row.unowned > 0 {
        let text = format!(
            "{} sleeps ended by time-out, by a signal or by others",
            row.unowned
        );
        lines.push((2, text));
    }
}

fn whole_place(site: &CodeSite) -> String {
    let mut text = function(site);
    match (&site.file, site.line) {
        (Some(file), Some(line)) => text += &format!(", {file}:{line}"),
        (Some(file), None) => text += &format!(", {file}"),
        (None, _) => {}
    }
    if !site.module.is_empty() {
        text += &format!(" ({})", site.module);
    }
    text
}
