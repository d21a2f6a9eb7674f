//! How a thread waits: briefly awake, then parked.

use std::time::Instant;

use crate::sync::{self, thread};
use crate::waiter::Waiter;

/// Rounds of 1, 2, 4, ... pauses: in all about as long as the standard library's locks spin, 1 to 5 us.
const ROUNDS: u32 = 6;

/// Tries again and again, ever more rarely, for a bounded time.
pub(crate) fn spin<T>(cpus: usize, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    if cfg!(loom) || cpus < 2 {
        return None;
    }
    for round in 0..ROUNDS {
        for _ in 0..1 << round {
            sync::spin_loop();
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
    let granted = loop {
        if waiter.is_granted() || spin(cpus, || waiter.is_granted().then_some(())).is_some() {
            break true;
        }
        match deadline {
            None => thread::park(),
            Some(deadline) => {
                let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                    break false;
                };
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
