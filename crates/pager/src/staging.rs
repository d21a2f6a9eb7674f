//! Blocks of 2 MiB in which content waits until it is put into place. Bounded: who finds none free waits, or does without.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::sync::Word;
use crate::sys::clock::now_ns;
use crate::{BLOCK, Backing, Error, Mapping};

pub(crate) struct Staging {
    memory: Mapping,
    /// A bit for each block that is free.
    free: Box<[AtomicU64]>,
    /// Changes when a block is given back while somebody waits.
    given_back: Word,
    /// Who waits.
    waiting: AtomicUsize,
    /// Never written to.
    zeros: Mapping,
}

impl Staging {
    /// Address space for so many blocks; memory is taken as they are used.
    pub fn new(blocks: usize) -> Result<Staging, Error> {
        let blocks = blocks.max(1);
        let memory = Mapping::new(blocks * BLOCK, Backing::Huge)?;
        let free = (0..blocks.div_ceil(64))
            .map(|word| match blocks - word * 64 {
                64.. => AtomicU64::new(u64::MAX),
                some => AtomicU64::new((1 << some) - 1),
            })
            .collect();
        Ok(Staging {
            memory,
            free,
            given_back: Word::new(),
            waiting: AtomicUsize::new(0),
            zeros: Mapping::new(BLOCK, Backing::Small)?,
        })
    }

    /// A block of zeros: the kernel's zero page, all over.
    pub fn zeros(&self) -> *const u8 {
        self.zeros.as_ptr()
    }

    /// A free block, waiting at most so long. Async-signal-safe.
    pub fn take(&self, at_most: Duration) -> Option<Block<'_>> {
        let at_most_ns = u64::try_from(at_most.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = now_ns().saturating_add(at_most_ns);
        // SeqCst, here and in `drop`: either we see the block, or who gives it back sees us.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let block = loop {
            let seen = self.given_back.value().load(crate::sync::Ordering::SeqCst);
            if let Some(block) = self.try_take() {
                break Some(block);
            }
            // Somebody who came later may have been quicker: to be woken is not to have a block.
            match until_ns.saturating_sub(now_ns()) {
                0 => break None,
                left_ns => self.given_back.sleep(seen, Duration::from_nanos(left_ns)),
            }
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        block
    }

    /// A block that is free now. Async-signal-safe.
    pub fn try_take(&self) -> Option<Block<'_>> {
        self.free.iter().enumerate().find_map(|(index, word)| {
            let mut free = word.load(Ordering::SeqCst);
            while free != 0 {
                let bit = free.trailing_zeros();
                let without = free & !(1 << bit);
                // SeqCst: with `waiting`, so that who gives back sees who waits or is seen by it.
                match word.compare_exchange_weak(free, without, Ordering::SeqCst, Ordering::SeqCst)
                {
                    Ok(_) => {
                        return Some(Block {
                            staging: self,
                            index: index * 64 + bit as usize,
                        });
                    }
                    Err(now) => free = now,
                }
            }
            None
        })
    }
}

/// A block that is the holder's alone.
pub(crate) struct Block<'a> {
    staging: &'a Staging,
    index: usize,
}

impl Block<'_> {
    pub fn start(&self) -> *mut u8 {
        self.staging
            .memory
            .as_ptr()
            .wrapping_add(self.index * BLOCK)
    }

    /// The first bytes.
    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= BLOCK);
        // SAFETY: within the memory, which is mapped and zeroed by the kernel; the block is the holder's alone.
        unsafe { std::slice::from_raw_parts_mut(self.start(), len) }
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        let (word, bit) = (self.index / 64, self.index % 64);
        self.staging.free[word].fetch_or(1 << bit, Ordering::SeqCst);
        if self.staging.waiting.load(Ordering::SeqCst) > 0 {
            // One block, one who is woken: the others would find nothing.
            let given_back = &self.staging.given_back;
            given_back
                .value()
                .fetch_add(1, crate::sync::Ordering::SeqCst);
            given_back.wake_one();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_handed_out_once_and_come_back() {
        let staging = Staging::new(70).unwrap();
        let mut blocks: Vec<_> = std::iter::from_fn(|| staging.try_take()).collect();
        assert_eq!(blocks.len(), 70);
        let mut starts: Vec<_> = blocks.iter().map(|block| block.start().addr()).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|two| two[1] - two[0] == BLOCK));
        assert!(staging.take(Duration::from_millis(1)).is_none());
        let freed = blocks.pop().map(|block| block.start());
        let again = staging.take(Duration::from_secs(60));
        assert_eq!(again.map(|block| block.start()), freed);
    }

    #[test]
    fn who_waits_gets_what_comes_back() {
        let staging = Staging::new(1).unwrap();
        let block = staging.try_take();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| staging.take(Duration::from_secs(60)).is_some());
            while staging.waiting.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            drop(block);
            assert!(waiting.join().unwrap());
        });
    }
}
