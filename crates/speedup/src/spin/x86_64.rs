//! x86-64 instructions, decoded by iced-x86.

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register,
};

use super::insn::{Access, Effect, FLAGS, Flow, Kind, Outline, Regs, Relax, Slot, bit};

const RAX: u32 = 0;
const RSP: u32 = 4;
const RBP: u32 = 5;

/// Registers that a call leaves undefined, after the System V ABI: rax, rcx,
/// rdx, rsi, rdi, r8-r11, all vectors and the flags.
pub(super) const CALL_CLOBBERS: Regs = 0b1111_1100_0111 & !bit(3) | VECTORS | bit(FLAGS);
/// Registers that carry arguments.
pub(super) const ARGUMENTS: Regs = bit(1) | bit(2) | bit(6) | bit(7) | bit(8) | bit(9);
const VECTORS: Regs = ((1 << 48) - 1) << 64;

/// Whether these bytes, the head of a function, make rbp a frame pointer:
/// `mov rbp, rsp` in either encoding.
pub(super) fn sets_up_frame(bytes: &[u8]) -> bool {
    bytes
        .windows(3)
        .any(|window| window == [0x48, 0x89, 0xe5] || window == [0x48, 0x8b, 0xec])
}

/// Decodes all instructions of `bytes`, which lie at `address`.
pub(super) fn outlines(bytes: &[u8], address: u64) -> impl Iterator<Item = Outline> {
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let mut insn = Instruction::default();
    std::iter::from_fn(move || {
        if !decoder.can_decode() {
            return None;
        }
        decoder.decode_out(&mut insn);
        Some(outline(&insn))
    })
}

fn outline(insn: &Instruction) -> Outline {
    let near = || match insn.op0_kind() {
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
            Some(insn.near_branch_target())
        }
        _ => None,
    };
    let flow = if insn.is_invalid() {
        Flow::Trap
    } else {
        match insn.flow_control() {
            FlowControl::Next => Flow::Next,
            FlowControl::UnconditionalBranch => near().map_or(Flow::Indirect, Flow::Jump),
            FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
                near().map_or(Flow::Next, Flow::Branch)
            }
            FlowControl::IndirectBranch => Flow::Indirect,
            FlowControl::Return => Flow::Return,
            FlowControl::Call if insn.mnemonic() != Mnemonic::Call => Flow::Next,
            FlowControl::Call => Flow::Call(near()),
            FlowControl::IndirectCall if insn.is_ip_rel_memory_operand() => {
                Flow::Call(Some(insn.ip_rel_memory_address()))
            }
            FlowControl::IndirectCall => Flow::Call(None),
            FlowControl::Interrupt | FlowControl::Exception => Flow::Trap,
        }
    };
    let relax = match insn.mnemonic() {
        Mnemonic::Pause | Mnemonic::Tpause | Mnemonic::Umwait | Mnemonic::Mwaitx => Relax::Wait,
        _ => Relax::No,
    };
    Outline {
        address: insn.ip(),
        len: insn.len().max(1) as u8,
        flow,
        relax,
        nop: insn.mnemonic() == Mnemonic::Nop,
    }
}

/// The register whose value the first instruction of `bytes` calls.
pub(super) fn called_register(bytes: &[u8]) -> Option<u32> {
    let insn = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    let calls = insn.flow_control() == FlowControl::IndirectCall;
    (calls && insn.op0_kind() == OpKind::Register).then(|| number(insn.op0_register()))
}

/// What an instruction that writes a register puts there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loaded {
    /// What is at this fixed address.
    From(u64),
    /// What a caller had there.
    Restored,
    /// Something else.
    Other,
}

/// The same of the first instruction of `bytes`, which lies at `address`.
pub(super) fn loaded(bytes: &[u8], address: u64) -> Loaded {
    let insn = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
    match insn.mnemonic() {
        Mnemonic::Mov if insn.is_ip_rel_memory_operand() => {
            Loaded::From(insn.ip_rel_memory_address())
        }
        Mnemonic::Pop => Loaded::Restored,
        _ => Loaded::Other,
    }
}

/// What the first instruction of `bytes` does. `frame` says that rbp addresses the stack frame.
pub(super) fn effect(bytes: &[u8], address: u64, frame: bool) -> Effect {
    let insn = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
    if insn.is_invalid() {
        return Effect::unknown();
    }
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(&insn);
    let is_frame = |base| base == RSP || base == RBP && frame;
    let mut effect = Effect {
        opaque: is_opaque(&insn),
        tick: matches!(
            insn.mnemonic(),
            Mnemonic::Rdtsc
                | Mnemonic::Rdtscp
                | Mnemonic::Rdpmc
                | Mnemonic::Rdrand
                | Mnemonic::Rdseed
        ),
        ..Effect::default()
    };
    for used in info.used_registers() {
        let reg = bit(number(used.register()));
        match used.access() {
            OpAccess::Read | OpAccess::CondRead => effect.reads |= reg,
            OpAccess::Write => effect.writes |= reg,
            OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => {
                effect.reads |= reg;
                effect.writes |= reg;
            }
            OpAccess::None | OpAccess::NoMemAccess => {}
        }
    }
    if insn.rflags_read() != 0 {
        effect.reads |= bit(FLAGS);
    }
    if insn.rflags_modified() != 0 {
        effect.writes |= bit(FLAGS);
    }

    let touches = |access: OpAccess| !matches!(access, OpAccess::None | OpAccess::NoMemAccess);
    let mut memory = info.used_memory().iter().filter(|m| touches(m.access()));
    if let Some(m) = memory.next() {
        // Two accesses: string moves and the like. No wait loop needs them.
        effect.opaque |= memory.next().is_some();
        let loads = !matches!(m.access(), OpAccess::Write | OpAccess::CondWrite);
        let stores = !matches!(m.access(), OpAccess::Read | OpAccess::CondRead);
        let kind = match (loads, stores) {
            (_, false) => Kind::Load,
            (false, true) => Kind::Store,
            _ if !insn.has_lock_prefix() && insn.mnemonic() != Mnemonic::Xchg => Kind::Update,
            _ => match insn.mnemonic() {
                Mnemonic::Xchg
                | Mnemonic::Cmpxchg
                | Mnemonic::Cmpxchg8b
                | Mnemonic::Cmpxchg16b
                | Mnemonic::Or
                | Mnemonic::And
                | Mnemonic::Bts
                | Mnemonic::Btr => Kind::Idempotent,
                _ => Kind::Accumulate,
            },
        };
        let base = number(m.base());
        let offset = (m.index() == Register::None).then(|| {
            let bytes = m.memory_size().size().max(1) as u32;
            (m.displacement() as i64, bytes)
        });
        let slot = offset
            .filter(|_| is_frame(base))
            .map(|(displacement, bytes)| Slot {
                base,
                displacement,
                bytes,
            });
        let mut registers = bit(number(m.index()));
        if slot.is_none() {
            registers |= bit(base);
        }
        let mut operands = 0;
        if kind.is_atomic() {
            operands = effect.reads & !bit(FLAGS) & !registers & !bit(RSP);
            for op in 0..insn.op_count() {
                if insn.op_kind(op) == OpKind::Register {
                    operands |= bit(number(insn.op_register(op)));
                }
            }
            if matches!(insn.mnemonic(), Mnemonic::Cmpxchg | Mnemonic::Cmpxchg16b) {
                operands |= bit(RAX);
            }
            if insn.mnemonic() == Mnemonic::Xchg {
                // The register receives what was in memory, whatever it held before.
                effect.reads = registers;
            }
        }
        effect.access = Some(Access {
            kind,
            address: registers,
            slot,
            indexed: m.index() != Register::None,
            offset,
            operands,
        });
    }
    let base = number(insn.memory_base());
    if insn.mnemonic() == Mnemonic::Lea && insn.memory_index() == Register::None && is_frame(base) {
        effect.frame_address = Some((base, insn.memory_displacement64() as i64));
    }
    effect.selects = selects(&insn);
    effect.counts = effect.selects || counts(&insn);
    effect.moves = insn.mnemonic() == Mnemonic::Mov;
    effect
}

/// Whether a recurrence through this instruction is a counter or a moved value.
fn counts(insn: &Instruction) -> bool {
    match insn.mnemonic() {
        Mnemonic::Mov
        | Mnemonic::Movzx
        | Mnemonic::Movsx
        | Mnemonic::Movsxd
        | Mnemonic::Cwde
        | Mnemonic::Cdqe
        | Mnemonic::Inc
        | Mnemonic::Dec
        | Mnemonic::Add
        | Mnemonic::Sub
        | Mnemonic::Shl
        | Mnemonic::Sal
        | Mnemonic::Shr
        | Mnemonic::Sar
        | Mnemonic::And
        | Mnemonic::Cmp
        | Mnemonic::Test
        | Mnemonic::Loop
        | Mnemonic::Loope
        | Mnemonic::Loopne => true,
        Mnemonic::Lea => {
            insn.memory_index() == Register::None
                || insn.memory_index_scale() == 1
                    && (insn.memory_base() == insn.memory_index()
                        || insn.memory_base() == Register::None)
        }
        _ => false,
    }
}

/// CMOVcc: of the conditional instructions, jumps and SETcc have one operand.
fn selects(insn: &Instruction) -> bool {
    insn.condition_code() != ConditionCode::None && insn.op_count() == 2
}

fn is_opaque(insn: &Instruction) -> bool {
    insn.is_string_instruction()
        || matches!(
            insn.mnemonic(),
            Mnemonic::Syscall
                | Mnemonic::Sysenter
                | Mnemonic::Cpuid
                | Mnemonic::Int
                | Mnemonic::Xbegin
        )
}

fn number(register: Register) -> u32 {
    let full = register.full_register();
    if full.is_gpr64() {
        full.number() as u32
    } else if full.is_vector_register() {
        64 + full.number() as u32
    } else if full.is_k() {
        96 + full.number() as u32
    } else if full.is_st() || full.is_mm() {
        104 + full.number() as u32
    } else {
        // No register, rip, and segments, which do not change in a loop.
        u32::MAX
    }
}
