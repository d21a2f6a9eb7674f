//! Threads of this process in the place of a guest's CPUs.

use std::sync::atomic::{AtomicU64, Ordering};

use amdahl_pager::{Mapping, PAGE};

use crate::machine::{Control, Order};
use crate::model::{self, Cpu, Sum};

/// The words of a slice: atomics, since others copy the memory while it is written.
fn words(memory: &Mapping, slice: &std::ops::Range<usize>) -> impl Fn(usize) -> *const AtomicU64 {
    let start = memory
        .as_ptr()
        .wrapping_add(slice.start * PAGE)
        .cast_const()
        .cast::<AtomicU64>();
    let count = slice.len() * (PAGE / 8);
    move |word| {
        assert!(word < count);
        start.wrapping_add(word)
    }
}

/// Runs a CPU until it is told to stop.
pub(crate) fn run(
    memory: &Mapping,
    slice: &std::ops::Range<usize>,
    cpu: &mut Cpu,
    control: &Control,
    steps: &AtomicU64,
) -> Option<Sum> {
    let at = words(memory, slice);
    loop {
        cpu.advance(slice.len(), |word, change| {
            // SAFETY: within the mapping, aligned, and kept by it; pages that are not there arrive when they are touched.
            let word = unsafe { &*at(word) };
            word.store(change(word.load(Ordering::Relaxed)), Ordering::Relaxed);
        });
        steps.store(cpu.steps, Ordering::Relaxed);
        match control.order() {
            Order::Run => {}
            Order::Pause => return None,
            Order::Sum => {
                let count = slice.len() * (PAGE / 8);
                // SAFETY: as above.
                let all = (0..count).map(|word| unsafe { &*at(word) }.load(Ordering::Relaxed));
                return Some(Sum {
                    steps: cpu.steps,
                    sum: model::sum(all),
                });
            }
        }
    }
}
