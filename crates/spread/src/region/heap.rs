//! Rows as loom and Miri want them: nothing but atomics.

use super::{CELL_BYTES, ROW_BYTES};
use crate::memory::{self, OutOfMemory};
use crate::sync::AtomicI64;

/// Cells that begin at zero, in rows.
#[derive(Debug)]
pub(crate) struct Region {
    cells: Box<[AtomicI64]>,
    rows: usize,
    cells_per_row: usize,
}

impl Region {
    pub fn new(rows: usize, cells: usize) -> Result<Self, OutOfMemory> {
        let all = rows.checked_mul(cells).unwrap_or(usize::MAX);
        Ok(Region {
            cells: memory::filled(all, || AtomicI64::new(0))?,
            rows,
            cells_per_row: cells,
        })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn stride(&self) -> usize {
        (self.cells_per_row * CELL_BYTES).next_multiple_of(ROW_BYTES)
    }

    /// No address: there are no restartable sequences here.
    pub fn column(&self, _: usize) -> *mut i64 {
        std::ptr::null_mut()
    }

    pub fn cell(&self, row: usize, cell: usize) -> &AtomicI64 {
        assert!(row < self.rows && cell < self.cells_per_row);
        &self.cells[row * self.cells_per_row + cell]
    }
}
