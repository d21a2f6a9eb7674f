//! A work-stealing deque whose owner pays for sharing only while somebody is hungry.
//!
//! ```text
//!   head      split        bottom
//!    |  shared  |   private   |
//! ```
//!
//! After the split deques of Wool (Faxén 2010) and Lace (van Dijk, van de Pol 2014), and the private deques of
//! Acar, Charguéraud and Rainey (PPoPP 2013): the owner pushes and pops at `bottom` without a fence or a
//! locked instruction as long as it stays in the private part; thieves take from `head`. The owner moves `split`
//! when it is asked to; a thief that finds only private entries may move it itself by an
//! asymmetric fence, so that an owner busy with one long entry does not keep the others to itself.
//! The protocol is in DESIGN.md.

use std::ptr;

use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, Padded, heavy_fence, light_fence};

/// `head`, `split` and who forces, in one word, so that one compare-and-swap decides.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ends(u64);

const INDEX_BITS: u32 = 24;
const INDEX: u32 = (1 << INDEX_BITS) - 1;

impl Ends {
    #[inline(always)]
    fn new(head: u32, split: u32, forcer: u16) -> Self {
        Ends(
            u64::from(head & INDEX)
                | u64::from(split & INDEX) << INDEX_BITS
                | u64::from(forcer) << (2 * INDEX_BITS),
        )
    }
    #[inline(always)]
    fn head(self) -> u32 {
        self.0 as u32 & INDEX
    }
    #[inline(always)]
    fn split(self) -> u32 {
        (self.0 >> INDEX_BITS) as u32 & INDEX
    }
    #[inline(always)]
    fn forcer(self) -> u16 {
        (self.0 >> (2 * INDEX_BITS)) as u16
    }
    #[inline(always)]
    fn shared(self) -> u32 {
        self.split().wrapping_sub(self.head()) & INDEX
    }
}

/// How far `index` is after `origin`, negative before it; both modulo 2^24.
#[inline(always)]
fn after(index: u32, origin: u32) -> i32 {
    (index.wrapping_sub(origin) << (32 - INDEX_BITS)) as i32 >> (32 - INDEX_BITS)
}

/// What a thief found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Steal<T> {
    /// Nothing at all.
    Empty,
    /// Entries, all in the private part.
    Private,
    /// Another was faster; try again.
    Retry,
    /// An entry, the oldest.
    Got(*mut T),
}

/// Entries are pointers that are handed on and never followed here.
pub(crate) struct Deque<T> {
    /// Written by the owner alone.
    bottom: Padded<AtomicU32>,
    ends: Padded<AtomicU64>,
    /// Null where free. A thief claims an entry in `ends` first and empties its slot after.
    ring: Box<[AtomicPtr<T>]>,
}

impl<T> Deque<T> {
    /// Room for `capacity` entries, a power of two up to 2^20.
    pub(crate) fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two() && capacity <= 1 << 20);
        Deque {
            bottom: Padded(AtomicU32::new(0)),
            ends: Padded(AtomicU64::new(0)),
            ring: (0..capacity)
                .map(|_| AtomicPtr::new(ptr::null_mut()))
                .collect(),
        }
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> &AtomicPtr<T> {
        let at = index as usize & (self.ring.len() - 1);
        // SAFETY: the length is a power of two, so that the mask keeps `at` below it.
        unsafe { self.ring.get_unchecked(at) }
    }

    #[inline(always)]
    fn load_ends(&self, order: Ordering) -> Ends {
        Ends(self.ends.load(order))
    }

    #[inline(always)]
    fn change_ends(&self, from: Ends, to: Ends) -> bool {
        // Release: publishes the slots up to the new split, pairs with the Acquire of a thief's load.
        self.ends
            .compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Owner only. False if there is no room; nothing has changed then.
    #[inline(always)]
    pub(crate) fn push(&self, entry: *mut T) -> bool {
        let bottom = self.bottom.load(Ordering::Relaxed);
        let slot = self.slot(bottom);
        // Relaxed: all accesses to a slot agree on its order, and a thief empties it after it has read.
        if !slot.load(Ordering::Relaxed).is_null() {
            return false;
        }
        slot.store(entry, Ordering::Relaxed);
        // Release: pairs with the Acquire in `force`.
        self.bottom.store(bottom.wrapping_add(1), Ordering::Release);
        true
    }

    /// Owner only: the newest entry, null if there is none.
    #[inline(always)]
    pub(crate) fn pop(&self) -> *mut T {
        let bottom = self.bottom.load(Ordering::Relaxed).wrapping_sub(1);
        // Release as in `push`: a thief may read this store instead of that one.
        self.bottom.store(bottom, Ordering::Release);
        // Pairs with the heavy fence in `force`: either the thief sees this store or we see its split.
        light_fence();
        if after(bottom, self.load_ends(Ordering::Relaxed).split()) >= 0 {
            self.take_slot(bottom)
        } else {
            self.pop_shared(bottom)
        }
    }

    #[inline(always)]
    fn take_slot(&self, index: u32) -> *mut T {
        let slot = self.slot(index);
        let entry = slot.load(Ordering::Relaxed);
        slot.store(ptr::null_mut(), Ordering::Relaxed);
        entry
    }

    /// The owner wants `bottom`, which is not private: takes back the newer half of what is shared.
    #[cold]
    fn pop_shared(&self, bottom: u32) -> *mut T {
        loop {
            let ends = self.load_ends(Ordering::Acquire);
            let left = after(bottom, ends.head());
            if left < 0 {
                self.bottom.store(bottom.wrapping_add(1), Ordering::Release);
                return ptr::null_mut();
            }
            let split = ends.head().wrapping_add(left as u32 / 2);
            // Whoever is forcing fails by this.
            if self.change_ends(ends, Ends::new(ends.head(), split, 0)) {
                return self.take_slot(bottom);
            }
        }
    }

    /// Owner only: shares the older half of what is private, at least one entry, if nothing is shared.
    /// Whether it did.
    #[inline]
    pub(crate) fn publish(&self) -> bool {
        let ends = self.load_ends(Ordering::Relaxed);
        if ends.shared() != 0 || ends.forcer() != 0 {
            return false;
        }
        let private = after(self.bottom.load(Ordering::Relaxed), ends.split());
        if private <= 0 {
            return false;
        }
        let split = ends.split().wrapping_add((private as u32).div_ceil(2));
        self.change_ends(ends, Ends::new(ends.head(), split, 0))
    }

    /// Any thread: the oldest entry of the shared part.
    pub(crate) fn steal(&self) -> Steal<T> {
        let ends = self.load_ends(Ordering::Acquire);
        if ends.forcer() != 0 {
            return Steal::Private;
        }
        if ends.shared() == 0 {
            // Acquire: so that nothing that is searched for after is read before.
            let bottom = self.bottom.load(Ordering::Acquire);
            return match after(bottom, ends.split()) {
                ..=0 => Steal::Empty,
                _ => Steal::Private,
            };
        }
        let head = ends.head();
        if self.change_ends(ends, Ends::new(head.wrapping_add(1), ends.split(), 0)) {
            Steal::Got(self.take_slot(head))
        } else {
            Steal::Retry
        }
    }

    /// A thief that found only private entries, and no answer from the owner: shares the older half of them
    /// and takes the oldest. `who` is not 0 and belongs to the calling thread. Interrupts all CPUs that run threads
    /// of this process, some microseconds: not to be done often.
    pub(crate) fn force(&self, who: u16) -> Steal<T> {
        let ends = self.load_ends(Ordering::Acquire);
        if ends.shared() != 0 || ends.forcer() != 0 {
            return Steal::Retry;
        }
        let split = ends.split();
        let private = after(self.bottom.load(Ordering::Acquire), split);
        if private <= 0 {
            return Steal::Empty;
        }
        let wanted = split.wrapping_add((private as u32).div_ceil(2));
        let forced = Ends::new(ends.head(), wanted, who);
        if !self.change_ends(ends, forced) {
            return Steal::Retry;
        }
        let is_fenced = heavy_fence();
        // Acquire: pairs with the Release in `push`; the slots below `bottom` are written.
        let bottom = self.bottom.load(Ordering::Acquire);
        if is_fenced && after(bottom, wanted) >= 0 {
            // What the owner pops from here on, it pops having seen the new split. If it has changed `ends`
            // since, this fails: nobody else writes `who`.
            let head = ends.head();
            if self.change_ends(forced, Ends::new(head.wrapping_add(1), wanted, 0)) {
                return Steal::Got(self.take_slot(head));
            }
        } else {
            // The owner may have popped below the new split without seeing it: as it was.
            self.change_ends(forced, ends);
        }
        if is_fenced {
            Steal::Retry
        } else {
            Steal::Private
        }
    }

    /// Any thread, and stale at once: how many entries there are.
    pub(crate) fn len(&self) -> u32 {
        let ends = self.load_ends(Ordering::Acquire);
        let bottom = self.bottom.load(Ordering::Acquire);
        after(bottom, ends.head()).max(0) as u32
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn entry(n: usize) -> *mut u8 {
        ptr::without_provenance_mut(n + 1)
    }

    #[derive(Clone, Debug)]
    enum Op {
        Push,
        Pop,
        Publish,
        Steal,
        Force,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 }))]
        /// Against a plain deque: newest to the owner, oldest to thieves, nothing lost, room respected.
        #[test]
        fn is_a_deque(ops in prop::collection::vec(
            prop_oneof![3 => Just(Op::Push), 2 => Just(Op::Pop), 1 => Just(Op::Publish), 1 => Just(Op::Steal), 1 => Just(Op::Force)],
            0..200,
        )) {
            let deque = Deque::new(8);
            let mut model = VecDeque::new();
            for (n, op) in ops.into_iter().enumerate() {
                match op {
                    Op::Push => {
                        let has_room = deque.push(entry(n));
                        prop_assert_eq!(has_room, model.len() < 8);
                        if has_room { model.push_back(entry(n)); }
                    }
                    Op::Pop => prop_assert_eq!(deque.pop(), model.pop_back().unwrap_or(ptr::null_mut())),
                    Op::Publish => { deque.publish(); }
                    Op::Steal => match deque.steal() {
                        Steal::Got(found) => prop_assert_eq!(Some(found), model.pop_front()),
                        Steal::Empty => prop_assert!(model.is_empty()),
                        Steal::Private => prop_assert!(!model.is_empty()),
                        Steal::Retry => prop_assert!(false, "nobody else is here"),
                    },
                    Op::Force => match deque.force(1) {
                        Steal::Got(found) => prop_assert_eq!(Some(found), model.pop_front()),
                        Steal::Empty => prop_assert!(model.is_empty()),
                        Steal::Retry => prop_assert_eq!(deque.steal(), Steal::Got(model.pop_front().unwrap())),
                        Steal::Private => {} // no membarrier here
                    },
                }
                prop_assert_eq!(deque.len() as usize, model.len());
            }
        }
    }

    #[test]
    fn indexes_wrap() {
        let deque = Deque::new(4);
        let near = INDEX - 2;
        deque.bottom.store(near, Ordering::Relaxed);
        deque
            .ends
            .store(Ends::new(near, near, 0).0, Ordering::Relaxed);
        for n in 0..40 {
            assert!(deque.push(entry(2 * n)));
            assert!(deque.push(entry(2 * n + 1)));
            assert!(deque.publish());
            assert_eq!(deque.steal(), Steal::Got(entry(2 * n)));
            assert_eq!(deque.steal(), Steal::Private);
            assert_eq!(deque.pop(), entry(2 * n + 1));
            assert_eq!(deque.steal(), Steal::Empty);
        }
    }

    /// Each entry goes to one taker, with thieves that steal and force all the time.
    #[test]
    fn every_entry_goes_to_one() {
        const ENTRIES: usize = if cfg!(miri) { 300 } else { 200_000 };
        let deque: Deque<u8> = Deque::new(64);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let mut seen: Vec<usize> = std::thread::scope(|scope| {
            let thieves: Vec<_> = (1..=2)
                .map(|who| {
                    let (deque, is_over) = (&deque, &is_over);
                    scope.spawn(move || {
                        let mut got = Vec::new();
                        loop {
                            let found = match deque.steal() {
                                Steal::Private => deque.force(who),
                                other => other,
                            };
                            match found {
                                Steal::Got(entry) => got.push(entry.addr()),
                                _ if is_over.load(Ordering::Acquire) => return got,
                                _ => std::thread::yield_now(),
                            }
                        }
                    })
                })
                .collect();
            let mut got = Vec::new();
            let mut n = 0;
            while n < ENTRIES {
                for _ in 0..n % 7 + 1 {
                    if n < ENTRIES && deque.push(entry(n)) {
                        n += 1;
                    }
                }
                if n % 5 == 0 {
                    deque.publish();
                }
                for _ in 0..n % 5 {
                    let popped = deque.pop();
                    if !popped.is_null() {
                        got.push(popped.addr());
                    }
                }
            }
            loop {
                let popped = deque.pop();
                if popped.is_null() {
                    break;
                }
                got.push(popped.addr());
            }
            is_over.store(true, Ordering::Release);
            for thief in thieves {
                got.extend(thief.join().unwrap());
            }
            got
        });
        seen.sort_unstable();
        assert!(seen.into_iter().eq(1..=ENTRIES));
    }
}
