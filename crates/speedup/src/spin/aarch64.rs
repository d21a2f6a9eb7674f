//! arm64 instructions: a decoder of just the classes that wait loops are made of.
//!
//! Encodings are those of the Arm Architecture Reference Manual (DDI 0487),
//! chapter C4. A full disassembler would still leave the question which
//! registers an instruction reads and writes, which is all that is needed here.
//! What this decoder does not know is opaque, and a loop with an opaque
//! instruction is a spin loop only if it waits explicitly.

use super::insn::{Access, Effect, FLAGS, Flow, Kind, Outline, Regs, Relax, Slot, bit};

/// Registers that a call leaves undefined, after AAPCS64: x0-x18, x30, vectors and flags.
pub(super) const CALL_CLOBBERS: Regs = 0x7ffff | bit(30) | (((1 << 32) - 1) << 64) | bit(FLAGS);
/// Registers that carry arguments.
pub(super) const ARGUMENTS: Regs = 0xff;
const STACK_POINTER: u32 = 31;
const FRAME_POINTER: u32 = 29;
/// Register number 31 where it reads as zero: no register.
const ZERO: u32 = u32::MAX;

/// Whether these bytes, the head of a function, make x29 a frame pointer: `add x29, sp, #imm`.
pub(super) fn sets_up_frame(bytes: &[u8]) -> bool {
    words(bytes).any(|word| word & 0xffc0_03ff == 0x9100_03fd)
}

/// Decodes all instructions of `bytes`, which lie at `address`.
pub(super) fn outlines(bytes: &[u8], address: u64) -> impl Iterator<Item = Outline> {
    words(bytes)
        .zip((0u64..).step_by(4))
        .map(move |(word, offset)| outline(word, address.wrapping_add(offset)))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word))
}

fn field(word: u32, low: u32, bits: u32) -> u32 {
    (word >> low) & ((1 << bits) - 1)
}

/// Sign-extends `bits` bits from `low`.
fn signed(word: u32, low: u32, bits: u32) -> i64 {
    i64::from(((word << (32 - low - bits)) as i32) >> (32 - bits))
}

fn outline(word: u32, address: u64) -> Outline {
    let to = |low, bits| address.wrapping_add_signed(4 * signed(word, low, bits));
    let flow = if word & 0xfc00_0000 == 0x1400_0000 {
        Flow::Jump(to(0, 26))
    } else if word & 0xfc00_0000 == 0x9400_0000 {
        Flow::Call(Some(to(0, 26)))
    } else if word & 0xff00_0000 == 0x5400_0000 {
        // Conditions 14 and 15 are "always".
        if word & 0xe == 0xe {
            Flow::Jump(to(5, 19))
        } else {
            Flow::Branch(to(5, 19))
        }
    } else if is_compare_branch(word) {
        Flow::Branch(to(5, 19))
    } else if is_test_branch(word) {
        Flow::Branch(to(5, 14))
    } else if word & 0xfe00_0000 == 0xd600_0000 {
        match field(word, 21, 3) {
            0 => Flow::Indirect,
            1 => Flow::Call(None),
            2 => Flow::Return,
            _ => Flow::Trap,
        }
    } else if word & 0xff00_0000 == 0xd400_0000 && word & 0x1f != 1 || word & 0xffff_0000 == 0 {
        // BRK, HLT, UDF; a supervisor call returns.
        Flow::Trap
    } else {
        Flow::Next
    };
    let relax = match word {
        YIELD | WFE | WFI => Relax::Wait,
        _ if word & 0xffff_ffc0 == 0xd503_1000 => Relax::Wait, // WFET, WFIT
        ISB => Relax::Maybe,
        _ => Relax::No,
    };
    Outline {
        address,
        len: 4,
        flow,
        relax,
        nop: word == NOP,
    }
}

const NOP: u32 = 0xd503_201f;
const YIELD: u32 = 0xd503_203f;
const WFE: u32 = 0xd503_205f;
const WFI: u32 = 0xd503_207f;
const ISB: u32 = 0xd503_3fdf;

fn is_compare_branch(word: u32) -> bool {
    word & 0x7e00_0000 == 0x3400_0000
}

fn is_test_branch(word: u32) -> bool {
    word & 0x7e00_0000 == 0x3600_0000
}

/// A general register, where number 31 is zero.
fn general(word: u32, low: u32) -> Regs {
    match field(word, low, 5) {
        31 => bit(ZERO),
        number => bit(number),
    }
}

/// A general register, where number 31 is the stack pointer.
fn general_or_sp(word: u32, low: u32) -> Regs {
    bit(field(word, low, 5))
}

/// A floating point or vector register.
fn vector(word: u32, low: u32) -> Regs {
    bit(64 + field(word, low, 5))
}

/// What the first instruction of `bytes` does. `frame` says that x29 addresses the stack frame.
pub(super) fn effect(bytes: &[u8], _address: u64, frame: bool) -> Effect {
    let Some(word) = words(bytes).next() else {
        return Effect::unknown();
    };
    match field(word, 25, 4) {
        0b1000 | 0b1001 => immediate(word),
        0b1010 | 0b1011 => branch_or_system(word),
        0b0101 | 0b1101 => register(word),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => memory(word, frame),
        _ => Effect::unknown(),
    }
}

fn flags_if(set: bool) -> Regs {
    if set { bit(FLAGS) } else { 0 }
}

/// Data processing with an immediate operand.
fn immediate(word: u32) -> Effect {
    let sets_flags = field(word, 29, 2);
    let (reads, writes, counts) = match field(word, 23, 3) {
        // ADR, ADRP
        0 | 1 => (0, general(word, 0), false),
        // ADD, SUB
        2 => {
            let flags = sets_flags & 1 == 1;
            let to = if flags {
                general(word, 0)
            } else {
                general_or_sp(word, 0)
            };
            (general_or_sp(word, 5), to | flags_if(flags), true)
        }
        // AND, ORR, EOR, ANDS
        4 => {
            let flags = sets_flags == 3;
            let to = if flags {
                general(word, 0)
            } else {
                general_or_sp(word, 0)
            };
            (
                general(word, 5),
                to | flags_if(flags),
                matches!(sets_flags, 0 | 3),
            )
        }
        // MOVN, MOVZ; MOVK keeps the other bits.
        5 if sets_flags == 3 => (general(word, 0), general(word, 0), false),
        5 => (0, general(word, 0), false),
        // SBFM, UBFM; BFM keeps the other bits.
        6 if sets_flags == 1 => (general(word, 5) | general(word, 0), general(word, 0), false),
        6 => (general(word, 5), general(word, 0), true),
        // EXTR
        7 => (
            general(word, 5) | general(word, 16),
            general(word, 0),
            false,
        ),
        _ => return Effect::unknown(),
    };
    Effect {
        reads,
        writes,
        counts,
        ..Effect::default()
    }
}

fn branch_or_system(word: u32) -> Effect {
    if is_compare_branch(word) || is_test_branch(word) {
        return Effect {
            reads: general(word, 0),
            taken_if_nonzero: Some(word & (1 << 24) != 0),
            ..Effect::default()
        };
    }
    if word & 0xff00_0000 == 0x5400_0000 {
        return Effect {
            reads: bit(FLAGS),
            ..Effect::default()
        };
    }
    if word & 0x7c00_0000 == 0x1400_0000 {
        return Effect::default();
    }
    // BR, BLR, RET
    if word & 0xff80_0000 == 0xd600_0000 {
        return Effect {
            reads: general(word, 5),
            ..Effect::default()
        };
    }
    // Hints and barriers.
    if word & 0xffff_f01f == 0xd503_201f || word & 0xffff_f01f == 0xd503_301f {
        return Effect::default();
    }
    if word & 0xffff_ffc0 == 0xd503_1000 {
        return Effect {
            reads: general(word, 0),
            ..Effect::default()
        };
    }
    // MRS: the thread pointer (TPIDR_EL0, TPIDRRO_EL0) stays, anything else may be a clock.
    if word & 0xfff0_0000 == 0xd530_0000 {
        let thread_pointer = word & !0x1f == 0xd53b_d040 || word & !0x1f == 0xd53b_d060;
        return Effect {
            writes: general(word, 0),
            tick: !thread_pointer,
            ..Effect::default()
        };
    }
    Effect::unknown()
}

/// Data processing with register operands.
fn register(word: u32) -> Effect {
    let two = general(word, 5) | general(word, 16);
    let to = general(word, 0);
    let (reads, writes, counts) = if word & (1 << 28) == 0 {
        let flags = flags_if(field(word, 29, 2) == 3);
        if word & (1 << 24) == 0 {
            // AND, ORR, EOR and their complements; ORR with zero is MOV.
            let is_mov = word & 0x7fe0_ffe0 == 0x2a00_03e0;
            if is_mov {
                return Effect {
                    reads: two,
                    writes: to,
                    counts: true,
                    moves: true,
                    ..Effect::default()
                };
            }
            (two, to | flags, field(word, 29, 2) == 0 || flags != 0)
        } else {
            // ADD, SUB with a shifted or extended register.
            let flags = flags_if(word & (1 << 29) != 0);
            let extended = word & (1 << 21) != 0;
            let from = if extended {
                general_or_sp(word, 5)
            } else {
                general(word, 5)
            };
            let to = if extended && flags == 0 {
                general_or_sp(word, 0)
            } else {
                to
            };
            (from | general(word, 16), to | flags, true)
        }
    } else {
        match field(word, 21, 4) {
            // ADC, SBC; the flag rotations share the encoding and are rare.
            0b0000 => (
                two | bit(FLAGS),
                to | flags_if(word & (1 << 29) != 0),
                false,
            ),
            // CCMN, CCMP
            0b0010 => {
                let second = if word & (1 << 11) == 0 {
                    general(word, 16)
                } else {
                    0
                };
                return Effect {
                    reads: general(word, 5) | second | bit(FLAGS),
                    writes: bit(FLAGS),
                    counts: true,
                    conjunction: true,
                    ..Effect::default()
                };
            }
            // CSEL, CSINC, CSINV, CSNEG
            0b0100 => {
                return Effect {
                    reads: two | bit(FLAGS),
                    writes: to,
                    counts: true,
                    selects: true,
                    ..Effect::default()
                };
            }
            // One source, two sources.
            0b0110 if word & (1 << 30) != 0 => (general(word, 5), to, false),
            0b0110 => (two, to, field(word, 10, 6) & !3 == 0b00_1000),
            // MADD and its like.
            op if op & 0b1000 != 0 => (two | general(word, 10), to, false),
            _ => return Effect::unknown(),
        }
    };
    Effect {
        reads,
        writes,
        counts,
        ..Effect::default()
    }
}

/// Loads and stores.
fn memory(word: u32, frame: bool) -> Effect {
    let simd = word & (1 << 26) != 0;
    let size = field(word, 30, 2);
    let transfer = |low| {
        if simd {
            vector(word, low)
        } else {
            general(word, low)
        }
    };
    match (field(word, 27, 3), field(word, 24, 2)) {
        // Exclusive, ordered, compare-and-swap.
        (0b001, 0b00) if !simd => exclusive(word, size, frame),
        // LDAPUR, STLUR
        (0b011, 0b01) if !simd && word & (1 << 21) == 0 && field(word, 10, 2) == 0 => {
            let load = field(word, 22, 2) != 0;
            plain(
                word,
                load,
                general(word, 0),
                1 << size,
                signed(word, 12, 9),
                frame,
            )
        }
        // Literal: the address is constant.
        (0b011, 0b00) => Effect {
            writes: transfer(0),
            access: Some(Access {
                kind: Kind::Load,
                address: 0,
                slot: None,
                indexed: false,
                offset: None,
                operands: 0,
            }),
            counts: true,
            ..Effect::default()
        },
        // Pairs.
        (0b101, mode) if mode < 2 => {
            let bytes = if simd { 4 << size } else { 4 << (size >> 1) };
            let both = transfer(0) | transfer(10);
            let load = word & (1 << 22) != 0;
            let displacement = signed(word, 15, 7) * bytes;
            let effect = plain(word, load, both, 2 * bytes as u32, displacement, frame);
            // Modes 01 and 11 write the address back.
            if field(word, 23, 1) == 1 {
                written_back(word, effect)
            } else {
                effect
            }
        }
        // One register, unsigned offset.
        (0b111, 0b01) => {
            let Some((bytes, load)) = size_of_single(word, simd, size) else {
                return Effect::default();
            };
            let displacement = i64::from(field(word, 10, 12)) * i64::from(bytes);
            plain(word, load, transfer(0), bytes, displacement, frame)
        }
        (0b111, 0b00) => {
            let indexed = word & (1 << 21) != 0;
            match (indexed, field(word, 10, 2)) {
                (true, 0b00) if !simd => atomic(word, size, frame),
                (true, 0b10) => {
                    let Some((bytes, load)) = size_of_single(word, simd, size) else {
                        return Effect::default();
                    };
                    let mut effect = plain(word, load, transfer(0), bytes, 0, frame);
                    if let Some(access) = &mut effect.access {
                        access.slot = None;
                        access.indexed = true;
                        access.address = general_or_sp(word, 5) | general(word, 16);
                        effect.reads |= access.address;
                    }
                    effect
                }
                (true, _) => Effect::unknown(),
                (false, mode) => {
                    let Some((bytes, load)) = size_of_single(word, simd, size) else {
                        return Effect::default();
                    };
                    // Post-indexed: the address is the base itself.
                    let displacement = if mode == 1 { 0 } else { signed(word, 12, 9) };
                    let effect = plain(word, load, transfer(0), bytes, displacement, frame);
                    if mode & 1 == 1 {
                        written_back(word, effect)
                    } else {
                        effect
                    }
                }
            }
        }
        _ => Effect::unknown(),
    }
}

/// Bytes and direction of a single-register access, `None` for a prefetch.
fn size_of_single(word: u32, simd: bool, size: u32) -> Option<(u32, bool)> {
    let opc = field(word, 22, 2);
    if simd {
        let log2 = size | (opc & 2) << 1;
        Some((1 << log2.min(4), opc & 1 == 1))
    } else if size == 3 && opc == 2 {
        None
    } else {
        Some((1 << size, opc != 0))
    }
}

/// A load or store of `registers` at the base register plus `displacement`.
fn plain(
    word: u32,
    load: bool,
    registers: Regs,
    bytes: u32,
    displacement: i64,
    frame: bool,
) -> Effect {
    let base = field(word, 5, 5);
    let slot = (base == STACK_POINTER || base == FRAME_POINTER && frame).then_some(Slot {
        base,
        displacement,
        bytes,
    });
    let address = if slot.is_some() { 0 } else { bit(base) };
    Effect {
        reads: bit(base) | if load { 0 } else { registers },
        writes: if load { registers } else { 0 },
        access: Some(Access {
            kind: if load { Kind::Load } else { Kind::Store },
            address,
            slot,
            indexed: false,
            offset: None,
            operands: 0,
        }),
        counts: true,
        moves: true,
        ..Effect::default()
    }
}

fn written_back(word: u32, effect: Effect) -> Effect {
    Effect {
        writes: effect.writes | general_or_sp(word, 5),
        ..effect
    }
}

fn exclusive(word: u32, size: u32, frame: bool) -> Effect {
    let load = word & (1 << 22) != 0;
    let pair = word & (1 << 21) != 0;
    let status = general(word, 16);
    let first = general(word, 0);
    match (word & (1 << 23) != 0, pair) {
        // LDAR, STLR and their like.
        (true, false) => plain(word, load, first, 1 << size, 0, frame),
        // CAS: compares with Rs and receives the old value in it.
        (true, true) => read_modify_write(word, Kind::Idempotent, status | first, status, status),
        // CASP
        (false, true) if size < 2 => {
            let old = status | status << 1;
            read_modify_write(word, Kind::Idempotent, old | first | first << 1, old, old)
        }
        (false, pair) => {
            let values = first | if pair { general(word, 10) } else { 0 };
            if load {
                plain(word, true, values, 1 << (size + u32::from(pair)), 0, frame)
            } else {
                Effect {
                    store_status: true,
                    ..read_modify_write(word, Kind::StoreExclusive, values, 0, status)
                }
            }
        }
    }
}

/// Atomic operations of the Large System Extensions.
fn atomic(word: u32, size: u32, frame: bool) -> Effect {
    let operand = general(word, 16);
    let old = general(word, 0);
    match (word & (1 << 15) != 0, field(word, 12, 3)) {
        // LDAPR
        (true, 0b100) => plain(word, true, old, 1 << size, 0, frame),
        // SWP
        (true, 0b000) => read_modify_write(word, Kind::Idempotent, operand, 0, old),
        (true, _) => Effect::unknown(),
        // Clear and set bits, maximum, minimum: repeating them changes nothing.
        (false, 0b001 | 0b011..=0b111) => {
            read_modify_write(word, Kind::Idempotent, operand, 0, old)
        }
        (false, _) => read_modify_write(word, Kind::Accumulate, operand, 0, old),
    }
}

/// `reads` are the registers besides the address that the written value depends on.
fn read_modify_write(word: u32, kind: Kind, operands: Regs, reads: Regs, writes: Regs) -> Effect {
    let address = general_or_sp(word, 5);
    Effect {
        reads: address | reads,
        writes,
        access: Some(Access {
            kind,
            address,
            slot: None,
            indexed: false,
            offset: None,
            operands,
        }),
        ..Effect::default()
    }
}
