//! A guest of KVM in long mode, with its page tables and code in its own memory.

use std::arch::global_asm;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amdahl_pager::{BLOCK, Mapping, PAGE};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

use crate::machine::{Control, Order, Stopped};
use crate::model::{Cpu, FACTOR, SUMMAND, Sum};
use crate::{Refusal, STEPS_AT_ONCE};

/// Where things are in the guest's memory.
const ROOT: u64 = 0x1000;
const UPPER: u64 = 0x2000;
const LOWER: u64 = 0x3000;
const CODE: u64 = 0x8000;

/// The guest asks what to do.
const ASK: u16 = 0x10;
/// The guest says its sum, both halves.
const SUM_LOW: u16 = 0x11;
const SUM_HIGH: u16 = 0x12;

// Without a stack, and wherever it lies. rdi: the slice; rsi: its pages; rbx: the random number; r8: steps; r12, r13: the
// constants. Loops are unrolled, since there are machines whose KVM interprets such guests. At the question nothing else is in use, so these two are all that a machine's state has of a CPU.
global_asm!(
    ".pushsection .rodata",
    ".global amdahl_test_guest_begin",
    ".global amdahl_test_guest_end",
    "amdahl_test_guest_begin:",
    "2:",
    "mov ecx, {steps}",
    "3:",
    "imul rbx, r12",
    "add rbx, r13",
    "mov rax, rbx",
    "shr rax, 32",
    "imul rax, rsi",
    "shr rax, 32",
    "shl rax, 12",
    "lea r10, [rdi + rax]",
    "mov rax, rbx",
    "and eax, 7",
    "lea r10, [r10 + 8*rax]",
    "mov r11d, 8",
    "4:",
    ".irp at, 0, 64, 128, 192, 256, 320, 384, 448",
    "mov rax, [r10 + \\at]",
    "xor rax, rbx",
    "imul rax, r12",
    "add rax, r13",
    "mov [r10 + \\at], rax",
    ".endr",
    "add r10, 512",
    "dec r11d",
    "jnz 4b",
    "inc r8",
    "dec ecx",
    "jnz 3b",
    "in al, {ask}",
    "test al, al",
    "jz 2b",
    "xor r9d, r9d",
    "mov r10, rdi",
    "mov r11, rsi",
    "shl r11, 6",
    "5:",
    ".irp at, 0, 8, 16, 24, 32, 40, 48, 56",
    "imul r9, r12",
    "add r9, [r10 + \\at]",
    ".endr",
    "add r10, 64",
    "dec r11",
    "jnz 5b",
    "mov rax, r9",
    "out {low}, eax",
    "shr rax, 32",
    "out {high}, eax",
    "6:",
    "hlt",
    "jmp 6b",
    "amdahl_test_guest_end:",
    ".popsection",
    steps = const STEPS_AT_ONCE,
    ask = const ASK,
    low = const SUM_LOW,
    high = const SUM_HIGH,
);

unsafe extern "C" {
    static amdahl_test_guest_begin: u8;
    static amdahl_test_guest_end: u8;
}

fn code() -> &'static [u8] {
    let (begin, end) = (
        &raw const amdahl_test_guest_begin,
        &raw const amdahl_test_guest_end,
    );
    // SAFETY: all bytes between the two symbols are the read-only data above.
    unsafe { std::slice::from_raw_parts(begin, end.addr() - begin.addr()) }
}

/// The beginning of the guest's memory.
pub(crate) fn boot() -> Vec<u8> {
    let mut bytes = vec![0; CODE as usize];
    let mut put = |at: u64, value: u64| {
        bytes[at as usize..][..8].copy_from_slice(&value.to_le_bytes());
    };
    // Present, writable, accessed, dirty; as if used before, so that the processor has nothing to write there.
    const FLAGS: u64 = 0x63;
    const LARGE: u64 = 0x80;
    put(ROOT, UPPER | FLAGS);
    put(UPPER, LOWER | FLAGS);
    for nth in 0..512 {
        put(LOWER + 8 * nth, (nth * BLOCK as u64) | FLAGS | LARGE);
    }
    bytes.extend_from_slice(code());
    bytes
}

fn refused(operation: &'static str) -> impl Fn(kvm_ioctls::Error) -> Refusal {
    move |error| Refusal::Kvm {
        operation,
        why: error.to_string(),
    }
}

pub(crate) struct Guest {
    kvm: Kvm,
    vm: VmFd,
    memory: Arc<Mapping>,
}

impl Guest {
    pub fn new(memory: Arc<Mapping>) -> Result<Guest, Refusal> {
        let kvm = Kvm::new().map_err(refused("/dev/kvm"))?;
        let vm = kvm.create_vm().map_err(refused("KVM_CREATE_VM"))?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: memory.len() as u64,
            userspace_addr: memory.as_ptr().expose_provenance() as u64,
        };
        // SAFETY: the memory is mapped, and each CPU keeps it as long as the guest can run.
        unsafe { vm.set_user_memory_region(region) }
            .map_err(refused("KVM_SET_USER_MEMORY_REGION"))?;
        Ok(Guest { kvm, vm, memory })
    }

    pub fn cpu(
        &self,
        number: usize,
        slice: &Range<usize>,
        cpu: &Cpu,
    ) -> Result<VirtualCpu, Refusal> {
        let fd = self
            .vm
            .create_vcpu(number as u64)
            .map_err(refused("KVM_CREATE_VCPU"))?;
        let cpuid = self
            .kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(refused("KVM_GET_SUPPORTED_CPUID"))?;
        fd.set_cpuid2(&cpuid).map_err(refused("KVM_SET_CPUID2"))?;

        let mut special = fd.get_sregs().map_err(refused("KVM_GET_SREGS"))?;
        let segment = kvm_segment {
            base: 0,
            limit: u32::MAX,
            present: 1,
            s: 1,
            g: 1,
            ..Default::default()
        };
        special.cs = kvm_segment {
            selector: 8,
            type_: 11,
            l: 1,
            ..segment
        };
        let data = kvm_segment {
            selector: 16,
            type_: 3,
            db: 1,
            ..segment
        };
        for register in [
            &mut special.ds,
            &mut special.es,
            &mut special.fs,
            &mut special.gs,
            &mut special.ss,
        ] {
            *register = data;
        }
        special.cr3 = ROOT;
        // Physical address extension; paging, protection, numeric errors, extension type; long mode enabled and active.
        special.cr4 = 1 << 5;
        special.cr0 = 1 << 31 | 1 << 16 | 1 << 5 | 1 << 4 | 1;
        special.efer = 1 << 8 | 1 << 10;
        fd.set_sregs(&special).map_err(refused("KVM_SET_SREGS"))?;
        let registers = kvm_regs {
            rip: CODE,
            rflags: 2,
            rdi: (slice.start * PAGE) as u64,
            rsi: slice.len() as u64,
            rbx: cpu.random,
            r8: cpu.steps,
            r12: FACTOR,
            r13: SUMMAND,
            ..Default::default()
        };
        fd.set_regs(&registers).map_err(refused("KVM_SET_REGS"))?;
        Ok(VirtualCpu {
            fd,
            _memory: self.memory.clone(),
        })
    }
}

pub(crate) struct VirtualCpu {
    fd: VcpuFd,
    _memory: Arc<Mapping>,
}

impl VirtualCpu {
    fn cpu(&self) -> Result<Cpu, Refusal> {
        let registers = self.fd.get_regs().map_err(refused("KVM_GET_REGS"))?;
        Ok(Cpu {
            random: registers.rbx,
            steps: registers.r8,
        })
    }

    /// Runs the CPU until it is told to stop.
    pub fn run(&mut self, control: &Control, steps: &AtomicU64) -> Result<Stopped, Refusal> {
        let mut sum = 0;
        loop {
            let unexpected = match self.fd.run() {
                Ok(VcpuExit::IoIn(ASK, answer)) => {
                    let order = control.order();
                    answer[0] = (order == Order::Sum).into();
                    let cpu = self.cpu()?;
                    steps.store(cpu.steps, Ordering::Relaxed);
                    if order == Order::Pause {
                        return Ok(Stopped { cpu, sum: None });
                    }
                    continue;
                }
                Ok(VcpuExit::IoOut(SUM_LOW, &[a, b, c, d])) => {
                    sum = u64::from(u32::from_le_bytes([a, b, c, d]));
                    continue;
                }
                Ok(VcpuExit::IoOut(SUM_HIGH, &[a, b, c, d])) => {
                    sum |= u64::from(u32::from_le_bytes([a, b, c, d])) << 32;
                    let cpu = self.cpu()?;
                    let sum = Some(Sum {
                        steps: cpu.steps,
                        sum,
                    });
                    return Ok(Stopped { cpu, sum });
                }
                Ok(other) => format!("{other:?}"),
                // EINTR: a signal to this thread. EAGAIN: it was not ready.
                Err(error) if matches!(error.errno(), 4 | 11) => continue,
                Err(error) => error.to_string(),
            };
            return Err(Refusal::Kvm {
                operation: "KVM_RUN",
                why: unexpected,
            });
        }
    }
}
