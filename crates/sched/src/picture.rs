//! Threads on CPUs over time, in columns of equal length.

use std::collections::BTreeMap;

use crate::event::{CpuId, Ns, Tid};

/// A stretch of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Time in it that threads ran.
    pub busy_ns: Ns,
    /// The thread that ran longest in it, as far as two counters tell (exact if it had half of the time).
    pub tid: Tid,
}

/// One CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PictureRow {
    /// Which.
    pub cpu: CpuId,
    /// From the beginning on; those after the last one are idle.
    pub cells: Vec<Cell>,
}

/// Columns of equal length, whose length doubles when there are too many: a recording of any
/// length takes the same memory.
#[derive(Clone, Debug)]
pub struct Picture {
    begin: Ns,
    column_ns: Ns,
    cells_max: usize,
    rows: BTreeMap<CpuId, Vec<Counters>>,
    /// Cells of the longest row.
    columns: u64,
}

/// The two threads that ran longest, after Misra and Gries.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    busy_ns: Ns,
    tids: [Tid; 2],
    ns: [Ns; 2],
}

impl Counters {
    fn add(&mut self, tid: Tid, ns: Ns) {
        self.busy_ns += ns;
        self.count(tid, ns);
    }

    fn count(&mut self, tid: Tid, ns: Ns) {
        for i in 0..2 {
            if self.tids[i] == tid || self.ns[i] == 0 {
                self.tids[i] = tid;
                self.ns[i] += ns;
                return;
            }
        }
        let least = ns.min(self.ns[0]).min(self.ns[1]);
        self.ns = self.ns.map(|held| held - least);
        if ns > least {
            self.count(tid, ns - least);
        }
    }

    fn merge(&mut self, other: &Counters) {
        self.busy_ns += other.busy_ns;
        for i in 0..2 {
            if other.ns[i] > 0 {
                self.count(other.tids[i], other.ns[i]);
            }
        }
    }

    fn cell(&self) -> Cell {
        let first = usize::from(self.ns[1] > self.ns[0]);
        Cell {
            busy_ns: self.busy_ns,
            tid: self.tids[first],
        }
    }
}

/// Columns at most: no screen shows more.
const COLUMNS_MAX: usize = 2_000;
/// The shortest column.
const COLUMN_NS: Ns = 1 << 10;

impl Picture {
    /// An empty picture of at most `cells_max` cells over all CPUs; with 0 it stays empty.
    pub fn new(begin: Ns, cells_max: usize) -> Picture {
        Picture {
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

    /// A thread ran. O(columns that it touches), of which there are at most as many as the picture has.
    pub fn add(&mut self, cpu: CpuId, tid: Tid, from: Ns, to: Ns) {
        let (from, to) = (
            from.saturating_sub(self.begin),
            to.saturating_sub(self.begin),
        );
        if from >= to || self.cells_max == 0 {
            return;
        }
        self.rows.entry(cpu).or_default();
        // A row takes its share whether it is used or not, so that columns stay equally long.
        let columns = (self.cells_max / self.rows.len().max(1)).min(COLUMNS_MAX);
        while self.columns.max(to.div_ceil(self.column_ns)) > columns.max(2) as u64 {
            self.halve();
        }
        self.columns = self.columns.max(to.div_ceil(self.column_ns));
        let row = self.rows.entry(cpu).or_default();
        let last = ((to - 1) / self.column_ns) as usize;
        if row.len() <= last {
            row.resize(last + 1, Counters::default());
        }
        let mut at = from;
        while at < to {
            let column = at / self.column_ns;
            let end = to.min((column + 1) * self.column_ns);
            row[column as usize].add(tid, end - at);
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

    /// The rows by CPU number.
    pub fn rows(&self) -> Vec<PictureRow> {
        let rows = self.rows.iter().map(|(&cpu, row)| PictureRow {
            cpu,
            cells: row.iter().map(Counters::cell).collect(),
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_time_is_lost_and_the_size_is_bounded(
            stretches in prop::collection::vec((0u32..5, 1u32..4, 0u64..3_000_000), 1..200),
        ) {
            let mut picture = Picture::new(1000, 64);
            let (mut ends, mut expected) = ([1000u64; 5], 0);
            for (cpu, tid, len) in stretches {
                let end = &mut ends[cpu as usize];
                picture.add(cpu, tid, *end, *end + len);
                *end += len;
                expected += len;
            }
            let rows = picture.rows();
            let cells: Vec<Cell> = rows.iter().flat_map(|row| row.cells.clone()).collect();
            prop_assert_eq!(cells.iter().map(|cell| cell.busy_ns).sum::<Ns>(), expected);
            prop_assert!(cells.iter().all(|cell| cell.busy_ns <= picture.column_ns()));
            prop_assert!(cells.len() <= 64 + rows.len());
        }
    }

    #[test]
    fn without_cells_there_is_no_picture() {
        let mut picture = Picture::new(0, 0);
        picture.add(3, 1, 0, 1_000_000);
        assert_eq!(picture.rows(), []);
    }

    #[test]
    fn a_majority_is_found() {
        let mut cell = Counters::default();
        for (tid, ns) in [(1, 10), (9, 60), (2, 15), (3, 15), (9, 5)] {
            cell.add(tid, ns);
        }
        assert_eq!(
            cell.cell(),
            Cell {
                busy_ns: 105,
                tid: 9
            }
        );
    }
}
