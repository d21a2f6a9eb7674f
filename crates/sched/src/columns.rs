//! Rows of columns of equal length, whose length doubles when there are too many: a recording of any
//! length takes the same memory.

use std::collections::BTreeMap;

use crate::event::Ns;

/// Columns at most: no screen shows more.
const COLUMNS_MAX: usize = 2_000;
/// The shortest column.
const COLUMN_NS: Ns = 1 << 10;

/// What is kept of one column of one row.
pub(crate) trait Cell: Copy + Default {
    /// Adds what is kept of the column after it.
    fn merge(&mut self, other: &Self);
}

#[derive(Clone, Debug)]
pub(crate) struct Columns<K, C> {
    begin: Ns,
    column_ns: Ns,
    cells_max: usize,
    rows: BTreeMap<K, Vec<C>>,
    /// Cells of the longest row.
    columns: u64,
}

impl<K: Copy + Ord, C: Cell> Columns<K, C> {
    /// At most `cells_max` cells over all rows; with 0 there will be none.
    pub fn new(begin: Ns, cells_max: usize) -> Columns<K, C> {
        Columns {
            begin,
            column_ns: COLUMN_NS,
            cells_max,
            rows: BTreeMap::new(),
            columns: 0,
        }
    }

    /// When the first column begins.
    pub fn begin(&self) -> Ns {
        self.begin
    }

    /// Length of a column.
    pub fn column_ns(&self) -> Ns {
        self.column_ns
    }

    /// Nothing is kept at all.
    pub fn is_off(&self) -> bool {
        self.cells_max == 0
    }

    /// Tells each column from `from` to `to` how much of it that is. O(columns that it touches).
    pub fn add(&mut self, key: K, from: Ns, to: Ns, mut add: impl FnMut(&mut C, Ns)) {
        let (from, to) = (
            from.saturating_sub(self.begin),
            to.saturating_sub(self.begin),
        );
        if from >= to || self.is_off() {
            return;
        }
        self.rows.entry(key).or_default();
        // A row takes its share whether it is used or not, so that columns stay equally long.
        let columns = (self.cells_max / self.rows.len().max(1)).min(COLUMNS_MAX);
        while self.columns.max(to.div_ceil(self.column_ns)) > columns.max(2) as u64 {
            self.halve();
        }
        self.columns = self.columns.max(to.div_ceil(self.column_ns));
        let row = self.rows.entry(key).or_default();
        let last = ((to - 1) / self.column_ns) as usize;
        if row.len() <= last {
            row.resize(last + 1, C::default());
        }
        let mut at = from;
        while at < to {
            let column = at / self.column_ns;
            let end = to.min((column + 1) * self.column_ns);
            add(&mut row[column as usize], end - at);
            at = end;
        }
    }

    fn halve(&mut self) {
        self.column_ns *= 2;
        self.columns = self.columns.div_ceil(2);
        for row in self.rows.values_mut() {
            let merged = row.chunks(2).map(|pair| {
                let mut sum = pair[0];
                if let Some(second) = pair.get(1) {
                    sum.merge(second);
                }
                sum
            });
            *row = merged.collect();
        }
    }

    /// Forgets a row.
    pub fn remove(&mut self, key: K) {
        self.rows.remove(&key);
    }

    /// The cells of a row, from the beginning on.
    pub fn row(&self, key: K) -> &[C] {
        self.rows.get(&key).map_or(&[], Vec::as_slice)
    }

    /// The rows by key.
    pub fn rows(&self) -> impl Iterator<Item = (K, &[C])> {
        self.rows.iter().map(|(&key, row)| (key, row.as_slice()))
    }
}
