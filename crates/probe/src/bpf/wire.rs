//! The records that the BPF programs write, as laid out in `record.h`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a [`Slot`] tells.
pub mod kind {
    #![allow(missing_docs)]
    pub const SWITCH: u8 = 1;
    pub const WAKE: u8 = 2;
    pub const MIGRATE: u8 = 3;
    pub const FORK: u8 = 4;
    pub const COMM: u8 = 5;
    pub const SPIN: u8 = 6;
    pub const EXIT: u8 = 7;
    pub const FUTEX_WAIT: u8 = 16;
    pub const KERNEL_WAIT: u8 = 17;
    pub const HOLD: u8 = 18;
    pub const SLEEP: u8 = 19;
    pub const GO_WAIT: u8 = 20;
    pub const FAULT: u8 = 32;
    pub const MMAP_WAIT: u8 = 33;
    pub const MMAP_HOLD: u8 = 34;
    pub const VMALLOC: u8 = 35;
    pub const SCHED_SWITCH: u8 = 48;
    pub const SCHED_WAKE: u8 = 49;
    pub const SCHED_MIGRATE: u8 = 50;
    pub const SCHED_NEW: u8 = 51;
    pub const SCHED_NAME: u8 = 52;
}

/// What a `SLEEP` is for, where that is not left to its stack.
pub mod sleep {
    #![allow(missing_docs)]
    pub const SEMAPHORE: u8 = 2;
    pub const FILE: u8 = 3;
    pub const NAP: u8 = 4;
    /// The first of those that only user space enters, see `before.rs`.
    pub const BEFORE: u8 = 0x40;
}

/// Flags of a `SWITCH` and of a `WAKE`.
pub mod flag {
    #![allow(missing_docs)]
    pub const PREV_WORKLOAD: u8 = 0x01;
    pub const NEXT_WORKLOAD: u8 = 0x02;
    pub const PREV_RUNNABLE: u8 = 0x04;
    pub const PREV_EXITED: u8 = 0x08;
    pub const PREV_IOWAIT: u8 = 0x10;
    pub const PREV_UNINT: u8 = 0x20;
    pub const PREV_IN_LOCK: u8 = 0x40;
    pub const STACK_TAKEN: u8 = 0x80;

    pub const SCHED_RUNNABLE: u8 = 0x01;
    pub const SCHED_YIELDED: u8 = 0x02;
    pub const SCHED_EXITED: u8 = 0x04;
    pub const SCHED_IOWAIT: u8 = 0x08;
    pub const SCHED_UNINT: u8 = 0x10;
    pub const SCHED_OURS: u8 = 0x20;

    pub const WAKER_WORKLOAD: u8 = 0x01;
    pub const WAKER_TIMER: u8 = 0x02;
    pub const WAKER_IRQ: u8 = 0x04;

    pub const LOCK_IS_MMAP: u8 = 0x80;

    pub const FAULT_MAJOR: u8 = 0x01;
    pub const FAULT_HAS_ERROR: u8 = 0x02;
    pub const FAULT_IS_TIMED: u8 = 0x04;

    pub const MMAP_WRITE: u8 = 0x01;
    pub const MMAP_IN_FAULT: u8 = 0x02;
    pub const MMAP_KTHREAD: u8 = 0x04;
    pub const MMAP_STRANGER: u8 = 0x08;
    pub const MMAP_READS_PROC: u8 = 0x10;

    pub const VMALLOC_FREE: u8 = 0x01;
    pub const VMALLOC_PURGE: u8 = 0x02;
}

/// What a [`Stack`] was taken for.
pub mod stack_kind {
    #![allow(missing_docs)]
    pub const TIME: u8 = 1;
    pub const INSTRUCTIONS: u8 = 2;
    pub const WAIT: u8 = 3;
    pub const WAKE: u8 = 4;
    /// A page fault.
    pub const FAULT: u8 = 5;
    /// A lock of the kernel was waited for.
    pub const LOCK: u8 = 6;
}

/// `struct amdahl_slot`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// Position in the ring plus one; written last.
    pub seq: u64,
    /// Monotonic nanoseconds.
    pub ts: u64,
    /// One of [`kind`].
    pub kind: u8,
    /// Of [`flag`].
    pub flags: u8,
    /// `LCB_F_*` and [`flag::LOCK_IS_MMAP`].
    pub lock_kind: u8,
    /// Low bits of the value that a futex was expected to have; FAULT: order of the page that was allocated for it plus one, 0 if none.
    pub unused: u8,
    /// Where it happened, or goes.
    pub cpu: u32,
    /// Whom it is about.
    pub tid: u32,
    /// The other one.
    pub other: u32,
    /// System call, -1 outside one; FORK: process id.
    pub syscall: i32,
    /// SWITCH: hash of where prev waits; WAKE: of where the waker is, or 0.
    pub place: u32,
    /// Arguments, lock address or name.
    pub arg: [u64; 3],
}

impl Slot {
    /// The name that FORK, COMM, a SWITCH away from others and the hold of a stranger carry.
    pub fn comm(&self) -> String {
        let bytes: Vec<u8> = self.arg[..2]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .take_while(|&byte| byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// `struct amdahl_wait`: a wait for a lock that has not ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenWait {
    /// Thread; 0 if the entry is free.
    pub tid: u32,
    /// Process.
    pub pid: u32,
    /// Address of the lock.
    pub lock: u64,
    /// Monotonic nanoseconds.
    pub begin: u64,
    /// The same; 0 if it was not woken.
    pub woken_at: u64,
    waker: [u32; 2],
    /// Hash of the place.
    pub place: u32,
    /// [`kind::FUTEX_WAIT`], [`kind::KERNEL_WAIT`], 0 if none.
    pub kind: u8,
    /// As [`Slot::lock_kind`].
    pub lock_kind: u8,
    /// As [`Slot::unused`].
    pub expected: u8,
    waker_flags: u8,
    pub(super) crowded: u32,
    unused: u32,
    /// Nanoseconds that the thread had run when it began; of a lock of the kernel what tells the code that wants it.
    pub(super) had_run: u64,
}

/// The same as words.
pub(super) type OpenWaitWords = [u32; size_of::<OpenWait>() / size_of::<u32>()];

impl From<OpenWaitWords> for OpenWait {
    fn from(words: OpenWaitWords) -> OpenWait {
        // SAFETY: as large, without holes (see the test of layouts), and any bits are an OpenWait.
        unsafe { std::mem::transmute(words) }
    }
}

/// `struct amdahl_ring`.
#[repr(C)]
pub struct Ring {
    /// Slots reserved.
    pub head: AtomicU64,
    /// Slots consumed.
    pub tail: AtomicU64,
    /// Slots that found the ring full.
    pub lost: AtomicU64,
    /// Internal to the BPF side.
    repeated_at: AtomicU64,
    /// Switches of this CPU are recorded.
    pub watched: AtomicU32,
    /// A timer's or an interrupt's handler runs now.
    in_timer: AtomicU32,
    in_irq: AtomicU32,
    /// Which of the stretches it is in which switches are seen.
    window: AtomicU32,
    /// Stacks that found their ring full.
    pub stacks_lost: AtomicU64,
    /// Internal to the BPF side.
    takes_stack: AtomicU32,
    /// Stacks of [`stack_kind::TIME`] that were taken.
    samples: AtomicU32,
}

/// What was lost on a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Slots that found the ring full.
    pub slots: u64,
    /// Stacks that found their ring full.
    pub stacks: u64,
}

impl std::ops::Sub for Lost {
    type Output = Lost;

    fn sub(self, earlier: Lost) -> Lost {
        Lost {
            slots: self.slots - earlier.slots,
            stacks: self.stacks - earlier.stacks,
        }
    }
}

/// `struct amdahl_totals`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// User instructions of the workload.
    pub instructions: u64,
    /// Cycles of the workload.
    pub cycles: u64,
    /// Internal to the BPF side.
    pub internal: [u64; 6],
}

/// Kernel frames at most in a [`Stack`].
pub const KERNEL_FRAMES: usize = 32;
/// General registers in a [`Stack`].
pub const REGISTERS: usize = 16;
/// Their numbers in machine code. On x86-64 the last is none of those, and always 0.
#[cfg(target_arch = "x86_64")]
pub const REGISTER_NUMBERS: [u32; REGISTERS] =
    [0, 3, 1, 2, 6, 7, 5, 8, 9, 10, 11, 12, 13, 14, 15, 4];
/// Their numbers in machine code: x0 to x3, x8 to x13, x19 to x24.
#[cfg(not(target_arch = "x86_64"))]
pub const REGISTER_NUMBERS: [u32; REGISTERS] =
    [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 19, 20, 21, 22, 23, 24];
/// Code around the instruction in a [`Stack`]; half of it lies before.
pub const CODE_BYTES: usize = 8 * KERNEL_FRAMES;
/// User frames found by frame pointers at most in a [`Stack`].
pub const USER_FRAMES: usize = 24;
/// Bytes of user stack at most in a [`Stack`].
pub const STACK_BYTES: usize = 2048;
/// Bytes below the stack pointer in a [`Stack`].
pub const BELOW_BYTES: usize = 64;

/// `struct amdahl_stack`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StackRecord {
    ts: u64,
    tid: u32,
    pid: u32,
    cpu: u32,
    kind: u8,
    user_mode: u8,
    has_code: u8,
    has_below: u8,
    ip: u64,
    sp: u64,
    bp: u64,
    lr: u64,
    regs: [u64; REGISTERS],
    kernel_frames: u32,
    user_bytes: u32,
    user_frames: u32,
    place: u32,
    kernel: [u64; KERNEL_FRAMES],
    user: [u64; USER_FRAMES],
    bytes: [u8; STACK_BYTES],
    below: [u8; BELOW_BYTES],
}

/// A stack as it was taken: registers, kernel frames and a copy of stack memory.
#[derive(Clone, Debug, Default)]
pub struct Stack {
    /// Monotonic nanoseconds.
    pub ts: u64,
    /// Thread.
    pub tid: u32,
    /// Process.
    pub pid: u32,
    /// CPU.
    pub cpu: u32,
    /// One of [`stack_kind`].
    pub kind: u8,
    /// The CPU was in user mode.
    pub user_mode: bool,
    /// Periods of the full rate that a sample stands for.
    pub weight: u32,
    /// Hash of the place, where the programs tell it here.
    pub place: u32,
    /// User instruction pointer.
    pub ip: u64,
    /// User stack pointer.
    pub sp: u64,
    /// User frame pointer.
    pub bp: u64,
    /// Link register, 0 where there is none.
    pub lr: u64,
    /// General registers in which compilers keep loop counters.
    pub regs: [u64; REGISTERS],
    /// Kernel return addresses, innermost first.
    pub kernel: Box<[u64]>,
    /// User addresses by frame pointers, innermost first.
    pub user: Box<[u64]>,
    /// Memory from `sp` upwards.
    pub bytes: Box<[u8]>,
    /// Memory from `sp` - [`BELOW_BYTES`] on, of samples in user mode where functions may use it; else empty.
    pub below: Box<[u8]>,
    /// Code from [`CODE_BYTES`] / 2 before `ip` on, of samples in user mode; empty if not known.
    pub code: Box<[u8]>,
}

impl Stack {
    /// Memory that it takes.
    pub(super) fn bytes_held(&self) -> usize {
        size_of::<Stack>()
            + size_of_val(&*self.kernel)
            + size_of_val(&*self.user)
            + self.bytes.len()
            + self.below.len()
            + self.code.len()
    }

    /// Reads one record; `None` if it is not one.
    pub fn parse(raw: &[u8]) -> Option<Stack> {
        if raw.len() < size_of::<StackRecord>() {
            return None;
        }
        // SAFETY: the length was checked, every bit pattern is a valid StackRecord, and
        // read_unaligned has no alignment condition.
        let record = unsafe { std::ptr::read_unaligned(raw.as_ptr().cast::<StackRecord>()) };
        let has_code = record.has_code != 0;
        let frames = (record.kernel_frames as usize).min(KERNEL_FRAMES);
        let (frames, code) = if has_code {
            (&[][..], &record.kernel[..])
        } else {
            (&record.kernel[..frames], &[][..])
        };
        let bytes = (record.user_bytes as usize).min(STACK_BYTES);
        Some(Stack {
            ts: record.ts,
            tid: record.tid,
            pid: record.pid,
            cpu: record.cpu,
            kind: record.kind,
            user_mode: record.user_mode != 0,
            weight: 1,
            place: record.place,
            ip: record.ip,
            sp: record.sp,
            bp: record.bp,
            lr: record.lr,
            regs: record.regs,
            kernel: frames.into(),
            user: record.user[..(record.user_frames as usize).min(USER_FRAMES)].into(),
            bytes: record.bytes[..bytes].into(),
            below: match record.has_below {
                0 => Box::default(),
                _ => record.below.into(),
            },
            code: code.iter().flat_map(|word| word.to_le_bytes()).collect(),
        })
    }
}

/// The rings of all CPUs, mapped from the BPF side.
pub struct Rings {
    slots: crate::mapping::Mapping,
    rings: crate::mapping::Mapping,
    slots_per_cpu: usize,
    cpus: usize,
}

impl Rings {
    pub(super) fn new(
        slots: crate::mapping::Mapping,
        rings: crate::mapping::Mapping,
        slots_per_cpu: usize,
        cpus: usize,
    ) -> Rings {
        assert!(slots_per_cpu.is_power_of_two());
        assert!(slots.bytes() >= slots_per_cpu * cpus * size_of::<Slot>());
        assert!(rings.bytes() >= cpus * size_of::<Ring>());
        Rings {
            slots,
            rings,
            slots_per_cpu,
            cpus,
        }
    }

    fn ring(&self, cpu: usize) -> &Ring {
        assert!(cpu < self.cpus);
        // SAFETY: in bounds (asserted here and in `new`), page-aligned, and all fields that the
        // kernel side writes are atomics.
        unsafe { &*self.rings.address().cast::<Ring>().add(cpu) }
    }

    /// Whether switches of `cpu` are recorded.
    pub fn watch(&self, cpu: usize, on: bool) {
        self.ring(cpu)
            .watched
            .store(u32::from(on), Ordering::Relaxed);
    }

    /// Lets what the hooks at switches remember of the switch before be forgotten. For when they are detached.
    pub fn begin_window(&self) {
        for cpu in 0..self.cpus {
            // Relaxed: attaching orders it before what the hooks read.
            self.ring(cpu).window.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The same at the beginning of a recording, when no hook is attached.
    pub fn begin(&self) {
        for cpu in 0..self.cpus {
            let ring = self.ring(cpu);
            // Detached in the middle of a handler, the hooks have not seen its end.
            ring.in_timer.store(0, Ordering::Relaxed);
            ring.in_irq.store(0, Ordering::Relaxed);
        }
        self.begin_window();
    }

    /// Slots of `cpus` that were ever reserved.
    pub fn written(&self, cpus: &[u32]) -> u64 {
        let heads = cpus.iter().map(|&cpu| self.ring(cpu as usize));
        heads.map(|ring| ring.head.load(Ordering::Relaxed)).sum()
    }

    /// What was lost on `cpu` since the map was made.
    pub fn lost(&self, cpu: usize) -> Lost {
        let ring = self.ring(cpu);
        Lost {
            slots: ring.lost.load(Ordering::Relaxed),
            stacks: ring.stacks_lost.load(Ordering::Relaxed),
        }
    }

    /// Samples of time that were taken on `cpu`, modulo 2^32.
    pub fn samples(&self, cpu: usize) -> u32 {
        self.ring(cpu).samples.load(Ordering::Relaxed)
    }

    /// Slots that a ring has room for.
    pub fn room(&self) -> usize {
        self.slots_per_cpu
    }

    /// Slots of `cpu` that wait to be drained.
    pub fn waiting(&self, cpu: usize) -> usize {
        let ring = self.ring(cpu);
        let head = ring.head.load(Ordering::Relaxed);
        head.wrapping_sub(ring.tail.load(Ordering::Relaxed)) as usize
    }

    /// Appends the complete slots of `cpu` to `out`, in the order of their reservation.
    pub fn drain(&self, cpu: usize, out: &mut Vec<Slot>) {
        let ring = self.ring(cpu);
        let mut tail = ring.tail.load(Ordering::Relaxed);
        let head = ring.head.load(Ordering::Acquire);
        populate(out, head.wrapping_sub(tail) as usize);
        let mask = self.slots_per_cpu - 1;
        while tail != head {
            let index = cpu * self.slots_per_cpu + (tail as usize & mask);
            // SAFETY: index < cpus * slots_per_cpu, checked against the length in `new`.
            let slot = unsafe { self.slots.address().cast::<Slot>().add(index) };
            // SAFETY: as above; seq is the first field and is only accessed atomically.
            let seq = unsafe { AtomicU64::from_ptr(slot.cast::<u64>()) };
            // Acquire: pairs with `publish` (ring.bpf.h).
            if seq.load(Ordering::Acquire) != tail + 1 {
                break; // reserved, but not complete yet
            }
            // SAFETY: complete, and the kernel side reuses it only after `tail` has passed.
            out.push(unsafe { slot.read() });
            tail += 1;
        }
        // Release: the slots were read before the kernel side may reuse them.
        ring.tail.store(tail, Ordering::Release);
    }
}

/// Makes room for `more` slots whose memory is there: asked for at once it takes less than by one page fault for each page.
fn populate(slots: &mut Vec<Slot>, more: usize) {
    const PAGES_MIN: usize = 16;
    slots.reserve(more);
    let page = rustix::param::page_size();
    let room = slots.spare_capacity_mut()[..more].as_mut_ptr_range();
    let (begin, end) = (
        room.start.addr().next_multiple_of(page),
        room.end.addr() & !(page - 1),
    );
    if end.saturating_sub(begin) < PAGES_MIN * page {
        return;
    }
    let first = room.start.with_addr(begin).cast();
    // SAFETY: whole pages within the vector's spare capacity, whose bytes stay what they are.
    // Older kernels refuse it, and page faults do as well.
    let _ =
        unsafe { rustix::mm::madvise(first, end - begin, rustix::mm::Advice::LinuxPopulateWrite) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_that_of_record_h() {
        assert_eq!(size_of::<Slot>(), 64);
        assert_eq!(size_of::<Ring>(), 64);
        assert_eq!(size_of::<OpenWait>(), 64);
        assert_eq!(std::mem::offset_of!(OpenWait, place), 40);
        assert_eq!(std::mem::offset_of!(OpenWait, had_run), 56);
        assert_eq!(size_of::<Totals>(), 64);
        assert_eq!(
            size_of::<StackRecord>(),
            72 + 8 * (REGISTERS + KERNEL_FRAMES + USER_FRAMES) + STACK_BYTES + BELOW_BYTES
        );
        assert_eq!(std::mem::offset_of!(Slot, cpu), 20);
        assert_eq!(std::mem::offset_of!(Slot, arg), 40);
        assert_eq!(
            std::mem::offset_of!(StackRecord, kernel),
            72 + 8 * REGISTERS
        );
    }

    #[test]
    fn short_or_hostile_stack_records_are_refused_or_clamped() {
        assert!(Stack::parse(&[0; 10]).is_none());
        let mut record = [0xff; size_of::<StackRecord>()];
        let stack = Stack::parse(&record).unwrap();
        assert_eq!((stack.kernel.len(), stack.code.len()), (0, CODE_BYTES));
        assert_eq!(
            (stack.bytes.len(), stack.below.len()),
            (STACK_BYTES, BELOW_BYTES)
        );
        record[std::mem::offset_of!(StackRecord, has_below)] = 0;
        record[std::mem::offset_of!(StackRecord, has_code)] = 0;
        let stack = Stack::parse(&record).unwrap();
        assert_eq!((stack.kernel.len(), stack.code.len()), (KERNEL_FRAMES, 0));
        assert_eq!(stack.below.len(), 0);
    }
}
