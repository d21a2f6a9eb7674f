//! Functions that a spin loop may call: unoptimised code reads a flag through
//! small functions.

use super::graph::Graph;
use super::insn::{Access, Effect, Flow, Kind, Outline, Regs, Relax, bit, numbers};
use super::{Arch, Code, Known, aarch64, x86_64};

/// Functions with more instructions than this are no accessors.
const INSNS_MAX: usize = 160;
/// An accessor has no more calls than this, those that panic included.
pub(super) const CALLS_MAX: usize = 6;
/// What panics has no more code than this before it goes elsewhere.
const DIVERGING_BYTES_MAX: usize = 512;
/// `atomic<bool>::load` calls `__atomic_base<bool>::load` calls `operator&`.
const DEPTH_MAX: usize = 4;

/// A function that does nothing but load, or set a flag, or relax, or read a clock.
#[derive(Clone, Copy, Default)]
pub(super) struct Callee {
    loads: bool,
    sets: bool,
    waits: bool,
    /// What it returns may be the time.
    tick: bool,
    /// Argument registers that it reads.
    arguments: Regs,
    /// Registers that have another value when it returns. Compilers rely on
    /// the others, whatever the calling convention allows to clobber.
    writes: Regs,
}

impl Callee {
    /// The function at `entry`, or `None` if it does more than that.
    pub(super) fn examine(
        arch: Arch,
        entry: u64,
        fetch: &mut dyn FnMut(u64) -> Option<Code>,
    ) -> Option<Callee> {
        Callee::at_depth(arch, entry, fetch, 0)
    }

    fn at_depth(
        arch: Arch,
        entry: u64,
        fetch: &mut dyn FnMut(u64) -> Option<Code>,
        depth: usize,
    ) -> Option<Callee> {
        let code = fetch(entry)?;
        if let Some(known) = code.known {
            return Some(Callee::known(arch, known));
        }
        // Every instruction has at most 15 bytes.
        if depth >= DEPTH_MAX || code.bytes.len() > 15 * INSNS_MAX {
            return None;
        }
        let graph = Graph::around(arch, &code.bytes, code.start, entry, &mut |_| None)?;
        if graph.insns.len() > INSNS_MAX {
            return None;
        }
        let mut callee = Callee::default();
        let clobbers = clobbers(arch);
        let calls = |insn: &&Outline| matches!(insn.flow, Flow::Call(_));
        if graph.insns.iter().filter(calls).count() > CALLS_MAX {
            return None;
        }
        let ends = |(index, insn): (usize, &Outline)| {
            let diverges =
                matches!(insn.flow, Flow::Call(Some(to)) if never_returns(arch, to, fetch));
            diverges.then_some(index as u32)
        };
        let diverging: Vec<u32> = graph.insns.iter().enumerate().filter_map(ends).collect();
        let lives = returning(&graph, &diverging);
        if !lives[graph.focus] {
            return None;
        }
        for (index, insn) in graph.insns.iter().enumerate() {
            if !lives[index] {
                continue;
            }
            let mut effect = graph.effect(index as u32);
            match insn.flow {
                Flow::Branch(target) | Flow::Jump(target) if graph.contains(target) => {
                    let backward = target <= insn.address;
                    if backward && !repeats_store(&graph, index, &effect) {
                        return None;
                    }
                }
                Flow::Branch(_) => return None,
                Flow::Call(target) => {
                    effect = Callee::at_depth(arch, target?, fetch, depth + 1)?.effect();
                }
                Flow::Jump(target) => {
                    effect = Callee::at_depth(arch, target, fetch, depth + 1)?.effect();
                }
                Flow::Indirect if !is_jump_table(&graph, index) => return None,
                _ => {}
            }
            if effect.opaque {
                return None;
            }
            if let Some(Access { kind, slot, .. }) = effect.access
                && (slot.is_none() || kind.is_atomic())
            {
                match kind {
                    Kind::Load => callee.loads = true,
                    Kind::Idempotent => {
                        callee.loads = true;
                        callee.sets = true;
                    }
                    Kind::StoreExclusive => callee.sets = true,
                    Kind::Store | Kind::Update | Kind::Accumulate => return None,
                }
            }
            callee.tick |= effect.tick;
            callee.waits |= effect.waits || insn.relax == Relax::Wait;
            callee.arguments |= effect.reads & arguments(arch) & !callee.writes;
            callee.writes |= effect.writes & clobbers;
        }
        Some(callee)
    }

    fn known(arch: Arch, known: Known) -> Callee {
        let lock = match arch {
            Arch::X86_64 => bit(7),
            Arch::Aarch64 => bit(0),
        };
        let plain = Callee {
            writes: clobbers(arch),
            ..Callee::default()
        };
        match known {
            Known::Clock => Callee {
                tick: true,
                ..plain
            },
            Known::TryLock => Callee {
                loads: true,
                sets: true,
                arguments: lock,
                ..plain
            },
            Known::Yield => plain,
        }
    }

    /// What a call of this function does.
    pub(super) fn effect(self) -> Effect {
        let kind = if self.sets {
            Kind::Idempotent
        } else {
            Kind::Load
        };
        Effect {
            reads: self.arguments,
            writes: self.writes,
            access: (self.loads || self.sets).then_some(Access {
                kind,
                address: self.arguments,
                slot: None,
                indexed: false,
                offset: None,
                operands: self.arguments,
            }),
            waits: self.waits,
            tick: self.tick,
            ..Effect::default()
        }
    }
}

/// Whether a function has no way back to its caller, as those that panic.
fn never_returns(arch: Arch, entry: u64, fetch: &mut dyn FnMut(u64) -> Option<Code>) -> bool {
    fetch(entry).is_some_and(|code| {
        code.bytes.len() <= DIVERGING_BYTES_MAX
            && Graph::around(arch, &code.bytes, code.start, entry, &mut |_| None)
                .is_some_and(|graph| !returning(&graph, &[])[graph.focus])
    })
}

/// The instructions that a call runs before it returns. The others lead to
/// panics; what those do is of no interest. `diverging` are calls that never return.
fn returning(graph: &Graph, diverging: &[u32]) -> Vec<bool> {
    let goes_on = |index: &u32| !diverging.contains(index);
    let leaves = |(index, insn): (usize, &Outline)| {
        let outside =
            matches!(insn.flow, Flow::Jump(_)) && graph.successors(index as u32) == [None; 2];
        (outside || matches!(insn.flow, Flow::Return | Flow::Indirect)).then_some(index as u32)
    };
    let ends = graph.insns.iter().enumerate().filter_map(leaves);
    let mut lives = spread(graph, ends.collect(), |index, work| {
        work.extend(graph.predecessors(index).iter().copied().filter(goes_on));
    });
    // Where a jump table leads is unknown.
    if graph.insns.iter().all(|insn| insn.flow != Flow::Indirect) {
        let reached = spread(graph, vec![graph.focus as u32], |index, work| {
            if goes_on(&index) {
                work.extend(graph.successors(index).into_iter().flatten());
            }
        });
        for (lives, reached) in lives.iter_mut().zip(reached) {
            *lives &= reached;
        }
    }
    lives
}

/// The instructions in `work` and, again and again, what `push` adds for one of them.
fn spread(graph: &Graph, mut work: Vec<u32>, push: impl Fn(u32, &mut Vec<u32>)) -> Vec<bool> {
    let mut found = vec![false; graph.insns.len()];
    while let Some(index) = work.pop() {
        if !std::mem::replace(&mut found[index as usize], true) {
            push(index, &mut work);
        }
    }
    found
}

/// Whether this branch repeats an exclusive store that failed.
fn repeats_store(graph: &Graph, index: usize, branch: &Effect) -> bool {
    branch.taken_if_nonzero.is_some()
        && (index.saturating_sub(3)..index).any(|before| {
            let effect = graph.effect(before as u32);
            effect.store_status && effect.writes & branch.reads != 0
        })
}

/// Whether an indirect jump goes where a table of the function says: an indexed load right before.
fn is_jump_table(graph: &Graph, index: usize) -> bool {
    (index.saturating_sub(4)..=index).any(|before| {
        let access = graph.effect(before as u32).access;
        access.is_some_and(|access| {
            access.kind == Kind::Load && access.indexed && numbers(access.address).next().is_some()
        })
    })
}

/// Registers that a call leaves undefined.
pub(super) fn clobbers(arch: Arch) -> Regs {
    match arch {
        Arch::X86_64 => x86_64::CALL_CLOBBERS,
        Arch::Aarch64 => aarch64::CALL_CLOBBERS,
    }
}

fn arguments(arch: Arch) -> Regs {
    match arch {
        Arch::X86_64 => x86_64::ARGUMENTS,
        Arch::Aarch64 => aarch64::ARGUMENTS,
    }
}
