//! One sample of a perf ring, as the stack that it is.

use perf_event_open_sys::bindings as b;

use super::{SAMPLE_ID, header};
use crate::bpf::wire::{KERNEL_FRAMES, REGISTERS, STACK_BYTES, Stack, USER_FRAMES};

/// What every sample tells.
pub(super) const KINDS: b::perf_event_sample_format = SAMPLE_ID
    | b::PERF_SAMPLE_IP
    | b::PERF_SAMPLE_CALLCHAIN
    | b::PERF_SAMPLE_REGS_USER
    | b::PERF_SAMPLE_STACK_USER;

/// User registers in the order in which they are copied, by the kernel's numbers, and which of
/// them are the stack pointer, the instruction pointer, the frame pointer and the link register.
/// `GENERAL` are those in which compilers keep loop counters.
#[cfg(target_arch = "x86_64")]
mod registers {
    /// ax, bx, cx, dx, si, di, bp, sp, ip, r8 ... r15
    pub const MASK: u64 = 0xff_01ff;
    pub const GENERAL: &[usize] = &[0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16];
    pub const BP: usize = 6;
    pub const SP: usize = 7;
    pub const IP: usize = 8;
    pub const LR: Option<usize> = None;
}
#[cfg(target_arch = "aarch64")]
mod registers {
    /// x0 ... x29, lr, sp, pc
    pub const MASK: u64 = 0x1_ffff_ffff;
    pub const GENERAL: &[usize] = &[0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 19, 20, 21, 22, 23, 24];
    pub const BP: usize = 29;
    pub const SP: usize = 31;
    pub const IP: usize = 32;
    pub const LR: Option<usize> = Some(30);
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod registers {
    pub const MASK: u64 = 0;
    pub const GENERAL: &[usize] = &[];
    pub const BP: usize = 0;
    pub const SP: usize = 0;
    pub const IP: usize = 0;
    pub const LR: Option<usize> = None;
}
pub(super) use registers::MASK as REGISTER_MASK;

/// Markers among the addresses of a call chain: what follows is of the kernel, or of the user.
const IN_KERNEL: u64 = b::PERF_CONTEXT_KERNEL;
const IN_USER: u64 = b::PERF_CONTEXT_USER;
const MARKERS: u64 = b::PERF_CONTEXT_MAX;

/// The event that overflowed and the stack, its `kind` not set. `None` if it is no sample.
pub(super) fn parse(record: &[u8]) -> Option<(u64, Stack)> {
    let (kind, misc, mut fields) = header(record)?;
    if kind != b::PERF_RECORD_SAMPLE {
        return None;
    }
    let event = fields.u64()?;
    let mut stack = Stack {
        ip: fields.u64()?,
        pid: fields.u32()?,
        tid: fields.u32()?,
        ts: fields.u64()?,
        cpu: fields.u32()?,
        user_mode: misc & b::PERF_RECORD_MISC_CPUMODE_MASK == b::PERF_RECORD_MISC_USER,
        weight: 1,
        ..Stack::default()
    };
    fields.u32()?;
    let (mut kernel, mut user) = (Vec::new(), Vec::new());
    let mut is_kernel = !stack.user_mode;
    for _ in 0..fields.u64()? {
        match fields.u64()? {
            IN_KERNEL => is_kernel = true,
            IN_USER => is_kernel = false,
            marker if marker >= MARKERS => {}
            address if is_kernel && kernel.len() < KERNEL_FRAMES => kernel.push(address),
            address if !is_kernel && user.len() < USER_FRAMES => user.push(address),
            _ => {}
        }
    }
    (stack.kernel, stack.user) = (kernel.into(), user.into());
    // No registers: a thread of the kernel, or one without an address space any more.
    if fields.u64()? != u64::from(b::PERF_SAMPLE_REGS_ABI_NONE) {
        let mut all = [0; registers::MASK.count_ones() as usize];
        for register in &mut all {
            *register = fields.u64()?;
        }
        (stack.ip, stack.sp, stack.bp) =
            (all[registers::IP], all[registers::SP], all[registers::BP]);
        stack.lr = registers::LR.map_or(0, |at| all[at]);
        let mut regs = [0; REGISTERS];
        for (to, &from) in regs.iter_mut().zip(registers::GENERAL) {
            *to = all[from];
        }
        stack.regs = regs;
    }
    let size = usize::try_from(fields.u64()?).ok()?;
    if size > 0 {
        let bytes = fields.bytes(size)?;
        let copied = usize::try_from(fields.u64()?).ok()?;
        stack.bytes = bytes[..copied.min(size).min(STACK_BYTES)].into();
    }
    Some((event, stack))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn sample() -> Vec<u8> {
        let kind_and_flags =
            u64::from(b::PERF_RECORD_SAMPLE) | u64::from(b::PERF_RECORD_MISC_KERNEL) << 32;
        let mut record = words(&[kind_and_flags, 42, 0xffff_8000_0000_1234]);
        record.extend([7u32.to_ne_bytes(), 8u32.to_ne_bytes()].concat());
        record.extend(words(&[
            999,
            3,
            5,
            IN_KERNEL,
            0xffff_8000_0000_1234,
            IN_USER,
            0x1000,
            0x2000,
        ]));
        record.extend(words(&[u64::from(b::PERF_SAMPLE_REGS_ABI_64)]));
        let registers = u64::from(registers::MASK.count_ones());
        record.extend(words(&(100..100 + registers).collect::<Vec<_>>()));
        record.extend(words(&[16, 1, 2, 8]));
        record
    }

    #[test]
    fn a_sample_is_a_stack() {
        let (event, stack) = parse(&sample()).expect("a sample");
        assert_eq!(
            (event, stack.pid, stack.tid, stack.ts, stack.cpu),
            (42, 7, 8, 999, 3)
        );
        assert!(!stack.user_mode);
        assert_eq!(&*stack.kernel, [0xffff_8000_0000_1234]);
        assert_eq!(&*stack.user, [0x1000, 0x2000]);
        assert_eq!(
            (stack.ip, stack.sp),
            (100 + registers::IP as u64, 100 + registers::SP as u64)
        );
        assert_eq!(stack.regs[0], 100);
        assert_eq!(
            &*stack.bytes,
            words(&[1]),
            "what was not copied is not there"
        );
    }

    #[test]
    fn cut_records_are_refused() {
        let whole = sample();
        for len in 0..whole.len() {
            assert!(parse(&whole[..len]).is_none(), "{len} of {}", whole.len());
        }
    }

    proptest! {
        #[test]
        fn damaged_records_do_no_harm(damage in proptest::collection::vec((0usize..400, any::<u8>()), 1..20)) {
            let mut record = sample();
            for (at, byte) in damage {
                let len = record.len();
                record[at % len] = byte;
            }
            if let Some((_, stack)) = parse(&record) {
                prop_assert!(stack.kernel.len() <= KERNEL_FRAMES);
                prop_assert!(stack.user.len() <= USER_FRAMES);
                prop_assert!(stack.bytes.len() <= STACK_BYTES);
            }
        }
    }
}
