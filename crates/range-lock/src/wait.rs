//! How a thread waits: awake for a bounded time, then in the queue, and there at last parked.

use std::time::{Duration, Instant};

use crate::sync::{self, thread};
use crate::waiter::Waiter;

/// Rounds of 1, 2, 4, ... pauses, up to a few microseconds.
const ROUNDS: u32 = 7;
/// Rounds of as many pauses as the last one, after each of which the CPU is offered to others: some tens of microseconds, as
/// long as it takes to wake a thread. Queues of sleepers, each of whom is woken for one short section, form less often.
const LONG_ROUNDS: u32 = 20;

/// After so long a thread that was refused looks whether others came meanwhile, and then again after so long whether so
/// many did: then the place is busy.
const GLANCE: Duration = Duration::from_nanos(250);
const LOOK: Duration = Duration::from_nanos(750);
const BUSY: u64 = 2;
/// So long it then stays away before each try, and so often. Threads that take turns with every section have to fetch
/// all that the section needs from each other's caches, which takes longer than a short section itself; so whoever
/// runs may go on for a while.
const AWAY: Duration = Duration::from_micros(12);
const BUSY_ROUNDS: u32 = 6;

/// Tries again and again for a bounded time; rarely where others are `served` all the time.
pub(crate) fn try_again<T>(
    cpus: usize,
    served: impl Fn() -> u64,
    mut attempt: impl FnMut() -> Option<T>,
) -> Option<T> {
    if cfg!(loom) {
        return None;
    }
    if cpus > 1 && is_busy(served) {
        return (0..BUSY_ROUNDS).find_map(|_| {
            pause(AWAY);
            thread::yield_now();
            attempt()
        });
    }
    spin(cpus, attempt)
}

fn is_busy(served: impl Fn() -> u64) -> bool {
    let before = served();
    let since = || served().wrapping_sub(before);
    pause(GLANCE);
    if since() == 0 {
        return false;
    }
    pause(LOOK);
    since() >= BUSY
}

fn pause(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        (0..8).for_each(|_| sync::spin_loop());
    }
}

/// Tries again and again, ever more rarely, for a bounded time.
fn spin<T>(cpus: usize, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    if cfg!(loom) {
        return None;
    }
    for round in 0..ROUNDS + LONG_ROUNDS {
        if cpus > 1 {
            (0..1 << round.min(ROUNDS)).for_each(|_| sync::spin_loop());
        }
        if round >= ROUNDS {
            thread::yield_now();
        }
        if let Some(done) = attempt() {
            return Some(done);
        }
    }
    None
}

/// Sleeps until the request is granted. `false`: the time is over.
pub(crate) fn park(cpus: usize, waiter: &Waiter, deadline: Option<Instant>) -> bool {
    let mut foreign = false;
    let granted = spin(cpus, || waiter.is_granted().then_some(())).is_some()
        || loop {
            if waiter.is_granted() {
                break true;
            }
            match deadline {
                None => thread::park(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break false;
                    }
                    park_for(left);
                }
            }
            foreign |= !waiter.is_granted();
        };
    if foreign {
        // Somebody else's call of `unpark` may have been used up.
        thread::current().unpark();
    }
    granted
}

#[cfg(not(loom))]
fn park_for(time: std::time::Duration) {
    thread::park_timeout(time);
}

/// There is no time in loom.
#[cfg(loom)]
fn park_for(_: std::time::Duration) {
    thread::yield_now();
}
