//! Words of 32 bits, eight at a time.

use core::arch::x86_64::*;

use super::{
    Avx2, bits_of_32, count_of_32, eight_numbers, load_eight, maxima_of_16_bits, maxima_of_32_bits,
};
use crate::isa::{Classes, Grid, Isa, Job, LANES, Lanes, Row, SPOTS, Words};
use crate::tree::Tree;

const STEP: usize = 8;

#[inline]
#[target_feature(enable = "avx2")]
fn splat(word: u32) -> __m256i {
    _mm256_set1_epi32(word as i32)
}

#[inline]
#[target_feature(enable = "avx2")]
fn store<const N: usize>(words: &mut [u32; N], at: usize, eight: __m256i) {
    let into: &mut [u32; STEP] = (&mut words[at..at + STEP]).try_into().expect("eight words");
    // SAFETY: `into` is 32 writable bytes; the store has no alignment.
    unsafe { _mm256_storeu_si256(into.as_mut_ptr().cast(), eight) }
}

/// A bit for each word of `N` that `is` says all bits of.
#[inline(always)]
fn bits<const N: usize>(is: impl Fn(usize) -> __m256i) -> u64 {
    let mut found = 0;
    let mut from = 0;
    while from + 32 <= N {
        let four = [is(from), is(from + 8), is(from + 16), is(from + 24)];
        // SAFETY: callers run with AVX2.
        found |= u64::from(unsafe { bits_of_32(four) }) << from;
        from += 32;
    }
    while from < N {
        // SAFETY: callers run with AVX2.
        let eight = unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(is(from))) };
        found |= (eight as u64) << from;
        from += STEP;
    }
    found
}

#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn count_at_most<const N: usize>(words: &[u32; N], most: u32) -> u32 {
    let most = splat(most);
    let is = |at| _mm256_cmpeq_epi32(_mm256_max_epu32(load_eight(words, at), most), most);
    if !N.is_multiple_of(32) {
        return bits::<N>(is).count_ones();
    }
    let (mut count, mut at) = (0, 0);
    while at < N {
        count += count_of_32([is(at), is(at + 8), is(at + 16), is(at + 24)]);
        at += 32;
    }
    count
}

#[inline]
#[target_feature(enable = "avx2")]
fn left_of(gap: __m256i, pad: __m256i) -> __m256i {
    _mm256_sub_epi32(_mm256_max_epu32(gap, pad), pad)
}

#[inline]
#[target_feature(enable = "avx2")]
fn fits(lo: &Words<u32>, hi: &Words<u32>, grid: Grid<u32>, size: u32) -> u32 {
    let (mask, phase, size) = (splat(grid.mask), splat(grid.phase), splat(size));
    bits::<SPOTS>(|at| {
        let (lo, hi) = (load_eight(lo, at), load_eight(hi, at));
        let pad = _mm256_and_si256(_mm256_sub_epi32(phase, lo), mask);
        let left = left_of(_mm256_sub_epi32(hi, lo), pad);
        _mm256_cmpeq_epi32(_mm256_max_epu32(left, size), left)
    }) as u32
}

#[inline]
#[target_feature(enable = "avx2")]
fn fits_from(lo: &Words<u32>, hi: &Words<u32>, from: u32, grid: Grid<u32>, size: u32) -> u32 {
    let (mask, phase, size) = (splat(grid.mask), splat(grid.phase), splat(size));
    let from = splat(from);
    bits::<SPOTS>(|at| {
        let lo = _mm256_max_epu32(load_eight(lo, at), from);
        let hi = _mm256_max_epu32(load_eight(hi, at), lo);
        let pad = _mm256_and_si256(_mm256_sub_epi32(phase, lo), mask);
        let left = left_of(_mm256_sub_epi32(hi, lo), pad);
        _mm256_cmpeq_epi32(_mm256_max_epu32(left, size), left)
    }) as u32
}

/// What a gap has for eight classes.
#[inline]
#[target_feature(enable = "avx2")]
fn usable(gap: __m256i, lo: __m256i, classes: &Classes<u32>, at: usize) -> __m256i {
    let phases = load_eight(&classes.phases, at);
    let pad = _mm256_and_si256(_mm256_sub_epi32(phases, lo), load_eight(&classes.masks, at));
    left_of(gap, pad)
}

#[inline]
#[target_feature(enable = "avx2")]
fn is_most(lo: u32, hi: u32, classes: &Classes<u32>, most: &Lanes<u32>) -> u32 {
    let (gap, lo) = (splat(hi.wrapping_sub(lo)), splat(lo));
    let zero = _mm256_setzero_si256();
    bits::<LANES>(|at| {
        let most = load_eight(most, at);
        let is_same = _mm256_cmpeq_epi32(usable(gap, lo, classes, at), most);
        _mm256_andnot_si256(_mm256_cmpeq_epi32(most, zero), is_same)
    }) as u32
}

/// Stores the larger words; tells which are not what they were.
#[inline]
#[target_feature(enable = "avx2")]
fn raise_eight(most: &mut Lanes<u32>, at: usize, other: __m256i) -> __m256i {
    let was = load_eight(most, at);
    let now = _mm256_max_epu32(was, other);
    store(most, at, now);
    _mm256_xor_si256(now, was)
}

#[inline]
#[target_feature(enable = "avx2")]
fn raise_by_gap(lo: u32, hi: u32, classes: &Classes<u32>, most: &mut Lanes<u32>) -> bool {
    let (gap, lo) = (splat(hi.wrapping_sub(lo)), splat(lo));
    let mut change = _mm256_setzero_si256();
    for at in (0..LANES).step_by(STEP) {
        let active = load_eight(&classes.active, at);
        let usable = _mm256_and_si256(usable(gap, lo, classes, at), active);
        change = _mm256_or_si256(change, raise_eight(most, at, usable));
    }
    _mm256_testz_si256(change, change) == 0
}

#[inline]
#[target_feature(enable = "avx2")]
fn raise(most: &mut Lanes<u32>, other: &Lanes<u32>) -> bool {
    let mut change = _mm256_setzero_si256();
    for at in (0..LANES).step_by(STEP) {
        change = _mm256_or_si256(change, raise_eight(most, at, load_eight(other, at)));
    }
    _mm256_testz_si256(change, change) == 0
}

#[inline]
#[target_feature(enable = "avx2")]
fn maxima(
    lo: &Words<u32>,
    hi: &Words<u32>,
    largest: u32,
    classes: &Classes<u32>,
    most: &mut Lanes<u32>,
) {
    let (mut los, mut gaps) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
    for (at, (to_lo, to_gap)) in los.iter_mut().zip(&mut gaps).enumerate() {
        *to_lo = load_eight(lo, at * STEP);
        *to_gap = _mm256_sub_epi32(load_eight(hi, at * STEP), *to_lo);
    }
    if (largest | classes.any_mask) >> 16 == 0 {
        let low = los.map(|lo| _mm256_and_si256(lo, splat(0xffff)));
        let pack =
            |[a, b, c, d]: [__m256i; 4]| [_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d)];
        maxima_of_16_bits(pack(low), pack(gaps), classes, most);
    } else {
        maxima_of_32_bits(los, gaps, classes, most);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn same(a: &Lanes<u32>, b: &Lanes<u32>) -> u32 {
    bits::<LANES>(|at| _mm256_cmpeq_epi32(load_eight(a, at), load_eight(b, at))) as u32
}

#[inline]
#[target_feature(enable = "avx2")]
fn open<const N: usize>(words: &mut [u32; N], at: usize, word: u32) {
    let (place, word) = (splat(at as u32), splat(word));
    let upwards = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6);
    // Words that moves have just stored are loaded as they were stored, which costs nothing.
    let mut below = _mm256_setzero_si256();
    for at in (0..N).step_by(STEP) {
        let here = load_eight(words, at);
        let turned = _mm256_permutevar8x32_epi32(here, upwards);
        let moved = _mm256_blend_epi32::<1>(turned, below);
        below = turned;
        let numbers = eight_numbers(at);
        let result = _mm256_blendv_epi8(here, moved, _mm256_cmpgt_epi32(numbers, place));
        let is_there = _mm256_cmpeq_epi32(numbers, place);
        store(words, at, _mm256_blendv_epi8(result, word, is_there));
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn close<const N: usize>(words: &mut [u32; N], at: usize) {
    let place = splat(at as u32);
    let downwards = _mm256_setr_epi32(1, 2, 3, 4, 5, 6, 7, 7);
    for at in (0..N).step_by(STEP) {
        let here = load_eight(words, at);
        let mut moved = _mm256_permutevar8x32_epi32(here, downwards);
        if at + STEP < N {
            let next = splat(words[at + STEP]);
            moved = _mm256_blend_epi32::<0x80>(moved, next);
        }
        let stays = _mm256_cmpgt_epi32(place, eight_numbers(at));
        store(words, at, _mm256_blendv_epi8(moved, here, stays));
    }
}

impl Isa<u32> for Avx2 {
    #[inline(always)]
    fn count_at_most<const N: usize>(words: &[u32; N], most: u32) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { count_at_most(words, most) }
    }

    #[inline(always)]
    fn fits(lo: &Words<u32>, hi: &Words<u32>, grid: Grid<u32>, size: u32) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { fits(lo, hi, grid, size) }
    }

    #[inline(always)]
    fn fits_from(lo: &Words<u32>, hi: &Words<u32>, from: u32, grid: Grid<u32>, size: u32) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { fits_from(lo, hi, from, grid, size) }
    }

    #[inline(always)]
    fn is_most(lo: u32, hi: u32, classes: &Classes<u32>, most: &Lanes<u32>) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { is_most(lo, hi, classes, most) }
    }

    #[inline(always)]
    fn raise_by_gap(lo: u32, hi: u32, classes: &Classes<u32>, most: &mut Lanes<u32>) -> bool {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { raise_by_gap(lo, hi, classes, most) }
    }

    #[inline(always)]
    fn raise(most: &mut Lanes<u32>, other: &Lanes<u32>) -> bool {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { raise(most, other) }
    }

    #[inline(always)]
    fn maxima(
        lo: &Words<u32>,
        hi: &Words<u32>,
        largest: u32,
        classes: &Classes<u32>,
        most: &mut Lanes<u32>,
    ) {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { maxima(lo, hi, largest, classes, most) }
    }

    #[inline(always)]
    fn same(a: &Lanes<u32>, b: &Lanes<u32>) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { same(a, b) }
    }

    #[inline(always)]
    fn row_at_least(row: &Row, least: u32) -> u64 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { super::row_at_least(row, least) }
    }

    #[inline(always)]
    fn row_max_with(row: &Row, at: usize, word: u32) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { super::row_max_with(row, at, word) }
    }

    #[inline(always)]
    fn open<const N: usize>(words: &mut [u32; N], at: usize, word: u32) {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { open(words, at, word) }
    }

    #[inline(always)]
    fn close<const N: usize>(words: &mut [u32; N], at: usize) {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { close(words, at) }
    }

    #[inline(always)]
    fn aside<J: Job>(tree: &mut Tree<u32>, job: J) -> J::Out {
        // SAFETY: the machine has the features, see `Avx2`.
        unsafe { super::aside(tree, job) }
    }

    #[inline(always)]
    fn apart<J: Job>(tree: &mut Tree<u32>, job: J) -> J::Out {
        // SAFETY: the machine has the features, see `Avx2`.
        unsafe { super::apart(tree, job) }
    }
}
