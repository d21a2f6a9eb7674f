//! Locks in a word of the program's: those of `omp_lock_t`, and of critical regions.
//!
//! Whoever finds a lock taken spins as long as a wait at a barrier would, then sleeps in the kernel. A lock is given
//! back free, not handed over: a thread that runs may take it before the one that is being woken does, so that a
//! lock is never held by a thread that has no CPU yet.

use std::ops::Deref;

use crate::gate::{Manner, Wait};
use crate::policy::Next;
use crate::sync::{AtomicU32, Ordering, spin_loop};
use crate::sys;
#[cfg(not(loom))]
use crate::{
    sync::AtomicUsize,
    team,
    thread::{self, Thread},
};

/// A word to sleep on.
#[cfg(not(loom))]
#[derive(Debug, Default)]
#[repr(transparent)]
struct Word(AtomicU32);

#[cfg(not(loom))]
impl Word {
    fn sleep(&self, expected: u32) {
        sys::futex_wait(&self.0, expected);
    }

    fn wake_one(&self) {
        sys::futex_wake(&raw const self.0, 1);
    }
}

/// The same in the models, where a wake-up that is forgotten is one that never comes.
#[cfg(loom)]
#[derive(Debug, Default)]
struct Word(AtomicU32, loom::sync::Mutex<()>, loom::sync::Condvar);

#[cfg(loom)]
impl Word {
    fn sleep(&self, expected: u32) {
        let guard = self.1.lock().unwrap();
        if self.0.load(Ordering::Relaxed) == expected {
            drop(self.2.wait(guard).unwrap());
        }
    }

    fn wake_one(&self) {
        drop(self.1.lock().unwrap());
        self.2.notify_one();
    }
}

impl Deref for Word {
    type Target = AtomicU32;
    #[inline(always)]
    fn deref(&self) -> &AtomicU32 {
        &self.0
    }
}

/// Nobody has it.
const FREE: u32 = 0;
/// Somebody has it, nobody sleeps.
const TAKEN: u32 = 1;
/// Somebody has it, and somebody may sleep.
const AWAITED: u32 = 2;

/// A lock. A word of zeros is one that is free.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Lock(Word);

/// Most pauses between two looks at a lock: who looks takes its line from whoever gives it back.
const PAUSES: u32 = 32;
/// Looks between two looks at the clock.
const LOOKS_PER_CLOCK: u64 = 8;

/// Calls `take` until it returns true, as long as `manner` is to spin. Returns whether it did.
fn spin(manner: &mut Manner<'_>, mut take: impl FnMut() -> bool) -> bool {
    let mut turns = 0;
    let mut pauses = 1;
    let mut look = |turns: &mut u64| {
        if take() {
            return true;
        }
        for _ in 0..pauses {
            spin_loop();
        }
        *turns += u64::from(pauses);
        pauses = (pauses * 2).min(PAUSES);
        false
    };
    let first = manner.patience.first_turns(manner.is_crowded);
    while turns < first {
        if look(&mut turns) {
            return true;
        }
    }
    let mut wait = Wait::begin(turns);
    loop {
        match wait.next(manner) {
            Next::Spin => {
                for _ in 0..LOOKS_PER_CLOCK {
                    if look(&mut wait.turns) {
                        return true;
                    }
                }
                wait.spun(manner);
            }
            Next::Yield => {
                if look(&mut wait.turns) {
                    return true;
                }
                wait.give_way(manner);
            }
            // No turn is passed for a lock.
            Next::Pass | Next::Sleep => return false,
        }
    }
}

/// Sleeps while `word` is `value`, or shorter.
fn sleep(manner: &mut Manner<'_>, word: &Word, value: u32) {
    let begun = sys::monotonic_ns();
    word.sleep(value);
    // Nobody took the CPU from this thread meanwhile.
    manner.own.slept(sys::monotonic_ns().saturating_sub(begun));
}

impl Lock {
    /// A lock that is free.
    #[cfg(not(loom))]
    pub const fn new() -> Lock {
        Lock(Word(AtomicU32::new(FREE)))
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_acquire(&self) -> bool {
        // Acquire: what the one before did, who released it.
        self.0
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the lock.
    #[cfg(not(loom))]
    #[inline]
    pub fn acquire(&self) {
        if !self.try_acquire() {
            self.acquire_late();
        }
    }

    #[cfg(not(loom))]
    #[cold]
    fn acquire_late(&self) {
        // SAFETY: the thread is the calling one, and waits for nothing else.
        self.wait(&mut unsafe { team::manner(thread::current()) });
    }

    pub(crate) fn wait(&self, manner: &mut Manner<'_>) {
        if spin(manner, || {
            self.0.load(Ordering::Relaxed) == FREE && self.try_acquire()
        }) {
            return;
        }
        manner.own.look_at(manner.contention);
        // Others may sleep behind this one: it takes the lock as one that is awaited.
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            sleep(manner, &self.0, AWAITED);
        }
    }

    /// Gives back the lock, which the caller has, or whoever took it for the caller.
    #[inline]
    pub fn release(&self) {
        if self.0.swap(FREE, Ordering::Release) == AWAITED {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // Somebody else may have taken the lock, and its memory be gone: the address alone matters.
        self.0.wake_one();
    }
}

#[cfg(not(loom))]
/// A lock that the task that has it may take again. Zeros are one that is free.
#[derive(Debug, Default)]
#[repr(C)]
pub struct NestLock {
    lock: Lock,
    /// How often its owner has taken it; the owner's alone.
    count: AtomicU32,
    /// Address of the task.
    owner: AtomicUsize,
}

#[cfg(not(loom))]
impl NestLock {
    /// Takes the lock, once more if the calling thread's task has it. Returns how often it has now.
    ///
    /// # Safety
    /// `thread` is the calling thread's.
    #[inline]
    pub unsafe fn acquire(&self, thread: *mut Thread) -> u32 {
        // SAFETY: the caller's promise.
        let task = unsafe { (*thread).task.addr() };
        // Relaxed: only this task writes its own address, and takes it away.
        if self.owner.load(Ordering::Relaxed) != task {
            self.lock.acquire();
            self.owner.store(task, Ordering::Relaxed);
        }
        self.again()
    }

    /// The same without waiting; 0: somebody else has it.
    ///
    /// # Safety
    /// As [`NestLock::acquire`].
    #[inline]
    pub unsafe fn try_acquire(&self, thread: *mut Thread) -> u32 {
        // SAFETY: the caller's promise.
        let task = unsafe { (*thread).task.addr() };
        if self.owner.load(Ordering::Relaxed) != task {
            if !self.lock.try_acquire() {
                return 0;
            }
            self.owner.store(task, Ordering::Relaxed);
        }
        self.again()
    }

    fn again(&self) -> u32 {
        let count = self.count.load(Ordering::Relaxed).wrapping_add(1);
        self.count.store(count, Ordering::Relaxed);
        count
    }

    /// Gives it back once.
    #[inline]
    pub fn release(&self) {
        let count = self.count.load(Ordering::Relaxed).wrapping_sub(1);
        self.count.store(count, Ordering::Relaxed);
        if count == 0 {
            self.owner.store(0, Ordering::Relaxed);
            self.lock.release();
        }
    }
}

#[cfg(not(loom))]
/// A lock that the thread that has it may take again: the form of OpenMP 2.5, of two words. Zeros are a free one.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ThreadNestLock {
    /// Number of the thread, with `SLEEPERS` where somebody may sleep.
    owner: Word,
    /// How often its owner has taken it; the owner's alone.
    count: AtomicU32,
}

#[cfg(not(loom))]
/// No thread has so large a number.
const SLEEPERS: u32 = 1 << 31;

#[cfg(not(loom))]
impl ThreadNestLock {
    /// Takes the lock for the thread with the number `own`, once more if it has it. Returns how often it has now.
    pub fn acquire(&self, own: u32) -> u32 {
        let count = self.try_acquire(own);
        if count != 0 {
            return count;
        }
        // SAFETY: the thread is the calling one, and waits for nothing else.
        let mut manner = unsafe { team::manner(thread::current()) };
        if !spin(&mut manner, || {
            self.owner.load(Ordering::Relaxed) == FREE && self.take(own)
        }) {
            manner.own.look_at(manner.contention);
            loop {
                let owner = self.owner.load(Ordering::Relaxed);
                let (new, order) = if owner == FREE {
                    (own | SLEEPERS, Ordering::Acquire)
                } else {
                    (owner | SLEEPERS, Ordering::Relaxed)
                };
                if self
                    .owner
                    .compare_exchange(owner, new, order, Ordering::Relaxed)
                    .is_err()
                {
                    continue;
                }
                if owner == FREE {
                    break;
                }
                sleep(&mut manner, &self.owner, new);
            }
        }
        self.again()
    }

    /// The same without waiting; 0: another thread has it.
    pub fn try_acquire(&self, own: u32) -> u32 {
        if self.owner.load(Ordering::Relaxed) & !SLEEPERS != own && !self.take(own) {
            return 0;
        }
        self.again()
    }

    fn take(&self, own: u32) -> bool {
        self.owner
            .compare_exchange(FREE, own, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    fn again(&self) -> u32 {
        let count = self.count.load(Ordering::Relaxed).wrapping_add(1);
        self.count.store(count, Ordering::Relaxed);
        count
    }

    /// Gives it back once.
    pub fn release(&self) {
        let count = self.count.load(Ordering::Relaxed).wrapping_sub(1);
        self.count.store(count, Ordering::Relaxed);
        if count == 0 && self.owner.swap(FREE, Ordering::Release) & SLEEPERS != 0 {
            self.owner.wake_one();
        }
    }
}
