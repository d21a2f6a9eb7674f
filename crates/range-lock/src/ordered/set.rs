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

impl Entry {
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiter
            .as_ref()
            .is_some_and(|waiter| !waiter.is_granted())
    }

    /// Two requests of one key differ in their order alone.
    pub(super) fn key(&self) -> (u64, u64, Kind, u64) {
        (self.span.start, self.span.last, self.kind, self.order)
    }

    #[inline]
    fn is_for(&self, span: Span, kind: Kind) -> bool {
        self.span == span && self.kind == kind
    }

    #[inline]
    pub(crate) fn conflicts(&self, span: Span, kind: Kind) -> bool {
        self.span.overlaps(span) && (self.kind == Kind::Write || kind == Kind::Write)
    }
}

/// So many entries are looked through one by one.
const FLAT: usize = 12;

/// A set of requests. A few lie flat; more are in a [`Treap`], where everything costs O(log n) and O(1) for each
/// overlapping entry found.
pub(crate) enum IntervalSet {
    Flat(Vec<Entry>),
    Tree(Box<Treap>),
}

impl IntervalSet {
    pub(crate) const fn new() -> Self {
        IntervalSet::Flat(Vec::new())
    }

    #[inline]
    pub(crate) fn insert(&mut self, entry: Entry) {
        match self {
            IntervalSet::Flat(entries) if entries.len() < FLAT => entries.push(entry),
            IntervalSet::Flat(entries) => {
                let mut tree = Box::new(Treap::new());
                entries.drain(..).for_each(|entry| tree.insert(entry));
                tree.insert(entry);
                *self = IntervalSet::Tree(tree);
            }
            IntervalSet::Tree(tree) => tree.insert(entry),
        }
    }

    /// Removes the earliest request of this form. Those of one form are alike, and the earliest has its range if any has.
    #[inline]
    pub(crate) fn take(&mut self, span: Span, kind: Kind) -> Option<Entry> {
        match self {
            IntervalSet::Flat(entries) => {
                let found = (entries.iter().enumerate())
                    .filter(|(_, entry)| entry.is_for(span, kind))
                    .min_by_key(|(_, entry)| entry.order);
                let at = found?.0;
                Some(entries.swap_remove(at))
            }
            IntervalSet::Tree(tree) => {
                let entry = tree.take(span, kind);
                self.flatten();
                entry
            }
        }
    }

    /// Removes the request of this waiter.
    pub(crate) fn take_waiter(
        &mut self,
        span: Span,
        kind: Kind,
        waiter: &Arc<Waiter>,
    ) -> Option<Entry> {
        let mut order = None;
        self.overlapping(span, |entry| {
            let is_it = entry
                .waiter
                .as_ref()
                .is_some_and(|w| Arc::ptr_eq(w, waiter));
            if is_it && entry.is_for(span, kind) {
                order = Some(entry.order);
            }
        });
        let order = order?;
        match self {
            IntervalSet::Flat(entries) => {
                let is_it = |entry: &Entry| entry.is_for(span, kind) && entry.order == order;
                let at = entries.iter().position(is_it)?;
                Some(entries.swap_remove(at))
            }
            IntervalSet::Tree(tree) => {
                let entry = tree.take_exact((span.start, span.last, kind, order));
                self.flatten();
                entry
            }
        }
    }

    /// Calls for each entry that overlaps, in no order.
    #[inline]
    pub(crate) fn overlapping(&self, span: Span, mut each: impl FnMut(&Entry)) {
        match self {
            IntervalSet::Flat(entries) => entries
                .iter()
                .filter(|entry| entry.span.overlaps(span))
                .for_each(each),
            IntervalSet::Tree(tree) => tree.overlapping(span, &mut each),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            IntervalSet::Flat(entries) => entries.is_empty(),
            IntervalSet::Tree(tree) => tree.len() == 0,
        }
    }

    /// Empties the set.
    pub(crate) fn drain(&mut self) -> Vec<Entry> {
        match std::mem::replace(self, IntervalSet::new()) {
            IntervalSet::Flat(entries) => entries,
            IntervalSet::Tree(mut tree) => tree.drain(),
        }
    }

    fn flatten(&mut self) {
        if let IntervalSet::Tree(tree) = self
            && tree.len() <= FLAT / 3
        {
            *self = IntervalSet::Flat(tree.drain());
        }
    }
}
