//! What a CPU of the guest does to its memory, as plain code.

use std::ops::Range;

use amdahl_pager::PAGE;

use crate::{BOOT_PAGES, STEPS_AT_ONCE};

pub(crate) const FACTOR: u64 = 6_364_136_223_846_793_005;
pub(crate) const SUMMAND: u64 = 1_442_695_040_888_963_407;

/// What a CPU knows besides its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Where it is in its sequence of numbers.
    pub random: u64,
    /// Steps done.
    pub steps: u64,
}

/// What a CPU says about its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Steps done before.
    pub steps: u64,
    /// Over all words of the slice.
    pub sum: u64,
}

impl Cpu {
    /// The CPU of that number, before its first step.
    pub fn new(number: usize) -> Cpu {
        Cpu {
            random: (number as u64 + 1).wrapping_mul(SUMMAND),
            steps: 0,
        }
    }

    /// Some steps. `slice` is the words of its slice, to be read and written one by one.
    pub(crate) fn advance(
        &mut self,
        pages: usize,
        mut change: impl FnMut(usize, &dyn Fn(u64) -> u64),
    ) {
        for _ in 0..STEPS_AT_ONCE {
            self.random = next(self.random);
            let page = ((self.random >> 32) * pages as u64) >> 32;
            let random = self.random;
            let first = page as usize * (PAGE / 8) + (random % 8) as usize;
            for line in 0..PAGE / 64 {
                change(first + 8 * line, &|old| next(old ^ random));
            }
            self.steps += 1;
        }
    }
}

fn next(value: u64) -> u64 {
    value.wrapping_mul(FACTOR).wrapping_add(SUMMAND)
}

pub(crate) fn sum(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0, |sum, word| sum.wrapping_mul(FACTOR).wrapping_add(word))
}

/// The pages of a CPU's slice.
pub fn slice(pages: usize, cpus: usize, number: usize) -> Range<usize> {
    let each = (pages - BOOT_PAGES) / cpus;
    let first = BOOT_PAGES + each * number;
    first..first + each
}

/// What the CPU of that number has to say after so many steps, when `memory` is what was in the whole memory at first.
pub fn expected(memory: &[u8], cpus: usize, number: usize, steps: u64) -> Sum {
    let pages = slice(memory.len() / PAGE, cpus, number);
    let bytes = &memory[pages.start * PAGE..pages.end * PAGE];
    let mut words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
        .collect();
    let mut cpu = Cpu::new(number);
    while cpu.steps < steps {
        cpu.advance(pages.len(), |word, change| {
            words[word] = change(words[word])
        });
    }
    Sum {
        steps: cpu.steps,
        sum: sum(words.into_iter()),
    }
}
