//! Words of 64 bits, four at a time. AVX2 compares signed words only; flipping the highest bit of
//! both sides makes that a comparison of unsigned ones.

use core::arch::x86_64::*;

use super::{Avx2, bits_of_32, count_of_32, maxima_of_16_bits, maxima_of_32_bits};
use crate::isa::{Classes, Grid, Isa, Job, LANES, Lanes, Portable, Row, SPOTS, Words};
use crate::tree::Tree;

const STEP: usize = 4;
const FLIP: i64 = i64::MIN;

#[inline]
#[target_feature(enable = "avx2")]
fn splat(word: u64) -> __m256i {
    _mm256_set1_epi64x(word as i64)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load<const N: usize>(words: &[u64; N], at: usize) -> __m256i {
    let four: &[u64; STEP] = words[at..at + STEP].try_into().expect("four words");
    // SAFETY: `four` is 32 readable bytes; the load has no alignment.
    unsafe { _mm256_loadu_si256(four.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store<const N: usize>(words: &mut [u64; N], at: usize, four: __m256i) {
    let into: &mut [u64; STEP] = (&mut words[at..at + STEP]).try_into().expect("four words");
    // SAFETY: `into` is 32 writable bytes; the store has no alignment.
    unsafe { _mm256_storeu_si256(into.as_mut_ptr().cast(), four) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn flip(words: __m256i) -> __m256i {
    _mm256_xor_si256(words, _mm256_set1_epi64x(FLIP))
}

/// A bit for each word of `N` that `is` says all bits of, for four words at a time.
#[inline(always)]
fn bits<const N: usize>(is: impl Fn(usize) -> __m256i) -> u64 {
    // SAFETY: callers run with AVX2.
    let eight = |at| unsafe { halves_of_eight(is(at), is(at + STEP)) };
    let mut found = 0;
    let mut from = 0;
    while from + 32 <= N {
        let four = [
            eight(from),
            eight(from + 8),
            eight(from + 16),
            eight(from + 24),
        ];
        // SAFETY: callers run with AVX2.
        found |= u64::from(unsafe { bits_of_32(four) }) << from;
        from += 32;
    }
    while from < N {
        // SAFETY: callers run with AVX2.
        let eight = unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(eight(from))) };
        found |= (eight as u64) << from;
        from += 8;
    }
    found
}

/// The lower halves of four words and four more, in their order.
#[inline]
#[target_feature(enable = "avx2")]
fn halves_of_eight(four: __m256i, more: __m256i) -> __m256i {
    _mm256_permute4x64_epi64::<0b11_01_10_00>(low_halves(four, more))
}

/// The lower halves of four words and four more, crosswise.
#[inline]
#[target_feature(enable = "avx2")]
fn low_halves(four: __m256i, more: __m256i) -> __m256i {
    let (four, more) = (_mm256_castsi256_ps(four), _mm256_castsi256_ps(more));
    _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(four, more))
}

/// The numbers of four words.
#[inline]
#[target_feature(enable = "avx2")]
fn numbers(at: usize) -> __m256i {
    let at = at as i64;
    _mm256_setr_epi64x(at, at + 1, at + 2, at + 3)
}

#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn count_above<const N: usize>(words: &[u64; N], most: u64) -> u32 {
    let most = flip(splat(most));
    let is = |at| _mm256_cmpgt_epi64(flip(load(words, at)), most);
    if !N.is_multiple_of(32) {
        return bits::<N>(is).count_ones();
    }
    // A half of each of four words' answers and four more.
    let eight = |at| _mm256_blend_epi32::<0b1010_1010>(is(at), is(at + STEP));
    let (mut count, mut at) = (0, 0);
    while at < N {
        count += count_of_32([eight(at), eight(at + 8), eight(at + 16), eight(at + 24)]);
        at += 32;
    }
    count
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_flipped(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(a, b))
}

/// All bits of what has less than `size` (flipped) after `pad`.
#[inline]
#[target_feature(enable = "avx2")]
fn misses(gap: __m256i, pad: __m256i, size: __m256i) -> __m256i {
    let too_far = _mm256_cmpgt_epi64(flip(pad), flip(gap));
    let too_small = _mm256_cmpgt_epi64(size, flip(_mm256_sub_epi64(gap, pad)));
    _mm256_or_si256(too_far, too_small)
}

#[inline]
#[target_feature(enable = "avx2")]
fn fits(lo: &Words<u64>, hi: &Words<u64>, grid: Grid, size: u64) -> u32 {
    let (mask, phase) = (splat(grid.mask), splat(grid.phase));
    let size = flip(splat(size));
    let missed = bits::<SPOTS>(|at| {
        let lo = load(lo, at);
        let gap = _mm256_sub_epi64(load(hi, at), lo);
        let pad = _mm256_and_si256(_mm256_sub_epi64(phase, lo), mask);
        misses(gap, pad, size)
    });
    !missed as u32
}

#[inline]
#[target_feature(enable = "avx2")]
fn fits_from(lo: &Words<u64>, hi: &Words<u64>, from: u64, grid: Grid, size: u64) -> u32 {
    let (mask, phase) = (splat(grid.mask), splat(grid.phase));
    let (size, from) = (flip(splat(size)), flip(splat(from)));
    let missed = bits::<SPOTS>(|at| {
        let lo = flip(max_flipped(flip(load(lo, at)), from));
        let hi = load(hi, at);
        let gap = _mm256_sub_epi64(hi, lo);
        let pad = _mm256_and_si256(_mm256_sub_epi64(phase, lo), mask);
        let passed = _mm256_cmpgt_epi64(flip(lo), flip(hi));
        _mm256_or_si256(passed, misses(gap, pad, size))
    });
    !missed as u32
}

/// What a gap has for four classes.
#[inline]
#[target_feature(enable = "avx2")]
fn usable(gap: __m256i, lo: __m256i, classes: &Classes<u64>, at: usize) -> __m256i {
    let phases = load(&classes.phases, at);
    let pad = _mm256_and_si256(_mm256_sub_epi64(phases, lo), load(&classes.masks, at));
    let too_far = _mm256_cmpgt_epi64(flip(pad), flip(gap));
    _mm256_andnot_si256(too_far, _mm256_sub_epi64(gap, pad))
}

#[inline]
#[target_feature(enable = "avx2")]
fn is_most(lo: u64, hi: u64, classes: &Classes<u64>, most: &Lanes<u64>) -> u32 {
    let (gap, lo) = (splat(hi.wrapping_sub(lo)), splat(lo));
    let zero = _mm256_setzero_si256();
    bits::<LANES>(|at| {
        let most = load(most, at);
        let is_same = _mm256_cmpeq_epi64(usable(gap, lo, classes, at), most);
        _mm256_andnot_si256(_mm256_cmpeq_epi64(most, zero), is_same)
    }) as u32
}

/// Stores the larger words; tells which are not what they were.
#[inline]
#[target_feature(enable = "avx2")]
fn raise_four(most: &mut Lanes<u64>, at: usize, other: __m256i) -> __m256i {
    let was = load(most, at);
    let is_more = _mm256_cmpgt_epi64(flip(other), flip(was));
    store(most, at, _mm256_blendv_epi8(was, other, is_more));
    is_more
}

#[inline]
#[target_feature(enable = "avx2")]
fn raise_by_gap(lo: u64, hi: u64, classes: &Classes<u64>, most: &mut Lanes<u64>) -> bool {
    let (gap, lo) = (splat(hi.wrapping_sub(lo)), splat(lo));
    let mut change = _mm256_setzero_si256();
    for at in (0..LANES).step_by(STEP) {
        let active = load(&classes.active, at);
        let usable = _mm256_and_si256(usable(gap, lo, classes, at), active);
        change = _mm256_or_si256(change, raise_four(most, at, usable));
    }
    _mm256_testz_si256(change, change) == 0
}

#[inline]
#[target_feature(enable = "avx2")]
fn raise(most: &mut Lanes<u64>, other: &Lanes<u64>) -> bool {
    let mut change = _mm256_setzero_si256();
    for at in (0..LANES).step_by(STEP) {
        change = _mm256_or_si256(change, raise_four(most, at, load(other, at)));
    }
    _mm256_testz_si256(change, change) == 0
}

/// Masks below 2^32, and few gaps that are not.
#[inline]
#[target_feature(enable = "avx2")]
fn maxima_of_halves(
    lo: &Words<u64>,
    hi: &Words<u64>,
    classes: &Classes<u64>,
    most: &mut Lanes<u64>,
) {
    let zero = _mm256_setzero_si256();
    let gap = |at| _mm256_sub_epi64(load(hi, at), load(lo, at));
    let is_short = |at| _mm256_cmpeq_epi64(_mm256_srli_epi64::<32>(gap(at)), zero);
    let (mut los, mut gaps) = ([zero; 4], [zero; 4]);
    for (eight, (to_lo, to_gap)) in los.iter_mut().zip(&mut gaps).enumerate() {
        let at = eight * 8;
        let short = |at| _mm256_and_si256(gap(at), is_short(at));
        *to_lo = low_halves(load(lo, at), load(lo, at + STEP));
        *to_gap = low_halves(short(at), short(at + STEP));
    }
    maxima_of_32_bits(los, gaps, classes, most);
    let mut long = !bits::<SPOTS>(is_short) as u32;
    while long != 0 {
        let at = long.trailing_zeros() as usize % SPOTS;
        long &= long - 1;
        raise_by_gap(lo[at], hi[at], classes, most);
    }
}

/// Gaps and masks below 2^16.
#[inline]
#[target_feature(enable = "avx2")]
fn maxima_of_quarters(
    lo: &Words<u64>,
    hi: &Words<u64>,
    classes: &Classes<u64>,
    most: &mut Lanes<u64>,
) {
    let lowest = splat(0xffff);
    let pair = |at| {
        let low = |at| _mm256_and_si256(load(lo, at), lowest);
        let gap = |at| _mm256_sub_epi64(load(hi, at), load(lo, at));
        (
            _mm256_packus_epi32(low(at), low(at + 4)),
            _mm256_packus_epi32(gap(at), gap(at + 4)),
        )
    };
    let four = |at| {
        let ((lo, gap), (lo_above, gap_above)) = (pair(at), pair(at + 8));
        (
            _mm256_packus_epi32(lo, lo_above),
            _mm256_packus_epi32(gap, gap_above),
        )
    };
    let ((lo, gap), (lo_above, gap_above)) = (four(0), four(16));
    maxima_of_16_bits([lo, lo_above], [gap, gap_above], classes, most);
}

#[inline]
#[target_feature(enable = "avx2")]
fn same(a: &Lanes<u64>, b: &Lanes<u64>) -> u32 {
    bits::<LANES>(|at| _mm256_cmpeq_epi64(load(a, at), load(b, at))) as u32
}

#[inline]
#[target_feature(enable = "avx2")]
fn open<const N: usize>(words: &mut [u64; N], at: usize, word: u64) {
    let (place, word) = (splat(at as u64), splat(word));
    let mut below = _mm256_setzero_si256();
    for at in (0..N).step_by(STEP) {
        let here = load(words, at);
        let turned = _mm256_permute4x64_epi64::<0b10_01_00_11>(here);
        let moved = _mm256_blend_epi32::<0b11>(turned, below);
        below = turned;
        let numbers = numbers(at);
        let result = _mm256_blendv_epi8(here, moved, _mm256_cmpgt_epi64(numbers, place));
        let is_there = _mm256_cmpeq_epi64(numbers, place);
        store(words, at, _mm256_blendv_epi8(result, word, is_there));
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn close<const N: usize>(words: &mut [u64; N], at: usize) {
    let place = splat(at as u64);
    for at in (0..N).step_by(STEP) {
        let here = load(words, at);
        let mut moved = _mm256_permute4x64_epi64::<0b11_11_10_01>(here);
        if at + STEP < N {
            let next = splat(words[at + STEP]);
            moved = _mm256_blend_epi32::<0b1100_0000>(moved, next);
        }
        let stays = _mm256_cmpgt_epi64(place, numbers(at));
        store(words, at, _mm256_blendv_epi8(moved, here, stays));
    }
}

impl Isa<u64> for Avx2 {
    #[inline(always)]
    fn count_at_most<const N: usize>(words: &[u64; N], most: u64) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        N as u32 - unsafe { count_above(words, most) }
    }

    #[inline(always)]
    fn fits(lo: &Words<u64>, hi: &Words<u64>, grid: Grid, size: u64) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { fits(lo, hi, grid, size) }
    }

    #[inline(always)]
    fn fits_from(lo: &Words<u64>, hi: &Words<u64>, from: u64, grid: Grid, size: u64) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { fits_from(lo, hi, from, grid, size) }
    }

    #[inline(always)]
    fn is_most(lo: u64, hi: u64, classes: &Classes<u64>, most: &Lanes<u64>) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { is_most(lo, hi, classes, most) }
    }

    #[inline(always)]
    fn raise_by_gap(lo: u64, hi: u64, classes: &Classes<u64>, most: &mut Lanes<u64>) -> bool {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { raise_by_gap(lo, hi, classes, most) }
    }

    #[inline(always)]
    fn raise(most: &mut Lanes<u64>, other: &Lanes<u64>) -> bool {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { raise(most, other) }
    }

    #[inline(always)]
    fn maxima(
        lo: &Words<u64>,
        hi: &Words<u64>,
        largest: u64,
        classes: &Classes<u64>,
        most: &mut Lanes<u64>,
    ) {
        if (largest | classes.any_mask) >> 16 == 0 {
            // SAFETY: the machine has AVX2, see `Avx2`.
            unsafe { maxima_of_quarters(lo, hi, classes, most) }
        } else if classes.any_mask >> 32 == 0 {
            // SAFETY: the machine has AVX2, see `Avx2`.
            unsafe { maxima_of_halves(lo, hi, classes, most) }
        } else {
            Portable::maxima(lo, hi, largest, classes, most);
        }
    }

    #[inline(always)]
    fn same(a: &Lanes<u64>, b: &Lanes<u64>) -> u32 {
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
    fn open<const N: usize>(words: &mut [u64; N], at: usize, word: u64) {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { open(words, at, word) }
    }

    #[inline(always)]
    fn close<const N: usize>(words: &mut [u64; N], at: usize) {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { close(words, at) }
    }

    #[inline(always)]
    fn aside<J: Job>(tree: &mut Tree<u64>, job: J) -> J::Out {
        // SAFETY: the machine has the features, see `Avx2`.
        unsafe { super::aside(tree, job) }
    }

    #[inline(always)]
    fn apart<J: Job>(tree: &mut Tree<u64>, job: J) -> J::Out {
        // SAFETY: the machine has the features, see `Avx2`.
        unsafe { super::apart(tree, job) }
    }
}
