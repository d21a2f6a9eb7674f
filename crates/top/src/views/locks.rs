//! Waits for locks.

use amdahl_report::locks::lines::{chain, function, is_partner, owner, place, releaser, whose};
use amdahl_report::locks::schema::{CodeSite, LockRow, LocksResult, Owner};
use amdahl_report::plain::plain;

use crate::grid::{Cell, Column, Grid, Row};
use crate::layout::seconds_text;
use crate::snapshot::{By, Shape, Tab};

const WHAT: Column = Column::text("what", 10, 0, "what was waited for");
const WHOSE: Column = Column::text("whose", 10, 2, "the thread, process or lock of the row");
const WHERE: Column = Column::text("where", 14, 0, "the code that waits");
const OWNER: Column = Column::text(
    "released by",
    14,
    1,
    "who ended most of the waiting, and where; of a held lock who had it",
);
const TIMES: Column = Column::figure("times", 7, 3, "calls that waited");
const TOTAL: Column = Column::figure("total", 7, 1, "waiting time of all together");
const MAX: Column = Column::figure("max", 7, 4, "the longest wait");
const MEAN: Column = Column::figure("mean", 7, 5, "the usual wait");
const P99: Column = Column::figure("p99", 7, 6, "99 of 100 waits are not longer");
const THREADS: Column = Column::figure("thr", 5, 7, "different threads that waited, at least");

static OF_ALL: [Column; 8] = [WHAT, WHERE, TIMES, TOTAL, MAX, MEAN, P99, THREADS];
static OF_ONE: [Column; 9] = [WHOSE, WHAT, WHERE, TIMES, TOTAL, MAX, MEAN, P99, THREADS];
static OWNED: [Column; 9] = [WHAT, WHERE, OWNER, TIMES, TOTAL, MAX, MEAN, P99, THREADS];
static OWNED_OF_ONE: [Column; 10] = [
    WHOSE, WHAT, WHERE, OWNER, TIMES, TOTAL, MAX, MEAN, P99, THREADS,
];

fn has_whose(by: By) -> bool {
    matches!(by, By::Thread | By::Process | By::Lock)
}

pub fn columns(shape: Shape) -> &'static [Column] {
    match (has_whose(shape.by), shape.owners) {
        (false, false) => &OF_ALL,
        (true, false) => &OF_ONE,
        (false, true) => &OWNED,
        (true, true) => &OWNED_OF_ONE,
    }
}

pub fn by(result: &LocksResult) -> By {
    let all = Tab::Locks.groupings().iter();
    let found = all.copied().find(|by| by.name() == result.by);
    found.unwrap_or_default()
}

/// Waits, and behind them what was held, if owners are asked for.
pub fn grid(result: &LocksResult, owners: bool) -> Grid {
    let by = by(result);
    let shape = Shape { by, owners };
    let waits = result.rows.iter().map(|row| (row, false));
    let holds = result.holds.iter().filter(|_| owners);
    let rows = waits.chain(holds.map(|row| (row, true))).enumerate();
    Grid {
        columns: columns(shape),
        rows: rows
            .map(|(index, (row, is_hold))| line(row, shape, index, is_hold))
            .collect(),
    }
}

/// Who matters most.
fn first_owner(row: &LockRow) -> String {
    row.owners.first().map_or_else(String::new, owner)
}

fn line(row: &LockRow, shape: Shape, index: usize, is_hold: bool) -> Row {
    let place = place(&row.site);
    let mut cells = Vec::with_capacity(10);
    let has_whose = has_whose(shape.by);
    if has_whose {
        cells.push(Cell::text(&whose(row)));
    }
    let what = if is_hold {
        format!("{} held", row.what)
    } else {
        row.what.clone()
    };
    let known = if row.at_least { "at least" } else { "" };
    let key = format!(
        "{what}|{}|{}|{}|{}|{place}|{known}",
        row.pid, row.tid, row.address, row.in_kernel
    );
    let key = match shape.by {
        By::Stack => key + &row.stack.join(";"),
        _ => key,
    };
    cells.extend([Cell::text(&what), Cell::text(&place)]);
    if shape.owners {
        cells.push(Cell::text(&first_owner(row)));
    }
    cells.extend([
        Cell::Count(row.times).known(row.at_least),
        Cell::Seconds(row.total_s).known(row.at_least),
        Cell::Seconds(row.max_s),
        Cell::Seconds(row.mean_s),
        Cell::seconds(row.p99_s),
        Cell::Count(row.threads),
    ]);
    Row {
        key,
        cells,
        index,
        is_faint: is_partner(row) || is_hold,
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
    let held = index.checked_sub(result.rows.len());
    let held = held.and_then(|index| result.holds.get(index));
    if let Some(row) = held {
        return hold(row);
    }
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
    harmless(lines)
}

fn harmless(lines: Vec<(usize, String)>) -> Vec<(usize, String)> {
    let lines = lines.into_iter();
    lines.map(|(indent, text)| (indent, plain(&text))).collect()
}

/// A lock that was held.
fn hold(row: &LockRow) -> Vec<(usize, String)> {
    let mut lines = vec![
        (0, format!("{} held", row.what)),
        (0, format!("taken in {}", whole_place(&row.site))),
        (0, String::new()),
        (
            0,
            format!(
                "{} times, {} together: mean {}, longest {}",
                row.times,
                seconds_text(row.total_s),
                seconds_text(row.mean_s),
                seconds_text(row.max_s)
            ),
        ),
    ];
    parts("Who held it:", "holds", row, &mut lines);
    stack(&row.stack, &mut lines);
    harmless(lines)
}

fn parts(title: &str, times: &str, row: &LockRow, lines: &mut Vec<(usize, String)>) {
    lines.push((0, title.to_owned()));
    let owner = |owner: &Owner| {
        let (who, place) = (releaser(owner), place(&owner.site));
        let time = seconds_text(owner.seconds);
        (
            2,
            format!("{time} in {} {times}: {who} in {place}", owner.times),
        )
    };
    lines.extend(row.owners.iter().map(owner));
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
    let before = match row.before {
        0 => String::new(),
        before => format!(", {before} begun before, and so longer"),
    };
    format!(
        "{} sleeps in them; {} not ended yet{before}; {} threads, {} locks, {} sites",
        row.sleeps, row.open, row.threads, row.locks, row.sites
    )
}

fn owners(row: &LockRow, lines: &mut Vec<(usize, String)>) {
    lines.push((0, String::new()));
    if row.owners.is_empty() {
        let text = "Nobody was seen to end these waits.".to_owned();
        return lines.push((0, text));
    }
    parts("Who released it and ended waits:", "sleeps", row, lines);
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
