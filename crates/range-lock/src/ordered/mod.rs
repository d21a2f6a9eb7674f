//! The ordered implementation: who is exact, whatever the sizes. See DESIGN.md.

mod leaf;
mod place;
mod readers;
#[cfg(all(test, loom))]
mod readers_model;
mod set;
mod slots;
mod table;
mod treap;

#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::OnceLock;

use crate::Kind;
use crate::gate::Rounds;
use crate::span::Span;
use crate::sync::{Arc, Padded};
use crate::waiter::{Waiter, Woken};

pub(crate) use place::Place;

use leaf::{Entered, Leaf, LeafState};
use place::LEAVES_MAX;
use readers::Readers;
use slots::NoteAt;
use table::Table;

/// What became of a request.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Granted(Place),
    /// Not granted. It waits, if there was a waiter.
    Blocked,
}

pub(crate) struct Ordered {
    /// More leaves than one. Boxed: most locks never have it.
    table: OnceLock<Box<Table>>,
    readers: Readers,
    first: Padded<Leaf>,
    cpus: usize,
}

/// One contended entry counts as much as this.
const MET: i32 = 100;
/// Meetings that make a leaf split: ten more than were made up for by requests that need several leaves.
const SPLIT_AT: i32 = if cfg!(loom) { MET } else { 10 * MET };
/// A request that needs several leaves.
const CROSSED: i32 = 100;
/// A border that was moved for such a one.
const MOVED: i32 = CROSSED / 8;
const JOIN_AT: i32 = if cfg!(loom) { -CROSSED } else { -5 * CROSSED };
/// A read that met another reader of an overlapping range: so many that met nobody.
const READERS_MET: u32 = 16;
/// So often a wrong leaf is taken for a table in change.
const LOST: u32 = 8;

impl Ordered {
    pub(crate) fn new() -> Self {
        Ordered {
            table: OnceLock::new(),
            readers: Readers::new(),
            first: Padded(Leaf::new(0, u64::MAX)),
            cpus: crate::cpus(),
        }
    }

    /// Takes a range at once or not at all.
    #[inline]
    pub(crate) fn try_take(&self, span: Span, kind: Kind) -> Option<Place> {
        match kind {
            Kind::Read => self.try_read(span),
            Kind::Write => self.try_write(span),
        }
    }

    // A copy of each path for each kind, so that nothing on it asks again.

    #[inline]
    fn try_read(&self, span: Span) -> Option<Place> {
        match self.readers.take(span) {
            None => self.take_alone(span, Kind::Read),
            place => place,
        }
    }

    fn try_write(&self, span: Span) -> Option<Place> {
        self.take_alone(span, Kind::Write)
    }

    /// Most ranges are in one leaf, and nobody else is there.
    #[inline(always)]
    fn take_alone(&self, span: Span, kind: Kind) -> Option<Place> {
        let number = self.number(span.start);
        if let Some(mut leaf) = self.leaf(number).try_enter()
            && leaf.covers(span)
            && (kind == Kind::Read || self.readers.are_in_leaves())
        {
            leaf.traffic.note(span, kind);
            let token = if leaf.is_empty() {
                leaf::take_alone(&mut leaf, span, kind)
            } else {
                if leaf.blockers(span, kind) > 0 {
                    leaf.leave_as_found();
                    return None;
                }
                leaf.insert(span, kind, None);
                None
            };
            if kind == Kind::Read && leaf.traffic.reads >= self.readers.threshold() {
                drop(leaf);
                self.spread_readers();
            }
            return Some(Place::leaf(number, token));
        }
        match self.request(span, kind, None) {
            Outcome::Granted(place) => Some(place),
            Outcome::Blocked => None,
        }
    }

    /// One try. With a waiter, the request is in the queue afterwards, unless it was granted.
    #[cold]
    pub(crate) fn request(&self, span: Span, kind: Kind, waiter: Option<&Arc<Waiter>>) -> Outcome {
        loop {
            if kind == Kind::Read
                && let Some(place) = self.readers.take(span)
            {
                return Outcome::Granted(place);
            }
            let mut cover = self.cover(span);
            if kind == Kind::Write && !self.readers.are_in_leaves() {
                drop(cover);
                self.readers.gather(|span| self.insert_read(span));
                continue;
            }
            let mut blockers = 0;
            cover.each(|leaf| blockers += leaf.blockers(span, kind));
            if blockers > 0 {
                if let Some(waiter) = waiter {
                    waiter.wait_for(blockers);
                    cover.each(|leaf| leaf.insert(span, kind, Some(Arc::clone(waiter))));
                }
                return Outcome::Blocked;
            }
            cover.each(|leaf| leaf.insert(span, kind, None));
            let spread = self.adapt(&mut cover, span, kind);
            drop(cover);
            if spread {
                self.spread_readers();
            }
            return Outcome::Granted(Place::LEAVES);
        }
    }

    #[inline]
    pub(crate) fn release(&self, span: Span, kind: Kind, place: Place) {
        match (kind, place.as_note()) {
            (Kind::Read, Some(at)) => self.release_note(span, at),
            (Kind::Read, None) => self.release_read(span, place),
            (Kind::Write, _) => self.release_write(span, place),
        }
    }

    #[inline]
    fn release_note(&self, span: Span, at: NoteAt) {
        if !self.readers.give(at, || self.insert_read(span)) {
            self.release_read(span, Place::leaf(self.number(span.start), None));
        }
    }

    fn release_read(&self, span: Span, place: Place) {
        self.release_alone(span, Kind::Read, place);
    }

    fn release_write(&self, span: Span, place: Place) {
        self.release_alone(span, Kind::Write, place);
    }

    #[inline(always)]
    fn release_alone(&self, span: Span, kind: Kind, place: Place) {
        let leaf = self.leaf(place.number());
        if let Some(token) = place.token()
            && leaf.release_unseen(token)
        {
            return;
        }
        if let Some(mut leaf) = leaf.try_enter()
            && leaf.covers(span)
            && leaf.release_alone(span, kind)
        {
            return;
        }
        self.release_and_wake(span, kind);
    }

    #[cold]
    #[inline(never)]
    fn release_and_wake(&self, span: Span, kind: Kind) {
        let mut woken = Woken::default();
        let mut cover = self.cover(span);
        cover.each(|leaf| leaf.release(span, kind, &mut woken));
        drop(cover);
        woken.wake();
    }

    /// Takes a waiting request back. `false`: it was granted before that, and is held.
    pub(crate) fn cancel(&self, span: Span, kind: Kind, waiter: &Arc<Waiter>) -> bool {
        let mut woken = Woken::default();
        let mut cover = self.cover(span);
        // Nobody can grant it now: that happens inside of the leaves that both have.
        let waits = !waiter.is_granted();
        if waits {
            cover.each(|leaf| leaf.cancel(span, kind, waiter, &mut woken));
        }
        drop(cover);
        woken.wake();
        waits
    }

    pub(crate) fn downgrade(&self, span: Span) {
        let mut woken = Woken::default();
        let mut cover = self.cover(span);
        cover.each(|leaf| leaf.downgrade(span, &mut woken));
        drop(cover);
        woken.wake();
    }

    /// Where the parts are noted.
    pub(crate) fn split(
        &self,
        span: Span,
        kind: Kind,
        place: Place,
        left: Span,
        right: Span,
    ) -> Place {
        if let Some(at) = place.as_note() {
            self.readers.move_one(at, || self.insert_read(span));
        }
        self.cover(span)
            .each(|leaf| leaf.split_held(kind, span, left, right));
        Place::LEAVES
    }

    /// Notes a read that has been granted.
    fn insert_read(&self, span: Span) {
        self.cover(span)
            .each(|leaf| leaf.insert(span, Kind::Read, None));
    }

    /// Where each leaf but the first begins.
    pub(crate) fn borders(&self) -> Vec<u64> {
        let cover = self.cover(Span::ALL);
        cover.more.iter().map(|leaf| leaf.lo).collect()
    }

    /// How many requests have come to where this range begins.
    pub(crate) fn served(&self, span: Span) -> u64 {
        let (mut leaf, _) = self.enter(span.start);
        leaf.leave_as_found();
        leaf.requests()
    }

    /// Of those that a thread holds the one for which its request would wait in vain: somebody before it waits for that, or for
    /// another who does. With a waiter, it is in the queue.
    #[cfg(all(debug_assertions, not(loom)))]
    pub(crate) fn waits_for_held<'h>(
        &self,
        span: Span,
        kind: Kind,
        own: Option<&Arc<Waiter>>,
        held: &'h [crate::held::Held],
    ) -> Option<&'h crate::held::Held> {
        struct Waiting {
            /// `None`: it is to come, in whatever leaf.
            leaf: Option<u64>,
            order: u64,
            span: Span,
            kind: Kind,
            waiter: *const Waiter,
        }
        let conflict = |a: (Span, Kind), b: (Span, Kind)| {
            a.0.overlaps(b.0) && (a.1 == Kind::Write || b.1 == Kind::Write)
        };
        let mut waiting = Vec::new();
        // All leaves at once: what waits is what waits at one time.
        self.cover(Span::ALL).each(|leaf| {
            let lo = Some(leaf.lo);
            leaf.each_waiting(|entry| {
                waiting.push(Waiting {
                    leaf: lo,
                    order: entry.order,
                    span: entry.span,
                    kind: entry.kind,
                    waiter: entry.waiter.map_or(std::ptr::null(), Arc::as_ptr),
                });
            });
        });
        let own = own.map_or(std::ptr::null(), Arc::as_ptr);
        if own.is_null() {
            waiting.push(Waiting {
                leaf: None,
                order: u64::MAX,
                span,
                kind,
                waiter: own,
            });
        }
        crate::held::waits_for_held(
            &waiting,
            held,
            |one, held| conflict((one.span, one.kind), (held.span, held.kind)),
            |one, other| {
                // Within a leaf orders tell who came first; a request of several leaves is one.
                let is_before = (one.leaf.is_none() || one.leaf == other.leaf)
                    && other.order < one.order
                    && conflict((one.span, one.kind), (other.span, other.kind));
                is_before || one.waiter == other.waiter
            },
            |one| one.waiter == own,
        )
    }

    /// Enters all leaves that the range overlaps, in the order of their addresses: so nobody waits in a circle.
    #[inline]
    fn cover(&self, span: Span) -> Cover<'_> {
        let (first, met) = self.enter(span.start);
        let mut cover = Cover {
            first,
            more: Vec::new(),
            met,
        };
        let mut hi = cover.first.hi;
        while hi < span.last {
            let (next, met) = self.enter_next(hi + 1);
            hi = next.hi;
            cover.met |= met;
            cover.more.push(next);
        }
        cover
    }

    /// Enters the leaf of an address, from within one of lower addresses.
    ///
    /// A table in change may lead to any leaf, to one that this thread is in as well, or to one below it, whose holder waits for this
    /// one. So nobody waits for the leaf that he was led to, but looks into the table again.
    fn enter_next(&self, address: u64) -> (Entered<'_>, bool) {
        let mut leaf = self.leaf(self.number(address)).try_enter();
        let (mut rounds, mut met) = (Rounds::default(), false);
        loop {
            met |= leaf.is_none();
            if let Some(leaf) = leaf
                && leaf.contains(address)
            {
                return (leaf, met);
            }
            rounds.wait();
            leaf = self.leaf(self.number(address)).look_and_enter();
        }
    }

    /// Enters the leaf of an address. Only for who is in none.
    #[inline]
    fn enter(&self, address: u64) -> (Entered<'_>, bool) {
        let mut lost = 0;
        loop {
            let entered = self.leaf(self.number(address)).enter();
            if entered.0.contains(address) {
                return entered;
            }
            drop(entered);
            lost += 1;
            if lost % LOST == 0
                && let Some(table) = self.table.get()
            {
                table.settle();
            }
        }
    }

    /// The leaf where `address` should be.
    #[inline]
    fn number(&self, address: u64) -> u32 {
        self.table.get().map_or(0, |table| table.hint(address))
    }

    #[inline]
    fn leaf(&self, number: u32) -> &Leaf {
        let in_table = match number {
            0 => None,
            _ => self.table.get().and_then(|table| table.leaf(number)),
        };
        in_table.unwrap_or(&self.first.0)
    }

    /// Learns from a granted request: splits a leaf, or joins some. `true`: readers should be spread.
    #[inline]
    fn adapt(&self, cover: &mut Cover<'_>, span: Span, kind: Kind) -> bool {
        if !cover.more.is_empty() {
            self.join_crossed(cover, span);
            return false;
        }
        let other =
            (cover.met && cover.first.traffic.was_other()).then_some(cover.first.traffic.latest);
        cover.note(span, kind);
        let Some(other) = other else { return false };
        let leaf = &mut *cover.first;
        if leaf.traffic.apart >= SPLIT_AT * leaf.patience && !other.overlaps(span) {
            // In the middle between the two, for each may have more of its own on its side.
            let (low, high) = (other.last.min(span.last) + 1, other.start.max(span.start));
            self.split_leaf(leaf, low + (high - low).div_ceil(2));
        }
        kind == Kind::Read && leaf.traffic.reads >= self.readers.threshold()
    }

    #[cold]
    fn split_leaf(&self, leaf: &mut LeafState, at: u64) {
        leaf.traffic.apart = 0;
        let capacity = match cfg!(loom) {
            true => 3,
            false => {
                let wanted = (4 * self.cpus).next_power_of_two();
                wanted.clamp(16, LEAVES_MAX as usize) as u32
            }
        };
        let table = self.table.get_or_init(|| Box::new(Table::new(capacity)));
        let Some(mut edit) = table.try_edit() else {
            return;
        };
        if at <= leaf.lo || !leaf.contains(at) || !leaf.is_quiet() {
            return;
        }
        let Some(number) = edit.take_free() else {
            return self.join_idle(table, &mut edit);
        };
        let (mut right, _) = self.leaf(number).enter();
        leaf.split(at, &mut right);
        table.add(&mut edit, at, number);
    }

    /// Room for later: joins neighbours in which nobody has met since this was tried last.
    fn join_idle(&self, table: &Table, edit: &mut table::Edit) {
        for _ in 0..4 {
            let Some((left, right)) = table.neighbours(edit) else {
                return;
            };
            let (left, right) = (self.leaf(left).try_enter(), self.leaf(right).try_enter());
            let (Some(mut left), Some(mut right)) = (left, right) else {
                continue;
            };
            if left.traffic.apart > 0 || right.traffic.apart > 0 {
                left.traffic.apart = 0;
                right.traffic.apart = 0;
            } else if left.is_quiet() && right.is_quiet() {
                let number = table.remove(edit, right.lo);
                left.absorb(&mut right);
                edit.give_free(number);
            }
        }
    }

    /// A request needs several leaves. If they are two, and it is clear to whom the other one belongs, the border moves
    /// out of the way; if that happens again and again, they become one.
    #[cold]
    fn join_crossed(&self, cover: &mut Cover<'_>, span: Span) {
        let Some(table) = self.table.get() else {
            return;
        };
        let Some(mut edit) = table.try_edit() else {
            return;
        };
        let is_pair = cover.more.len() == 1;
        let mut left = &mut *cover.first;
        for right in &mut cover.more {
            let right = &mut **right;
            let is_mine = (!left.traffic.was_other(), !right.traffic.was_other());
            let better = match is_mine {
                (true, false) => span.last.checked_add(1).filter(|&at| at <= right.hi),
                (false, true) => Some(span.start).filter(|&at| at > left.lo),
                _ => None,
            };
            let better = better.filter(|_| is_pair);
            let cost = if better.is_some() { MOVED } else { CROSSED };
            for leaf in [&mut *left, &mut *right] {
                leaf.traffic.apart = (leaf.traffic.apart - cost).max(2 * JOIN_AT);
            }
            let is_over = left.traffic.apart + right.traffic.apart <= JOIN_AT;
            if (is_over || better.is_some()) && left.is_quiet() && right.is_quiet() {
                let apart = left.traffic.apart;
                let number = table.remove(&mut edit, right.lo);
                match better.filter(|_| !is_over) {
                    Some(at) => {
                        left.absorb(right);
                        left.split(at, right);
                        right.traffic.apart = apart;
                        table.add(&mut edit, at, number);
                    }
                    None => {
                        left.join(right);
                        edit.give_free(number);
                    }
                }
                left.traffic.apart = apart;
            }
            if right.lo <= right.hi {
                left = right;
            }
        }
    }

    #[cold]
    fn spread_readers(&self) {
        // They may be so already, and this be one that has no more room of its own.
        if !self.readers.are_in_leaves() {
            return;
        }
        self.readers.spread(|now| {
            let mut cover = self.cover(Span::ALL);
            let mut has_writes = false;
            cover.each(|leaf| {
                has_writes |= leaf.has_writes();
                leaf.traffic.reads = 0;
            });
            if !has_writes {
                now();
            }
        });
    }
}

/// What learning does, on demand.
#[cfg(test)]
impl Ordered {
    pub(crate) fn split_now(&self, at: u64) {
        let (mut leaf, _) = self.enter(at);
        self.split_leaf(&mut leaf, at);
    }

    pub(crate) fn join_now(&self, span: Span) {
        let mut cover = self.cover(span);
        cover.each(|leaf| leaf.traffic.apart = JOIN_AT);
        self.join_crossed(&mut cover, span);
    }

    pub(crate) fn spread_now(&self) {
        self.spread_readers();
    }
}

/// The leaves that a range overlaps, entered.
struct Cover<'a> {
    first: Entered<'a>,
    more: Vec<Entered<'a>>,
    /// Somebody else was in one of them.
    met: bool,
}

impl Cover<'_> {
    #[inline]
    fn each(&mut self, mut each: impl FnMut(&mut LeafState)) {
        each(&mut self.first);
        self.more.iter_mut().for_each(|leaf| each(leaf));
    }

    /// Notes who was here, and whether he met somebody who wanted something else.
    fn note(&mut self, span: Span, kind: Kind) {
        let leaf = &mut *self.first;
        let traffic = &mut leaf.traffic;
        if self.met && self.more.is_empty() && traffic.was_other() {
            if !traffic.latest.overlaps(span) {
                traffic.apart = (traffic.apart + MET).min(SPLIT_AT * leaf.patience);
            } else {
                traffic.reads = traffic.reads.saturating_add(READERS_MET);
            }
        }
        traffic.note(span, kind);
    }
}
