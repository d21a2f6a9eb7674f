//! Who else runs: CPU time by process between two looks.

use std::fs;

use rustc_hash::FxHashMap;

use crate::proc::cpus::tick_ns;
use crate::proc::text::{self, Stat};
use crate::sampler::Sampler;

/// CPU time of processes of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// Their name.
    pub name: String,
    /// How many there were.
    pub processes: usize,
    /// One of them: that with most.
    pub pid: u32,
    /// CPU time of all of them together.
    pub ns: u64,
}

/// All processes at one time: nanoseconds so far, and names.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// By process and when it began, which is 0 where numbers cannot be told apart.
    processes: FxHashMap<(u32, u64), (u64, String)>,
    /// Only the allowed CPUs are in it.
    is_of_allowed: bool,
}

impl Look {
    /// From the kernel's own account where `sampler` has it: of the allowed CPUs, processes that have ended included. Else from `/proc`: of all
    /// CPUs, only who lives.
    pub fn now(sampler: &Sampler) -> Look {
        match sampler.takers() {
            Some(takers) => Look {
                processes: takers
                    .into_iter()
                    .map(|(pid, taken)| ((pid, 0), taken))
                    .collect(),
                is_of_allowed: true,
            },
            None => Look::at_all(),
        }
    }

    fn at_all() -> Look {
        let tick_ns = tick_ns();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let looks = pids.filter_map(|pid| {
            let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
            let Stat {
                name,
                ran,
                began,
                is_kernel,
            } = text::stat(&String::from_utf8_lossy(&stat))?;
            let name = if is_kernel { kernel_name(&name) } else { name };
            Some(((pid, began), (ran.saturating_mul(tick_ns), name)))
        });
        Look {
            processes: looks.collect(),
            is_of_allowed: false,
        }
    }

    /// Only the CPUs that we may use are in it.
    pub fn is_of_allowed(&self) -> bool {
        self.is_of_allowed
    }

    /// What happened since `earlier`, without the processes `ours`: most first.
    pub fn since(&self, earlier: &Look, ours: &[u32]) -> Vec<Taken> {
        let mut by_name: FxHashMap<&str, (Taken, u64)> = FxHashMap::default();
        for (key, (ns, name)) in &self.processes {
            let before = earlier.processes.get(key).map_or(0, |(ns, _)| *ns);
            let ns = ns.saturating_sub(before);
            if ns == 0 || ours.contains(&key.0) {
                continue;
            }
            let (taken, most) = by_name.entry(name).or_insert_with(|| {
                let taken = Taken {
                    name: name.clone(),
                    processes: 0,
                    pid: key.0,
                    ns: 0,
                };
                (taken, 0)
            });
            taken.processes += 1;
            taken.ns = taken.ns.saturating_add(ns);
            if ns > *most {
                (*most, taken.pid) = (ns, key.0);
            }
        }
        let mut rows: Vec<Taken> = by_name.into_values().map(|(taken, _)| taken).collect();
        rows.sort_by(|a, b| (b.ns, &a.name).cmp(&(a.ns, &b.name)));
        rows
    }
}

/// `kworker/3:1-events` and its kin as one.
fn kernel_name(name: &str) -> String {
    let end = name.find(['/', ':']).unwrap_or(name.len());
    format!("[{}]", &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(processes: &[(u32, u64, u64, &str)]) -> Look {
        Look {
            processes: processes
                .iter()
                .map(|&(pid, began, ns, name)| ((pid, began), (ns, name.to_owned())))
                .collect(),
            is_of_allowed: false,
        }
    }

    #[test]
    fn processes_of_one_name_are_one_row() {
        let before = look(&[
            (1, 5, 100, "cc"),
            (2, 5, 0, "cc"),
            (3, 5, 50, "ours"),
            (4, 5, 7, "idle"),
        ]);
        // 1 has ended, and its number is another's.
        let after = look(&[
            (1, 9, 30, "cc"),
            (2, 5, 70, "cc"),
            (3, 5, 90, "ours"),
            (4, 5, 7, "idle"),
            (5, 9, 200, "ld"),
        ]);
        let rows = after.since(&before, &[3]);
        let expected = |name: &str, processes, pid, ns| Taken {
            name: name.to_owned(),
            processes,
            pid,
            ns,
        };
        assert_eq!(rows, [expected("ld", 1, 5, 200), expected("cc", 2, 2, 100)]);
    }

    #[test]
    fn workers_of_the_kernel_have_one_name() {
        assert_eq!(kernel_name("kworker/3:1-events"), "[kworker]");
        assert_eq!(kernel_name("kswapd0"), "[kswapd0]");
    }

    #[test]
    fn we_are_among_all() {
        let me = std::process::id();
        let look = Look::at_all();
        assert!(look.processes.keys().any(|(pid, _)| *pid == me));
    }
}
