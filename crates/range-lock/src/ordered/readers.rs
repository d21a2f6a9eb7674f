use std::sync::OnceLock;

use crate::gate::Gate;
use crate::span::Span;
use crate::sync::{AtomicU8, AtomicU32, Mutex, Ordering, Padded, whole};

/// Every request is in the leaves.
pub(super) const IN_LEAVES: u8 = 0;
/// There is no writer; readers may be in the shards.
pub(super) const SPREAD: u8 = 1;
/// A writer moves the readers from the shards into the leaves.
pub(super) const GATHERING: u8 = 2;

/// Where readers that meet no writer leave their ranges: each thread in its own shard, so that readers of the same
/// range share no line. As in Linux's `percpu_rw_semaphore` (2012) and `brlock` before it, a writer pays: it stops
/// that first, and collects the ranges.
pub(super) struct Readers {
    mode: AtomicU8,
    /// So many readers must have met before they spread; grows where that did not pay.
    pub(super) threshold: AtomicU32,
    shards: OnceLock<Box<[Shard]>>,
    /// Held to change the mode, and while readers are gathered.
    change: Mutex<()>,
}

/// As many as a power of two.
type Shard = Padded<Gate<ShardState>>;

#[derive(Default)]
struct ShardState {
    held: Vec<Span>,
    reads: u32,
}

/// Spreading has paid when so many reads came for each shard.
const READS_THAT_PAY: u32 = 500;
const THRESHOLD_MIN: u32 = if cfg!(loom) { 1 } else { 16 };
const THRESHOLD_MAX: u32 = 1 << 16;
/// A thread that holds more than these leaves the others where they are found faster.
const HELD_MAX: usize = 32;

impl Readers {
    pub(super) fn new() -> Self {
        Readers {
            mode: AtomicU8::new(IN_LEAVES),
            threshold: AtomicU32::new(THRESHOLD_MIN),
            shards: OnceLock::new(),
            change: Mutex::new(()),
        }
    }

    /// Whether all requests are in the leaves. To be asked by a writer inside of its leaves.
    #[inline]
    pub(super) fn are_in_leaves(&self) -> bool {
        // Acquire: pairs with the Release in `gather`, so that the gathered are seen.
        self.mode.load(Ordering::Acquire) == IN_LEAVES
    }

    /// Takes a range, while there are no writers. Returns the shard's number.
    #[inline]
    pub(super) fn take(&self, span: Span) -> Option<u32> {
        if self.mode.load(Ordering::Relaxed) != SPREAD {
            return None;
        }
        let shards = self.shards.get()?;
        let number = slot() & (shards.len() - 1);
        let mut shard = shards[number].0.enter();
        // Relaxed: `gather` changes the mode before it enters this shard. If it was here before us, its gate
        // shows us the new mode; if not, it will find our range.
        if self.mode.load(Ordering::Relaxed) != SPREAD || shard.held.len() >= HELD_MAX {
            return None;
        }
        shard.held.push(span);
        shard.reads = shard.reads.saturating_add(1);
        Some(number as u32)
    }

    /// Gives a range back. `false`: it has been moved into the leaves.
    #[inline]
    pub(super) fn give(&self, number: u32, span: Span) -> bool {
        self.with_held(number, |held| match held.iter().rposition(|&s| s == span) {
            Some(at) => {
                held.swap_remove(at);
                true
            }
            None => false,
        })
    }

    /// One range becomes two. `false`: it has been moved into the leaves.
    pub(super) fn split(&self, number: u32, span: Span, left: Span, right: Span) -> bool {
        self.with_held(number, |held| match held.iter().rposition(|&s| s == span) {
            Some(at) => {
                held[at] = left;
                held.push(right);
                true
            }
            None => false,
        })
    }

    fn with_held<T>(&self, number: u32, change: impl FnOnce(&mut Vec<Span>) -> T) -> T {
        let shards = self.shards.get().expect("a reader is in a shard");
        change(&mut shards[number as usize].0.enter().held)
    }

    /// Lets readers spread. `no_writer` enters all leaves, and runs its argument inside if nobody writes there.
    pub(super) fn spread(&self, shards: usize, no_writer: impl FnOnce(&dyn Fn())) {
        let _change = whole(self.change.lock());
        if self.mode.load(Ordering::Relaxed) == IN_LEAVES {
            self.shards
                .get_or_init(|| (0..shards).map(|_| Shard::default()).collect());
            // Relaxed: it happens inside of all leaves, and writers ask inside of theirs.
            no_writer(&|| self.mode.store(SPREAD, Ordering::Relaxed));
        }
    }

    /// Moves all readers into the leaves, by `insert`. Others that need that wait here.
    #[cold]
    pub(super) fn gather(&self, mut insert: impl FnMut(Span)) {
        let _change = whole(self.change.lock());
        if self.mode.load(Ordering::Relaxed) == IN_LEAVES {
            return;
        }
        self.mode.store(GATHERING, Ordering::Relaxed);
        let shards = self.shards.get().expect("readers are spread");
        let mut reads: u32 = 0;
        for shard in shards {
            let mut shard = shard.0.enter();
            reads = reads.saturating_add(std::mem::take(&mut shard.reads));
            shard.held.drain(..).for_each(&mut insert);
        }
        let paid = reads >= READS_THAT_PAY.saturating_mul(shards.len() as u32);
        let former = self.threshold.load(Ordering::Relaxed);
        let threshold = if paid {
            THRESHOLD_MIN
        } else {
            (former * 2).min(THRESHOLD_MAX)
        };
        self.threshold.store(threshold, Ordering::Relaxed);
        // Release: pairs with `are_in_leaves`.
        self.mode.store(IN_LEAVES, Ordering::Release);
    }
}

impl Default for Shard {
    fn default() -> Self {
        Padded(Gate::new(ShardState::default()))
    }
}

/// Threads are dealt out to the shards in turn.
#[cfg(not(loom))]
fn slot() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SLOT: Cell<usize> = const { Cell::new(usize::MAX) });
    // A thread at its end may have lost its slot; any will do.
    let of_thread = |slot: &Cell<usize>| {
        if slot.get() == usize::MAX {
            slot.set(NEXT.fetch_add(1, Ordering::Relaxed) % (usize::MAX / 2));
        }
        slot.get()
    };
    SLOT.try_with(of_thread).unwrap_or(0)
}

#[cfg(loom)]
fn slot() -> usize {
    crate::sync::this_thread()
}
