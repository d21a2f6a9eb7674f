//! Which threads of a team meet first, and who lets whom go: a tree by where they run.
//!
//! Its leaves are groups of up to [`FAN_IN`] threads, which share a last-level cache as far as there are that many, then a
//! memory node. Above them no node has more children than that, so arriving and letting go take O(log threads)
//! steps, and each memory node of the machine is one subtree: its lines cross to others once.

/// Children of a node at most. As many threads often share a last-level cache.
#[cfg(not(loom))]
pub const FAN_IN: usize = 8;
/// Few in the models, so that three are many.
#[cfg(loom)]
pub const FAN_IN: usize = 2;

/// What is near to what: CPUs of the same memory node, and of the same last-level cache there. Numbers mean nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// The memory node.
    pub node: u32,
    /// The last-level cache.
    pub llc: u32,
}

/// There is no node above the root.
const NOTHING: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Node {
    /// Above it.
    parent: u32,
    /// Threads, or nodes, that arrive at it.
    below: u32,
    /// Its leftmost leaf: itself, if it is one.
    first_leaf: u32,
    /// Empty for leaves.
    children: Vec<u32>,
}

/// The tree of a team. Leaves are the first nodes.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    root: u32,
    /// By thread.
    leaf_of: Vec<u32>,
    /// By leaf.
    members: Vec<Vec<u32>>,
}

impl Tree {
    /// Threads that run at these spots. O(n log n).
    pub fn of(spots: &[Spot]) -> Tree {
        let threads = spots.len() as u32;
        if spots.len() <= FAN_IN {
            return Tree::over(vec![(0..threads).collect()], &[Spot::default()]);
        }
        let mut order: Vec<u32> = (0..threads).collect();
        order.sort_by_key(|&thread| (spots[thread as usize], thread));
        let leaves = leaves(&order, |thread| spots[thread as usize]);
        let places: Vec<Spot> = leaves.iter().map(|leaf| spots[leaf[0] as usize]).collect();
        Tree::over(leaves, &places)
    }

    /// So many threads, of which is not known where they run: neighbours by their numbers.
    pub fn by_number(threads: usize) -> Tree {
        Tree::of(&vec![Spot::default(); threads])
    }

    /// So many leaves of one member each, which may stand for groups of threads.
    pub fn of_leaves(leaves: usize) -> Tree {
        let members = (0..leaves as u32).map(|leaf| vec![leaf]).collect();
        Tree::over(members, &vec![Spot::default(); leaves])
    }

    fn over(members: Vec<Vec<u32>>, spots: &[Spot]) -> Tree {
        let leaf = |(at, members): (usize, &Vec<u32>)| Node {
            parent: NOTHING,
            below: members.len() as u32,
            first_leaf: at as u32,
            children: Vec::new(),
        };
        let mut tree = Tree {
            nodes: members.iter().enumerate().map(leaf).collect(),
            root: 0,
            leaf_of: vec![0; members.iter().map(Vec::len).sum()],
            members,
        };
        for (leaf, members) in tree.members.iter().enumerate() {
            for &thread in members {
                tree.leaf_of[thread as usize] = leaf as u32;
            }
        }
        let all: Vec<u32> = (0..spots.len() as u32).collect();
        tree.root = tree.gather(&all, spots, 0);
        tree
    }

    /// One node above all of these neighbours, of which the first `level` levels of what is near are the same.
    fn gather(&mut self, leaves: &[u32], spots: &[Spot], level: u32) -> u32 {
        if leaves.len() <= FAN_IN {
            return self.join(leaves);
        }
        let spot = |&leaf: &u32| spots[leaf as usize];
        let parts: Vec<&[u32]> = match level {
            0 => leaves
                .chunk_by(|a, b| spot(a).node == spot(b).node)
                .collect(),
            1 => leaves.chunk_by(|a, b| spot(a) == spot(b)).collect(),
            _ => even(leaves, leaves.len().div_ceil(FAN_IN).min(FAN_IN)).collect(),
        };
        if let [part] = parts[..] {
            return self.gather(part, spots, level + 1);
        }
        let mut roots: Vec<u32> = parts
            .into_iter()
            .map(|part| self.gather(part, spots, level + 1))
            .collect();
        while roots.len() > FAN_IN {
            let groups = even(&roots, roots.len().div_ceil(FAN_IN));
            roots = groups.map(|group| self.join(group)).collect();
        }
        self.join(&roots)
    }

    /// A node above these; of one, itself.
    fn join(&mut self, children: &[u32]) -> u32 {
        if let [child] = *children {
            return child;
        }
        let id = self.nodes.len() as u32;
        self.nodes.push(Node {
            parent: NOTHING,
            below: children.len() as u32,
            first_leaf: self.nodes[children[0] as usize].first_leaf,
            children: children.to_vec(),
        });
        for &child in children {
            self.nodes[child as usize].parent = id;
        }
        id
    }

    /// How many nodes there are, leaves among them.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// How many threads there are.
    #[inline]
    pub fn threads(&self) -> usize {
        self.leaf_of.len()
    }

    /// How many leaves there are.
    #[inline]
    pub fn leaves(&self) -> usize {
        self.members.len()
    }

    /// The node above all.
    #[inline]
    pub fn root(&self) -> u32 {
        self.root
    }

    /// The leaf of a thread.
    #[inline]
    pub fn leaf(&self, thread: usize) -> u32 {
        // What follows need not wait for a load in small teams.
        if self.leaves() == 1 {
            0
        } else {
            self.leaf_of[thread]
        }
    }

    /// The threads of a leaf.
    #[inline]
    pub fn members(&self, leaf: u32) -> &[u32] {
        &self.members[leaf as usize]
    }

    /// How many arrive at a node, and the node above it.
    #[inline]
    pub(crate) fn node(&self, node: u32) -> (u32, Option<u32>) {
        let Node { below, parent, .. } = self.nodes[node as usize];
        (below, (parent != NOTHING).then_some(parent))
    }

    /// Who is awake in `leaf`, and is to let all below `top` go, opens one leaf of each subtree beside its own: `open` gets the
    /// leaf, and below which node those who wait there are to do the same. The largest first; its own is left.
    ///
    /// At most [`FAN_IN`]` - 1` for each level between the two.
    pub fn rest(&self, leaf: u32, top: u32, open: &mut impl FnMut(u32, u32)) {
        if leaf == top {
            return;
        }
        let parent = self.nodes[leaf as usize].parent;
        self.rest(parent, top, open);
        for &child in &self.nodes[parent as usize].children {
            if child != leaf {
                open(self.nodes[child as usize].first_leaf, child);
            }
        }
    }
}

/// Cuts what is sorted by spots into leaves: neighbours in a cache, then in a memory node, then nodes whose threads are few.
fn leaves(order: &[u32], spot: impl Fn(u32) -> Spot) -> Vec<Vec<u32>> {
    let mut leaves: Vec<Vec<u32>> = Vec::new();
    let mut is_last_whole = false;
    for node in order.chunk_by(|&a, &b| spot(a).node == spot(b).node) {
        let mut own: Vec<Vec<u32>> = Vec::new();
        for cache in node.chunk_by(|&a, &b| spot(a) == spot(b)) {
            for piece in even(cache, cache.len().div_ceil(FAN_IN)) {
                add(&mut own, piece, true);
            }
        }
        let is_whole = own.len() == 1;
        for leaf in own {
            add(&mut leaves, &leaf, is_last_whole && is_whole);
        }
        is_last_whole = is_whole;
    }
    leaves
}

/// Adds threads to the last leaf, if they may and there is room, or as another one.
fn add(leaves: &mut Vec<Vec<u32>>, threads: &[u32], may_join: bool) {
    match leaves.last_mut() {
        Some(last) if may_join && last.len() + threads.len() <= FAN_IN => {
            last.extend_from_slice(threads);
        }
        _ => leaves.push(threads.to_vec()),
    }
}

/// Parts of the same length, or one less.
fn even<T>(all: &[T], parts: usize) -> impl Iterator<Item = &[T]> {
    let (each, more) = (all.len() / parts, all.len() % parts);
    let at = move |part: usize| part * each + part.min(more);
    (0..parts).map(move |part| &all[at(part)..at(part + 1)])
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;
    use crate::places::{CpuSet, Topology};
    use proptest::prelude::*;

    fn depth(tree: &Tree, mut node: u32) -> usize {
        let mut steps = 1;
        while let (_, Some(parent)) = tree.node(node) {
            (node, steps) = (parent, steps + 1);
        }
        steps
    }

    /// Lets all go whom a tree has, as the team does, beginning at a leaf: how many gates each opener opens, and how many
    /// steps one after another that takes.
    fn let_go(tree: &Tree, from: u32) -> (Vec<usize>, usize) {
        let mut opened = vec![0; tree.leaves()];
        let mut wrote = vec![0; tree.leaves()];
        opened[from as usize] += 1;
        let mut openers = vec![(from, tree.root())];
        let mut steps = 0;
        while !openers.is_empty() {
            let mut next = Vec::new();
            for (leaf, top) in openers {
                tree.rest(leaf, top, &mut |first, below| {
                    opened[first as usize] += 1;
                    wrote[leaf as usize] += 1;
                    next.push((first, below));
                });
            }
            (openers, steps) = (next, steps + 1);
        }
        assert!(opened.iter().all(|&times| times == 1), "{opened:?}");
        (wrote, steps)
    }

    fn log8(mut n: usize) -> usize {
        let mut log = 0;
        while n > 1 {
            (n, log) = (n.div_ceil(FAN_IN), log + 1);
        }
        log
    }

    fn check(spots: &[Spot]) -> Tree {
        let tree = Tree::of(spots);
        let threads: usize = (0..tree.leaves() as u32)
            .map(|leaf| tree.members(leaf).len())
            .sum();
        assert_eq!(threads, spots.len());
        // What is near adds three levels at most.
        let most = log8(spots.len()).max(1) + 3;
        for thread in 0..spots.len() {
            let leaf = tree.leaf(thread);
            assert!(tree.members(leaf).contains(&(thread as u32)));
            assert!(depth(&tree, leaf) <= most);
        }
        for node in 0..tree.nodes() as u32 {
            assert!((1..=FAN_IN as u32).contains(&tree.node(node).0));
        }
        for leaf in 0..tree.leaves() as u32 {
            let (wrote, steps) = let_go(&tree, leaf);
            assert!(wrote.into_iter().all(|lines| lines <= most * (FAN_IN - 1)));
            assert!(steps <= most, "{steps} of {most}");
        }
        tree
    }

    #[test]
    fn teams_of_one_cache_are_one_leaf() {
        for threads in 1..=FAN_IN {
            let apart: Vec<Spot> = (0..threads as u32)
                .map(|node| Spot { node, llc: node })
                .collect();
            let tree = check(&apart);
            assert_eq!((tree.nodes(), tree.leaves()), (1, 1));
        }
    }

    /// Two sockets of four memory nodes of four caches of eight cores of two threads: 512 CPUs.
    #[test]
    fn large_machines_are_met_cache_by_cache_and_node_by_node() {
        let machine = crate::places::machine(2, 4, 4, 8, 2);
        let all: CpuSet = (0..512).collect();
        let spots: Vec<Spot> = all.iter().map(|cpu| machine.spot(cpu)).collect();
        let tree = check(&spots);
        assert_eq!(tree.leaves(), 64);
        assert_eq!(depth(&tree, 0), 3);
        for leaf in 0..64 {
            let first = spots[tree.members(leaf)[0] as usize];
            let same = |&thread: &u32| spots[thread as usize] == first;
            assert!(tree.members(leaf).iter().all(same));
        }
        // Memory nodes are crossed once each, whoever begins.
        let node = |leaf: u32| spots[tree.members(leaf)[0] as usize].node;
        for from in 0..64 {
            let (mut crossings, mut openers) = (0, vec![(from, tree.root())]);
            while let Some((leaf, top)) = openers.pop() {
                tree.rest(leaf, top, &mut |first, below| {
                    crossings += usize::from(node(first) != node(leaf));
                    openers.push((first, below));
                });
            }
            assert_eq!(crossings, 7);
        }
    }

    #[test]
    fn caches_and_nodes_with_few_threads_share_leaves() {
        // A thread for each of 32 caches, four to a node.
        let spots: Vec<Spot> = (0..32).map(|llc| Spot { node: llc / 4, llc }).collect();
        let tree = check(&spots);
        assert_eq!(tree.leaves(), 4);
        // Six cores to a cache: a leaf each.
        let spots: Vec<Spot> = (0..96)
            .map(|cpu| Spot {
                node: cpu / 48,
                llc: cpu / 6,
            })
            .collect();
        let tree = check(&spots);
        assert_eq!(tree.leaves(), 16);
    }

    #[test]
    fn without_a_topology_numbers_are_neighbours() {
        let tree = check(&vec![Spot::default(); 512]);
        assert_eq!((tree.leaves(), depth(&tree, 0)), (64, 3));
        assert_eq!(tree.members(1), [8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(Tree::by_number(9).leaves(), 2);
        assert_eq!(let_go(&Tree::of_leaves(64), 0).1, 3);
    }

    /// Spots of threads of machines of several kinds, of which some CPUs are used.
    pub(crate) fn spots() -> impl Strategy<Value = Vec<Spot>> {
        let kind = (1_u32..3, 1_u32..5, 1_u32..9, 1_u32..9, 1_u32..3);
        (kind, prop::collection::vec(any::<u32>(), 1..513)).prop_map(|(kind, picks)| {
            let (sockets, nodes, llcs, cores, threads) = kind;
            let machine: Topology = crate::places::machine(sockets, nodes, llcs, cores, threads);
            let cpus = sockets * nodes * llcs * cores * threads;
            picks.iter().map(|pick| machine.spot(pick % cpus)).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn all_arrive_and_all_are_let_go_in_few_steps(spots in spots()) {
            check(&spots);
        }
    }
}
