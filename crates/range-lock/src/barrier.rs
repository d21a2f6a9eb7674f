//! An asymmetric pair of fences: one that costs nothing, for who comes often, and one that makes up for it, for who
//! comes rarely. The heavy one interrupts all CPUs that run this process (Linux: `membarrier(2)`, private and expedited).
//!
//! What they promise together is Dekker's: of a thread that stores to X, passes [`light`] and loads Y, and one that stores to
//! Y, passes [`heavy`] and loads X, at least one sees the other's store. Two light fences promise nothing.
//!
//! Where the kernel has no such call, or a sandbox refuses it, both are sequentially consistent fences.

use crate::sync::fence;
use std::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const BY_KERNEL: u8 = 1;
const BY_FENCES: u8 = 2;

/// Not loom's: it changes once, and whoever sees an old value is only more careful than needed.
static MEANS: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Asks the kernel for the heavy fence. To be called before the first [`heavy`].
///
/// The first call in a process takes some ten milliseconds if it has several threads by then: the kernel waits until each
/// CPU knows.
pub(crate) fn prepare() {
    if MEANS.load(Ordering::Relaxed) == UNKNOWN {
        let means = if kernel::register() {
            BY_KERNEL
        } else {
            BY_FENCES
        };
        // Relaxed: a reader of UNKNOWN passes a real fence, and whoever needs a heavy one has a lock, whose maker was
        // here before it gave the lock away. Who came first has readers that rely on what it found.
        let _ = MEANS.compare_exchange(UNKNOWN, means, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[inline]
pub(crate) fn light() {
    if MEANS.load(Ordering::Relaxed) == BY_KERNEL {
        // The CPU may still let the load overtake the store; `heavy` makes up for it.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// # Errors
/// The kernel has promised the call, and now refuses it.
#[cold]
pub(crate) fn heavy() -> Result<(), Refused> {
    fence(Ordering::SeqCst);
    // After a fork the child may have to ask again.
    if MEANS.load(Ordering::Relaxed) == BY_KERNEL
        && !kernel::interrupt_all()
        && !(kernel::register() && kernel::interrupt_all())
    {
        return Err(Refused);
    }
    Ok(())
}

/// There is no heavy fence any more, though threads rely on it.
#[derive(Debug)]
pub(crate) struct Refused;

#[cfg(all(target_os = "linux", not(loom), not(miri)))]
mod kernel {
    use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

    pub(super) fn register() -> bool {
        membarrier_query().contains_command(MembarrierCommand::PrivateExpedited)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    pub(super) fn interrupt_all() -> bool {
        membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }
}

/// Neither loom nor Miri knows of the kernel: they see fences in the places of both.
#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
mod kernel {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn interrupt_all() -> bool {
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    /// The promise, tried: with `light` on both sides this fails within some thousand rounds.
    #[test]
    fn one_of_the_two_sees_the_other() {
        prepare();
        let rounds = if cfg!(miri) { 100 } else { 20_000 };
        let (x, y) = (AtomicU32::new(0), AtomicU32::new(0));
        let saw = [AtomicU32::new(0), AtomicU32::new(0)];
        let barrier = Barrier::new(2);
        let meet =
            |round: u32, mine: &AtomicU32, other: &AtomicU32, saw: &AtomicU32, fence: &dyn Fn()| {
                barrier.wait();
                mine.store(round, Ordering::Relaxed);
                fence();
                saw.store(other.load(Ordering::Relaxed), Ordering::Relaxed);
                barrier.wait();
            };
        thread::scope(|scope| {
            scope.spawn(|| (1..=rounds).for_each(|round| meet(round, &x, &y, &saw[0], &light)));
            for round in 1..=rounds {
                meet(round, &y, &x, &saw[1], &|| heavy().expect("it is allowed"));
                let saw = saw.each_ref().map(|saw| saw.load(Ordering::Relaxed));
                assert!(saw.contains(&round), "round {round}: {saw:?}");
            }
        });
    }
}
