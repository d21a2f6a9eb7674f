//! Whether a task wakes always the same other one, or many.

/// How often a task changes whom it wakes, about once a second halved: `wakee_flips` of the kernel.
///
/// Two tasks with many flips are a master and its many slaves or slaves of one another; pulling them together
/// onto one cache would stack them. Source: M. Galbraith's and P. Zijlstra's `wake_wide` (Linux 3.12 and 4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flips {
    count: u32,
    last: Option<u64>,
    decayed_ns: u64,
}

impl Flips {
    const DECAY_NS: u64 = 1_000_000_000;

    /// Notes that the task woke `wakee` (any number that tells tasks apart). O(1).
    pub fn woke(&mut self, wakee: u64, now_ns: u64) {
        if now_ns.saturating_sub(self.decayed_ns) >= Self::DECAY_NS {
            self.count /= 2;
            self.decayed_ns = now_ns;
        }
        if self.last != Some(wakee) {
            self.last = Some(wakee);
            self.count = self.count.saturating_add(1);
        }
    }

    /// Whether `waker` and `wakee` together wake more tasks than an LLC of `llc_cpus` should take.
    pub fn are_wide(waker: Flips, wakee: Flips, llc_cpus: u32) -> bool {
        let (less, more) = match waker.count < wakee.count {
            true => (waker.count, wakee.count),
            false => (wakee.count, waker.count),
        };
        less >= llc_cpus && u64::from(more) >= u64::from(less) * u64::from(llc_cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_never_flips_and_a_master_does() {
        let (mut pair, mut master, mut slave) = <(Flips, Flips, Flips)>::default();
        for i in 0..1000 {
            pair.woke(1, i);
            master.woke(i, i);
            slave.woke(i / 125, i);
        }
        assert!(!Flips::are_wide(pair, pair, 4));
        assert!(!Flips::are_wide(pair, master, 4));
        assert!(Flips::are_wide(master, slave, 4) && Flips::are_wide(slave, master, 4));
        assert!(!Flips::are_wide(master, slave, 16));
        // What happened long ago counts half after each second.
        for second in 1..12 {
            master.woke(0, second * Flips::DECAY_NS + 1000);
        }
        assert!(!Flips::are_wide(master, slave, 4));
    }
}
