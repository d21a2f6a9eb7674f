//! A table before it has a width.

use std::cmp::Ordering;

/// A column.
#[derive(Debug, PartialEq)]
pub struct Column {
    /// Its title.
    pub title: &'static str,
    /// What it tells, for the help page.
    pub about: &'static str,
    /// Columns that it takes; of texts, at least.
    pub width: u16,
    /// Texts share what is left; figures stand right.
    pub is_text: bool,
    /// The highest gives way first where there is no room; 0 never does.
    pub expendable: u8,
}

impl Column {
    pub(crate) const fn text(
        title: &'static str,
        width: u16,
        expendable: u8,
        about: &'static str,
    ) -> Column {
        Column {
            title,
            about,
            width,
            is_text: true,
            expendable,
        }
    }

    pub(crate) const fn figure(
        title: &'static str,
        width: u16,
        expendable: u8,
        about: &'static str,
    ) -> Column {
        Column {
            title,
            about,
            width,
            is_text: false,
            expendable,
        }
    }
}

/// A figure or a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A name, harmless.
    Text(String),
    /// How many.
    Count(u64),
    /// Which one: written as it is.
    Number(u64),
    /// How long.
    Seconds(f64),
    /// How large.
    Bytes(u64),
    /// Which part, 0 to 1.
    Share(f64),
    /// A figure that only samples tell.
    AtLeast(Box<Cell>),
    /// Not known.
    Unknown,
}

impl Cell {
    pub(crate) fn text(text: &str) -> Cell {
        Cell::Text(amdahl_report::plain::plain(text))
    }

    pub(crate) fn seconds(seconds: Option<f64>) -> Cell {
        seconds.map_or(Cell::Unknown, Cell::Seconds)
    }

    /// The figure, which `is_least` says to be a lower bound.
    pub(crate) fn known(self, is_least: bool) -> Cell {
        if is_least {
            Cell::AtLeast(Box::new(self))
        } else {
            self
        }
    }

    /// Texts by their letters, figures by their size; what is not known comes first.
    pub(crate) fn order(&self, other: &Cell) -> Ordering {
        match (self.size(), other.size()) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (None, None) => self.letters().cmp(other.letters()),
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
        }
    }

    fn size(&self) -> Option<f64> {
        match self {
            Cell::Count(count) | Cell::Number(count) | Cell::Bytes(count) => Some(*count as f64),
            Cell::Seconds(size) | Cell::Share(size) => Some(*size),
            Cell::AtLeast(cell) => cell.size(),
            Cell::Text(_) | Cell::Unknown => None,
        }
    }

    pub(crate) fn letters(&self) -> &str {
        match self {
            Cell::Text(text) => text,
            _ => "",
        }
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What stays the same from one snapshot to the next.
    pub key: String,
    /// As many as there are columns.
    pub cells: Vec<Cell>,
    /// Which row of the result it is.
    pub index: usize,
    /// No loss as such: idle workers, conditions.
    pub is_faint: bool,
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// Its columns.
    pub columns: &'static [Column],
    /// Its rows.
    pub rows: Vec<Row>,
}

impl Grid {
    /// Sorts by a column; equals stay as they are.
    pub fn sort(&mut self, column: usize, is_falling: bool) {
        let of = |row: &Row| row.cells.get(column).cloned().unwrap_or(Cell::Unknown);
        self.rows.sort_by(|a, b| {
            let order = of(a).order(&of(b));
            if is_falling { order.reverse() } else { order }
        });
    }
}
