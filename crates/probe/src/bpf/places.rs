//! Code by the hash of its place, for views that need no more than one stack of each place.

use std::sync::Arc;

use amdahl_speedup::event::CallStack;
use rustc_hash::{FxHashMap, FxHashSet};

use super::drain::Part;
use super::stacks::{learn_maps, locate, look};
use super::wire::flag;
use crate::symbol::{CodePoint, Symbolizer};

/// Places whose stacks are kept, each process having its own; of later ones the code is not known.
const PLACES_MAX: usize = 1 << 20;
/// Different stacks that are kept, mostly those of many places.
const STACKS_MAX: usize = 1 << 17;

/// The stacks of places. Where several were taken, the one that leads farthest out.
#[derive(Default)]
pub struct Places {
    symbols: Symbolizer,
    stacks: FxHashMap<(u8, u32), Arc<[CodePoint]>>,
    known: FxHashSet<Arc<[CodePoint]>>,
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
                continue;
            }
            let points = locate(&mut self.symbols, &raw);
            let longest = self.stacks.get(&place).map_or(0, |stack| stack.len());
            if longest < points.len()
                && let Some(stack) = self.kept(&points)
            {
                self.stacks.insert(place, stack);
            }
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
