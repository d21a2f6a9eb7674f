use super::change::saturated_max;
use super::node::{Group, LEAF, NONE, is_saturated, short};
use super::{AnyTree, Tree};
use crate::arena::RangeAlloc;
use crate::isa::{FAN, Isa, LANES, Portable, SPOTS};
use crate::request::{Policy, Request};
use crate::word::Word;

/// Everything that must hold between changes.
fn check(tree: &AnyTree) {
    match tree {
        AnyTree::Narrow(tree) => check_all(tree),
        AnyTree::Wide(tree) => check_all(tree),
    }
}

fn check_all<W: Word>(tree: &Tree<W>) {
    let mut leaves = Vec::new();
    if tree.depth == 0 {
        check_leaf(tree, tree.root);
        leaves.push(tree.root);
    } else {
        check_inner(tree, tree.root, 0, &mut leaves);
    }
    assert_eq!(tree.nodes().0, leaves.len(), "leaves are counted");
    let mut prev = NONE;
    for (at, leaf) in leaves.iter().enumerate() {
        let node = tree.leaf(*leaf);
        assert_eq!(node.prev, prev);
        assert_eq!(node.next, leaves.get(at + 1).copied().unwrap_or(NONE));
        if let Some(next) = leaves.get(at + 1) {
            assert_eq!(tree.leaf(*next).lo[0], node.end());
        }
        prev = *leaf;
    }
    let last = tree.leaf(prev);
    assert_eq!(last.end(), tree.end, "the last block stands at the end");
    let gaps = leaves.iter().flat_map(|leaf| {
        let leaf = tree.leaf(*leaf);
        (0..leaf.len as usize).map(|at| (leaf.lo[at], leaf.hi[at]))
    });
    let below_top = gaps.filter(|(_, hi)| *hi != tree.end);
    let largest = below_top.map(|(lo, hi)| hi.wrapping_sub(lo)).max();
    assert!(largest.unwrap_or(W::ZERO) <= tree.below_top, "a bound");
}

fn in_use<W: Word>(group: &Group<W>) -> core::ops::Range<usize> {
    0..group.classes.used
}

fn check_inner<W: Word>(tree: &Tree<W>, id: u32, level: usize, leaves: &mut Vec<u32>) -> W {
    let inner = tree.inners.get(id);
    let len = inner.len as usize;
    assert!((1..=FAN).contains(&len));
    let mut lowest = None;
    for pos in 0..FAN {
        if pos >= len {
            for group in tree.groups.iter() {
                assert!(in_use(group).all(|lane| group.sums.rows.get(id, lane)[pos] == 0));
            }
            continue;
        }
        let child = inner.children[pos];
        let is_leaf = level + 1 == tree.depth;
        let lo = if is_leaf {
            check_leaf(tree, child);
            leaves.push(child);
            tree.leaf(child).lo[0]
        } else {
            check_inner(tree, child, level + 1, leaves)
        };
        let is_lazy = if is_leaf {
            tree.leaf(child).lazy != 0
        } else {
            tree.inners.get(child).lazy != 0
        };
        assert_eq!(inner.lazy >> pos & 1 == 1, is_lazy);
        lowest.get_or_insert(lo);
        assert!(
            pos == 0 || inner.keys[pos] == lo,
            "a key is where its child begins"
        );
        for group in tree.groups.iter() {
            let most = if is_leaf {
                &group.sums.leaf.get(child).0
            } else {
                &group.sums.inner.get(child).0
            };
            for lane in in_use(group) {
                assert_eq!(group.sums.rows.get(id, lane)[pos], short(most[lane]));
            }
        }
    }
    assert_eq!(inner.lazy >> (len - 1) >> 1, 0);
    for group in tree.groups.iter() {
        for lane in in_use(group) {
            let row = group.sums.rows.get(id, lane);
            let max = <Portable as Isa<W>>::row_max_with(row, 0, row[0]);
            let most = if is_saturated::<W>(max) {
                saturated_max(&group.sums, &tree.inners, id, lane, level + 1 == tree.depth)
            } else {
                W::of(u64::from(max))
            };
            assert_eq!(group.sums.inner.get(id).0[lane], most);
        }
    }
    lowest.unwrap()
}

fn check_leaf<W: Word>(tree: &Tree<W>, id: u32) {
    let leaf = tree.leaf(id);
    let len = leaf.len as usize;
    assert!((1..=LEAF).contains(&len));
    assert_eq!(leaf.lazy & !leaf.all(), 0);
    assert!((len..SPOTS).all(|at| leaf.lo[at] == leaf.hi[at]));
    for at in 0..len {
        assert!(leaf.lo[at] <= leaf.hi[at]);
        let is_last = leaf.next == NONE && at + 1 == len;
        assert_eq!(
            leaf.hi[at] == leaf.lo[at + 1],
            is_last,
            "only the last block is empty"
        );
    }
    for group in tree.groups.iter() {
        for lane in (0..LANES).filter(|_| tree.depth > 0) {
            let grid = group.classes.grid(lane);
            let usable = (0..len).map(|at| grid.usable(leaf.lo[at], leaf.hi[at]));
            let most = usable.max().filter(|_| in_use(group).contains(&lane));
            assert_eq!(group.sums.leaf.get(id).0[lane], most.unwrap_or(W::ZERO));
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// The same addresses in words of both widths: another granule, or an end out of reach.
fn arenas() -> [RangeAlloc; 3] {
    let arenas = [(7..1 << 22, 1), (8..1 << 22, 4), (7..1 << 34, 1)];
    let arenas = arenas.map(|(range, granule)| {
        let mut arena = RangeAlloc::with_granule(range.clone(), granule).unwrap();
        let beyond = range.end - (1 << 22);
        if beyond > 0 {
            arena.alloc_at(1 << 22, beyond).unwrap();
        }
        arena
    });
    assert!(matches!(arenas[0].tree, AnyTree::Narrow(_)));
    assert!(matches!(arenas[1].tree, AnyTree::Narrow(_)));
    assert!(matches!(arenas[2].tree, AnyTree::Wide(_)));
    arenas
}

/// Grows to some thousand blocks and shrinks to none, over all shapes of nodes.
#[test]
fn nodes_stay_in_order_while_an_arena_fills_and_empties() {
    // Miri takes a thousand times as long.
    let (seeds, rounds, steps) = if cfg!(miri) {
        (1, 2, 120)
    } else {
        (4, 6, 3000)
    };
    for (seed, mut arena) in (1..=seeds).flat_map(|seed| arenas().map(|arena| (seed, arena))) {
        let mut random = Random(seed << 32 | 0x9e37_79b9);
        let (first, granule) = (arena.range().start, arena.granule());
        let mut live = Vec::new();
        let mut lazy = 0;
        for round in 0..rounds {
            let grow = round % 2 == 0;
            for step in 0..steps {
                let more = random.below(10) < if grow { 8 } else { 2 };
                if more || live.is_empty() {
                    let size = 1 + random.below(if seed == 4 { 1 } else { 64 });
                    let align = 1 << random.below(10);
                    let mut request = Request::new(size).align(align);
                    if random.below(8) == 0 {
                        request = request.phase(random.below(align) / granule * granule);
                    }
                    if random.below(4) == 0 {
                        request = request.zone(1 << 17..1 << 21);
                    }
                    if random.below(8) == 0 {
                        request = request.policy(Policy::NextFit);
                    }
                    if let Ok(start) = arena.alloc(&request) {
                        live.push(start);
                    }
                } else {
                    let at = random.below(live.len() as u64) as usize;
                    let start = live.swap_remove(at);
                    if random.below(16) == 0 {
                        arena.free_lazy(start).unwrap();
                        lazy += 1;
                    } else {
                        arena.free(start).unwrap();
                    }
                }
                if step % 512 == 0 {
                    check(&arena.tree);
                }
            }
            if random.below(2) == 0 {
                let mut told = 0;
                arena.purge(|_| told += 1);
                assert_eq!(told, lazy);
                lazy = 0;
            }
            check(&arena.tree);
        }
        for start in live {
            arena.free(start).unwrap();
        }
        arena.purge(|_| ());
        check(&arena.tree);
        let stats = arena.stats();
        assert_eq!((stats.leaves, stats.inner_nodes, stats.levels), (1, 0, 1));
        assert_eq!(stats.largest_free, (1 << 22) - first);
    }
}

/// Many levels, from the top as well as from below.
#[test]
fn nodes_stay_in_order_while_blocks_are_put_anywhere() {
    let blocks = if cfg!(miri) { 100 } else { 60_000u64 };
    for range in [0..u64::from(u32::MAX), 0..1 << 32] {
        let mut random = Random(77);
        let mut arena = RangeAlloc::new(range).unwrap();
        let mut live = Vec::new();
        for block in (0..blocks).rev() {
            arena.alloc_at(block * 64, 32).unwrap();
            live.push(block * 64);
        }
        check(&arena.tree);
        assert!(arena.stats().levels >= if cfg!(miri) { 2 } else { 4 });
        while !live.is_empty() {
            // Runs of neighbours, which empties whole leaves.
            let from = random.below(live.len() as u64) as usize;
            let to = (from + 1 + random.below(400) as usize).min(live.len());
            for start in live.drain(from..to) {
                arena.free(start).unwrap();
            }
            if random.below(32) == 0 {
                check(&arena.tree);
            }
        }
        check(&arena.tree);
        assert_eq!(arena.stats().levels, 1);
    }
}
