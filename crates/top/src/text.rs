//! Snapshots for scripts: plain text, and JSON lines.

use amdahl_report::terminal::Style;

use crate::draw::status;
use crate::filter::Filter;
use crate::layout::{Layout, ascii};
use crate::snapshot::{Data, Shape, Snapshot};
use crate::views;

/// The table as text, at most `width` columns wide, with the `rows` largest.
pub fn text(
    snapshot: &Snapshot,
    shape: Shape,
    filter: &Filter,
    rows: usize,
    width: usize,
    style: Style,
) -> String {
    let shape = views::shape(snapshot, shape);
    let mut grid = views::grid(snapshot, shape);
    let column = views::sorted(snapshot.tab(), shape);
    grid.sort(column, true);
    grid.rows.retain(|row| filter.wants(row));
    let mut lines = vec![
        format!("{}: {}", snapshot.tab().name(), status(snapshot)),
        views::headline(snapshot),
    ];
    for source in snapshot
        .sources()
        .iter()
        .filter(|source| !source.missing.is_empty())
    {
        let what = format!("{}: {}", source.what, source.missing);
        lines.push(amdahl_report::plain::plain(&what));
    }
    lines.extend(snapshot.notices());
    let layout = Layout::new(grid.columns, width, column);
    lines.push(layout.titles(grid.columns, column, true).join(" "));
    for row in grid.rows.iter().take(rows) {
        lines.push(layout.cells(grid.columns, row, style).join(" "));
    }
    if grid.rows.len() > rows {
        lines.push(format!("and {} more rows", grid.rows.len() - rows));
    }
    let lines = lines.iter().map(|line| ascii(line.trim_end(), style));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// The result on one line, as documented for its schema, without a line break.
pub fn json(snapshot: &Snapshot) -> serde_json::Result<String> {
    match &snapshot.data {
        Data::Locks(result) => serde_json::to_string(result),
        Data::Sched(result) => serde_json::to_string(result),
        Data::Mem(result) => serde_json::to_string(result),
    }
}
