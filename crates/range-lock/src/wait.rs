//! How a thread waits: awake for a bounded time, then in the queue, and there at last parked.

use std::time::{Duration, Instant};

use crate::sync::{self, thread};
use crate::waiter::Waiter;

/// Rounds of 1, 2, 4, ... pauses, up to a few microseconds.
const ROUNDS: u32 = 7;
/// Rounds of as many pauses as the last one, after each of which the CPU is offered to others: some tens of microseconds, as
/// long as it takes to wake a thread. Queues of sleepers, each of whom is woken for one short section, form less often.
const LONG_ROUNDS: u32 = 20;

/// Pauses before the first tries: a section that is short and alone is over by then.
const FIRST: [u32; 3] = [2, 8, 24];

/// So long a thread that was refused after that looks on. If so many others were served meanwhile, the place is busy with short sections.
const LOOK: Duration = Duration::from_micros(2);
const BUSY: u64 = 3;
/// So long it then stays away before each try, and so often. Threads that take turns with every section have to fetch
/// all that the section needs from each other's caches, which takes longer than a short section itself; so whoever
/// runs may go on for a while.
const AWAY: Duration = Duration::from_micros(12);
const BUSY_ROUNDS: u32 = 6;

/// Until when somebody waits. Without one: for ever.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(pub(crate) Option<Instant>);

impl Deadline {
    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// What is left, up to `most`.
    fn left(self, most: Duration) -> Duration {
        self.0.map_or(most, |deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            left.min(most)
        })
    }
}

/// Tries again and again for a bounded time; rarely where others are `served` all the time, if that is known.
pub(crate) fn try_again<T>(
    cpus: usize,
    deadline: Deadline,
    served: impl Fn() -> Option<u64>,
    mut attempt: impl FnMut() -> Option<T>,
) -> Option<T> {
    if cfg!(loom) {
        return None;
    }
    if cpus > 1 {
        for pauses in FIRST {
            (0..pauses).for_each(|_| sync::spin_loop());
            let done = attempt();
            if done.is_some() || deadline.is_over() {
                return done;
            }
        }
    }
    if cpus == 1 || !is_busy(deadline, served) {
        return spin(cpus, deadline, attempt);
    }
    for _ in 0..BUSY_ROUNDS {
        pause(deadline.left(AWAY));
        thread::yield_now();
        let done = attempt();
        if done.is_some() || deadline.is_over() {
            return done;
        }
    }
    None
}

fn is_busy(deadline: Deadline, served: impl Fn() -> Option<u64>) -> bool {
    let Some(before) = served() else { return false };
    pause(deadline.left(LOOK));
    served().is_some_and(|now| now.wrapping_sub(before) >= BUSY)
}

fn pause(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        (0..8).for_each(|_| sync::spin_loop());
    }
}

/// Tries again and again, ever more rarely, for a bounded time.
fn spin<T>(cpus: usize, deadline: Deadline, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
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
        let done = attempt();
        if done.is_some() || deadline.is_over() {
            return done;
        }
    }
    None
}

/// Sleeps until the request is granted. `false`: the time is over.
pub(crate) fn park(cpus: usize, waiter: &Waiter, mut deadline: Deadline) -> bool {
    let mut foreign = false;
    let granted = spin(cpus, deadline, || waiter.is_granted().then_some(())).is_some()
        || loop {
            if waiter.is_granted() {
                break true;
            }
            match deadline.left(Duration::MAX) {
                Duration::MAX => thread::park(),
                Duration::ZERO => break false,
                left => deadline = park_for(left, deadline),
            }
            foreign |= !waiter.is_granted();
        };
    if foreign {
        // Somebody else's call of `unpark` may have been used up.
        thread::current().unpark();
    }
    granted
}

/// Until when to wait now.
#[cfg(not(loom))]
fn park_for(time: Duration, deadline: Deadline) -> Deadline {
    thread::park_timeout(time);
    deadline
}

/// There is no time in loom: it may be over at any moment, as threads may be switched at any.
#[cfg(loom)]
fn park_for(_: Duration, _: Deadline) -> Deadline {
    Deadline(Some(Instant::now()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How often it tries in vain where others are served all the time, where nobody is, and where that is not known.
    fn tries(deadline: Deadline) -> [u32; 3] {
        let clock = Cell::new(0);
        let busy = || {
            clock.set(clock.get() + BUSY);
            Some(clock.get())
        };
        let quiet = || Some(7);
        let unknown = || None;
        let served: [&dyn Fn() -> Option<u64>; 3] = [&busy, &quiet, &unknown];
        served.map(|served| {
            let mut tries = 0;
            let never = || {
                tries += 1;
                None::<()>
            };
            assert!(try_again(2, deadline, served, never).is_none());
            tries
        })
    }

    #[test]
    fn it_tries_a_bounded_number_of_times() {
        let all = ROUNDS + LONG_ROUNDS;
        let first = FIRST.len() as u32;
        assert_eq!(
            tries(Deadline(None)),
            [BUSY_ROUNDS, all, all].map(|tries| first + tries)
        );
        assert_eq!(
            try_again(1, Deadline(None), || Some(1), || Some(3)),
            Some(3)
        );
    }

    /// A request with a time limit of some microseconds took as long as one without.
    #[test]
    fn nobody_tries_on_after_his_deadline() {
        assert_eq!(tries(Deadline(Some(Instant::now()))), [1, 1, 1]);
    }
}
