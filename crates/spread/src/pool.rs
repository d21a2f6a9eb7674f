//! Cells of many counters in common rows, as the kernel's per-CPU allocator lays them out.
//!
//! A counter of its own on each of 512 CPUs takes 64 KiB if each cell takes the space of two lines; as eight bytes
//! in a row that belongs to one CPU anyway it takes 4 KiB, and the counters that a CPU uses
//! together share lines.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory::OutOfMemory;
use crate::region::{CELL_BYTES, ROW_BYTES, Region, SPACING_BYTES};
use crate::sync::Ordering;

const CELLS_PER_ROW: usize = ROW_BYTES / CELL_BYTES;
const WORDS: usize = CELLS_PER_ROW / u64::BITS as usize;

/// Cells next to each other, the same in each row; all zero when taken. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Cells {
    region: Arc<Region>,
    first: usize,
    count: usize,
    pooled: bool,
}

/// A region of which cells are taken one after the other.
struct Chunk {
    region: Arc<Region>,
    spacing: Spacing,
    /// Bits of the cells that are taken.
    taken: [u64; WORDS],
}

/// Who writes to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// One CPU: cells lie side by side.
    OneWriter,
    /// Several CPUs: cells of different takers share no line.
    ManyWriters,
}

static CHUNKS: Mutex<Vec<Chunk>> = Mutex::new(Vec::new());

fn chunks() -> MutexGuard<'static, Vec<Chunk>> {
    // Nothing below panics with a chunk half changed.
    CHUNKS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cells {
    /// Takes `count` cells, a power of two of at most [`SPACING_BYTES`], in each of `rows` rows.
    /// O(chunks), of which there is one for each 512 cells.
    pub fn take(rows: usize, count: usize, spacing: Spacing) -> Result<Self, OutOfMemory> {
        let spaced = SPACING_BYTES / CELL_BYTES;
        assert!(count.is_power_of_two() && count <= spaced);
        if cfg!(loom) {
            return Self::alone(rows, count);
        }
        let count = match spacing {
            Spacing::OneWriter => count,
            Spacing::ManyWriters => spaced,
        };
        let mut chunks = chunks();
        let fitting = chunks
            .iter_mut()
            .filter(|chunk| chunk.region.rows() == rows && chunk.spacing == spacing)
            .find_map(|chunk| chunk.take(count));
        if let Some(cells) = fitting {
            return Ok(cells);
        }
        let mut chunk = Chunk {
            region: Arc::new(Region::new(rows, CELLS_PER_ROW)?),
            spacing,
            taken: [0; WORDS],
        };
        let cells = chunk.take(count).expect("an empty chunk has room");
        chunks.push(chunk);
        Ok(cells)
    }

    /// Rows of their own with `count` cells each.
    pub fn alone(rows: usize, count: usize) -> Result<Self, OutOfMemory> {
        Ok(Cells {
            region: Arc::new(Region::new(rows, count)?),
            first: 0,
            count,
            pooled: false,
        })
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Where in each row the cells begin.
    pub fn first(&self) -> usize {
        self.first
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        if !self.pooled {
            return;
        }
        for row in 0..self.region.rows() {
            for cell in self.first..self.first + self.count {
                let cell = self.region.cell(row, cell);
                // A page that was never written to stays so.
                if cell.load(Ordering::Relaxed) != 0 {
                    cell.store(0, Ordering::Relaxed);
                }
            }
        }
        // The lock makes the zeros visible to whoever takes the cells next.
        let mut chunks = chunks();
        let of_mine = |chunk: &Chunk| Arc::ptr_eq(&chunk.region, &self.region);
        let at = chunks
            .iter()
            .position(of_mine)
            .expect("cells are of a chunk");
        chunks[at].give_back(self.first, self.count);
        if chunks[at].taken == [0; WORDS] {
            chunks.swap_remove(at);
        }
    }
}

impl Chunk {
    fn take(&mut self, count: usize) -> Option<Cells> {
        let run = u64::MAX >> (u64::BITS as usize - count);
        let places = (0..CELLS_PER_ROW).step_by(count);
        let mut free = places.filter(|first| self.taken[first / 64] & run << (first % 64) == 0);
        let first = free.next()?;
        self.taken[first / 64] |= run << (first % 64);
        Some(Cells {
            region: Arc::clone(&self.region),
            first,
            count,
            pooled: true,
        })
    }

    fn give_back(&mut self, first: usize, count: usize) {
        let run = u64::MAX >> (u64::BITS as usize - count) << (first % 64);
        assert_eq!(self.taken[first / 64] & run, run, "given back twice");
        self.taken[first / 64] &= !run;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_cell_is_taken_twice_and_all_begin_at_zero() {
        // A number of rows that no other test has.
        const ROWS: usize = 13;
        for _ in 0..3 {
            let mut all = Vec::new();
            let mut seen = HashSet::new();
            for n in 0..if cfg!(miri) { 50 } else { 1500 } {
                let (count, spacing) = match n % 3 {
                    0 => (1, Spacing::OneWriter),
                    1 => (2, Spacing::OneWriter),
                    _ => (1, Spacing::ManyWriters),
                };
                let cells = Cells::take(ROWS, count, spacing).unwrap();
                for at in cells.first..cells.first + cells.count {
                    let cell = cells.region.cell(ROWS - 1, at);
                    assert_eq!(cell.swap(1, Ordering::Relaxed), 0);
                    assert!(seen.insert(std::ptr::from_ref(cell)), "cell {at}");
                }
                all.push(cells);
                if n % 7 == 0 {
                    let given_back = all.swap_remove(n % all.len());
                    for at in given_back.first..given_back.first + given_back.count {
                        seen.remove(&std::ptr::from_ref(given_back.region.cell(ROWS - 1, at)));
                    }
                }
            }
        }
        let left = chunks().iter().filter(|c| c.region.rows() == ROWS).count();
        assert_eq!(left, 0, "empty chunks are given back");
    }

    #[test]
    fn those_with_many_writers_share_no_line() {
        let a = Cells::take(11, 1, Spacing::ManyWriters).unwrap();
        let b = Cells::take(11, 1, Spacing::ManyWriters).unwrap();
        assert!(a.first.abs_diff(b.first) * CELL_BYTES >= SPACING_BYTES);
    }
}
