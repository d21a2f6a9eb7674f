use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, Padded, whole};

use super::leaf::Leaf;

/// Which leaf an address belongs to: a hint, for the leaf itself knows its part.
///
/// Sorted by address, read without any lock and while it is changed: a reader that was led to the wrong leaf
/// finds that out inside the leaf, and looks again.
pub(super) struct Table {
    /// Leaf 0 is not here: it is in the lock itself.
    leaves: Box<[Padded<Leaf>]>,
    used: AtomicUsize,
    rows: Box<[Row]>,
    edit: Padded<Mutex<Edit>>,
}

struct Row {
    start: AtomicU64,
    leaf: AtomicU32,
}

/// What may be used by who holds the mutex, and changes the table.
pub(super) struct Edit {
    free: Vec<u32>,
    /// Where to look for leaves to join next.
    hand: usize,
}

impl Table {
    /// A table with room for so many leaves, leaf 0 being the only one in use.
    pub(super) fn new(capacity: u32) -> Self {
        Table {
            leaves: (1..capacity).map(|_| Padded(Leaf::new(1, 0))).collect(),
            used: AtomicUsize::new(1),
            rows: (0..capacity)
                .map(|_| Row {
                    start: AtomicU64::new(0),
                    leaf: AtomicU32::new(0),
                })
                .collect(),
            edit: Padded(Mutex::new(Edit {
                free: (1..capacity).rev().collect(),
                hand: 0,
            })),
        }
    }

    /// The leaf to look into for `address`.
    #[inline]
    pub(super) fn hint(&self, address: u64) -> u32 {
        // Relaxed, here and in all of the table: nothing is concluded from it.
        let mut base = 0;
        let mut len = self.used.load(Ordering::Relaxed);
        while len > 1 {
            let half = len / 2;
            let start = self.rows[base + half].start.load(Ordering::Relaxed);
            base += if start <= address { half } else { 0 };
            len -= half;
        }
        self.rows[base].leaf.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn leaf(&self, number: u32) -> Option<&Leaf> {
        let at = (number as usize).checked_sub(1)?;
        Some(&self.leaves[at].0)
    }

    /// Waits until nobody changes the table.
    pub(super) fn settle(&self) {
        drop(whole(self.edit.0.lock()));
    }

    /// The right to change the table, if nobody has it.
    pub(super) fn try_edit(&self) -> Option<MutexGuard<'_, Edit>> {
        self.edit.0.try_lock().ok()
    }

    /// Adds a row. The caller is inside of the leaf that had `start` before.
    pub(super) fn add(&self, _edit: &mut Edit, start: u64, leaf: u32) {
        let used = self.used.load(Ordering::Relaxed);
        let at = self.position(start, used);
        for row in (at..used).rev() {
            self.copy(row, row + 1);
        }
        self.rows[at].start.store(start, Ordering::Relaxed);
        self.rows[at].leaf.store(leaf, Ordering::Relaxed);
        self.used.store(used + 1, Ordering::Relaxed);
    }

    /// Removes a row, and tells its leaf. The caller is inside of that, and of the one before.
    pub(super) fn remove(&self, _edit: &mut Edit, start: u64) -> u32 {
        let used = self.used.load(Ordering::Relaxed);
        let at = self.position(start, used);
        assert_eq!(self.rows[at].start.load(Ordering::Relaxed), start);
        let leaf = self.rows[at].leaf.load(Ordering::Relaxed);
        for row in at + 1..used {
            self.copy(row, row - 1);
        }
        self.used.store(used - 1, Ordering::Relaxed);
        leaf
    }

    /// Two neighbours, other ones with each call.
    pub(super) fn neighbours(&self, edit: &mut Edit) -> Option<(u32, u32)> {
        let used = self.used.load(Ordering::Relaxed);
        let pairs = used.checked_sub(1).filter(|&pairs| pairs > 0)?;
        edit.hand = (edit.hand + 1) % pairs;
        let leaf = |row: usize| self.rows[row].leaf.load(Ordering::Relaxed);
        Some((leaf(edit.hand), leaf(edit.hand + 1)))
    }

    fn position(&self, start: u64, used: usize) -> usize {
        self.rows[..used].partition_point(|row| row.start.load(Ordering::Relaxed) < start)
    }

    fn copy(&self, from: usize, to: usize) {
        let (from, to) = (&self.rows[from], &self.rows[to]);
        to.start
            .store(from.start.load(Ordering::Relaxed), Ordering::Relaxed);
        to.leaf
            .store(from.leaf.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Edit {
    pub(super) fn take_free(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(super) fn give_free(&mut self, leaf: u32) {
        self.free.push(leaf);
    }
}
