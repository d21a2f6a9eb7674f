use proptest::prelude::*;

use super::{Classes, FAN, Grid, Isa, LANES, Lanes, Portable, SPOTS, Words};
use crate::word::Word;

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![0..8u64, 0..1000u64, any::<u64>(), u64::MAX - 8..=u64::MAX]
}

fn words() -> impl Strategy<Value = [u64; FAN]> {
    proptest::collection::vec(word(), FAN).prop_map(|words| words.try_into().unwrap())
}

/// Gaps that lie one above the other, as in a leaf.
fn gaps() -> impl Strategy<Value = [u64; 2 * SPOTS]> {
    let near = any::<u64>().prop_flat_map(|from| {
        proptest::collection::vec(from..=from.saturating_add(100_000), 2 * SPOTS)
    });
    let any = proptest::collection::vec(word(), 2 * SPOTS);
    prop_oneof![any, near].prop_map(|ends| ends.try_into().unwrap())
}

fn grid() -> impl Strategy<Value = Grid> {
    (0..41u32, any::<u64>()).prop_map(|(shift, phase)| {
        let mask = (1u64 << shift) - 1;
        Grid {
            mask,
            phase: phase & mask,
        }
    })
}

/// What the definition says, without wrapping numbers.
fn usable(lo: u64, hi: u64, grid: Grid) -> u64 {
    let (align, phase) = (u128::from(grid.mask) + 1, u128::from(grid.phase));
    let (lo, hi) = (u128::from(lo), u128::from(hi));
    let steps = (lo + align - phase).div_ceil(align) - 1;
    let start = phase + steps * align;
    assert!(start >= lo && start < lo + align);
    u64::try_from(hi.saturating_sub(start)).unwrap()
}

fn bits(count: usize, is: impl Fn(usize) -> bool) -> u64 {
    (0..count).fold(0, |bits, at| bits | u64::from(is(at)) << at)
}

fn check_moves<W: Word, I: Isa<W>, const N: usize>(words: [W; N], at: usize, word: W) {
    let at = at % N;
    let mut moved = words;
    I::open(&mut moved, at, word);
    let opened = |i: usize| match i.cmp(&at) {
        std::cmp::Ordering::Less => words[i],
        std::cmp::Ordering::Equal => word,
        std::cmp::Ordering::Greater => words[i - 1],
    };
    assert!((0..N).all(|i| moved[i] == opened(i)));
    let mut moved = words;
    I::close(&mut moved, at);
    assert!((0..N).all(|i| moved[i] == words[if i < at { i } else { (i + 1).min(N - 1) }]));
    let count = words.iter().filter(|other| **other <= word).count();
    assert_eq!(I::count_at_most(&words, word), count as u32);
}

/// The words of one case.
struct Case {
    words: [u64; FAN],
    ends: [u64; 2 * SPOTS],
    from: u64,
    grid: Grid,
    size: u64,
}

fn check<W: Word, I: Isa<W>>(case: &Case) {
    let words = case.words.map(W::of);
    let (size, from) = (W::of(case.size), W::of(case.from));
    let at = case.size as usize;
    check_moves::<W, I, FAN>(words, at, size);
    check_moves::<W, I, SPOTS>(core::array::from_fn(|i| words[i]), at, size);
    check_moves::<W, I, 8>(core::array::from_fn(|i| words[i]), at, size);

    let row = case.words.map(|word| word as u32);
    let least = case.size as u32;
    assert_eq!(I::row_at_least(&row, least), bits(FAN, |i| row[i] >= least));
    let mut other = row;
    other[at % FAN] = least;
    let largest = *other.iter().max().unwrap();
    assert_eq!(I::row_max_with(&row, at % FAN, least), largest);

    let mut ends = case.ends.map(W::of);
    ends.sort_unstable();
    let lo: Words<W> = core::array::from_fn(|at| ends[2 * at]);
    let hi: Words<W> = core::array::from_fn(|at| ends[2 * at + 1]);
    let on = |grid: Grid<W>, i: usize, from: W| {
        let lo = lo[i].max(from);
        let grid = Grid {
            mask: grid.mask.get(),
            phase: grid.phase.get(),
        };
        (lo <= hi[i]).then(|| usable(lo.get(), hi[i].get(), grid))
    };
    let narrowed = |grid: Grid| {
        let mask = W::of(grid.mask);
        let phase = W::of(grid.phase).and(mask);
        Grid { mask, phase }
    };
    let grid = narrowed(case.grid);
    let fits = |i| on(grid, i, W::ZERO) >= Some(size.get());
    assert_eq!(u64::from(I::fits(&lo, &hi, grid, size)), bits(SPOTS, fits));
    let fits = |i| on(grid, i, from) >= Some(size.get());
    let above = I::fits_from(&lo, &hi, from, grid, size);
    assert_eq!(u64::from(above), bits(SPOTS, fits), "from {from:?}");

    // Short gaps and masks may take another way.
    for longest in [15, 31, 40] {
        for used in [1, 7, 9, LANES] {
            let masks = [0, 1, case.grid.mask, 255, (1 << 40) - 1, 3, 7];
            let grid_of = |lane: usize| {
                let mask = masks[lane % masks.len()] & ((1 << longest) - 1);
                let phase = case.grid.phase.wrapping_mul(lane as u64 / 3) & mask;
                narrowed(Grid { mask, phase })
            };
            let mut classes = Classes::new(grid_of(0));
            (1..used).for_each(|lane| classes.add(grid_of(lane)));
            check_classes::<W, I>(&classes, &lo, &hi, at % SPOTS);
        }
    }
}

fn check_classes<W: Word, I: Isa<W>>(
    classes: &Classes<W>,
    lo: &Words<W>,
    hi: &Words<W>,
    at: usize,
) {
    let gap = |i: usize| hi[i].wrapping_sub(lo[i]);
    let largest = (0..SPOTS).map(gap).max().unwrap();
    let usable = |lane: usize, i: usize| classes.grid(lane).usable(lo[i], hi[i]);
    let max = |lane: usize| (0..SPOTS).map(|i| usable(lane, i)).max().unwrap();
    let mut maxima = [W::ZERO; LANES];
    I::maxima(lo, hi, largest, classes, &mut maxima);
    for (lane, most) in maxima.into_iter().enumerate() {
        let expected = if lane < classes.used {
            max(lane)
        } else {
            W::ZERO
        };
        assert_eq!(most, expected, "lane {lane}");
    }

    // What three gaps have, one after the other.
    let mut most: Lanes<W> = [W::ZERO; LANES];
    for i in [at, (at + 7) % SPOTS, (at + 20) % SPOTS] {
        let was = most;
        let is_more = I::raise_by_gap(lo[i], hi[i], classes, &mut most);
        assert_eq!(is_more, was != most);
        for lane in 0..LANES {
            let usable = if lane < classes.used {
                usable(lane, i)
            } else {
                W::ZERO
            };
            assert_eq!(most[lane], was[lane].max(usable));
        }
        let mut joined = was;
        assert_eq!(I::raise(&mut joined, &most), is_more);
        assert_eq!(joined, most);
        assert!(!I::raise(&mut joined, &was));
        let same = bits(LANES, |lane| was[lane] == most[lane]);
        assert_eq!(u64::from(I::same(&was, &most)), same);
        let is = |lane: usize| most[lane] != W::ZERO && usable(lane, at) == most[lane];
        let expected = bits(classes.used, is);
        assert_eq!(
            u64::from(I::is_most(lo[at], hi[at], classes, &most)),
            expected
        );
    }
}

proptest! {
    // Miri takes a thousand times as long.
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    #[test]
    fn loops_do_what_they_say(
        words in words(), ends in gaps(), from in word(), grid in grid(), size in 1..=u64::MAX,
    ) {
        for size in [size, size % 64 + 1] {
            let case = Case { words, ends, from, grid, size };
            check::<u32, Portable>(&case);
            check::<u64, Portable>(&case);
            #[cfg(target_arch = "x86_64")]
            if super::has_simd() {
                check::<u32, super::Avx2>(&case);
                check::<u64, super::Avx2>(&case);
            }
        }
    }
}
