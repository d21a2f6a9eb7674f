//! One word of each thread: where its [`Thread`](crate::thread::Thread) is.
//!
//! Libraries that are there from the program's start may use the initial-exec model: an offset from the thread
//! pointer instead of a call. The stable compiler has no switch for it, so the word is declared in assembly.
//! The few bytes also fit into what the loader keeps free for libraries that come later.

#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
mod word {
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss.amdahl_openmp_thread,\"awT\",@nobits",
        ".balign 8",
        ".hidden amdahl_openmp_thread",
        ".globl amdahl_openmp_thread",
        ".type amdahl_openmp_thread, @object",
        ".size amdahl_openmp_thread, 8",
        "amdahl_openmp_thread:",
        ".zero 8",
        ".popsection",
    );

    #[inline(always)]
    pub(crate) fn get() -> usize {
        let value: usize;
        // SAFETY: reads the calling thread's word.
        unsafe {
            asm!(
                "mov {0}, qword ptr [rip + amdahl_openmp_thread@GOTTPOFF]",
                "mov {0}, qword ptr fs:[{0}]",
                out(reg) value,
                options(nostack, preserves_flags, readonly),
            );
        }
        value
    }

    #[inline(always)]
    pub(crate) fn set(value: usize) {
        // SAFETY: writes the calling thread's word, which is used by this module alone.
        unsafe {
            asm!(
                "mov {0}, qword ptr [rip + amdahl_openmp_thread@GOTTPOFF]",
                "mov qword ptr fs:[{0}], {1}",
                out(reg) _,
                in(reg) value,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(any(not(target_arch = "x86_64"), miri, loom))]
mod word {
    use std::cell::Cell;

    thread_local! {
        static THREAD: Cell<usize> = const { Cell::new(0) };
    }

    #[inline(always)]
    pub(crate) fn get() -> usize {
        THREAD.get()
    }

    #[inline(always)]
    pub(crate) fn set(value: usize) {
        THREAD.set(value);
    }
}

pub(crate) use word::{get, set};
