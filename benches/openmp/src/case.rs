//! What others do with the CPUs while a kernel runs, and what share of them that leaves.

use std::fmt;

use amdahl_figures::Random;

/// Who else wants the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nobody.
    Nobody,
    /// A process for each CPU, all the time.
    Busy,
    /// From none to a process for each CPU, another number in each slot of time.
    Steps {
        /// How long a number stays.
        slot_ms: u64,
    },
    /// A control group may use no more than so many percent of the machine.
    Quota {
        /// Of all CPUs together.
        percent: u64,
    },
    /// The same program a second time.
    Copies,
}

/// A trouble and a number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Who else wants the CPUs.
    pub trouble: Trouble,
    /// Of the program.
    pub threads: usize,
}

/// All of them, on a machine with so many CPUs.
pub fn all(cpus: usize) -> Vec<Case> {
    let mut cases = vec![Case {
        trouble: Trouble::Nobody,
        threads: cpus,
    }];
    for trouble in [
        Trouble::Busy,
        Trouble::Steps { slot_ms: 100 },
        Trouble::Steps { slot_ms: 1000 },
        Trouble::Quota { percent: 25 },
        Trouble::Quota { percent: 75 },
        Trouble::Copies,
    ] {
        for factor in [1, 2, 4] {
            let threads = factor * cpus;
            cases.push(Case { trouble, threads });
        }
    }
    cases
}

/// As the user names it: `busy-4`.
impl fmt::Display for Case {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.threads;
        match self.trouble {
            Trouble::Nobody => write!(to, "dedicated"),
            Trouble::Busy => write!(to, "busy-{threads}"),
            Trouble::Steps { slot_ms } => write!(to, "steps{slot_ms}ms-{threads}"),
            Trouble::Quota { percent } => write!(to, "quota{percent}-{threads}"),
            Trouble::Copies => write!(to, "copies-{threads}"),
        }
    }
}

impl Case {
    /// In words.
    pub fn title(&self, cpus: usize) -> String {
        let threads = match self.threads {
            1 => "1 thread".to_owned(),
            n => format!("{n} threads"),
        };
        match self.trouble {
            Trouble::Nobody => "dedicated".to_owned(),
            Trouble::Busy => format!("{threads} beside {cpus} busy processes"),
            Trouble::Steps { slot_ms } => {
                format!("{threads} beside 0 to {cpus} processes, each {slot_ms} ms")
            }
            Trouble::Quota { percent } => {
                format!("{threads} with a quota of {} CPUs", quota(percent, cpus))
            }
            Trouble::Copies => format!("{threads}, two copies"),
        }
    }

    /// How long a run measures.
    pub fn seconds(&self, is_quick: bool) -> f64 {
        match self.trouble {
            // Two slots are the least that can differ.
            Trouble::Steps { slot_ms } => (2 * slot_ms).max(500) as f64 / 1000.0,
            // A period of the quota is 0.1 s.
            Trouble::Quota { .. } => 0.4,
            _ if is_quick => 0.1,
            _ => 0.3,
        }
    }

    /// How often each side runs.
    pub fn rounds(&self, is_quick: bool) -> usize {
        match self.trouble {
            _ if is_quick => 1,
            Trouble::Nobody => 5,
            Trouble::Steps { slot_ms: 1000.. } => 1,
            _ => 2,
        }
    }

    /// Processes that load the machine.
    pub fn loads(&self, cpus: usize) -> usize {
        match self.trouble {
            Trouble::Busy | Trouble::Steps { .. } => cpus,
            Trouble::Nobody | Trouble::Quota { .. } | Trouble::Copies => 0,
        }
    }

    /// Copies of the program.
    pub fn copies(&self) -> usize {
        match self.trouble {
            Trouble::Copies => 2,
            _ => 1,
        }
    }

    /// How many processes work in each slot, and how long a slot is: 0 ms where that never changes.
    pub fn slots(&self, cpus: usize, seed: u64) -> (u64, Vec<usize>) {
        match self.trouble {
            Trouble::Steps { slot_ms } => {
                let mut random = Random(seed);
                let level = |_| random.below(cpus as u64 + 1) as usize;
                (slot_ms, (0..64).map(level).collect())
            }
            _ => (0, vec![self.loads(cpus)]),
        }
    }

    /// How much longer a program must take than alone on all CPUs: the CPUs by the share of them that a fair scheduler
    /// grants to the threads if each could always go on. Threads and processes weigh the same.
    pub fn bound(&self, cpus: usize, is_quick: bool, seed: u64) -> f64 {
        let (cpus_f, threads) = (cpus as f64, self.threads as f64);
        let beside = |others: usize| {
            let share = threads / (threads + others as f64);
            (share * cpus_f).min(threads)
        };
        let granted = match self.trouble {
            Trouble::Nobody => beside(0),
            Trouble::Busy => beside(cpus),
            Trouble::Copies => beside(self.threads),
            Trouble::Quota { percent } => quota(percent, cpus).min(beside(0)),
            Trouble::Steps { .. } => {
                let (slot_ms, levels) = self.slots(cpus, seed);
                let slots = (self.seconds(is_quick) * 1000.0 / slot_ms as f64).round() as usize;
                let sum: f64 = levels.iter().cycle().take(slots).map(|n| beside(*n)).sum();
                sum / slots as f64
            }
        };
        cpus_f / granted
    }
}

/// CPUs.
fn quota(percent: u64, cpus: usize) -> f64 {
    percent as f64 * cpus as f64 / 100.0
}

/// Whether `--only` asks for it: each word is `CASE`, `/KERNEL` or `CASE/KERNEL`, and parts of names do.
pub fn is_wanted(words: &[String], case: &str, kernel: &str) -> bool {
    words.is_empty()
        || words.iter().any(|word| {
            let (of_case, of_kernel) = word.split_once('/').unwrap_or((word, ""));
            case.contains(of_case) && (of_kernel.is_empty() || kernel == of_kernel)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(trouble: Trouble, threads: usize) -> f64 {
        Case { trouble, threads }.bound(2, false, 1)
    }

    #[test]
    fn the_bound_is_the_share_that_a_fair_scheduler_grants() {
        assert_eq!(bound(Trouble::Nobody, 2), 1.0);
        assert_eq!(bound(Trouble::Busy, 2), 2.0);
        assert_eq!(bound(Trouble::Busy, 4), 1.5);
        assert_eq!(bound(Trouble::Busy, 8), 1.25);
        assert_eq!(bound(Trouble::Copies, 8), 2.0);
        assert_eq!(bound(Trouble::Quota { percent: 25 }, 4), 4.0);
        assert_eq!(bound(Trouble::Quota { percent: 75 }, 2), 2.0 / 1.5);
    }

    #[test]
    fn steps_are_between_no_load_and_full_load_and_the_same_for_all() {
        for slot_ms in [100, 1000] {
            let trouble = Trouble::Steps { slot_ms };
            let case = Case {
                trouble,
                threads: 2,
            };
            let bounds: Vec<f64> = (0..50).map(|seed| case.bound(2, false, seed)).collect();
            assert!(bounds.iter().all(|bound| (1.0..=2.0).contains(bound)));
            assert!(bounds.iter().any(|bound| *bound != bounds[0]));
            assert_eq!(case.slots(2, 7), case.slots(2, 7));
            let (_, levels) = case.slots(2, 7);
            assert!((0..=2).all(|level| levels.contains(&level)), "{levels:?}");
        }
    }

    #[test]
    fn cases_grow_with_the_machine() {
        let names = |cpus| {
            let cases = all(cpus);
            cases.iter().map(Case::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(2).len(), 19);
        assert!(names(2).contains(&"quota25-8".to_owned()));
        assert!(names(64).contains(&"steps1000ms-256".to_owned()));
        let case = Case {
            trouble: Trouble::Quota { percent: 25 },
            threads: 4,
        };
        assert_eq!(case.title(2), "4 threads with a quota of 0.5 CPUs");
        assert_eq!(case.title(64), "4 threads with a quota of 16 CPUs");
    }

    #[test]
    fn words_choose_cases_and_kernels() {
        let wanted = |word: &str, case, kernel| is_wanted(&[word.to_owned()], case, kernel);
        assert!(is_wanted(&[], "busy-4", "lu"));
        assert!(wanted("busy", "busy-4", "lu"));
        assert!(wanted("busy-4/lu", "busy-4", "lu"));
        assert!(!wanted("busy-4/lu", "busy-4", "cg"));
        assert!(!wanted("busy-4/lu", "busy-2", "lu"));
        assert!(wanted("/cg", "quota25-8", "cg"));
        assert!(!wanted("/c", "quota25-8", "cg"));
    }
}
