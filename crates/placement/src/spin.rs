//! How long to look out for work, or for a partner's answer, before sleeping.

/// How long who waits spins before it sleeps.
///
/// # Source
/// Spinning before a pipe's reader sleeps: S. Mazumdar, Linux Plumbers 2018. Spinning for at most the cost of
/// sleeping wastes at most as much again; with the waits' distribution known a better length can be
/// chosen: A. Karlin and others, "Empirical studies of competitive spinning" (SOSP 1991).
///
/// # Cost
/// [`ns`](Self::ns) is O(1) for `Never` and `Fixed` and O([`SpinState::BUCKETS`]) for `Adaptive`.
///
/// # Known bad case
/// `Fixed`: waits that last just longer than the spin: all of it is wasted. `Adaptive`: waits that change their
/// length as soon as they have been learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Spin {
    /// Sleep at once.
    #[default]
    Never,
    /// Always spin as long, unless the partner cannot answer.
    Fixed {
        /// Length in ns.
        ns: u64,
    },
    /// Spin as long as pays by the waits measured before, unless the partner cannot answer.
    Adaptive {
        /// Never longer than this.
        max_ns: u64,
    },
}

/// What the one that is waited for does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Partner {
    /// It runs on another CPU, or is about to.
    Running,
    /// It cannot run before a CPU becomes free: this one, if all are busy.
    Waiting,
    /// It sleeps, or there is nobody.
    Asleep,
    /// It is not known.
    #[default]
    Unknown,
}

/// What is known when somebody begins to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinFacts {
    /// The one that is waited for.
    pub partner: Partner,
    /// Whether another task waits for the CPU on which one would spin.
    pub wanted: bool,
}

impl Spin {
    /// How many ns to spin. 0 means to sleep at once: always when the CPU is wanted by somebody else or the partner
    /// cannot be running, for spinning then only delays what is waited for.
    pub fn ns(&self, state: &SpinState, facts: SpinFacts) -> u64 {
        if facts.wanted || matches!(facts.partner, Partner::Waiting | Partner::Asleep) {
            return 0;
        }
        match *self {
            Spin::Never => 0,
            Spin::Fixed { ns } => ns,
            Spin::Adaptive { max_ns } => state.best_ns().min(max_ns),
        }
    }
}

/// Whether and how long one who waits again and again spins each time: [`Spin::Adaptive`], fed with its own waits, with
/// trials and with a pause after it has lost its CPU. `Default` knows nothing yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spinner {
    state: SpinState,
    calm: u32,
    sleeps: u32,
}

impl Spinner {
    /// No spin is longer: a wake-up takes less, nearly everywhere.
    pub const MAX_NS: u64 = 200_000;

    /// One in so many sleeps begins with a spin that experience did not recommend, of at most
    /// [`TRIAL_NS`](Self::TRIAL_NS). Two who sleep wait for each other's wake-ups, and never learn how fast they would be awake.
    pub const TRIAL: u32 = 8;

    /// The longest trial.
    pub const TRIAL_NS: u64 = 50_000;

    /// Waits after a CPU was lost in which nobody spins.
    pub const CALM: u32 = 64;

    /// How many ns to spin in the wait that begins. O([`SpinState::BUCKETS`]).
    pub fn length_ns(&mut self, facts: SpinFacts) -> u64 {
        if self.calm > 0 {
            self.calm -= 1;
            return 0;
        }
        let max_ns = Self::MAX_NS;
        let learnt = Spin::Adaptive { max_ns }.ns(&self.state, facts);
        if !self.sleeps.is_multiple_of(Self::TRIAL) {
            return learnt;
        }
        let ns = self.state.wake_ns().min(Self::TRIAL_NS);
        learnt.max(Spin::Fixed { ns }.ns(&self.state, facts))
    }

    /// It lost its CPU while it spun: whoever took it may be who is waited for.
    pub fn lost_cpu(&mut self) {
        self.calm = Self::CALM;
    }

    /// A wait is over: it took `ns` until the event, and if it slept so long from the wake-up to running.
    pub fn waited(&mut self, ns: u64, woken_after_ns: Option<u64>) {
        self.state.waited(ns);
        if let Some(latency) = woken_after_ns {
            self.sleeps = self.sleeps.wrapping_add(1);
            self.state.woke(latency);
        }
    }
}

/// The waits and the wake-up latency that were measured on a CPU, or by one end of a channel. 144 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpinState {
    /// How many of the latest waits were of each length; bucket b counts those from 2^(b+5) up to 2^(b+6) ns, the
    /// first and the last one all that are shorter and longer.
    waits: [u32; Self::BUCKETS],
    total: u32,
    /// From a wake-up to running again, going to sleep included.
    wake_ns: u64,
}

impl SpinState {
    /// How many lengths of waits are told apart: up to 64 ns, then each twice the one before, the last for all
    /// from 2^20 ns (1 ms) on.
    pub const BUCKETS: usize = 16;

    /// What a sleep costs before it has been measured: two context switches and a wake-up from a shallow idle state.
    pub const WAKE_NS_UNMEASURED: u64 = 5_000;

    /// A sample weighs the less, the more came after it: at this many, all counts are halved.
    const MEMORY: u32 = 64;

    /// Notes a wait that is over: `ns` from its beginning to the event that ended it, whether it was spent
    /// spinning or sleeping, and without the latency of being woken. O(1), every 32 times O(BUCKETS).
    pub fn waited(&mut self, ns: u64) {
        self.waits[Self::bucket(ns)] += 1;
        self.total += 1;
        if self.total >= Self::MEMORY {
            self.waits.iter_mut().for_each(|count| *count /= 2);
            self.total = self.waits.iter().sum();
        }
    }

    /// Notes how long it took from a wake-up until the sleeper ran.
    pub fn woke(&mut self, latency_ns: u64) {
        self.wake_ns = crate::state::averaged(self.wake_ns, latency_ns);
    }

    /// The average latency from a wake-up until the sleeper runs.
    pub fn wake_ns(&self) -> u64 {
        self.wake_ns
    }

    /// The spin that would have cost least over the waits noted: a wait that ends within the spin costs its
    /// length, another one the spin and a wake-up. Without any waits, the cost of a wake-up, which is never worse
    /// than twice the best. O(BUCKETS).
    pub fn best_ns(&self) -> u64 {
        if self.total == 0 {
            return self.wake_ns;
        }
        let (mut best, mut best_cost) = (0, u64::from(self.total) * self.wake_ns);
        let (mut within, mut within_cost) = (0, 0);
        // The last bucket has no upper bound: spinning through it is never considered.
        for (bucket, &count) in self.waits[..Self::BUCKETS - 1].iter().enumerate() {
            let end = Self::end_ns(bucket);
            within += u64::from(count);
            within_cost += u64::from(count) * (end - end / 4);
            let cost = within_cost + (u64::from(self.total) - within) * (end + self.wake_ns);
            if count > 0 && cost < best_cost {
                (best, best_cost) = (end, cost);
            }
        }
        best
    }

    fn bucket(ns: u64) -> usize {
        let above = ns.max(1).ilog2().saturating_sub(5);
        (above as usize).min(Self::BUCKETS - 1)
    }

    /// The first length that is beyond the bucket.
    fn end_ns(bucket: usize) -> u64 {
        64 << bucket
    }
}

impl Default for SpinState {
    fn default() -> Self {
        SpinState {
            waits: [0; Self::BUCKETS],
            total: 0,
            wake_ns: Self::WAKE_NS_UNMEASURED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: SpinFacts = SpinFacts {
        partner: Partner::Running,
        wanted: false,
    };
    const ADAPTIVE: Spin = Spin::Adaptive { max_ns: 100_000 };

    fn learnt(waits: impl IntoIterator<Item = u64>) -> SpinState {
        let mut state = SpinState::default();
        waits.into_iter().for_each(|ns| state.waited(ns));
        state
    }

    #[test]
    fn nobody_spins_for_who_cannot_answer() {
        let state = SpinState::default();
        for spin in [Spin::Fixed { ns: 7 }, ADAPTIVE] {
            assert!(spin.ns(&state, RUNNING) > 0);
            for partner in [Partner::Waiting, Partner::Asleep] {
                assert_eq!(spin.ns(&state, SpinFacts { partner, ..RUNNING }), 0);
            }
            assert_eq!(
                spin.ns(
                    &state,
                    SpinFacts {
                        wanted: true,
                        ..RUNNING
                    }
                ),
                0
            );
        }
        assert_eq!(Spin::Never.ns(&state, RUNNING), 0);
    }

    #[test]
    fn short_waits_are_spun_and_long_ones_slept() {
        assert_eq!(ADAPTIVE.ns(&learnt([700; 20]), RUNNING), 1024);
        assert_eq!(ADAPTIVE.ns(&learnt([50_000; 20]), RUNNING), 0);
        // One in ten is long: worth spinning for the others.
        let mixed = (0..60).map(|i| if i % 10 == 0 { 1 << 30 } else { 900 });
        assert_eq!(ADAPTIVE.ns(&learnt(mixed), RUNNING), 1024);
        // One in ten is short: not worth it.
        let mixed = (0..60).map(|i| if i % 10 == 0 { 900 } else { 1 << 30 });
        assert_eq!(ADAPTIVE.ns(&learnt(mixed), RUNNING), 0);
    }

    #[test]
    fn a_slow_wake_up_makes_the_spin_longer() {
        let mut state = learnt([50_000; 20]);
        (0..100).for_each(|_| state.woke(200_000));
        assert_eq!(ADAPTIVE.ns(&state, RUNNING), 65_536);
        assert_eq!(Spin::Adaptive { max_ns: 3000 }.ns(&state, RUNNING), 3000);
    }

    #[test]
    fn a_spinner_tries_again_and_is_calm_after_it_lost_its_cpu() {
        let mut spinner = Spinner::default();
        (0..200).for_each(|_| spinner.waited(5_000_000, Some(20_000)));
        let trial = spinner.length_ns(RUNNING);
        assert!(
            (19_000..=20_000).contains(&trial),
            "every eighth sleep: {trial}"
        );
        spinner.waited(5_000_000, Some(20_000));
        assert_eq!(spinner.length_ns(RUNNING), 0);
        (0..200).for_each(|_| spinner.waited(1_000, None));
        assert_eq!(spinner.length_ns(RUNNING), 1_024);
        spinner.lost_cpu();
        (0..Spinner::CALM).for_each(|_| assert_eq!(spinner.length_ns(RUNNING), 0));
        assert_eq!(spinner.length_ns(RUNNING), 1_024);
    }

    #[test]
    fn what_is_learnt_is_forgotten() {
        let waits = std::iter::repeat_n(700, 1000).chain(std::iter::repeat_n(80_000, 200));
        assert_eq!(ADAPTIVE.ns(&learnt(waits), RUNNING), 0);
    }

    mod properties {
        use proptest::prelude::*;

        use super::*;

        proptest! {
            /// With lengths in the middle of their buckets, no other threshold costs less.
            #[test]
            fn the_best_is_the_best(lengths in prop::collection::vec(0..SpinState::BUCKETS - 1, 1..60)) {
                let waits = lengths.iter().map(|&bucket| SpinState::end_ns(bucket) * 3 / 4);
                let waits: Vec<u64> = waits.collect();
                let state = learnt(waits.iter().copied());
                let cost = |spin: u64| -> u64 {
                    let one = |&wait: &u64| if wait <= spin { wait } else { spin + state.wake_ns() };
                    waits.iter().map(one).sum()
                };
                let best = cost(state.best_ns());
                for other in [0].into_iter().chain((0..SpinState::BUCKETS).map(SpinState::end_ns)) {
                    prop_assert!(best <= cost(other), "{best} ns, but {} ns with {other}", cost(other));
                }
            }
        }
    }
}
