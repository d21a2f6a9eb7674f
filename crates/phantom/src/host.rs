//! What the host's page says, believed as far as it can be: pure, by the clock of the guest.

use amdahl_phantom_page::{Foreign, ForeignError, ReadError, STALE_TICKS, Snapshot};

use crate::reading::HostReading;

/// Why the host's page is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Silence {
    /// It was the same at each look so far: what stands there may be of a writer that ended long ago.
    #[error("it has not changed since the first look")]
    Unchanged,
    /// It has changed, and does not any more.
    #[error("it is stale: it has not changed for {:.1} s", *.0 as f64 / 1e9)]
    Stale(u64),
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(#[from] ForeignError),
}

/// Follows the page from look to look.
#[derive(Clone, Debug)]
pub struct Follower {
    last: Option<Foreign>,
    looked_ns: u64,
    /// When it was found changed last.
    changed_ns: Option<u64>,
    state: Result<(), Silence>,
    sums: HostReading,
}

impl Default for Follower {
    fn default() -> Follower {
        Follower {
            last: None,
            looked_ns: 0,
            changed_ns: None,
            state: Err(Silence::Unchanged),
            sums: HostReading::default(),
        }
    }
}

impl Follower {
    /// What was `seen` at `now_ns` of the guest's clock. The time since the last look is that of what is on the page now.
    pub fn look(&mut self, now_ns: u64, seen: Result<Foreign, ForeignError>) {
        let elapsed_ns = match self.looked_ns {
            0 => 0,
            looked_ns => now_ns.saturating_sub(looked_ns),
        };
        self.looked_ns = now_ns;
        match seen {
            Ok(seen) => {
                // The host's own time is a number like another here: what counts is that it is another number than before.
                if self.last.is_some_and(|last| last != seen) {
                    self.changed_ns = Some(now_ns);
                }
                self.last = Some(seen);
            }
            // Its writer was at it: what it said last holds.
            Err(ForeignError::Read(ReadError::Busy)) if self.last.is_some() => {}
            Err(error) => {
                (self.last, self.changed_ns) = (None, None);
                self.state = Err(Silence::Unreadable(error));
                return;
            }
        }
        let (Some(last), Some(changed_ns)) = (self.last, self.changed_ns) else {
            self.state = Err(Silence::Unchanged);
            return;
        };
        let unchanged_ns = now_ns.saturating_sub(changed_ns);
        if unchanged_ns > STALE_TICKS * u64::from(last.snapshot.tick_us) * 1_000 {
            self.state = Err(Silence::Stale(unchanged_ns));
            return;
        }
        self.state = Ok(());
        let spent = |cpus: f64| (cpus * elapsed_ns as f64) as u64;
        let sums = &mut self.sums;
        sums.known_ns = sums.known_ns.saturating_add(elapsed_ns);
        sums.runnable_ns = sums
            .runnable_ns
            .saturating_add(spent(last.snapshot.runnable.to_f64()));
        sums.steal_ns = sums
            .steal_ns
            .saturating_add(spent(last.snapshot.phantom.to_f64()));
        sums.others_ns = sums
            .others_ns
            .saturating_add(spent(sharers(&last.snapshot)));
    }

    /// The counters, if the page is fresh.
    pub fn reading(&self) -> Option<HostReading> {
        self.state.is_ok().then_some(self.sums)
    }

    /// What the page said last, if it is fresh.
    ///
    /// # Errors
    /// Why it is not used.
    pub fn fresh(&self) -> Result<Foreign, Silence> {
        self.state?;
        self.last.ok_or(Silence::Unchanged)
    }
}

/// The host's other threads with whom the virtual CPUs share: none while it is a quota that holds these back.
fn sharers(snapshot: &Snapshot) -> f64 {
    let quota = snapshot.quota.to_f64();
    let wanted = snapshot.running.to_f64() + snapshot.phantom.to_f64();
    if quota > 0.0 && wanted > quota {
        0.0
    } else {
        snapshot.others.to_f64()
    }
}

#[cfg(test)]
mod tests {
    use amdahl_phantom_page::{Cpus, OpenError, Source};

    use super::*;

    const MS: u64 = 1_000_000;

    /// A tick of a host whose clock has nothing to do with ours.
    fn tick(ticks: u64, runnable: f64) -> Result<Foreign, ForeignError> {
        Ok(Foreign {
            snapshot: Snapshot {
                time_ns: u64::MAX - 1000 + ticks,
                ticks,
                tick_us: 20_000,
                window_us: 100_000,
                runnable: Cpus::from_f64(runnable),
                phantom: Cpus::from_f64(0.5),
                others: Cpus::from_f64(3.0),
                allowed: 4,
                ..Snapshot::default()
            },
            writer: 1,
            source: Source::Bpf,
        })
    }

    #[test]
    fn what_does_not_change_is_not_believed_whatever_its_time() {
        let mut follower = Follower::default();
        for n in 1..100 {
            follower.look(n * 100 * MS, tick(7, 2.0));
            assert_eq!(follower.fresh(), Err(Silence::Unchanged));
            assert_eq!(follower.reading(), None);
        }
    }

    #[test]
    fn change_is_life_and_ten_ticks_without_are_its_end() {
        let mut follower = Follower::default();
        follower.look(100 * MS, tick(7, 2.0));
        follower.look(150 * MS, tick(8, 2.0));
        assert_eq!(follower.fresh().unwrap().snapshot.ticks, 8);
        follower.look(350 * MS, tick(8, 2.0));
        assert!(follower.fresh().is_ok(), "ten ticks");
        follower.look(351 * MS, tick(8, 2.0));
        assert_eq!(follower.fresh(), Err(Silence::Stale(201 * MS)));
        assert_eq!(follower.reading(), None);
        // Another writer begins anew.
        follower.look(400 * MS, tick(1, 2.0));
        assert!(follower.fresh().is_ok());
    }

    #[test]
    fn figures_are_summed_over_the_time_in_which_they_were_known() {
        let mut follower = Follower::default();
        follower.look(1, tick(1, 2.0));
        follower.look(100 * MS, tick(2, 2.0));
        let before = follower.reading().unwrap();
        follower.look(200 * MS, tick(3, 1.5));
        let after = follower.reading().unwrap();
        assert_eq!(after.known_ns - before.known_ns, 100 * MS);
        assert_eq!(after.runnable_ns - before.runnable_ns, 150 * MS);
        assert_eq!(after.steal_ns - before.steal_ns, 50 * MS);
        assert_eq!(after.others_ns - before.others_ns, 300 * MS);
        follower.look(10_000 * MS, tick(3, 1.5));
        follower.look(10_100 * MS, tick(4, 1.5));
        let last = follower.reading().unwrap();
        assert_eq!(last.known_ns - after.known_ns, 100 * MS);
    }

    #[test]
    fn what_a_quota_takes_is_shared_with_nobody() {
        let page = |quota: f64| Snapshot {
            running: Cpus::from_f64(2.0),
            phantom: Cpus::from_f64(2.0),
            others: Cpus::from_f64(9.0),
            quota: Cpus::from_f64(quota),
            ..Snapshot::default()
        };
        assert_eq!(
            [0.0, 2.0, 4.0].map(|quota| sharers(&page(quota))),
            [9.0, 0.0, 9.0]
        );
    }

    #[test]
    fn a_torn_page_says_what_it_said_before_and_no_page_says_nothing() {
        let busy = || Err(ForeignError::Read(ReadError::Busy));
        let mut follower = Follower::default();
        follower.look(50 * MS, busy());
        assert!(follower.fresh().is_err());
        follower.look(100 * MS, tick(1, 2.0));
        follower.look(200 * MS, tick(2, 2.0));
        follower.look(300 * MS, busy());
        assert_eq!(follower.fresh().unwrap().snapshot.ticks, 2);
        follower.look(500 * MS, busy());
        assert_eq!(follower.fresh(), Err(Silence::Stale(300 * MS)));
        for error in [
            ForeignError::Read(ReadError::Damaged),
            ForeignError::Open(OpenError::NoMagic),
        ] {
            follower.look(600 * MS, tick(3, 2.0));
            follower.look(610 * MS, tick(4, 2.0));
            assert!(follower.fresh().is_ok());
            follower.look(620 * MS, Err(error));
            assert_eq!(follower.fresh(), Err(Silence::Unreadable(error)));
            // What came after it must change once more.
            follower.look(630 * MS, tick(5, 2.0));
            assert_eq!(follower.fresh(), Err(Silence::Unchanged));
        }
    }

    #[test]
    fn time_that_goes_back_and_figures_without_end_are_borne() {
        let mut follower = Follower::default();
        let most = Foreign {
            snapshot: Snapshot {
                runnable: Cpus::from_bits(u32::MAX),
                phantom: Cpus::from_bits(u32::MAX),
                tick_us: 10_000_000,
                allowed: 65_535,
                ..tick(0, 0.0).unwrap().snapshot
            },
            ..tick(0, 0.0).unwrap()
        };
        for (n, now_ns) in [1, u64::MAX, 5, u64::MAX, 0, u64::MAX]
            .into_iter()
            .enumerate()
        {
            let mut seen = most;
            seen.snapshot.ticks = n as u64;
            follower.look(now_ns, Ok(seen));
        }
        assert!(
            follower
                .reading()
                .is_some_and(|sums| sums.runnable_ns == u64::MAX)
        );
    }
}
