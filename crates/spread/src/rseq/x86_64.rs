//! The sequences on x86-64.
//!
//! A sequence is one arming store (the address of its descriptor into `rseq_cs`), the range of
//! instructions that the descriptor names, and an abort handler. When the kernel takes the CPU away
//! from the thread, moves it or delivers a signal while its instruction pointer is within the range,
//! the thread goes on in the abort handler, which begins again. The last instruction of the range commits.
//!
//! Ones are added as constants, to a word that is addressed by one register: then Intel's cores since Golden Cove do
//! not wait for the store before to the same word, and each of many additions in a row takes 0.6 ns in place of 2.3.

use std::arch::asm;

use super::Rows;
use super::area::Area;

pub(super) const SYS_RSEQ: libc::c_long = 334;

/// Stands before each abort handler, so that nobody can direct the kernel to other code. It is the
/// operand of a `ud1` instruction, which traps if it is ever run into. glibc registers with the same.
pub(super) const SIGNATURE: u32 = 0x5305_3053;

/// The descriptor (label 3) and the abort handler (label 7) of the range from label 4 to label 5, which is
/// armed at label 2. `struct rseq_cs`: version, flags, start, length, abort handler.
macro_rules! descriptor {
    () => {
        concat!(
            ".pushsection __rseq_cs, \"aw\"\n",
            ".balign 32\n",
            "3: .long 0, 0\n",
            ".quad 4b, 5b - 4b, 7f\n",
            ".popsection\n",
            ".pushsection .text.unlikely.rseq_abort, \"ax\", @progbits\n",
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "7: jmp 2b\n",
            ".popsection\n",
        )
    };
}

/// The beginning of a sequence: arms it, brings the CPU into register `$cpu`, and compares it with the number of words.
/// The area is found by `$area`.
macro_rules! begin {
    ($area:literal, $cpu:literal) => {
        concat!(
            "2: lea {scratch}, [rip + 3f]\n",
            "mov ",
            $area,
            "{area} + 8], {scratch}\n",
            "4: mov {",
            $cpu,
            ":e}, ",
            $area,
            "{area} + 4]\n",
            "cmp {",
            $cpu,
            ":e}, {cpus:e}\n",
        )
    };
}

/// A whole sequence that adds `$delta`, an operand, and returns false if there is no word.
macro_rules! add {
    ($area:literal, $at:ident, $rows:ident, $($delta:tt)+) => {
        asm!(
            begin!($area, "scratch"),
            "jae {elsewhere}",
            "imul {scratch}, {stride}",
            "add {scratch}, {base}",
            "add qword ptr [{scratch}], {delta}",
            "5:",
            descriptor!(),
            scratch = out(reg) _,
            area = in(reg) $at,
            cpus = in(reg) $rows.cpus,
            stride = in(reg) $rows.stride,
            base = in(reg) $rows.base,
            delta = $($delta)+,
            elsewhere = label { return false },
            options(nostack),
        )
    };
}

/// The functions for areas that are found by `$area` (a segment prefix and an opening bracket).
macro_rules! sequences {
    ($where:ty, $area:literal, $add:ident, $add_fetch:ident) => {
        /// # Safety
        /// `area` leads to this thread's area; `rows` has writable words for its CPUs.
        #[inline(always)]
        pub(super) unsafe fn $add(area: $where, rows: &Rows, delta: i64) -> bool {
            // SAFETY: the caller's promise. Nothing but `scratch` and memory is changed, nor the stack used, before
            // or after an abort; `add` to memory is one instruction, so that it happens wholly or not at all.
            unsafe {
                // Where the caller's delta is a constant, which it mostly is, one of them is left.
                match delta {
                    1 => add!($area, area, rows, const 1),
                    -1 => add!($area, area, rows, const -1),
                    _ => add!($area, area, rows, in(reg) delta),
                }
            }
            true
        }

        /// # Safety
        /// As for the function above.
        #[inline(always)]
        pub(super) unsafe fn $add_fetch(area: $where, rows: &Rows, delta: i64) -> Option<(u32, i64)> {
            let (cpu, sum): (u32, i64);
            // SAFETY: as above; the store is the one instruction that changes shared memory.
            unsafe {
                asm!(
                    begin!($area, "cpu"),
                    "jae 5f",
                    "mov {scratch:e}, {cpu:e}",
                    "imul {scratch}, {stride}",
                    "add {scratch}, {base}",
                    "mov {sum}, [{scratch}]",
                    "add {sum}, {delta}",
                    "mov [{scratch}], {sum}",
                    "5:",
                    descriptor!(),
                    scratch = out(reg) _,
                    cpu = out(reg) cpu,
                    sum = out(reg) sum,
                    area = in(reg) area,
                    cpus = in(reg) rows.cpus,
                    stride = in(reg) rows.stride,
                    base = in(reg) rows.base,
                    delta = in(reg) delta,
                    options(nostack),
                );
            }
            (cpu < rows.cpus).then_some((cpu, sum))
        }
    };
}

sequences!(
    isize,
    "fs:[",
    add_from_thread_pointer,
    add_fetch_from_thread_pointer
);
sequences!(*mut Area, "[", add_at, add_fetch_at);

/// The CPU in the area that lies `offset` bytes from the thread pointer.
///
/// # Safety
/// There is an area, in each thread.
#[inline(always)]
pub(super) unsafe fn cpu_from_thread_pointer(offset: isize) -> u32 {
    let cpu: u32;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "mov {cpu:e}, fs:[{offset} + 4]",
            cpu = out(reg) cpu,
            offset = in(reg) offset,
            options(nostack, preserves_flags, readonly),
        );
    }
    cpu
}

/// What `add` does, with time between finding the word and changing it, so that it is interrupted often. Tells how often
/// it began.
///
/// # Safety
/// As for `add_at`; the thread is registered, and on a CPU that has a word.
#[cfg(test)]
pub(super) unsafe fn add_slowly_at(area: *mut Area, rows: &Rows, delta: i64) -> u64 {
    let mut begun = 0_u64;
    // SAFETY: as above; `begun` is meant to grow with each abort.
    unsafe {
        asm!(
            "2:",
            "inc {begun}",
            "lea {word}, [rip + 3f]",
            "mov [{area} + 8], {word}",
            "4:",
            "mov {word:e}, [{area} + 4]",
            "imul {word}, {stride}",
            "add {word}, {base}",
            "mov {sum}, [{word}]",
            "add {sum}, {delta}",
            "mov {rounds:e}, 2000",
            "6: dec {rounds:e}",
            "jnz 6b",
            "mov [{word}], {sum}",
            "5:",
            descriptor!(),
            begun = inout(reg) begun,
            word = out(reg) _,
            sum = out(reg) _,
            rounds = out(reg) _,
            area = in(reg) area,
            stride = in(reg) rows.stride,
            base = in(reg) rows.base,
            delta = in(reg) delta,
            options(nostack),
        );
    }
    begun
}

/// The area that lies `offset` bytes from the thread pointer.
#[cfg(test)]
pub(super) fn area_from_thread_pointer(offset: isize) -> *mut Area {
    let pointer: *mut u8;
    // SAFETY: on x86-64 the first word of what `fs` points to is its own address.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    pointer.wrapping_offset(offset).cast()
}
