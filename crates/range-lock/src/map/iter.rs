use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use crate::span::Span;

use super::node::{self, Leaf, Node};

/// The ranges of one version of a [`SeqRangeMap`](super::SeqRangeMap), in order.
pub struct Iter<'r, V> {
    root: *const Node,
    /// The next entry.
    place: Option<(&'r Leaf<V>, usize)>,
    last: u64,
    values: PhantomData<&'r V>,
}

impl<'r, V> Iter<'r, V> {
    /// # Safety
    /// `root` is null or a tree of `V`, no node of which is freed while `'r` lasts.
    pub(super) unsafe fn new(root: *const Node, span: Span) -> Self {
        Iter {
            root,
            // SAFETY: as promised by the caller.
            place: unsafe { node::find(root, span.start) },
            last: span.last,
            values: PhantomData,
        }
    }

    pub(super) fn empty() -> Self {
        Iter {
            root: std::ptr::null(),
            place: None,
            last: 0,
            values: PhantomData,
        }
    }
}

impl<'r, V> Iterator for Iter<'r, V> {
    type Item = (RangeInclusive<u64>, &'r V);

    fn next(&mut self) -> Option<Self::Item> {
        let (leaf, at) = self.place.take()?;
        let span = leaf.span(at);
        if span.start > self.last {
            return None;
        }
        self.place = if at + 1 < leaf.len() {
            Some((leaf, at + 1))
        } else {
            let after = span.last.checked_add(1);
            // SAFETY: as promised to `new`.
            after.and_then(|after| unsafe { node::find(self.root, after) })
        };
        Some((span.range(), leaf.value(at)))
    }
}

impl<V> FusedIterator for Iter<'_, V> {}

/// What is in no range of one version of a [`SeqRangeMap`](super::SeqRangeMap), in order.
pub struct Gaps<'r, V> {
    ranges: Iter<'r, V>,
    /// What was not looked at yet.
    rest: Option<Span>,
}

impl<'r, V> Gaps<'r, V> {
    pub(super) fn new(ranges: Iter<'r, V>, rest: Option<Span>) -> Self {
        Gaps { ranges, rest }
    }
}

impl<V> Iterator for Gaps<'_, V> {
    type Item = RangeInclusive<u64>;

    fn next(&mut self) -> Option<RangeInclusive<u64>> {
        while let Some(rest) = self.rest {
            let Some((range, _)) = self.ranges.next() else {
                self.rest = None;
                return Some(rest.range());
            };
            let after = range.end().checked_add(1);
            self.rest = after.and_then(|start| Span::between(start, rest.last));
            if let (Some(gap), _) = rest.split(*range.start()) {
                return Some(gap.range());
            }
        }
        None
    }
}

impl<V> FusedIterator for Gaps<'_, V> {}
