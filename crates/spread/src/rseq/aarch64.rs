//! The sequences on arm64; see x86_64.rs for what they are made of.

use std::arch::asm;

use super::Rows;
use super::area::Area;

pub(super) const SYS_RSEQ: libc::c_long = 293;

/// Stands before each abort handler, so that nobody can direct the kernel to other code: a `brk` with
/// an immediate that nothing else uses. glibc registers with the same.
pub(super) const SIGNATURE: u32 = 0xd428_bc00;

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
            ".inst 0xd428bc00\n",
            "7: b 2b\n",
            ".popsection\n",
        )
    };
}

/// The beginning of a sequence: arms it, brings the CPU into a register, and compares it with the number of words.
macro_rules! begin {
    () => {
        concat!(
            "2: adrp {sum}, 3f\n",
            "add {sum}, {sum}, :lo12:3f\n",
            "str {sum}, [{area}, #8]\n",
            "4: ldr {cpu:w}, [{area}, #4]\n",
            "cmp {cpu:w}, {cpus:w}\n",
        )
    };
}

/// The addition to a word that ends it.
macro_rules! commit {
    ($word:literal) => {
        concat!(
            "madd {",
            $word,
            "}, {cpu}, {stride}, {base}\n",
            "ldr {sum}, [{",
            $word,
            "}]\n",
            "add {sum}, {sum}, {delta}\n",
            "str {sum}, [{",
            $word,
            "}]\n",
            "5:\n",
        )
    };
}

/// The area that lies `offset` bytes from the thread pointer.
#[inline(always)]
fn from_thread_pointer(offset: isize) -> *mut Area {
    let pointer: *mut u8;
    // SAFETY: reads a register. Not `pure`: a coroutine may go on in another thread.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    pointer.wrapping_offset(offset).cast()
}

/// # Safety
/// `area` is this thread's; `rows` has writable words for its CPUs.
#[inline(always)]
pub(super) unsafe fn add_at(area: *mut Area, rows: &Rows, delta: i64) -> bool {
    // SAFETY: the caller's promise. Nothing but the scratch registers and memory is changed, nor the stack used,
    // before or after an abort; one store changes shared memory, and it is the last of the range.
    unsafe {
        asm!(
            begin!(),
            "b.hs {elsewhere}",
            commit!("cpu"),
            descriptor!(),
            cpu = out(reg) _,
            sum = out(reg) _,
            area = in(reg) area,
            cpus = in(reg) rows.cpus,
            stride = in(reg) rows.stride,
            base = in(reg) rows.base,
            delta = in(reg) delta,
            elsewhere = label { return false },
            options(nostack),
        );
    }
    true
}

/// # Safety
/// As for [`add_at`].
#[inline(always)]
pub(super) unsafe fn add_fetch_at(area: *mut Area, rows: &Rows, delta: i64) -> Option<(u32, i64)> {
    let (cpu, sum): (u32, i64);
    // SAFETY: as in `add_at`.
    unsafe {
        asm!(
            begin!(),
            "b.hs 5f",
            commit!("word"),
            descriptor!(),
            cpu = out(reg) cpu,
            word = out(reg) _,
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

/// # Safety
/// There is an area `offset` bytes from the thread pointer, in each thread; `rows` has writable words for its CPUs.
#[inline(always)]
pub(super) unsafe fn add_from_thread_pointer(offset: isize, rows: &Rows, delta: i64) -> bool {
    // SAFETY: the caller's promise.
    unsafe { add_at(from_thread_pointer(offset), rows, delta) }
}

/// # Safety
/// As for [`add_from_thread_pointer`].
#[inline(always)]
pub(super) unsafe fn add_fetch_from_thread_pointer(
    offset: isize,
    rows: &Rows,
    delta: i64,
) -> Option<(u32, i64)> {
    // SAFETY: the caller's promise.
    unsafe { add_fetch_at(from_thread_pointer(offset), rows, delta) }
}

/// The CPU in the area that lies `offset` bytes from the thread pointer.
///
/// # Safety
/// There is an area, in each thread.
#[inline(always)]
pub(super) unsafe fn cpu_from_thread_pointer(offset: isize) -> u32 {
    // SAFETY: the caller's promise; volatile, because the kernel writes to it.
    unsafe { (&raw const (*from_thread_pointer(offset)).cpu_id).read_volatile() }
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
            "add {begun}, {begun}, #1",
            "adrp {sum}, 3f",
            "add {sum}, {sum}, :lo12:3f",
            "str {sum}, [{area}, #8]",
            "4:",
            "ldr {word:w}, [{area}, #4]",
            "madd {word}, {word}, {stride}, {base}",
            "ldr {sum}, [{word}]",
            "add {sum}, {sum}, {delta}",
            "mov {rounds:w}, #2000",
            "6: subs {rounds:w}, {rounds:w}, #1",
            "b.ne 6b",
            "str {sum}, [{word}]",
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
    from_thread_pointer(offset)
}
