//! Results as tables and as words.

mod locks;
mod mapping;
mod mem;
mod processor;
mod sched;
mod virtual_cpu;

use crate::grid::{Column, Grid};
use crate::snapshot::{By, Data, Shape, Snapshot, Tab};

/// The columns of a view.
pub fn columns(tab: Tab, shape: Shape) -> &'static [Column] {
    match tab {
        Tab::Locks => locks::columns(shape),
        Tab::Sched => match shape.by {
            By::Cpu => processor::COLUMNS,
            By::Guest => virtual_cpu::COLUMNS,
            _ => sched::COLUMNS,
        },
        Tab::Mem if shape.by == By::Mapping => mapping::COLUMNS,
        Tab::Mem => mem::COLUMNS,
    }
}

/// By which column rows are sorted at first, falling.
pub fn sorted(tab: Tab, shape: Shape) -> usize {
    let columns = columns(tab, shape).iter();
    let is_first = |title| matches!(title, "total" | "wait" | "small" | "wasted" | "phantom");
    let is_other = |column: &&Column| !is_first(column.title);
    columns.take_while(is_other).count()
}

/// The table.
pub fn grid(snapshot: &Snapshot, shape: Shape) -> Grid {
    match &snapshot.data {
        Data::Locks(result) => locks::grid(result, shape.owners),
        Data::Sched(result) => match shape.by {
            By::Cpu => processor::grid(result),
            By::Guest => virtual_cpu::grid(result),
            by => sched::grid(result, by),
        },
        Data::Mem(result) if shape.by == By::Mapping => mapping::grid(result),
        Data::Mem(result) => mem::grid(result, shape.by),
    }
}

/// How the table of this snapshot is made, where `wanted` was asked for.
pub fn shape(snapshot: &Snapshot, wanted: Shape) -> Shape {
    match &snapshot.data {
        Data::Locks(result) => Shape {
            by: locks::by(result),
            ..wanted
        },
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

/// What is in no row of a tab whose rows are bounded, not in sums of rows either.
pub fn left_out(snapshot: &Snapshot) -> Option<String> {
    match &snapshot.data {
        // Told with its losses.
        Data::Locks(_) => None,
        Data::Sched(result) => sched::left_out(result),
        Data::Mem(result) => mem::left_out(result),
    }
}

/// All that is known of row `index`, each with its indentation.
pub fn detail(snapshot: &Snapshot, by: By, index: usize) -> Vec<(usize, String)> {
    match &snapshot.data {
        Data::Locks(result) => locks::detail(result, index),
        Data::Sched(result) => match by {
            By::Cpu => processor::detail(result, index),
            By::Guest => virtual_cpu::detail(result, index),
            by => sched::detail(result, by, index),
        },
        Data::Mem(result) if by == By::Mapping => mapping::detail(result, index),
        Data::Mem(result) => mem::detail(result, by, index),
    }
}
