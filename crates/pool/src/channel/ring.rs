//! The ring: slots with stamps that tell whose turn it is.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::sync::Padded;

struct Slot<T> {
    /// Twice the lap: free for that lap's writer. One more: filled.
    stamp: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// Values in the order of their positions; a position's lap is how often the ring was gone round before.
pub(super) struct Ring<T> {
    slots: Box<[Slot<T>]>,
    shift: u32,
    /// The next position to write, and to read.
    tail: Padded<AtomicUsize>,
    head: Padded<AtomicUsize>,
}

// SAFETY: a slot is touched by who has won its position, and by nobody else until the stamp is moved on.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1).next_power_of_two();
        let slot = || Slot {
            stamp: AtomicUsize::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        };
        Ring {
            slots: (0..capacity).map(|_| slot()).collect(),
            shift: capacity.ilog2(),
            tail: Padded(AtomicUsize::new(0)),
            head: Padded(AtomicUsize::new(0)),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    fn slot(&self, position: usize) -> (&Slot<T>, usize) {
        let lap = position >> self.shift;
        (
            &self.slots[position & (self.slots.len() - 1)],
            lap.wrapping_mul(2),
        )
    }

    /// Gives the value back if there is no room.
    pub(super) fn push(&self, value: T) -> Result<(), T> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            let (slot, free) = self.slot(tail);
            // Acquire: pairs with the Release of the reader who freed it.
            let stamp = slot.stamp.load(Ordering::Acquire);
            if stamp == free {
                match self.tail.compare_exchange_weak(
                    tail,
                    tail.wrapping_add(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        // SAFETY: the position is ours, and the slot is free.
                        unsafe { (*slot.value.get()).write(value) };
                        slot.stamp.store(free.wrapping_add(1), Ordering::Release);
                        return Ok(());
                    }
                    Err(found) => tail = found,
                }
            } else {
                let now = self.tail.load(Ordering::Relaxed);
                if now == tail {
                    return Err(value);
                }
                tail = now;
            }
        }
    }

    /// Whether a value could be put in now.
    pub(super) fn has_room(&self) -> bool {
        let (slot, free) = self.slot(self.tail.load(Ordering::Relaxed));
        slot.stamp.load(Ordering::Acquire) == free
    }

    /// Whether one could be taken out now.
    pub(super) fn has_value(&self) -> bool {
        let (slot, free) = self.slot(self.head.load(Ordering::Relaxed));
        slot.stamp.load(Ordering::Acquire) == free.wrapping_add(1)
    }

    pub(super) fn pop(&self) -> Option<T> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let (slot, free) = self.slot(head);
            // Acquire: pairs with the Release of the writer.
            let stamp = slot.stamp.load(Ordering::Acquire);
            if stamp == free.wrapping_add(1) {
                match self.head.compare_exchange_weak(
                    head,
                    head.wrapping_add(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        // SAFETY: the position is ours, and the slot is filled.
                        let value = unsafe { (*slot.value.get()).assume_init_read() };
                        slot.stamp.store(free.wrapping_add(2), Ordering::Release);
                        return Some(value);
                    }
                    Err(found) => head = found,
                }
            } else {
                let now = self.head.load(Ordering::Relaxed);
                if now == head {
                    return None;
                }
                head = now;
            }
        }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]
        #[test]
        fn is_a_bounded_queue(capacity in 0usize..6, ops in prop::collection::vec(any::<bool>(), 0..200)) {
            let ring = Ring::new(capacity);
            let mut model = VecDeque::new();
            for (n, is_push) in ops.into_iter().enumerate() {
                if is_push {
                    let value = Box::new(n);
                    match ring.push(value) {
                        Ok(()) => model.push_back(n),
                        Err(_) => prop_assert_eq!(model.len(), ring.capacity()),
                    }
                } else {
                    prop_assert_eq!(ring.pop().map(|value| *value), model.pop_front());
                }
            }
        }
    }
}
