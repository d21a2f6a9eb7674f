//! What `/proc` tells of scheduling without privileges: texts to numbers, two looks to a table.
//!
//! Not told there: who woke whom, single latencies (sums only), which queue a thread waited in, migrations
//! (but the last CPU), who took a CPU away.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::event::{CpuId, Ns, Tid};
use crate::threads::{GONE_MAX, NAMES_MAX, OTHERS};

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

/// `/proc/PID/task/TID/stat` and `schedstat`; `None` if they are not what the kernel writes. Where it keeps no `schedstat`
/// the run time is that of `stat`, in clock ticks of `tick_ns`, and nothing else is known.
pub fn thread_look(
    pid: Tid,
    stat: &str,
    schedstat: Option<&str>,
    tick_ns: Ns,
) -> Option<ThreadLook> {
    // The name may contain anything, parentheses and line ends too.
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let tid = stat.get(..open)?.trim().parse().ok()?;
    let name = stat.get(open + 1..close)?.to_owned();
    let fields: Vec<&str> = stat.get(close + 1..)?.split_ascii_whitespace().collect();
    // Counted from the state, which is field 3.
    let began_ticks = fields.get(19)?.parse().ok()?;
    let cpu = fields.get(36)?.parse().ok()?;
    let (run_ns, wait_ns, slices) = if let Some(schedstat) = schedstat {
        let mut sums = schedstat
            .split_ascii_whitespace()
            .map(|text| text.parse::<u64>().ok());
        let mut next = || sums.next().flatten();
        (next()?, next()?, next()?)
    } else {
        // In user code and in the kernel.
        let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
        let ticks = ticks(11)?.saturating_add(ticks(12)?);
        (ticks.saturating_mul(tick_ns), 0, 0)
    };
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

/// What the hypervisor has taken of all CPUs in `/proc/stat`, in seconds.
pub fn stolen_s(stat: &str, ticks_per_second: u64) -> f64 {
    let ticks: u64 = cpu_looks(stat).iter().map(|cpu| cpu.steal_ticks).sum();
    ticks as f64 / ticks_per_second as f64
}

/// What a thread did between the first look and the last, or several of one name that are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadRan<'a> {
    /// Thread; 0 for several.
    pub tid: Tid,
    /// Process; of several that of one of them.
    pub pid: Tid,
    /// Its name.
    pub name: &'a str,
    /// CPU on which it ran last; `None` for several.
    pub cpu: Option<CpuId>,
    /// How many threads this is.
    pub threads: u64,
    /// Time on CPUs.
    pub run_ns: Ns,
    /// Time in run queues.
    pub wait_ns: Ns,
    /// Stretches on a CPU.
    pub slices: u64,
}

/// Run time, time in run queues, stretches.
type Sums = [u64; 3];

fn sums(look: &ThreadLook) -> Sums {
    [look.run_ns, look.wait_ns, look.slices]
}

#[derive(Clone, Debug)]
struct Seen {
    before: Sums,
    last: ThreadLook,
    /// The number of the look at which it was seen last.
    at: u64,
}

impl Seen {
    fn sums(&self) -> Sums {
        let mut sums = sums(&self.last);
        for (now, before) in sums.iter_mut().zip(self.before) {
            *now = now.saturating_sub(before);
        }
        sums
    }
}

/// Threads of one name that are gone.
#[derive(Clone, Debug)]
struct Gone {
    pid: Tid,
    threads: u64,
    sums: Sums,
}

/// What threads and CPUs did between the first look and the last. Of threads that are gone those that ran least are
/// kept as sums by name, where there are many: memory grows with the threads that live.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    threads: BTreeMap<(Tid, u64), Seen>,
    gone: BTreeMap<Box<str>, Gone>,
    cpus: BTreeMap<CpuId, (CpuLook, CpuLook)>,
    looks: u64,
}

impl Looks {
    /// Adds a look. A thread that was not there at the first one counts from its beginning.
    pub fn add(&mut self, threads: Vec<ThreadLook>, cpus: Vec<CpuLook>) {
        self.looks += 1;
        let at = self.looks;
        let mut present = 0;
        for look in threads {
            match self.threads.entry((look.tid, look.began_ticks)) {
                Entry::Occupied(mut seen) => {
                    let seen = seen.get_mut();
                    present += usize::from(seen.at != at);
                    (seen.last, seen.at) = (look, at);
                }
                Entry::Vacant(entry) => {
                    present += 1;
                    let before = if at == 1 { sums(&look) } else { [0; 3] };
                    let last = look;
                    entry.insert(Seen { before, last, at });
                }
            }
        }
        for look in cpus {
            self.cpus.entry(look.cpu).or_insert((look, look)).1 = look;
        }
        if self.threads.len() - present > GONE_MAX {
            self.fold();
        }
    }

    /// Keeps of the gone that ran least sums by name.
    fn fold(&mut self) {
        // Who was missed once may only have been unreadable, and would count from its beginning when it is back.
        let gone = self.threads.iter();
        let gone = gone.filter(|(_, seen)| seen.at + 1 < self.looks);
        let mut gone: Vec<_> = gone
            .map(|(&key, seen)| (Reverse(seen.sums()[0]), key))
            .collect();
        gone.sort_unstable();
        for (_, key) in gone.split_off(gone.len().min(GONE_MAX / 2)) {
            let seen = self.threads.remove(&key).expect("it was found there");
            let sums = seen.sums();
            // One that has done nothing is no row either.
            if sums == [0; 3] {
                continue;
            }
            let name = seen.last.name.as_str();
            let has_room = self.gone.len() < NAMES_MAX || self.gone.contains_key(name);
            let name = if has_room { name } else { OTHERS };
            let sum = self.gone.entry(name.into()).or_insert_with(|| Gone {
                pid: seen.last.pid,
                threads: 0,
                sums: [0; 3],
            });
            sum.threads += 1;
            for (sum, more) in sum.sums.iter_mut().zip(sums) {
                *sum = sum.saturating_add(more);
            }
        }
    }

    /// Differences per thread, most CPU time first. O(n log n) for the threads that are kept.
    pub fn threads(&self) -> Vec<ThreadRan<'_>> {
        let single = self.threads.values().map(|seen| {
            let [run_ns, wait_ns, slices] = seen.sums();
            ThreadRan {
                tid: seen.last.tid,
                pid: seen.last.pid,
                name: &seen.last.name,
                cpu: Some(seen.last.cpu),
                threads: 1,
                run_ns,
                wait_ns,
                slices,
            }
        });
        let several = self.gone.iter().map(|(name, gone)| {
            let [run_ns, wait_ns, slices] = gone.sums;
            ThreadRan {
                tid: 0,
                pid: gone.pid,
                name,
                cpu: None,
                threads: gone.threads,
                run_ns,
                wait_ns,
                slices,
            }
        });
        let mut rows: Vec<ThreadRan<'_>> = single.chain(several).collect();
        rows.sort_by_key(|row| (Reverse(row.run_ns), row.tid));
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
        let look = thread_look(40, STAT, Some("1000 200 3\n"), 1).unwrap();
        assert_eq!(
            (look.tid, look.pid, look.name.as_str()),
            (42, 40, "a) b) (c")
        );
        assert_eq!((look.began_ticks, look.cpu), (7788, 3));
        assert_eq!((look.run_ns, look.wait_ns, look.slices), (1000, 200, 3));
        assert_eq!(thread_look(40, STAT, Some("1000"), 1), None);
    }

    /// Such threads were left out, on such a kernel all of them.
    #[test]
    fn without_schedstat_run_time_is_told_in_ticks() {
        let stat = STAT.replace(" 95 0 0 0 0 0 ", " 95 0 0 0 30 12 ");
        let look = thread_look(40, &stat, None, 10).unwrap();
        assert_eq!((look.tid, look.cpu), (42, 3));
        assert_eq!((look.run_ns, look.wait_ns, look.slices), (420, 0, 0));
    }

    #[test]
    fn cpus_of_proc_stat() {
        let text =
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu17 1 0 0 0\nintr 5\ncpux 1\n";
        let looks = cpu_looks(text);
        let steal_ticks: u64 = looks.iter().map(|look| look.steal_ticks).sum();
        assert_eq!(stolen_s(text, 100), steal_ticks as f64 / 100.0);
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

    /// Each thread that ever was had an entry, and all of them were copied and sorted for each table.
    #[test]
    fn threads_that_are_gone_become_rows_by_name() {
        let look = |tid: Tid, name: &str, run_ns| ThreadLook {
            tid,
            pid: 1,
            name: name.to_owned(),
            began_ticks: u64::from(tid),
            run_ns,
            wait_ns: 2 * run_ns,
            slices: 1,
            ..ThreadLook::default()
        };
        let mut looks = Looks::default();
        let (mut ran, mut threads, mut most) = (0, 0, 0);
        looks.add(vec![look(1, "main", 7)], vec![]);
        for at in 1..=600u32 {
            let mut found = vec![look(1, "main", 7 + u64::from(at))];
            ran += 1;
            for tid in 100 * at..100 * at + 100 {
                // One in a thousand runs for long; some names come once.
                let run_ns = if tid % 1_000 == 0 {
                    1_000_000
                } else {
                    u64::from(tid % 9)
                };
                let name = if tid % 5 == 0 {
                    format!("worker-{tid}")
                } else {
                    "worker".to_owned()
                };
                (ran, threads) = (ran + run_ns, threads + 1);
                found.push(look(tid, &name, run_ns));
            }
            looks.add(found, vec![]);
            most = most.max(looks.threads.len());
        }
        assert!(most <= GONE_MAX + 300, "{most}");
        assert!(looks.gone.len() <= NAMES_MAX + 1);
        let rows = looks.threads();
        assert_eq!(rows.iter().map(|row| row.run_ns).sum::<Ns>(), ran);
        assert_eq!(rows.iter().map(|row| row.wait_ns).sum::<Ns>(), 2 * ran);
        assert_eq!(rows.iter().map(|row| row.threads).sum::<u64>(), threads + 1);
        let long = rows
            .iter()
            .filter(|row| row.run_ns == 1_000_000 && row.tid > 0);
        assert_eq!(long.count(), 60);
        let main = rows.iter().find(|row| row.tid == 1).expect("it lives");
        assert_eq!((main.run_ns, main.name), (600, "main"));
        for several in ["worker", OTHERS] {
            let row = rows.iter().find(|row| row.tid == 0 && row.name == several);
            let row = row.expect("a row of several");
            assert!(row.threads > 1 && row.cpu.is_none(), "{row:?}");
        }
        assert!(rows.is_sorted_by_key(|row| Reverse(row.run_ns)));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC*", other in "[0-9 ()cpu\n]*") {
            for (one, two) in [(&text, &other), (&other, &text)] {
                let _ = (thread_look(1, one, Some(two), 1), thread_look(1, one, None, u64::MAX), cpu_looks(one));
            }
        }
    }
}
