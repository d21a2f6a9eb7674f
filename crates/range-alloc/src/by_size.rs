//! The gaps in the order of their sizes, for the best fit.
//!
//! A treap (Seidel and Aragon, 1996): a search tree by size and start whose shape is that of a heap
//! of random priorities. The priorities are a hash of the start, so that runs repeat. Depths are
//! O(log n) in expectation. Nodes are reserved before a tree changes.

use alloc::vec::Vec;
use core::ops::Range;

use crate::arena::RangeAlloc;
use crate::error::OutOfMemory;
use crate::request::Wanted;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    start: u64,
    size: u64,
    below: u32,
    above: u32,
}

impl Node {
    fn key(&self) -> (u64, u64) {
        (self.size, self.start)
    }

    fn priority(&self) -> u64 {
        // The finaliser of MurmurHash3.
        let mut hash = self.start ^ self.size.rotate_left(32);
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^ hash >> 33
    }
}

pub(crate) struct BySize {
    nodes: Vec<Node>,
    root: u32,
    /// Chained by `below`.
    free: u32,
    len: usize,
}

impl BySize {
    /// The gaps of an arena, with room for so many.
    pub(crate) fn new(arena: &RangeAlloc, room: usize) -> Result<Self, OutOfMemory> {
        let mut index = BySize {
            nodes: Vec::new(),
            root: NONE,
            free: NONE,
            len: 0,
        };
        index.reserve(room)?;
        for gap in arena.gaps() {
            index.insert(gap);
        }
        Ok(index)
    }

    /// Makes room for so many gaps.
    pub(crate) fn reserve(&mut self, gaps: usize) -> Result<(), OutOfMemory> {
        if gaps > NONE as usize {
            return Err(OutOfMemory);
        }
        let more = gaps.saturating_sub(self.nodes.len());
        self.nodes.try_reserve(more).map_err(|_| OutOfMemory)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }

    fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    /// The lowest start in the smallest gap that fits.
    pub(crate) fn best(&self, wanted: &Wanted) -> Option<u64> {
        let mut least = (wanted.size, 0);
        loop {
            let gap = self.at_least(least)?;
            let lo = gap.start.max(wanted.from);
            let hi = (gap.start + gap.size).min(wanted.to);
            if lo < hi && wanted.grid.usable(lo, hi) >= wanted.size {
                return Some(lo + wanted.grid.pad(lo));
            }
            least = (gap.size, gap.start + 1);
        }
    }

    /// The first gap that is `least` or more.
    fn at_least(&self, least: (u64, u64)) -> Option<Node> {
        let (mut at, mut found) = (self.root, None);
        while at != NONE {
            let node = self.node(at);
            if node.key() >= least {
                found = Some(*node);
                at = node.below;
            } else {
                at = node.above;
            }
        }
        found
    }

    /// Empty gaps are none.
    pub(crate) fn insert(&mut self, gap: Range<u64>) {
        if gap.is_empty() {
            return;
        }
        let mut node = Node {
            start: gap.start,
            size: gap.end - gap.start,
            below: NONE,
            above: NONE,
        };
        // Down to the first node of a lower priority, whose subtree is cut in two.
        let (key, priority) = (node.key(), node.priority());
        let mut link = Link::Root;
        let mut at = self.root;
        while at != NONE && self.node(at).priority() >= priority {
            (link, at) = self.down(at, key);
        }
        (node.below, node.above) = self.cut(at, key);
        let id = self.take(node);
        self.set(link, id);
        self.len += 1;
    }

    /// Empty gaps are none.
    ///
    /// # Panics
    /// When there is no such gap.
    pub(crate) fn remove(&mut self, gap: Range<u64>) {
        if gap.is_empty() {
            return;
        }
        let key = (gap.end - gap.start, gap.start);
        let mut link = Link::Root;
        let mut at = self.root;
        while self.node(at).key() != key {
            (link, at) = self.down(at, key);
        }
        let Node { below, above, .. } = *self.node(at);
        let joined = self.join(below, above);
        self.set(link, joined);
        self.nodes[at as usize].below = self.free;
        self.free = at;
        self.len -= 1;
    }

    fn down(&self, at: u32, key: (u64, u64)) -> (Link, u32) {
        let node = self.node(at);
        if key < node.key() {
            (Link::Below(at), node.below)
        } else {
            (Link::Above(at), node.above)
        }
    }

    fn set(&mut self, link: Link, to: u32) {
        match link {
            Link::Root => self.root = to,
            Link::Below(of) => self.nodes[of as usize].below = to,
            Link::Above(of) => self.nodes[of as usize].above = to,
        }
    }

    fn take(&mut self, node: Node) -> u32 {
        if self.free != NONE {
            let id = self.free;
            self.free = self.node(id).below;
            self.nodes[id as usize] = node;
            return id;
        }
        assert!(
            self.nodes.len() < self.nodes.capacity(),
            "nodes were reserved"
        );
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Cuts a subtree in two, around a key that is not in it.
    fn cut(&mut self, mut at: u32, key: (u64, u64)) -> (u32, u32) {
        let mut sides = [NONE, NONE];
        let mut ends = [None, None];
        while at != NONE {
            let is_above = self.node(at).key() > key;
            let side = usize::from(is_above);
            match ends[side] {
                None => sides[side] = at,
                Some(link) => self.set(link, at),
            }
            let node = self.node(at);
            let (link, next) = if is_above {
                (Link::Below(at), node.below)
            } else {
                (Link::Above(at), node.above)
            };
            ends[side] = Some(link);
            at = next;
        }
        for link in ends.into_iter().flatten() {
            self.set(link, NONE);
        }
        (sides[0], sides[1])
    }

    /// Makes one of two subtrees, the first below the second.
    fn join(&mut self, mut below: u32, mut above: u32) -> u32 {
        let mut root = NONE;
        let mut end = None;
        loop {
            let next = if below == NONE {
                above
            } else if above == NONE || self.node(below).priority() >= self.node(above).priority() {
                below
            } else {
                above
            };
            match end {
                None => root = next,
                Some(link) => self.set(link, next),
            }
            if below == NONE || above == NONE {
                return root;
            }
            if next == below {
                end = Some(Link::Above(next));
                below = self.node(next).above;
            } else {
                end = Some(Link::Below(next));
                above = self.node(next).below;
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Link {
    Root,
    Below(u32),
    Above(u32),
}
