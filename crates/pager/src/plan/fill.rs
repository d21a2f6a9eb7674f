//! What to fetch in the background: blocks near the latest faults first, forwards before backwards, then the rest from the
//! beginning. And when to begin anew for what could not be had.

use std::collections::VecDeque;
use std::time::Duration;

/// Faults that are remembered.
const RECENT: usize = 16;
/// How far around a fault is near, in blocks.
const NEAR: usize = 16;

/// The order of the background.
#[derive(Debug)]
pub(crate) struct Fill {
    blocks: usize,
    /// Blocks of the latest faults, the latest first.
    recent: VecDeque<usize>,
    /// All blocks before this were found to be done.
    rest: usize,
}

impl Fill {
    pub fn new(blocks: usize) -> Fill {
        Fill {
            blocks,
            recent: VecDeque::with_capacity(RECENT),
            rest: 0,
        }
    }

    /// A fault in a block.
    pub fn fault(&mut self, block: usize) {
        if self.recent.front() == Some(&block) {
            return;
        }
        self.recent.retain(|recent| *recent != block);
        self.recent.truncate(RECENT - 1);
        self.recent.push_front(block);
    }

    /// The next block that is `wanted`. Asks for O(RECENT x NEAR) blocks, and for each of the rest O(1) times in all.
    pub fn next(&mut self, wanted: impl Fn(usize) -> bool) -> Option<usize> {
        for distance in 0..=NEAR {
            for &recent in &self.recent {
                let after = recent.saturating_add(distance);
                if after < self.blocks && wanted(after) {
                    return Some(after);
                }
            }
        }
        for distance in 1..=NEAR {
            for &recent in &self.recent {
                if let Some(before) = recent.checked_sub(distance)
                    && wanted(before)
                {
                    return Some(before);
                }
            }
        }
        while self.rest < self.blocks {
            if wanted(self.rest) {
                return Some(self.rest);
            }
            self.rest += 1;
        }
        None
    }

    /// Blocks that were done may be wanted again.
    pub fn restart(&mut self) {
        self.rest = 0;
    }
}

/// Passes over all blocks in a row that bring nothing before the background ends with pages missing.
const VAIN: u32 = 8;
/// Before the next pass; twice as long after each that has brought nothing.
const PAUSE: Duration = Duration::from_millis(100);

/// The background comes by each block once in a pass. Some of them may not be there afterwards: the source has failed, the memory was about to
/// change, who had claimed pages gave them back.
#[derive(Debug, Default)]
pub(crate) struct Passes {
    /// Pages that were not there after the last.
    left: Option<usize>,
    /// Without success until now.
    vain: u32,
}

/// What follows a pass.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing: all is there.
    Done,
    /// Another, after a pause.
    Pass(Duration),
    /// Nothing, though pages are missing.
    Unfilled,
}

impl Passes {
    /// A pass has ended with pages missing, and others on their way to somebody. Another has no hope if nobody is left to ask.
    pub fn end(&mut self, missing: usize, busy: usize, has_hope: bool) -> After {
        let left = missing + busy;
        if left == 0 {
            return After::Done;
        }
        if missing > 0 {
            if !has_hope {
                return After::Unfilled;
            }
            match self.left.replace(left) {
                Some(before) if left >= before => self.vain += 1,
                _ => self.vain = 0,
            }
        }
        match self.vain < VAIN {
            true => After::Pass(PAUSE * (1 << self.vain)),
            false => After::Unfilled,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_follows_the_latest_fault_comes_first() {
        let mut fill = Fill::new(1000);
        fill.fault(100);
        fill.fault(500);
        let mut done = vec![false; 1000];
        let mut order = Vec::new();
        for _ in 0..6 {
            let next = fill.next(|block| !done[block]).unwrap();
            done[next] = true;
            order.push(next);
        }
        assert_eq!(order, [500, 100, 501, 101, 502, 102]);
    }

    #[test]
    fn what_is_left_is_tried_until_it_is_in_vain() {
        let mut passes = Passes::default();
        let pauses = |passes: &mut Passes| {
            let pass = || match passes.end(5, 0, true) {
                After::Pass(pause) => Some(pause.as_millis()),
                end => {
                    assert_eq!(end, After::Unfilled);
                    None
                }
            };
            std::iter::from_fn(pass).collect::<Vec<_>>()
        };
        assert_eq!(passes.end(7, 3, true), After::Pass(PAUSE));
        let all = [100, 200, 400, 800, 1600, 3200, 6400, 12800];
        assert_eq!(pauses(&mut passes), all);
        // What comes gives hope, and who waits for others waits.
        assert_eq!(passes.end(4, 0, true), After::Pass(PAUSE));
        for _ in 0..100 {
            assert_eq!(passes.end(0, 4, true), After::Pass(PAUSE));
        }
        assert_eq!(passes.end(3, 0, false), After::Unfilled);
        assert_eq!(passes.end(0, 0, true), After::Done);
    }

    proptest! {
        #[test]
        fn every_block_comes_once_whatever_faults(blocks in 1usize..200, faults in proptest::collection::vec((0usize..200, 0usize..5), 0..100)) {
            let mut fill = Fill::new(blocks);
            let mut done = vec![false; blocks];
            let mut left = blocks;
            for (fault, steps) in faults {
                fill.fault(fault % blocks);
                for _ in 0..steps {
                    let next = fill.next(|block| !done[block]);
                    prop_assert_eq!(next.is_none(), left == 0);
                    let Some(next) = next else { continue };
                    // Something nearer to the latest fault that is left would have come first.
                    let latest = fault % blocks;
                    let ahead = (latest..blocks.min(latest + NEAR + 1)).find(|block| !done[*block]);
                    if ahead == Some(latest) { prop_assert_eq!(next, latest); }
                    prop_assert!(!done[next]);
                    done[next] = true;
                    left -= 1;
                }
            }
            while let Some(next) = fill.next(|block| !done[block]) {
                prop_assert!(!done[next]);
                done[next] = true;
                left -= 1;
            }
            prop_assert_eq!(left, 0);
        }
    }
}
