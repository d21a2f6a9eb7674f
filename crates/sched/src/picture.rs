//! Threads on CPUs over time, in columns of equal length.

use crate::columns::{self, Columns};
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
    columns: Columns<CpuId, Counters>,
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

    fn cell(&self) -> Cell {
        let first = usize::from(self.ns[1] > self.ns[0]);
        Cell {
            busy_ns: self.busy_ns,
            tid: self.tids[first],
        }
    }
}

impl columns::Cell for Counters {
    fn merge(&mut self, other: &Counters) {
        self.busy_ns += other.busy_ns;
        for i in 0..2 {
            if other.ns[i] > 0 {
                self.count(other.tids[i], other.ns[i]);
            }
        }
    }
}

impl Picture {
    /// An empty picture of at most `cells_max` cells over all CPUs; with 0 it stays empty.
    pub fn new(begin: Ns, cells_max: usize) -> Picture {
        Picture {
            columns: Columns::new(begin, cells_max),
        }
    }

    /// When the first column begins.
    pub fn begin(&self) -> Ns {
        self.columns.begin()
    }

    /// Length of a column.
    pub fn column_ns(&self) -> Ns {
        self.columns.column_ns()
    }

    /// A thread ran. O(columns that it touches), of which there are at most as many as the picture has.
    pub fn add(&mut self, cpu: CpuId, tid: Tid, from: Ns, to: Ns) {
        let add = |cell: &mut Counters, ns| cell.add(tid, ns);
        self.columns.add(cpu, from, to, add);
    }

    /// The rows by CPU number.
    pub fn rows(&self) -> Vec<PictureRow> {
        let rows = self.columns.rows().map(|(cpu, row)| PictureRow {
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
