//! Memory in rows, of which each belongs to one CPU or LLC.

#[cfg_attr(any(loom, miri), path = "region/heap.rs")]
#[cfg_attr(not(any(loom, miri)), path = "region/mapped.rs")]
mod rows;

pub(crate) use rows::Region;

/// Bytes of a cell.
pub(crate) const CELL_BYTES: usize = 8;

/// Bytes that a prefetcher may fetch at once: two lines on x86-64 (the adjacent-line prefetch), and the largest
/// line of arm64 servers.
pub(crate) const SPACING_BYTES: usize = 128;

/// Rows begin on pages of the smallest size there is, so that the kernel can place each on the node of
/// the CPU that first writes to it.
pub(crate) const ROW_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    #[cfg_attr(loom, ignore = "needs no model")]
    fn each_cell_is_its_own_and_begins_at_zero() {
        let region = Region::new(3, 700).unwrap();
        assert_eq!(region.rows(), 3);
        assert!(region.stride() >= 700 * CELL_BYTES && region.stride().is_multiple_of(ROW_BYTES));
        for row in 0..3 {
            for cell in 0..700 {
                let cell = region.cell(row, cell);
                assert_eq!(cell.fetch_add(1, Ordering::Relaxed), 0);
            }
        }
    }

    /// On 32 bits the number of bytes was taken modulo 2^32 in release builds, and cells lay beyond the memory; elsewhere
    /// the process ended.
    #[test]
    #[cfg_attr(loom, ignore = "needs no model")]
    fn more_than_there_can_be_is_an_error() {
        // Modulo the numbers that is one page.
        let wraps = (1 << (usize::BITS - 12)) + 1;
        for rows in [wraps, usize::MAX / 8, usize::MAX >> 12] {
            let error = Region::new(rows, 512).expect_err("so much memory");
            assert_eq!(error.bytes, (rows as u64).saturating_mul(4096));
        }
    }
}
