//! Counting arrivals: a combining tree, whose last arrival of all knows that it is the last.
//!
//! Of the threads below a node the last one goes on to the node above (after Yew, Tzeng, Lawrie: Distributing
//! Hot-Spot Addressing in Large-Scale Multiprocessors, 1987). Nobody has to be awake to pass on what others did,
//! as in trees whose inner nodes belong to a thread: a thread that lost its CPU after it arrived delays nobody.

use crate::sync::{AtomicU32, Line, Ordering};
use crate::tree::Tree;

/// Arrivals at each node of a tree.
#[derive(Debug, Default)]
pub struct Arrivals {
    nodes: Vec<Line<AtomicU32>>,
}

impl Arrivals {
    /// Makes room for a tree. Nobody may be arriving.
    pub fn grow(&mut self, tree: &Tree) {
        let missing = tree.nodes().saturating_sub(self.nodes.len());
        let new = (0..missing).map(|_| Line(AtomicU32::new(0)));
        self.nodes.extend(new);
    }

    /// Thread `id` has arrived. True for the last one: what all others did before they arrived has happened before this
    /// returns. O(log threads), and O(1) for most.
    #[inline]
    pub fn arrive(&self, id: usize, tree: &Tree) -> bool {
        let mut at = tree.leaf(id);
        loop {
            let (below, parent) = tree.node(at);
            if below > 1 {
                let node = &self.nodes[at as usize];
                // AcqRel: the last one acquires what the others released, and passes it on.
                if node.fetch_add(1, Ordering::AcqRel) + 1 != below {
                    return false;
                }
                // Nobody arrives again before all were let go, which happens after this.
                node.store(0, Ordering::Relaxed);
            }
            match parent {
                Some(parent) => at = parent,
                None => return true,
            }
        }
    }

    /// Forgets who has arrived. Nobody may be arriving.
    pub fn reset(&self) {
        for node in &self.nodes {
            node.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::tree::tests::spots;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_last_one_is_told_and_nobody_else(
            spots in spots(),
            others in spots(),
            rounds in 1usize..4,
            seed: u64,
        ) {
            let mut arrivals = Arrivals::default();
            let trees = [Tree::of(&spots), Tree::of(&others)];
            let mut state = seed;
            for (tree, threads) in trees.iter().zip([spots.len(), others.len()]) {
                arrivals.grow(tree);
                let mut order: Vec<usize> = (0..threads).collect();
                for _ in 0..rounds {
                    for i in (1..threads).rev() {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        order.swap(i, (state >> 33) as usize % (i + 1));
                    }
                    let last: Vec<bool> = order.iter().map(|&id| arrivals.arrive(id, tree)).collect();
                    prop_assert!(last[threads - 1]);
                    prop_assert_eq!(last.iter().filter(|&&l| l).count(), 1);
                }
            }
        }
    }
}
