use crate::Kind;
use crate::span::Span;

use super::set::{Entry, Key};

const NIL: u32 = u32::MAX;

struct Node {
    entry: Entry,
    /// The largest `last` below and in this node.
    max_last: u64,
    priority: u32,
    left: u32,
    right: u32,
}

/// An interval tree: a treap (Seidel and Aragon 1996) by start, with the largest end of each subtree (Cormen et al.,
/// section 17.3). Nodes lie in one allocation and are found by number. O(log n) expected.
pub(crate) struct Treap {
    /// A hole is `None` in `Slot`'s place.
    nodes: Vec<Slot>,
    hole: u32,
    root: u32,
    len: usize,
    random: u32,
}

enum Slot {
    Node(Node),
    Hole { next: u32 },
}

impl Treap {
    pub(crate) fn new() -> Self {
        Treap {
            nodes: Vec::new(),
            hole: NIL,
            root: NIL,
            len: 0,
            random: 0x9e37_79b9,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        let node = Node {
            max_last: entry.span.last,
            priority: self.priority(),
            left: NIL,
            right: NIL,
            entry,
        };
        let new = self.place(node);
        self.root = self.insert_below(self.root, new);
        self.len += 1;
    }

    /// The order of the earliest request of this form.
    pub(crate) fn earliest(&self, span: Span, kind: Kind) -> Option<u64> {
        let key = self.first_from((span.start, span.last, kind, 0))?;
        ((key.0, key.1, key.2) == (span.start, span.last, kind)).then_some(key.3)
    }

    pub(crate) fn take(&mut self, key: Key) -> Option<Entry> {
        let (root, removed) = self.remove_below(self.root, key);
        self.root = root;
        if removed == NIL {
            return None;
        }
        self.len -= 1;
        let hole = Slot::Hole { next: self.hole };
        self.hole = removed;
        match std::mem::replace(&mut self.nodes[removed as usize], hole) {
            Slot::Node(node) => Some(node.entry),
            Slot::Hole { .. } => unreachable!("a hole in the tree"),
        }
    }

    pub(crate) fn overlapping(&self, span: Span, each: &mut dyn FnMut(&Entry)) {
        self.overlapping_below(self.root, span, each);
    }

    pub(crate) fn drain(&mut self) -> Vec<Entry> {
        let slots = std::mem::take(&mut self.nodes);
        *self = Treap::new();
        slots
            .into_iter()
            .filter_map(|slot| match slot {
                Slot::Node(node) => Some(node.entry),
                Slot::Hole { .. } => None,
            })
            .collect()
    }

    fn node(&self, at: u32) -> &Node {
        match &self.nodes[at as usize] {
            Slot::Node(node) => node,
            Slot::Hole { .. } => unreachable!("a hole in the tree"),
        }
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        match &mut self.nodes[at as usize] {
            Slot::Node(node) => node,
            Slot::Hole { .. } => unreachable!("a hole in the tree"),
        }
    }

    fn place(&mut self, node: Node) -> u32 {
        match self.nodes.get(self.hole as usize) {
            Some(&Slot::Hole { next }) => {
                let at = std::mem::replace(&mut self.hole, next);
                self.nodes[at as usize] = Slot::Node(node);
                at
            }
            _ => {
                let at = u32::try_from(self.nodes.len()).ok().filter(|&at| at != NIL);
                self.nodes.push(Slot::Node(node));
                at.expect("fewer than 2^32 - 1 ranges are held or waited for")
            }
        }
    }

    /// Xorshift (Marsaglia 2003).
    fn priority(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }

    fn max_last(&self, at: u32) -> u64 {
        if at == NIL { 0 } else { self.node(at).max_last }
    }

    fn fix(&mut self, at: u32) {
        let node = self.node(at);
        let below = self.max_last(node.left).max(self.max_last(node.right));
        let max_last = node.entry.span.last.max(below);
        self.node_mut(at).max_last = max_last;
    }

    fn insert_below(&mut self, root: u32, new: u32) -> u32 {
        if root == NIL {
            return new;
        }
        let key = self.node(new).entry.key();
        if self.node(new).priority > self.node(root).priority {
            let (left, right) = self.split(root, key);
            let node = self.node_mut(new);
            (node.left, node.right) = (left, right);
            self.fix(new);
            return new;
        }
        if key < self.node(root).entry.key() {
            let left = self.insert_below(self.node(root).left, new);
            self.node_mut(root).left = left;
        } else {
            let right = self.insert_below(self.node(root).right, new);
            self.node_mut(root).right = right;
        }
        self.fix(root);
        root
    }

    /// Those before `key`, and the others.
    fn split(&mut self, root: u32, key: Key) -> (u32, u32) {
        if root == NIL {
            return (NIL, NIL);
        }
        let parts = if self.node(root).entry.key() < key {
            let (left, right) = self.split(self.node(root).right, key);
            self.node_mut(root).right = left;
            (root, right)
        } else {
            let (left, right) = self.split(self.node(root).left, key);
            self.node_mut(root).left = right;
            (left, root)
        };
        self.fix(root);
        parts
    }

    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL {
            return right;
        }
        if right == NIL {
            return left;
        }
        let root = if self.node(left).priority > self.node(right).priority {
            let merged = self.merge(self.node(left).right, right);
            self.node_mut(left).right = merged;
            left
        } else {
            let merged = self.merge(left, self.node(right).left);
            self.node_mut(right).left = merged;
            right
        };
        self.fix(root);
        root
    }

    /// The new root, and the node that is out of the tree.
    fn remove_below(&mut self, root: u32, key: Key) -> (u32, u32) {
        if root == NIL {
            return (NIL, NIL);
        }
        let (left, right) = (self.node(root).left, self.node(root).right);
        let here = self.node(root).entry.key();
        if here == key {
            return (self.merge(left, right), root);
        }
        let removed = if key < here {
            let (left, removed) = self.remove_below(left, key);
            self.node_mut(root).left = left;
            removed
        } else {
            let (right, removed) = self.remove_below(right, key);
            self.node_mut(root).right = right;
            removed
        };
        self.fix(root);
        (root, removed)
    }

    fn first_from(&self, key: Key) -> Option<Key> {
        let (mut at, mut found) = (self.root, None);
        while at != NIL {
            let node = self.node(at);
            if node.entry.key() >= key {
                found = Some(node.entry.key());
                at = node.left;
            } else {
                at = node.right;
            }
        }
        found
    }

    fn overlapping_below(&self, root: u32, span: Span, each: &mut dyn FnMut(&Entry)) {
        if root == NIL || self.node(root).max_last < span.start {
            return;
        }
        let node = self.node(root);
        self.overlapping_below(node.left, span, each);
        if node.entry.span.overlaps(span) {
            each(&node.entry);
        }
        if node.entry.span.start <= span.last {
            self.overlapping_below(node.right, span, each);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ordered::set::IntervalSet;

    fn entry(span: Span, kind: Kind, order: u64) -> Entry {
        Entry {
            span,
            kind,
            order,
            waiter: None,
        }
    }

    fn spans() -> impl Strategy<Value = Span> {
        let ends = prop_oneof![0..60_u64, u64::MAX - 5..=u64::MAX];
        (ends, 0..20_u64).prop_map(|(start, more)| Span {
            start,
            last: start.saturating_add(more),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 256 }))]

        #[test]
        fn a_set_is_what_a_list_is(steps in prop::collection::vec((spans(), any::<bool>(), 0..4_u8), 1..200)) {
            let (mut set, mut list) = (IntervalSet::new(), Vec::<(Span, Kind, u64)>::new());
            for (order, (span, write, what)) in steps.into_iter().enumerate() {
                let kind = if write { Kind::Write } else { Kind::Read };
                if what > 0 {
                    set.insert(entry(span, kind, order as u64));
                    list.push((span, kind, order as u64));
                } else if let Some(&(span, kind, _)) = list.get(order / 2) {
                    let taken = set.take(span, kind).map(|entry| entry.order);
                    let first = list.iter().position(|e| (e.0, e.1) == (span, kind));
                    let expected = first.map(|at| list.remove(at).2);
                    prop_assert_eq!(taken, expected);
                }
                let mut found = Vec::new();
                set.conflicting(span, Kind::Write, |entry| found.push(entry.order));
                found.sort_unstable();
                let expected: Vec<u64> = list.iter().filter(|e| e.0.overlaps(span)).map(|e| e.2).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
