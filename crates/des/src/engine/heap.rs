//! Planned events: at most one for each slot, moved and taken back in place.
//!
//! A 4-ary heap with the place of each slot, after J. Williams and D. Johnson: as a CPU or a task
//! has one next event, nothing is ever allocated, and a moved event leaves no dead entry behind,
//! as it would in a calendar queue. Ties go to the lower slot, so the order is total.

use crate::time::{NEVER, Ns};

const AWAY: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    at: Ns,
    slot: u32,
}

impl Entry {
    #[inline]
    fn is_before(self, other: Entry) -> bool {
        (self.at, self.slot) < (other.at, other.slot)
    }
}

/// Events of slots 0, 1, ....
#[derive(Default)]
pub(crate) struct Heap {
    entries: Vec<Entry>,
    /// Where in `entries` a slot is.
    place: Vec<u32>,
}

impl Heap {
    /// Makes room for the slots below `slots`.
    pub fn grow(&mut self, slots: usize) {
        if slots > self.place.len() {
            self.place.resize(slots, AWAY);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// When the next event is.
    #[inline]
    pub fn next(&self) -> Ns {
        self.entries.first().map_or(NEVER, |entry| entry.at)
    }

    /// Whose the next event is.
    #[inline]
    pub fn first(&self) -> u32 {
        self.entries[0].slot
    }

    /// Plans or moves the event of `slot`; [`NEVER`] takes it back. O(log slots).
    #[inline]
    pub fn set(&mut self, slot: u32, at: Ns) {
        let place = self.place[slot as usize];
        if at == NEVER {
            if place != AWAY {
                self.remove(place as usize);
            }
            return;
        }
        let entry = Entry { at, slot };
        if place == AWAY {
            self.entries.push(entry);
            self.up(self.entries.len() - 1, entry);
        } else {
            let old = self.entries[place as usize];
            if entry.is_before(old) {
                self.up(place as usize, entry);
            } else {
                self.down(place as usize, entry);
            }
        }
    }

    fn remove(&mut self, place: usize) {
        let gone = self.entries[place];
        self.place[gone.slot as usize] = AWAY;
        let last = self.entries.pop().expect("the heap holds the entry");
        if last.slot != gone.slot {
            if last.is_before(gone) {
                self.up(place, last);
            } else {
                self.down(place, last);
            }
        }
    }

    #[inline]
    fn put(&mut self, place: usize, entry: Entry) {
        self.entries[place] = entry;
        self.place[entry.slot as usize] = place as u32;
    }

    fn up(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let parent = (place - 1) / 4;
            if !entry.is_before(self.entries[parent]) {
                break;
            }
            self.put(place, self.entries[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    fn down(&mut self, mut place: usize, entry: Entry) {
        loop {
            let first = 4 * place + 1;
            let children =
                &self.entries[first.min(self.entries.len())..self.entries.len().min(first + 4)];
            let Some((mut best, rest)) = children.split_first() else {
                break;
            };
            let mut at = first;
            for (child, i) in rest.iter().zip(first + 1..) {
                if child.is_before(*best) {
                    (best, at) = (child, i);
                }
            }
            if !best.is_before(entry) {
                break;
            }
            let best = *best;
            self.put(place, best);
            place = at;
        }
        self.put(place, entry);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn like_a_sorted_map(steps in prop::collection::vec((0u32..40, 0u64..30), 1..400)) {
            let (mut heap, mut model) = (Heap::default(), BTreeMap::new());
            heap.grow(40);
            for (slot, at) in steps {
                let at = if at >= 25 { NEVER } else { at };
                heap.set(slot, at);
                model.remove(&slot);
                if at != NEVER {
                    model.insert(slot, at);
                }
                let first = model.iter().map(|(&slot, &at)| (at, slot)).min();
                prop_assert_eq!(heap.is_empty(), first.is_none());
                if let Some((at, slot)) = first {
                    prop_assert_eq!((heap.next(), heap.first()), (at, slot));
                }
            }
        }
    }
}
