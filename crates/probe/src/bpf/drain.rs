//! Takes what the programs write out of the rings while they record, and hands it on in parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::budget::Budget;
use super::duty::WINDOW_NS;
use super::events::Events;
use super::hooks::Windows;
use super::stack_ring::StackRing;
use super::windows::{Gap, each_window, forget_gaps};
use super::wire::{Rings, Slot, Stack, flag, kind, stack_kind};
use crate::clock;
use crate::perf::{SideBand, SideBandRing};

/// What happened during a stretch of a recording: since the part before it, or since `begin`.
#[derive(Debug, Default)]
pub struct Part {
    /// Slots per watched CPU, each in the order of that CPU.
    pub slots: Vec<Vec<Slot>>,
    /// Stacks, roughly in order of time.
    pub stacks: Vec<Stack>,
    /// Address-space changes of all processes.
    pub side_band: Vec<SideBand>,
    /// User instructions per instruction sample.
    pub instruction_period: u64,
    /// Nanoseconds between two samples of time on one CPU.
    pub sample_ns: u64,
    /// Stretches of it in which switches were not recorded, in the order of time.
    pub gaps: Vec<Gap>,
    /// What happened up to this time is in this part or in one before. Address-space changes may also be later.
    pub until: u64,
    /// Its memory, of all that is held.
    held: Held,
}
/// Bytes held by a part, until it is dropped.
#[derive(Debug, Default)]
struct Held {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
/// What the draining thread shares with its owner.
pub struct Shared {
    pub rings: Rings,
    pub events: Events,
    pub stacks: std::sync::Mutex<Option<StackRing>>,
    pub stop: AtomicBool,
    /// The memory for events is used up.
    pub is_cut: AtomicBool,
    pub cpus: Vec<u32>,
    pub memory_bytes: usize,
    pub part_after: Duration,
    pub sample_one_in: u32,
}
/// What is being gathered into the next part.
pub struct Drained {
    part: Part,
    /// Bytes of it.
    bytes: usize,
    /// Bytes of the parts that are being analysed or wait for it.
    held: Arc<AtomicUsize>,
    cut: Option<u64>,
    /// How each CPU is sampled.
    budgets: Vec<Budget>,
}
/// Between two looks at rings in which little waits, at most: waking up is dearer than the look, on a virtual machine most of all.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// The pause after a look that found the fullest ring to be so full: twice as long as before where it would take several times as
/// much as came since the last look to fill it, else the shortest.
fn next_pause(pause: Duration, shortest: Duration, fill: f64) -> Duration {
    if fill < 0.125 {
        (pause * 2).min(PAUSE_MAX.max(shortest))
    } else {
        shortest
    }
}
/// What happened this long ago has been written to the rings, on all CPUs.
const SETTLED_NS: u64 = 20_000_000;
/// Rings for at least this many slots are left alone until they are half full: each look at a slot takes its line from the CPU that
/// writes there, and what still waits at the end of the run costs the run nothing.
const PATIENT_SLOTS: usize = 1 << 17;
/// So many slots may wait in the ring of each CPU. All that wait come at once, so of all CPUs together they take less than a part of
/// the memory that parts are made of.
fn waiting(room: usize, cpus: usize, memory_bytes: usize) -> usize {
    if room < PATIENT_SLOTS {
        return 0;
    }
    let held = memory_bytes / 8 / size_of::<Slot>() / cpus.max(1);
    held.min(room / 2)
}

impl Shared {
    /// One of this recording in which nothing has happened.
    pub fn empty_part(&self) -> Part {
        let events = &self.events;
        Part::empty(self.cpus.len(), events.sample_ns, events.instruction_period)
    }

    /// Takes what there is. Returns the time up to which that is everything.
    pub fn drain_all(&self, into: &mut Drained) -> u64 {
        self.drain(into, 0)
    }

    /// Takes what there is, except the slots of rings where fewer than `waiting` wait, and then other rings that are less than half
    /// full: taken all at once it costs the run less.
    fn drain(&self, into: &mut Drained, waiting: usize) -> u64 {
        let settled = clock::monotonic().saturating_sub(SETTLED_NS);
        let is_patient = waiting > 0;
        for (&cpu, slots) in self.cpus.iter().zip(&mut into.part.slots) {
            if self.rings.waiting(cpu as usize) < waiting {
                continue;
            }
            let before = slots.len();
            self.rings.drain(cpu as usize, slots);
            if let Some(cut) = into.cut {
                let keep = slots[before..].partition_point(|slot| slot.ts <= cut);
                slots.truncate(before + keep);
            }
            into.bytes += (slots.len() - before) * size_of::<Slot>();
        }
        let mut stacks = self.stacks.lock().expect("no panic while draining");
        let mut ring = stacks
            .as_mut()
            .filter(|ring| !is_patient || ring.fill() >= 0.5);
        while let Some(item) = ring.as_mut().and_then(|ring| ring.next()) {
            let stack = Stack::parse(&item).map(|stack| self.weighed(stack, &mut into.budgets));
            if let Some(stack) = stack.filter(|stack| into.cut.is_none_or(|cut| stack.ts <= cut)) {
                into.bytes += stack.bytes_held();
                into.part.stacks.push(stack);
            }
        }
        let told = &mut into.part.side_band;
        let before = told.len();
        for ring in &self.events.side_band {
            if !is_patient || ring.fill() >= 0.5 {
                ring.drain(told);
            }
        }
        if into.cut.is_some() {
            told.truncate(before);
        }
        into.bytes += told[before..]
            .iter()
            .map(SideBand::bytes_held)
            .sum::<usize>();
        settled
    }

    /// Of the fullest ring the share that waits.
    fn fill(&self) -> f64 {
        let room = self.rings.room() as f64;
        let slots = self.cpus.iter();
        let slots = slots.map(|&cpu| self.rings.waiting(cpu as usize) as f64 / room);
        let side_band = self.events.side_band.iter().map(SideBandRing::fill);
        let stacks = self.stacks.lock().expect("no panic while draining");
        let stacks = stacks.iter().map(StackRing::fill);
        slots.chain(side_band).chain(stacks).fold(0.0, f64::max)
    }

    /// A stack that knows what it stands for, if it is a sample.
    fn weighed(&self, mut stack: Stack, budgets: &mut [Budget]) -> Stack {
        let at = self.cpus.iter().position(|&cpu| cpu == stack.cpu);
        if let Some(budget) = at.and_then(|at| budgets.get_mut(at))
            && matches!(stack.kind, stack_kind::TIME | stack_kind::INSTRUCTIONS)
        {
            stack.weight = budget.weight_at(stack.ts);
        }
        stack
    }

    /// Samples each CPU as often as it is to be, `elapsed` nanoseconds after the begin. Returns how long after it no CPU's budget can ask
    /// for another rate.
    fn keep_to_budgets(&self, budgets: &mut [Budget], elapsed: u64) -> u64 {
        if self.sample_one_in <= 1 {
            return u64::MAX;
        }
        let mut steady_until = u64::MAX;
        for (at, (budget, &cpu)) in budgets.iter_mut().zip(&self.cpus).enumerate() {
            budget.count(self.rings.samples(cpu as usize));
            // Where it fails, it goes on as before.
            if let Some(weight) = budget.wanted(elapsed)
                && self.events.set_weight(at, weight).is_ok()
            {
                budget.changed(clock::monotonic(), weight);
            }
            steady_until = steady_until.min(budget.steady_until(elapsed));
        }
        steady_until
    }

    /// Samples all CPUs as often as in the beginning.
    pub fn full_rate(&self) {
        if self.sample_one_in > 1 {
            for at in 0..self.cpus.len() {
                // It has been set before.
                let _ = self.events.set_weight(at, 1);
            }
        }
    }

    /// Gives out parts until it is to stop. Returns when the recording was cut, if it was.
    pub fn drain_until_stopped(
        &self,
        give: &Sender<Part>,
        mut windows: Option<Windows>,
    ) -> Option<u64> {
        keep_up();
        let mut drained = Drained::new(self.empty_part());
        let begun = clock::monotonic();
        let period = self.events.sample_ns;
        let budget = |&cpu: &u32| {
            let counted = self.rings.samples(cpu as usize);
            Budget::new(period, self.sample_one_in, counted)
        };
        drained.budgets = self.cpus.iter().map(budget).collect();
        let mut given = begun;
        let room = self.rings.room();
        let waiting = waiting(room, self.cpus.len(), self.memory_bytes);
        // Five million slots a second fill the other half meanwhile.
        let shortest = Duration::from_nanos(room as u64 * 100);
        let shortest = shortest.clamp(Duration::from_millis(20), Duration::from_millis(50));
        let mut pause = shortest;
        let part_after = u64::try_from(self.part_after.as_nanos()).unwrap_or(u64::MAX);
        let shortest_ns = shortest.as_nanos() as u64;
        let mut steady_until = begun;
        while !self.stop.load(Ordering::Relaxed) {
            if waiting > 0 {
                pause = next_pause(pause, shortest, self.fill());
            }
            let settled = self.drain(&mut drained, waiting);
            let now = clock::monotonic();
            if now >= steady_until {
                let until = self.keep_to_budgets(&mut drained.budgets, now - begun);
                steady_until = begun.saturating_add(until).max(now + shortest_ns);
            }
            if let Some(windows) = &mut windows {
                windows.look(&self.rings, &mut drained.part.gaps);
            }
            if drained.bytes + drained.held.load(Ordering::Relaxed) > self.memory_bytes {
                drained.cut.get_or_insert(settled);
                self.is_cut.store(true, Ordering::Relaxed);
            } else if drained.bytes > self.memory_bytes / 4
                || settled.saturating_sub(given) >= part_after
            {
                let settled = self.drain_all(&mut drained);
                given = settled;
                let part = drained.split(settled);
                // Nobody takes it where a run has failed.
                let _ = give.send(part);
            }
            let part_at = given.saturating_add(part_after).saturating_add(SETTLED_NS);
            let part_at = drained.cut.is_none().then_some(part_at);
            let next = windows.as_ref().map(Windows::next);
            let next = next.into_iter().chain(part_at).chain([steady_until]);
            let next = next.min().unwrap_or(u64::MAX);
            let until_next = Duration::from_nanos(next.saturating_sub(clock::monotonic()));
            std::thread::park_timeout(pause.min(until_next));
        }
        // Detached, before the rest is taken.
        drop(windows);
        self.drain_all(&mut drained);
        let (part, cut) = (drained.split(u64::MAX), drained.cut);
        let _ = give.send(part);
        cut
    }
}
impl Drained {
    pub fn new(part: Part) -> Drained {
        Drained {
            part,
            bytes: 0,
            held: Arc::default(),
            cut: None,
            budgets: Vec::new(),
        }
    }

    /// Hands over what happened up to `until`; what is newer stays.
    fn split(&mut self, until: u64) -> Part {
        let part = &mut self.part;
        let mut rest = Part::empty(part.slots.len(), part.sample_ns, part.instruction_period);
        // No part ends in a gap, or in the window after it, which tells what is known of the end of the gap.
        let is_known = |gap: &Gap| gap.to.saturating_add(WINDOW_NS) <= until;
        let whole = part.gaps.partition_point(is_known);
        let until = part
            .gaps
            .get(whole)
            .map_or(until, |gap| until.min(gap.from));
        for (old, new) in part.slots.iter_mut().zip(&mut rest.slots) {
            forget_gaps(old, &part.gaps);
            each_window(old, &part.gaps, mend_chain);
            let keep = old.partition_point(|slot| slot.ts <= until);
            *new = old.split_off(keep);
        }
        let stacks = std::mem::take(&mut part.stacks);
        (part.stacks, rest.stacks) = stacks.into_iter().partition(|stack| stack.ts <= until);
        rest.gaps = part.gaps.split_off(whole);
        let left = rest.bytes();
        let mut part = std::mem::replace(&mut self.part, rest);
        part.until = until;
        let bytes = self.bytes.saturating_sub(left);
        self.bytes = left;
        self.held.fetch_add(bytes, Ordering::Relaxed);
        part.held = Held {
            all: Arc::clone(&self.held),
            bytes,
        };
        part
    }
}
impl Part {
    pub(crate) fn empty(cpus: usize, sample_ns: u64, instruction_period: u64) -> Part {
        Part {
            slots: (0..cpus).map(|_| Vec::new()).collect(),
            sample_ns,
            instruction_period,
            ..Part::default()
        }
    }

    /// Memory of what it tells.
    pub fn bytes(&self) -> usize {
        let slots = self.slots.iter().map(|ring| ring.len() * size_of::<Slot>());
        let stacks = self.stacks.iter().map(Stack::bytes_held);
        let side_band = self.side_band.iter().map(SideBand::bytes_held);
        slots.sum::<usize>() + stacks.sum::<usize>() + side_band.sum::<usize>()
    }
}
/// Makes the switches of one CPU a chain: who comes on at one switch leaves at the next.
///
/// Where that does not hold, a switch between them was not seen: lost, or hidden by the kernel
/// (some do not trace the processes of their own supervisor). Who was seen leaving is then taken
/// to have been there since the earlier switch, since those hidden ones run only shortly.
fn mend_chain(ring: &mut [Slot]) {
    let mut leaving: Option<(u32, bool)> = None;
    for slot in ring
        .iter_mut()
        .rev()
        .filter(|slot| slot.kind == kind::SWITCH)
    {
        if let Some((tid, workload)) = leaving.filter(|&(tid, _)| tid != slot.other) {
            slot.other = tid;
            slot.flags &= !flag::NEXT_WORKLOAD;
            slot.flags |= if workload { flag::NEXT_WORKLOAD } else { 0 };
        }
        leaving = Some((slot.tid, slot.flags & flag::PREV_WORKLOAD != 0));
    }
}
/// Lets the calling thread run beside many others that are always runnable, where that is allowed.
pub fn keep_up() {
    const NICE: i32 = -10;
    // On Linux this is about the thread, not its process.
    let _ = rustix::process::setpriority_process(None, NICE);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(tid: u32, other: u32, flags: u8) -> Slot {
        Slot {
            kind: kind::SWITCH,
            tid,
            other,
            flags,
            ..Slot::default()
        }
    }

    #[test]
    fn what_waits_in_rings_fits_into_a_part() {
        assert_eq!(waiting(1 << 19, 2, 1 << 30), 1 << 18);
        assert_eq!(waiting(1 << 16, 2, 1 << 30), 0);
        for (room, cpus, memory) in [
            (1 << 19, 2, 32 << 20),
            (1 << 17, 512, 1 << 30),
            (1 << 19, 1, 1 << 20),
        ] {
            let bytes = waiting(room, cpus, memory) * cpus * size_of::<Slot>();
            assert!(bytes <= memory / 8, "{bytes}");
        }
    }

    #[test]
    fn looks_become_rare_where_little_comes_and_frequent_at_once_where_more_does() {
        let shortest = Duration::from_millis(50);
        let pauses = |fill: f64| {
            let next = move |pause: &Duration| Some(next_pause(*pause, shortest, fill));
            std::iter::successors(Some(shortest), next).map(|pause| pause.as_millis())
        };
        assert!(pauses(0.01).take(5).eq([50, 100, 200, 200, 200]));
        assert!(pauses(0.2).take(3).eq([50, 50, 50]));
        assert_eq!(next_pause(PAUSE_MAX, shortest, 0.2), shortest);
        // None is shorter than the shortest.
        let long = PAUSE_MAX * 2;
        assert_eq!(next_pause(long, long, 0.0), long);
    }

    #[test]
    fn unseen_switches_are_bridged() {
        // The kernel did not tell that 75 left: 9 was seen leaving next.
        let mut ring = [
            switch(8, 75, 0),
            switch(9, 0, flag::PREV_WORKLOAD),
            switch(0, 9, flag::NEXT_WORKLOAD),
        ];
        mend_chain(&mut ring);
        assert_eq!((ring[0].other, ring[0].flags), (9, flag::NEXT_WORKLOAD));
        assert_eq!(ring[1].other, 0);
        assert_eq!((ring[2].other, ring[2].flags), (9, flag::NEXT_WORKLOAD));
    }

    #[test]
    fn no_part_ends_in_a_gap() {
        // A tenth of a window is the unit here.
        let at = |tenths: u64| tenths * WINDOW_NS / 10;
        let slot = |tenths, tid, other| Slot {
            ts: at(tenths),
            ..switch(tid, other, 0)
        };
        let gap = |from, to| Gap {
            from: at(from),
            to: at(to),
        };
        let mut drained = Drained::new(Part::empty(1, 0, 0));
        drained.part.slots = vec![vec![
            slot(10, 1, 2),
            slot(15, 2, 3),
            // After a gap another chain begins.
            slot(30, 8, 9),
            slot(45, 9, 8),
            slot(70, 5, 6),
        ]];
        let last = Gap {
            from: at(80),
            to: u64::MAX,
        };
        drained.part.gaps = vec![gap(12, 20), gap(40, 60), last];
        let times = |part: &Part| {
            let slots = part.slots[0].iter();
            slots
                .map(|slot| slot.ts * 10 / WINDOW_NS)
                .collect::<Vec<_>>()
        };
        // In a gap.
        let part = drained.split(at(50));
        assert_eq!(
            (times(&part), &part.gaps[..], part.until),
            (vec![10, 30], &[gap(12, 20)][..], at(40))
        );
        assert_eq!(part.slots[0][0].other, 2);
        // In the first moments of a window.
        let part = drained.split(at(65));
        assert_eq!((times(&part), &part.gaps[..]), (vec![], &[][..]));
        let part = drained.split(u64::MAX);
        let gaps = [gap(40, 60), last];
        assert_eq!((times(&part), &part.gaps[..]), (vec![70], &gaps[..]));
    }

    #[test]
    fn a_part_has_what_happened_until_then_and_is_held_until_dropped() {
        let slot = |ts| Slot {
            ts,
            ..Slot::default()
        };
        let stack = |ts| Stack {
            ts,
            bytes: vec![0; 2048].into(),
            ..Stack::default()
        };
        let mut drained = Drained::new(Part::empty(2, 0, 0));
        drained.part.slots = vec![vec![slot(1), slot(5), slot(9)], vec![slot(7)]];
        drained.part.stacks = vec![stack(9), stack(5)];
        drained.bytes = drained.part.bytes();
        let (all, held) = (drained.bytes, Arc::clone(&drained.held));
        let part = drained.split(5);
        assert_eq!(part.until, 5);
        let times = |part: &Part| -> Vec<Vec<u64>> {
            let slots = part.slots.iter();
            slots
                .map(|ring| ring.iter().map(|slot| slot.ts).collect())
                .collect()
        };
        assert_eq!(times(&part), [vec![1, 5], vec![]]);
        assert_eq!(times(&drained.part), [vec![9], vec![7]]);
        assert_eq!((part.stacks[0].ts, drained.part.stacks[0].ts), (5, 9));
        assert_eq!(held.load(Ordering::Relaxed) + drained.bytes, all);
        assert!(held.load(Ordering::Relaxed) > 2048);
        drop(part);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
