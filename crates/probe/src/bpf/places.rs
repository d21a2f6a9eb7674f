//! Code by the hash of its place, for views that need no more than one stack of each place.

use std::sync::Arc;

use amdahl_speedup::event::CallStack;
use rustc_hash::{FxHashMap, FxHashSet};

use super::drain::Part;
use super::stacks::{learn_maps, locate, look};
use super::wire::flag;
use crate::symbol::{CodePoint, Symbolizer};

/// Places whose stacks are kept, each process having its own, until [`Places::forget`] makes room.
const PLACES_MAX: usize = 1 << 20;
/// Different stacks that are kept, mostly those of many places.
const STACKS_MAX: usize = 1 << 17;

/// The stacks of places. Where several were taken, the one that leads farthest out.
#[derive(Default)]
pub struct Places {
    symbols: Symbolizer,
    stacks: FxHashMap<(u8, u32), Arc<[CodePoint]>>,
    known: FxHashSet<Arc<[CodePoint]>>,
    left_out: u64,
}

impl Places {
    /// Mappings of a process that was there before the recording.
    pub fn attach(&mut self, pid: u32) {
        let _ = self.symbols.maps_mut().snapshot(pid);
        self.symbols.touch(pid);
    }

    /// Takes from a part what can be learned only while its processes live. [`learn`](Self::learn) may then come at any
    /// later time. Returns the processes that were there before and are to be [attached](Self::attach).
    pub fn look(&mut self, part: &mut Part) -> Vec<u32> {
        look(&mut self.symbols, part)
    }

    /// Takes the stacks of a part that was looked at: each belongs to the slot with the same time and thread.
    pub fn learn(&mut self, part: &mut Part) {
        let places: FxHashMap<_, _> = part
            .slots
            .iter()
            .flatten()
            .filter(|slot| slot.flags & flag::STACK_TAKEN != 0)
            .map(|slot| ((slot.ts, slot.tid), (slot.kind, slot.place)))
            .collect();
        for raw in std::mem::take(&mut part.stacks) {
            let Some(&place) = places.get(&(raw.ts, raw.tid)) else {
                continue;
            };
            if self.stacks.len() >= PLACES_MAX && !self.stacks.contains_key(&place) {
                self.left_out += 1;
                continue;
            }
            let points = locate(&mut self.symbols, &raw);
            let longest = self.stacks.get(&place).map_or(0, |stack| stack.len());
            if longest >= points.len() {
                continue;
            }
            match self.kept(&points) {
                Some(stack) => {
                    self.stacks.insert(place, stack);
                }
                None => self.left_out += 1,
            }
        }
    }

    /// Stacks that there was no room for.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// If there is hardly room for more, forgets the stacks of places that are not `told` of. To be called when what a part
    /// tells of its places has been added up: stacks of places come with what happened there. Cost: linear in the places, where
    /// there are many.
    pub fn forget(&mut self, told: impl FnOnce() -> FxHashSet<(u8, u32)>) {
        let is_full = |used: usize, max: usize| used > max / 4 * 3;
        if is_full(self.stacks.len(), PLACES_MAX) || is_full(self.known.len(), STACKS_MAX) {
            let told = told();
            self.stacks.retain(|place, _| told.contains(place));
            // Those of places that had a shorter one before, too.
            self.known.retain(|stack| Arc::strong_count(stack) > 1);
        }
    }

    /// A stack as it is kept, once for all places that have it.
    fn kept(&mut self, points: &[CodePoint]) -> Option<Arc<[CodePoint]>> {
        if let Some(known) = self.known.get(points) {
            return Some(Arc::clone(known));
        }
        let stack: Arc<[CodePoint]> = points.into();
        (self.known.len() < STACKS_MAX && self.known.insert(Arc::clone(&stack))).then_some(stack)
    }

    /// Names all stacks of a part that has no slots: whose each is, and its code.
    pub fn name(&mut self, part: &mut Part) -> Vec<(u32, CallStack)> {
        learn_maps(&mut self.symbols, &mut part.side_band);
        let stacks = std::mem::take(&mut part.stacks);
        let named = stacks.iter().map(|raw| {
            let points = locate(&mut self.symbols, raw);
            (raw.pid, self.symbols.full(&points, &[]))
        });
        named.collect()
    }

    /// The code of a place of slots of `kind`, with inlined functions, files and lines.
    pub fn code(&mut self, kind: u8, place: u32) -> Option<CallStack> {
        let points = self.stacks.get(&(kind, place))?;
        Some(self.symbols.full(points, &[]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::wire::{Slot, Stack};

    /// A part in which threads were at `places`, each with another stack.
    fn part(places: std::ops::Range<u32>) -> Part {
        let slots = places.clone().map(|place| Slot {
            ts: u64::from(place),
            place,
            flags: flag::STACK_TAKEN,
            kind: 1,
            ..Slot::default()
        });
        let stacks = places.map(|place| Stack {
            ts: u64::from(place),
            // No process has this id.
            pid: 1 << 30,
            ip: 0x1000 + u64::from(place),
            user_mode: true,
            ..Stack::default()
        });
        let mut part = Part::empty(0, 0, 0);
        part.slots = vec![slots.collect()];
        part.stacks = stacks.collect();
        part
    }

    /// The tables were first come, first served: after a while no new code had a name, and nothing was said of it.
    #[test]
    fn places_that_nothing_tells_of_make_room() {
        let mut places = Places::default();
        let all = STACKS_MAX as u32;
        places.learn(&mut part(0..all));
        assert_eq!((places.left_out(), places.known.len()), (0, STACKS_MAX));
        places.learn(&mut part(all..all + 2));
        assert_eq!(places.left_out(), 2);
        places.forget(|| FxHashSet::from_iter([(1, 5)]));
        assert_eq!((places.stacks.len(), places.known.len()), (1, 1));
        places.learn(&mut part(all..all + 2));
        assert!(places.stacks.contains_key(&(1, all)));
        assert_eq!(places.left_out(), 2);
        places.forget(|| unreachable!("there is room"));
    }
}
