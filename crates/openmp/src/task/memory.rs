//! Memory of tasks: blocks of a few sizes that each thread of a team keeps. Who frees a block that is not its own
//! hands it back to the thread that allocated it.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::UnsafeCell;
use std::ptr;

use crate::sync::{AtomicPtr, Ordering};

/// All blocks begin on a cache line.
const ALIGN: usize = 64;
/// Sizes that are kept.
const CLASSES: [usize; 3] = [512, 1024, 4096];

/// What stands at the beginning of each block, whether or not it is in use.
#[repr(C)]
pub(crate) struct Block {
    next: *mut Block,
    /// Its size if it is of none of the classes; 0 otherwise.
    bytes: usize,
    class: usize,
}

/// Bytes at the beginning of each block that belong to this module.
pub(crate) const HEAD: usize = 64;

/// The blocks of one thread.
#[derive(Default)]
pub(crate) struct Blocks {
    /// The owner's alone.
    kept: UnsafeCell<[Option<ptr::NonNull<Block>>; CLASSES.len()]>,
    /// Freed by others.
    returned: AtomicPtr<Block>,
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, ALIGN).ok()
}

fn new_block(bytes: usize, class: usize) -> *mut u8 {
    let kept_bytes = if class < CLASSES.len() { 0 } else { bytes };
    let Some(layout) = layout(bytes) else {
        crate::message::out_of_memory(bytes);
    };
    // SAFETY: the size is not 0; the memory is this function's.
    unsafe {
        let block = alloc(layout).cast::<Block>();
        if block.is_null() {
            crate::message::out_of_memory(bytes);
        }
        block.write(Block {
            next: ptr::null_mut(),
            bytes: kept_bytes,
            class,
        });
        block.cast::<u8>().add(HEAD)
    }
}

/// Memory of `bytes` bytes that belongs to no thread.
pub(crate) fn lone(bytes: usize) -> *mut u8 {
    new_block(bytes.saturating_add(HEAD), CLASSES.len())
}

impl Blocks {
    /// Memory of at least `bytes` bytes, on a cache line of its own.
    ///
    /// # Safety
    /// Called by the owner.
    #[inline]
    pub(crate) unsafe fn take(&self, bytes: usize) -> *mut u8 {
        let bytes = bytes.saturating_add(HEAD);
        let Some(class) = CLASSES.iter().position(|&c| bytes <= c) else {
            return new_block(bytes, CLASSES.len());
        };
        // SAFETY: the caller is the owner; what is in the lists is nobody's.
        unsafe {
            let kept = self.kept.get();
            if (&(*kept))[class].is_none() && !self.returned.load(Ordering::Relaxed).is_null() {
                self.collect();
            }
            match (&(*kept))[class] {
                Some(block) => {
                    (&mut (*kept))[class] = ptr::NonNull::new((*block.as_ptr()).next);
                    block.as_ptr().cast::<u8>().add(HEAD)
                }
                None => new_block(CLASSES[class], class),
            }
        }
    }

    #[cold]
    unsafe fn collect(&self) {
        // SAFETY: the caller is the owner. Acquire: who freed a block does not touch it any more.
        unsafe {
            let mut block = self.returned.swap(ptr::null_mut(), Ordering::Acquire);
            while !block.is_null() {
                let next = (*block).next;
                self.keep(block);
                block = next;
            }
        }
    }

    unsafe fn keep(&self, block: *mut Block) {
        // SAFETY: the caller is the owner and the block is nobody's.
        unsafe {
            let list = &mut (&mut *self.kept.get())[(*block).class];
            (*block).next = list.map_or(ptr::null_mut(), ptr::NonNull::as_ptr);
            *list = ptr::NonNull::new(block);
        }
    }
}

/// Gives back what `take` of `home` returned, or `lone` (then `home` does not matter).
///
/// # Safety
/// Nobody uses the memory any more. `is_own`: the caller is the owner of `home`.
#[inline]
pub(crate) unsafe fn give_back(memory: *mut u8, home: *const Blocks, is_own: bool) {
    // SAFETY: each block begins with its head; `home` is never freed.
    unsafe {
        let block = memory.sub(HEAD).cast::<Block>();
        if (*block).class == CLASSES.len() {
            if let Some(layout) = layout((*block).bytes) {
                dealloc(block.cast(), layout);
            }
        } else if is_own {
            (*home).keep(block);
        } else {
            let returned = &(*home).returned;
            let mut first = returned.load(Ordering::Relaxed);
            loop {
                (*block).next = first;
                // Release: pairs with the Acquire in `collect`, which takes all at once: no block comes back between
                // the load and the exchange in a way that matters.
                match returned.compare_exchange_weak(
                    first,
                    block,
                    Ordering::Release,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return,
                    Err(now) => first = now,
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_was_given_back_is_taken_again() {
        let blocks = Blocks::default();
        // SAFETY: this thread is the owner, and uses nothing that it gave back.
        unsafe {
            for bytes in [1, 400, 900, 4000] {
                let first = blocks.take(bytes);
                assert_eq!(first as usize % ALIGN, 0);
                first.write_bytes(7, bytes);
                give_back(first, &blocks, true);
                assert_eq!(blocks.take(bytes), first);
                give_back(first, &blocks, false);
                assert_eq!(blocks.take(bytes), first);
            }
            for memory in [blocks.take(1 << 20), lone(3)] {
                memory.write(1);
                give_back(memory, &blocks, false);
            }
        }
    }
}
