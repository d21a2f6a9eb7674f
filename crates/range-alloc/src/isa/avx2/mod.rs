//! 32 bytes at a time.

mod narrow;
mod wide;

use core::arch::x86_64::*;

use super::{Classes, Isa, Job, Lanes, Look, Row};
use crate::tree::Tree;
use crate::word::Word;

/// To be used in functions that are compiled with [`has_simd`](super::has_simd)'s features alone.
pub(crate) struct Avx2;

/// Does the work.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn run<W: Word, J: Job>(tree: &mut Tree<W>, job: J) -> J::Out
where
    Avx2: Isa<W>,
{
    job.run::<W, Avx2>(tree)
}

/// Answers the question.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn look<W: Word, L: Look>(tree: &Tree<W>, question: L) -> L::Out
where
    Avx2: Isa<W>,
{
    question.look::<W, Avx2>(tree)
}

#[cold]
#[inline(never)]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn aside<W: Word, J: Job>(tree: &mut Tree<W>, job: J) -> J::Out
where
    Avx2: Isa<W>,
{
    job.run::<W, Avx2>(tree)
}

#[inline(never)]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn apart<W: Word, J: Job>(tree: &mut Tree<W>, job: J) -> J::Out
where
    Avx2: Isa<W>,
{
    job.run::<W, Avx2>(tree)
}

/// A bit for each byte's highest bit of 32 words' masks.
#[inline]
#[target_feature(enable = "avx2")]
fn bits_of_32(masks: [__m256i; 4]) -> u32 {
    let [a, b, c, d] = masks;
    let halves = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    // Packing works on 16 bytes at a time and leaves the quarters crosswise.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_movemask_epi8(_mm256_permutevar8x32_epi32(halves, order)) as u32
}

/// How many of 32 words have all bits, in whatever order.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn count_of_32([a, b, c, d]: [__m256i; 4]) -> u32 {
    let halves = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    _mm256_movemask_epi8(halves).count_ones()
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

#[inline]
#[target_feature(enable = "avx2")]
fn min_of_sixteen(words: __m256i) -> u16 {
    let eight = _mm_min_epu16(
        _mm256_castsi256_si128(words),
        _mm256_extracti128_si256::<1>(words),
    );
    _mm_cvtsi128_si32(_mm_minpos_epu16(eight)) as u16
}

/// The largest of 32 gaps, in whatever order, for the classes in use. Gaps and masks have 16 bits,
/// the beginnings are modulo 2^16.
#[inline]
#[target_feature(enable = "avx2")]
fn maxima_of_16_bits<W: Word>(
    los: [__m256i; 2],
    gaps: [__m256i; 2],
    classes: &Classes<W>,
    most: &mut Lanes<W>,
) {
    // There is an instruction for the least of eight: all is counted from the other end.
    let ones = _mm256_set1_epi16(-1);
    let taken = gaps.map(|gap| _mm256_xor_si256(gap, ones));
    let up = los.map(|lo| _mm256_sub_epi16(_mm256_setzero_si256(), lo));
    let all = classes.twice_in_use();
    let most = &mut most[..all.len()];
    let largest = |mask: __m256i, up: [__m256i; 2]| {
        let with_pad =
            |half: usize| _mm256_adds_epu16(taken[half], _mm256_and_si256(up[half], mask));
        let least = min_of_sixteen(_mm256_min_epu16(with_pad(0), with_pad(1)));
        W::of(u64::from(!least))
    };
    if classes.any_phase {
        for ([mask, phase], most) in all.iter().zip(most) {
            let phase = _mm256_set1_epi32(*phase as i32);
            let up = up.map(|up| _mm256_add_epi16(up, phase));
            *most = largest(_mm256_set1_epi32(*mask as i32), up);
        }
    } else {
        for ([mask, _], most) in all.iter().zip(most) {
            *most = largest(_mm256_set1_epi32(*mask as i32), up);
        }
    }
}

/// The same with 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn maxima_of_32_bits<W: Word>(
    los: [__m256i; 4],
    gaps: [__m256i; 4],
    classes: &Classes<W>,
    most: &mut Lanes<W>,
) {
    let (masks, phases) = classes.in_use();
    let most = &mut most[..masks.len()];
    for ((mask, phase), most) in masks.iter().zip(phases).zip(most) {
        let mask = _mm256_set1_epi32(mask.get() as i32);
        let phase = _mm256_set1_epi32(phase.get() as i32);
        let mut max = _mm256_setzero_si256();
        for (lo, gap) in los.iter().zip(gaps) {
            let pad = _mm256_and_si256(_mm256_sub_epi32(phase, *lo), mask);
            max = _mm256_max_epu32(max, _mm256_sub_epi32(_mm256_max_epu32(gap, pad), pad));
        }
        *most = W::of(u64::from(max_of_eight(max)));
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_eight<const N: usize>(words: &[u32; N], at: usize) -> __m256i {
    let eight: &[u32; 8] = words[at..at + 8].try_into().expect("eight words");
    // SAFETY: `eight` is 32 readable bytes; the load has no alignment.
    unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) }
}

/// The numbers of eight words.
#[inline]
#[target_feature(enable = "avx2")]
fn eight_numbers(at: usize) -> __m256i {
    let first = _mm256_set1_epi32(at as i32);
    _mm256_add_epi32(first, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

#[inline]
#[target_feature(enable = "avx2")]
fn row_at_least(row: &Row, least: u32) -> u64 {
    let least = _mm256_set1_epi32(least as i32);
    let is = |at| {
        let row = load_eight(row, at);
        _mm256_cmpeq_epi32(_mm256_max_epu32(row, least), row)
    };
    let low = bits_of_32([is(0), is(8), is(16), is(24)]);
    let high = bits_of_32([is(32), is(40), is(48), is(56)]);
    u64::from(high) << 32 | u64::from(low)
}

#[inline]
#[target_feature(enable = "avx2")]
fn row_max_with(row: &Row, at: usize, word: u32) -> u32 {
    let (place, word) = (_mm256_set1_epi32(at as i32), _mm256_set1_epi32(word as i32));
    let eight = |at| {
        let is_there = _mm256_cmpeq_epi32(eight_numbers(at), place);
        _mm256_blendv_epi8(load_eight(row, at), word, is_there)
    };
    let two = |at| _mm256_max_epu32(eight(at), eight(at + 8));
    let four = |at| _mm256_max_epu32(two(at), two(at + 16));
    max_of_eight(_mm256_max_epu32(four(0), four(32)))
}
