//! Whether a piece of machine code is a spin loop.
//!
//! [`in_spin_loop`] judges an instruction by the loops around it, from machine
//! code alone: no symbols, no run. [`SpinDetector`] does so for samples and
//! remembers. An instruction spins if one of the loops around it, of at most
//! 64 instructions, innermost first, is a spin loop:
//!
//! * **It waits explicitly.** Every pass contains PAUSE (x86-64: also TPAUSE,
//!   UMWAIT, MWAITX) or YIELD, WFE (arm64: also ISB, unless the loop reads a
//!   clock and memory, as `clock_gettime` does), or does nothing but count attempts. What else the pass does
//!   does not matter, calls included: nobody who has work to do in a loop relaxes in
//!   every pass. But a loop that *contains* such a loop is one itself only if
//!   the rest stores nothing and calls nothing: it may be a worker that waits for its
//!   turn and then works. Back-off in nested loops is thereby found, and so are functions
//!   that are nothing but a PAUSE loop (Go's `runtime.procyield`).
//! * **It polls without progress.** An exit depends on nothing but a
//!   value loaded from memory; all addresses are the same in every pass, or
//!   loaded from addresses that are; nothing is stored except to the own stack frame
//!   and by atomic operations that do nothing new when repeated (exchange,
//!   compare-exchange, set or clear bits, with operands that do not change: test-and-set);
//!   nothing goes from one pass to the next except counters that only count.
//!   If nothing else changes, then nothing but another thread can end the loop.
//!
//! Straight-line code around PAUSE, WFE or YIELD spins without any visible loop as well: the
//! instruction takes up to 140 cycles, and its loop may be in a caller or too large.
//!
//! What this makes of borderline cases:
//!
//! * A compare-exchange loop that stores something computed from what it
//!   loaded (fetch-update) does not spin: it works, slowly, on a contended line.
//!   The reads between two attempts that lead to no attempt (a
//!   lock seen taken) do spin.
//! * A delay by RDTSC alone does not spin: no other thread can end it.
//!   Nor does a delay by a counter, unless it is the back-off inside a loop that polls.
//! * Scanning many flags in turn does not spin, unless every scan relaxes: it
//!   is a search.
//! * `while (!stop) n++` with `n` in a register spins. Machine code cannot tell it from a
//!   spin loop that counts its attempts.
//! * At run time a bounded spin that never waits long looks like any other.
//!
//! Loops that call are examined with [`in_spin_loop_with`], which asks for the code of callees:
//! unoptimised code reads its flag through small functions. Without the code, a
//! loop that calls does not poll, unless it calls one of the functions of libraries that are [`Known`] by
//! name: loops that wait for a flag or until a time, and those that try to take a lock until they have it.
//!
//! Not seen, so that their time counts as work: locks taken by a compare-exchange that
//! stores the loaded value with a bit set; the unoptimised compare-exchange of C++'s
//! `std::atomic`, which writes back through a pointer that it was given; unoptimised Rust atomics that take an ordering (the panics of
//! `atomic_load` are called through the GOT); loops that only call `sched_yield`; loops that call
//! through a register, unless it was loaded from a fixed address (x86-64), as compilers do before a loop.
//!
//! The load-compare criterion goes back to hardware that watches loads:
//! Tian, Nagarajan, Gupta and Tallam, *Dynamic recognition of synchronization operations
//! for improved data race detection* (ISSTA 2008), find spin loops as loads of one
//! address by one instruction with one value again and again; Li, Lebeck and Sorin,
//! *Spin detection hardware for improved management of multithreaded systems*
//! (IEEE TPDS 17(6), 2006) find them as passes without any change of machine state.
//! The second idea, applied to the code instead of its run, is the one here.
//! Eyerman, Du Bois and Eeckhout use the first for the spin component of their speedup stacks
//! (ISPASS 2012).
//!
//! A verdict takes a few microseconds in a small function and some tens in a large one, of
//! which 2 KiB before and after the instruction are looked at. So remember it.

mod aarch64;
mod body;
mod callee;
mod detector;
mod graph;
mod insn;
mod known;
mod shared;
mod x86_64;

pub use detector::{Place, SpinDetector};
pub use known::Known;
pub use shared::{Shared, Within, shared_values};

use body::Body;
use callee::{CALLS_MAX, Callee};
use graph::{Graph, Loop};
use insn::{Effect, Flow, Relax};

/// Instruction set of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Arch {
    /// x86 in 64-bit mode.
    X86_64,
    /// Arm in 64-bit mode, little endian.
    Aarch64,
}

impl Arch {
    /// The instruction set that this program runs on, where it is a known one.
    pub const fn native() -> Option<Arch> {
        if cfg!(target_arch = "x86_64") {
            Some(Arch::X86_64)
        } else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
            Some(Arch::Aarch64)
        } else {
            None
        }
    }
}

/// A call of a function by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Address of the instruction.
    pub at: u64,
    /// The function.
    pub target: u64,
    /// Where the code goes on after the call.
    pub next: u64,
}

/// The functions that code calls by their addresses. `bytes` begin with an instruction, which lies at `address`; any bytes are
/// valid input.
///
/// ```
/// use amdahl_speedup::spin::{Arch, Call, calls};
/// // call .+0x10; ret
/// let code = [0xe8, 0x0b, 0, 0, 0, 0xc3];
/// let call = Call { at: 0x1000, target: 0x1010, next: 0x1005 };
/// assert_eq!(calls(Arch::X86_64, &code, 0x1000), [call]);
/// ```
pub fn calls(arch: Arch, bytes: &[u8], address: u64) -> Vec<Call> {
    let outlines = graph::outlines(arch, bytes, address).into_iter();
    let calls = outlines.filter_map(|insn| match insn.flow {
        Flow::Call(Some(target)) => Some(Call {
            at: insn.address,
            target,
            next: insn.address.wrapping_add(insn.len.into()),
        }),
        _ => None,
    });
    calls.collect()
}

/// Functions whose code is asked for in one verdict.
const FETCHES_MAX: usize = 24;

/// Machine code at its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Address of the first byte; best the start of a function.
    pub start: u64,
    /// The instructions.
    pub bytes: Vec<u8>,
    /// What the function does, where its name tells. The code is not looked at then.
    pub known: Option<Known>,
}

/// Whether the instruction at `ip` is inside a spin loop.
///
/// `code` are the bytes from `code_start` on: the enclosing function if it is
/// known, else a window around `ip`. An `ip` outside of it is in no spin loop.
/// Any bytes are valid input.
///
/// ```
/// use amdahl_speedup::spin::{Arch, in_spin_loop};
/// // L: mov eax, [rdi]; test eax, eax; je L; ret
/// let code = [0x8b, 0x07, 0x85, 0xc0, 0x74, 0xfa, 0xc3];
/// assert!(in_spin_loop(Arch::X86_64, &code, 0x1000, 0x1002));
/// assert!(!in_spin_loop(Arch::X86_64, &code, 0x1000, 0x1006));
/// ```
pub fn in_spin_loop(arch: Arch, code: &[u8], code_start: u64, ip: u64) -> bool {
    in_spin_loop_with(arch, code, code_start, ip, &mut |_| None)
}

/// The same with a closure that gives the function at an address, for calls
/// and for jumps out of `code`. A call through a pointer at a fixed address, as the entries of a GOT are, asks for the
/// address of the pointer.
pub fn in_spin_loop_with(
    arch: Arch,
    code: &[u8],
    code_start: u64,
    ip: u64,
    fetch: &mut dyn FnMut(u64) -> Option<Code>,
) -> bool {
    let mut fetch = limited(fetch);
    let Some(graph) = Graph::around(arch, code, code_start, ip, &mut fetch) else {
        return false;
    };
    if graph
        .straight_line()
        .any(|index| graph.insns[index].relax == Relax::Wait)
    {
        return true;
    }
    graph.loops().iter().any(|around| {
        body(arch, &graph, around, &mut fetch).is_some_and(|body| body.relaxes() || body.polls())
    })
}

/// The same closure for the first [`FETCHES_MAX`] times.
fn limited(fetch: &mut dyn FnMut(u64) -> Option<Code>) -> impl FnMut(u64) -> Option<Code> {
    let mut fetches = 0;
    move |address| {
        fetches += 1;
        (fetches <= FETCHES_MAX).then(|| fetch(address)).flatten()
    }
}

/// A loop with the effects of its instructions, calls replaced by what the called functions do.
fn body(
    arch: Arch,
    graph: &Graph,
    around: &Loop,
    fetch: &mut dyn FnMut(u64) -> Option<Code>,
) -> Option<Body> {
    let members = &around.members;
    if members.len() > body::INSNS_MAX {
        return None;
    }
    let calls = |member: u32| match graph.insns[member as usize].flow {
        Flow::Call(target) => Some(target),
        _ => None,
    };
    let mut effects: Vec<Effect> = members.iter().map(|&member| graph.effect(member)).collect();
    // If the loop works anyway, or calls a lot, the callees need not be looked at.
    let called = members
        .iter()
        .filter(|member| calls(**member).is_some())
        .count();
    let itself = |(effect, &member): (&Effect, &u32)| calls(member).is_none() && effect.works();
    let works = called > CALLS_MAX || effects.iter().zip(members).any(itself);
    for (effect, &member) in effects.iter_mut().zip(members) {
        if let Some(target) = calls(member) {
            *effect = target
                .filter(|_| !works)
                .and_then(|target| Callee::examine(arch, target, fetch))
                .map_or(Effect::unknown(), |callee| callee.effect());
        }
    }
    Body::new(graph, around, effects)
}
