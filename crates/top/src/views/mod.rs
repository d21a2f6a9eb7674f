//! Results as tables and as words.

mod locks;
mod mem;
mod sched;

use crate::grid::{Column, Grid};
use crate::snapshot::{By, Data, Snapshot, Tab};

/// The columns of a view.
pub fn columns(tab: Tab, by: By) -> &'static [Column] {
    match tab {
        Tab::Locks => locks::columns(by),
        Tab::Sched => sched::COLUMNS,
        Tab::Mem => mem::COLUMNS,
    }
}

/// By which column rows are sorted at first, falling.
pub fn sorted(tab: Tab, by: By) -> usize {
    let columns = columns(tab, by).iter();
    let is_other = |column: &&Column| !matches!(column.title, "total" | "wait");
    columns.take_while(is_other).count()
}

/// The table.
pub fn grid(snapshot: &Snapshot, by: By) -> Grid {
    match &snapshot.data {
        Data::Locks(result) => locks::grid(result),
        Data::Sched(result) => sched::grid(result, by),
        Data::Mem(result) => mem::grid(result, by),
    }
}

/// What makes a row of this snapshot, where `wanted` was asked for.
pub fn by(snapshot: &Snapshot, wanted: By) -> By {
    match &snapshot.data {
        Data::Locks(result) => locks::by(result),
        Data::Sched(_) | Data::Mem(_) => wanted,
    }
}

/// The most important in one line.
pub fn headline(snapshot: &Snapshot) -> String {
    match &snapshot.data {
        Data::Locks(result) => locks::headline(result),
        Data::Sched(result) => sched::headline(result),
        Data::Mem(result) => mem::headline(result),
    }
}

/// All that is known of row `index`, each with its indentation.
pub fn detail(snapshot: &Snapshot, by: By, index: usize) -> Vec<(usize, String)> {
    match &snapshot.data {
        Data::Locks(result) => locks::detail(result, index),
        Data::Sched(result) => sched::detail(result, by, index),
        Data::Mem(result) => mem::detail(result, by, index),
    }
}
