//! A thread that never asks the source for content: it gives up what takes too long, and puts others into the place of who is held up.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::crew::Crew;
use super::queue::{Fault, Queue};
use crate::event::Loss;
use crate::inner::Inner;
use crate::plan::pages::{Claim, State};
use crate::sync::Word;
use crate::sys::clock::now_ns;

/// Ends the watchdog, and wakes it where it sleeps because there is nothing to watch.
pub(crate) struct Leash {
    turn: Word,
    is_asleep: AtomicBool,
    is_ended: AtomicBool,
}

impl Default for Leash {
    fn default() -> Leash {
        Leash {
            turn: Word::new(),
            is_asleep: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
        }
    }
}

impl Leash {
    /// There is something to watch, which was noted before by a SeqCst operation: either we see the watchdog asleep, or it sees that.
    /// Async-signal-safe.
    pub fn stir(&self) {
        if self.is_asleep.load(Ordering::SeqCst) && self.is_asleep.swap(false, Ordering::SeqCst) {
            self.turn();
        }
    }

    pub fn end(&self) {
        self.is_ended.store(true, Ordering::SeqCst);
        self.turn();
    }

    fn turn(&self) {
        let turn = self.turn.value();
        turn.fetch_add(1, crate::sync::Ordering::SeqCst);
        self.turn.wake_all();
    }
}

/// How long somebody is held up before another takes over what it keeps others waiting for, and how often the watchdog looks.
fn bound(timeout: Duration) -> Duration {
    (timeout / 4).clamp(Duration::from_millis(1), Duration::from_millis(100))
}

/// Looks without anything to watch until it falls asleep.
const QUIET: u32 = 16;

pub(crate) fn run(crew: &Arc<Crew>) {
    let inner = &*crew.inner;
    let leash = &inner.leash;
    let tick = bound(inner.timeout);
    let tick_ns = tick.as_nanos() as u64;
    let timeout_ns = u64::try_from(inner.timeout.as_nanos()).unwrap_or(u64::MAX);
    // A pause longer than that is one of all threads, as by SIGSTOP or a virtual machine that stood still.
    let gap_ns = tick_ns + (timeout_ns / 2).max(1_000_000_000);
    let (mut quiet, mut looked_ns, mut gone_on_ns) = (0, now_ns(), 0);
    while !leash.is_ended.load(Ordering::SeqCst) {
        let turn = leash.turn.value().load(crate::sync::Ordering::SeqCst);
        let mut now = now_ns();
        if now - looked_ns > gap_ns || inner.is_source_away() {
            gone_on_ns = now;
        }
        // Who was stopped together with us, or waits for who is away, has its time yet.
        let late_ns = match now.saturating_sub(gone_on_ns) >= timeout_ns {
            true => now.saturating_sub(timeout_ns),
            false => 0,
        };
        quiet = match look(crew, now, late_ns, tick_ns) {
            true => 0,
            false => quiet + 1,
        };
        if quiet < QUIET {
            leash.turn.sleep(turn, tick);
        } else {
            leash.is_asleep.store(true, Ordering::SeqCst);
            if !is_watched(crew) && !leash.is_ended.load(Ordering::SeqCst) {
                leash.turn.sleep(turn, Duration::from_secs(3600));
                now = now_ns();
            }
            leash.is_asleep.store(false, Ordering::SeqCst);
            quiet = 0;
        }
        looked_ns = now;
    }
}

/// Something goes on that may take too long.
fn is_watched(crew: &Crew) -> bool {
    let inner = &crew.inner;
    let is_changing = || {
        let unmarked = inner.unmarked.lock();
        !unmarked
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .is_empty()
    };
    !inner.in_flight.is_quiet()
        || !crew.handed.is_empty()
        || inner
            .shards
            .iter()
            .any(|shard| !shard.told.is_empty() || shard.serving_ns.0.load(Ordering::SeqCst) != 0)
        || is_changing()
}

/// Gives up what is older than `late_ns`, replaces who has been held up for `bound_ns`. Whether there is something to watch.
fn look(crew: &Arc<Crew>, now_ns: u64, late_ns: u64, bound_ns: u64) -> bool {
    let inner = &*crew.inner;
    for fetch in inner.in_flight.give_up(late_ns) {
        inner.give_up(&fetch);
        crew.given_up(fetch);
    }
    inner.mark_again();
    let is_held_up = |since_ns: u64| now_ns.saturating_sub(since_ns) > bound_ns;
    let queue_is_held_up = |queue: &Queue| {
        for fault in queue.take_late(late_ns) {
            give_up(inner, fault);
        }
        queue.oldest_ns().is_some_and(is_held_up)
    };
    for (number, shard) in inner.shards.iter().enumerate() {
        let since_ns = shard.serving_ns.0.load(Ordering::SeqCst);
        let is_queue = queue_is_held_up(&shard.told);
        if since_ns != 0 && is_held_up(since_ns) {
            crew.stand_in(number, since_ns);
        } else if is_queue && since_ns == 0 {
            crew.help(Some(number));
        }
    }
    if queue_is_held_up(&crew.handed) {
        crew.help(None);
    }
    is_watched(crew)
}

fn lose(inner: &Inner, pages: Range<usize>) {
    inner.lose(inner.shard(pages.start), pages, Some(Loss::Timeout));
}

/// Nobody has come to serve this fault.
fn give_up(inner: &Inner, fault: Fault) {
    let page = fault.page;
    let granule = inner.space.clip(page, page as u64..page as u64 + 1);
    let shard = inner.shard(page);
    match inner.pages.claim(page, granule) {
        Claim::Taken {
            pages,
            was: State::Missing,
        } => lose(inner, pages),
        // Zeros need no source: its thread faults again, and is served.
        Claim::Taken { pages, was } => inner.give_back(shard, pages, was),
        Claim::Busy if inner.left.leave(&inner.pages, page) => {}
        // Its thread faults again, if it has to.
        Claim::Busy | Claim::Present => {
            let _ = shard.uffd.wake(inner.space.addresses(&(page..page + 1)));
        }
    }
}
