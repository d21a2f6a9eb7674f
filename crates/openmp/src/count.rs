//! Counting arrivals: a combining tree, whose last arrival of all knows that it is the last.
//!
//! Of the threads below a node the last one goes on to the node above (after Yew, Tzeng, Lawrie: Distributing
//! Hot-Spot Addressing in Large-Scale Multiprocessors, 1987). Nobody has to be awake to pass on what others did,
//! as in trees whose inner nodes belong to a thread: a thread that lost its CPU after it arrived delays nobody.

use crate::sync::{AtomicU32, Line, Ordering};

/// Threads below one node, by their numbers. As many often share a last-level cache; these do where threads are bound to places
/// in the order of the CPUs, and anything can be where they are not bound.
pub const FAN_IN: usize = 8;

/// Arrivals of up to `capacity` threads.
#[derive(Debug, Default)]
pub struct Arrivals {
    levels: Vec<Vec<Line<AtomicU32>>>,
}

impl Arrivals {
    /// Makes room for `capacity` threads. Nobody may be arriving.
    pub fn grow(&mut self, capacity: usize) {
        let mut nodes = capacity.div_ceil(FAN_IN);
        let mut level = 0;
        loop {
            if self.levels.len() <= level {
                self.levels.push(Vec::new());
            }
            let missing = nodes.saturating_sub(self.levels[level].len());
            self.levels[level].extend((0..missing).map(|_| Line(AtomicU32::new(0))));
            if nodes <= 1 {
                return;
            }
            nodes = nodes.div_ceil(FAN_IN);
            level += 1;
        }
    }

    /// Thread `id` of `threads` has arrived. True for the last one: what all others did before they arrived has
    /// happened before this returns. O(log threads), and O(1) for most.
    #[inline]
    pub fn arrive(&self, id: usize, threads: usize) -> bool {
        let (mut index, mut width) = (id, threads);
        for level in &self.levels {
            if width <= 1 {
                break;
            }
            let node = index / FAN_IN;
            let below = FAN_IN.min(width - node * FAN_IN) as u32;
            if below > 1 {
                // AcqRel: the last one acquires what the others released, and passes it on.
                if level[node].fetch_add(1, Ordering::AcqRel) + 1 != below {
                    return false;
                }
                // Nobody arrives again before all were let go, which happens after this.
                level[node].store(0, Ordering::Relaxed);
            }
            index = node;
            width = width.div_ceil(FAN_IN);
        }
        true
    }

    /// Forgets who has arrived. Nobody may be arriving.
    pub fn reset(&self) {
        for node in self.levels.iter().flatten() {
            node.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_last_one_is_told_and_nobody_else(
            threads in 1usize..700,
            capacity in 0usize..700,
            rounds in 1usize..4,
            seed: u64,
        ) {
            let mut arrivals = Arrivals::default();
            arrivals.grow(threads);
            arrivals.grow(capacity);
            let mut order: Vec<usize> = (0..threads).collect();
            let mut state = seed;
            for _ in 0..rounds {
                for i in (1..threads).rev() {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    order.swap(i, (state >> 33) as usize % (i + 1));
                }
                let last: Vec<bool> = order.iter().map(|&id| arrivals.arrive(id, threads)).collect();
                prop_assert!(last[threads - 1]);
                prop_assert_eq!(last.iter().filter(|&&l| l).count(), 1);
            }
        }
    }
}
