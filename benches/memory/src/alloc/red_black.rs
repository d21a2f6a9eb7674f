//! The rival: an augmented red-black tree, as kernels have it. Nodes are in one array, linked by
//! numbers; the neighbours in the order of addresses are linked as well.

/// What a subtree sums up.
pub trait Sum: Copy + PartialEq {
    const NONE: Self;
    fn of(start: u64, end: u64) -> Self;
    fn join(self, other: Self) -> Self;
}

impl Sum for () {
    const NONE: Self = ();
    fn of(_: u64, _: u64) {}
    fn join(self, (): ()) {}
}

/// The largest range.
impl Sum for u64 {
    const NONE: Self = 0;
    #[inline]
    fn of(start: u64, end: u64) -> Self {
        end - start
    }
    #[inline]
    fn join(self, other: Self) -> Self {
        self.max(other)
    }
}

/// Number of a node.
pub type Id = u32;
/// No node.
pub const NIL: Id = 0;

#[derive(Clone, Copy)]
struct Node<S> {
    start: u64,
    end: u64,
    sum: S,
    left: Id,
    right: Id,
    parent: Id,
    prev: Id,
    next: Id,
    is_red: bool,
}

/// Where a node can be added: below which, and between which two.
#[derive(Clone, Copy)]
pub struct Place {
    parent: Id,
    is_left: bool,
    pub prev: Id,
    pub next: Id,
}

pub struct RedBlack<S> {
    nodes: Vec<Node<S>>,
    root: Id,
    /// Chained by `next`.
    free: Id,
}

impl<S: Sum> RedBlack<S> {
    pub fn new() -> Self {
        let nil = Node {
            start: 0,
            end: 0,
            sum: S::NONE,
            left: NIL,
            right: NIL,
            parent: NIL,
            prev: NIL,
            next: NIL,
            is_red: false,
        };
        RedBlack {
            nodes: vec![nil],
            root: NIL,
            free: NIL,
        }
    }

    #[inline]
    fn at(&self, id: Id) -> &Node<S> {
        &self.nodes[id as usize]
    }

    #[inline]
    fn at_mut(&mut self, id: Id) -> &mut Node<S> {
        &mut self.nodes[id as usize]
    }

    #[inline]
    pub fn root(&self) -> Id {
        self.root
    }

    #[inline]
    pub fn range(&self, id: Id) -> (u64, u64) {
        (self.at(id).start, self.at(id).end)
    }

    #[inline]
    pub fn sum(&self, id: Id) -> S {
        self.at(id).sum
    }

    #[inline]
    pub fn left(&self, id: Id) -> Id {
        self.at(id).left
    }

    #[inline]
    pub fn right(&self, id: Id) -> Id {
        self.at(id).right
    }

    #[inline]
    pub fn parent(&self, id: Id) -> Id {
        self.at(id).parent
    }

    #[cfg(test)]
    pub fn next(&self, id: Id) -> Id {
        self.at(id).next
    }

    /// The node that begins at `start`.
    pub fn find(&self, start: u64) -> Option<Id> {
        let mut id = self.root;
        while id != NIL {
            let node = self.at(id);
            if node.start == start {
                return Some(id);
            }
            id = if start < node.start {
                node.left
            } else {
                node.right
            };
        }
        None
    }

    /// The nodes below and above an address that is in none.
    pub fn neighbours(&self, address: u64) -> (Id, Id) {
        let (mut below, mut above) = (NIL, NIL);
        let mut id = self.root;
        while id != NIL {
            let node = self.at(id);
            if address < node.start {
                (above, id) = (id, node.left);
            } else {
                (below, id) = (id, node.right);
            }
        }
        (below, above)
    }

    /// Gives a node another range, in the same order.
    pub fn resize(&mut self, id: Id, start: u64, end: u64) {
        let node = self.at_mut(id);
        (node.start, node.end) = (start, end);
        self.propagate(id);
    }

    #[inline]
    fn sum_up(&self, id: Id) -> S {
        let node = self.at(id);
        let own = S::of(node.start, node.end);
        own.join(self.at(node.left).sum)
            .join(self.at(node.right).sum)
    }

    /// Corrects sums upwards, until one does not change.
    fn propagate(&mut self, mut id: Id) {
        while id != NIL {
            let sum = self.sum_up(id);
            if self.at(id).sum == sum {
                return;
            }
            self.at_mut(id).sum = sum;
            id = self.at(id).parent;
        }
    }

    /// Where a range that begins at an address in no node belongs.
    pub fn place(&self, start: u64) -> Place {
        let mut place = Place {
            parent: NIL,
            is_left: false,
            prev: NIL,
            next: NIL,
        };
        let mut at = self.root;
        while at != NIL {
            place.parent = at;
            let node = self.at(at);
            place.is_left = start < node.start;
            if place.is_left {
                (place.next, at) = (at, node.left);
            } else {
                (place.prev, at) = (at, node.right);
            }
        }
        place
    }

    /// The place just below a node. It is found without a descent: either the node has no left child, or the one before it
    /// has no right child. (Linux descends from the node.)
    pub fn place_below(&self, next: Id) -> Place {
        let Node { left, prev, .. } = *self.at(next);
        let is_left = left == NIL;
        Place {
            parent: if is_left { next } else { prev },
            is_left,
            prev,
            next,
        }
    }

    /// Adds a range, from the root on.
    pub fn insert(&mut self, start: u64, end: u64) -> Id {
        self.insert_at(self.place(start), start, end)
    }

    /// Adds a range at its place.
    pub fn insert_at(&mut self, place: Place, start: u64, end: u64) -> Id {
        let Place {
            parent,
            is_left,
            prev,
            next,
        } = place;
        let node = Node {
            start,
            end,
            sum: S::of(start, end),
            left: NIL,
            right: NIL,
            parent,
            prev,
            next,
            is_red: true,
        };
        let id = self.take(node);
        if prev != NIL {
            self.at_mut(prev).next = id;
        }
        if next != NIL {
            self.at_mut(next).prev = id;
        }
        if parent == NIL {
            self.root = id;
        } else if is_left {
            self.at_mut(parent).left = id;
        } else {
            self.at_mut(parent).right = id;
        }
        self.propagate(parent);
        self.balance_insert(id);
        id
    }

    fn take(&mut self, node: Node<S>) -> Id {
        if self.free == NIL {
            self.nodes.push(node);
            return self.nodes.len() as Id - 1;
        }
        let id = self.free;
        self.free = self.at(id).next;
        *self.at_mut(id) = node;
        id
    }

    fn replace_child(&mut self, parent: Id, old: Id, new: Id) {
        if parent == NIL {
            self.root = new;
        } else if self.at(parent).left == old {
            self.at_mut(parent).left = new;
        } else {
            self.at_mut(parent).right = new;
        }
    }

    /// Lets the child on the other side of `is_left` take the place of `id`.
    fn rotate(&mut self, id: Id, is_left: bool) {
        let parent = self.at(id).parent;
        let up = if is_left {
            self.at(id).right
        } else {
            self.at(id).left
        };
        let moved = if is_left {
            self.at(up).left
        } else {
            self.at(up).right
        };
        if is_left {
            self.at_mut(id).right = moved;
            self.at_mut(up).left = id;
        } else {
            self.at_mut(id).left = moved;
            self.at_mut(up).right = id;
        }
        if moved != NIL {
            self.at_mut(moved).parent = id;
        }
        self.at_mut(up).parent = parent;
        self.at_mut(id).parent = up;
        self.replace_child(parent, id, up);
        let sum = self.at(id).sum;
        self.at_mut(up).sum = sum;
        let sum = self.sum_up(id);
        self.at_mut(id).sum = sum;
    }

    fn balance_insert(&mut self, mut id: Id) {
        loop {
            let parent = self.at(id).parent;
            if !self.at(parent).is_red {
                break;
            }
            let grand = self.at(parent).parent;
            let is_left = self.at(grand).left == parent;
            let uncle = if is_left {
                self.at(grand).right
            } else {
                self.at(grand).left
            };
            if self.at(uncle).is_red {
                self.at_mut(parent).is_red = false;
                self.at_mut(uncle).is_red = false;
                self.at_mut(grand).is_red = true;
                id = grand;
                continue;
            }
            let inner = if is_left {
                self.at(parent).right
            } else {
                self.at(parent).left
            };
            let top = if inner == id {
                self.rotate(parent, is_left);
                id
            } else {
                parent
            };
            self.at_mut(top).is_red = false;
            self.at_mut(grand).is_red = true;
            self.rotate(grand, !is_left);
            break;
        }
        let root = self.root;
        self.at_mut(root).is_red = false;
    }

    /// Takes a node out.
    pub fn remove(&mut self, id: Id) {
        let Node {
            left,
            right,
            parent,
            prev,
            next,
            is_red,
            ..
        } = *self.at(id);
        if prev != NIL {
            self.at_mut(prev).next = next;
        }
        if next != NIL {
            self.at_mut(next).prev = prev;
        }
        // Where a black node is missing, and its parent.
        let (hole, above, was_red);
        if left == NIL || right == NIL {
            let child = if left == NIL { right } else { left };
            self.replace_child(parent, id, child);
            if child != NIL {
                self.at_mut(child).parent = parent;
            }
            (hole, above, was_red) = (child, parent, is_red);
            self.propagate(parent);
        } else {
            // The next node has no left child and takes the place.
            let heir = next;
            was_red = self.at(heir).is_red;
            hole = self.at(heir).right;
            if self.at(heir).parent == id {
                above = heir;
            } else {
                above = self.at(heir).parent;
                self.at_mut(above).left = hole;
                if hole != NIL {
                    self.at_mut(hole).parent = above;
                }
                self.at_mut(heir).right = right;
                self.at_mut(right).parent = heir;
            }
            self.at_mut(heir).left = left;
            self.at_mut(left).parent = heir;
            self.at_mut(heir).parent = parent;
            self.at_mut(heir).is_red = is_red;
            self.replace_child(parent, id, heir);
            if above != heir {
                self.propagate(above);
            }
            let sum = self.sum_up(heir);
            self.at_mut(heir).sum = sum;
            self.propagate(parent);
        }
        if !was_red {
            self.balance_remove(hole, above);
        }
        self.at_mut(id).next = self.free;
        self.free = id;
    }

    fn balance_remove(&mut self, mut id: Id, mut parent: Id) {
        while parent != NIL && !self.at(id).is_red {
            let is_left = self.at(parent).left == id;
            let far_side = |tree: &Self, of: Id| {
                if is_left {
                    tree.at(of).right
                } else {
                    tree.at(of).left
                }
            };
            let near_side = |tree: &Self, of: Id| {
                if is_left {
                    tree.at(of).left
                } else {
                    tree.at(of).right
                }
            };
            let mut sibling = far_side(self, parent);
            if self.at(sibling).is_red {
                self.at_mut(sibling).is_red = false;
                self.at_mut(parent).is_red = true;
                self.rotate(parent, is_left);
                sibling = far_side(self, parent);
            }
            let (near, far) = (near_side(self, sibling), far_side(self, sibling));
            if !self.at(near).is_red && !self.at(far).is_red {
                self.at_mut(sibling).is_red = true;
                (id, parent) = (parent, self.at(parent).parent);
                continue;
            }
            if !self.at(far).is_red {
                self.at_mut(near).is_red = false;
                self.at_mut(sibling).is_red = true;
                self.rotate(sibling, !is_left);
                sibling = near;
            }
            self.at_mut(sibling).is_red = self.at(parent).is_red;
            self.at_mut(parent).is_red = false;
            let far = far_side(self, sibling);
            self.at_mut(far).is_red = false;
            self.rotate(parent, is_left);
            return;
        }
        if id != NIL {
            self.at_mut(id).is_red = false;
        }
    }

    #[cfg(test)]
    fn check(&self) {
        fn black_height<S: Sum>(tree: &RedBlack<S>, id: Id) -> usize {
            if id == NIL {
                return 1;
            }
            let node = tree.at(id);
            assert!(tree.sum_up(id) == node.sum);
            for child in [node.left, node.right] {
                assert!(child == NIL || tree.at(child).parent == id);
                assert!(!(node.is_red && tree.at(child).is_red));
            }
            let (a, b) = (
                black_height(tree, node.left),
                black_height(tree, node.right),
            );
            assert_eq!(a, b);
            a + usize::from(!node.is_red)
        }
        black_height(self, self.root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_a_red_black_tree() {
        let mut tree = RedBlack::<u64>::new();
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % limit
        };
        let mut live = std::collections::BTreeMap::new();
        for step in 0..20_000 {
            let start = random(2000) * 10;
            if let std::collections::btree_map::Entry::Vacant(e) = live.entry(start) {
                let size = 1 + random(10);
                let place = tree.place(start);
                // The same, found without a descent from the root.
                if place.next != NIL {
                    let below = tree.place_below(place.next);
                    assert_eq!(
                        (below.parent, below.is_left, below.prev, below.next),
                        (place.parent, place.is_left, place.prev, place.next)
                    );
                }
                tree.insert_at(place, start, start + size);
                e.insert(size);
            } else {
                tree.remove(tree.find(start).unwrap());
                live.remove(&start);
            }
            if step % 100 == 0 {
                tree.check();
                assert_eq!(
                    tree.sum(tree.root()),
                    live.values().copied().max().unwrap_or(0)
                );
            }
        }
        let mut id = tree.neighbours(0).0;
        if id == NIL {
            id = tree.neighbours(0).1;
        }
        let mut starts = Vec::new();
        while id != NIL {
            starts.push(tree.range(id).0);
            id = tree.next(id);
        }
        assert!(starts.iter().eq(live.keys()));
    }
}
