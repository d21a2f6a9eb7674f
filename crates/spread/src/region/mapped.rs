//! Rows in memory of their own, which costs nothing before it is written to.

use std::ptr::{self, NonNull};

use super::{CELL_BYTES, ROW_BYTES};
use crate::memory::OutOfMemory;
use crate::sync::AtomicI64;

/// Cells that begin at zero, in rows.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<AtomicI64>,
    rows: usize,
    /// Bytes of a row.
    stride: usize,
}

// SAFETY: it owns memory of atomics.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `rows` rows of at least `cells` cells each; neither is 0.
    pub fn new(rows: usize, cells: usize) -> Result<Self, OutOfMemory> {
        let stride = (cells * CELL_BYTES).next_multiple_of(ROW_BYTES);
        let no_memory = OutOfMemory {
            bytes: (rows as u64).saturating_mul(stride as u64),
        };
        let bytes = rows.checked_mul(stride).ok_or(no_memory)?;
        if isize::try_from(bytes).is_err() {
            return Err(no_memory);
        }
        // SAFETY: an anonymous mapping anywhere touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(no_memory);
        }
        // A huge page would put the rows of many CPUs on the node of one of them. It is advice: a kernel
        // without huge pages refuses it.
        #[cfg(target_os = "linux")]
        // SAFETY: the mapping was made above.
        unsafe {
            libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE);
        }
        Ok(Region {
            base: NonNull::new(base.cast()).expect("a mapping is not at 0"),
            rows,
            stride,
        })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes from a cell to the same cell of the next row.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The cell in row 0, as the address of a whole column.
    pub fn column(&self, cell: usize) -> *mut i64 {
        assert!(cell * CELL_BYTES < self.stride);
        self.base.as_ptr().cast::<i64>().wrapping_add(cell)
    }

    /// A cell, of which the owner of the row may also write by other means than this reference.
    #[inline]
    pub fn cell(&self, row: usize, cell: usize) -> &AtomicI64 {
        assert!(row < self.rows && cell * CELL_BYTES < self.stride);
        // SAFETY: within the mapping, aligned, zero at first, and alive as long as `self`.
        unsafe { self.base.byte_add(row * self.stride).add(cell).as_ref() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; whoever used it borrowed `self`.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.rows * self.stride) };
        debug_assert_eq!(result, 0);
    }
}
