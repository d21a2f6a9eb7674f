//! How the tree changes: a copy of the way from the root to the place, with something else in its place (Driscoll et al.
//! 1989). What is not on the way is shared with the tree before.

use crate::span::Span;

use super::node::{self, Child, Entry, FEW, Leaf, Node, View, WIDTH};

/// A change under way. Nobody sees the nodes that it creates before it is done.
pub(super) struct Splice<V> {
    created: Vec<*mut Node>,
    replaced: Vec<*mut Node>,
    /// What is new comes after all else: then nodes are filled to the brim, for more of that may come.
    appends: bool,
    form: std::marker::PhantomData<V>,
}

/// What is in the nodes of one height.
enum Items<V> {
    Entries(Vec<Entry<V>>),
    Children(Vec<Child>),
}

impl<V> Items<V> {
    fn len(&self) -> usize {
        match self {
            Items::Entries(entries) => entries.len(),
            Items::Children(children) => children.len(),
        }
    }

    fn append(&mut self, more: Items<V>) {
        match (self, more) {
            (Items::Entries(entries), Items::Entries(more)) => entries.extend(more),
            (Items::Children(children), Items::Children(more)) => children.extend(more),
            _ => unreachable!("nodes of different heights side by side"),
        }
    }
}

impl<V: Clone> Splice<V> {
    pub(super) fn new() -> Self {
        Splice {
            created: Vec::new(),
            replaced: Vec::new(),
            appends: false,
            form: std::marker::PhantomData,
        }
    }

    /// A tree like that of `root`, in which `entries` are in the place of all that overlaps `span`. They are in it, in
    /// order, and apart.
    ///
    /// # Safety
    /// `root` is null or a tree of `V` whose nodes live.
    pub(super) unsafe fn run(
        &mut self,
        root: *mut Node,
        span: Span,
        entries: Vec<Entry<V>>,
    ) -> *mut Node {
        let mut items = if root.is_null() {
            Items::Entries(entries)
        } else {
            self.appends = true;
            // SAFETY: as promised by the caller.
            unsafe { self.splice(root, span, entries) }
        };
        loop {
            items = match items {
                Items::Children(children) if children.len() == 1 => return children[0].node,
                items if items.len() == 0 => return std::ptr::null_mut(),
                items => Items::Children(self.build(items)),
            };
        }
    }

    /// The tree is in use: what it replaced can go.
    pub(super) fn done(mut self) -> Vec<*mut Node> {
        self.created.clear();
        std::mem::take(&mut self.replaced)
    }

    /// What `node` will contain, or several in its place.
    ///
    /// # Safety
    /// `node` is a tree of `V` whose nodes live.
    unsafe fn splice(&mut self, node: *mut Node, span: Span, entries: Vec<Entry<V>>) -> Items<V> {
        self.replaced.push(node);
        // SAFETY: as promised by the caller.
        match unsafe { node::view::<V>(node) } {
            View::Leaf(leaf) => {
                let (mut before, mut after) = (Vec::with_capacity(WIDTH + 2), Vec::new());
                for entry in leaf.entries() {
                    if entry.span.last < span.start {
                        before.push(entry);
                    } else if entry.span.start > span.last {
                        after.push(entry);
                    }
                }
                self.appends = after.is_empty() && self.appends;
                before.extend(entries);
                before.append(&mut after);
                Items::Entries(before)
            }
            View::Inner(lasts, nodes) => {
                let last = lasts.len() - 1;
                self.appends &= lasts[last] < span.start;
                let child = |address: u64| lasts.partition_point(|&l| l < address).min(last);
                let (first, last) = (child(span.start), child(span.last));
                // SAFETY: the children of a node that lives.
                unsafe {
                    let mut middle = self.splice(nodes[first], span, entries);
                    for &covered in nodes.get(first + 1..last).unwrap_or_default() {
                        node::each::<V>(covered, &mut |node| self.replaced.push(node));
                    }
                    if first < last {
                        middle.append(self.splice(nodes[last], span, Vec::new()));
                    }
                    let siblings = self.fill(&mut middle, &nodes[..first], &nodes[last + 1..]);
                    let child = |at: usize| Child {
                        last: lasts[at],
                        node: nodes[at],
                    };
                    let mut children: Vec<Child> = (0..first - siblings.0).map(child).collect();
                    children.extend(self.build(middle));
                    children.extend((last + 1 + siblings.1..nodes.len()).map(child));
                    Items::Children(children)
                }
            }
        }
    }

    /// Adds what a sibling has, where there is too little. Tells how many siblings before and after were used up.
    ///
    /// # Safety
    /// The siblings are trees of `V` whose nodes live.
    unsafe fn fill(
        &mut self,
        items: &mut Items<V>,
        before: &[*mut Node],
        after: &[*mut Node],
    ) -> (usize, usize) {
        if items.len() >= FEW || self.appends {
            return (0, 0);
        }
        // SAFETY: as promised by the caller.
        unsafe {
            if let Some(&sibling) = before.last() {
                let mut joined = self.items(sibling);
                std::mem::swap(items, &mut joined);
                items.append(joined);
                (1, 0)
            } else if let Some(&sibling) = after.first() {
                items.append(self.items(sibling));
                (0, 1)
            } else {
                (0, 0)
            }
        }
    }

    /// # Safety
    /// `node` is a tree of `V` whose nodes live.
    unsafe fn items(&mut self, node: *mut Node) -> Items<V> {
        self.replaced.push(node);
        // SAFETY: as promised by the caller.
        match unsafe { node::view::<V>(node) } {
            View::Leaf(leaf) => Items::Entries(leaf.entries().collect()),
            View::Inner(lasts, nodes) => {
                let children = lasts.iter().zip(nodes);
                Items::Children(
                    children
                        .map(|(&last, &node)| Child { last, node })
                        .collect(),
                )
            }
        }
    }

    /// As few nodes as can hold all, filled evenly; or each to the brim but the last.
    fn build(&mut self, items: Items<V>) -> Vec<Child> {
        let (mut left, mut nodes) = (items.len(), items.len().div_ceil(WIDTH));
        let appends = self.appends;
        let sizes = std::iter::from_fn(move || {
            let even = left.div_ceil(nodes.max(1));
            let size = if appends { left.min(WIDTH) } else { even };
            left -= size;
            nodes = nodes.saturating_sub(1);
            (size > 0).then_some(size)
        });
        let mut built = Vec::new();
        match items {
            Items::Entries(entries) => {
                let mut entries = entries.into_iter();
                for size in sizes {
                    built.push(Leaf::create(entries.by_ref().take(size).collect()));
                    self.created.extend(built.last().map(|child| child.node));
                }
            }
            Items::Children(children) => {
                let mut rest = &children[..];
                for size in sizes {
                    let (chunk, after) = rest.split_at(size);
                    rest = after;
                    built.push(node::create_inner(chunk));
                    self.created.extend(built.last().map(|child| child.node));
                }
            }
        }
        built
    }
}

/// A clone of a value panicked: the tree stays as it was.
impl<V> Drop for Splice<V> {
    fn drop(&mut self) {
        for &node in &self.created {
            // SAFETY: nobody else has seen it.
            unsafe { node::free::<V>(node) }
        }
    }
}
