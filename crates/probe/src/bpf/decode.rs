//! A recording to the events and stacks that the core understands.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use amdahl_speedup::event::{
    Blocked, CallStack, CpuId, Event, Frame, KernelLock, KernelLockKind, Ns, Occupant, Off, Sample,
    SampledBy, StackId, StackTable, Tid, Waker,
};
use amdahl_speedup::progress::{Progress, SLOTS, STACK_WORDS, Snapshot};
use amdahl_speedup::spin::{Arch, Shared, SpinDetector};
use amdahl_speedup::stack::function_id;
use rustc_hash::{FxHashMap, FxHashSet};

use super::drain::Part;
use super::duty::WINDOW_NS;
use super::joins::joins;
use super::machine_code;
use super::stacks::{learn_maps, locate};
use super::windows::{Gap, found};
use super::wire::{REGISTER_NUMBERS, REGISTERS, Slot, Stack, flag, kind, stack_kind};
use crate::perf::FAULTS_PER_SAMPLE;
use crate::symbol::{CodePoint, Symbolizer};

/// Stacks to names and spin verdicts. Kept over all runs of a sweep: names do not change.
pub struct Decoder {
    pub(super) symbols: Symbolizer,
    spins: Option<SpinDetector>,
    /// Stacks that were named so far, if not too many.
    named: FxHashSet<Arc<CallStack>>,
}

/// User and kernel code of a stack: equal for equal stacks.
type Chain = (Box<[CodePoint]>, Box<[u64]>);

/// Who a thread is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadName {
    /// Its process.
    pub pid: Tid,
    /// Its own name.
    pub name: String,
}

/// Stacks and names of a recording, as far as its parts have been decoded.
#[derive(Default)]
pub struct Decoded {
    /// Named stacks.
    pub stacks: StackTable,
    /// Where the frames of each stack are, to name them in full.
    points: Vec<Box<[CodePoint]>>,
    known: FxHashMap<Chain, StackId>,
    /// Which values others have a part in where a thread has this stack.
    shared: FxHashMap<StackId, Shared>,
    /// Stack of a waker by its place.
    wakes: FxHashMap<u32, StackId>,
    /// Names of the workload's threads.
    pub threads: FxHashMap<Tid, ThreadName>,
    /// Names of others' threads that ran on the watched CPUs.
    pub others: FxHashMap<Tid, String>,
    /// Rates of progress of the workload's loops.
    pub progress: Progress,
    /// Names that are kept before the next look at which are asked for.
    names_max: usize,
    /// Memory that stacks take, and what they may.
    stack_bytes: usize,
    stack_bytes_max: Option<usize>,
}

/// The events of one part.
pub struct Events {
    part: Part,
    /// Stack of each record in `part.stacks`.
    ids: Vec<StackId>,
    /// Stacks of sleeps and of spins, by when and who.
    taken: FxHashMap<(Ns, Tid), StackId>,
    joins: FxHashSet<(Tid, Ns)>,
    /// The beginning and the end of each gap, and what is known then.
    marks: Vec<(Ns, Vec<Event>)>,
}

/// Different stacks of one run that are kept whole. Of later ones only the innermost frames are
/// told apart, and if that is not enough either, none.
const STACKS_MAX: usize = 1 << 16;
/// Frames that are kept then.
const FRAMES_KEPT: usize = 4;
const ALL_STACKS_MAX: usize = 2 * STACKS_MAX;
/// Stacks, of all runs, among which equal ones are looked for.
const NAMED_MAX: usize = 2 * ALL_STACKS_MAX;
/// Names of threads that are kept before those are looked for that nobody asks for any more.
const NAMES_MAX: usize = 1 << 16;

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

impl Decoder {
    /// Knows nothing yet.
    pub fn new() -> Decoder {
        Decoder {
            symbols: Symbolizer::new(),
            spins: Arch::native().map(SpinDetector::new),
            named: FxHashSet::default(),
        }
    }

    /// Runs of one program have mostly the same stacks: all of a sweep's hold each once.
    fn share(&mut self, stack: CallStack) -> Arc<CallStack> {
        if let Some(named) = self.named.get(&stack) {
            return Arc::clone(named);
        }
        if self.named.len() >= NAMED_MAX {
            self.named.retain(|named| Arc::strong_count(named) > 1);
            if self.named.len() > NAMED_MAX / 2 {
                self.named.clear();
            }
        }
        let named = Arc::new(stack);
        self.named.insert(Arc::clone(&named));
        named
    }

    /// Mappings of a process that was there before the recording.
    pub fn attach(&mut self, pid: u32) {
        let _ = self.symbols.maps_mut().snapshot(pid);
        self.symbols.touch(pid);
    }

    /// Names all stacks of the next part of a recording.
    pub fn decode(&mut self, mut part: Part, decoded: &mut Decoded) -> Events {
        learn_maps(&mut self.symbols, &mut part.side_band);
        part.stacks.sort_by_key(|stack| stack.ts);
        let mut ids = Vec::with_capacity(part.stacks.len());
        let mut taken = FxHashMap::default();
        let joins = joins(&part.slots);
        let mut by_wake: FxHashMap<(Ns, Tid), StackId> = FxHashMap::default();
        for raw in &part.stacks {
            let id = self.identify(raw, decoded);
            ids.push(id);
            match raw.kind {
                stack_kind::WAIT | stack_kind::LOCK => {
                    taken.insert((raw.ts, raw.tid), id);
                }
                stack_kind::WAKE => {
                    by_wake.insert((raw.ts, raw.tid), id);
                }
                stack_kind::TIME if raw.user_mode => {
                    let function = decoded.stacks[id.0 as usize].user.first();
                    let function = function_id(function.map_or("", |frame| &frame.symbol));
                    let shared = self.shared(id, decoded);
                    let snapshot = snapshot(raw, function, shared);
                    let period = part.sample_ns * u64::from(raw.weight);
                    decoded.progress.sample(raw.tid, snapshot, period);
                }
                _ => {}
            }
        }
        decoded.learn_names(&part);
        for slot in part.slots.iter().flatten() {
            decoded.learn_other(slot);
            if slot.kind == kind::WAKE
                && slot.flags & flag::STACK_TAKEN != 0
                && let Some(&id) = by_wake.get(&(slot.ts, slot.other))
            {
                // Of several stacks of one place the one that goes farthest out tells most.
                let depth = |id: StackId| decoded.stacks[id.0 as usize].user.len();
                let known = decoded.wakes.get(&slot.place).copied();
                if known.is_none_or(|known| depth(known) < depth(id)) {
                    decoded.wakes.insert(slot.place, id);
                }
            }
        }
        Events {
            marks: marks(&part),
            part,
            ids,
            taken,
            joins,
        }
    }

    /// Number of a stack in `decoded`, named there if it is new.
    fn identify(&mut self, raw: &Stack, decoded: &mut Decoded) -> StackId {
        let mut points = locate(&mut self.symbols, raw);
        let mut kernel = raw.kernel.clone();
        let keep = decoded.frames_kept();
        if points.len().max(kernel.len()) > keep {
            points = points.iter().copied().take(keep).collect();
            kernel = kernel.iter().copied().take(keep).collect();
        }
        let next = StackId(decoded.stacks.len() as u32);
        let key = (points, kernel);
        match decoded.known.get(&key) {
            Some(&id) => id,
            None => {
                let stack = self.resolve(&key.0, &key.1, raw);
                decoded.stack_bytes += bytes_of(&key, &stack);
                decoded.stacks.push(self.share(stack));
                decoded.points.push(key.0.clone());
                decoded.known.insert(key, next);
                next
            }
        }
    }

    /// Names the stacks of a part in which there are no events of [`Decoder::decode`]: brings them
    /// in the order of time and gives the number of each.
    pub(super) fn name_stacks(&mut self, part: &mut Part, decoded: &mut Decoded) -> Vec<StackId> {
        learn_maps(&mut self.symbols, &mut part.side_band);
        part.stacks.sort_by_key(|stack| stack.ts);
        decoded.learn_names(part);
        let stacks = part.stacks.iter();
        stacks.map(|raw| self.identify(raw, decoded)).collect()
    }

    /// Names a stack with inlined functions, files and lines.
    pub fn full(&mut self, decoded: &Decoded, id: StackId) -> CallStack {
        let at = id.0 as usize;
        let Some(points) = decoded.points.get(at).filter(|points| !points.is_empty()) else {
            return (*decoded.stacks[at]).clone();
        };
        let mut stack = self.symbols.full(points, &[]);
        stack.kernel = decoded.stacks[at].kernel.clone();
        stack.in_spin_loop = decoded.stacks[at].in_spin_loop;
        stack.after_system_call = decoded.stacks[at].after_system_call;
        stack
    }

    /// Which values of a thread with this stack others have a part in.
    fn shared(&mut self, id: StackId, decoded: &mut Decoded) -> Shared {
        if let Some(&known) = decoded.shared.get(&id) {
            return known;
        }
        let points = &decoded.points[id.0 as usize];
        let shared = self.spins.as_mut().map_or_else(Shared::default, |spins| {
            machine_code::shared(spins, &mut self.symbols, points)
        });
        decoded.shared.insert(id, shared);
        shared
    }

    fn resolve(&mut self, points: &[CodePoint], kernel: &[u64], raw: &Stack) -> CallStack {
        let waits = [stack_kind::WAIT, stack_kind::WAKE, stack_kind::LOCK];
        let on_cpu = !waits.contains(&raw.kind);
        let mut stack = if on_cpu {
            self.symbols.names(points, kernel)
        } else {
            // Inlined functions tell what is waited for.
            self.symbols.full(points, kernel)
        };
        if let (true, true, Some(spins)) = (on_cpu, raw.user_mode, &mut self.spins) {
            stack.in_spin_loop = machine_code::is_spinning(spins, &mut self.symbols, points, raw);
            stack.after_system_call = machine_code::is_after_system_call(&mut self.symbols, points);
        }
        stack
    }
}

/// Memory of a stack: of its names, and of where they are from, which is kept twice.
fn bytes_of((points, addresses): &Chain, stack: &CallStack) -> usize {
    let frames = stack.user.iter().chain(&stack.kernel);
    let names = frames.map(|frame| {
        let file = frame.file.as_ref().map_or(0, String::len);
        size_of::<Frame>() + frame.symbol.len() + frame.module.len() + file
    });
    let from = 2 * size_of_val::<[CodePoint]>(points) + size_of_val::<[u64]>(addresses);
    names.sum::<usize>() + from + size_of::<CallStack>() + size_of::<Chain>()
}

/// What others have a part in stays 0, and so tells no progress.
fn snapshot(raw: &Stack, function: u64, shared: Shared) -> Snapshot {
    let mut values = [0; SLOTS];
    let registers = raw.regs.into_iter().zip(REGISTER_NUMBERS);
    for (value, (register, number)) in values.iter_mut().zip(registers) {
        if shared.registers & 1 << number == 0 {
            *value = register as u32;
        }
    }
    let copy = |to: &mut [u32], bytes: &[u8]| {
        for (value, half) in to.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = u32::from_ne_bytes(*half);
        }
    };
    let (above, below) = values[REGISTERS..].split_at_mut(2 * STACK_WORDS);
    if !shared.stack {
        copy(above, &raw.bytes);
    }
    if !shared.below {
        copy(below, &raw.below);
    }
    Snapshot {
        ts: raw.ts,
        cpu: raw.cpu,
        sp: raw.sp,
        function,
        values,
    }
}

impl Decoded {
    /// What is decoded comes after stacks that are named already.
    pub fn after(named: StackTable) -> Decoded {
        Decoded {
            points: vec![Box::default(); named.len()],
            stacks: named,
            ..Decoded::default()
        }
    }

    /// Nothing is decoded yet. Stacks are kept whole until they take half of `stack_bytes_max`, and by their innermost frames
    /// until they take all of it.
    pub fn within(stack_bytes_max: usize) -> Decoded {
        Decoded {
            stack_bytes_max: Some(stack_bytes_max),
            ..Decoded::default()
        }
    }

    /// Frames that are kept of a stack that is new.
    fn frames_kept(&self) -> usize {
        let (count, bytes) = (self.stacks.len(), self.stack_bytes);
        let is_within = |part: usize| self.stack_bytes_max.is_none_or(|max| bytes < max / part);
        if count < STACKS_MAX && is_within(2) {
            usize::MAX
        } else if count < ALL_STACKS_MAX && is_within(1) {
            FRAMES_KEPT
        } else {
            0
        }
    }

    /// As of the end of the part: a thread may have got its names on several CPUs.
    fn learn_names(&mut self, part: &Part) {
        let tells = |slot: &&Slot| matches!(slot.kind, kind::FORK | kind::COMM);
        let mut told: Vec<&Slot> = part.slots.iter().flatten().filter(tells).collect();
        told.sort_by_key(|slot| slot.ts);
        for slot in told {
            let name = ThreadName {
                pid: match slot.kind {
                    kind::FORK => slot.syscall as Tid,
                    _ => slot.other,
                },
                name: slot.comm(),
            };
            self.threads.insert(slot.tid, name);
        }
    }

    fn learn_other(&mut self, slot: &Slot) {
        if slot.kind == kind::SWITCH
            && slot.tid != 0
            && slot.flags & flag::PREV_WORKLOAD == 0
            && !self.others.contains_key(&slot.tid)
        {
            self.others.insert(slot.tid, slot.comm());
        }
    }

    /// Forgets names of threads if there are too many: of those that are not in `told`, which is what tables tell of, and of
    /// which `lives` does not say that more may be heard. The first threads of processes that are told of keep theirs. To
    /// be called when the events of a part have been fed. Amortised constant time for each name.
    pub fn forget_names(
        &mut self,
        told: impl FnOnce() -> FxHashSet<Tid>,
        lives: impl Fn(Tid) -> bool,
    ) {
        if self.names() <= self.names_max.max(NAMES_MAX) {
            return;
        }
        let mut kept = told();
        kept.extend(self.threads.keys().copied().filter(|&tid| lives(tid)));
        let named = kept.iter().filter_map(|tid| self.threads.get(tid));
        let processes: Vec<Tid> = named.map(|thread| thread.pid).collect();
        kept.extend(processes);
        self.threads.retain(|tid, _| kept.contains(tid));
        self.others.retain(|tid, _| kept.contains(tid));
        self.names_max = 2 * self.names();
    }

    fn names(&self) -> usize {
        self.threads.len() + self.others.len()
    }

    /// Forgets what only further parts would need.
    pub fn close(&mut self) {
        self.known = FxHashMap::default();
        self.shared = FxHashMap::default();
        self.wakes = FxHashMap::default();
    }
}

impl Events {
    /// Who occupied the CPUs at `ts`, as the switches around it tell; of one without any nothing is known. O(events), for
    /// all CPUs together.
    pub fn occupants_at(&self, ts: Ns) -> FxHashMap<CpuId, Occupant> {
        occupants_at(&self.part, ts)
    }

    /// All events in order of time. `decoded` is what the part was decoded into.
    pub fn for_each(&self, decoded: &Decoded, mut each: impl FnMut(&Event)) {
        let slots = &self.part.slots;
        let mut heap: BinaryHeap<Reverse<(Ns, usize)>> = BinaryHeap::new();
        let mut at = vec![0; slots.len()];
        for (cpu, ring) in slots.iter().enumerate() {
            heap.extend(ring.first().map(|slot| Reverse((slot.ts, cpu))));
        }
        let mut samples = self.part.stacks.iter().zip(&self.ids).peekable();
        let mut marks = self.marks.iter().peekable();
        let mut mark = |ts: Ns, each: &mut dyn FnMut(&Event)| {
            while let Some((_, events)) = marks.next_if(|(at, _)| *at <= ts) {
                events.iter().for_each(&mut *each);
            }
        };
        while let Some(Reverse((ts, cpu))) = heap.pop() {
            while let Some((stack, &id)) = samples.next_if(|(stack, _)| stack.ts <= ts) {
                mark(stack.ts, &mut each);
                self.sample(stack, id, &mut each);
            }
            mark(ts, &mut each);
            if let Some(event) = self.event(&slots[cpu][at[cpu]], decoded) {
                each(&event);
            }
            at[cpu] += 1;
            // Interrupts may have written between: never go back behind what is out already.
            heap.extend(
                slots[cpu]
                    .get(at[cpu])
                    .map(|slot| Reverse((slot.ts.max(ts), cpu))),
            );
        }
        for (stack, &id) in samples {
            mark(stack.ts, &mut each);
            self.sample(stack, id, &mut each);
        }
        mark(Ns::MAX, &mut each);
    }

    fn sample(&self, stack: &Stack, id: StackId, each: &mut impl FnMut(&Event)) {
        let weight = u64::from(stack.weight);
        let by = match stack.kind {
            stack_kind::TIME => SampledBy::Time(self.part.sample_ns * weight),
            stack_kind::INSTRUCTIONS => {
                SampledBy::Instructions(self.part.instruction_period * weight)
            }
            stack_kind::FAULT => SampledBy::PageFaults(FAULTS_PER_SAMPLE),
            _ => return,
        };
        each(&Event::Sample(Sample {
            ts: stack.ts,
            cpu: stack.cpu,
            tid: stack.tid,
            by,
            user_mode: stack.user_mode,
            stack: id,
        }));
    }

    fn event(&self, slot: &Slot, decoded: &Decoded) -> Option<Event> {
        let ts = slot.ts;
        let has = |flag: u8| slot.flags & flag != 0;
        Some(match slot.kind {
            kind::SWITCH => Event::Switch {
                ts,
                cpu: slot.cpu,
                prev: occupant(slot.tid, has(flag::PREV_WORKLOAD)),
                off: self.off(slot),
                next: occupant(slot.other, has(flag::NEXT_WORKLOAD)),
            },
            kind::WAKE => Event::Wake {
                ts,
                tid: slot.tid,
                waker: if has(flag::WAKER_TIMER) {
                    Waker::Timer
                } else if has(flag::WAKER_IRQ) {
                    Waker::Interrupt
                } else if has(flag::WAKER_WORKLOAD) {
                    Waker::Workload(slot.other)
                } else {
                    Waker::Other(slot.other)
                },
                from: (slot.place != 0)
                    .then(|| decoded.wakes.get(&slot.place).copied())
                    .flatten(),
            },
            kind::MIGRATE => Event::Migrate {
                ts,
                tid: slot.tid,
                cpu: slot.cpu,
            },
            kind::FORK => Event::Fork {
                ts,
                parent: slot.other,
                child: slot.tid,
                pid: slot.syscall as Tid,
                cpu: slot.cpu,
            },
            kind::SPIN => Event::KernelSpin {
                ts,
                tid: slot.tid,
                lock: kernel_lock(slot.arg[0], slot.lock_kind),
                spun: slot.arg[1],
                count: slot.syscall.max(0) as u64,
                stack: self.taken(slot),
            },
            kind::EXIT => Event::Exit { ts, tid: slot.tid },
            _ => return None,
        })
    }

    /// The stack that was taken with the slot of a sleep or a spin.
    fn taken(&self, slot: &Slot) -> Option<StackId> {
        let is_taken = slot.flags & flag::STACK_TAKEN != 0;
        let stack = is_taken.then(|| self.taken.get(&(slot.ts, slot.tid)));
        stack.flatten().copied()
    }

    fn off(&self, slot: &Slot) -> Off {
        let has = |flag: u8| slot.flags & flag != 0;
        if has(flag::PREV_EXITED) {
            return Off::Exited;
        }
        if has(flag::PREV_RUNNABLE) || !has(flag::PREV_WORKLOAD) {
            return match libc::c_long::from(slot.syscall) {
                libc::SYS_sched_yield => Off::Yielded,
                _ => Off::Preempted,
            };
        }
        let in_lock = has(flag::PREV_IN_LOCK);
        Off::Blocked(Blocked {
            syscall: u32::try_from(slot.syscall).ok(),
            args: [
                slot.arg[0],
                slot.arg[1],
                if in_lock { 0 } else { slot.arg[2] },
                0,
            ],
            in_iowait: has(flag::PREV_IOWAIT),
            uninterruptible: has(flag::PREV_UNINT),
            kernel_lock: in_lock.then(|| kernel_lock(slot.arg[2], slot.lock_kind)),
            place: u64::from(slot.place),
            stack: self.taken(slot),
            until_end: self.joins.contains(&(slot.tid, slot.ts)),
        })
    }
}

/// Where gaps begin and end, in the order of time.
fn marks(part: &Part) -> Vec<(Ns, Vec<Event>)> {
    let ends = part.gaps.iter().skip(1).map(|next| next.from);
    let windows = part.gaps.iter().zip(ends.chain([Ns::MAX]));
    let marks = windows.flat_map(|(&gap, end)| {
        let Gap { from, to } = gap;
        let begin = Event::Gap {
            ts: from,
            until: to,
            window: WINDOW_NS,
        };
        let known = found(&part.slots, &part.stacks, gap, end);
        // What bears the time of its begin is still of the window before.
        [(from.saturating_add(1), vec![begin]), (to, known)]
    });
    marks.collect()
}

pub(super) fn occupant(tid: Tid, workload: bool) -> Occupant {
    match (tid, workload) {
        (0, _) => Occupant::Idle,
        (tid, true) => Occupant::Workload(tid),
        (tid, false) => Occupant::Other(tid),
    }
}

fn kernel_lock(address: u64, flags: u8) -> KernelLock {
    const SPIN: u8 = 1;
    const READ: u8 = 2;
    const WRITE: u8 = 4;
    const RT: u8 = 8;
    const PERCPU: u8 = 16;
    const MUTEX: u8 = 32;
    let kind = if flags & MUTEX != 0 {
        KernelLockKind::Mutex
    } else if flags & SPIN != 0 {
        KernelLockKind::Spin
    } else if flags & (RT | PERCPU) != 0 {
        KernelLockKind::Other
    } else if flags & READ != 0 {
        KernelLockKind::RwsemRead
    } else if flags & WRITE != 0 {
        KernelLockKind::RwsemWrite
    } else {
        KernelLockKind::Other
    };
    KernelLock {
        address,
        kind,
        is_mmap_lock: flags & flag::LOCK_IS_MMAP != 0,
    }
}

fn occupants_at(part: &Part, ts: Ns) -> FxHashMap<CpuId, Occupant> {
    let mut occupants = FxHashMap::default();
    // Of those the first switch from then on has told already.
    let mut left: FxHashSet<CpuId> = FxHashSet::default();
    for slot in part.slots.iter().flatten() {
        if slot.kind != kind::SWITCH || left.contains(&slot.cpu) {
            continue;
        }
        let by = if slot.ts >= ts {
            left.insert(slot.cpu);
            occupant(slot.tid, slot.flags & flag::PREV_WORKLOAD != 0)
        } else {
            occupant(slot.other, slot.flags & flag::NEXT_WORKLOAD != 0)
        };
        occupants.insert(slot.cpu, by);
    }
    occupants
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_of_all_runs_are_one() {
        let mut decoder = Decoder::new();
        let stack = |number: usize| CallStack {
            user: vec![Frame {
                symbol: number.to_string(),
                ..Frame::default()
            }],
            ..CallStack::default()
        };
        let first = decoder.share(stack(7));
        assert!(Arc::ptr_eq(&first, &decoder.share(stack(7))));
        // Nobody holds these.
        for number in 0..2 * NAMED_MAX {
            decoder.share(stack(100 + number));
        }
        assert!(decoder.named.len() <= NAMED_MAX);
        assert!(Arc::ptr_eq(&first, &decoder.share(stack(7))));
        let held: Vec<_> = (0..2 * NAMED_MAX)
            .map(|number| decoder.share(stack(number)))
            .collect();
        assert!(decoder.named.len() <= NAMED_MAX && held.len() == 2 * NAMED_MAX);
    }

    /// Stacks were bounded by their number alone, which is hundreds of megabytes.
    #[test]
    fn stacks_keep_within_the_memory_that_they_may_take() {
        const MAX: usize = 64 << 10;
        // By frame pointers, from where it is outwards; no process has this id.
        let stack = |number: u64| Stack {
            ts: number,
            kind: stack_kind::WAIT,
            pid: 1 << 30,
            ip: 32 * number + 0x1000,
            user_mode: true,
            user: (0..20).map(|frame| 32 * number + 0x1000 + frame).collect(),
            ..Stack::default()
        };
        let named = |mut decoded: Decoded| {
            let mut part = Part::default();
            part.stacks = (0..1000).map(stack).collect();
            let ids = Decoder::new().name_stacks(&mut part, &mut decoded);
            let frames = ids.iter().map(|id| decoded.points[id.0 as usize].len());
            (frames.collect::<Vec<usize>>(), decoded.stack_bytes)
        };
        let (frames, bytes) = named(Decoded::within(MAX));
        assert_eq!((frames[0], frames[999]), (20, 0));
        assert!(frames.is_sorted_by(|a, b| a >= b) && frames.contains(&FRAMES_KEPT));
        // The last one may be larger than what was left.
        assert!((MAX..MAX + 4096).contains(&bytes), "{bytes}");
        let (frames, _) = named(Decoded::default());
        assert!(frames.iter().all(|&frames| frames == 20));
    }

    /// All events were gone through for each CPU.
    #[test]
    fn who_is_on_the_cpus_is_told_by_one_look_at_the_switches() {
        let ours = flag::PREV_WORKLOAD | flag::NEXT_WORKLOAD;
        let switch = |ts, cpu, tid, other| Slot {
            ts,
            kind: kind::SWITCH,
            cpu,
            tid,
            other,
            flags: ours,
            ..Slot::default()
        };
        let named = Slot {
            ts: 5,
            kind: kind::COMM,
            cpu: 9,
            ..Slot::default()
        };
        let mut part = Part::default();
        part.slots = vec![
            // It has switched before and after.
            vec![
                switch(10, 0, 1, 2),
                switch(20, 0, 2, 3),
                switch(30, 0, 3, 4),
            ],
            // Before alone, after alone, at that time; two CPUs in one ring.
            vec![
                switch(10, 1, 5, 6),
                switch(20, 7, 8, 9),
                switch(40, 7, 9, 1),
            ],
            vec![switch(15, 2, 7, 0), named],
        ];
        let one_by_one = |cpu, ts| {
            let mut before = None;
            for slot in part.slots.iter().flatten() {
                if slot.kind == kind::SWITCH && slot.cpu == cpu {
                    if slot.ts >= ts {
                        return Some(occupant(slot.tid, true));
                    }
                    before = Some(occupant(slot.other, true));
                }
            }
            before
        };
        for ts in [0, 10, 15, 20, 25, 40, 50] {
            let found = occupants_at(&part, ts);
            for cpu in 0..10 {
                assert_eq!(found.get(&cpu).copied(), one_by_one(cpu, ts), "{cpu} {ts}");
            }
        }
        assert_eq!(occupants_at(&part, 15)[&2], Occupant::Workload(7));
        assert_eq!(occupants_at(&part, 16)[&2], Occupant::Idle);
    }

    /// A thread that got its names on two CPUs kept the one that the CPU of the higher number told.
    #[test]
    fn the_last_name_counts_whichever_cpu_told_it() {
        let named = |ts, name: &[u8; 8]| Slot {
            ts,
            kind: kind::COMM,
            tid: 7,
            other: 7,
            arg: [u64::from_ne_bytes(*name), 0, 0],
            ..Slot::default()
        };
        let mut part = Part::default();
        part.slots = vec![
            vec![named(20, b"holder\0\0")],
            vec![named(10, b"taskset\0")],
        ];
        let mut decoded = Decoded::default();
        decoded.learn_names(&part);
        assert_eq!(decoded.threads[&7].name, "holder");
    }

    /// Every thread that ever was kept its name.
    #[test]
    fn names_of_threads_that_come_and_go_are_forgotten_and_no_others() {
        const MANY: Tid = 3 * NAMES_MAX as Tid;
        let mut decoded = Decoded::default();
        let thread = |pid, name: &str| ThreadName {
            pid,
            name: name.to_owned(),
        };
        for tid in 1..MANY {
            // The process of a thread that is told of is not told of itself.
            let pid = if tid == 9 { 5 } else { tid };
            decoded.threads.insert(tid, thread(pid, "thread"));
            decoded.others.insert(MANY + tid, "other".to_owned());
            let told = || FxHashSet::from_iter([2, 9, MANY + 3]);
            decoded.forget_names(told, |tid| tid == 1);
            assert!(decoded.names() <= NAMES_MAX + 1, "{tid}");
        }
        for tid in [1, 2, 5, 9] {
            assert!(decoded.threads.contains_key(&tid), "{tid}");
        }
        assert!(decoded.others.contains_key(&(MANY + 3)));
        assert!(!decoded.threads.contains_key(&3) && !decoded.others.contains_key(&(MANY + 2)));
    }
}
