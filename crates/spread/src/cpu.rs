//! Which CPU a thread is on.

use crate::rseq::{self, Registration};

/// The CPU that this thread is on, or was on lately: good for choosing what is near, and no more.
#[inline(always)]
pub(crate) fn near(registration: Registration) -> u32 {
    match rseq::cpu(registration) {
        Some(cpu) => cpu,
        None => asked::cpu(registration),
    }
}

/// For threads that are not registered for restartable sequences.
#[cfg(not(any(loom, miri)))]
mod asked {
    use std::cell::Cell;

    use crate::rseq::{self, Registration};

    /// The kernel is asked once in so many uses: where there is no vDSO for it, asking is a system call
    /// of a hundred nanoseconds.
    const USES: u32 = 64;

    thread_local! {
        /// The CPU at the last asking, and how many uses of it are left.
        static LAST: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }

    #[inline(never)]
    pub(super) fn cpu(registration: Registration) -> u32 {
        LAST.with(|last| {
            let (cpu, left) = last.get();
            if left != 0 {
                last.set((cpu, left - 1));
                return cpu;
            }
            rseq::register_thread(registration);
            // SAFETY: takes nothing; -1 where it is not supported.
            let cpu = u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0);
            last.set((cpu, USES));
            cpu
        })
    }
}

/// Under loom and Miri a thread is where its test says.
#[cfg(any(loom, miri))]
mod asked {
    use std::cell::Cell;

    use crate::rseq::Registration;

    #[cfg(loom)]
    use loom::thread_local;

    thread_local! {
        static CPU: Cell<u32> = Cell::new(0);
    }

    pub(super) fn cpu(_: Registration) -> u32 {
        CPU.with(Cell::get)
    }

    #[cfg(test)]
    pub(crate) fn be_on(cpu: u32) {
        CPU.with(|here| here.set(cpu));
    }
}

#[cfg(all(test, any(loom, miri)))]
pub(crate) use asked::be_on;
