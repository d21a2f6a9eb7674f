//! Numbers of threads: small ones, each of one living thread at a time.

/// How many numbers there are: [`BLOCK_FIRST`] in block 0, and twice as many in each block as in that before it. So a table of all
/// threads grows with them, without moving, and without a guess how many there will be.
pub(crate) const BLOCKS: usize = 16;
pub(crate) const BLOCK_FIRST: usize = if cfg!(loom) { 2 } else { 16 };

/// The block, and the place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadNumber(u32);

/// Bits of the place in the block.
const PLACE_BITS: u32 = 24;
/// Bits that a number needs.
pub(crate) const NUMBER_BITS: u32 = PLACE_BITS + 5;
const _: () = assert!(BLOCKS < 32 && BLOCK_FIRST << (BLOCKS - 1) <= 1 << PLACE_BITS);

impl ThreadNumber {
    /// This thread's. `None`: its destructors run already, or there are too many threads.
    #[inline]
    pub(crate) fn of_this_thread() -> Option<ThreadNumber> {
        own::number()
    }

    /// The `n`-th number.
    fn nth(n: usize) -> Option<ThreadNumber> {
        let block = (n / BLOCK_FIRST + 1).ilog2() as usize;
        let place = n - BLOCK_FIRST * ((1 << block) - 1);
        (block < BLOCKS).then_some(ThreadNumber((block << PLACE_BITS | place) as u32))
    }

    #[inline]
    pub(crate) fn block(self) -> usize {
        (self.0 >> PLACE_BITS) as usize
    }

    #[inline]
    pub(crate) fn place(self) -> usize {
        self.0 as usize & ((1 << PLACE_BITS) - 1)
    }

    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// What [`bits`](Self::bits) gave.
    #[inline]
    pub(crate) fn from_bits(bits: u32) -> ThreadNumber {
        ThreadNumber(bits)
    }
}

#[cfg(not(loom))]
mod own {
    use std::cell::Cell;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;
    use std::sync::Mutex;

    use super::ThreadNumber;
    use crate::sync::whole;

    const NONE: u32 = u32::MAX;

    thread_local! {
        /// Without a destructor: it can be read as long as the thread runs.
        static NUMBER: Cell<u32> = const { Cell::new(NONE) };
        static LENT: Lent = Lent::next();
    }

    #[inline]
    pub(super) fn number() -> Option<ThreadNumber> {
        match NUMBER.get() {
            NONE => borrow(),
            bits => Some(ThreadNumber(bits)),
        }
    }

    #[cold]
    #[inline(never)]
    fn borrow() -> Option<ThreadNumber> {
        let number = LENT.try_with(|lent| lent.0.map(|(_, number)| number));
        let number = number.ok().flatten()?;
        NUMBER.set(number.0);
        Some(number)
    }

    /// Numbers that were given back, and how many have ever been lent. The mutex also orders what one thread did in a
    /// slot before what the next one with its number does there.
    static FREE: Mutex<(BinaryHeap<Reverse<usize>>, usize)> = Mutex::new((BinaryHeap::new(), 0));

    struct Lent(Option<(usize, ThreadNumber)>);

    impl Lent {
        fn next() -> Lent {
            let mut free = whole(FREE.lock());
            let n = match free.0.pop() {
                Some(Reverse(n)) => n,
                None => {
                    let n = free.1;
                    free.1 += 1;
                    // Room for all: giving back must not fail.
                    let missing = free.1 - free.0.len();
                    free.0.reserve(missing);
                    n
                }
            };
            let number = ThreadNumber::nth(n);
            if number.is_none() {
                free.1 -= 1;
            }
            Lent(number.map(|number| (n, number)))
        }
    }

    impl Drop for Lent {
        fn drop(&mut self) {
            NUMBER.set(NONE);
            if let Some((n, _)) = self.0 {
                whole(FREE.lock()).0.push(Reverse(n));
            }
        }
    }
}

#[cfg(loom)]
mod own {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::ThreadNumber;

    // Not loom's atomic: numbers are not what is explored.
    loom::lazy_static! {
        static ref NEXT: AtomicUsize = AtomicUsize::new(0);
    }
    loom::thread_local! {
        static NUMBER: Option<ThreadNumber> = ThreadNumber::nth(NEXT.fetch_add(1, Ordering::Relaxed));
    }

    pub(super) fn number() -> Option<ThreadNumber> {
        NUMBER.try_with(|number| *number).ok().flatten()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn numbers_fill_one_block_after_the_other() {
        let mut n = 0;
        for block in 0..6 {
            for place in 0..BLOCK_FIRST << block {
                let number = ThreadNumber::nth(n).expect("there are more");
                assert_eq!((number.block(), number.place()), (block, place));
                assert_eq!(ThreadNumber::from_bits(number.bits()), number);
                assert!(number.bits() < 1 << NUMBER_BITS);
                n += 1;
            }
        }
        let all = BLOCK_FIRST * ((1 << BLOCKS) - 1);
        assert!(ThreadNumber::nth(all - 1).is_some() && ThreadNumber::nth(all).is_none());
    }

    #[test]
    fn threads_that_live_at_once_have_different_numbers() {
        let own = || {
            ThreadNumber::of_this_thread()
                .expect("there are enough")
                .bits()
        };
        let all_live = Barrier::new(40);
        let numbers: HashSet<u32> = thread::scope(|scope| {
            let each = || {
                let number = own();
                all_live.wait();
                assert_eq!(own(), number);
                number
            };
            let threads: Vec<_> = (0..40).map(|_| scope.spawn(each)).collect();
            let numbers = threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"));
            numbers.collect()
        });
        assert_eq!(numbers.len(), 40);
    }
}
