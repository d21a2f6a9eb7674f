//! A chain of what the threads of a team come to one after another, each at its own pace.
//!
//! Who comes to the end of it first makes the next link:
//!
//! | `next` | meaning |
//! |---|---|
//! | null | nobody has come yet; who replaces it by `MAKING` makes the link |
//! | `MAKING` | somebody makes it, the others wait at `made` |
//! | a link | it is complete; its value does not change before it is used again |
//!
//! Makers follow each other: each has read the pointer that the one before stored last. So what they keep (`Kept`)
//! needs no lock. Each thread writes the number of its link to a line of its own. Links before the lowest of these
//! numbers have been left by all and are used again; they are looked for only where none is free, so that threads
//! that meet no barrier write nothing that others write, but for the one that makes a link.

use std::cell::UnsafeCell;
use std::ops::Deref;
use std::ptr;

use crate::gate::{Gate, Manner};
use crate::sync::{AtomicPtr, AtomicU64, Line, Ordering};

/// What links are for.
pub trait Value: Default {
    /// Forgets what it was used for before.
    fn renew(&mut self);
}

/// A value, and where the next one is. The value is written by the link's maker, before others see it.
#[derive(Debug)]
// The value first: its own order says what is on the same line.
#[repr(C)]
pub struct Link<T> {
    value: T,
    next: AtomicPtr<Link<T>>,
    /// Increases from link to link, over all regions of the team.
    number: u64,
}

impl<T> Deref for Link<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Value> Link<T> {
    /// A link of no chain, for a thread that is in no team.
    pub(crate) fn alone() -> *mut Link<T> {
        Link::new(0)
    }

    fn new(number: u64) -> *mut Link<T> {
        Box::into_raw(Box::new(Link {
            value: T::default(),
            next: AtomicPtr::new(ptr::null_mut()),
            number,
        }))
    }

    /// The value, to make something else of it while nobody is there.
    pub(crate) fn renewed(&mut self) -> &mut T {
        self.value.renew();
        &mut self.value
    }
}

fn making<T>() -> *mut Link<T> {
    ptr::without_provenance_mut(1)
}

/// What makers of links keep.
struct Kept<T> {
    /// The chain, from the link that the slowest thread may be in ...
    oldest: *mut Link<T>,
    /// ... to the last one that was made.
    newest: *mut Link<T>,
    /// Links that nobody is in.
    free: Vec<*mut Link<T>>,
    next_number: u64,
}

/// The chain of a team.
pub struct Chain<T> {
    /// Where the region began: the link, as long as somebody may be in it, and its number.
    first: *mut Link<T>,
    first_number: u64,
    /// Something was made of its value.
    is_first_used: bool,
    threads: u32,
    kept: UnsafeCell<Kept<T>>,
    /// By thread: the number of the link it is in. What is below the first one's is from an earlier region.
    progress: Vec<Line<AtomicU64>>,
    made: Gate,
}

/// Where a look finds fewer links that all have left, another one is made: so looks, which cost a line of each thread,
/// become rare.
#[cfg(not(loom))]
const SPARE: usize = 16;
#[cfg(loom)]
const SPARE: usize = 0;

impl<T: Value> Default for Chain<T> {
    fn default() -> Chain<T> {
        let first = Link::new(1);
        Chain {
            first,
            first_number: 1,
            is_first_used: false,
            threads: 1,
            kept: UnsafeCell::new(Kept {
                oldest: first,
                newest: first,
                free: Vec::new(),
                next_number: 2,
            }),
            progress: Vec::new(),
            made: Gate::new(),
        }
    }
}

impl<T: Value> Chain<T> {
    /// A region of `threads` begins; nobody else is in the team. Returns the first link.
    pub(crate) fn begin(&mut self, threads: u32) -> *mut Link<T> {
        self.threads = threads;
        if self.progress.len() < threads as usize {
            self.progress
                .resize_with(threads as usize, || Line(AtomicU64::new(0)));
        }
        self.first
    }

    /// Its value, while nobody else is in the team.
    pub fn first_mut(&mut self) -> &mut T {
        self.is_first_used = true;
        // SAFETY: the link is this chain's, which nobody else has.
        unsafe { &mut (*self.first).value }
    }

    /// The region is over; nobody else is in the team. The next one begins in a link that is as new.
    #[inline]
    pub(crate) fn end(&mut self) {
        let kept = self.kept.get_mut();
        if kept.oldest == kept.newest && kept.newest == self.first && !self.is_first_used {
            return;
        }
        self.is_first_used = false;
        // SAFETY: the links are this chain's; nobody is in them any more.
        unsafe {
            while kept.oldest != kept.newest {
                let left = kept.oldest;
                kept.oldest = (*left).next.load(Ordering::Relaxed);
                kept.free.push(left);
            }
            self.first = kept.newest;
            self.first_number = (*self.first).number;
            (*self.first).value.renew();
        }
    }

    /// Thread `id` leaves `from` for the next link, whose value `make` makes if nobody has. Returns it, and whether it
    /// was made here.
    ///
    /// # Safety
    /// `from` is the link that the thread is in.
    #[inline]
    pub(crate) unsafe fn advance<'a>(
        &self,
        from: *mut Link<T>,
        id: u32,
        manner: impl FnOnce() -> Manner<'a>,
        make: impl FnOnce(&mut T, u32),
    ) -> (*mut Link<T>, bool) {
        // SAFETY: links that a thread is in are not used for anything else.
        unsafe {
            // Acquire: what the maker wrote, and what it kept for the next one.
            let mut next = (*from).next.load(Ordering::Acquire);
            let is_first = next.is_null()
                && (*from)
                    .next
                    .compare_exchange(next, making(), Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok();
            if is_first {
                let link = self.free_link();
                make((*link).renewed(), self.threads);
                next = link;
                // Release: pairs with the Acquire above, and in `wait`.
                (*from).next.store(link, Ordering::Release);
                self.made.ring(u32::MAX);
            } else if next.is_null() || next == making() {
                next = self.wait(from, &mut manner());
            }
            // Release: pairs with the Acquire of whoever has `from` used again.
            self.progress[id as usize].store((*next).number, Ordering::Release);
            (next, is_first)
        }
    }

    #[cold]
    unsafe fn wait(&self, from: *mut Link<T>, manner: &mut Manner<'_>) -> *mut Link<T> {
        let mut next = making();
        self.made.wait(
            manner,
            || {
                // SAFETY: the thread is in `from`.
                next = unsafe { (*from).next.load(Ordering::Acquire) };
                next != making()
            },
            |_| false,
        );
        next
    }

    /// A link for the maker, at the end of the chain.
    #[inline]
    unsafe fn free_link(&self) -> *mut Link<T> {
        // SAFETY: one maker at a time, see the module's documentation.
        unsafe {
            let kept = &mut *self.kept.get();
            let link = match kept.free.pop() {
                Some(link) => link,
                None => self.reclaim(kept),
            };
            (*link).next.store(ptr::null_mut(), Ordering::Relaxed);
            (*link).number = kept.next_number;
            kept.next_number += 1;
            kept.newest = link;
            link
        }
    }

    #[cold]
    unsafe fn reclaim(&self, kept: &mut Kept<T>) -> *mut Link<T> {
        // SAFETY: the chain is whole up to `newest`, where the maker is.
        unsafe {
            let slowest = self.progress[..self.threads as usize]
                .iter()
                // Acquire: the thread has read the pointer in the link before. The first link may be in use again,
                // under another number.
                .map(|number| number.load(Ordering::Acquire).max(self.first_number))
                .min()
                .unwrap_or(self.first_number);
            while (*kept.oldest).number < slowest {
                let left = kept.oldest;
                kept.oldest = (*left).next.load(Ordering::Relaxed);
                kept.free.push(left);
            }
            if kept.free.len() < SPARE {
                return Link::new(0);
            }
            kept.free.pop().unwrap_or_else(|| Link::new(0))
        }
    }
}

impl<T> Drop for Chain<T> {
    fn drop(&mut self) {
        let kept = self.kept.get_mut();
        let mut link = kept.oldest;
        // SAFETY: nobody is in the links any more; each is in the chain or free.
        unsafe {
            while !link.is_null() {
                let next = (*link).next.load(Ordering::Relaxed);
                drop(Box::from_raw(link));
                link = next;
            }
            for &link in &kept.free {
                drop(Box::from_raw(link));
            }
        }
    }
}
