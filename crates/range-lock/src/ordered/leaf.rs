use crate::Kind;
use crate::gate::{Gate, Inside};
use crate::span::Span;
use crate::sync::{Arc, this_thread};
use crate::waiter::{Waiter, Woken};

use super::place::Token;
use super::set::{Entry, IntervalSet, View};

/// The requests that overlap a part of the addresses.
pub(super) struct Leaf(Gate<LeafState>);

pub(super) type Entered<'a> = Inside<'a, LeafState>;

// In this order: with one or two entries, all that is touched lies in the two lines that the word of the gate begins.
#[repr(C)]
pub(super) struct LeafState {
    /// The part. `lo > hi`: the leaf is not in use.
    pub(super) lo: u64,
    pub(super) hi: u64,
    pub(super) traffic: Traffic,
    /// The order of the next entry. Never falls, so that no two entries of a leaf have the same.
    orders: u64,
    set: IntervalSet,
    /// How many times more meetings than usual it takes to split this leaf: earlier splits did not last.
    pub(super) patience: i32,
    /// The order of the first request since the last split.
    since: u64,
}

/// What tells whether a leaf should be split, joined, or its readers spread.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Traffic {
    /// The range of the last request, and whose it was.
    pub(super) latest: Span,
    by: usize,
    /// How many readers came since the last write; one that met another of an overlapping range counts for many.
    pub(super) reads: u32,
    /// Rises when requests that do not overlap meet in the mutex, falls when a request needs several leaves.
    pub(super) apart: i32,
}

/// A split has paid when so many requests have come since.
const LASTING: u64 = 1000;
const PATIENCE_MAX: i32 = 64;

impl Traffic {
    /// Notes who was here.
    #[inline]
    pub(super) fn note(&mut self, span: Span, kind: Kind) {
        self.reads = match kind {
            Kind::Read => self.reads.saturating_add(1),
            Kind::Write => 0,
        };
        self.latest = span;
        self.by = this_thread();
    }

    /// Whether the last request was another thread's.
    pub(super) fn was_other(&self) -> bool {
        self.by != this_thread()
    }
}

impl Leaf {
    pub(super) fn new(lo: u64, hi: u64) -> Self {
        Leaf(Gate::new(LeafState::new(lo, hi)))
    }

    /// Enters, and tells whether somebody else was inside.
    #[inline]
    pub(super) fn enter(&self) -> (Entered<'_>, bool) {
        match self.try_enter() {
            Some(state) => (state, false),
            None => (settled(self.0.wait_and_enter()), true),
        }
    }

    #[inline]
    pub(super) fn try_enter(&self) -> Option<Entered<'_>> {
        self.0.try_enter().map(settled)
    }

    /// The same as [`try_enter`](Self::try_enter), for who tries again and again.
    #[inline]
    pub(super) fn look_and_enter(&self) -> Option<Entered<'_>> {
        self.0.look_and_enter().map(settled)
    }

    /// Gives back the range that got this token by [`take_alone`], if nobody was in the leaf since.
    #[inline]
    pub(super) fn release_unseen(&self, token: Token) -> bool {
        self.0.take_off(token.bits())
    }
}

/// Does what was left to do when a range was given back without entering.
#[inline]
fn settled(mut entered: Entered<'_>) -> Entered<'_> {
    if entered.was_taken_off() {
        entered.set.remove_alone();
    }
    entered
}

/// Notes a held range as the only request of the leaf: as long as nobody enters, it can be given back by the token alone.
///
/// No other request of this leaf has this token, ever. So if the entry was moved to another leaf, giving it back cannot be taken for that
/// of who is alone here now.
#[inline]
pub(super) fn take_alone(entered: &mut Entered<'_>, span: Span, kind: Kind) -> Option<Token> {
    let order = entered.orders;
    entered.orders += 1;
    entered.set.insert_alone(span, kind, order);
    let token = Token::of(order)?;
    entered.post(token.bits());
    Some(token)
}

impl LeafState {
    pub(super) const fn new(lo: u64, hi: u64) -> Self {
        LeafState {
            lo,
            hi,
            traffic: Traffic {
                latest: Span { start: 0, last: 0 },
                by: 0,
                reads: 0,
                apart: 0,
            },
            orders: 1,
            set: IntervalSet::new(),
            patience: 1,
            since: 0,
        }
    }

    /// Whether a range needs no other leaf.
    #[inline]
    pub(super) fn covers(&self, span: Span) -> bool {
        self.lo <= span.start && span.last <= self.hi
    }

    #[inline]
    pub(super) fn contains(&self, address: u64) -> bool {
        self.lo <= address && address <= self.hi
    }

    /// Earlier requests that must go before this one can have its range.
    #[inline]
    pub(super) fn blockers(&self, span: Span, kind: Kind) -> usize {
        let mut blockers = 0;
        self.set.conflicting(span, kind, |_| blockers += 1);
        blockers
    }

    #[inline]
    pub(super) fn insert(&mut self, span: Span, kind: Kind, waiter: Option<Arc<Waiter>>) {
        let order = self.orders;
        self.orders += 1;
        self.set.insert(Entry {
            span,
            kind,
            order,
            waiter,
        });
    }

    /// Whether there is no request.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// How many requests have come.
    pub(super) fn requests(&self) -> u64 {
        self.orders
    }

    fn take_held(&mut self, span: Span, kind: Kind) -> Entry {
        let entry = self.set.take(span, kind);
        entry.expect("a held range is in its leaf")
    }

    /// Gives a held range back, if nobody waits here.
    #[inline]
    pub(super) fn release_alone(&mut self, span: Span, kind: Kind) -> bool {
        let is_alone = !self.set.has_waiters();
        if is_alone {
            self.set.remove_held(span, kind);
        }
        is_alone
    }

    /// Gives a held range back. Whoever is in conflict with it came later, and has counted it.
    #[inline]
    pub(super) fn release(&mut self, span: Span, kind: Kind, woken: &mut Woken) {
        self.take_held(span, kind);
        self.each_waiter(span, kind, |_, waiter| waiter.one_less(woken));
    }

    /// Takes back a request that still waits. Only those that came later have counted it.
    pub(super) fn cancel(
        &mut self,
        span: Span,
        kind: Kind,
        waiter: &Arc<Waiter>,
        woken: &mut Woken,
    ) {
        let taken = self.set.take_waiter(span, waiter);
        let taken = taken.expect("a waiting request is in its leaf");
        self.each_waiter(span, kind, |entry, waiter| {
            if entry.order > taken.order {
                waiter.one_less(woken);
            }
        });
    }

    /// A held range is only read from now on.
    pub(super) fn downgrade(&mut self, span: Span, woken: &mut Woken) {
        let held = self.take_held(span, Kind::Write);
        self.each_waiter(span, Kind::Write, |entry, waiter| {
            if entry.kind == Kind::Read {
                waiter.one_less(woken);
            }
        });
        self.set.insert(Entry {
            kind: Kind::Read,
            ..held
        });
    }

    /// A held range becomes two. Who waits for both parts waits for one more.
    pub(super) fn split_held(&mut self, kind: Kind, whole: Span, left: Span, right: Span) {
        let held = self.take_held(whole, kind);
        let here = Span {
            start: self.lo,
            last: self.hi,
        };
        self.each_waiter(whole, kind, |entry, waiter| {
            let both = entry.span.overlaps(left) && entry.span.overlaps(right);
            if both && left.overlaps(here) && right.overlaps(here) {
                waiter.one_more();
            }
        });
        for span in [left, right].into_iter().filter(|part| part.overlaps(here)) {
            self.set.insert(Entry {
                span,
                kind,
                order: held.order,
                waiter: held.waiter.clone(),
            });
        }
    }

    /// Calls for each request in conflict that waits, or had to wait for the range that it holds.
    #[inline]
    fn each_waiter(&self, span: Span, kind: Kind, mut each: impl FnMut(&View<'_>, &Waiter)) {
        if self.set.has_waiters() {
            self.set.conflicting(span, kind, |entry| {
                if let Some(waiter) = entry.waiter {
                    each(&entry, waiter);
                }
            });
        }
    }

    /// Whether somebody holds or wants a part for himself.
    pub(super) fn has_writes(&self) -> bool {
        self.set.has_writes()
    }

    /// Calls for each request that waits here.
    #[cfg(all(debug_assertions, not(loom)))]
    pub(super) fn each_waiting(&self, mut each: impl FnMut(&View<'_>)) {
        self.each_waiter(Span::ALL, Kind::Write, |entry, _| {
            if entry.is_waiting() {
                each(entry);
            }
        });
    }

    /// Whether nobody waits here: then the requests' order is of no interest, and leaves can be split and joined.
    pub(super) fn is_quiet(&self) -> bool {
        let mut waits = false;
        self.each_waiter(Span::ALL, Kind::Write, |entry, _| {
            waits |= entry.is_waiting()
        });
        !waits
    }

    /// Moves what overlaps `at..` into a leaf that is not in use; what crosses `at` is in both from now on.
    pub(super) fn split(&mut self, at: u64, right: &mut LeafState) {
        assert!(right.lo > right.hi && self.lo < at && at <= self.hi);
        let orders = self.orders.max(right.orders);
        *right = LeafState::new(at, self.hi);
        self.hi = at - 1;
        right.orders = orders;
        for entry in self.set.drain() {
            if entry.span.last >= at {
                right.set.insert(Entry {
                    waiter: entry.waiter.clone(),
                    ..entry
                });
            }
            if entry.span.start < at {
                self.set.insert(entry);
            }
        }
        self.traffic.apart = 0;
        self.since = self.orders;
        (right.traffic, right.patience, right.since) = (self.traffic, self.patience, orders);
    }

    /// Joins a neighbour: ranges cross the border too often.
    pub(super) fn join(&mut self, right: &mut LeafState) {
        let lasted = self.orders.saturating_sub(self.since);
        let patience = self.patience;
        self.patience = match lasted < LASTING * patience as u64 {
            true => (2 * patience).min(PATIENCE_MAX),
            false => 1,
        };
        self.absorb(right);
    }

    /// Takes all that its neighbour has, which is not in use afterwards.
    pub(super) fn absorb(&mut self, right: &mut LeafState) {
        assert!(self.hi < u64::MAX && right.lo == self.hi + 1);
        for entry in right.set.drain() {
            // What begins before the border is here already.
            if entry.span.start >= right.lo {
                self.set.insert(entry);
            }
        }
        self.hi = right.hi;
        self.orders = self.orders.max(right.orders);
        self.traffic.apart = 0;
        let orders = right.orders;
        *right = LeafState::new(1, 0);
        right.orders = orders;
    }
}
