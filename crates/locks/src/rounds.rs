//! Whether a futex is a barrier, by what is seen of it.

use amdahl_speedup::event::{Ns, Tid};

use crate::event::Wait;

/// Rounds that prove a barrier, at least.
const ROUNDS_MIN: u64 = 4;
/// One round in so many may differ: somebody came before the last sleeper slept, or recording began in it.
const DIFFERING: u64 = 8;

/// Rounds of waits on one futex: a round is those waits that one thread ended together.
///
/// Many uses look alike. A condition, too, has a value that changes, and is signalled by those who wait for it at other
/// times. At a barrier of three or more, though, in every round all the others wait until the last one to come wakes
/// them all, and it is not always the same one. Of two threads it cannot be told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rounds {
    now: Option<Round>,
    last: Option<Came>,
    alike: u64,
    differing: u64,
    wakers_differ: bool,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    waker: Tid,
    /// Of the first of them.
    woken: Ns,
    waiters: u64,
    /// Sum of the hashes of those who waited.
    party: u64,
}

/// Who came to a round, and who of them was the last.
#[derive(Clone, Copy, Debug)]
struct Came {
    party: u64,
    waker: Tid,
}

/// Of splitmix64: sums of these tell sets apart.
fn hash(tid: Tid) -> u64 {
    let mut hash = u64::from(tid).wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

impl Rounds {
    /// The next wait that is over.
    pub fn add(&mut self, wait: &Wait) {
        let Some(waker) = wait.waker else {
            // A time limit or a signal; at a barrier there are none.
            self.differing += u64::from(!wait.is_open);
            return;
        };
        match &mut self.now {
            Some(round) if round.waker == waker.tid && wait.begin < round.woken => {
                round.waiters += 1;
                round.party = round.party.wrapping_add(hash(wait.tid));
                round.woken = round.woken.min(waker.ts);
            }
            _ => {
                self.close();
                self.now = Some(Round {
                    waker: waker.tid,
                    woken: waker.ts,
                    waiters: 1,
                    party: hash(wait.tid),
                });
            }
        }
    }

    fn close(&mut self) {
        let Some(round) = self.now.take() else {
            return;
        };
        let waker = round.waker;
        let party = round.party.wrapping_add(hash(waker));
        let last = self.last.replace(Came { party, waker });
        match last {
            _ if round.waiters < 2 => self.differing += 1,
            None => self.alike += 1,
            Some(last) if last.party == party => {
                self.alike += 1;
                self.wakers_differ |= last.waker != waker;
            }
            Some(_) => self.differing += 1,
        }
    }

    /// What was seen is what a barrier does, and nothing else.
    pub fn are_of_a_barrier(&self) -> bool {
        let mut all = *self;
        all.close();
        all.alike >= ROUNDS_MIN && all.wakers_differ && all.differing * DIFFERING <= all.alike
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Kind, LockId, Place, Waker};

    fn wait(tid: Tid, begin: Ns, woken: Option<(Tid, Ns)>) -> Wait {
        let place = Place(0);
        Wait {
            tid,
            pid: 1,
            lock: LockId::default(),
            kind: Kind::Futex,
            begin,
            end: woken.map_or(begin, |(_, ts)| ts) + 5,
            place,
            waker: woken.map(|(tid, ts)| Waker { tid, ts, place }),
            expected: 0,
            is_open: false,
            began_before: false,
            is_polled: false,
        }
    }

    fn are_of_a_barrier(waits: impl IntoIterator<Item = Wait>) -> bool {
        let mut rounds = Rounds::default();
        waits.into_iter().for_each(|wait| rounds.add(&wait));
        rounds.are_of_a_barrier()
    }

    /// A round at `at` of threads 1 to `parties`, which the thread `last` comes to at the end.
    fn round(at: Ns, parties: Tid, last: Tid) -> impl Iterator<Item = Wait> {
        let others = (1..=parties).filter(move |&tid| tid != last);
        others.map(move |tid| {
            let tid_ns = Ns::from(tid);
            wait(tid, at + tid_ns, Some((last, at + 500 + tid_ns)))
        })
    }

    #[test]
    fn all_wait_for_the_last_one_who_is_another_one_at_times() {
        let rounds = |parties: Tid, count: u64| {
            (0..count).flat_map(move |i| round(i * 1000, parties, 1 + (i as Tid / 2) % parties))
        };
        assert!(are_of_a_barrier(rounds(3, 8)));
        assert!(are_of_a_barrier(rounds(200, 8)));
        // Too few rounds, and too few threads.
        assert!(!are_of_a_barrier(rounds(3, 3)));
        assert!(!are_of_a_barrier(rounds(2, 100)));
        // The recording began within a round.
        assert!(are_of_a_barrier(rounds(3, 40).skip(1)));
    }

    #[test]
    fn who_wakes_always_and_never_waits_signals_a_condition() {
        let rounds = (0..100).flat_map(|i| round(i * 1000, 3, 9));
        assert!(!are_of_a_barrier(rounds));
        // Two of them.
        let rounds = (0..100).flat_map(|i| round(i * 1000, 3, 9 + (i as Tid & 1)));
        assert!(!are_of_a_barrier(rounds));
    }

    #[test]
    fn some_of_those_who_come_are_not_all() {
        // A pool: whoever has a task for others wakes those that sleep.
        let rounds = (0..100).flat_map(|i| round(i * 1000, 2 + (i as Tid % 3), 1 + (i as Tid & 1)));
        assert!(!are_of_a_barrier(rounds));
    }

    #[test]
    fn one_that_is_woken_alone_waits_for_a_lock_or_a_signal() {
        let turns = (0..100).map(|i| {
            let (tid, by) = (1 + i as Tid % 3, 1 + (i as Tid + 1) % 3);
            wait(tid, i * 1000, Some((by, i * 1000 + 500)))
        });
        assert!(!are_of_a_barrier(turns));
    }

    #[test]
    fn time_limits_are_not_of_a_barrier() {
        let rounds = (0..40).flat_map(|i| {
            let limit = wait(1, i * 1000 + 900, None);
            round(i * 1000, 3, 1 + i as Tid % 3).chain([limit])
        });
        assert!(!are_of_a_barrier(rounds));
    }

    /// A helper thread that waits for what another one asks for, and at the end the other way round: it was told as a
    /// barrier, in the first row of a parallel build.
    #[test]
    fn two_threads_with_one_condition_are_no_barrier() {
        let asked = (0..30).map(|i| wait(1, i * 1000, Some((2, i * 1000 + 500))));
        let ended = wait(2, 30_000, Some((1, 30_500)));
        assert!(!are_of_a_barrier(asked.chain([ended])));
    }
}
