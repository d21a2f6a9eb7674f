//! The nodes of the tree. A node that readers can find does not change any more.

use std::ptr;

use arrayvec::ArrayVec;

use crate::span::Span;

/// Entries of a leaf, children of an inner node: two or four cache lines of keys, which are compared without branches.
pub(super) const WIDTH: usize = 16;
const QUARTER: usize = WIDTH / 4;
/// A node with fewer is joined with its neighbour.
pub(super) const FEW: usize = WIDTH / 4;

/// Keys beyond the last one: no address is beyond them.
const BEYOND: u64 = u64::MAX;

/// What a leaf and an inner node begin with.
#[repr(C)]
pub(super) struct Node {
    /// 0: a leaf.
    height: u32,
    len: u32,
    /// The last address of each entry or child.
    lasts: [u64; WIDTH],
    #[cfg(loom)]
    life: super::reclaim::Life,
}

#[repr(C)]
pub(super) struct Leaf<V> {
    node: Node,
    starts: [u64; WIDTH],
    values: ArrayVec<V, WIDTH>,
}

#[repr(C)]
struct Inner {
    node: Node,
    children: [*mut Node; WIDTH],
}

/// A range and its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry<V> {
    pub(super) span: Span,
    pub(super) value: V,
}

/// A node and the last address in it.
#[derive(Clone, Copy)]
pub(super) struct Child {
    pub(super) last: u64,
    pub(super) node: *mut Node,
}

/// A node as its users see it.
pub(super) enum View<'a, V> {
    Leaf(&'a Leaf<V>),
    Inner(&'a [u64], &'a [*mut Node]),
}

impl Node {
    fn new(height: u32, lasts: impl ExactSizeIterator<Item = u64>) -> Self {
        let mut node = Node {
            height,
            len: lasts.len() as u32,
            lasts: [BEYOND; WIDTH],
            #[cfg(loom)]
            life: super::reclaim::Life::new(),
        };
        for (place, last) in node.lasts.iter_mut().zip(lasts) {
            *place = last;
        }
        node
    }

    #[cfg(loom)]
    pub(super) fn life(&self) -> &super::reclaim::Life {
        &self.life
    }

    /// To be called before anything in it is read: under loom it says whether that is allowed.
    #[inline(always)]
    fn look(&self) {
        #[cfg(loom)]
        self.life.look();
    }

    #[cfg(test)]
    pub(super) fn height(&self) -> u32 {
        self.height
    }

    /// The number of the first entry or child that ends at `address` or after it. `WIDTH` or any number from `len` on: there
    /// is none.
    #[inline]
    fn first_from(&self, address: u64) -> usize {
        self.look();
        // Which quarter, then where in it: seven comparisons and no branch. One for each key is slower, and vectors
        // of two 64-bit keys, which all x86-64 CPUs have, are slower still.
        let before = |at: usize| usize::from(self.lasts[at] < address);
        let quarter = before(QUARTER - 1) + before(2 * QUARTER - 1) + before(3 * QUARTER - 1);
        let base = quarter * QUARTER;
        let quarter: &[u64; QUARTER] = self.lasts[base..base + QUARTER]
            .first_chunk()
            .expect("in it");
        base + quarter
            .iter()
            .map(|&last| usize::from(last < address))
            .sum::<usize>()
    }
}

impl<V> Leaf<V> {
    /// A new leaf of at most `WIDTH` entries.
    pub(super) fn create(entries: Vec<Entry<V>>) -> Child {
        let mut starts = [BEYOND; WIDTH];
        for (place, entry) in starts.iter_mut().zip(&entries) {
            *place = entry.span.start;
        }
        let node = Node::new(0, entries.iter().map(|entry| entry.span.last));
        let last = entries.last().map_or(0, |entry| entry.span.last);
        let values = entries.into_iter().map(|entry| entry.value).collect();
        let leaf = Box::new(Leaf {
            node,
            starts,
            values,
        });
        Child {
            last,
            node: Box::into_raw(leaf).cast(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    #[inline]
    pub(super) fn span(&self, at: usize) -> Span {
        self.node.look();
        Span {
            start: self.starts[at],
            last: self.node.lasts[at],
        }
    }

    #[inline]
    pub(super) fn value(&self, at: usize) -> &V {
        self.node.look();
        &self.values[at]
    }

    /// The number of the first entry that ends at `address` or after it.
    #[inline]
    pub(super) fn first_from(&self, address: u64) -> Option<usize> {
        let at = self.node.first_from(address);
        (at < self.len()).then_some(at)
    }
}

impl<V: Clone> Leaf<V> {
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<V>> {
        (0..self.len()).map(|at| Entry {
            span: self.span(at),
            value: self.value(at).clone(),
        })
    }
}

/// A new node above at most `WIDTH` of the same height.
pub(super) fn create_inner(children: &[Child]) -> Child {
    let height = children.first().map_or(0, |child| {
        // SAFETY: the caller builds a tree of nodes that live.
        unsafe { (*child.node).height }
    });
    let mut pointers = [ptr::null_mut(); WIDTH];
    for (place, child) in pointers.iter_mut().zip(children) {
        *place = child.node;
    }
    let inner = Box::new(Inner {
        node: Node::new(height + 1, children.iter().map(|child| child.last)),
        children: pointers,
    });
    Child {
        last: children.last().map_or(0, |child| child.last),
        node: Box::into_raw(inner).cast(),
    }
}

/// Looks at a node.
///
/// # Safety
/// `node` comes from `Leaf::<V>::create` or `create_inner`, and is not freed while `'a` lasts.
pub(super) unsafe fn view<'a, V>(node: *const Node) -> View<'a, V> {
    // SAFETY: it lives, as promised. Its height tells which of the two it is, both of which begin with a `Node`.
    unsafe {
        (*node).look();
        if (*node).height == 0 {
            View::Leaf(&*node.cast::<Leaf<V>>())
        } else {
            let inner = &*node.cast::<Inner>();
            let len = inner.node.len as usize;
            View::Inner(&inner.node.lasts[..len], &inner.children[..len])
        }
    }
}

/// The leaf in which `address` is, or the first entry after it; unless there is neither.
///
/// # Safety
/// `root` is null or a tree of `V`, no node of which is freed while `'a` lasts.
#[inline]
pub(super) unsafe fn find<'a, V>(root: *const Node, address: u64) -> Option<(&'a Leaf<V>, usize)> {
    if root.is_null() {
        return None;
    }
    // SAFETY: the root is a node that lives; so are all children of inner nodes. A node of height 0 is a leaf.
    unsafe {
        let mut node = root;
        while (*node).height > 0 {
            let inner = &*node.cast::<Inner>();
            let at = inner.node.first_from(address);
            if at >= inner.node.len as usize {
                return None;
            }
            node = inner.children[at];
        }
        let leaf = &*node.cast::<Leaf<V>>();
        leaf.first_from(address).map(|at| (leaf, at))
    }
}

/// Frees one node, not what is below it.
///
/// # Safety
/// As for `view`, and nobody looks at it from now on.
pub(super) unsafe fn free<V>(node: *mut Node) {
    // SAFETY: it was made by `Box::into_raw` of the type that its height tells, and is nobody else's.
    unsafe {
        if (*node).height == 0 {
            drop(Box::from_raw(node.cast::<Leaf<V>>()));
        } else {
            drop(Box::from_raw(node.cast::<Inner>()));
        }
    }
}

/// Calls for each node of a tree, those below first.
///
/// # Safety
/// As for `find`; `each` may free the node that it is called for.
pub(super) unsafe fn each<V>(root: *mut Node, each_node: &mut dyn FnMut(*mut Node)) {
    // SAFETY: as promised by the caller, for the children as well.
    unsafe {
        if let View::Inner(_, children) = view::<V>(root) {
            for &child in children {
                each::<V>(child, each_node);
            }
        }
    }
    each_node(root);
}
