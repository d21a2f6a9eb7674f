//! Ordered regions, and waits for iterations whose numbers are arguments without a number of arguments.

use std::arch::naked_asm;

use amdahl_openmp::{doacross, ordered, thread};

/// Waits until it is the turn of the calling thread's iterations.
///
/// # Safety
/// The thread is in an ordered loop.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_ordered_start() {
    // SAFETY: the caller's promise.
    unsafe { ordered::enter(thread::current()) };
}

/// The end of an ordered region. The turn is passed on with the last of the thread's iterations: which of them are
/// over is not told.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn GOMP_ordered_end() {}

/// Arguments that are passed in registers.
#[cfg(target_arch = "x86_64")]
const REGISTERS: usize = 6;
#[cfg(target_arch = "aarch64")]
const REGISTERS: usize = 8;

/// What the functions below have found: the arguments in registers, and those behind them on the stack.
unsafe extern "C-unwind" fn wait(registers: *const u64, stack: *const u64) {
    // SAFETY: one number for each loop of the nest that the thread is in, which is all that is asked for.
    unsafe {
        doacross::wait(thread::current(), |i| {
            if i < REGISTERS {
                registers.add(i).read()
            } else {
                stack.add(i - REGISTERS).read()
            }
        });
    }
}

/// Functions with as many arguments as there are loops around them. The language has no name for them: they write
/// down the registers that arguments come in.
macro_rules! wait {
    ($($name:ident)+) => { $(
        /// Waits until the source of the iteration with the given numbers has been reached.
        ///
        /// # Safety
        /// The thread is in a nest of as many loops as there are arguments.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                ".cfi_startproc",
                "sub rsp, 56",
                ".cfi_adjust_cfa_offset 56",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "mov rdi, rsp",
                "lea rsi, [rsp + 64]",
                "call {wait}",
                "add rsp, 56",
                ".cfi_adjust_cfa_offset -56",
                "ret",
                ".cfi_endproc",
                wait = sym wait,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-80]!",
                ".cfi_adjust_cfa_offset 80",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x0, sp, #16",
                "add x1, sp, #80",
                "bl {wait}",
                "ldp x29, x30, [sp], #80",
                ".cfi_adjust_cfa_offset -80",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_endproc",
                wait = sym wait,
            );
        }
    )+ };
}

wait! { GOMP_doacross_wait GOMP_doacross_ull_wait }
