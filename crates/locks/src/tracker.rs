//! Events in, tally out: what needs the order of events.

use std::collections::VecDeque;
use std::sync::Arc;

use amdahl_speedup::event::{CallStack, Ns, Tid};
use amdahl_speedup::primitive::{
    GO_WAITS, KernelPrimitive, Library, Primitive, UserLock, user_lock,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::chains::{Chains, Link, LinkId};
use crate::event::{Event, Hold, Kind, LockId, Parked, Place, Wait, Waker};
use crate::histogram::Histogram;
use crate::tally::{Cell, CellKey, Limits, Share, Tally};

/// A thread that sleeps again for the same lock within this time has lost a race.
///
/// Long enough for the way out of the kernel, the test of the lock (Rust's spins a hundred times
/// before it sleeps again) and the way back; short against what most locks are held for.
pub const RETRY_NS: Ns = 20_000;

/// A thread of Go that looks for work naps within this time after its last sleep: before, it looks at
/// the queues of all processors three times, some tens of nanoseconds each.
pub const SEARCH_NS: Ns = 100_000;

/// A known place.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Known {
    /// Its deepest stack so far.
    pub stack: Arc<CallStack>,
    /// What a futex there is part of.
    pub lock: UserLock,
    /// A goroutine is parked there for what [`Kind::Goroutine`] tells of.
    is_of_goroutine: bool,
    /// Places that were learned before.
    number: u64,
}

/// A finished wait, remembered for those who wait for this thread.
#[derive(Clone, Copy, Debug)]
struct Past {
    key: CellKey,
    /// Its place is another one than that of the sleeps that go on with it.
    began_before: bool,
    begin: Ns,
    end: Ns,
    next: Option<LinkId>,
}

#[derive(Clone, Debug, Default)]
struct Thread {
    /// Its last waits, the latest at the back.
    past: VecDeque<Past>,
    /// It has released the lock of its last wait since then.
    has_released: bool,
}

/// Waits per thread that are remembered.
const PAST: usize = 8;
/// Steps of a chain.
const DEPTH: usize = 6;
/// Places whose stacks are kept.
const PLACES: usize = 1 << 17;
/// The newest of them stay although nothing tells of them yet: stacks come before waits.
const NEW_PLACES: u64 = PLACES as u64 / 4;
/// So many are forgotten at once, or it is not tried again before as many had no room.
const FORGOTTEN: usize = PLACES / 8;

/// Follows the waits of a system, a process or a run.
///
/// Events come in the order in which waits end, as far as the probe can tell; each costs the
/// same however many threads and locks there are. Stacks of a place come before its first
/// waits where possible: without a name waits cannot be told to be one call (see
/// [`Tracker::feed`]).
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    limits: Limits,
    tally: Tally,
    places: FxHashMap<Place, Known>,
    /// Places that were ever learned.
    learned: u64,
    /// Places that have no room before it is worth looking which may be forgotten.
    without_room: usize,
    threads: FxHashMap<Tid, Thread>,
    /// Processes whose goroutines are timed, each with since when.
    timed: FxHashMap<Tid, Ns>,
    /// The last two releases of a lock.
    releases: FxHashMap<LockId, [Option<(Tid, Ns)>; 2]>,
    chains: Chains,
}

impl Tracker {
    /// Knows nothing yet.
    pub fn new(limits: Limits) -> Tracker {
        Tracker {
            limits,
            ..Tracker::default()
        }
    }

    /// A stack that was taken at `place`. Of many places those are forgotten that nothing tells of; amortised constant time.
    pub fn learn(&mut self, place: Place, stack: &Arc<CallStack>) {
        let depth = |stack: &CallStack| stack.user.len() + stack.kernel.len();
        let known = self.places.get(&place);
        // Of several stacks of a place the one that goes farthest out tells most.
        if known.is_some_and(|known| depth(&known.stack) >= depth(stack)) {
            return;
        }
        let number = known.map(|known| known.number);
        if number.is_none() && self.places.len() >= PLACES && !self.forget_places() {
            self.tally.folded.stacks += 1;
            return;
        }
        let number = number.unwrap_or_else(|| {
            self.learned += 1;
            self.learned
        });
        let known = Known {
            stack: Arc::clone(stack),
            lock: user_lock(stack),
            is_of_goroutine: stack
                .user
                .iter()
                .any(|frame| GO_WAITS.contains(&&*frame.symbol)),
            number,
        };
        self.places.insert(place, known);
    }

    /// Makes room for stacks of other places. False if there is none.
    fn forget_places(&mut self) -> bool {
        if self.without_room > 0 {
            self.without_room -= 1;
            return false;
        }
        let before = self.places.len();
        let enough = before - FORGOTTEN;
        let old = self.learned.saturating_sub(NEW_PLACES);
        let (told, owners) = (self.places_told(), self.places_of_owners());
        let is_kept = |place: &Place, known: &Known| known.number > old || told.contains(place);
        self.places
            .retain(|place, known| is_kept(place, known) || owners.contains(place));
        if self.places.len() > enough {
            // The line that waited tells more than the one that made it wait.
            let with_owners = self.places.len();
            self.places.retain(|place, known| is_kept(place, known));
            self.tally.folded.stacks += (with_owners - self.places.len()) as u64;
        }
        if self.places.len() > enough {
            self.without_room = FORGOTTEN;
        }
        self.places.len() < before
    }

    /// Places that waits, holds and chains tell of.
    fn places_told(&self) -> FxHashSet<Place> {
        let Tally { cells, holds, .. } = &self.tally;
        let waits = cells.keys().map(|key| key.place);
        let holds = holds.keys().map(|&(_, place, _)| place);
        let links = self.chains.links().map(|link| link.place);
        // Whose next wait may be one with the last.
        let last = self
            .threads
            .values()
            .filter_map(|thread| thread.past.back());
        let last = last.map(|past| past.key.place);
        waits.chain(holds).chain(links).chain(last).collect()
    }

    /// Places of those who ended waits.
    fn places_of_owners(&self) -> FxHashSet<Place> {
        let Tally { cells, holds, .. } = &self.tally;
        let owners = cells.values().chain(holds.values());
        let owners = owners.flat_map(|cell| &cell.owners.of);
        owners.map(|((_, place), _)| *place).collect()
    }

    /// Waits of the goroutines of `pid` are told as [`Event::Parked`] from `since` on: what its threads sleep for them is no other wait.
    pub fn goroutines_are_told(&mut self, pid: Tid, since: Ns) {
        if self.timed.len() < self.limits.threads {
            self.timed.entry(pid).or_insert(since);
        }
    }

    /// Whether those of `pid` are.
    pub fn are_goroutines_told(&self, pid: Tid) -> bool {
        self.timed.contains_key(&pid)
    }

    /// A thread's sleep for what a goroutine waits for, which is told by itself.
    fn is_told_by_goroutine(&self, wait: &Wait) -> bool {
        let is_timed = || {
            let since = self.timed.get(&wait.pid);
            since.is_some_and(|&since| since <= wait.begin)
        };
        let is_parked = || {
            let known = self.places.get(&wait.place);
            known.is_some_and(|known| known.is_of_goroutine)
        };
        wait.kind == Kind::Futex && is_timed() && is_parked()
    }

    /// What is known of a place.
    pub fn known(&self, place: Place) -> Option<&Known> {
        self.places.get(&place)
    }

    /// What is known of a step of a chain.
    pub fn link(&self, id: LinkId) -> Option<&Link> {
        self.chains.get(id)
    }

    /// What was added up so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Threads and processes that the sums tell of. Cost: O(cells).
    pub fn told(&self) -> FxHashSet<Tid> {
        let Tally { cells, holds, .. } = &self.tally;
        let mut told: FxHashSet<Tid> = cells.keys().flat_map(|key| [key.pid, key.tid]).collect();
        for cell in cells.values().chain(holds.values()) {
            told.extend(cell.owners.of.iter().map(|((tid, _), _)| *tid));
        }
        told
    }

    /// Adds waits of which only sums are known ([`Tally::add_sum`]).
    pub(crate) fn add_sum(&mut self, key: CellKey, share: Share, max_ns: Ns, lengths: &Histogram) {
        self.tally.add_sum(key, share, max_ns, lengths);
        self.tally.fold(self.limits);
    }

    /// The next event.
    ///
    /// A lock that wakes a sleeper without handing itself over (most do) may be taken by another
    /// thread first; the sleeper then sleeps again inside the same call. Such sleeps are one
    /// wait, from the first begin to the last end: those of one thread, for one lock, from one
    /// place, with nothing waited for in between, less than [`RETRY_NS`] apart, at a place whose
    /// stack names a lock, unless the thread was meanwhile seen to release the lock.
    /// Limit: who gets a lock, holds it for less than that, releases it while nobody sleeps on
    /// it, and at once has to wait for it again at the same place counts one wait instead of
    /// two, whose total is too long by the time in between.
    ///
    /// A thread of Go that was woken for a goroutine looks for it in the queues of the others, and before it takes the one
    /// that another thread was to run next it sleeps for microseconds, which the kernel's timers make many of. The
    /// goroutine waits until that is over: such a nap, less than [`SEARCH_NS`] after the sleep, is part of the wait.
    pub fn feed(&mut self, event: &Event) {
        match event {
            Event::Wait(wait) => self.wait(wait),
            Event::Parked(parked) => self.parked(parked),
            Event::Hold(hold) => self.hold(hold),
            Event::Lost(count) => self.tally.lost = self.tally.lost.saturating_add(*count),
        }
    }

    /// `None` for a sleep that is not for a lock.
    fn told_by_stack(&self, kind: Kind, place: Place) -> Option<Kind> {
        if kind != Kind::KernelSleep {
            return Some(kind);
        }
        let known = self.places.get(&place)?;
        KernelPrimitive::from_sleep(&known.stack).map(Kind::Kernel)
    }

    fn wait(&mut self, wait: &Wait) {
        if wait.kind == Kind::Nap {
            return self.nap(wait);
        }
        let Some(kind) = self.told_by_stack(wait.kind, wait.place) else {
            return;
        };
        let wait = &Wait { kind, ..*wait };
        if wait.end < wait.begin || self.is_told_by_goroutine(wait) {
            return;
        }
        let key = self.key(wait);
        self.tally.learn_use(wait);
        let chain = wait
            .waker
            .and_then(|waker| self.chain(wait, waker, DEPTH - 1));
        let begun = self.retried(&key, wait);
        let (next, ns) = chain.unzip();
        let is_longer = self.tally.wait(key, |cell| {
            let is_longer = begun.is_some_and(|(begin, before)| {
                cell.prolong(before - begin, wait.end - begin, wait)
            });
            if !is_longer {
                cell.add(wait);
            }
            if let (Some(link), Some(ns)) = (next, ns) {
                cell.nested.add(link, Share { count: 1, ns });
            }
            is_longer
        });
        if let Some(waker) = wait.waker {
            self.released(wait.lock, waker);
        }
        self.remember(wait, key, begun.filter(|_| is_longer), next);
        self.tally.fold(self.limits);
    }

    /// What `wait` is counted under. Where the thread waited before the recording was seen by other means, and has
    /// a place of its own; what goes on there is of one wait.
    fn key(&self, wait: &Wait) -> CellKey {
        let key = CellKey::of(wait);
        let thread = self.threads.get(&wait.tid);
        let last = thread.and_then(|thread| thread.past.back());
        match last.filter(|last| last.began_before) {
            Some(last)
                if (CellKey {
                    place: last.key.place,
                    ..key
                }) == last.key
                    && self.goes_on(wait) =>
            {
                last.key
            }
            _ => key,
        }
    }

    /// Whether it is one call with the thread's last wait, if both are for one lock from one place.
    fn goes_on(&self, wait: &Wait) -> bool {
        let Some(thread) = self.threads.get(&wait.tid) else {
            return false;
        };
        let Some(last) = thread.past.back() else {
            return false;
        };
        let known = self.places.get(&wait.place);
        let is_lock = known.is_some_and(|known| known.lock.primitive.may_barge());
        let at_once = wait.begin >= last.end && wait.begin - last.end < RETRY_NS;
        wait.kind == Kind::Futex && is_lock && at_once && !thread.has_released
    }

    /// Waits that have not ended yet, added up by themselves.
    pub(crate) fn cells_of(&self, open: &[Wait]) -> FxHashMap<CellKey, Cell> {
        let mut cells: FxHashMap<CellKey, Cell> = FxHashMap::default();
        for wait in open.iter().filter(|wait| wait.kind != Kind::Nap) {
            if let Some(kind) = self.told_by_stack(wait.kind, wait.place) {
                let wait = Wait { kind, ..*wait };
                cells.entry(CellKey::of(&wait)).or_default().add(&wait);
            }
        }
        cells
    }

    /// Makes the thread's last wait longer by a nap, if both belong to one search for work.
    fn nap(&mut self, nap: &Wait) {
        let is_go = |place: Place| {
            let lock = self.places.get(&place).map(|known| known.lock);
            lock.is_some_and(|lock| {
                lock.library == Library::Go && lock.primitive != Primitive::Service
            })
        };
        let thread = self.threads.get_mut(&nap.tid);
        let Some(last) = thread.and_then(|thread| thread.past.back_mut()) else {
            return;
        };
        let at_once =
            nap.begin >= last.end && nap.begin - last.end < SEARCH_NS && nap.end >= nap.begin;
        if !at_once || last.key.kind != Kind::Futex || !is_go(last.key.place) || !is_go(nap.place) {
            return;
        }
        let (before, now) = (last.end - last.begin, nap.end - last.begin);
        let prolong = |cell: &mut Cell| cell.prolong(before, now, nap);
        if self.tally.known_wait(&last.key, prolong) == Some(true) {
            last.end = nap.end;
        }
    }

    /// Threads come and go under a goroutine: its waits are the process's. What its waker waited for itself, as another goroutine,
    /// is not known.
    fn parked(&mut self, parked: &Parked) {
        let Parked { wait, before } = parked;
        let wait = Wait {
            tid: wait.pid,
            ..*wait
        };
        let ns = wait.end.saturating_sub(wait.begin);
        if wait.end < wait.begin || *before > ns {
            return;
        }
        // What is new of it.
        let piece = Wait {
            begin: wait.begin + before,
            ..wait
        };
        self.tally.wait(CellKey::of(&wait), |cell| {
            if *before == 0 || !cell.prolong(*before, ns, &piece) {
                cell.add(&piece);
            }
        });
        self.tally.fold(self.limits);
    }

    /// Begin and end of the wait that this one goes on with.
    fn retried(&self, key: &CellKey, wait: &Wait) -> Option<(Ns, Ns)> {
        let thread = self.threads.get(&wait.tid)?;
        let last = thread.past.back()?;
        (last.key == *key && self.goes_on(wait)).then_some((last.begin, last.end))
    }

    fn released(&mut self, lock: LockId, waker: Waker) {
        if let Some(thread) = self.threads.get_mut(&waker.tid)
            && let Some(last) = thread.past.back()
            && last.key.lock == lock
            && waker.ts >= last.end
        {
            thread.has_released = true;
        }
        if self.releases.len() >= self.limits.threads && !self.releases.contains_key(&lock) {
            self.releases.clear();
        }
        let last = self.releases.entry(lock).or_default();
        if last[0].is_none_or(|(_, ts)| ts <= waker.ts) {
            *last = [Some((waker.tid, waker.ts)), last[0]];
        }
    }

    fn remember(
        &mut self,
        wait: &Wait,
        key: CellKey,
        begun: Option<(Ns, Ns)>,
        next: Option<LinkId>,
    ) {
        if self.threads.len() >= self.limits.threads && !self.threads.contains_key(&wait.tid) {
            self.forget_threads();
        }
        let thread = self.threads.entry(wait.tid).or_default();
        let mut began_before = wait.began_before;
        if begun.is_some() {
            let last = thread.past.pop_back();
            began_before |= last.is_some_and(|last| last.began_before);
        } else if thread.past.len() == PAST {
            thread.past.pop_front();
        }
        thread.past.push_back(Past {
            key,
            began_before,
            begin: begun.map_or(wait.begin, |(begin, _)| begin),
            end: wait.end,
            next,
        });
        thread.has_released = false;
    }

    /// Forgets the half that has not waited for longest.
    fn forget_threads(&mut self) {
        let last = |thread: &Thread| thread.past.back().map_or(0, |past| past.end);
        let mut ends: Vec<Ns> = self.threads.values().map(last).collect();
        let middle = ends.len() / 2;
        let median = *ends.select_nth_unstable(middle).1;
        self.threads.retain(|_, thread| last(thread) > median);
    }

    /// What `waker`, who ended `wait`, waited for itself while it lasted, and for how long.
    ///
    /// Counted is only the time since somebody else was last seen to release the lock: before,
    /// the waker did not have it. That it had it from then on is an assumption where the lock
    /// passed on without a sleeper.
    fn chain(&mut self, wait: &Wait, waker: Waker, depth: usize) -> Option<(LinkId, Ns)> {
        let releases = self.releases.get(&wait.lock);
        let since = releases
            .into_iter()
            .flatten()
            .flatten()
            .filter(|&&(tid, ts)| tid != waker.tid && ts < waker.ts)
            .map(|&(_, ts)| ts)
            .max()
            .unwrap_or(0)
            .max(wait.begin);
        let past = self.threads.get(&waker.tid)?.past.iter();
        let overlap = |past: &Past| past.end.min(waker.ts).saturating_sub(past.begin.max(since));
        let (past, ns) = past
            .filter(|past| past.key.lock != wait.lock)
            .map(|past| (*past, overlap(past)))
            .filter(|&(_, ns)| ns > 0)
            .max_by_key(|&(past, ns)| (ns, past.end))?;
        let next = past.next.and_then(|id| self.cut(id, depth.checked_sub(1)?));
        let link = Link {
            kind: past.key.kind,
            place: past.key.place,
            lock: past.key.lock,
            next,
        };
        let id = self.intern(link);
        if id.is_none() {
            self.tally.folded.chains += 1;
        }
        Some((id?, ns))
    }

    /// The chain without what is beyond `depth` steps.
    fn cut(&mut self, id: LinkId, depth: usize) -> Option<LinkId> {
        let link = *self.link(id)?;
        if depth == 0 {
            return None;
        }
        let next = link.next.and_then(|next| self.cut(next, depth - 1));
        self.intern(Link { next, ..link })
    }

    fn intern(&mut self, link: Link) -> Option<LinkId> {
        let Tracker {
            chains,
            tally,
            threads,
            ..
        } = self;
        chains.intern(link, || {
            let sums = tally.cells.values();
            let sums = sums.flat_map(|cell| cell.nested.of.iter().map(|&(id, _)| id));
            let past = threads.values().flat_map(|thread| &thread.past);
            sums.chain(past.filter_map(|past| past.next))
        })
    }

    fn hold(&mut self, hold: &Hold) {
        let key = (hold.kind, hold.place, hold.lock);
        let ns = hold.end.saturating_sub(hold.begin);
        self.tally.hold(key, |cell| {
            cell.times += 1;
            cell.sleeps += 1;
            cell.total_ns = cell.total_ns.saturating_add(ns);
            cell.max_ns = cell.max_ns.max(ns);
            cell.lengths.add(ns);
            let by = (hold.tid, hold.place);
            cell.owners.add(by, Share { count: 1, ns });
        });
        self.tally.fold(self.limits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chains::LINKS;

    fn wait(tid: Tid, place: u64, begin: Ns) -> Wait {
        Wait {
            tid,
            pid: 1,
            lock: LockId {
                pid: 1,
                address: 64,
            },
            kind: Kind::Futex,
            begin,
            end: begin + 10,
            place: Place(place),
            waker: None,
            expected: 0,
            is_open: false,
            began_before: false,
            is_polled: false,
        }
    }

    fn stack_of(symbol: &str) -> Arc<CallStack> {
        let frame = amdahl_speedup::event::Frame {
            symbol: symbol.into(),
            ..Default::default()
        };
        Arc::new(CallStack {
            user: vec![frame],
            ..CallStack::default()
        })
    }

    #[test]
    fn waits_of_goroutines_are_not_told_by_their_threads_as_well() {
        let mut tracker = Tracker::new(Limits::default());
        tracker.learn(Place(1), &stack_of("runtime.semacquire1"));
        tracker.learn(Place(2), &stack_of("runtime.chanrecv"));
        tracker.goroutines_are_told(1, 100);
        // Before; meanwhile; for something else; in another process.
        for (place, begin, pid) in [(1, 90, 1), (1, 100, 1), (2, 100, 1), (1, 100, 2)] {
            tracker.feed(&Event::Wait(Wait {
                pid,
                ..wait(7, place, begin)
            }));
        }
        assert_eq!(tracker.tally.total(), Share { count: 3, ns: 30 });
    }

    #[test]
    fn a_goroutine_that_lost_a_race_waits_once_on_whatever_threads() {
        let mut tracker = Tracker::new(Limits::default());
        let mut parked = |tid, end, before| {
            let wait = Wait {
                kind: Kind::Goroutine,
                end,
                ..wait(tid, 1, 1_000)
            };
            tracker.feed(&Event::Parked(Parked { wait, before }));
        };
        parked(7, 1_400, 0);
        parked(8, 1_900, 400);
        // None that can be.
        parked(8, 1_900, 901);
        let mut cells = tracker.tally.cells.values();
        let cell = cells.next().expect("a cell");
        assert_eq!((cell.times, cell.sleeps, cell.total_ns), (1, 2, 900));
        assert_eq!((cell.max_ns, cells.len()), (900, 0));
        // What it goes on with is not known any more.
        let wait = Wait {
            kind: Kind::Goroutine,
            end: 6_000,
            ..wait(7, 2, 1_000)
        };
        tracker.feed(&Event::Parked(Parked {
            wait,
            before: 4_000,
        }));
        assert_eq!(tracker.tally.total().ns, 900 + 1_000);
    }

    /// The table was first come, first served: whatever was new after a while never got a stack.
    #[test]
    fn places_that_nothing_tells_of_make_room() {
        let mut tracker = Tracker::new(Limits::default());
        let stack = Arc::new(CallStack::default());
        let last = 3 * PLACES as u64;
        for place in 1..=last {
            tracker.learn(Place(place), &stack);
            if place == 7 {
                tracker.feed(&Event::Wait(wait(1, place, 0)));
                let ts = 5;
                let (tid, place) = (2, Place(8));
                let waker = Some(Waker { tid, ts, place });
                let wait = Wait {
                    waker,
                    ..wait(3, 7, 0)
                };
                tracker.feed(&Event::Wait(wait));
            }
        }
        assert!(tracker.places.len() <= PLACES);
        assert!(tracker.known(Place(last)).is_some(), "what is new");
        assert!(tracker.known(Place(7)).is_some(), "where somebody waited");
        assert!(tracker.known(Place(8)).is_some(), "who ended that");
        assert!(tracker.known(Place(9)).is_none());
        assert_eq!(
            tracker.tally.folded,
            Default::default(),
            "nothing is missing"
        );
    }

    #[test]
    fn stacks_without_room_are_counted() {
        let cells = 2 * PLACES;
        let threads = 16;
        let mut tracker = Tracker::new(Limits {
            cells,
            threads,
            ..Limits::within(1 << 30)
        });
        let stack = Arc::new(CallStack::default());
        let more = 2 * FORGOTTEN as u64;
        for place in 1..=PLACES as u64 + more {
            tracker.learn(Place(place), &stack);
            tracker.feed(&Event::Wait(wait(1, place, 20 * place)));
        }
        assert_eq!(tracker.places.len(), PLACES);
        assert_eq!(tracker.tally.folded.stacks, more);
    }

    /// Who waits for whom, where and for how long differs each time: cells become as large as they can.
    #[test]
    fn sums_take_no_more_than_they_may() {
        let limits = Limits::within(1 << 20);
        let mut tracker = Tracker::new(limits);
        let mut random = 1_u64;
        let mut below = |n: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) % n
        };
        let (mut most, mut total) = (0, 0);
        for n in 1..=200_000_u64 {
            let ts = 1000 * n;
            let (tid, place) = (1 + below(50) as Tid, Place(1 + below(20)));
            let bits = 1 + below(30);
            let ns = below(1 << bits);
            let waker = Some(Waker { tid, ts, place });
            // First many cells, then fewer that grow.
            let places = if n < 100_000 { 10_000 } else { 60 };
            let waiter = wait(1 + below(4) as Tid, 1 + below(places), ts);
            let end = ts + ns;
            tracker.feed(&Event::Wait(Wait {
                end,
                waker,
                ..waiter
            }));
            total += ns;
            let tally = tracker.tally();
            most = most.max(tally.bytes());
            assert!(tally.bytes() <= limits.bytes, "{n}: {}", tally.bytes());
        }
        let tally = tracker.tally();
        assert!(most > limits.bytes / 2, "{most}");
        assert!(tally.folded.threads > 0);
        assert_eq!(tally.total().ns, total);
    }

    /// `chains` waits of thread 1, the first `told` of which at places of their own, for thread 2, which waits for another lock at
    /// a place of its own each time.
    fn nested_waits(chains: usize, told: usize) -> Tracker {
        let mut tracker = Tracker::new(Limits::default());
        for n in 1..=chains as u64 {
            let from = 1000 * n;
            let holder = Wait {
                lock: LockId {
                    pid: 1,
                    address: 128,
                },
                ..wait(2, n, from + 10)
            };
            tracker.feed(&Event::Wait(holder));
            let (tid, ts, place) = (2, from + 30, Place(1));
            let waiter = Wait {
                end: from + 30,
                waker: Some(Waker { tid, ts, place }),
                ..wait(1, n.min(told as u64), from)
            };
            tracker.feed(&Event::Wait(waiter));
        }
        tracker
    }

    /// Of chains beyond the limit nothing was said.
    #[test]
    fn chains_that_are_not_kept_are_counted() {
        let more = 5;
        let tracker = nested_waits(LINKS + more, LINKS + more);
        assert_eq!(tracker.chains.links().len(), LINKS);
        assert_eq!(tracker.tally.folded.chains, more as u64);
    }

    /// The table was first come, first served: chains that were new after a while were never told.
    #[test]
    fn chains_that_nothing_tells_of_make_room() {
        let tracker = nested_waits(3 * LINKS, 1);
        assert_eq!(tracker.chains.links().len(), LINKS);
        assert_eq!(tracker.tally.folded.chains, 0);
        let cells = tracker.tally.cells.iter();
        let mut of_one = cells.filter(|(key, _)| key.tid == 1);
        let (_, cell) = of_one.next().unwrap();
        for (id, _) in &cell.nested.of {
            let link = tracker.link(*id).unwrap();
            assert_eq!(link.lock.address, 128);
            assert_eq!(tracker.chains.id_of(link), *id);
        }
        assert_eq!(cell.nested.total().count, 3 * LINKS as u64);
    }
}
