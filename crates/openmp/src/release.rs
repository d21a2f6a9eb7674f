//! Letting all threads of a team go, in O(log threads) steps: who opens a gate may leave it to those who wait there to open
//! others. Which, it writes before it opens; the first of them who is awake takes that, so that nobody is waited for who
//! has no CPU.
//!
//! In trees of up to [`FAN_IN`] leaves one opens all. So it does where CPUs are being taken: between taking what is left and
//! doing it a thread may lose its CPU, and others would wait for that.

use crate::gate::Gate;
use crate::sync::{AtomicU32, Ordering};
use crate::tree::{FAN_IN, Tree};

/// Nothing is left to do.
const NOTHING: u32 = u32::MAX;

/// What is left to those who wait at a gate: to let all go below this node of the tree.
#[derive(Debug)]
pub(crate) struct Rest(AtomicU32);

impl Rest {
    pub(crate) fn none() -> Rest {
        Rest(AtomicU32::new(NOTHING))
    }

    /// Written before the gate is opened, which publishes it.
    pub(crate) fn leave(&self, top: u32) {
        self.0.store(top, Ordering::Relaxed);
    }

    /// For whoever went through the gate: true for one at most.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        if self.0.load(Ordering::Relaxed) == NOTHING {
            return None;
        }
        let top = self.0.swap(NOTHING, Ordering::Relaxed);
        (top != NOTHING).then_some(top)
    }

    /// Nobody is to take it any more.
    pub(crate) fn reset(&self) {
        self.leave(NOTHING);
    }
}

/// Opens the gates of all leaves, by a thread of `leaf`; `gate` gives each its own, and whether CPUs are being taken is asked only where
/// it matters; `tell` is called with each before it is opened. Once the last gate is opened the tree may
/// be changed: it is not looked at any more.
pub(crate) fn open_all<'a, T: 'a>(
    tree: &Tree,
    leaf: u32,
    is_disturbed: impl FnOnce() -> bool,
    gate: impl Fn(u32) -> (&'a Gate<T>, &'a Rest),
    tell: impl Fn(&T),
) {
    let leaves = tree.leaves() as u32;
    let (own, _) = gate(leaf);
    let open = |gate: &Gate<T>| {
        tell(&gate.word);
        gate.open();
    };
    if leaves as usize <= FAN_IN || is_disturbed() {
        for other in (0..leaves).filter(|&other| other != leaf) {
            open(gate(other).0);
        }
    } else {
        open_rest(tree, leaf, tree.root(), &gate, &open);
    }
    open(own);
}

/// A thread went through the gate of its leaf: it opens the gates that are left to it.
#[inline]
pub(crate) fn pass_on<'a, T: 'a>(
    tree: &Tree,
    leaf: u32,
    gate: impl Fn(u32) -> (&'a Gate<T>, &'a Rest),
    tell: impl Fn(&T),
) {
    if tree.leaves() > FAN_IN
        && let Some(top) = gate(leaf).1.take()
    {
        open_rest(tree, leaf, top, &gate, &|gate: &Gate<T>| {
            tell(&gate.word);
            gate.open();
        });
    }
}

fn open_rest<'a, T: 'a>(
    tree: &Tree,
    leaf: u32,
    top: u32,
    gate: &impl Fn(u32) -> (&'a Gate<T>, &'a Rest),
    open: &impl Fn(&Gate<T>),
) {
    tree.rest(leaf, top, &mut |first, below| {
        let (gate, rest) = gate(first);
        if below != first {
            rest.leave(below);
        }
        open(gate);
    });
}
