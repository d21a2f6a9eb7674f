//! CPU time and page faults of processes that ran before we came and may run on when we go, from
//! `/proc/PID/stat`.

use std::collections::{BTreeMap, HashMap};
use std::ops::AddAssign;

use crate::watch::processes;

/// What processes have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    user_ticks: u64,
    system_ticks: u64,
    faults: u64,
    major_faults: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Counts) {
        self.user_ticks += more.user_ticks;
        self.system_ticks += more.system_ticks;
        self.faults += more.faults;
        self.major_faults += more.major_faults;
    }
}

impl Counts {
    /// What is beyond `before`; nothing where there is less.
    fn beyond(self, before: Counts) -> Counts {
        Counts {
            user_ticks: self.user_ticks.saturating_sub(before.user_ticks),
            system_ticks: self.system_ticks.saturating_sub(before.system_ticks),
            faults: self.faults.saturating_sub(before.faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
        }
    }

    fn with(mut self, more: Counts) -> Counts {
        self += more;
        self
    }
}

/// A process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Process {
    parent: u32,
    /// When it started: an id may be given to another process.
    started: u64,
    /// What its threads used, those that have ended too.
    own: Counts,
    /// What its descendants used that have ended and were waited for.
    reaped: Counts,
}

type Look = BTreeMap<u32, Process>;

/// What a process and its descendants use from the first look on.
///
/// Of a process that ends between two looks, what it used since the first of them is known if somebody of the
/// tree waited for it; else only what it had used by then.
#[derive(Debug)]
pub struct Usage {
    root: u32,
    last: Look,
    total: Counts,
}

impl Usage {
    /// The first look at the processes below `root`.
    pub fn of(root: u32) -> Usage {
        let mut usage = Usage {
            root,
            last: Look::new(),
            total: Counts::default(),
        };
        usage.last = usage.look_now();
        usage
    }

    /// Takes a further look: one each second loses little of those that end.
    pub fn look(&mut self) {
        let now = self.look_now();
        self.take(now);
    }

    /// User and kernel CPU seconds so far.
    pub fn cpu_s(&self) -> [f64; 2] {
        let tick_s = 1.0 / rustix::param::clock_ticks_per_second().max(1) as f64;
        [self.total.user_ticks, self.total.system_ticks].map(|ticks| ticks as f64 * tick_s)
    }

    /// Page faults so far: those that needed no disk, and those that needed one.
    pub fn faults(&self) -> [u64; 2] {
        [self.total.faults, self.total.major_faults]
    }

    /// Descendants whose parents have ended are somebody else's children by now.
    fn look_now(&self) -> Look {
        let tree = processes::tree(self.root).into_iter().map(|(pid, _)| pid);
        let pids = tree.chain(self.last.keys().copied());
        pids.filter_map(|pid| {
            let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parse(&text)?))
        })
        .collect()
    }

    fn take(&mut self, now: Look) {
        let last = std::mem::replace(&mut self.last, now);
        let now = &self.last;
        let lives = |pid: u32, of: &Process| {
            now.get(&pid)
                .is_some_and(|process| process.started == of.started)
        };
        // What those who have ended had used is told again by whoever waited for them.
        let mut told: HashMap<u32, Counts> = HashMap::new();
        for (&pid, process) in &last {
            if lives(pid, process) {
                continue;
            }
            let mut parent = process.parent;
            while let Some(above) = last.get(&parent).filter(|above| !lives(parent, above)) {
                parent = above.parent;
            }
            *told.entry(parent).or_default() += process.own.with(process.reaped);
        }
        for (pid, process) in now {
            let before = last.get(pid);
            let before = before.filter(|before| before.started == process.started);
            let before = before.copied().unwrap_or_default();
            let told = told.get(pid).copied().unwrap_or_default();
            self.total += process.own.beyond(before.own);
            self.total += process.reaped.beyond(before.reaped.with(told));
        }
    }
}

/// `/proc/PID/stat`.
fn parse(text: &[u8]) -> Option<Process> {
    // The name may hold anything, parentheses and spaces too; what follows holds none.
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let text = std::str::from_utf8(text.get(end + 1..)?).ok()?;
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    // Numbered as in proc(5), where the state, the first one here, is the third. Some are signed.
    let field = |number: usize| {
        let value = fields.get(number - 3)?.parse::<i64>().ok()?;
        Some(u64::try_from(value).unwrap_or(0))
    };
    let counts = |faults: usize, major_faults: usize, user: usize, system: usize| {
        Some(Counts {
            user_ticks: field(user)?,
            system_ticks: field(system)?,
            faults: field(faults)?,
            major_faults: field(major_faults)?,
        })
    };
    Some(Process {
        parent: u32::try_from(field(4)?).ok()?,
        started: field(22)?,
        own: counts(10, 12, 14, 15)?,
        reaped: counts(11, 13, 16, 17)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(user_ticks: u64) -> Counts {
        Counts {
            user_ticks,
            ..Counts::default()
        }
    }

    fn process(parent: u32, own: u64, reaped: u64) -> Process {
        Process {
            parent,
            started: 7,
            own: ticks(own),
            reaped: ticks(reaped),
        }
    }

    fn user_ticks(looks: &[&[(u32, Process)]]) -> u64 {
        let mut looks = looks.iter().map(|look| look.iter().copied().collect());
        let mut usage = Usage {
            root: 1,
            last: looks.next().expect("a first look"),
            total: Counts::default(),
        };
        looks.for_each(|look| usage.take(look));
        usage.total.user_ticks
    }

    #[test]
    fn what_was_used_before_does_not_count() {
        let before = [(1, process(0, 100, 50))];
        let after = [(1, process(0, 130, 50))];
        assert_eq!(user_ticks(&[&before, &after]), 30);
    }

    #[test]
    fn a_child_counts_once_whether_it_is_seen_or_not() {
        let alone = [(1, process(0, 0, 10))];
        let with_child = [(1, process(0, 0, 10)), (2, process(1, 20, 0))];
        let reaped = [(1, process(0, 0, 35))];
        // Seen at work, and not seen at all.
        assert_eq!(user_ticks(&[&alone, &with_child, &reaped]), 25);
        assert_eq!(user_ticks(&[&alone, &reaped]), 25);
        // There from the beginning: what it used before does not count.
        assert_eq!(user_ticks(&[&with_child, &reaped]), 5);
    }

    #[test]
    fn a_grandchild_is_told_of_by_who_is_left() {
        let three = [
            (1, process(0, 0, 0)),
            (2, process(1, 10, 0)),
            (3, process(2, 40, 0)),
        ];
        let one = [(1, process(0, 0, 60))];
        assert_eq!(user_ticks(&[&three, &one]), 10);
    }

    #[test]
    fn children_that_nobody_waits_for_take_nothing_away() {
        let both = [(1, process(0, 5, 0)), (2, process(1, 90, 0))];
        let one = [(1, process(0, 8, 0))];
        assert_eq!(user_ticks(&[&both, &one]), 3);
    }

    #[test]
    fn another_process_with_the_same_id_is_new() {
        let before = [(1, process(0, 0, 0)), (2, process(1, 90, 0))];
        let other = Process {
            started: 8,
            ..process(1, 4, 0)
        };
        let after = [(1, process(0, 0, 91)), (2, other)];
        assert_eq!(user_ticks(&[&before, &after]), 5);
    }

    #[test]
    fn the_fields_are_found_behind_any_name() {
        let text =
            b"42 (a) R 1 (b) S 7 42 42 0 -1 4194304 10 11 12 13 14 15 16 17 20 0 3 0 22 1 1\n";
        let counts = |user_ticks, system_ticks, faults, major_faults| Counts {
            user_ticks,
            system_ticks,
            faults,
            major_faults,
        };
        let expected = Process {
            parent: 7,
            started: 22,
            own: counts(14, 15, 10, 12),
            reaped: counts(16, 17, 11, 13),
        };
        assert_eq!(parse(text), Some(expected));
        for broken in [&b""[..], b"42 (a)", b"42 (a) R 1 2 3", &[0xff, b')', 0xff]] {
            assert_eq!(parse(broken), None);
        }
    }

    #[test]
    fn our_own_time_is_seen() {
        let me = std::process::id();
        let mut usage = Usage::of(me);
        while usage.cpu_s() == [0.0; 2] {
            usage.look();
        }
        assert!(usage.cpu_s().iter().sum::<f64>() > 0.0);
    }
}
