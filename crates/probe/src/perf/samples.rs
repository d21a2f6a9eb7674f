//! Samples kept of one run, a bounded number of them.

use crate::bpf::wire::Stack;

/// Samples kept of one run (about 3 KiB each). Beyond it every second one is given up, again and
/// again: all of them stand for equal time still.
const SAMPLES_MAX: usize = 1 << 16;

/// Samples in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Samples {
    stacks: Vec<Stack>,
    /// One in this many is kept, as a power of two.
    thinned: u32,
    seen: u64,
}

impl Samples {
    /// Adds a sample, or does not.
    pub(super) fn keep(&mut self, stack: Stack) {
        self.seen += 1;
        if !self.seen.is_multiple_of(1 << self.thinned) {
            return;
        }
        self.stacks.push(stack);
        if self.stacks.len() >= SAMPLES_MAX {
            self.thinned += 1;
            let mut at = 0u64;
            self.stacks.retain(|_| {
                at += 1;
                at.is_multiple_of(2)
            });
        }
    }

    /// Those kept.
    pub(super) fn into_stacks(self) -> Vec<Stack> {
        self.stacks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_thinned_evenly() {
        let mut samples = Samples::default();
        for ts in 0..10 * SAMPLES_MAX as u64 {
            samples.keep(Stack {
                ts,
                ..Stack::default()
            });
        }
        let stacks = samples.into_stacks();
        assert!((SAMPLES_MAX / 2..SAMPLES_MAX).contains(&stacks.len()));
        let steps: Vec<u64> = stacks
            .windows(2)
            .map(|pair| pair[1].ts - pair[0].ts)
            .collect();
        assert!(steps.iter().all(|step| *step == steps[0]), "evenly");
        assert!(stacks[0].ts <= steps[0], "from the beginning");
        assert!(stacks[stacks.len() - 1].ts + 2 * steps[0] > 10 * SAMPLES_MAX as u64);
    }
}
