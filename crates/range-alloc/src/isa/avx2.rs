//! Four words at a time. AVX2 compares signed words only; flipping the highest bit of both sides
//! makes that a comparison of unsigned ones.

use core::arch::x86_64::*;

use super::{FAN, Grid, Isa, LANES, Lanes, Portable, Row, Words};

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
fn store<const N: usize>(words: &mut [u64; N], at: usize, four: __m256i) {
    let into: &mut [u64; STEP] = (&mut words[at..at + STEP]).try_into().expect("four words");
    // SAFETY: `into` is 32 writable bytes; the store has no alignment.
    unsafe { _mm256_storeu_si256(into.as_mut_ptr().cast(), four) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn usable(lo: u64, hi: u64, masks: &Lanes, phases: &Lanes) -> Lanes {
    let (gap, lo) = (splat(hi - lo), splat(lo));
    let mut lanes = [0; LANES];
    for at in (0..LANES).step_by(STEP) {
        let pad = _mm256_and_si256(_mm256_sub_epi64(load(phases, at), lo), load(masks, at));
        let left = _mm256_sub_epi64(gap, pad);
        let too_far = _mm256_cmpgt_epi64(flip(pad), flip(gap));
        store(&mut lanes, at, _mm256_andnot_si256(too_far, left));
    }
    lanes
}

#[inline]
#[target_feature(enable = "avx2")]
fn follow(were: &Lanes, now: &Lanes, top: &Lanes) -> (Lanes, u32) {
    let (mut larger, mut shrunk) = ([0; LANES], 0);
    for at in (0..LANES).step_by(STEP) {
        let (were, now, top) = (load(were, at), load(now, at), load(top, at));
        let is_above = _mm256_cmpgt_epi64(flip(now), flip(top));
        store(&mut larger, at, _mm256_blendv_epi8(top, now, is_above));
        let was_top = _mm256_cmpeq_epi64(were, top);
        let is_below = _mm256_andnot_si256(_mm256_cmpeq_epi64(now, top), was_top);
        shrunk |= bits(_mm256_andnot_si256(is_above, is_below)) << at;
    }
    (larger, shrunk)
}

/// The lower halves of eight words, in an order of its own.
#[inline]
#[target_feature(enable = "avx2")]
fn load_low_halves(words: &Words, at: usize) -> __m256i {
    let a = _mm256_castsi256_ps(load(words, at));
    let b = _mm256_castsi256_ps(load(words, at + STEP));
    _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_of_eight(words: __m256i) -> u32 {
    let four = _mm_max_epu32(
        _mm256_castsi256_si128(words),
        _mm256_extracti128_si256::<1>(words),
    );
    let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    let one = _mm_max_epu32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
    _mm_cvtsi128_si32(one) as u32
}

/// Gaps and masks below 2^32, for which the lower halves of all words are enough.
#[inline]
#[target_feature(enable = "avx2")]
fn short_maxima(lo: &Words, hi: &Words, masks: &Lanes, phases: &Lanes, used: usize) -> Lanes {
    let zero = _mm256_setzero_si256();
    let (mut los, mut gaps) = ([zero; FAN / 8], [zero; FAN / 8]);
    for (eight, (to_lo, to_gap)) in los.iter_mut().zip(&mut gaps).enumerate() {
        *to_lo = load_low_halves(lo, eight * 8);
        *to_gap = _mm256_sub_epi32(load_low_halves(hi, eight * 8), *to_lo);
    }
    let mut most = [0; LANES];
    for (lane, most) in most.iter_mut().enumerate().take(used) {
        let mask = _mm256_set1_epi32(masks[lane] as i32);
        let phase = _mm256_set1_epi32(phases[lane] as i32);
        let mut max = zero;
        for (lo, gap) in los.iter().zip(&gaps) {
            let pad = _mm256_and_si256(_mm256_sub_epi32(phase, *lo), mask);
            let left = _mm256_sub_epi32(_mm256_max_epu32(*gap, pad), pad);
            max = _mm256_max_epu32(max, left);
        }
        *most = u64::from(max_of_eight(max));
    }
    most
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_row(row: &Row, at: usize) -> __m256i {
    let eight: &[u32; 8] = row[at..at + 8].try_into().expect("eight words");
    // SAFETY: `eight` is 32 readable bytes; the load has no alignment.
    unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn row_at_least(row: &Row, least: u32) -> u32 {
    let least = _mm256_set1_epi32(least as i32);
    let mut found = 0;
    for at in (0..FAN).step_by(8) {
        let row = load_row(row, at);
        let is = _mm256_cmpeq_epi32(_mm256_max_epu32(row, least), row);
        found |= (_mm256_movemask_ps(_mm256_castsi256_ps(is)) as u32) << at;
    }
    found
}

#[inline]
#[target_feature(enable = "avx2")]
fn row_max(row: &Row) -> u32 {
    let a = _mm256_max_epu32(load_row(row, 0), load_row(row, 8));
    let b = _mm256_max_epu32(load_row(row, 16), load_row(row, 24));
    max_of_eight(_mm256_max_epu32(a, b))
}

/// The numbers of four words.
#[inline]
#[target_feature(enable = "avx2")]
fn numbers(at: usize) -> __m256i {
    let at = at as i64;
    _mm256_setr_epi64x(at, at + 1, at + 2, at + 3)
}

#[inline]
#[target_feature(enable = "avx2")]
fn open(words: &mut Words, place: usize) {
    let place = splat(place as u64);
    for at in (0..FAN).step_by(STEP).rev() {
        let here = load(words, at);
        let below = if at == 0 {
            _mm256_permute4x64_epi64::<0b10_01_00_00>(here)
        } else {
            load(words, at - 1)
        };
        let moves = _mm256_cmpgt_epi64(numbers(at), place);
        store(words, at, _mm256_blendv_epi8(here, below, moves));
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn close(words: &mut Words, place: usize) {
    let place = splat(place as u64);
    for at in (0..FAN).step_by(STEP) {
        let here = load(words, at);
        let above = if at + STEP == FAN {
            _mm256_permute4x64_epi64::<0b11_11_10_01>(here)
        } else {
            load(words, at + 1)
        };
        let stays = _mm256_cmpgt_epi64(place, numbers(at));
        store(words, at, _mm256_blendv_epi8(above, here, stays));
    }
}

impl Isa for Avx2 {
    #[inline(always)]
    fn at_most(words: &Words, most: u64) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        !unsafe { above(words, most) }
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
    fn usable(lo: u64, hi: u64, masks: &Lanes, phases: &Lanes) -> Lanes {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { usable(lo, hi, masks, phases) }
    }

    #[inline(always)]
    fn maxima(
        lo: &Words,
        hi: &Words,
        largest: u64,
        masks: &Lanes,
        phases: &Lanes,
        used: usize,
    ) -> Lanes {
        let is_short = masks[..used].iter().fold(largest, |all, mask| all | mask) >> 32 == 0;
        if is_short {
            // SAFETY: the machine has AVX2, see `Avx2`.
            unsafe { short_maxima(lo, hi, masks, phases, used) }
        } else {
            Portable::maxima(lo, hi, largest, masks, phases, used)
        }
    }

    #[inline(always)]
    fn follow(were: &Lanes, now: &Lanes, top: &Lanes) -> (Lanes, u32) {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { follow(were, now, top) }
    }

    #[inline(always)]
    fn row_at_least(row: &Row, least: u32) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { row_at_least(row, least) }
    }

    #[inline(always)]
    fn row_max(row: &Row) -> u32 {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { row_max(row) }
    }

    #[inline(always)]
    fn open(words: &mut Words, at: usize) {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { open(words, at) }
    }

    #[inline(always)]
    fn close(words: &mut Words, at: usize) {
        // SAFETY: the machine has AVX2, see `Avx2`.
        unsafe { close(words, at) }
    }
}
