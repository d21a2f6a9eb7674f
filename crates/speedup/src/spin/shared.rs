//! Which of a thread's values other threads may have a part in.

use super::callee;
use super::graph::Graph;
use super::insn::{Effect, FLAGS, Flow, Kind, Regs, bit};
use super::{Arch, Code, limited};

/// Values that are written around an instruction, again and again, and come from others: from an atomic operation on memory, or from a
/// function that is called and of which nothing else is known.
///
/// What a thread counts by itself tells how fast it is. A number that it drew from a counter which all threads draw from tells how
/// fast they are together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// General registers, one bit each, by their numbers in machine code (x86-64: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, ...).
    pub registers: u32,
    /// Results of atomic operations are put into the own stack frame.
    pub stack: bool,
    /// Any such value may have been left below the stack pointer: an argument of a function that was called.
    pub below: bool,
}

impl Shared {
    /// What of it is still there in a function that the loops call: the registers that such a function keeps.
    pub fn beyond_call(self, arch: Arch) -> Shared {
        Shared {
            registers: self.registers & !(callee::clobbers(arch) as u32),
            below: false,
            ..self
        }
    }

    /// What is in either.
    pub fn or(self, other: Shared) -> Shared {
        Shared {
            registers: self.registers | other.registers,
            stack: self.stack || other.stack,
            below: self.below || other.below,
        }
    }
}

/// Which code around an instruction is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Within {
    /// The loops around it.
    Loops,
    /// The same, or all of the code where there is none: of a function that a loop calls.
    LoopsOrFunction,
}

/// What others have a part in of what the code around `ip` writes. `code` are the bytes from `code_start` on, as for
/// [`in_spin_loop`](super::in_spin_loop); any bytes are valid input. `fetch` gives the function at an address, for calls.
///
/// The order of the instructions does not matter to it: a register that holds a shared value somewhere in a loop counts as shared in all
/// of it. O(instructions²) in the worst case, O(instructions) in most.
///
/// ```
/// use amdahl_speedup::spin::{Arch, Within, shared_values};
/// // L: mov eax, 1; lock xadd [rdi], rax; inc rcx; jmp L
/// let code = [0xb8, 1, 0, 0, 0, 0xf0, 0x48, 0x0f, 0xc1, 0x07, 0x48, 0xff, 0xc1, 0xeb, 0xf1];
/// let shared = shared_values(Arch::X86_64, &code, 0x1000, 0x1005, Within::Loops, &mut |_| None);
/// assert_eq!((shared.registers, shared.stack), (1, false));
/// ```
pub fn shared_values(
    arch: Arch,
    code: &[u8],
    code_start: u64,
    ip: u64,
    within: Within,
    fetch: &mut dyn FnMut(u64) -> Option<Code>,
) -> Shared {
    let Some(graph) = Graph::around(arch, code, code_start, ip, &mut |_| None) else {
        return Shared::default();
    };
    let mut fetch = limited(fetch);
    let loops = graph.loops();
    if loops.is_empty() && within == Within::LoopsOrFunction {
        let all: Vec<u32> = (0..graph.insns.len() as u32).collect();
        return among(arch, &graph, &all, &mut fetch);
    }
    let shared = loops
        .iter()
        .map(|around| among(arch, &graph, &around.members, &mut fetch));
    shared.fold(Shared::default(), Shared::or)
}

/// Calls that are looked through for an atomic operation.
const CALLS_DEEP: u32 = 2;

/// Where the value of a call comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// From an atomic operation, it may be.
    Drawn,
    /// From none.
    Own,
    /// Nobody knows.
    Unknown,
}

/// That of a call of the function at `target`.
fn origin(
    arch: Arch,
    target: u64,
    fetch: &mut dyn FnMut(u64) -> Option<Code>,
    depth: u32,
) -> Origin {
    let code = fetch(target).filter(|code| code.known.is_none());
    let Some(code) = code else {
        return Origin::Unknown;
    };
    let Some(graph) = Graph::around(arch, &code.bytes, code.start, target, &mut |_| None) else {
        return Origin::Unknown;
    };
    let mut all = Origin::Own;
    for (index, insn) in graph.insns.iter().enumerate() {
        let access = graph.effect(index as u32).access;
        if access.is_some_and(|access| access.kind.is_atomic()) {
            return Origin::Drawn;
        }
        if let Flow::Call(target) = insn.flow {
            let inner = match target {
                Some(target) if depth < CALLS_DEEP => origin(arch, target, fetch, depth + 1),
                _ => Origin::Unknown,
            };
            match inner {
                Origin::Drawn => return Origin::Drawn,
                Origin::Unknown => all = Origin::Unknown,
                Origin::Own => {}
            }
        }
    }
    all
}

/// The same of some of the instructions.
fn among(
    arch: Arch,
    graph: &Graph,
    members: &[u32],
    fetch: &mut dyn FnMut(u64) -> Option<Code>,
) -> Shared {
    let effects: Vec<(Effect, Option<Origin>)> = members
        .iter()
        .map(|&member| {
            let called = match graph.insns[member as usize].flow {
                Flow::Call(Some(target)) => Some(origin(arch, target, fetch, 1)),
                Flow::Call(None) => Some(Origin::Unknown),
                _ => None,
            };
            (graph.effect(member), called)
        })
        .collect();
    // Of what calls give back nothing is known but where a register holds it.
    let (_, stack) = flow(arch, &effects, false, false);
    let (registers, _) = flow(arch, &effects, true, stack);
    Shared {
        registers,
        stack,
        below: stack || registers != 0,
    }
}

/// Registers that the results of atomic operations get to, those of unknown calls too if `of_unknown`, and whether the frame
/// holds some; with `stack` it does already.
fn flow(
    arch: Arch,
    effects: &[(Effect, Option<Origin>)],
    of_unknown: bool,
    mut stack: bool,
) -> (u32, bool) {
    // Where stores are conditional, so are the loads that belong to them, which look like others.
    let has_exclusive = effects.iter().any(|(effect, _)| {
        let access = effect.access;
        access.is_some_and(|access| access.kind == Kind::StoreExclusive)
    });
    let mut registers: Regs = 0;
    loop {
        let before = (registers, stack);
        for (effect, called) in effects {
            if let Some(origin) = called {
                if *origin == Origin::Drawn || *origin == Origin::Unknown && of_unknown {
                    registers |= callee::clobbers(arch);
                }
                continue;
            }
            let (mut gets, mut puts) = (effect.reads & registers != 0, false);
            if let Some(access) = effect.access {
                let is_own = access.slot.is_some() && !access.kind.is_atomic();
                let is_load = access.kind.loads();
                gets |= is_load && is_own && stack;
                gets |= is_load && !is_own && (access.kind.is_atomic() || has_exclusive);
                puts = is_own && access.kind != Kind::Load;
            }
            if gets {
                registers |= effect.writes;
                stack |= puts && !of_unknown;
            }
        }
        registers &= !bit(FLAGS);
        if (registers, stack) == before {
            return (registers as u32, stack);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAX: u32 = 1;
    const RDX: u32 = 1 << 2;
    const RBX: u32 = 1 << 3;

    fn within(arch: Arch, within: Within, code: &[u8]) -> Shared {
        shared_values(arch, code, 0x1000, 0x1000, within, &mut |_| None)
    }

    fn of(code: &[u8]) -> Shared {
        within(Arch::X86_64, Within::Loops, code)
    }

    fn registers(registers: u32) -> Shared {
        Shared {
            registers,
            stack: false,
            below: registers != 0,
        }
    }

    #[test]
    fn numbers_drawn_from_a_common_counter_are_shared_and_what_is_made_of_them() {
        // L: mov eax, 1; lock xadd [rdi], rax; add rdx, rax; inc rbx; cmp rax, rsi; jl L
        let mut code = vec![
            0xb8, 1, 0, 0, 0, 0xf0, 0x48, 0x0f, 0xc1, 0x07, 0x48, 0x01, 0xc2, 0x48, 0xff, 0xc3,
            0x48, 0x39, 0xf0, 0x7c, 0xeb,
        ];
        assert_eq!(of(&code), registers(RAX | RDX));
        // A function without a loop is called by one.
        code.truncate(19);
        code.push(0xc3);
        assert_eq!(of(&code), Shared::default());
        let of_function = within(Arch::X86_64, Within::LoopsOrFunction, &code);
        assert_eq!(of_function, registers(RAX | RDX));
    }

    #[test]
    fn a_thread_that_adds_to_a_common_counter_counts_by_itself() {
        // L: lock inc qword [rdi]; inc rbx; jmp L
        let code = [0xf0, 0x48, 0xff, 0x07, 0x48, 0xff, 0xc3, 0xeb, 0xf7];
        assert_eq!(of(&code), Shared::default());
        // L: mov rax, [rdi]; add rdx, rax; inc rbx; jmp L
        let loads = [
            0x48, 0x8b, 0x07, 0x48, 0x01, 0xc2, 0x48, 0xff, 0xc3, 0xeb, 0xf5,
        ];
        assert_eq!(of(&loads), Shared::default());
    }

    #[test]
    fn what_a_call_gives_back_is_shared_and_what_it_keeps_is_not() {
        // L: call +0x100; mov rbx, rax; inc r12; jmp L
        let code = [
            0xe8, 0, 1, 0, 0, 0x48, 0x89, 0xc3, 0x49, 0xff, 0xc4, 0xeb, 0xf3,
        ];
        let shared = of(&code);
        assert_eq!(shared.registers & (RAX | RBX | 1 << 12), RAX | RBX);
        let kept = Shared {
            below: false,
            ..registers(RBX)
        };
        assert_eq!(shared.beyond_call(Arch::X86_64), kept);
        // What is called is looked at.
        let calls = |body: &[u8]| {
            let callee = Code {
                start: 0x1105,
                bytes: body.to_vec(),
                known: None,
            };
            let mut fetch = |address| (address == 0x1105).then(|| callee.clone());
            shared_values(
                Arch::X86_64,
                &code,
                0x1000,
                0x1000,
                Within::Loops,
                &mut fetch,
            )
        };
        // inc rdi; mov rax, rdi; ret
        assert_eq!(
            calls(&[0x48, 0xff, 0xc7, 0x48, 0x89, 0xf8, 0xc3]),
            Shared::default()
        );
        // mov eax, 1; lock xadd [rdi], rax; ret
        let drawn = calls(&[0xb8, 1, 0, 0, 0, 0xf0, 0x48, 0x0f, 0xc1, 0x07, 0xc3]);
        assert_eq!(drawn.registers & (RAX | RBX | 1 << 12), RAX | RBX);
    }

    #[test]
    fn unoptimised_code_has_them_in_its_frame() {
        // L: mov eax, 1; lock xadd [rdi], rax; mov [rsp+8], rax; mov rbx, [rsp+8]; jmp L
        let code = [
            0xb8, 1, 0, 0, 0, 0xf0, 0x48, 0x0f, 0xc1, 0x07, 0x48, 0x89, 0x44, 0x24, 0x08, 0x48,
            0x8b, 0x5c, 0x24, 0x08, 0xeb, 0xea,
        ];
        let shared = Shared {
            stack: true,
            ..registers(RAX | RBX)
        };
        assert_eq!(of(&code), shared);
    }

    #[test]
    fn arm64_shares_what_it_loads_for_an_exclusive_store() {
        let of = |code: &[u32]| {
            let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
            within(Arch::Aarch64, Within::Loops, &bytes)
        };
        // L: ldxr x1, [x0]; add x2, x1, #1; stxr w3, x2, [x0]; cbnz w3, L; add x4, x4, #1; b L
        let exclusive = [
            0xc85f_7c01_u32,
            0x9100_0422,
            0xc803_7c02,
            0x35ff_ffa3,
            0x9100_0484,
            0x17ff_fffb,
        ];
        assert_eq!(of(&exclusive).registers & 0b1_0110, 0b0110);
        // L: ldadd x5, x1, [x0]; add x4, x4, #1; b L
        let add = [0xf825_0001_u32, 0x9100_0484, 0x17ff_fffe];
        assert_eq!(of(&add), registers(0b10));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_answered(code in proptest::collection::vec(proptest::num::u8::ANY, 0..300), ip in 0..300_u64) {
            for arch in [Arch::X86_64, Arch::Aarch64] {
                for within in [Within::Loops, Within::LoopsOrFunction] {
                    let _ = shared_values(arch, &code, 0x1000, 0x1000 + ip, within, &mut |_| None);
                }
            }
        }
    }
}
