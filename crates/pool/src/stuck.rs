//! Workers that do not get on: while they have all places and jobs wait, one more may run beside them. Pure.

/// So many looks of the watch in a row without having begun anything, and a worker is stuck.
const LOOKS: u32 = 10;

/// The pause before one more may run doubles so often. Jobs that are only long shall not all run at once, whatever the quota.
const DOUBLINGS: u32 = 4;

/// What the looks have shown.
#[derive(Debug)]
pub(crate) struct Stuck {
    seen: Box<[Seen]>,
    /// So many more than there are places may run.
    extra: u32,
    /// Looks since nobody has got on.
    pause: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    begun: u32,
    looks: u32,
}

impl Stuck {
    pub(crate) fn new(workers: u32) -> Self {
        Stuck {
            seen: vec![Seen::default(); workers as usize].into(),
            extra: 0,
            pause: 0,
        }
    }

    /// A worker, how much it has begun until now and whether it has a place. Whether it has begun nothing since the last look.
    pub(crate) fn see(&mut self, worker: u32, begun: u32, has_place: bool) -> bool {
        let seen = &mut self.seen[worker as usize];
        let is_same = seen.begun == begun;
        *seen = Seen {
            begun,
            looks: match is_same && has_place {
                true => seen.looks.saturating_add(1),
                false => 0,
            },
        };
        is_same
    }

    /// All workers were seen: how many more than `places` may run. `waits` is asked if it matters, whether a sleeper
    /// would find a job.
    pub(crate) fn extra(&mut self, places: u32, waits: impl FnOnce() -> bool) -> u32 {
        let stuck = self.seen.iter().filter(|seen| seen.looks >= LOOKS).count();
        // Beside those who are stuck one that gets on.
        let most = (stuck as u32 + 1).saturating_sub(places);
        if self.extra >= most {
            self.extra = most;
            self.pause = 0;
            return most;
        }
        self.pause += 1;
        let pause = (LOOKS << self.extra.min(DOUBLINGS)) - LOOKS;
        if self.pause > pause && waits() {
            self.extra += 1;
            self.pause = 0;
        }
        self.extra
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Looks until one more may run than before.
    fn looks(stuck: &mut Stuck, workers: u32, places: u32) -> u32 {
        let before = stuck.extra;
        (1..)
            .find(|_| {
                for worker in 0..workers {
                    stuck.see(worker, 1, true);
                }
                stuck.extra(places, || true) > before
            })
            .unwrap()
    }

    #[test]
    fn one_more_may_run_beside_those_who_are_stuck() {
        let mut stuck = Stuck::new(4);
        assert_eq!(
            looks(&mut stuck, 2, 2),
            LOOKS + 1,
            "the first look begins it"
        );
        assert_eq!(stuck.extra(2, || true), 1, "the third gets on");
        // It is stuck as well, and so is the fourth; each time it takes longer.
        assert_eq!(looks(&mut stuck, 3, 2), 2 * LOOKS + 1);
        assert_eq!(stuck.extra, 2);
        // One of them goes on, and then all.
        stuck.see(0, 2, true);
        assert_eq!(stuck.extra(2, || true), 1);
        for worker in 0..4 {
            stuck.see(worker, 3, true);
        }
        assert_eq!(stuck.extra(2, || true), 0);
    }

    #[test]
    fn nobody_is_stuck_who_has_no_place_and_nobody_comes_for_nothing() {
        let mut stuck = Stuck::new(2);
        for _ in 0..10 * LOOKS {
            stuck.see(0, 1, true);
            assert_eq!(stuck.extra(1, || false), 0, "nothing waits");
            stuck.see(1, 1, false);
            assert_eq!(stuck.extra(2, || true), 0, "a place is free");
        }
        assert_eq!(stuck.extra(1, || true), 1);
    }
}
