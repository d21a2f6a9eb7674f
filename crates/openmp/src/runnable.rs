//! How many threads of this process can run at once, which is how many may spin.
//!
//! From the page of `amdahl phantom` where there is one; otherwise the CPUs that may be used, less those that others were
//! seen to take from the threads. A page is sought only when something was taken: on a machine of its own a program pays a
//! load for each wait that is longer than a first look.

use std::sync::atomic::{AtomicU64, Ordering};

use amdahl_phantom_page::{Finder, Followed, Snapshot};

use crate::kept::Kept;
use crate::team::CONTENTION;
use crate::{capacity, sys, worker};

/// Looks are no closer together than this.
const WINDOW_NS: u64 = 20_000_000;

/// When to look again.
static DUE_NS: AtomicU64 = AtomicU64::new(0);
static STATE: Kept<State> = Kept::new();

/// A thread that waits looks, if it is time to, how many can run at `now_ns`.
#[inline]
pub(crate) fn follow(now_ns: u64) {
    if now_ns >= DUE_NS.load(Ordering::Relaxed) {
        look(now_ns);
    }
}

#[cold]
fn look(now_ns: u64) {
    let _whole = sys::not_cancelled();
    let Ok(mut state) = STATE.lock().try_lock() else {
        return;
    };
    DUE_NS.store(now_ns.saturating_add(WINDOW_NS), Ordering::Relaxed);
    // A region may be long: its waits look, where no other one begins.
    capacity::follow();
    let lost_ns = CONTENTION.missed_ns();
    let state = state.get_or_insert_with(|| State {
        page: Followed::new(Finder::from_environment()),
        looked_ns: now_ns,
        lost_ns,
    });
    let published = (state.page.is_found() || lost_ns > state.lost_ns)
        .then(|| state.page.read(now_ns))
        .flatten();
    let known = state.known(now_ns, published, lost_ns, worker::in_teams());
    let before = CONTENTION.runnable();
    CONTENTION.set_runnable(next(before, known, capacity::cpus_at_once()));
}

/// After `fork`, in the child.
pub(crate) fn in_child() {
    STATE.in_child();
}

struct State {
    page: Followed,
    looked_ns: u64,
    lost_ns: u64,
}

/// What a window says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    /// CPUs that the threads ran on or that were free for them.
    Runnable(f64),
    /// CPUs that were taken from them.
    Taken(f64),
}

impl State {
    /// What the window until `now_ns` says: `published` is the page, `lost_ns` what threads have lost until now, `threads`
    /// how many there are in teams.
    fn known(
        &mut self,
        now_ns: u64,
        published: Option<Snapshot>,
        lost_ns: u64,
        threads: u32,
    ) -> Known {
        let passed_ns = now_ns.saturating_sub(self.looked_ns).max(1);
        let taken = lost_ns.saturating_sub(self.lost_ns) as f64 / passed_ns as f64;
        (self.looked_ns, self.lost_ns) = (now_ns, lost_ns);
        published.map_or(Known::Taken(taken), |snapshot| {
            Known::Runnable(runnable(&snapshot, threads))
        })
    }
}

/// Of the CPUs that a page tells of, what a process with so many threads in teams has: who publishes it may watch others too.
fn runnable(snapshot: &Snapshot, threads: u32) -> f64 {
    let threads = f64::from(threads.max(1));
    let all = snapshot.running.to_f64() + snapshot.phantom.to_f64();
    snapshot.runnable.to_f64() * threads / threads.max(all)
}

/// How many can run after a window, of `before` until then: fewer at once, one more at a time. Pure, O(1).
fn next(before: u32, known: Known, usable: u32) -> u32 {
    let usable = usable.max(1);
    let cpus = match known {
        Known::Runnable(cpus) => cpus,
        Known::Taken(cpus) => f64::from(usable) - cpus,
    };
    // `as` saturates, and what is no number becomes 0.
    let now = (cpus.round() as u32).clamp(1, usable);
    now.min(before.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use amdahl_phantom_page::Cpus;
    use proptest::prelude::*;

    #[test]
    fn cpus_that_were_taken_cannot_be_spun_on() {
        assert_eq!(next(u32::MAX, Known::Taken(0.0), 8), 8);
        assert_eq!(next(8, Known::Taken(3.2), 8), 5);
        assert_eq!(next(5, Known::Taken(0.1), 8), 6);
        assert_eq!(next(6, Known::Taken(100.0), 8), 1);
        assert_eq!(next(8, Known::Runnable(2.6), 8), 3);
        assert_eq!(next(8, Known::Runnable(1e9), 4), 4);
        assert_eq!(next(8, Known::Runnable(f64::NAN), 4), 1);
    }

    #[test]
    fn who_waits_looks_when_it_is_time_to() {
        crate::team::init();
        let now = crate::sys::monotonic_ns();
        DUE_NS.store(0, Ordering::Relaxed);
        // Another test may be looking.
        while DUE_NS.load(Ordering::Relaxed) <= now {
            follow(now);
            std::thread::yield_now();
        }
        let state = STATE.lock().lock().expect("nobody has panicked");
        assert!(state.is_some());
    }

    #[test]
    fn a_window_s_losses_count_once() {
        let mut state = State {
            page: Followed::new(Finder::from_environment()),
            looked_ns: 0,
            lost_ns: 0,
        };
        let (window, none) = (WINDOW_NS, None);
        let half = Known::Taken(0.5);
        assert_eq!(state.known(window, none, window / 2, 8), half);
        assert_eq!(
            state.known(2 * window, none, window / 2, 8),
            Known::Taken(0.0)
        );
    }

    #[test]
    fn of_a_page_for_several_processes_each_takes_its_share() {
        let page = Snapshot {
            runnable: Cpus::from_f64(12.0),
            running: Cpus::from_f64(12.0),
            phantom: Cpus::from_f64(4.0),
            allowed: 16,
            ..Snapshot::default()
        };
        assert_eq!(runnable(&page, 16), 12.0);
        assert_eq!(runnable(&page, 4), 3.0);
        // Threads that sleep are not seen.
        assert_eq!(runnable(&page, 32), 12.0);
    }

    proptest! {
        #[test]
        fn somebody_may_always_spin_and_nobody_beyond_the_cpus(
            before in 1_u32.., cpus: f64, is_page: bool, usable in 0_u32..600,
        ) {
            let known = if is_page { Known::Runnable(cpus) } else { Known::Taken(cpus) };
            let now = next(before, known, usable);
            prop_assert!((1..=usable.max(1)).contains(&now));
        }
    }
}
