//! A range being worked on: what each thread does of it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::crew::Crew;
use super::offers::Offer;
use super::parts::{self, Pace, Parts};
use super::worth::Way;
use super::{Progress, Ranges};
use crate::cancel::CancelToken;
use crate::job::{Payload, keep_first, quietly};
use crate::priority;
use crate::registry::Registry;
use crate::states;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use crate::waits::{Waits, lock};
use crate::worker::Worker;

/// How a range came to its end too early.
pub(super) enum Ended<E> {
    Failed(E, Range<usize>),
    Cancelled,
    Panicked(Payload),
}

/// In the caller's frame.
#[repr(C)]
pub(super) struct Region<'a, E> {
    offer: Offer,
    work: &'a (dyn Fn(Range<usize>) -> Result<(), E> + Sync),
    parts: Parts,
    chunk_min: usize,
    /// Who shares in what is left: those who may run now, and those who have come.
    threads: AtomicU32,
    threads_max: u32,
    total: usize,
    progress: Option<Reporter<'a>>,
    token: Option<&'a CancelToken>,
    is_stopped: AtomicBool,
    ended: Mutex<Option<Ended<E>>>,
    /// What those who have left have done.
    done: Mutex<Vec<Range<usize>>>,
}

struct Reporter<'a> {
    done: AtomicUsize,
    every: Duration,
    call: Progress<'a>,
    last: Mutex<(Instant, usize)>,
}

impl Reporter<'_> {
    fn add(&self, len: usize, total: usize, waits: &Waits) {
        let done = self.done.fetch_add(len, Ordering::AcqRel) + len;
        self.tell(done, total, waits);
    }

    fn tell(&self, done: usize, total: usize, waits: &Waits) {
        if done == total {
            // The last chunk: waits for a call that is under way, so that this one is the last.
            let mut last = lock(&self.last, waits);
            // Who has counted before and comes later says nothing any more.
            last.1 = total;
            (self.call)(total, total);
        } else if let Ok(mut last) = self.last.try_lock()
            && last.0.elapsed() >= self.every
            && done > last.1
        {
            *last = (Instant::now(), done);
            (self.call)(done, total);
        }
    }
}

impl<'a, E: Send> Region<'a, E> {
    pub(super) fn new(
        ranges: &'a Ranges<'_>,
        worker: &Worker,
        work: &'a (dyn Fn(Range<usize>) -> Result<(), E> + Sync),
    ) -> Self {
        let registry = worker.registry();
        let total = ranges.range.len();
        let chunks = total.div_ceil(ranges.chunk_min).min(u32::MAX as usize) as u32;
        // Those who may run now are asked for when somebody comes: more may when a quota is raised or a CPU comes.
        let threads_max = ranges.threads_max.min(chunks);
        let threads_max = threads_max.min(registry.cpus()).max(1);
        let threads = registry.counts.load().limit().min(threads_max);
        let nodes = registry.machine.nodes();
        let cpus: Vec<u32> = match nodes {
            1 => vec![1],
            _ => {
                let mut cpus = vec![0; nodes as usize];
                for cpu in registry.online_mask().iter() {
                    cpus[registry.machine.node(cpu) as usize] += 1;
                }
                cpus
            }
        };
        Region {
            offer: Offer {
                help: Self::help,
                open: AtomicU64::new(0),
                inside: AtomicU32::new(0),
                helpers_max: threads_max - 1,
                per_node_max: ranges.threads_per_node_max,
                helpers: Mutex::new(Crew::new(threads_max - 1, ranges.threads_per_node_max)),
                caller: worker.index,
                lowers: ranges.lowers,
            },
            work,
            parts: match &ranges.pieces {
                Some(pieces) if nodes > 1 => {
                    Parts::placed(ranges.range.clone(), ranges.chunk_min, &cpus, pieces)
                }
                _ => Parts::new(ranges.range.clone(), ranges.chunk_min, &cpus),
            },
            chunk_min: ranges.chunk_min,
            threads: AtomicU32::new(threads),
            threads_max,
            total,
            progress: ranges.progress.map(|(every, call)| Reporter {
                done: AtomicUsize::new(0),
                every,
                call,
                last: Mutex::new((Instant::now(), 0)),
            }),
            token: ranges.token.as_ref(),
            is_stopped: AtomicBool::new(false),
            ended: Mutex::new(None),
            done: Mutex::new(Vec::new()),
        }
    }

    /// The caller's part in it, until nobody is inside.
    pub(super) fn run(
        mut self,
        worker: &Worker,
        site: u64,
    ) -> (Option<Ended<E>>, Vec<Range<usize>>) {
        let registry = worker.registry();
        let site = worker.slot().sites.at(site);
        let (begun, ended) = self.share(worker, Some(site.way()));
        registry.offers.withdraw(&self.offer);
        self.wait_for_helpers(worker);
        let crew = self.offer.helpers.get_mut();
        let was_shared = !crew.unwrap_or_else(PoisonError::into_inner).is_empty();
        // Where others take the CPUs times say more of them than of the range.
        if !registry.crowd.is_crowded() {
            let ended = if was_shared { Instant::now() } else { ended };
            site.took((ended - begun).as_nanos() as u64, was_shared);
        }
        let ended = self
            .ended
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let done = self
            .done
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let len: usize = done.iter().map(ExactSizeIterator::len).sum();
        // The token may have been cancelled during the last chunks: then nothing was left to stop.
        let ended = ended.filter(|ended| len < self.total || !matches!(ended, Ended::Cancelled));
        (ended, done)
    }

    unsafe fn help(offer: *const Offer, worker: &Worker) {
        // SAFETY: `offer` is the first field of a region of this type, which stays while a helper is inside.
        let this = unsafe { &*offer.cast::<Self>() };
        this.share(worker, None);
    }

    /// Takes chunks until none is left; the caller does it in a way. From when until when.
    fn share(&self, worker: &Worker, caller: Option<Way>) -> (Instant, Instant) {
        let registry = worker.registry();
        let is_caller = caller.is_some();
        let is_alone = caller == Some(Way::Alone);
        let node = registry.machine.node(worker.cpu) as usize;
        if !is_caller {
            // More than when it began, maybe.
            let limit = registry.counts.load().limit().min(self.threads_max);
            self.threads.fetch_max(limit, Ordering::Relaxed);
        }
        let mut pace = Pace::new(self.chunk_min);
        let mut done: Vec<Range<usize>> = Vec::new();
        let mut may_invite = is_caller && self.threads_max > 1;
        let mut may_lower = !is_caller && self.offer.lowers;
        let begun = Instant::now();
        let mut before = begun;
        // On crowded CPUs a helper would sleep again before the next one.
        let alone_ns = match may_invite && !is_alone && !registry.crowd.is_crowded() {
            true => registry
                .offers
                .begin(registry.ns_at(begun), registry.wake_ns()),
            false => 0,
        };
        loop {
            if self.is_stopped.load(Ordering::Relaxed) {
                break;
            }
            if self.token.is_some_and(CancelToken::is_cancelled) {
                self.end(registry, Ended::Cancelled);
                break;
            }
            let spent = before - begun;
            let so_far_ns = alone_ns.saturating_add(spent.as_nanos() as u64);
            if may_invite && self.should_invite(worker, is_alone, so_far_ns) {
                may_invite = false;
                if registry.offers.add(&self.offer) {
                    fence(Ordering::SeqCst);
                    registry.wake_helper(worker.cpu);
                }
            }
            let threads = self.threads.load(Ordering::Relaxed);
            let Some(chunk) = self.parts.take(node, &pace, threads) else {
                break;
            };
            // One that is in a long chunk is lowered by the watch.
            if may_lower && spent >= priority::LOWER_AFTER {
                may_lower = false;
                if priority::lower_if_due(worker.slot()) {
                    registry.lowered.store(true, Ordering::Relaxed);
                }
            }
            match catch_unwind(AssertUnwindSafe(|| (self.work)(chunk.clone()))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    self.end(registry, Ended::Failed(error, chunk));
                    break;
                }
                Err(payload) => {
                    self.end(registry, Ended::Panicked(payload));
                    break;
                }
            }
            let len = chunk.len();
            match done.last_mut() {
                Some(last) if last.end == chunk.start => last.end = chunk.end,
                _ => done.push(chunk),
            }
            if let Some(progress) = &self.progress {
                let told = catch_unwind(AssertUnwindSafe(|| {
                    progress.add(len, self.total, &registry.range_locks)
                }));
                if let Err(payload) = told {
                    self.end(registry, Ended::Panicked(payload));
                    break;
                }
            }
            let now = Instant::now();
            pace.took(len, now - before);
            before = now;
        }
        // So that nobody comes for nothing.
        registry.offers.close(&self.offer);
        // Nobody stays awake for those that are better off alone.
        if !is_alone || !may_invite {
            let unhelped = match may_invite && registry.counts.load().limit() > 1 {
                true => before - begun,
                false => Duration::ZERO,
            };
            registry
                .offers
                .leave(registry.ns_at(before), unhelped.as_nanos() as u64);
        }
        let mut all = lock(&self.done, &registry.range_locks);
        match all.is_empty() {
            true => *all = done,
            false => all.append(&mut done),
        }
        (begun, before)
    }

    /// A helper costs a wake-up, of which the waker pays a part: it comes when that much work has been seen. One
    /// that is awake comes at once, unless the range is better off alone.
    fn should_invite(&self, worker: &Worker, is_alone: bool, spent_ns: u64) -> bool {
        let registry = worker.registry();
        (!is_alone && registry.has_seeker() || spent_ns >= registry.invite_after_ns())
            && registry.counts.load().limit() > 1
            && self.parts.left() > 0
    }

    fn end(&self, registry: &Registry, ended: Ended<E>) {
        let late = keep_first(&self.ended, ended, &registry.range_locks);
        self.is_stopped.store(true, Ordering::Relaxed);
        quietly(|| drop(late));
    }

    /// Helpers finish the chunks that they have: each in turn gets the caller's priority, so that none starves.
    fn wait_for_helpers(&self, worker: &Worker) {
        if self.offer.inside.load(Ordering::Acquire) == 0 {
            return;
        }
        let registry = worker.registry();
        let begun = Instant::now();
        let is_inside =
            |slot: u32| priority::is_helping(&registry.slots[slot as usize], self.offer_id());
        // A helper that runs is through with its chunk in less time than two sleeps and wake-ups take.
        let spin = match registry.crowd.is_crowded() {
            true => Duration::ZERO,
            false => parts::AIM,
        };
        let is_over = || self.offer.inside.load(Ordering::Acquire) == 0;
        if states::look_for_helpers(spin, &is_over) {
            registry.range_waits.record(begun.elapsed(), false);
            return;
        }
        worker.away(|| {
            let helpers: Vec<u32> = self.offer.helpers(registry).slots().collect();
            for &slot in &helpers {
                if self.offer.lowers {
                    priority::lend(&registry.slots[slot as usize], self.offer_id());
                }
                while is_inside(slot) && self.offer.inside.load(Ordering::Acquire) > 0 {
                    states::helpers_of_a_range(&worker.slot().parker, None);
                }
            }
            // One that has a ticket and has not begun.
            while self.offer.inside.load(Ordering::Acquire) > 0 {
                for &slot in helpers.iter().filter(|_| self.offer.lowers) {
                    priority::lend(&registry.slots[slot as usize], self.offer_id());
                }
                let moment = Some(Duration::from_micros(200));
                states::helpers_of_a_range(&worker.slot().parker, moment);
            }
        });
        registry.range_waits.record(begun.elapsed(), true);
    }

    fn offer_id(&self) -> usize {
        (&raw const self.offer).addr()
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use crate::Pool;

    #[test]
    fn who_comes_after_the_end_tells_no_progress() {
        let told = Mutex::new(Vec::new());
        let reporter = Reporter {
            done: AtomicUsize::new(0),
            every: Duration::ZERO,
            call: &|done, _| told.lock().unwrap().push(done),
            last: Mutex::new((Instant::now(), 0)),
        };
        let waits = Waits::new("progress");
        // Counted in this order, and told in that.
        for done in [20, 10, 100, 90] {
            reporter.tell(done, 100, &waits);
        }
        assert_eq!(*told.lock().unwrap(), [20, 100]);
    }

    /// A pool all of whose workers sleep, where no range is ever long enough to wake one for.
    fn asleep() -> Option<Pool> {
        if amdahl_topology::allowed().unwrap().len() < 2 {
            eprintln!("SKIPPED: one CPU is allowed, there is no helper");
            return None;
        }
        let pool = Pool::builder().follows_load(false).build().unwrap();
        while pool.state().sleeping < pool.threads() {
            std::thread::yield_now();
        }
        // Longer than all of them together may take on a machine that does much else.
        let wake_ns = &pool.registry.wake_ns;
        wake_ns.store(u64::MAX / 4, Ordering::Relaxed);
        Some(pool)
    }

    /// Each of many ranges begins as if those before it were worth a helper, after `before`; how often a worker has slept meanwhile.
    fn sleeps_of_short_ranges(pool: &Pool, before: impl Fn()) -> u64 {
        let registry = &pool.registry;
        let run = || pool.par_range(0..2, 1, |_| ());
        // From now on it is remembered.
        run();
        let sleeps = registry.sleeps.count().times;
        for _ in 0..100 {
            before();
            // Beyond any time that is worth a helper, and each is nothing.
            registry.offers.leave(registry.now_ns(), u64::MAX / 2);
            run();
        }
        while pool.state().sleeping < pool.threads() {
            std::thread::yield_now();
        }
        registry.sleeps.count().times - sleeps
    }

    /// Each few of them a helper was woken, found nothing left, and slept again.
    #[test]
    fn short_ranges_wake_nobody_on_crowded_cpus() {
        let Some(pool) = asleep() else { return };
        pool.registry.crowd.set(true);
        let sleeps = sleeps_of_short_ranges(&pool, || ());
        pool.registry.crowd.set(false);
        assert_eq!(sleeps, 0);
    }

    #[test]
    fn ranges_that_took_longer_with_a_helper_wake_nobody() {
        let Some(pool) = asleep() else { return };
        let took = |alone_ns, shared_ns| {
            let slots = pool.registry.slots.iter();
            slots.for_each(|slot| slot.sites.set(alone_ns, shared_ns));
        };
        let sleeps = sleeps_of_short_ranges(&pool, || took(3_000, 5_000));
        assert_eq!(sleeps, 0);
        let sleeps = sleeps_of_short_ranges(&pool, || took(3_000, 2_000));
        assert!(sleeps > 0);
    }
}
