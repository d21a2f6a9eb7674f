//! What a page says at one time, as numbers that can be used.

use crate::error::ReadError;

/// A number of CPUs, or of threads, as 65,536ths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpus(u32);

impl Cpus {
    /// None at all.
    pub const ZERO: Cpus = Cpus(0);
    const ONE: u32 = 1 << 16;

    /// From 65,536ths.
    pub const fn from_bits(bits: u32) -> Cpus {
        Cpus(bits)
    }

    /// As 65,536ths.
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// A whole number; at most 65,535.
    pub const fn whole(n: u16) -> Cpus {
        Cpus((n as u32) << 16)
    }

    /// Rounded to the nearest 65,536th. What is too large becomes the largest, what is negative or no number 0.
    pub fn from_f64(value: f64) -> Cpus {
        // `as` saturates.
        Cpus((value * f64::from(Cpus::ONE) + 0.5) as u32)
    }

    /// Exact.
    pub fn to_f64(self) -> f64 {
        f64::from(self.0) / f64::from(Cpus::ONE)
    }

    /// The whole CPUs in it.
    pub const fn floor(self) -> u32 {
        self.0 >> 16
    }

    /// The nearest whole number, halves up.
    pub const fn round(self) -> u32 {
        (self.0 >> 16) + ((self.0 >> 15) & 1)
    }
}

/// Where figures come from; the number is what stands on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// Not known to this version.
    Unknown,
    /// BPF programs at the scheduler's events.
    Bpf,
    /// `/proc`, run times and run queue delays of each thread.
    Proc,
    /// `/proc` without delays; phantoms are a lower bound, from pressure stall information.
    Pressure,
}

impl Source {
    /// The number on the page.
    pub const fn id(self) -> u32 {
        match self {
            Source::Unknown => 0,
            Source::Bpf => 1,
            Source::Proc => 2,
            Source::Pressure => 3,
        }
    }

    /// The one of this number.
    pub const fn of_id(id: u32) -> Source {
        match id {
            1 => Source::Bpf,
            2 => Source::Proc,
            3 => Source::Pressure,
            _ => Source::Unknown,
        }
    }

    /// A word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Unknown => "unknown",
            Source::Bpf => "bpf",
            Source::Proc => "proc",
            Source::Pressure => "pressure",
        }
    }
}

/// After how many ticks without news a page is stale.
pub const STALE_TICKS: u64 = 10;

/// What one tick has published. The figures are averages over the window that ended at `time_ns`; DESIGN.md of
/// `amdahl-phantom` defines each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// When the window ended, `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// How many ticks were published before this one.
    pub ticks: u64,
    /// Time between ticks.
    pub tick_us: u32,
    /// Length of the window.
    pub window_us: u32,
    /// CPUs that our threads ran on or that were free for them.
    pub runnable: Cpus,
    /// Our threads that could run and did not.
    pub phantom: Cpus,
    /// CPUs that are free for us and have been for a while.
    pub idle: Cpus,
    /// Our threads that ran.
    pub running: Cpus,
    /// Threads of others that ran or could run on this machine, and on its host where that tells: among whom the CPUs are shared.
    pub others: Cpus,
    /// CPUs that the quota grants; 0 if there is none.
    pub quota: Cpus,
    /// CPUs that our threads may use.
    pub allowed: u32,
}

/// Words of the page's body after the sequence number.
pub(crate) const WORDS: usize = 7;

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// A tick is between these, in microseconds.
const TICK_US: core::ops::RangeInclusive<u32> = 1_000..=10_000_000;
/// A window is at most this long, in microseconds.
const WINDOW_US_MAX: u32 = 3_600_000_000;
/// More CPUs than any machine has.
const ALLOWED_MAX: u32 = 65_535;

impl Snapshot {
    /// The quota, if there is one.
    pub fn quota_cpus(&self) -> Option<Cpus> {
        (self.quota != Cpus::ZERO).then_some(self.quota)
    }

    /// Whether it is too old at `now_ns` to be acted upon, or from a future that cannot be.
    pub fn is_stale(&self, now_ns: u64) -> bool {
        /// By how much a coarse clock lags behind, generously.
        const LAG_NS: u64 = 100_000_000;
        let longest = STALE_TICKS * u64::from(self.tick_us) * 1_000;
        now_ns.saturating_sub(self.time_ns) > longest
            || self.time_ns.saturating_sub(now_ns) > LAG_NS
    }

    /// What stands on the page.
    pub(crate) fn to_words(self) -> [u64; WORDS] {
        [
            self.time_ns,
            self.ticks,
            pair(self.tick_us, self.window_us),
            pair(self.runnable.0, self.phantom.0),
            pair(self.idle.0, self.running.0),
            pair(self.others.0, self.quota.0),
            u64::from(self.allowed),
        ]
    }

    /// What stands on a page that anybody may have written.
    pub(crate) fn from_words(words: &[u64; WORDS]) -> Result<Snapshot, ReadError> {
        let (tick_us, window_us) = halves(words[2]);
        let (runnable, phantom) = halves(words[3]);
        let (idle, running) = halves(words[4]);
        let (others, quota) = halves(words[5]);
        let (allowed, flags) = halves(words[6]);
        let snapshot = Snapshot {
            time_ns: words[0],
            ticks: words[1],
            tick_us,
            window_us,
            runnable: Cpus(runnable),
            phantom: Cpus(phantom),
            idle: Cpus(idle),
            running: Cpus(running),
            others: Cpus(others),
            quota: Cpus(quota),
            allowed,
        };
        if (snapshot.time_ns, snapshot.ticks) == (0, 0) {
            return Err(ReadError::Empty);
        }
        // Flags are for later versions of the same layout; what they mean is not known here.
        let _ = flags;
        if snapshot.is_possible() {
            Ok(snapshot)
        } else {
            Err(ReadError::Damaged)
        }
    }

    /// All values are within their ranges.
    fn is_possible(&self) -> bool {
        let most = Cpus(self.allowed.saturating_mul(Cpus::ONE));
        (1..=ALLOWED_MAX).contains(&self.allowed)
            && TICK_US.contains(&self.tick_us)
            && (1..=WINDOW_US_MAX).contains(&self.window_us)
            && self.runnable <= most
            && self.idle <= most
            && self.running <= most
    }

    /// The same with all values within their ranges: what a writer publishes.
    #[cfg(any(feature = "std", test, loom))]
    pub(crate) fn bounded(self) -> Snapshot {
        let allowed = self.allowed.clamp(1, ALLOWED_MAX);
        let most = Cpus(allowed * Cpus::ONE);
        Snapshot {
            // 0 would be a page without anything published.
            time_ns: self.time_ns.max(1),
            tick_us: self.tick_us.clamp(*TICK_US.start(), *TICK_US.end()),
            window_us: self.window_us.clamp(1, WINDOW_US_MAX),
            runnable: self.runnable.min(most),
            idle: self.idle.min(most),
            running: self.running.min(most),
            allowed,
            ..self
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cpus_round_and_saturate() {
        assert_eq!(Cpus::from_f64(1.5).to_f64(), 1.5);
        assert_eq!(
            (Cpus::from_f64(1.5).floor(), Cpus::from_f64(1.5).round()),
            (1, 2)
        );
        assert_eq!(Cpus::from_f64(1.49).round(), 1);
        for nothing in [-1.0, f64::NAN, 0.0] {
            assert_eq!(Cpus::from_f64(nothing), Cpus::ZERO);
        }
        assert_eq!(Cpus::from_f64(1e9).to_bits(), u32::MAX);
        assert_eq!(Cpus::from_bits(u32::MAX).round(), 65_536);
        assert_eq!(Cpus::whole(3).to_f64(), 3.0);
    }

    #[test]
    fn sources_have_their_numbers() {
        for id in 0..4 {
            assert_eq!(Source::of_id(id).id(), id);
        }
        assert_eq!(Source::of_id(77), Source::Unknown);
    }

    #[test]
    fn age_decides() {
        let snapshot = Snapshot {
            time_ns: 5_000_000_000,
            tick_us: 20_000,
            ..Snapshot::default()
        };
        let after = |ns: i64| snapshot.is_stale(snapshot.time_ns.saturating_add_signed(ns));
        assert!(!after(0) && !after(200_000_000) && after(200_000_001));
        assert!(!after(-100_000_000) && after(-100_000_001));
    }

    proptest! {
        /// Whatever stands there: it is refused, or everything is in its range and is written again as it was read.
        #[test]
        fn any_words_are_bounded(words in any::<[u64; WORDS]>(), few in any::<[u16; WORDS]>()) {
            let plausible = few.map(|word| u64::from(word) << 16 | 1);
            for words in [words, plausible] {
                if let Ok(snapshot) = Snapshot::from_words(&words) {
                    prop_assert_eq!(snapshot.bounded(), snapshot);
                    let most = f64::from(snapshot.allowed);
                    prop_assert!(snapshot.runnable.to_f64() <= most && snapshot.idle.to_f64() <= most);
                }
            }
        }

        /// What a writer bounds, a reader takes.
        #[test]
        fn what_is_written_is_read(
            (time_ns, ticks, tick_us, window_us, allowed) in any::<(u64, u64, u32, u32, u32)>(),
            figures in any::<[u32; 6]>(),
        ) {
            let [runnable, phantom, idle, running, others, quota] = figures.map(Cpus);
            let snapshot = Snapshot {
                time_ns, ticks, tick_us, window_us, runnable, phantom, idle, running, others, quota, allowed,
            }
            .bounded();
            prop_assert_eq!(Snapshot::from_words(&snapshot.to_words()), Ok(snapshot));
        }
    }
}
