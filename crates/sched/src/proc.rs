//! What `/proc` tells of scheduling without privileges: texts to numbers, two looks to a table.
//!
//! Not told there: who woke whom, single latencies (sums only), which queue a thread waited in, migrations
//! (but the last CPU), who took a CPU away.

use std::collections::BTreeMap;

use crate::event::{CpuId, Ns, Tid};

/// A thread at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadLook {
    /// Thread.
    pub tid: Tid,
    /// Process.
    pub pid: Tid,
    /// Its name.
    pub name: String,
    /// When it began, in clock ticks since boot: tells threads of one number apart.
    pub began_ticks: u64,
    /// CPU on which it ran last.
    pub cpu: CpuId,
    /// Time on CPUs so far.
    pub run_ns: Ns,
    /// Time in run queues so far.
    pub wait_ns: Ns,
    /// Stretches on a CPU so far.
    pub slices: u64,
}

/// A CPU at one look, in clock ticks since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLook {
    /// Which.
    pub cpu: CpuId,
    /// All time but idle, iowait and steal.
    pub busy_ticks: u64,
    /// Idle, iowait included.
    pub idle_ticks: u64,
    /// Taken by the hypervisor.
    pub steal_ticks: u64,
}

/// `/proc/PID/task/TID/stat` and `schedstat`; `None` if they are not what the kernel writes.
pub fn thread_look(pid: Tid, stat: &str, schedstat: &str) -> Option<ThreadLook> {
    // The name may contain anything, parentheses and line ends too.
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let tid = stat.get(..open)?.trim().parse().ok()?;
    let name = stat.get(open + 1..close)?.to_owned();
    let fields: Vec<&str> = stat.get(close + 1..)?.split_ascii_whitespace().collect();
    // Counted from the state, which is field 3.
    let began_ticks = fields.get(19)?.parse().ok()?;
    let cpu = fields.get(36)?.parse().ok()?;
    let mut sums = schedstat
        .split_ascii_whitespace()
        .map(|text| text.parse::<u64>().ok());
    let mut next = || sums.next().flatten();
    let (run_ns, wait_ns, slices) = (next()?, next()?, next()?);
    Some(ThreadLook {
        tid,
        pid,
        name,
        began_ticks,
        cpu,
        run_ns,
        wait_ns,
        slices,
    })
}

/// The CPUs in `/proc/stat`. Lines that are none are left out.
pub fn cpu_looks(stat: &str) -> Vec<CpuLook> {
    let looks = stat.lines().filter_map(|line| {
        let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
        // The first line is the sum and has no number.
        let cpu = if line.starts_with("cpu ") {
            None
        } else {
            fields.next()?.parse().ok()
        }?;
        let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        let at = |i: usize| ticks.get(i).copied().unwrap_or(0);
        // user nice system idle iowait irq softirq steal; guest time is in user.
        let busy = [0, 1, 2, 5, 6]
            .iter()
            .fold(0, |sum: u64, &i| sum.saturating_add(at(i)));
        Some(CpuLook {
            cpu,
            busy_ticks: busy,
            idle_ticks: at(3).saturating_add(at(4)),
            steal_ticks: at(7),
        })
    });
    looks.collect()
}

/// What threads and CPUs did between the first look and the last.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    threads: BTreeMap<(Tid, u64), (ThreadLook, ThreadLook)>,
    cpus: BTreeMap<CpuId, (CpuLook, CpuLook)>,
    looked: bool,
}

impl Looks {
    /// Adds a look. A thread that was not there at the first one counts from its beginning.
    pub fn add(&mut self, threads: Vec<ThreadLook>, cpus: Vec<CpuLook>) {
        for look in threads {
            let first = if self.looked {
                ThreadLook {
                    run_ns: 0,
                    wait_ns: 0,
                    slices: 0,
                    ..look.clone()
                }
            } else {
                look.clone()
            };
            let key = (look.tid, look.began_ticks);
            self.threads
                .entry(key)
                .or_insert((first, ThreadLook::default()))
                .1 = look;
        }
        for look in cpus {
            self.cpus.entry(look.cpu).or_insert((look, look)).1 = look;
        }
        self.looked = true;
    }

    /// Differences per thread, most CPU time first.
    pub fn threads(&self) -> Vec<ThreadLook> {
        let rows = self.threads.values().map(|(first, last)| ThreadLook {
            run_ns: last.run_ns.saturating_sub(first.run_ns),
            wait_ns: last.wait_ns.saturating_sub(first.wait_ns),
            slices: last.slices.saturating_sub(first.slices),
            ..last.clone()
        });
        let mut rows: Vec<ThreadLook> = rows.collect();
        rows.sort_by(|a, b| (b.run_ns, a.tid).cmp(&(a.run_ns, b.tid)));
        rows
    }

    /// Differences per CPU, by number.
    pub fn cpus(&self) -> Vec<CpuLook> {
        let rows = self.cpus.values().map(|(first, last)| CpuLook {
            cpu: last.cpu,
            busy_ticks: last.busy_ticks.saturating_sub(first.busy_ticks),
            idle_ticks: last.idle_ticks.saturating_sub(first.idle_ticks),
            steal_ticks: last.steal_ticks.saturating_sub(first.steal_ticks),
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAT: &str = "42 (a) b) (c) R 1 42 42 0 -1 4194304 95 0 0 0 0 0 0 0 20 0 1 0 7788 2469888 \
        227 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn names_may_hold_anything() {
        let look = thread_look(40, STAT, "1000 200 3\n").unwrap();
        assert_eq!(
            (look.tid, look.pid, look.name.as_str()),
            (42, 40, "a) b) (c")
        );
        assert_eq!((look.began_ticks, look.cpu), (7788, 3));
        assert_eq!((look.run_ns, look.wait_ns, look.slices), (1000, 200, 3));
        assert_eq!(thread_look(40, STAT, "1000"), None);
    }

    #[test]
    fn cpus_of_proc_stat() {
        let text =
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu17 1 0 0 0\nintr 5\ncpux 1\n";
        let looks = cpu_looks(text);
        assert_eq!(looks.len(), 2);
        assert_eq!(
            looks[0],
            CpuLook {
                cpu: 0,
                busy_ticks: 19,
                idle_ticks: 45,
                steal_ticks: 8
            }
        );
        assert_eq!(looks[1].cpu, 17);
    }

    #[test]
    fn threads_that_come_later_count_from_their_beginning() {
        let look = |tid, began_ticks, run_ns| ThreadLook {
            tid,
            began_ticks,
            run_ns,
            ..ThreadLook::default()
        };
        let mut looks = Looks::default();
        looks.add(vec![look(1, 5, 100)], vec![]);
        // 1 has ended, and its number is another's.
        looks.add(vec![look(1, 9, 30), look(2, 8, 70)], vec![]);
        looks.add(vec![look(1, 9, 50)], vec![]);
        let runs: Vec<_> = looks
            .threads()
            .iter()
            .map(|row| (row.tid, row.run_ns))
            .collect();
        assert_eq!(runs, [(2, 70), (1, 50), (1, 0)]);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC*", other in "[0-9 ()cpu\n]*") {
            let _ = (thread_look(1, &text, &other), thread_look(1, &other, &text), cpu_looks(&text), cpu_looks(&other));
        }
    }
}
