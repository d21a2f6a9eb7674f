//! Blocks of objects that were fetched, so that what lies beside each other costs one request.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::Result;

/// Bytes of a block: of objects, from multiples of this on. Sixteen clusters of an image, and not much longer on its way than one.
pub(crate) const BLOCK: u64 = 256 << 10;

/// What is in a block, or why it could not be had. Whoever wants it while it is fetched waits for that one answer.
type Cell = Arc<OnceLock<Result<Box<[u8]>>>>;

/// Which object, which block of it.
type Key = (u64, u64);

/// The blocks that were used last.
pub(crate) struct Kept {
    most: usize,
    blocks: Mutex<VecDeque<(Key, Cell)>>,
}

impl Kept {
    /// Keeps so many bytes at most, beside what is just being used.
    pub fn new(bytes: usize) -> Kept {
        let most = (bytes as u64 / BLOCK) as usize;
        Kept {
            most,
            blocks: Mutex::default(),
        }
    }

    /// Fills `buf` from a block, of which it is what begins at `from`; `fetch` is called if nobody has it.
    pub fn copy(
        &self,
        key: Key,
        from: usize,
        buf: &mut [u8],
        fetch: impl FnOnce() -> Result<Box<[u8]>>,
    ) -> Result<()> {
        let cell = self.cell(key);
        match cell.get_or_init(fetch) {
            Ok(block) => {
                buf.copy_from_slice(&block[from..from + buf.len()]);
                Ok(())
            }
            Err(error) => {
                // Those that wait have been told; who comes later tries again.
                let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
                blocks.retain(|(_, other)| !Arc::ptr_eq(other, &cell));
                Err(error.clone())
            }
        }
    }

    fn cell(&self, key: Key) -> Cell {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let found = blocks.iter().position(|(of, _)| *of == key);
        let entry = match found.and_then(|at| blocks.remove(at)) {
            Some(entry) => entry,
            None => (key, Cell::default()),
        };
        let cell = Arc::clone(&entry.1);
        blocks.push_back(entry);
        while blocks.len() > self.most {
            blocks.pop_front();
        }
        cell
    }
}

/// The pieces of a range, cut where blocks begin, in order.
pub(crate) fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        // The last block may have no end.
        let end = (at / BLOCK + 1).saturating_mul(BLOCK);
        let piece = at..end.min(range.end);
        at = piece.end;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::Error;

    fn block(number: u64) -> Box<[u8]> {
        vec![number as u8; 8].into()
    }

    #[test]
    fn what_was_used_last_is_kept_and_no_more() {
        let kept = Kept::new(2 * BLOCK as usize);
        let fetched = Mutex::new(Vec::new());
        let read = |number| {
            let mut buf = [0; 4];
            let fetch = || {
                fetched.lock().unwrap().push(number);
                Ok(block(number))
            };
            kept.copy((0, number), 2, &mut buf, fetch).unwrap();
            assert_eq!(buf, [number as u8; 4]);
        };
        for number in [1, 2, 1, 3, 1, 2] {
            read(number);
        }
        assert_eq!(*fetched.lock().unwrap(), [1, 2, 3, 2]);
        // Blocks of another object are others.
        kept.copy((1, 1), 0, &mut [0; 8], || Ok(block(9))).unwrap();
        let nothing = Kept::new(0);
        nothing
            .copy((0, 0), 0, &mut [0; 8], || Ok(block(0)))
            .unwrap();
        assert!(nothing.blocks.lock().unwrap().is_empty());
    }

    #[test]
    fn what_failed_is_tried_again() {
        let kept = Kept::new(1 << 20);
        let failed = kept.copy((0, 0), 0, &mut [0; 8], || {
            Err(Error::Late(Duration::from_secs(1)))
        });
        assert_eq!(failed, Err(Error::Late(Duration::from_secs(1))));
        kept.copy((0, 0), 0, &mut [0; 8], || Ok(block(0))).unwrap();
    }

    #[test]
    fn who_wants_the_same_waits_for_one_answer() {
        let kept = Kept::new(1 << 20);
        let begun = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let fetch = || {
                    begun.wait();
                    Ok(block(5))
                };
                kept.copy((0, 5), 0, &mut [0; 8], fetch).unwrap();
            });
            begun.wait();
            kept.copy((0, 5), 0, &mut [0; 8], || panic!("asked twice"))
                .unwrap();
        });
    }

    proptest! {
        #[test]
        fn pieces_are_the_range(start in 0..u64::MAX, len in 0..10 * BLOCK) {
            let range = start..start.saturating_add(len);
            let mut at = range.start;
            for piece in pieces(range.clone()) {
                prop_assert!(piece.start == at && piece.start < piece.end);
                prop_assert_eq!(piece.start / BLOCK, (piece.end - 1) / BLOCK);
                at = piece.end;
            }
            prop_assert_eq!(at, range.end);
        }
    }
}
