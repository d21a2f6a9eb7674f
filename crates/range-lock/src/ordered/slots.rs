use std::sync::OnceLock;

use crate::span::Span;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Padded};
use crate::thread_number::{BLOCK_FIRST, BLOCKS, NUMBER_BITS, ThreadNumber};

/// Ranges that one thread can note in one lock.
const NOTES: usize = if cfg!(loom) { 2 } else { 7 };
const NOTE_BITS: u32 = 3;
const _: () = assert!(NOTES <= 1 << NOTE_BITS && NUMBER_BITS + NOTE_BITS <= 32);

/// Where threads note what they read: each in a slot of its own, which is made when it is first needed.
pub(super) struct Slots([OnceLock<Box<[Padded<Slot>]>>; BLOCKS]);

/// Two lines, in which one thread notes the ranges that it reads. DESIGN.md says why plain loads and stores are enough.
pub(super) struct Slot {
    /// Bit n: note n is valid. Stored by the slot's thread alone, or who got its number.
    used: AtomicU32,
    /// Bit n: the range of note n is in the leaves as well. Stored inside of `change`.
    moved: AtomicU32,
    /// Bit n: note n, which is moved, was given back by another thread. Stored inside of `change`.
    left: AtomicU32,
    notes: [Note; NOTES],
}

struct Note {
    start: AtomicU64,
    last: AtomicU64,
}

/// One note of one slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NoteAt(u32);

impl NoteAt {
    #[inline]
    pub(super) fn new(thread: ThreadNumber, note: u32) -> Self {
        NoteAt(thread.bits() << NOTE_BITS | note)
    }

    #[inline]
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    /// What [`bits`](Self::bits) gave.
    #[inline]
    pub(super) fn from_bits(bits: u32) -> Self {
        NoteAt(bits)
    }

    #[inline]
    pub(super) fn thread(self) -> ThreadNumber {
        ThreadNumber::from_bits(self.0 >> NOTE_BITS)
    }

    /// The bit of the note in its slot.
    #[inline]
    pub(super) fn bit(self) -> u32 {
        1 << (self.0 & ((1 << NOTE_BITS) - 1))
    }
}

impl Slots {
    pub(super) fn new() -> Self {
        let slots = Slots([const { OnceLock::new() }; BLOCKS]);
        if cfg!(loom) {
            // Loom does not see that the cell orders the making before the use.
            for block in 0..2 {
                slots.make(block);
            }
        }
        slots
    }

    #[inline]
    pub(super) fn of(&self, thread: ThreadNumber) -> &Slot {
        let block = match self.0[thread.block()].get() {
            Some(block) => block,
            None => self.make(thread.block()),
        };
        &block[thread.place()].0
    }

    #[cold]
    #[inline(never)]
    fn make(&self, block: usize) -> &[Padded<Slot>] {
        let len = BLOCK_FIRST << block;
        self.0[block].get_or_init(|| (0..len).map(|_| Padded(Slot::new())).collect())
    }

    /// All that there are so far. A slot that is made while this is asked may be missing.
    pub(super) fn all(&self) -> impl Iterator<Item = &Slot> {
        let blocks = self.0.iter().filter_map(OnceLock::get);
        blocks.flat_map(|block| block.iter().map(|slot| &slot.0))
    }
}

impl Slot {
    fn new() -> Self {
        let none = || Note {
            start: AtomicU64::new(0),
            last: AtomicU64::new(0),
        };
        Slot {
            used: AtomicU32::new(0),
            moved: AtomicU32::new(0),
            left: AtomicU32::new(0),
            notes: std::array::from_fn(|_| none()),
        }
    }

    /// Notes a range; the number of the note, if there is room for one. By the slot's thread.
    #[inline]
    pub(super) fn note(&self, span: Span) -> Option<u32> {
        // Relaxed, here and in `erase`: nobody else stores it.
        let used = self.used.load(Ordering::Relaxed);
        let number = used.trailing_ones();
        let note = self.notes.get(number as usize)?;
        note.start.store(span.start, Ordering::Relaxed);
        note.last.store(span.last, Ordering::Relaxed);
        // Release: pairs with the Acquire in `move_all`, which then finds the range.
        self.used.store(used | 1 << number, Ordering::Release);
        Some(number)
    }

    /// Takes a note back. By the slot's thread.
    #[inline]
    pub(super) fn erase(&self, bit: u32) {
        let used = self.used.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `move_all`: what was read is read before a writer has the range.
        self.used.store(used & !bit, Ordering::Release);
    }

    #[inline]
    pub(super) fn is_moved(&self, bit: u32) -> bool {
        // Relaxed: who must see it has synchronised by the mode or by `change`.
        self.moved.load(Ordering::Relaxed) & bit != 0
    }
}

/// For who is inside of `change`.
impl Slot {
    /// Hands all ranges over that are not moved yet.
    pub(super) fn move_all(&self, insert: &mut impl FnMut(Span)) {
        // Acquire: pairs with the Release in `note` and `erase`.
        let used = self.used.load(Ordering::Acquire);
        let moved = self.moved.load(Ordering::Relaxed);
        for (number, note) in self.notes.iter().enumerate() {
            if (used & !moved) >> number & 1 != 0 {
                insert(Span {
                    start: note.start.load(Ordering::Relaxed),
                    last: note.last.load(Ordering::Relaxed),
                });
            }
        }
        self.moved.store(moved | used, Ordering::Relaxed);
    }

    pub(super) fn set_moved(&self, bit: u32, is: bool) {
        set(&self.moved, bit, is);
    }

    /// Another thread than the slot's gives a moved note back.
    pub(super) fn leave(&self, bit: u32) {
        set(&self.moved, bit, true);
        set(&self.left, bit, true);
    }

    /// Whether there may be notes that others gave back. A hint, which is true a little later at the latest.
    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0
    }

    /// Makes room of notes that others gave back. By the slot's thread. `false`: there were none.
    pub(super) fn clear_left(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.erase(left);
        set(&self.moved, left, false);
        set(&self.left, left, false);
        left != 0
    }
}

fn set(word: &AtomicU32, bits: u32, is: bool) {
    let other = word.load(Ordering::Relaxed) & !bits;
    word.store(other | if is { bits } else { 0 }, Ordering::Relaxed);
}
