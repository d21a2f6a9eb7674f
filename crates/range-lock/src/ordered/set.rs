use crate::Kind;
use crate::span::Span;
use crate::sync::Arc;
use crate::waiter::Waiter;

use super::treap::Treap;

/// A request for a range: held, or waiting.
pub(crate) struct Entry {
    pub(crate) span: Span,
    pub(crate) kind: Kind,
    /// Earlier requests have smaller numbers, within one leaf.
    pub(crate) order: u64,
    /// Present if it had to wait.
    pub(crate) waiter: Option<Arc<Waiter>>,
}

/// A request that stays in its set.
pub(crate) struct View<'a> {
    pub(crate) span: Span,
    pub(crate) kind: Kind,
    pub(crate) order: u64,
    pub(crate) waiter: Option<&'a Arc<Waiter>>,
}

/// Two requests of one key differ in their order alone.
pub(super) type Key = (u64, u64, Kind, u64);

impl Entry {
    pub(super) fn key(&self) -> Key {
        (self.span.start, self.span.last, self.kind, self.order)
    }

    pub(super) fn view(&self) -> View<'_> {
        View {
            span: self.span,
            kind: self.kind,
            order: self.order,
            waiter: self.waiter.as_ref(),
        }
    }
}

impl View<'_> {
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiter.is_some_and(|waiter| !waiter.is_granted())
    }

    #[inline]
    pub(crate) fn conflicts(&self, span: Span, kind: Kind) -> bool {
        self.span.overlaps(span) && (self.kind == Kind::Write || kind == Kind::Write)
    }

    fn is_of(&self, waiter: &Arc<Waiter>) -> bool {
        self.waiter.is_some_and(|own| Arc::ptr_eq(own, waiter))
    }
}

/// So many entries are looked through one by one.
const FLAT: usize = 8;

/// A set of requests. The first few lie flat in the lock itself; more are in a [`Treap`], where everything costs
/// O(log n), and O(1) for each overlapping entry found.
// In this order: who is alone touches the first lines only.
#[repr(C)]
pub(crate) struct IntervalSet {
    /// Bit n: there is an entry n. It writes; it has a waiter.
    used: u8,
    writes: u8,
    waits: u8,
    tree: Option<Box<Tree>>,
    flat: [Flat; FLAT],
    waiters: [Option<Arc<Waiter>>; FLAT],
}

#[derive(Clone, Copy)]
struct Flat {
    span: Span,
    order: u64,
}

/// Entries for which there is no room otherwise, and how many of them write or have a waiter.
struct Tree {
    entries: Treap,
    writes: usize,
    waits: usize,
}

impl IntervalSet {
    pub(crate) const fn new() -> Self {
        let span = Span { start: 0, last: 0 };
        IntervalSet {
            used: 0,
            writes: 0,
            waits: 0,
            tree: None,
            flat: [Flat { span, order: 0 }; FLAT],
            waiters: [const { None }; FLAT],
        }
    }

    /// Whether some request writes.
    #[inline]
    pub(crate) fn has_writes(&self) -> bool {
        self.writes != 0 || self.tree.as_ref().is_some_and(|tree| tree.writes > 0)
    }

    /// Whether some request waits, or had to.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waits != 0 || self.tree.as_ref().is_some_and(|tree| tree.waits > 0)
    }

    /// Whether there is no request.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0 && self.tree.is_none()
    }

    /// Removes the request that [`insert_alone`](Self::insert_alone) put there, which is still the only one.
    #[inline]
    pub(crate) fn remove_alone(&mut self) {
        debug_assert!(self.used == 1 && self.waits == 0 && self.tree.is_none());
        (self.used, self.writes) = (0, 0);
    }

    /// As `insert`, of a held range into an empty set.
    #[inline]
    pub(crate) fn insert_alone(&mut self, span: Span, kind: Kind, order: u64) {
        debug_assert!(self.is_empty());
        (self.used, self.writes) = (1, u8::from(kind == Kind::Write));
        self.flat[0] = Flat { span, order };
    }

    #[inline]
    pub(crate) fn insert(&mut self, entry: Entry) {
        let at = self.used.trailing_ones() as usize;
        if at >= FLAT {
            return self.insert_into_tree(entry);
        }
        let bit = 1_u8 << at;
        self.used |= bit;
        if entry.kind == Kind::Write {
            self.writes |= bit;
        }
        self.flat[at] = Flat {
            span: entry.span,
            order: entry.order,
        };
        if entry.waiter.is_some() {
            self.waits |= bit;
            self.waiters[at] = entry.waiter;
        }
    }

    #[cold]
    #[inline(never)]
    fn insert_into_tree(&mut self, entry: Entry) {
        let tree = self.tree.get_or_insert_with(|| {
            Box::new(Tree {
                entries: Treap::new(),
                writes: 0,
                waits: 0,
            })
        });
        tree.writes += usize::from(entry.kind == Kind::Write);
        tree.waits += usize::from(entry.waiter.is_some());
        tree.entries.insert(entry);
    }

    /// Removes a request of this form, of which there is one, in a set where none waits.
    ///
    /// # Panics
    /// There is none.
    #[inline]
    pub(crate) fn remove_held(&mut self, span: Span, kind: Kind) {
        debug_assert!(!self.has_waiters());
        // Without waiters those of one form do not differ at all.
        let at = self.of_kind(kind).find(|&at| self.flat[at].span == span);
        match at {
            Some(at) => {
                self.used &= !(1 << at);
                self.writes &= !(1 << at);
            }
            None => self.remove_from_tree(span, kind),
        }
    }

    /// As `remove_held`, of the tree.
    #[cold]
    #[inline(never)]
    fn remove_from_tree(&mut self, span: Span, kind: Kind) {
        let removed = self.take(span, kind);
        assert!(removed.is_some(), "a held range is in its leaf");
    }

    /// Removes a request of this form, the earliest. Those of one form are alike, and the earliest has its range if any
    /// has.
    pub(crate) fn take(&mut self, span: Span, kind: Kind) -> Option<Entry> {
        let flat = self
            .of_kind(kind)
            .filter(|&at| self.flat[at].span == span)
            .min_by_key(|&at| self.flat[at].order);
        let in_tree = self
            .tree
            .as_ref()
            .and_then(|tree| tree.entries.earliest(span, kind));
        match (flat, in_tree) {
            (Some(at), Some(order)) if order > self.flat[at].order => Some(self.take_flat(at)),
            (Some(at), None) => Some(self.take_flat(at)),
            (_, Some(order)) => self.take_from_tree((span.start, span.last, kind, order)),
            (None, None) => None,
        }
    }

    fn take_flat(&mut self, at: usize) -> Entry {
        let kind = self.kind(at);
        let bit = 1_u8 << at;
        self.used &= !bit;
        self.writes &= !bit;
        self.waits &= !bit;
        Entry {
            span: self.flat[at].span,
            kind,
            order: self.flat[at].order,
            waiter: self.waiters[at].take(),
        }
    }

    fn take_from_tree(&mut self, key: Key) -> Option<Entry> {
        let tree = self.tree.as_mut()?;
        let entry = tree.entries.take(key)?;
        tree.writes -= usize::from(entry.kind == Kind::Write);
        tree.waits -= usize::from(entry.waiter.is_some());
        if tree.entries.len() == 0 {
            self.tree = None;
        }
        Some(entry)
    }

    /// Removes the request of this waiter.
    pub(crate) fn take_waiter(&mut self, span: Span, waiter: &Arc<Waiter>) -> Option<Entry> {
        let mut flat = bits(self.waits);
        if let Some(at) = flat.find(|&at| self.view(at).is_of(waiter)) {
            return Some(self.take_flat(at));
        }
        let mut key = None;
        self.tree.as_ref()?.entries.overlapping(span, &mut |entry| {
            if entry.view().is_of(waiter) {
                key = Some(entry.key());
            }
        });
        self.take_from_tree(key?)
    }

    /// Calls for each request that a reader or writer of this range is in conflict with, in no order.
    #[inline]
    pub(crate) fn conflicting(&self, span: Span, kind: Kind, mut each: impl FnMut(View<'_>)) {
        let candidates = match kind {
            Kind::Read => self.writes,
            Kind::Write => self.used,
        };
        bits(candidates)
            .filter(|&at| self.flat[at].span.overlaps(span))
            .for_each(|at| each(self.view(at)));
        // A tree of readers alone is no reader's business.
        let tree = self.tree.as_ref();
        if let Some(tree) = tree.filter(|tree| kind == Kind::Write || tree.writes > 0) {
            tree.entries.overlapping(span, &mut |entry| {
                let view = entry.view();
                if view.conflicts(span, kind) {
                    each(view);
                }
            });
        }
    }

    /// Empties the set.
    pub(crate) fn drain(&mut self) -> Vec<Entry> {
        let mut all: Vec<Entry> = bits(self.used).map(|at| self.take_flat(at)).collect();
        if let Some(mut tree) = self.tree.take() {
            all.append(&mut tree.entries.drain());
        }
        all
    }

    fn view(&self, at: usize) -> View<'_> {
        View {
            span: self.flat[at].span,
            kind: self.kind(at),
            order: self.flat[at].order,
            waiter: self.waiters[at].as_ref(),
        }
    }

    fn kind(&self, at: usize) -> Kind {
        match self.writes >> at & 1 {
            0 => Kind::Read,
            _ => Kind::Write,
        }
    }

    #[inline]
    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = usize> + use<> {
        bits(match kind {
            Kind::Read => self.used & !self.writes,
            Kind::Write => self.writes,
        })
    }
}

/// The numbers of the bits that are set. There is no bit from `FLAT` on.
#[inline]
fn bits(mut set: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (at < FLAT).then_some(at)
    })
}
