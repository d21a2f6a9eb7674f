//! Which CPU this thread is on, and whether it was taken off one, without a system call.
//!
//! The C library registers an area with the kernel for each thread (restartable sequences; glibc 2.35 and later).
//! Its `cpu_id` is kept current. Its `rseq_cs` names a critical section; when a thread is preempted, moved or
//! interrupted by a signal *outside* of that section, the kernel sets the field to null. So a section that is
//! never executed is a flag that says "undisturbed since it was set": a load asks it, a store sets it again.
//! Others in the process that use the field (allocators) set it to sections of their own; that looks like a
//! disturbance and costs a closer look, nothing else.

#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64",
    not(miri),
    not(loom)
))]
mod area {
    use std::arch::{asm, global_asm};
    use std::sync::atomic::{AtomicIsize, Ordering};

    // The kernel reads the section's end and the signature before its abort address whenever it preempts the
    // thread, and kills who names a section that is not one: so it is a real one. Nobody ever runs it.
    global_asm!(
        ".pushsection .text.amdahl_openmp_never,\"ax\",@progbits",
        "7770:",
        "nop",
        "7771:",
        // ud1 with the signature as its operand, as the C library registers it.
        ".byte 0x0f, 0xb9, 0x3d",
        ".long 0x53053053",
        "7772:",
        "ud2",
        ".popsection",
        ".pushsection .data.rel.ro.amdahl_openmp_never,\"aw\",@progbits",
        ".balign 32",
        ".hidden amdahl_openmp_never",
        ".globl amdahl_openmp_never",
        ".type amdahl_openmp_never, @object",
        ".size amdahl_openmp_never, 32",
        "amdahl_openmp_never:",
        ".long 0, 0",
        ".quad 7770b",
        ".quad 7771b - 7770b",
        ".quad 7772b",
        ".popsection",
    );

    unsafe extern "C" {
        static amdahl_openmp_never: [u64; 4];
    }

    const CPU_ID: usize = 4;
    const RSEQ_CS: usize = 8;

    /// From the thread pointer to the area; 0 if there is none.
    static OFFSET: AtomicIsize = AtomicIsize::new(0);

    pub(crate) fn init() {
        // SAFETY: the names are C strings, and the symbols are what glibc documents: ptrdiff_t and unsigned int.
        let offset = unsafe {
            let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr());
            let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr());
            if offset.is_null() || size.is_null() || *size.cast::<libc::c_uint>() == 0 {
                return;
            }
            *offset.cast::<isize>()
        };
        OFFSET.store(offset, Ordering::Relaxed);
    }

    #[inline(always)]
    fn area() -> Option<*mut u8> {
        let offset = OFFSET.load(Ordering::Relaxed);
        if offset == 0 {
            return None;
        }
        let pointer: *mut u8;
        // SAFETY: the first word of the thread control block is its own address (x86-64 ABI).
        unsafe {
            asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly, pure));
        }
        Some(pointer.wrapping_offset(offset))
    }

    #[inline(always)]
    pub(crate) fn cpu() -> Option<u32> {
        let area = area()?;
        // SAFETY: the area is this thread's; volatile, because the kernel writes to it.
        let cpu = unsafe { area.add(CPU_ID).cast::<u32>().read_volatile() };
        // What it says of threads that are not registered is negative.
        (cpu as i32 >= 0).then_some(cpu)
    }

    #[inline(always)]
    pub(crate) fn arm() {
        if let Some(area) = area() {
            // SAFETY: the area is this thread's, the section is a valid one.
            unsafe {
                area.add(RSEQ_CS)
                    .cast::<*const u64>()
                    .write_volatile((&raw const amdahl_openmp_never).cast());
            }
        }
    }

    #[inline(always)]
    pub(crate) fn is_armed() -> Option<bool> {
        let area = area()?;
        // SAFETY: the area is this thread's; volatile, because the kernel writes to it.
        let section = unsafe { area.add(RSEQ_CS).cast::<*const u64>().read_volatile() };
        Some(section == (&raw const amdahl_openmp_never).cast())
    }
}

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64",
    not(miri),
    not(loom)
)))]
mod area {
    pub(crate) fn init() {}

    #[inline(always)]
    pub(crate) fn cpu() -> Option<u32> {
        None
    }

    #[inline(always)]
    pub(crate) fn arm() {}

    #[inline(always)]
    pub(crate) fn is_armed() -> Option<bool> {
        None
    }
}

/// `arm`: begins to watch. `is_armed`: whether nothing took the CPU since; `None` where nobody can tell.
pub(crate) use area::{arm, cpu, init, is_armed};

#[cfg(all(test, target_arch = "x86_64", target_env = "gnu", not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn giving_up_the_cpu_is_seen() {
        init();
        if cpu().is_none() {
            println!("SKIPPED giving_up_the_cpu_is_seen: the C library registers no rseq area");
            return;
        }
        // Nothing that sleeps keeps its CPU: the kernel preempts outside of the section and says so.
        arm();
        let lock = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                lock.store(1, std::sync::atomic::Ordering::Release);
                crate::sys::futex_wake(&lock, 1);
            });
            while lock.load(std::sync::atomic::Ordering::Acquire) == 0 {
                crate::sys::futex_wait(&lock, 0);
            }
            // The other thread may have been faster than the sleep.
            // SAFETY: no pointers but to the zeroed time.
            unsafe {
                let time = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 1,
                };
                libc::nanosleep(&time, std::ptr::null_mut());
            }
        });
        assert_eq!(is_armed(), Some(false));
        // Undisturbed stretches exist, however busy the machine is.
        let undisturbed = (0..1_000_000).any(|_| {
            arm();
            is_armed() == Some(true)
        });
        assert!(undisturbed);
    }
}
