//! A result as text for a terminal.

use super::lines::{
    brief, callers, chain, counted, function, headline, is_partner, owner, place, position, short,
    target, title, whose,
};
use super::schema::{CodeSite, LockRow, LocksResult};
use crate::number::percent;
use crate::plain::elide;
use crate::terminal::page::{Page, bold, dim, text};
use crate::terminal::sources;
use crate::terminal::table::{self, Column};
use crate::terminal::{Style, machine_line};

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Rows of locks; of waits that are no locks a quarter of it.
    pub rows: usize,
    /// Who released the locks and what holders waited for.
    pub owners: bool,
}

impl Default for Shown {
    fn default() -> Shown {
        Shown {
            rows: 20,
            owners: false,
        }
    }
}

/// Owners and chains shown per row.
const PARTS: usize = 3;
/// Columns of a narrow table for what is waited for, and for the code that waits, at least.
const WHAT_WIDTH: usize = 18;
const NAMES_WIDTH: usize = 20;
/// From this width on the position in the source has a column of its own.
const WIDE: usize = 110;

/// The whole result, at most `width` columns wide (clamped to 40..=200). Foreign text in it is
/// free of control characters.
pub fn render(result: &LocksResult, width: usize, style: Style, shown: Shown) -> String {
    let mut page = Page::new(width, style);
    page.paragraph(0, 0, &[bold(headline(result))]);
    page.blank();
    let target = elide(&target(result), 400, page.ellipsis());
    page.paragraph(0, 2, &[dim(target)]);
    page.paragraph(0, 2, &[dim(machine_line(&result.machine))]);
    if result.partial {
        let note = "Interrupted: this is what was measured until then.";
        page.paragraph(0, 0, &[bold(note)]);
    }
    let (partners, locks): (Vec<_>, Vec<_>) = result.rows.iter().partition(|row| is_partner(row));
    let by = &result.by;
    let has_stacks = by == "stack";
    section(&mut page, "Locks", &locks, shown.rows, by, has_stacks);
    if shown.owners {
        owners(&mut page, &locks, shown.rows);
    }
    let holds: Vec<&LockRow> = result.holds.iter().collect();
    section(&mut page, "Holds", &holds, shown.rows, "site", true);
    let title = "Waits for others' work, which are no loss as such";
    let few = shown.rows.div_ceil(4);
    section(&mut page, title, &partners, few, by, has_stacks);
    measuring(&mut page, result);
    page.finish()
}

fn section(
    page: &mut Page,
    title: &str,
    rows: &[&LockRow],
    most: usize,
    by: &str,
    has_stacks: bool,
) {
    if rows.is_empty() {
        return;
    }
    page.heading(title);
    draw(page, &rows[..rows.len().min(most)], by, has_stacks);
    if rows.len() > most {
        let rest: f64 = rows[most..].iter().map(|row| row.total_s).sum();
        let all: f64 = rows.iter().map(|row| row.total_s).sum();
        let share = percent(rest / all.max(f64::MIN_POSITIVE));
        let count = counted((rows.len() - most) as u64, "more row", "more rows");
        page.paragraph(
            0,
            2,
            &[dim(format!("and {count} with {share} of the time"))],
        );
    }
}

fn draw(page: &mut Page, rows: &[&LockRow], by: &str, has_stacks: bool) {
    let is_wide = page.width >= WIDE;
    let columns = [
        Column::new("what", false, 0),
        Column::new("times", true, 0),
        Column::new("total", true, 0),
        Column::new("max", true, 0),
        Column::new("mean", true, 2),
        Column::new("p99", true, 1),
        Column::new("who", false, 0),
        Column::new("site", false, 0),
        Column::new("where", false, 3),
    ];
    let mut cells: Vec<Vec<String>> = rows.iter().map(|row| cells(row, by, is_wide)).collect();
    if !is_wide {
        for row in &mut cells {
            row[0] = elide(&row[0], WHAT_WIDTH, page.ellipsis());
        }
    }
    let widest = |cells: &[Vec<String>], i: usize| {
        let used = cells.iter().map(|row| page.columns(&row[i]));
        let used = used.max().unwrap_or(0);
        if used == 0 {
            0
        } else {
            used.max(columns[i].title.len()) + 2
        }
    };
    let room = |cells: &[Vec<String>]| {
        let figures: usize = (0..6).map(|i| widest(cells, i)).sum();
        page.width.saturating_sub(figures)
    };
    // The mean follows from the others, the percentile from none.
    for expendable in [4, 5] {
        if room(&cells) < NAMES_WIDTH {
            cells.iter_mut().for_each(|row| row[expendable].clear());
        }
    }
    let has_who = cells.iter().any(|row| !row[6].is_empty());
    let parts = 1 + usize::from(has_who) + usize::from(is_wide);
    let room = (room(&cells) / parts).saturating_sub(usize::from(parts > 1) * 2);
    for cell in cells.iter_mut().flat_map(|row| &mut row[6..]) {
        *cell = elide(cell, room.max(8), page.ellipsis());
    }
    let note = |row: &&LockRow| has_stacks.then(|| callers(&row.stack, page.ellipsis()));
    let notes: Vec<Option<String>> = rows.iter().map(note).collect();
    table::draw_noted(page, &columns, &cells, &notes);
}

/// Seconds in a table, where each column counts.
fn tight(seconds: f64) -> String {
    brief(seconds).replace('\u{a0}', "")
}

fn cells(row: &LockRow, by: &str, is_wide: bool) -> Vec<String> {
    let least = if row.at_least { "≥" } else { "" };
    // Waits that had begun before were longer.
    let bound =
        |is_bound, seconds| format!("{}{}", if is_bound { "≥" } else { "" }, tight(seconds));
    let was_longer = row.before > 0;
    let sites = if row.sites > 1 {
        format!(" +{}", row.sites - 1)
    } else {
        String::new()
    };
    let site = if is_wide {
        function(&row.site)
    } else {
        let symbol = short(&row.site.symbol);
        place(&CodeSite {
            symbol,
            ..row.site.clone()
        })
    };
    vec![
        row.what.clone(),
        format!("{least}{}", row.times),
        bound(row.at_least || was_longer, row.total_s),
        bound(was_longer, row.max_s),
        bound(was_longer, row.mean_s),
        row.p99_s.map_or(String::new(), tight),
        if by == "site" || by == "stack" {
            String::new()
        } else {
            whose(row)
        },
        format!("{site}{sites}").replace(' ', "\u{a0}"),
        if is_wide { line_of(row) } else { String::new() },
    ]
}

/// Of a lock of the kernel, which has no lines, the program's line that came to want it.
fn line_of(row: &LockRow) -> String {
    let own = position(&row.site, false);
    if !own.is_empty() || row.from.symbol.is_empty() {
        return own;
    }
    let from = CodeSite {
        symbol: short(&row.from.symbol),
        ..row.from.clone()
    };
    format!("from {}", place(&from)).replace(' ', "\u{a0}")
}

fn owners(page: &mut Page, rows: &[&LockRow], most: usize) {
    let rows = rows.iter().take(most);
    let mut is_first = true;
    for row in rows.filter(|row| !row.owners.is_empty() || !row.nested.is_empty()) {
        if is_first {
            page.heading("Who released them, and what holders waited for");
            is_first = false;
        }
        let head = format!(" in {}", title(row));
        page.paragraph(0, 2, &[bold(&row.what), text(head)]);
        for by in row.owners.iter().take(PARTS) {
            let line = format!(
                "by {}: {}, {}",
                owner(by),
                counted(by.times, "time", "times"),
                brief(by.seconds)
            );
            page.paragraph(2, 4, &[text(line)]);
        }
        for nested in row.nested.iter().take(PARTS) {
            let line = format!(
                "{} of it, {}: the holder waited for {}",
                brief(nested.seconds),
                counted(nested.times, "time", "times"),
                chain(nested)
            );
            page.paragraph(2, 4, &[text(line)]);
        }
        let unowned = counted(row.unowned, "sleep", "sleeps");
        if row.unowned > 0 {
            page.paragraph(2, 4, &[dim(format!("{unowned} without a known releaser"))]);
        }
    }
}

fn measuring(page: &mut Page, result: &LocksResult) {
    page.heading("How it was measured");
    let means = sources::means(&result.sources);
    if !means.is_empty() {
        page.paragraph(0, 2, &[text(means + ".")]);
    }
    if result.rows.iter().any(|row| row.p99_s.is_some()) {
        let error = percent(result.p99_error);
        page.paragraph(0, 2, &[dim(format!("p99 within {error}."))]);
    }
    if let Some(line) = begun_before(result) {
        page.paragraph(0, 2, &[text(line)]);
    }
    for line in losses(result) {
        page.paragraph(0, 2, &[bold(line)]);
    }
    sources::missing(page, &result.sources);
    sources::warnings(page, &result.warnings);
}

/// What waits that had begun before the recording are told as, if there are any.
pub(super) fn begun_before(result: &LocksResult) -> Option<String> {
    let before: u64 = result.rows.iter().map(|row| row.before).sum();
    let waits = counted(before, "wait", "waits");
    (before > 0)
        .then(|| format!("{waits} had begun before the recording and count from its begin on (≥)."))
}

/// What the figures lack, in sentences.
pub fn losses(result: &LocksResult) -> Vec<String> {
    let mut lines = Vec::new();
    if result.events_lost > 0 {
        let (lost, seen) = (result.events_lost, result.events);
        lines.push(format!(
            "The probe lost {lost} of {} events: counts and totals are too small.",
            seen.saturating_add(lost)
        ));
    }
    if result.stacks_lost > 0 {
        lines.push(format!(
            "It lost {}: some places may have no name.",
            counted(result.stacks_lost, "stack", "stacks")
        ));
    }
    if result.folded_threads > 0 {
        lines.push(format!(
            "There were too many threads, locks and places to keep all apart: {} of waits lost \
             their thread and lock, {} their place. Sums are complete.",
            counted(result.folded_threads, "group", "groups"),
            result.folded_places
        ));
    }
    if result.rows_left_out > 0 {
        lines.push(format!(
            "{} with {} are not in the result.",
            counted(result.rows_left_out, "row", "rows"),
            brief(result.left_out_s)
        ));
    }
    lines
}
