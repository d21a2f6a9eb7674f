use std::time::Instant;

use crate::barrier;
use crate::span::Span;
use crate::sync::{AtomicU8, AtomicU32, Mutex, Ordering, whole};
use crate::thread_number::ThreadNumber;

use super::Place;
use super::slots::{NoteAt, Slot, Slots};

/// Every request is in the leaves.
const IN_LEAVES: u8 = 0;
/// There is no writer; readers may be in the slots.
const SPREAD: u8 = 1;
/// A writer moves the readers from the slots into the leaves.
const GATHERING: u8 = 2;

/// Where readers that meet no writer note their ranges: each thread in a slot of its own, with plain stores. The writer pays: it
/// stops that first, has all CPUs pass a fence, and collects the ranges. See DESIGN.md.
pub(super) struct Readers {
    mode: AtomicU8,
    /// So many reads without a write let readers spread; grows where that did not pay.
    threshold: AtomicU32,
    slots: Slots,
    /// Held to change the mode, while readers are gathered, and to change what is moved. Since when they are spread.
    change: Mutex<Option<Instant>>,
}

/// Spreading has paid when it lasted so many times as long as gathering took.
const LASTING: u32 = 20;
const THRESHOLD_MIN: u32 = if cfg!(loom) { 1 } else { 256 };
const THRESHOLD_MAX: u32 = 1 << 20;

impl Readers {
    pub(super) fn new() -> Self {
        barrier::prepare();
        Readers {
            mode: AtomicU8::new(IN_LEAVES),
            threshold: AtomicU32::new(THRESHOLD_MIN),
            slots: Slots::new(),
            change: Mutex::new(None),
        }
    }

    /// Whether all requests are in the leaves. To be asked by a writer inside of its leaves.
    #[inline]
    pub(super) fn are_in_leaves(&self) -> bool {
        // Acquire: pairs with the Release in `gather`, so that the gathered are seen.
        self.mode.load(Ordering::Acquire) == IN_LEAVES
    }

    /// After so many reads without a write readers should spread.
    #[inline]
    pub(super) fn threshold(&self) -> u32 {
        // Relaxed: a hint.
        self.threshold.load(Ordering::Relaxed)
    }

    /// Takes a range, while there are no writers.
    #[inline]
    pub(super) fn take(&self, span: Span) -> Option<Place> {
        // Relaxed: only to save the work. The second look decides.
        if self.mode.load(Ordering::Relaxed) != SPREAD {
            return None;
        }
        let thread = ThreadNumber::of_this_thread()?;
        let slot = self.slots.of(thread);
        let note = match slot.note(span) {
            Some(note) => note,
            None => self.note_in_full(slot, span)?,
        };
        let at = NoteAt::new(thread, note);
        barrier::light();
        // Acquire: pairs with the Release in `spread`, so that we see what former writers did.
        if self.mode.load(Ordering::Acquire) == SPREAD {
            return Some(Place::note(at));
        }
        slot.erase(at.bit());
        // Whoever gathered while the note was there has granted it for us.
        (!self.was_noted(slot, at.bit())).then_some(Place::LEAVES)
    }

    #[cold]
    #[inline(never)]
    fn note_in_full(&self, slot: &Slot, span: Span) -> Option<u32> {
        if !slot.has_left() {
            return None;
        }
        let _change = whole(self.change.lock());
        slot.clear_left().then(|| slot.note(span))?
    }

    /// Gives a range back. `false`: it is in the leaves, and in no slot any more.
    #[inline]
    pub(super) fn give(&self, at: NoteAt, insert: impl FnOnce()) -> bool {
        let (slot, bit) = (self.slots.of(at.thread()), at.bit());
        if ThreadNumber::of_this_thread() != Some(at.thread()) {
            self.move_one(at, insert);
            return false;
        }
        slot.erase(bit);
        barrier::light();
        // Acquire: pairs with the Release in `spread`; if readers were gathered and have spread again since, we see what was
        // moved.
        let spread = self.mode.load(Ordering::Acquire) == SPREAD;
        (spread && !slot.is_moved(bit)) || self.was_noted(slot, bit)
    }

    /// Whether a note that the slot's thread has just erased was not moved. Waits for who gathers.
    #[cold]
    #[inline(never)]
    fn was_noted(&self, slot: &Slot, bit: u32) -> bool {
        let _change = whole(self.change.lock());
        let was_moved = slot.is_moved(bit);
        slot.set_moved(bit, false);
        !was_moved
    }

    /// Sees to it that a held range is in the leaves, and in no slot; `insert` puts it there.
    #[cold]
    #[inline(never)]
    pub(super) fn move_one(&self, at: NoteAt, insert: impl FnOnce()) {
        let (slot, bit) = (self.slots.of(at.thread()), at.bit());
        let _change = whole(self.change.lock());
        if !slot.is_moved(bit) {
            insert();
        }
        if ThreadNumber::of_this_thread() == Some(at.thread()) {
            slot.erase(bit);
            slot.set_moved(bit, false);
        } else {
            slot.leave(bit);
        }
    }

    /// Lets readers spread. `no_writer` enters all leaves, and runs its argument inside if nobody writes there.
    #[cold]
    pub(super) fn spread(&self, no_writer: impl FnOnce(&dyn Fn())) {
        let mut since = whole(self.change.lock());
        if self.mode.load(Ordering::Relaxed) == IN_LEAVES {
            *since = Some(Instant::now());
            // Release: pairs with the Acquire of readers. Writers ask inside of their leaves, and we are inside of all.
            no_writer(&|| self.mode.store(SPREAD, Ordering::Release));
        }
    }

    /// Moves all readers into the leaves, by `insert`. Others that need that wait here.
    ///
    /// # Panics
    /// The kernel refuses the fence.
    #[cold]
    pub(super) fn gather(&self, mut insert: impl FnMut(Span)) {
        let mut since = whole(self.change.lock());
        if self.mode.load(Ordering::Relaxed) == IN_LEAVES {
            return;
        }
        let begun = Instant::now();
        self.mode.store(GATHERING, Ordering::Relaxed);
        if barrier::heavy().is_err() {
            self.mode.store(SPREAD, Ordering::Release);
            panic!(
                "the kernel refuses membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED), which it has accepted when this process \
                 registered for it: a sandbox that is entered after the first RangeLock was made must allow membarrier"
            );
        }
        for slot in self.slots.all() {
            slot.move_all(&mut insert);
        }
        // In loom there is no time.
        let lasted = since.take().map(|since| begun.duration_since(since));
        let paid = !cfg!(loom) && lasted >= Some(LASTING * begun.elapsed());
        let former = self.threshold();
        let threshold = match paid {
            true => (former / 2).max(THRESHOLD_MIN),
            false => (former * 2).min(THRESHOLD_MAX),
        };
        self.threshold.store(threshold, Ordering::Relaxed);
        // Release: pairs with `are_in_leaves`.
        self.mode.store(IN_LEAVES, Ordering::Release);
    }
}
