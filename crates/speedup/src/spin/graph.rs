//! Control flow between the instructions of a function, and the loops around one of them.

use super::body::INSNS_MAX;
use super::insn::{Effect, Flow, Outline, bit};
use super::{Arch, Code, aarch64, x86_64};

/// Code farther away than this from the instruction in question is not looked
/// at: no spin loop is so long, and enormous functions stay cheap.
const REACH_BYTES: u64 = 2 << 10;
/// Pieces of the same function elsewhere (`.cold` sections) that are looked at.
const PIECES_MAX: usize = 4;
/// Bound of the work on code with hundreds of nested loops.
const STEPS_MAX: usize = 1 << 16;

/// Where a function sets up its frame pointer, if it has one.
const HEAD_BYTES: usize = 64;

/// Instructions in the order of their addresses, and the edges between them.
pub(super) struct Graph<'a> {
    arch: Arch,
    /// The code in question, whose start may be a function's.
    code: (u64, &'a [u8]),
    pieces: Vec<Code>,
    /// The function has a frame pointer.
    frame: bool,
    pub(super) insns: Vec<Outline>,
    successors: Vec<[Option<u32>; 2]>,
    /// Predecessors of all instructions, those of instruction i at
    /// `predecessor_start[i]..predecessor_start[i + 1]`.
    predecessors: Vec<u32>,
    predecessor_start: Vec<u32>,
    /// Index of the instruction in question.
    pub(super) focus: usize,
}

/// How far [`Graph::loops`] has come.
struct Nest {
    /// Number of loops around the focus that an instruction is known to be in.
    depth: Vec<u32>,
    is_header: Vec<bool>,
    /// The last depth at which the focus was found to lead to an instruction.
    forward: Vec<u32>,
    steps: usize,
}

/// A loop around the instruction in question.
pub(super) struct Loop {
    /// Indices of its instructions, rising.
    pub(super) members: Vec<u32>,
    /// Those of its instructions where it is entered.
    pub(super) headers: Vec<u32>,
}

impl<'a> Graph<'a> {
    /// Decodes the code around `ip`; `None` if `ip` is outside of it.
    ///
    /// `ip` is taken for the start of an instruction, even if decoding from
    /// the start of the code passes over it. `pieces` finds code that jumps lead to.
    pub(super) fn around(
        arch: Arch,
        code: &'a [u8],
        start: u64,
        ip: u64,
        pieces: &mut dyn FnMut(u64) -> Option<Code>,
    ) -> Option<Graph<'a>> {
        let offset = ip.checked_sub(start)?;
        if offset >= code.len() as u64 || arch == Arch::Aarch64 && !offset.is_multiple_of(4) {
            return None;
        }
        let from = match offset.saturating_sub(REACH_BYTES) {
            0 => 0,
            far => far & !3,
        };
        let to = (offset + REACH_BYTES).min(code.len() as u64);
        let slice = |from: u64, to: u64| &code[from as usize..to as usize];

        let mut insns = outlines(arch, slice(from, offset), start.wrapping_add(from));
        insns.extend(outlines(arch, slice(offset, to), ip));

        let lies_in = |address: u64, start: u64, len: usize| {
            address
                .checked_sub(start)
                .is_some_and(|offset| offset < len as u64)
        };
        let mut extra: Vec<Code> = Vec::new();
        let outside: Vec<u64> = insns
            .iter()
            .filter_map(|insn| match insn.flow {
                Flow::Branch(target) | Flow::Jump(target) => Some(target),
                _ => None,
            })
            .filter(|&target| !lies_in(target, start, code.len()))
            .collect();
        for target in outside {
            if extra.len() >= PIECES_MAX {
                break;
            }
            if extra
                .iter()
                .any(|piece| lies_in(target, piece.start, piece.bytes.len()))
            {
                continue;
            }
            let Some(mut piece) = pieces(target) else {
                continue;
            };
            piece.bytes.truncate(REACH_BYTES as usize);
            let len = piece.bytes.len();
            let overlaps = |other: u64, other_len: usize| {
                lies_in(piece.start, other, other_len) || lies_in(other, piece.start, len)
            };
            if lies_in(target, piece.start, len)
                && !overlaps(start, code.len())
                && !extra
                    .iter()
                    .any(|other| overlaps(other.start, other.bytes.len()))
            {
                insns.extend(outlines(arch, &piece.bytes, piece.start));
                extra.push(piece);
            }
        }
        let sets_up_frame = match arch {
            Arch::X86_64 => x86_64::sets_up_frame,
            Arch::Aarch64 => aarch64::sets_up_frame,
        };
        let frame = sets_up_frame(slice(from, offset))
            || sets_up_frame(&code[..code.len().min(HEAD_BYTES)])
            || extra
                .iter()
                .any(|piece| sets_up_frame(&piece.bytes[..piece.bytes.len().min(HEAD_BYTES)]));

        if !extra.is_empty() {
            insns.sort_by_key(|insn| insn.address);
        }
        let focus = insns.binary_search_by_key(&ip, |insn| insn.address).ok()?;
        let mut graph = Graph {
            arch,
            code: (start, code),
            pieces: extra,
            frame,
            insns,
            successors: Vec::new(),
            predecessors: Vec::new(),
            predecessor_start: Vec::new(),
            focus,
        };
        graph.follow_registers();
        graph.connect();
        Some(graph)
    }

    /// Compilers load the address of a function before a loop that calls it: such calls are through the pointer at a fixed address that was
    /// loaded. It is known where the code loads nothing else there.
    fn follow_registers(&mut self) {
        if self.arch != Arch::X86_64 {
            return;
        }
        let mut pointers: Vec<(u32, Option<u64>)> = Vec::new();
        for call in 0..self.insns.len() {
            if self.insns[call].flow != Flow::Call(None) {
                continue;
            }
            let bytes = self.bytes_from(self.insns[call].address);
            let Some(register) = x86_64::called_register(bytes) else {
                continue;
            };
            let known = pointers.iter().find(|(of, _)| *of == register);
            let pointer = match known {
                Some((_, pointer)) => *pointer,
                None => {
                    let pointer = self.only_pointer_in(register);
                    pointers.push((register, pointer));
                    pointer
                }
            };
            self.insns[call].flow = Flow::Call(pointer);
        }
    }

    /// The fixed address from which the only value of `register` is loaded.
    fn only_pointer_in(&self, register: u32) -> Option<u64> {
        let mut only = None;
        for (index, insn) in self.insns.iter().enumerate() {
            if self.effect(index as u32).writes & bit(register) == 0 {
                continue;
            }
            match x86_64::loaded(self.bytes_from(insn.address), insn.address) {
                x86_64::Loaded::From(pointer) if only.is_none_or(|only| only == pointer) => {
                    only = Some(pointer);
                }
                x86_64::Loaded::Restored => {}
                x86_64::Loaded::From(_) | x86_64::Loaded::Other => return None,
            }
        }
        only
    }

    fn connect(&mut self) {
        let insns = &self.insns;
        let find = |address: u64| {
            insns
                .binary_search_by_key(&address, |insn| insn.address)
                .ok()
                .map(|index| index as u32)
        };
        self.successors = insns
            .iter()
            .enumerate()
            .map(|(index, insn)| {
                let next = || {
                    let next = insns.get(index + 1)?;
                    (next.address == insn.next()).then_some(index as u32 + 1)
                };
                match insn.flow {
                    Flow::Next | Flow::Call(_) => [next(), None],
                    Flow::Branch(target) => [next(), find(target)],
                    Flow::Jump(target) => [None, find(target)],
                    Flow::Indirect | Flow::Return | Flow::Trap => [None, None],
                }
            })
            .collect();

        let edges = || {
            let from_to = |(from, to): (usize, &[Option<u32>; 2])| (from as u32, *to);
            self.successors.iter().enumerate().map(from_to)
        };
        let mut start = vec![0u32; insns.len() + 1];
        for to in edges().flat_map(|(_, to)| to).flatten() {
            start[to as usize + 1] += 1;
        }
        for index in 1..start.len() {
            start[index] += start[index - 1];
        }
        let mut fill = start.clone();
        let mut predecessors = vec![0; fill[insns.len()] as usize];
        for (from, to) in edges() {
            for to in to.into_iter().flatten() {
                predecessors[fill[to as usize] as usize] = from;
                fill[to as usize] += 1;
            }
        }
        self.predecessors = predecessors;
        self.predecessor_start = start;
    }

    /// Machine code from an instruction on.
    fn bytes_from(&self, address: u64) -> &[u8] {
        let pieces = self
            .pieces
            .iter()
            .map(|piece| (piece.start, &piece.bytes[..]));
        std::iter::once(self.code)
            .chain(pieces)
            .find_map(|(start, bytes)| {
                bytes.get(usize::try_from(address.checked_sub(start)?).ok()?..)
            })
            .unwrap_or(&[])
    }

    /// Whether an instruction starts at this address.
    pub(super) fn contains(&self, address: u64) -> bool {
        self.insns
            .binary_search_by_key(&address, |insn| insn.address)
            .is_ok()
    }

    /// What an instruction does.
    pub(super) fn effect(&self, index: u32) -> Effect {
        let address = self.insns[index as usize].address;
        let bytes = self.bytes_from(address);
        let bytes = &bytes[..bytes.len().min(16)];
        match self.arch {
            Arch::X86_64 => x86_64::effect(bytes, address, self.frame),
            Arch::Aarch64 => aarch64::effect(bytes, address, self.frame),
        }
    }

    /// Next instruction (if control can get there), then branch target.
    pub(super) fn successors(&self, index: u32) -> [Option<u32>; 2] {
        self.successors[index as usize]
    }

    pub(super) fn predecessors(&self, index: u32) -> &[u32] {
        let [from, to] = [0, 1].map(|next| self.predecessor_start[index as usize + next] as usize);
        &self.predecessors[from..to]
    }

    /// All loops around the focus, innermost first.
    ///
    /// A loop is a strongly connected component; taking away the edges into
    /// its headers (the instructions where it is entered from elsewhere) leaves
    /// the loops nested in it (Steensgaard's loop nesting; Ramalingam, *On
    /// loops, dominators, and dominance frontiers*, TOPLAS 2002).
    pub(super) fn loops(&self) -> Vec<Loop> {
        let mut loops = Vec::new();
        if !self.returns_soon() {
            return loops;
        }
        let mut nest = Nest {
            depth: vec![0; self.insns.len()],
            is_header: vec![false; self.insns.len()],
            forward: vec![0; self.insns.len()],
            steps: 0,
        };
        for depth in 1.. {
            let members = self.component(&mut nest, depth);
            if members.is_empty() || nest.steps > STEPS_MAX {
                break;
            }
            let mut headers: Vec<u32> = members
                .iter()
                .copied()
                .filter(|&member| {
                    self.predecessors(member)
                        .iter()
                        .any(|&from| nest.depth[from as usize] < depth && !self.is_padding(from))
                })
                .collect();
            if headers.is_empty() {
                headers.push(members[0]);
            }
            for &header in &headers {
                nest.is_header[header as usize] = true;
            }
            loops.push(Loop { members, headers });
        }
        loops.reverse();
        loops
    }

    /// Whether some path comes back to the focus within as many steps as a
    /// small loop has instructions. Most code does not, which is quickly seen.
    fn returns_soon(&self) -> bool {
        let focus = self.focus as u32;
        let mut seen = vec![false; self.insns.len()];
        let mut front = vec![focus];
        let mut next = Vec::new();
        for _ in 0..INSNS_MAX {
            for from in front.drain(..) {
                for to in self.successors(from).into_iter().flatten() {
                    if to == focus {
                        return true;
                    }
                    if !std::mem::replace(&mut seen[to as usize], true) {
                        next.push(to);
                    }
                }
            }
            std::mem::swap(&mut front, &mut next);
        }
        false
    }

    /// The strongly connected component of the focus within the loop of depth
    /// `depth - 1` without edges into headers; empty if it is in no cycle.
    /// Its members get the depth `depth`.
    fn component(&self, nest: &mut Nest, depth: u32) -> Vec<u32> {
        let focus = self.focus as u32;
        let mut work = vec![focus];
        let mut returns = false;
        while let Some(from) = work.pop() {
            nest.steps += 1;
            for to in self.successors(from).into_iter().flatten() {
                let at = to as usize;
                if nest.depth[at] + 1 >= depth && !nest.is_header[at] {
                    returns |= to == focus;
                    if nest.forward[at] != depth {
                        nest.forward[at] = depth;
                        work.push(to);
                    }
                }
            }
        }
        if !returns {
            return Vec::new();
        }
        let mut members = vec![focus];
        nest.depth[self.focus] = depth;
        work.push(focus);
        while let Some(to) = work.pop() {
            nest.steps += 1;
            if nest.is_header[to as usize] {
                continue;
            }
            for &from in self.predecessors(to) {
                let at = from as usize;
                if nest.forward[at] == depth && nest.depth[at] != depth {
                    nest.depth[at] = depth;
                    members.push(from);
                    work.push(from);
                }
            }
        }
        members.sort_unstable();
        members
    }

    /// Whether this is a no-operation that nothing leads to.
    fn is_padding(&self, mut index: u32) -> bool {
        while self.insns[index as usize].nop {
            match self.predecessors(index) {
                [] => return true,
                &[before] if before < index => index = before,
                _ => return false,
            }
        }
        false
    }

    /// Instructions of the straight-line code around the focus: control passes through all of them or none.
    pub(super) fn straight_line(&self) -> std::ops::RangeInclusive<usize> {
        let continues = |from: usize| {
            self.successors[from] == [Some(from as u32 + 1), None]
                && self.insns[from].flow == Flow::Next
                && self.predecessors(from as u32 + 1) == [from as u32]
        };
        let mut first = self.focus;
        while first > 0 && continues(first - 1) {
            first -= 1;
        }
        let mut last = self.focus;
        while last + 1 < self.insns.len() && continues(last) {
            last += 1;
        }
        first..=last
    }
}

pub(super) fn outlines(arch: Arch, bytes: &[u8], address: u64) -> Vec<Outline> {
    match arch {
        Arch::X86_64 => x86_64::outlines(bytes, address).collect(),
        Arch::Aarch64 => aarch64::outlines(bytes, address).collect(),
    }
}
