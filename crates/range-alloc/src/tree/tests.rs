use super::change::saturated_max;
use super::node::{Group, LEAF, NONE, is_saturated, short};
use super::{AnyTree, Tree};
use crate::arena::RangeAlloc;
use crate::error::AllocError;
use crate::isa::{FAN, Isa, LANES, Portable, SPOTS};
use crate::request::{MAX_ALIGN, Policy, Request};
use crate::stats::Stats;
use crate::word::Word;
use random::Random;

#[path = "../../tests/model/random.rs"]
mod random;

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
    assert_eq!(inner.keys[0], W::ZERO);
    assert!(inner.keys[len..].iter().all(|key| *key == W::MAX));
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
    assert!((len..SPOTS).all(|at| leaf.lo[at] == leaf.hi[at] && leaf.hi[at] >= leaf.end()));
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

fn is_wide(arena: &RangeAlloc) -> bool {
    matches!(arena.tree, AnyTree::Wide(_))
}

/// An arena, and the bits by which sizes in it are larger.
struct Case {
    arena: RangeAlloc,
    size_bits: u32,
    /// Words are wide at the end.
    becomes_wide: bool,
}

/// Words of both widths, far below the end of the arena and up to it, and words that widen meanwhile.
fn cases() -> [Case; 6] {
    let case = |start, end: u64, granule, size_bits, becomes_wide| Case {
        arena: RangeAlloc::with_granule(start..end, granule).unwrap(),
        size_bits,
        becomes_wide,
    };
    let (small, large) = (1 << 22, 1 << 34);
    let mut cases = [
        case(7, small, 1, 0, false),
        case(8, small, 4, 0, false),
        // In reach of narrow words, of which there are too few for the arena.
        case(7, large, 1, 0, false),
        // Out of their reach from some time on.
        case(7, large, 1, 20, true),
        case(7, large, 1, 20, true),
        case(7, large, 1, 0, true),
    ];
    // Wide from the beginning: up to the end, and where the end is taken.
    cases[4].arena.reserve(0).unwrap();
    cases[5].arena.alloc_at(small, large - small).unwrap();
    assert!(
        cases.each_ref().map(|case| is_wide(&case.arena))
            == [false, false, false, false, true, true]
    );
    cases
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
    for (seed, case) in (1..=seeds).flat_map(|seed| cases().map(|case| (seed, case))) {
        let Case {
            mut arena,
            size_bits,
            becomes_wide,
        } = case;
        let mut random = Random(seed << 32 | 0x9e37_79b9);
        let granule = arena.granule();
        let free_before: Vec<_> = arena.gaps().collect();
        let mut refused = 0;
        let mut live = Vec::new();
        let mut lazy = 0;
        for round in 0..rounds {
            let grow = round % 2 == 0;
            for step in 0..steps {
                let more = random.below(10) < if grow { 8 } else { 2 };
                if more || live.is_empty() {
                    // All of one size, or of many.
                    let size = match (seed, size_bits) {
                        (4, 0) => 1,
                        (4, _) => 32 << size_bits,
                        _ => ((1 + random.below(64)) << size_bits) - random.below(1 << size_bits),
                    };
                    let align = 1 << random.below(10);
                    let mut request = Request::new(size).align(align);
                    if random.below(8) == 0 {
                        request = request.phase(random.below(align) / granule * granule);
                    }
                    if random.below(4) == 0 {
                        request = request
                            .zone(1 << 17 << size_bits.min(13)..1 << 21 << size_bits.min(13));
                    }
                    if random.below(8) == 0 {
                        request = request.policy(Policy::NextFit);
                    }
                    match arena.alloc(&request) {
                        Ok(start) => live.push(start),
                        Err(_) => refused += 1,
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
            if random.below(2) == 0 {
                let (before, stats): (Vec<_>, _) = (arena.iter().collect(), arena.stats());
                arena.shrink_to_fit().unwrap();
                check(&arena.tree);
                assert!(arena.iter().eq(before));
                let now = arena.stats();
                assert!(now.footprint_bytes <= stats.footprint_bytes);
                assert!(now.alignments <= stats.alignments);
                let same = Stats {
                    footprint_bytes: now.footprint_bytes,
                    alignments: now.alignments,
                    ..stats
                };
                assert_eq!(now, same);
            }
        }
        for start in live {
            arena.free(start).unwrap();
        }
        arena.purge(|_| ());
        check(&arena.tree);
        let stats = arena.stats();
        assert_eq!((stats.leaves, stats.inner_nodes, stats.levels), (1, 0, 1));
        assert!(arena.gaps().eq(free_before.iter().cloned()));
        let [all] = &free_before[..] else {
            panic!("one gap at first")
        };
        assert_eq!(stats.largest_free, all.end - all.start);
        if !cfg!(miri) {
            assert_eq!(is_wide(&arena), becomes_wide);
            // Large blocks fill it up, so that words near the end have been in use.
            assert!(refused > 0 || size_bits == 0);
        }
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

/// Blocks that live at once in the long tier.
const MILLION: u64 = 1_000_000;

/// Frees all in no order, and looks at the nodes now and then.
fn empty(arena: &mut RangeAlloc, mut live: Vec<u64>, random: &mut Random) {
    while !live.is_empty() {
        let at = random.below(live.len() as u64) as usize;
        arena.free(live.swap_remove(at)).unwrap();
        if (live.len() as u64).is_multiple_of(MILLION / 8) {
            check(&arena.tree);
        }
    }
    let stats = arena.stats();
    assert_eq!((stats.leaves, stats.inner_nodes, stats.levels), (1, 0, 1));
    assert_eq!(stats.free_units, stats.units);
}

/// The long tier: no unit is left, and every second one is freed and allocated again.
#[test]
#[ignore = "takes a minute"]
fn nodes_stay_in_order_with_a_million_blocks_that_fill_all() {
    let range = 5..5 + MILLION;
    for end in [range.end, 1 << 33] {
        let mut random = Random(99);
        let mut arena = RangeAlloc::new(5..end).unwrap();
        let mut live: Vec<u64> = range.clone().collect();
        if end > range.end {
            arena.alloc_at(range.end, end - range.end).unwrap();
            live.push(range.end);
            assert!(is_wide(&arena));
        }
        let one = Request::new(1);
        for start in range.clone() {
            assert_eq!(arena.alloc(&one), Ok(start));
        }
        check(&arena.tree);
        assert_eq!(arena.alloc(&one), Err(AllocError::NoSpace { lazy: 0 }));
        for start in range.clone().step_by(2) {
            arena.free(start).unwrap();
        }
        check(&arena.tree);
        let two = Request::new(2);
        assert_eq!(arena.alloc(&two), Err(AllocError::NoSpace { lazy: 0 }));
        let of_four = Request::new(1).align(4);
        let first = range.start.next_multiple_of(4);
        let is_free = |start: &u64| (start - range.start).is_multiple_of(2);
        let mut fours = (first..range.end).step_by(4).filter(is_free);
        for start in fours.by_ref().take(1000) {
            assert_eq!(arena.alloc(&of_four), Ok(start));
        }
        check(&arena.tree);
        let taken: Vec<u64> = arena.gaps().map(|gap| gap.start).collect();
        for start in taken {
            assert_eq!(arena.alloc(&one), Ok(start));
        }
        check(&arena.tree);
        empty(&mut arena, live, &mut random);
    }
}

/// The long tier: all alignments in turn, as far as the arena has room for those of the largest, of which there is a block each time as many
/// blocks have come as there are alignments; and the smallest of them far below the end.
#[test]
#[ignore = "takes a minute"]
fn nodes_stay_in_order_with_a_million_blocks_that_come_and_go() {
    let largest = u64::from(MAX_ALIGN.ilog2());
    let four_times = |bits: u64| (MILLION / (bits + 1) + 2) << (bits + 2);
    for (end, bits) in [
        (u64::from(u32::MAX), 13),
        (1 << 34, 8),
        (four_times(largest), largest),
    ] {
        let mut random = Random(101);
        let mut arena = RangeAlloc::new(0..end).unwrap();
        let mut live = Vec::new();
        let alloc = |arena: &mut RangeAlloc, random: &mut Random, at: u64| {
            let align = 1 << (at % (bits + 1));
            let request = Request::new(1 + random.below(64)).align(align);
            let start = arena.alloc(&request).unwrap();
            assert_eq!(start % align, 0);
            start
        };
        for at in 0..MILLION {
            live.push(alloc(&mut arena, &mut random, at));
        }
        assert_eq!(arena.stats().alignments as u64, bits + 1);
        check(&arena.tree);
        for turn in 1..=MILLION {
            let at = random.below(MILLION) as usize;
            let freed = std::mem::replace(&mut live[at], 0);
            if turn % 16 == 0 {
                arena.free_lazy(freed).unwrap();
            } else {
                arena.free(freed).unwrap();
            }
            live[at] = alloc(&mut arena, &mut random, at as u64);
            if turn % (MILLION / 16) == 0 {
                check(&arena.tree);
                arena.purge(|_| ());
                check(&arena.tree);
            }
        }
        assert_eq!(arena.stats().allocations as u64, MILLION);
        empty(&mut arena, live, &mut random);
    }
}

/// What cannot be had beyond the reach of narrow words made them wide for nothing.
#[test]
fn what_fails_beyond_the_reach_leaves_words_narrow() {
    let (end, far) = (1u64 << 36, 1u64 << 35);
    let mut arena = RangeAlloc::new(0..end).unwrap();
    for _ in 0..200 {
        arena.alloc(&Request::new(10)).unwrap();
    }
    arena.prepare(1 << 20, 0).unwrap();
    arena.prepare(1 << 20, 9).unwrap();
    let before = arena.stats();
    let impossible = [
        Request::new(end - 1000),
        Request::new(end - 2003).align(1 << 20),
        Request::new(u64::MAX),
        Request::new(101).zone(far..far + 100),
        Request::new(1)
            .align(1 << 20)
            .zone(far + 1..far + (1 << 20)),
        Request::new(1).align(1 << 20).phase(9).zone(far..far + 9),
        Request::new(20).align(1 << 20).zone(end - 19..end),
    ];
    let refuses_all = |arena: &mut RangeAlloc, policy| {
        for request in &impossible {
            let request = request.clone().policy(policy);
            let refused = arena.alloc(&request);
            assert_eq!(refused, Err(AllocError::NoSpace { lazy: 0 }), "{request:?}");
        }
    };
    refuses_all(&mut arena, Policy::LowestAddress);
    refuses_all(&mut arena, Policy::NextFit);
    for start in [0, 5, 1999] {
        let refused = arena.alloc_at(start, far);
        let by = start / 10 * 10..start / 10 * 10 + 10;
        assert_eq!(refused, Err(AllocError::Occupied { by }));
    }
    arena.free(50).unwrap();
    let refused = arena.alloc_at(50, far);
    assert_eq!(refused, Err(AllocError::Occupied { by: 60..70 }));
    arena.alloc_at(50, 10).unwrap();
    assert_eq!(arena.stats(), before);
    refuses_all(&mut arena, Policy::BestFit);
    assert!(!is_wide(&arena));

    let last = Request::new(20).align(1 << 20).zone(end - (1 << 20)..end);
    assert_eq!(arena.alloc(&last), Ok(end - (1 << 20)));
    assert!(is_wide(&arena));
}
