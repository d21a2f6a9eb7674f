//! Sums in parts: one for each CPU where that can be had, one for each last-level cache otherwise.

use std::sync::Arc;

use crate::cpu;
use crate::llc_map::LlcMap;
use crate::memory::OutOfMemory;
use crate::pool::{Cells, Spacing};
use crate::region::CELL_BYTES;
use crate::rseq::{self, Registration, Rows};
use crate::sync::{AtomicI64, Ordering};

/// How finely data is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// A part for each CPU, changed without atomic instructions by restartable sequences.
    PerCpu,
    /// A part for each last-level cache, changed by atomic instructions that stay within the cache.
    PerLlc,
}

impl Placement {
    /// [`Placement::PerCpu`] where this process can have restartable sequences, and [`Placement::PerLlc`] elsewhere.
    pub fn best() -> Placement {
        match rseq::registration() == Registration::None {
            true => Placement::PerLlc,
            false => Placement::PerCpu,
        }
    }

    fn possible(self) -> Placement {
        match self {
            Placement::PerCpu => Self::best(),
            Placement::PerLlc => Placement::PerLlc,
        }
    }
}

/// A vector of sums. Rows of cells: those of the CPUs, if there are any, then those of the LLCs. A sum is the
/// total of its column, modulo 2^64.
///
/// The row of a CPU is written by restartable sequences on that CPU and by nothing else. The row of an LLC is
/// written by atomic additions; beside rows of CPUs it takes what comes from threads that cannot be
/// registered and from CPUs beyond the map.
#[derive(Debug)]
pub(crate) struct Parts {
    /// How the rows of CPUs are written; `None` if there are none.
    by: Registration,
    /// The rows of CPUs, at the first cell.
    cpu_rows: Rows,
    /// How threads know their CPU.
    registration: Registration,
    map: Arc<LlcMap>,
    cells: Cells,
    count: usize,
}

// SAFETY: the pointer in `cpu_rows` is to the cells, which are atomics; all threads write to them by the rules above.
unsafe impl Send for Parts {}
// SAFETY: as above.
unsafe impl Sync for Parts {}

impl Parts {
    /// `count` sums, all 0, in cells shared with others: for few sums.
    pub fn pooled(
        placement: Placement,
        map: Arc<LlcMap>,
        count: usize,
    ) -> Result<Self, OutOfMemory> {
        Self::new(placement, map, count, |rows, spacing| {
            Cells::take(rows, count, spacing)
        })
    }

    /// `count` sums, all 0, in rows of their own: for many sums.
    pub fn alone(
        placement: Placement,
        map: Arc<LlcMap>,
        count: usize,
    ) -> Result<Self, OutOfMemory> {
        Self::new(placement, map, count, |rows, _| Cells::alone(rows, count))
    }

    fn new(
        placement: Placement,
        map: Arc<LlcMap>,
        count: usize,
        take: impl FnOnce(usize, Spacing) -> Result<Cells, OutOfMemory>,
    ) -> Result<Self, OutOfMemory> {
        let registration = rseq::registration();
        let llcs = map.llcs() as usize;
        let (by, cpus, spacing) = match placement.possible() {
            Placement::PerCpu => (registration, map.cpus(), Spacing::OneWriter),
            Placement::PerLlc => (NOT_PER_CPU, 0, Spacing::ManyWriters),
        };
        let rows = (cpus as usize).checked_add(llcs);
        let cells = take(rows.unwrap_or(usize::MAX), spacing)?;
        let region = cells.region();
        Ok(Parts {
            by,
            cpu_rows: Rows {
                base: region.column(cells.first()),
                stride: region.stride(),
                cpus,
            },
            registration,
            map,
            cells,
            count,
        })
    }

    pub fn placement(&self) -> Placement {
        match self.by == NOT_PER_CPU {
            true => Placement::PerLlc,
            false => Placement::PerCpu,
        }
    }

    /// How many sums there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.cells.region().rows()
    }

    /// A cell.
    #[inline]
    pub fn cell(&self, row: usize, sum: usize) -> &AtomicI64 {
        self.cells.region().cell(row, self.cells.first() + sum)
    }

    #[inline(always)]
    fn rows_of_cpus(&self, sum: usize) -> Rows {
        assert!(sum < self.count);
        Rows {
            base: self.cpu_rows.base.wrapping_byte_add(sum * CELL_BYTES),
            ..self.cpu_rows
        }
    }

    /// Adds to a sum.
    #[inline(always)]
    pub fn add(&self, sum: usize, delta: i64) {
        if self.by == NOT_PER_CPU {
            self.near(sum).1.fetch_add(delta, Ordering::Relaxed);
            return;
        }
        let rows = self.rows_of_cpus(sum);
        // SAFETY: `by` is the process's registration. The rows of CPUs have `cpus` cells from `base` on at this distance,
        // alive as long as `self`, and nothing else writes to them.
        if !unsafe { rseq::add(self.by, &rows, delta) } {
            self.add_elsewhere(sum, delta);
        }
    }

    /// Adds to a sum; the row that took it, and what that row's cell is now.
    #[inline(always)]
    pub fn add_fetch(&self, sum: usize, delta: i64) -> (usize, i64) {
        if self.by != NOT_PER_CPU {
            let rows = self.rows_of_cpus(sum);
            // SAFETY: as in `add`.
            if let Some((cpu, value)) = unsafe { rseq::add_fetch(self.by, &rows, delta) } {
                return (cpu as usize, value);
            }
        }
        let (row, cell) = self.near(sum);
        let before = cell.fetch_add(delta, Ordering::Relaxed);
        (row, before.wrapping_add(delta))
    }

    #[cold]
    fn add_elsewhere(&self, sum: usize, delta: i64) {
        self.near(sum).1.fetch_add(delta, Ordering::Relaxed);
    }

    /// The cell of the LLC that this thread is near, and its row.
    #[inline(always)]
    fn near(&self, sum: usize) -> (usize, &AtomicI64) {
        let llc = self.map.llc(cpu::near(self.registration));
        let row = (self.cpu_rows.cpus + llc) as usize;
        (row, self.cell(row, sum))
    }

    /// A sum: what was added before, and any of what is added meanwhile. O(rows).
    pub fn sum(&self, sum: usize) -> i64 {
        (0..self.rows())
            .map(|row| self.load(row, sum))
            .fold(0, i64::wrapping_add)
    }

    /// What one row has of a sum.
    #[inline]
    pub fn load(&self, row: usize, sum: usize) -> i64 {
        // Relaxed: additions order nothing. Those that happened before this call, by whatever made them so, are seen.
        self.cell(row, sum).load(Ordering::Relaxed)
    }
}

const NOT_PER_CPU: Registration = Registration::None;
