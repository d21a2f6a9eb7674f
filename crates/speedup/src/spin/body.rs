//! What a loop does: the flow of data through its instructions.
//!
//! Instructions of a loop are numbered 0..64 in the order of their addresses,
//! so that sets of them are `u64` masks. An instruction *depends* on those
//! whose results it may use; one that depends on itself is a *recurrence*:
//! something that changes from one pass to the next. Everything else is a
//! function of what was there before the loop and of what was loaded in this pass.

use super::graph::{Graph, Loop};
use super::insn::{Access, Effect, FLAGS, Flow, Kind, Regs, Relax, Slot, numbers};

/// Loops with more instructions than this are not examined.
pub(super) const INSNS_MAX: usize = 64;

/// A loop of at most [`INSNS_MAX`] instructions.
pub(super) struct Body {
    effects: Vec<Effect>,
    successors: Vec<u64>,
    predecessors: Vec<u64>,
    /// Conditional branches.
    branches: u64,
    /// Branches and jumps that can leave the loop.
    exits: u64,
    relax_wait: u64,
    relax_maybe: u64,
    /// Instructions where the loop is entered.
    headers: u64,
    /// The instruction in question.
    focus: usize,
    /// For each register, the instructions that write it.
    writers: Vec<u64>,
    /// The stack slot that an instruction accesses, as an index into `slot_writers`.
    slots: Vec<Option<SlotUse>>,
    slot_writers: Vec<u64>,
}

#[derive(Clone, Copy)]
struct SlotUse {
    index: usize,
    reads: bool,
    /// Writes all of it, so that no earlier value remains.
    overwrites: bool,
}

/// How much a loop may do besides waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Allow {
    /// Nothing at all changes from one pass to the next.
    Nothing,
    /// Attempts are counted.
    Counters,
    /// Anything in registers, and any atomic operation at a constant address.
    Attempts,
}

/// The dependences among some of the instructions.
struct Dependences {
    /// The instructions looked at.
    within: u64,
    /// Transitive: all instructions that an instruction depends on.
    on: Vec<u64>,
    recurrences: u64,
}

impl Dependences {
    /// `mask` and everything that it depends on.
    fn closure(&self, mask: u64) -> u64 {
        indices(mask).fold(mask, |all, index| all | self.on[index])
    }
}

/// Which of `writers` come before `index` with none of `kills` in between.
fn reaching(predecessors: &[u64], index: usize, writers: u64, kills: u64, within: u64) -> u64 {
    if writers == 0 {
        return 0;
    }
    let mut seen = 0;
    let mut work = predecessors[index] & within;
    while work != 0 {
        let from = work.trailing_zeros() as usize;
        seen |= 1 << from;
        if kills & (1 << from) == 0 {
            work |= predecessors[from];
        }
        work &= within & !seen;
    }
    seen & writers
}

fn indices(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let index = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            index
        })
    })
}

impl Body {
    /// `None` if the loop is too large. `effects` are those of the members.
    pub(super) fn new(graph: &Graph, around: &Loop, effects: Vec<Effect>) -> Option<Body> {
        let members = &around.members;
        if members.len() > INSNS_MAX || members.len() != effects.len() {
            return None;
        }
        let find = |index: u32| members.binary_search(&index).ok();
        let mut body = Body {
            successors: vec![0; members.len()],
            predecessors: Vec::new(),
            branches: 0,
            exits: 0,
            relax_wait: 0,
            relax_maybe: 0,
            headers: around
                .headers
                .iter()
                .filter_map(|&h| find(h))
                .map(|h| 1 << h)
                .sum(),
            focus: find(graph.focus as u32)?,
            writers: vec![0; 128],
            slots: Vec::new(),
            slot_writers: Vec::new(),
            effects,
        };
        for (index, effect) in body.effects.iter().enumerate() {
            for number in numbers(effect.writes) {
                body.writers[number as usize] |= 1 << index;
            }
        }
        body.follow_frame_addresses();
        body.name_slots();
        for (index, &member) in members.iter().enumerate() {
            let insn = &graph.insns[member as usize];
            let mask = 1u64 << index;
            match insn.relax {
                Relax::Wait => body.relax_wait |= mask,
                Relax::Maybe => body.relax_maybe |= mask,
                Relax::No if body.effects[index].waits => body.relax_wait |= mask,
                Relax::No => {}
            }
            let is_branch = matches!(insn.flow, Flow::Branch(_));
            if is_branch {
                body.branches |= mask;
            }
            for successor in graph.successors(member) {
                if let Some(to) = successor.and_then(find) {
                    body.successors[index] |= 1 << to;
                } else if is_branch {
                    // Also one that leads out of the known code.
                    body.exits |= mask;
                }
            }
        }
        body.connect();
        body.cut_store_retries(graph, members);
        Some(body)
    }

    fn connect(&mut self) {
        self.predecessors = vec![0; self.successors.len()];
        for (from, &to) in self.successors.iter().enumerate() {
            for to in indices(to) {
                self.predecessors[to] |= 1 << from;
            }
        }
    }

    /// Unoptimised code accesses its own variables through their address as well.
    fn follow_frame_addresses(&mut self) {
        for index in 0..self.effects.len() {
            let Some(Access {
                address,
                offset: Some((distance, bytes)),
                slot: None,
                ..
            }) = self.effects[index].access
            else {
                continue;
            };
            let mut pointers = numbers(address).map(|reg| self.writers[reg as usize]);
            let (Some(writer), None) = (pointers.next(), pointers.next()) else {
                continue;
            };
            if writer.count_ones() != 1 {
                continue;
            }
            let from = &self.effects[writer.trailing_zeros() as usize];
            if let (Some((base, start)), Some(access)) =
                (from.frame_address, self.effects[index].access.as_mut())
            {
                access.address = 0;
                access.slot = Some(Slot {
                    base,
                    displacement: start.saturating_add(distance),
                    bytes,
                });
            }
        }
    }

    /// Gives overlapping stack slots one index.
    fn name_slots(&mut self) {
        let slot_of = |effect: &Effect| match effect.access {
            // An atomic operation on the stack is on something that others know.
            Some(Access {
                kind,
                slot: Some(slot),
                ..
            }) if !kind.is_atomic() => Some((slot, kind)),
            _ => None,
        };
        let mut slots: Vec<Slot> = self
            .effects
            .iter()
            .filter_map(slot_of)
            .map(|(s, _)| s)
            .collect();
        slots.sort_by_key(|slot| (slot.base, slot.displacement));
        slots.dedup_by(|next, slot| {
            let overlap = slot.base == next.base && next.displacement < slot.end();
            if overlap {
                let end = slot.end().max(next.end());
                slot.bytes =
                    u32::try_from(end.saturating_sub(slot.displacement)).unwrap_or(u32::MAX);
            }
            overlap
        });
        self.slot_writers = vec![0; slots.len()];
        self.slots = self
            .effects
            .iter()
            .enumerate()
            .map(|(insn, effect)| {
                let (slot, kind) = slot_of(effect)?;
                let index = slots.iter().position(|whole| {
                    whole.base == slot.base
                        && whole.displacement <= slot.displacement
                        && slot.displacement < whole.end()
                })?;
                let writes = kind != Kind::Load;
                if writes {
                    self.slot_writers[index] |= 1 << insn;
                }
                Some(SlotUse {
                    index,
                    reads: kind != Kind::Store,
                    overwrites: writes && slot.bytes >= slots[index].bytes,
                })
            })
            .collect();
    }

    /// Takes away the branches that repeat a failed exclusive store: they wait
    /// for nothing but the store to succeed.
    fn cut_store_retries(&mut self, graph: &Graph, members: &[u32]) {
        let mut cut = false;
        for index in indices(self.branches) {
            let effect = self.effects[index];
            let Some(taken_if_nonzero) = effect.taken_if_nonzero else {
                continue;
            };
            let all = self.all();
            let sources = numbers(effect.reads).fold(0, |mask, reg| {
                mask | self.reaching_register(index, reg, all)
            });
            if sources == 0 || indices(sources).any(|from| !self.effects[from].store_status) {
                continue;
            }
            // Status 0 is success.
            let [next, target] = graph.successors(members[index]);
            let failure = if taken_if_nonzero { target } else { next };
            if let Some(to) = failure.and_then(|to| members.binary_search(&to).ok()) {
                self.successors[index] &= !(1 << to);
                self.branches &= !(1 << index);
                cut = true;
            }
        }
        if cut {
            self.connect();
        }
    }

    fn all(&self) -> u64 {
        match self.effects.len() {
            0 => 0,
            len => u64::MAX >> (64 - len),
        }
    }

    /// Everything that control can reach from `start` within `within`, by at least one edge.
    fn reach(&self, edges: &[u64], start: usize, within: u64) -> u64 {
        let mut seen = 0;
        let mut work = edges[start] & within;
        while work != 0 {
            let index = work.trailing_zeros() as usize;
            seen |= 1 << index;
            work = (work | edges[index]) & within & !seen;
        }
        seen
    }

    /// The strongly connected component of `index` within `within`, 0 if it is in no cycle.
    fn component(&self, index: usize, within: u64) -> u64 {
        let both = self.reach(&self.successors, index, within)
            & self.reach(&self.predecessors, index, within);
        if both & (1 << index) != 0 { both } else { 0 }
    }

    /// The nontrivial strongly connected components within `within`.
    fn components(&self, within: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let mut rest = within;
        while rest != 0 {
            let index = rest.trailing_zeros() as usize;
            let component = self.component(index, within);
            if component != 0 {
                found.push(component);
            }
            rest &= !(component | 1 << index);
        }
        found
    }

    /// The same instructions without the edges into headers: what is left in cycles is nested loops.
    fn nested(&self, within: u64) -> u64 {
        let entered = within & !self.headers;
        // A header is in no cycle without the edges into it.
        self.components(entered)
            .into_iter()
            .fold(0, |all, component| all | component)
    }

    /// Instructions that write register `reg` and whose value may be there when `index` runs.
    fn reaching_register(&self, index: usize, reg: u32, within: u64) -> u64 {
        let writers = self.writers[reg as usize] & within;
        reaching(&self.predecessors, index, writers, writers, within)
    }

    /// For each register and slot that `index` uses, who may have written it:
    /// (it is the flags, writers).
    fn sources(&self, index: usize, within: u64) -> impl Iterator<Item = (bool, u64)> {
        self.sources_along(&self.predecessors, index, within)
    }

    fn sources_along<'a>(
        &'a self,
        predecessors: &'a [u64],
        index: usize,
        within: u64,
    ) -> impl Iterator<Item = (bool, u64)> + 'a {
        let registers = numbers(self.effects[index].reads).map(move |reg| {
            let writers = self.writers[reg as usize] & within;
            (
                reg == FLAGS,
                reaching(predecessors, index, writers, writers, within),
            )
        });
        let slot = self.slots[index]
            .filter(|slot| slot.reads)
            .map(move |slot| {
                let writers = self.slot_writers[slot.index] & within;
                let kills = self.select(writers, |writer, _| {
                    self.slots[writer].is_some_and(|slot| slot.overwrites)
                });
                (false, reaching(predecessors, index, writers, kills, within))
            });
        registers.chain(slot)
    }

    fn dependences(&self, within: u64) -> Dependences {
        let mut on: Vec<u64> = (0..self.effects.len())
            .map(|index| {
                if within & (1 << index) == 0 {
                    return 0;
                }
                self.sources(index, within)
                    .fold(0, |all, (_, from)| all | from)
            })
            .collect();
        for via in indices(within) {
            let further = on[via];
            for index in indices(within) {
                if on[index] & (1 << via) != 0 {
                    on[index] |= further;
                }
            }
        }
        let circle = |index: usize| {
            self.select(on[index] & within, |other, _| on[other] & (1 << index) != 0)
        };
        // A value that is only moved around, e.g. to where a call expects it, stays
        // the same; two that change places do not.
        let moves = self.select(within, |index, effect| {
            effect.moves && (effect.access.is_none() || self.slots[index].is_some())
        });
        let recurrences = self.select(within, |index, _| {
            let circle = circle(index);
            circle & !moves != 0 || circle != 0 && (self.carried(within) & circle).count_ones() > 1
        });
        Dependences {
            within,
            on,
            recurrences,
        }
    }

    fn select(&self, within: u64, test: impl Fn(usize, &Effect) -> bool) -> u64 {
        indices(within)
            .filter(|&index| test(index, &self.effects[index]))
            .fold(0, |mask, index| mask | 1 << index)
    }

    /// Loads of what others may have written.
    fn loads(&self, within: u64) -> u64 {
        self.select(within, |index, effect| {
            effect.access.is_some_and(|access| access.kind.loads()) && self.slots[index].is_none()
        })
    }

    /// Loads from the own stack of something that this loop never writes.
    /// Others may: a flag whose address was given away.
    fn stack_loads(&self, within: u64) -> u64 {
        self.select(within, |index, _| {
            self.slots[index]
                .is_some_and(|slot| slot.reads && self.slot_writers[slot.index] & within == 0)
        })
    }

    fn ticks(&self, within: u64) -> u64 {
        self.select(within, |_, effect| effect.tick)
    }

    /// Whether the instructions of `d.within` make no progress.
    fn is_idle(&self, d: &Dependences, allow: Allow) -> bool {
        if allow == Allow::Nothing && (d.recurrences != 0 || self.carries(d.within)) {
            return false;
        }
        let moving = d.recurrences | self.ticks(d.within);
        let loads = self.loads(d.within);
        // A compare-exchange made of exclusive accesses that expects what the
        // pass before has loaded is the retry of an update.
        let stores = self.select(d.within, |_, effect| effect.store_status);
        if allow != Allow::Attempts && stores != 0 && d.closure(self.carried(d.within)) & loads != 0
        {
            return false;
        }
        let stays = |index: usize, regs: Regs, besides: u64| {
            numbers(regs).all(|reg| {
                d.closure(self.reaching_register(index, reg, d.within)) & (moving | besides) == 0
            })
        };
        indices(d.within).all(|index| {
            let effect = &self.effects[index];
            if effect.opaque {
                return false;
            }
            if let Some(Access {
                kind,
                address,
                slot,
                operands,
                ..
            }) = effect.access
            {
                // The stack frame must stay where it is: else a slot is not one place.
                if slot.is_some_and(|slot| self.writers[slot.base as usize] & d.within != 0) {
                    return false;
                }
                if self.slots[index].is_none() {
                    let harmless = match kind {
                        Kind::Load => true,
                        Kind::Store | Kind::Update => false,
                        Kind::Accumulate => allow == Allow::Attempts,
                        Kind::Idempotent | Kind::StoreExclusive => {
                            allow == Allow::Attempts || stays(index, operands, loads)
                        }
                    };
                    if !harmless || !stays(index, address, 0) {
                        return false;
                    }
                }
            }
            allow == Allow::Attempts
                || d.recurrences & (1 << index) == 0
                || self.is_counter(d, index, loads | self.ticks(d.within))
        })
    }

    /// Whether any value goes from one pass to the next.
    fn carries(&self, within: u64) -> bool {
        self.carried(within) != 0
    }

    /// The instructions whose results are used in the next pass.
    fn carried(&self, within: u64) -> u64 {
        let mut same_pass = self.predecessors.clone();
        for header in indices(self.headers) {
            same_pass[header] = 0;
        }
        indices(within).fold(0, |carried, index| {
            let all = self.sources(index, within);
            all.zip(self.sources_along(&same_pass, index, within))
                .fold(carried, |carried, ((_, all), (_, same))| {
                    carried | all & !same
                })
        })
    }

    /// Whether a recurrence goes through `index` only as a counter: its next value
    /// depends on nothing but itself and on what stays.
    fn is_counter(&self, d: &Dependences, index: usize, live: u64) -> bool {
        let circle = self.select(d.on[index] & d.within, |other, _| {
            d.on[other] & (1 << index) != 0
        });
        let mut carried = 0;
        self.effects[index].counts
            && live & (1 << index) == 0
            && self.sources(index, d.within).all(|(is_flags, from)| {
                if from & circle != 0 && !is_flags {
                    carried += 1;
                }
                let others = d.closure(from & !circle);
                others & live == 0 && (from & circle != 0 || others & d.recurrences == 0)
            })
            // `min(2 * n, limit)` selects one of two values of one counter.
            && carried <= 1 + usize::from(self.effects[index].selects)
    }

    /// Whether an exit depends on what is loaded and on nothing that changes by itself.
    fn has_watching_exit(&self, d: &Dependences) -> bool {
        let mut watched = self.loads(d.within);
        // Unoptimised and spilled variables are reloaded from the stack in every
        // pass. That others write them is believed only if nothing else can end the loop: no time is read either,
        // which may be told on the stack.
        let stays = d.recurrences == 0 && self.ticks(d.within) == 0 && !self.carries(d.within);
        if watched == 0 && stays {
            watched = self.stack_loads(d.within);
        }
        let leaves = |index: usize| {
            self.exits & (1 << index) != 0 || self.successors[index] & !d.within != 0
        };
        watched != 0
            && indices(self.branches & d.within)
                .any(|index| leaves(index) && self.watches(d, watched, index, 0))
    }

    /// Whether the branch or compare `index` depends on `watched`.
    fn watches(&self, d: &Dependences, watched: u64, index: usize, depth: usize) -> bool {
        let (flags, rest) =
            self.sources(index, d.within)
                .fold((0, 0), |(flags, rest), (is_flags, from)| {
                    if is_flags {
                        (flags | from, rest)
                    } else {
                        (flags, rest | from)
                    }
                });
        let conjunction = |&from: &usize| self.effects[from].conjunction;
        if depth < 8 && (conjunction(&index) || indices(flags).any(|from| conjunction(&from))) {
            // One of the conditions is enough: `!flag && n < limit`.
            return conjunction(&index) && self.is_loaded(d, watched, index, rest)
                || indices(flags).any(|from| self.watches(d, watched, from, depth + 1));
        }
        self.is_loaded(d, watched, index, flags | rest)
    }

    /// Whether the values `from`, which `index` uses, come from `watched` and
    /// from what stays, nothing else.
    fn is_loaded(&self, d: &Dependences, watched: u64, index: usize, from: u64) -> bool {
        let mut from = d.closure(from);
        // Where values meet, which one it is depends on the branches before.
        let meets = indices(from | 1 << index).any(|user| {
            self.sources(user, d.within)
                .any(|(_, from)| from.count_ones() > 1)
        });
        if meets {
            let stays_within = |branch: &usize| {
                self.successors[*branch] & !d.within == 0 && self.exits & (1 << branch) == 0
            };
            from |= indices(self.branches & d.within)
                .filter(stays_within)
                .fold(0, |mask, branch| mask | d.on[branch]);
        }
        let status = self.select(d.within, |_, effect| effect.store_status);
        from & watched != 0 && from & (d.recurrences | self.ticks(d.within) | status) == 0
    }

    /// Whether the instruction in question is in a loop that waits explicitly:
    /// every pass relaxes, or does nothing but count attempts.
    pub(super) fn relaxes(&self) -> bool {
        let within = self.component(self.focus, self.all());
        // A clock is read behind an ISB; who only waits for the clock waits.
        let reads_clock = self.ticks(within) != 0 && self.loads(within) != 0;
        let maybe = if reads_clock { 0 } else { self.relax_maybe };
        let relax = (self.relax_wait | maybe) & within;
        if relax == 0 {
            return false;
        }
        // Around this loop without relaxing: a back-off of length zero. What a
        // nested loop does without relaxing must be a delay.
        let passes_idle = self.components(within & !relax).into_iter().all(|cycle| {
            let around = cycle & self.headers != 0;
            let allow = if around {
                Allow::Attempts
            } else {
                Allow::Counters
            };
            self.is_idle(&self.dependences(cycle), allow)
        });
        if !passes_idle {
            return false;
        }
        // A loop that contains a spin loop is one only if it does nothing else:
        // a worker waits for its turn, then works.
        relax & !self.nested(within) != 0
            || self.is_idle(&self.dependences(within), Allow::Attempts)
    }

    /// Whether the instruction in question is in a loop that polls memory without progress.
    pub(super) fn polls(&self) -> bool {
        let within = self.component(self.focus, self.all());
        if within == 0 {
            return false;
        }
        let polls = |within: u64, allow: Allow| {
            let d = self.dependences(within);
            self.is_idle(&d, allow) && self.has_watching_exit(&d)
        };
        if polls(within, Allow::Counters) {
            return true;
        }
        // One way around of several, on which nothing at all changes: once
        // taken, only others can end it.
        indices(self.headers & within).any(|header| {
            let without = within & !(1 << header);
            indices(self.predecessors[header] & within).any(|latch| {
                let mut cycle = 1 << latch | 1 << header;
                if latch != header {
                    cycle |= self.reach(&self.predecessors, latch, without);
                }
                cycle != within && cycle & (1 << self.focus) != 0 && polls(cycle, Allow::Nothing)
            })
        })
    }
}
