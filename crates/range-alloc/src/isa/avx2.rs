//! Four words at a time. AVX2 compares signed words only; flipping the highest bit of both sides
//! makes that a comparison of unsigned ones.

use core::arch::x86_64::*;

use super::{FAN, Grid, Isa, LANES, Lanes, Words};

/// To be used in functions that are compiled with [`is_wide`](super::is_wide)'s features alone.
pub(crate) struct Avx2;

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
fn flip(words: __m256i) -> __m256i {
    _mm256_xor_si256(words, _mm256_set1_epi64x(FLIP))
}

#[inline]
#[target_feature(enable = "avx2")]
fn bits(words: __m256i) -> u32 {
    _mm256_movemask_pd(_mm256_castsi256_pd(words)) as u32
}

#[inline]
#[target_feature(enable = "avx2")]
fn below(words: &Words, limit: u64) -> u32 {
    let limit = flip(splat(limit));
    let mut found = 0;
    for at in (0..FAN).step_by(STEP) {
        found |= bits(_mm256_cmpgt_epi64(limit, flip(load(words, at)))) << at;
    }
    found
}

#[inline]
#[target_feature(enable = "avx2")]
fn above(words: &Words, limit: u64) -> u32 {
    let limit = flip(splat(limit));
    let mut found = 0;
    for at in (0..FAN).step_by(STEP) {
        found |= bits(_mm256_cmpgt_epi64(flip(load(words, at)), limit)) << at;
    }
    found
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_flipped(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn max(words: &Words) -> u64 {
    let mut most = flip(load(words, 0));
    for at in (STEP..FAN).step_by(STEP) {
        most = max_flipped(most, flip(load(words, at)));
    }
    let most = max_flipped(most, _mm256_permute4x64_epi64::<0b01_00_11_10>(most));
    let most = max_flipped(most, _mm256_permute4x64_epi64::<0b10_11_00_01>(most));
    (_mm256_extract_epi64::<0>(most) ^ FLIP) as u64
}

#[inline]
#[target_feature(enable = "avx2")]
fn fits(lo: &Words, hi: &Words, grid: Grid, size: u64) -> u32 {
    let (mask, phase) = (splat(grid.mask), splat(grid.phase));
    let size = flip(splat(size));
    let mut misses = 0;
    for at in (0..FAN).step_by(STEP) {
        let lo = load(lo, at);
        let gap = _mm256_sub_epi64(load(hi, at), lo);
        let pad = _mm256_and_si256(_mm256_sub_epi64(phase, lo), mask);
        let left = _mm256_sub_epi64(gap, pad);
        let too_far = _mm256_cmpgt_epi64(flip(pad), flip(gap));
        let too_small = _mm256_cmpgt_epi64(size, flip(left));
        misses |= bits(_mm256_or_si256(too_far, too_small)) << at;
    }
    !misses
}

#[inline]
#[target_feature(enable = "avx2")]
fn fits_from(lo: &Words, hi: &Words, from: u64, grid: Grid, size: u64) -> u32 {
    let (mask, phase) = (splat(grid.mask), splat(grid.phase));
    let (size, from) = (flip(splat(size)), flip(splat(from)));
    let mut misses = 0;
    for at in (0..FAN).step_by(STEP) {
        let lo = flip(max_flipped(flip(load(lo, at)), from));
        let hi = load(hi, at);
        let gap = _mm256_sub_epi64(hi, lo);
        let pad = _mm256_and_si256(_mm256_sub_epi64(phase, lo), mask);
        let left = _mm256_sub_epi64(gap, pad);
        let passed = _mm256_cmpgt_epi64(flip(lo), flip(hi));
        let too_far = _mm256_cmpgt_epi64(flip(pad), flip(gap));
        let too_small = _mm256_cmpgt_epi64(size, flip(left));
        let miss = _mm256_or_si256(passed, _mm256_or_si256(too_far, too_small));
        misses |= bits(miss) << at;
    }
    !misses
}

#[inline]
#[target_feature(enable = "avx2")]
fn usable(lo: &Words, hi: &Words, mut which: u32, masks: &Lanes, phases: &Lanes) -> Lanes {
    let (mask_a, mask_b) = (load(masks, 0), load(masks, STEP));
    let (phase_a, phase_b) = (load(phases, 0), load(phases, STEP));
    let mut most_a = splat(0);
    let mut most_b = splat(0);
    // A gap of 2^63 or more is the only one; pads are below 2^63 and compare signed.
    let mut huge = 0;
    while which != 0 {
        let at = which.trailing_zeros() as usize % FAN;
        which &= which - 1;
        let gap = hi[at].wrapping_sub(lo[at]);
        huge |= u32::from((gap as i64) < 0) << at;
        let (lo, gap) = (splat(lo[at]), splat(gap));
        let pad_a = _mm256_and_si256(_mm256_sub_epi64(phase_a, lo), mask_a);
        let pad_b = _mm256_and_si256(_mm256_sub_epi64(phase_b, lo), mask_b);
        let left_a = _mm256_sub_epi64(gap, pad_a);
        let left_b = _mm256_sub_epi64(gap, pad_b);
        // What is left is negative where the pad is longer than the gap.
        most_a = _mm256_blendv_epi8(most_a, left_a, _mm256_cmpgt_epi64(left_a, most_a));
        most_b = _mm256_blendv_epi8(most_b, left_b, _mm256_cmpgt_epi64(left_b, most_b));
    }
    let mut most = [0; LANES];
    let (a, b) = most.split_at_mut(STEP);
    // SAFETY: each half is 32 writable bytes; the stores have no alignment.
    unsafe {
        _mm256_storeu_si256(a.as_mut_ptr().cast(), most_a);
        _mm256_storeu_si256(b.as_mut_ptr().cast(), most_b);
    }
    if huge != 0 {
        let rest = super::Portable::usable(lo, hi, huge, masks, phases);
        for lane in 0..LANES {
            most[lane] = most[lane].max(rest[lane]);
        }
    }
    most
}

#[inline]
#[target_feature(enable = "avx2")]
fn gaps(lo: &Words, hi: &Words) -> u32 {
    let mut equal = 0;
    for at in (0..FAN).step_by(STEP) {
        equal |= bits(_mm256_cmpeq_epi64(load(lo, at), load(hi, at))) << at;
    }
    !equal
}

// SAFETY of all: these are only reached from functions with the features (see `Avx2`).
impl Isa for Avx2 {
    #[inline(always)]
    fn at_least(words: &Words, least: u64) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        !unsafe { below(words, least) }
    }

    #[inline(always)]
    fn at_most(words: &Words, most: u64) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        !unsafe { above(words, most) }
    }

    #[inline(always)]
    fn max(words: &Words) -> u64 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { max(words) }
    }

    #[inline(always)]
    fn fits(lo: &Words, hi: &Words, from: u64, grid: Grid, size: u64) -> u32 {
        if from == 0 {
            // SAFETY: the machine has AVX2, see `Avx2`.
            unsafe { fits(lo, hi, grid, size) }
        } else {
            // SAFETY: the machine has AVX2, see `Avx2`.
            unsafe { fits_from(lo, hi, from, grid, size) }
        }
    }

    #[inline(always)]
    fn usable(lo: &Words, hi: &Words, which: u32, masks: &Lanes, phases: &Lanes) -> Lanes {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { usable(lo, hi, which, masks, phases) }
    }

    #[inline(always)]
    fn gaps(lo: &Words, hi: &Words) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { gaps(lo, hi) }
    }
}
