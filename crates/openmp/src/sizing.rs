//! How many threads teams are to have, as time goes on: pure, so that the simulator runs it too.
//!
//! What is made of a page, or of what the threads lost where there is none, is said by [`Degree`], which others use as well.

use amdahl_phantom_page::{Degree, Load, Snapshot};

/// Looks are no closer together than this.
const WINDOW_NS: u64 = 20_000_000;

/// A [`Degree`] that follows what is published and what threads lose.
#[derive(Clone, Debug)]
pub struct Sizing {
    degree: Degree,
    looked_ns: u64,
    lost_ns: u64,
    stolen: Stolen,
}

impl Sizing {
    /// Begins at `now_ns` with `usable` CPUs, after threads have lost `lost_ns`.
    pub fn new(now_ns: u64, lost_ns: u64, usable: u32) -> Sizing {
        Sizing {
            degree: Degree::new(usable, now_ns),
            looked_ns: now_ns,
            lost_ns,
            stolen: Stolen::default(),
        }
    }

    /// CPUs that teams are made for.
    pub fn cpus(&self) -> u32 {
        self.degree.cpus()
    }

    /// It is time for a look.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.looked_ns) >= WINDOW_NS
    }

    /// Takes a look at `now_ns`: `published` is what a page says, `lost_ns` what the threads have lost until now, `stolen_ns` tells
    /// what a hypervisor has taken from the machine.
    pub fn look(
        &mut self,
        now_ns: u64,
        published: Option<Snapshot>,
        lost_ns: u64,
        stolen_ns: impl FnOnce() -> Option<u64>,
        usable: u32,
    ) {
        let since_ns = self.looked_ns;
        let passed = now_ns.saturating_sub(since_ns).max(1);
        let lost_here = lost_ns.saturating_sub(self.lost_ns) as f64 / passed as f64;
        (self.looked_ns, self.lost_ns) = (now_ns, lost_ns);
        let load = match published {
            Some(snapshot) => self.degree.published(&snapshot),
            None if lost_here < Degree::FEW => Some(Load {
                phantoms: lost_here,
                idle: None,
                is_shared: false,
            }),
            // Who has the CPUs decides what to do: it is waited for.
            None => self
                .stolen
                .cpus(since_ns, now_ns, stolen_ns)
                .map(|cpus| Load {
                    phantoms: lost_here,
                    idle: None,
                    is_shared: cpus < lost_here / 2.0,
                }),
        };
        if let Some(load) = load {
            self.degree.next(load, usable, now_ns);
        }
    }
}

/// What a hypervisor takes, which is looked at where threads have lost something, and not more often than this.
const STOLEN_NS: u64 = 100_000_000;
/// A look is forgotten that was so long before the window that is asked about: what was taken in it would be shared out over a
/// quiet time.
const STOLEN_OLD_NS: u64 = 1_000_000_000;

#[derive(Clone, Debug, Default)]
struct Stolen {
    /// When it was looked at, and what was stolen until then.
    looked: Option<(u64, u64)>,
    cpus: Option<f64>,
}

impl Stolen {
    /// CPUs of the machine that a hypervisor takes, for a window since `since_ns`. `None` at the first look and after a long time
    /// without one: the next one tells. 0 where nobody does.
    fn cpus(
        &mut self,
        since_ns: u64,
        now_ns: u64,
        stolen_ns: impl FnOnce() -> Option<u64>,
    ) -> Option<f64> {
        let passed = |at| now_ns.saturating_sub(at);
        if self.looked.is_some_and(|(at, _)| passed(at) < STOLEN_NS) {
            return self.cpus;
        }
        let Some(stolen) = stolen_ns() else {
            return Some(0.0);
        };
        let last = self.looked.replace((now_ns, stolen));
        self.cpus = last
            .filter(|&(at, _)| since_ns <= at.saturating_add(STOLEN_OLD_NS))
            .map(|(at, before)| stolen.saturating_sub(before) as f64 / passed(at) as f64);
        self.cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amdahl_phantom::{Estimator, Reading, SPAN_MAX, Settings};
    use amdahl_phantom_page::SPAN_WINDOWS;

    #[test]
    fn what_a_hypervisor_takes_is_gone() {
        let mut sizing = Sizing::new(0, 0, 8);
        let mut lost_ns = 0;
        let mut size = |window: u64, stolen_cpus: u64| {
            let now_ns = window * 200 * MS;
            lost_ns += 4 * 200 * MS;
            sizing.look(now_ns, None, lost_ns, || Some(stolen_cpus * now_ns), 8);
            sizing.cpus()
        };
        // Four of eight threads at a time have no CPU: first because of others here.
        assert_eq!(size(1, 0), 8);
        assert_eq!(size(2, 0), 8);
        assert_eq!(size(3, 4), 4);
    }

    /// What a hypervisor took was shared out over all the time since somebody had last asked, maybe minutes.
    #[test]
    fn what_is_stolen_after_a_quiet_time_is_not_shared_out_over_it() {
        let mut stolen = Stolen::default();
        let mut at = |since_ms: u64, now_ms: u64, cpu_ms: u64| {
            stolen.cpus(since_ms * MS, now_ms * MS, || Some(cpu_ms * MS))
        };
        assert_eq!(at(0, 1_000, 0), None);
        assert_eq!(at(1_080, 1_100, 200), Some(2.0));
        // A minute later, in a window of 20 ms: 80 ms of four CPUs.
        assert_eq!(at(61_080, 61_100, 280), None);
        assert_eq!(at(61_100, 61_120, 360), None);
        assert_eq!(at(61_180, 61_200, 680), Some(4.0));
        // A region begins each 5 s: windows are as long.
        assert_eq!(at(61_200, 66_200, 10_680), Some(2.0));
        assert_eq!(stolen.cpus(66_200 * MS, 67_000 * MS, || None), Some(0.0));
    }

    const MS: u64 = 1_000_000;

    /// Processes under one page, on a machine that has `capacity` CPUs for them at each millisecond: teams as large as each
    /// of them chooses wherever it looks, which is after each tick of 20 ms. Their sizes after each tick.
    fn closed_loop(
        processes: usize,
        usable: u32,
        ticks: u64,
        capacity: impl Fn(u64) -> u32,
    ) -> Vec<Vec<u32>> {
        let tick_ns = 20 * MS;
        let mut estimator = Estimator::new(Settings::default());
        let mut reading = Reading {
            at_ns: 1_000 * MS,
            allowed: usable,
            wait_ns: Some(0),
            ..Reading::default()
        };
        let mut sizings: Vec<Sizing> = (0..processes)
            .map(|_| Sizing::new(reading.at_ns, 0, usable))
            .collect();
        estimator.tick(reading.clone());
        let step = |tick| {
            let threads: u32 = sizings.iter().map(|sizing| sizing.cpus()).sum();
            let capacity = capacity(20 * tick);
            let running = threads.min(capacity);
            let spent = |cpus: u32| u64::from(cpus) * tick_ns;
            reading.at_ns += tick_ns;
            reading.run_ns += spent(running);
            reading.wait_ns = Some(reading.wait_ns.unwrap_or(0) + spent(threads - running));
            reading.idle_ns += spent(capacity - running);
            let estimate = estimator
                .tick(reading.clone())
                .expect("there is one before");
            let published = Some(estimate.snapshot(tick + 1, tick_ns));
            for sizing in &mut sizings {
                sizing.look(reading.at_ns + MS, published, 0, || None, usable);
            }
            sizings.iter().map(|sizing| sizing.cpus()).collect()
        };
        (0..ticks).map(step).collect()
    }

    /// A page that is renewed five times in a window told the same phantoms again after they were gone: 4 of 16 threads
    /// without a CPU left a team of 4.
    #[test]
    fn phantoms_that_a_change_has_ended_shrink_no_further() {
        let sizes: Vec<u32> = closed_loop(1, 16, 100, |_| 12).concat();
        assert_eq!(sizes.iter().min(), Some(&12), "{sizes:?}");
        assert_eq!(sizes.last(), Some(&12), "{sizes:?}");
    }

    /// The same CPUs were idle in window after window, and taken each time.
    #[test]
    fn idle_cpus_are_taken_once() {
        let capacity = |ms| if ms < 1_000 { 8 } else { 16 };
        let sizes: Vec<u32> = closed_loop(1, 32, 300, capacity).concat();
        assert_eq!(sizes[49], 8, "{sizes:?}");
        assert!(sizes[50..].iter().all(|&size| size <= 16), "{sizes:?}");
        assert_eq!(sizes.last(), Some(&16), "{sizes:?}");
        assert_eq!(SPAN_WINDOWS, u64::from(SPAN_MAX));
    }

    /// Eight processes of one `mpirun` had one page, and each of them shrank by the phantoms of all: to one thread.
    #[test]
    fn processes_under_one_page_shrink_and_grow_together() {
        let capacity = |ms| if ms < 1_000 { 16 } else { 32 };
        let sizes = closed_loop(8, 32, 300, capacity);
        assert_eq!(sizes[49], [2; 8], "{sizes:?}");
        for sizes in &sizes[50..] {
            assert!(sizes.iter().sum::<u32>() <= 32, "{sizes:?}");
        }
        assert_eq!(sizes.last().unwrap(), &[4; 8], "{sizes:?}");
    }
}
