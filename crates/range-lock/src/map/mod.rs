mod iter;
mod node;
mod reclaim;
mod splice;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{RangeBounds, RangeInclusive};

use crate::span::Span;
use crate::sync::{AtomicPtr, AtomicUsize, Mutex, Ordering, whole};

use node::{Entry, Node};
use reclaim::{Pin, Reclaim};
use splice::Splice;

pub use iter::{Gaps, Iter};

/// A map from ranges of addresses to values, which a [`Reader`] walks without a lock and without a store.
///
/// Ranges do not overlap, and neighbours with equal values are one range. A change makes a new version of the tree, with a
/// copy of the nodes from the root to the place, and shares all others; so each reader sees the map as it was at some moment.
/// Changes exclude each other by a mutex: each of them replaces the root, which all subtrees have in common.
///
/// Nothing is poisoned. A panic in a clone or a comparison of values leaves the map as it was. One in the drop of a value comes in the thread
/// that drops it, and the map is either as it was or changed; what was to be freed besides is never freed.
///
/// Like Linux's maple tree (2022) it is a B-tree with wide nodes whose readers are not held up by writers; unlike it, a node
/// never changes while readers can see it, so that values need no protection of their own.
///
/// With n ranges, a look-up costs O(log n) and a change O(log n + k), where k ranges are overwritten. A change clones the
/// values of one to three leaves of up to 16 values: put large ones into an [`Arc`](std::sync::Arc). Clones made in that way
/// are the same value to the map, so a value should not have a state of its own that changes.
///
/// ```
/// use amdahl_range_lock::SeqRangeMap;
///
/// let map = SeqRangeMap::new();
/// map.insert(0x1000..0x5000, "text");
/// map.insert(0x3000..0x4000, "data");
/// assert_eq!(map.get(0x3456), Some("data"));
/// assert_eq!(map.get_entry(0x4000), Some((0x4000..=0x4fff, "text")));
///
/// let reader = map.reader(); // For many look-ups.
/// let gaps: Vec<_> = reader.snapshot().gaps(0..0x6000).collect();
/// assert_eq!(gaps, [0..=0xfff, 0x5000..=0x5fff]);
/// ```
///
/// What a change replaces is dropped when no reader can see it any more, by a thread that reads or changes the map then, and
/// some changes later: see [`flush`](SeqRangeMap::flush). No lock is held meanwhile; it is while clones are made.
///
/// Values must live as long as the map says:
///
/// ```compile_fail
/// use amdahl_range_lock::SeqRangeMap;
///
/// fn put<'a>(map: &SeqRangeMap<&'a str>, text: &'a str) {
///     map.insert(0..1, text);
/// }
///
/// let map: SeqRangeMap<&'static str> = SeqRangeMap::new();
/// let text = String::from("gone");
/// put(&map, &text);
/// drop(text);
/// println!("{:?}", map.get(0));
/// ```
pub struct SeqRangeMap<V> {
    /// Null: the map is empty.
    root: AtomicPtr<Node>,
    len: AtomicUsize,
    /// Held by who changes the map.
    change: Mutex<()>,
    reclaim: Reclaim,
    /// It owns values, and takes others through a shared reference: a map of values that live long is none of values that live
    /// shortly.
    values: PhantomData<Invariant<V>>,
}

/// What neither lives longer nor shorter than `V`.
type Invariant<V> = (V, fn(V) -> V);

// SAFETY: it owns its values, which threads share and drop.
unsafe impl<V: Send + Sync> Send for SeqRangeMap<V> {}
// SAFETY: as above; changes exclude each other by a mutex, and readers see nodes that do not change.
unsafe impl<V: Send + Sync> Sync for SeqRangeMap<V> {}

impl<V> SeqRangeMap<V> {
    /// An empty map.
    pub fn new() -> Self {
        SeqRangeMap {
            root: AtomicPtr::new(std::ptr::null_mut()),
            len: AtomicUsize::new(0),
            change: Mutex::new(()),
            reclaim: Reclaim::new(),
            values: PhantomData,
        }
    }

    /// Ranges in the map.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there is no range in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For many look-ups. While it lives, memory that changes replace is not used again: see [`Reader::refresh`].
    #[inline]
    pub fn reader(&self) -> Reader<'_, V> {
        Reader {
            map: self,
            pin: self.reclaim.pin(),
        }
    }

    /// Whether an address is in a range. See [`get`](Self::get).
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        self.reader().get(address).is_some()
    }
}

impl<V: Clone> SeqRangeMap<V> {
    /// The value of the range that an address is in. With a [`reader`](Self::reader) of its own, which costs
    /// a store: for many look-ups one is enough.
    #[inline]
    pub fn get(&self, address: u64) -> Option<V> {
        self.reader().get(address).cloned()
    }

    /// The same with the range.
    pub fn get_entry(&self, address: u64) -> Option<(RangeInclusive<u64>, V)> {
        let reader = self.reader();
        let (range, value) = reader.get_entry(address)?;
        Some((range, value.clone()))
    }
}

impl<V: Clone + PartialEq> SeqRangeMap<V> {
    /// Gives all addresses of a range a value, whatever they had. An empty range changes nothing.
    pub fn insert(&self, range: impl RangeBounds<u64>, value: V) {
        if let Some(span) = Span::of(range) {
            self.change(span, Some(value));
        }
    }

    /// Takes the values of all addresses of a range.
    pub fn remove(&self, range: impl RangeBounds<u64>) {
        if let Some(span) = Span::of(range) {
            self.change(span, None);
        }
    }

    /// Takes all values.
    pub fn clear(&self) {
        self.remove(..);
    }

    /// Lets what this thread has replaced be freed as soon as no reader can see it. Changes do that for many nodes at once.
    pub fn flush(&self) {
        Reclaim::flush(&self.reclaim.pin());
    }

    fn change(&self, span: Span, value: Option<V>) {
        let replaced = self.replace(span, value);
        // What is freed drops values, which is foreign code: nobody is locked out meanwhile.
        let pin = self.reclaim.pin();
        for node in replaced {
            // SAFETY: it is not in the new tree, so who pins from now on does not find it; and it is replaced once.
            unsafe { Self::retire(&pin, node) };
        }
    }

    /// Makes the new version; the nodes that it does not have any more.
    fn replace(&self, span: Span, mut value: Option<V>) -> Vec<*mut Node> {
        let _change = whole(self.change.lock());
        // Relaxed: only who holds the mutex writes it.
        let root = self.root.load(Ordering::Relaxed);
        // SAFETY: nodes of the tree in use are not freed, and only we could replace them.
        let Some(change) = (unsafe { Change::of(root, span, &mut value) }) else {
            return Vec::new();
        };
        let mut splice = Splice::<V>::new();
        // SAFETY: as above.
        let new = unsafe { splice.run(root, change.span, change.entries) };
        let len = self.len.load(Ordering::Relaxed) + change.added - change.removed;
        self.len.store(len, Ordering::Relaxed);
        // Release: pairs with the Acquire in `Reader::root`, so that readers see the nodes complete.
        self.root.store(new, Ordering::Release);
        splice.done()
    }

    /// # Safety
    /// Readers do not find the node any more, and it is retired once.
    unsafe fn retire(pin: &Pin<'_>, node: *mut Node) {
        #[cfg(not(loom))]
        let free = |node, _: &seize::Collector| {
            // SAFETY: nobody reads it any more, and it is a node of this map.
            unsafe { node::free::<V>(node) }
        };
        #[cfg(loom)]
        let free = node::free::<V>;
        // SAFETY: as promised by the caller.
        unsafe { Reclaim::retire(pin, node, free) }
    }
}

/// What is to be put where.
struct Change<V> {
    span: Span,
    entries: Vec<Entry<V>>,
    added: usize,
    removed: usize,
}

impl<V: Clone + PartialEq> Change<V> {
    /// All that is touched by a value for `span`: what it overlaps, and neighbours that are equal. `None`: nothing changes, and
    /// the value is left to the caller.
    ///
    /// # Safety
    /// `root` is null or a tree of `V` whose nodes live.
    unsafe fn of(root: *const Node, span: Span, value: &mut Option<V>) -> Option<Self> {
        // One address more on each side: there equal neighbours would be.
        let around = match *value {
            Some(_) => Span {
                start: span.start.saturating_sub(1),
                last: span.last.saturating_add(1),
            },
            None => span,
        };
        let (mut touched, mut whole) = (span, span);
        let (mut left, mut right, mut removed) = (None, None, 0);
        // SAFETY: as promised by the caller.
        let overlapped = unsafe { Iter::<V>::new(root, around) };
        for (range, other) in overlapped {
            let other_span = Span {
                start: *range.start(),
                last: *range.end(),
            };
            let is_equal = value.as_ref() == Some(other);
            if !is_equal && !other_span.overlaps(span) {
                continue;
            }
            if is_equal && other_span.start <= span.start && span.last <= other_span.last {
                return None;
            }
            removed += 1;
            touched.start = touched.start.min(other_span.start);
            touched.last = touched.last.max(other_span.last);
            if is_equal {
                whole.start = whole.start.min(other_span.start);
                whole.last = whole.last.max(other_span.last);
                continue;
            }
            let (before, rest) = other_span.split(span.start);
            let after = rest.and_then(|rest| match span.last.checked_add(1) {
                Some(end) => rest.split(end).1,
                None => None,
            });
            let part = |span| Entry {
                span,
                value: other.clone(),
            };
            left = left.or_else(|| before.map(part));
            right = right.or_else(|| after.map(part));
        }
        if value.is_none() && removed == 0 {
            return None;
        }
        let new = value.take().map(|value| Entry { span: whole, value });
        let entries: Vec<_> = [left, new, right].into_iter().flatten().collect();
        Some(Change {
            span: touched,
            added: entries.len(),
            entries,
            removed,
        })
    }
}

/// Looks into a [`SeqRangeMap`], without any store. It belongs to its thread.
///
/// Each look-up sees the latest version of the map; [`snapshot`](Reader::snapshot) keeps to one. A panic that drops it lets go of all
/// that it has found, and leaves the map as it is.
pub struct Reader<'a, V> {
    map: &'a SeqRangeMap<V>,
    pin: Pin<'a>,
}

impl<'a, V> Reader<'a, V> {
    /// The value of the range that an address is in.
    #[inline]
    pub fn get(&self, address: u64) -> Option<&V> {
        self.snapshot().get(address)
    }

    /// The same with the range.
    #[inline]
    pub fn get_entry(&self, address: u64) -> Option<(RangeInclusive<u64>, &V)> {
        self.snapshot().get_entry(address)
    }

    /// The map as it is now, for as long as this reader is not refreshed.
    #[inline]
    pub fn snapshot(&self) -> Snapshot<'_, V> {
        Snapshot {
            root: self.root(),
            values: PhantomData,
        }
    }

    /// Lets go of all versions that this reader may have seen, so that their memory can be used again. Costs as much as a new
    /// reader: one store. A thread that reads for ever should do so now and then, say every 1,000 look-ups.
    #[inline]
    pub fn refresh(&mut self) {
        Reclaim::refresh(&mut self.pin);
    }

    #[inline]
    fn root(&self) -> *const Node {
        // It pairs with the Release in `replace`. The pin keeps what is found.
        Reclaim::load(&self.pin, &self.map.root)
    }
}

/// The map as it was at one moment.
pub struct Snapshot<'r, V> {
    root: *const Node,
    values: PhantomData<&'r V>,
}

impl<'r, V> Snapshot<'r, V> {
    /// The value of the range that an address is in.
    #[inline]
    pub fn get(&self, address: u64) -> Option<&'r V> {
        // SAFETY: the reader that is borrowed for 'r keeps the nodes.
        let (leaf, at) = unsafe { node::find::<V>(self.root, address) }?;
        (leaf.span(at).start <= address).then(|| leaf.value(at))
    }

    /// The same with the range.
    #[inline]
    pub fn get_entry(&self, address: u64) -> Option<(RangeInclusive<u64>, &'r V)> {
        // SAFETY: as above.
        let (leaf, at) = unsafe { node::find::<V>(self.root, address) }?;
        let span = leaf.span(at);
        (span.start <= address).then(|| (span.range(), leaf.value(at)))
    }

    /// All ranges with their values, in order.
    pub fn iter(&self) -> Iter<'r, V> {
        self.overlapping(..)
    }

    /// Those that overlap a range, in order and whole.
    pub fn overlapping(&self, range: impl RangeBounds<u64>) -> Iter<'r, V> {
        match Span::of(range) {
            // SAFETY: the reader that is borrowed for 'r keeps the nodes.
            Some(span) => unsafe { Iter::new(self.root, span) },
            None => Iter::empty(),
        }
    }

    /// What is in no range, within a range, in order.
    pub fn gaps(&self, range: impl RangeBounds<u64>) -> Gaps<'r, V> {
        let span = Span::of(range);
        let iter = match span {
            // SAFETY: as above.
            Some(span) => unsafe { Iter::new(self.root, span) },
            None => Iter::empty(),
        };
        Gaps::new(iter, span)
    }
}

impl<V> Clone for Snapshot<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Snapshot<'_, V> {}

impl<'r, V> IntoIterator for Snapshot<'r, V> {
    type Item = (RangeInclusive<u64>, &'r V);
    type IntoIter = Iter<'r, V>;

    fn into_iter(self) -> Iter<'r, V> {
        self.iter()
    }
}

impl<V> Drop for SeqRangeMap<V> {
    fn drop(&mut self) {
        let root = self.root.load(Ordering::Relaxed);
        if !root.is_null() {
            // SAFETY: nobody else has the map any more; those below are freed before those above.
            unsafe { node::each::<V>(root, &mut |node| node::free::<V>(node)) };
        }
    }
}

impl<V> Default for SeqRangeMap<V> {
    fn default() -> Self {
        SeqRangeMap::new()
    }
}

impl<V: Clone + PartialEq, R: RangeBounds<u64>> FromIterator<(R, V)> for SeqRangeMap<V> {
    fn from_iter<I: IntoIterator<Item = (R, V)>>(ranges: I) -> Self {
        let map = SeqRangeMap::new();
        for (range, value) in ranges {
            map.insert(range, value);
        }
        map
    }
}

impl<V: fmt::Debug> fmt::Debug for SeqRangeMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reader = self.reader();
        f.debug_map().entries(reader.snapshot()).finish()
    }
}
