use proptest::prelude::*;

use super::{FAN, Grid, Isa, Portable, Words};

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![0..8u64, 0..1000u64, any::<u64>(), u64::MAX - 8..=u64::MAX]
}

fn words() -> impl Strategy<Value = Words> {
    proptest::collection::vec(word(), FAN).prop_map(|words| words.try_into().unwrap())
}

/// Gaps that lie one above the other, as in a leaf.
fn gaps() -> impl Strategy<Value = (Words, Words)> {
    let near = any::<u64>().prop_flat_map(|from| {
        proptest::collection::vec(from..=from.saturating_add(100_000), 2 * FAN)
    });
    prop_oneof![proptest::collection::vec(word(), 2 * FAN), near].prop_map(|mut ends| {
        ends.sort_unstable();
        let lo = core::array::from_fn(|at| ends[2 * at]);
        let hi = core::array::from_fn(|at| ends[2 * at + 1]);
        (lo, hi)
    })
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

fn check<I: Isa>(words: &Words, lo: &Words, hi: &Words, from: u64, grid: Grid, size: u64) {
    let bits = |is: &dyn Fn(usize) -> bool| (0..FAN).fold(0, |b, i| b | u32::from(is(i)) << i);
    assert_eq!(I::at_most(words, size), bits(&|i| words[i] <= size));
    let row = words.map(|word| word as u32);
    let least = size as u32;
    assert_eq!(I::row_at_least(&row, least), bits(&|i| row[i] >= least));
    assert_eq!(I::row_max(&row), *row.iter().max().unwrap());
    let at = (size % FAN as u64) as usize;
    let mut moved = *words;
    I::open(&mut moved, at);
    assert!((0..FAN).all(|i| moved[i] == words[if i > at { i - 1 } else { i }]));
    let mut moved = *words;
    I::close(&mut moved, at);
    assert!((0..FAN).all(|i| moved[i] == words[if i < at { i } else { (i + 1).min(FAN - 1) }]));
    for from in [0, from] {
        let fits = |i: usize| {
            let lo = lo[i].max(from);
            lo <= hi[i] && usable(lo, hi[i], grid) >= size
        };
        assert_eq!(
            I::fits(lo, hi, from, grid, size),
            bits(&fits),
            "from {from}"
        );
    }
    let lanes = |from: usize| -> super::Lanes { core::array::from_fn(|i| words[from + i] % 4) };
    let (were, now, top) = (lanes(0), lanes(8), lanes(16));
    let shrunk = (0..8).fold(0, |b, i| {
        b | u32::from(were[i] == top[i] && now[i] < top[i]) << i
    });
    let larger = core::array::from_fn(|i| now[i].max(top[i]));
    assert_eq!(I::follow(&were, &now, &top), (larger, shrunk));
    // Short gaps and masks may take another way.
    let largest = (0..FAN).map(|i| hi[i] - lo[i]).max().unwrap();
    let wide = [0, 1, grid.mask, 255, (1 << 40) - 1, grid.mask, 3, 7];
    for masks in [wide, wide.map(|mask| mask & 0xffff_ffff)] {
        let phases = [0, 1, grid.phase & masks[2], 17, 0, 0, 2, 0];
        let grid_of = |lane: usize| Grid {
            mask: masks[lane],
            phase: phases[lane],
        };
        for used in [1, 7, 8] {
            let most = I::maxima(lo, hi, largest, &masks, &phases, used);
            for (lane, most) in most.into_iter().enumerate() {
                let all = (0..FAN).map(|at| usable(lo[at], hi[at], grid_of(lane)));
                let expected = if lane < used { all.max().unwrap() } else { 0 };
                assert_eq!(most, expected, "lane {lane} of {used}");
            }
        }
        let one = I::usable(lo[at], hi[at], &masks, &phases);
        for (lane, one) in one.into_iter().enumerate() {
            assert_eq!(one, usable(lo[at], hi[at], grid_of(lane)));
        }
    }
}

proptest! {
    #[test]
    fn loops_do_what_they_say(
        words in words(), (lo, hi) in gaps(), from in word(), grid in grid(), size in 1..=u64::MAX,
    ) {
        for size in [size, size % 64 + 1] {
            check::<Portable>(&words, &lo, &hi, from, grid, size);
            #[cfg(target_arch = "x86_64")]
            if super::is_wide() {
                check::<super::Avx2>(&words, &lo, &hi, from, grid, size);
            }
        }
    }
}
