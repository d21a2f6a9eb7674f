//! Run times and run queue delays of many threads, as sums that only grow.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustc_hash::FxHashMap;

use super::cpus::tick_ns;
use super::text;
use crate::clock;

/// Files that are kept open; of further threads they are opened each time.
const OPEN_MAX: usize = 512;

/// Whose threads are added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members {
    /// Everybody's on this machine.
    Everyone,
    /// Those of these processes, with those that they make meanwhile.
    Processes(Vec<u32>),
    /// These threads: (process, thread).
    Threads(Vec<(u32, u32)>),
}

impl Members {
    /// All threads now. Empty for everyone, who are not looked at one by one.
    pub fn threads(&self) -> Vec<(u32, u32)> {
        match self {
            Members::Everyone => Vec::new(),
            Members::Threads(threads) => threads.clone(),
            Members::Processes(pids) => pids
                .iter()
                .flat_map(|&pid| tasks(pid).into_iter().map(move |tid| (pid, tid)))
                .collect(),
        }
    }

    /// All processes; empty for everyone.
    pub fn processes(&self) -> Vec<u32> {
        let mut pids = match self {
            Members::Everyone => Vec::new(),
            Members::Processes(pids) => pids.clone(),
            Members::Threads(threads) => threads.iter().map(|&(pid, _)| pid).collect(),
        };
        pids.sort_unstable();
        pids.dedup();
        pids
    }
}

/// Threads of a process; none if it is gone.
fn tasks(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

struct Known {
    file: Option<File>,
    run_ns: u64,
    wait_ns: u64,
    look: u64,
}

/// Which file of a thread is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// `schedstat`: nanoseconds of running and waiting.
    Schedstat,
    /// `stat`: running in clock ticks, no waiting.
    Stat,
}

impl Counts {
    /// The best below `proc` that this kernel counts. Who asks has used `own_ns` of CPU time on this thread.
    fn best(proc: &Path, own_ns: u64) -> Counts {
        // Where nothing is counted (CONFIG_SCHEDSTATS is off, and so is delay accounting) the file may be there, of zeros.
        let own = fs::read_to_string(proc.join("thread-self/schedstat"));
        let counted = own.ok().and_then(|text| text::schedstat(&text));
        match counted {
            Some((run_ns, _)) if run_ns > 0 || own_ns == 0 => Counts::Schedstat,
            _ => Counts::Stat,
        }
    }
}

/// What threads did since the first look, those that have ended included up to the last look at them.
pub struct ThreadSums {
    counts: Counts,
    known: FxHashMap<(u32, u32), Known>,
    open: usize,
    looks: u64,
    looked_ns: u64,
    /// Nanoseconds that they ran.
    pub run_ns: u64,
    /// Nanoseconds that they could run and did not; a wait counts when it ends.
    pub wait_ns: u64,
}

impl ThreadSums {
    /// Of all that [`ThreadSums::look`] will be told; by the best that this kernel counts.
    pub fn new() -> ThreadSums {
        // To ask for it brings what `schedstat` tells up to date.
        let own_ns = clock::thread_cpu_ns();
        ThreadSums::with(Counts::best(Path::new("/proc"), own_ns))
    }

    fn with(counts: Counts) -> ThreadSums {
        ThreadSums {
            counts,
            known: FxHashMap::default(),
            open: 0,
            looks: 0,
            looked_ns: 0,
            run_ns: 0,
            wait_ns: 0,
        }
    }

    /// Waiting is counted.
    pub fn has_waits(&self) -> bool {
        self.counts == Counts::Schedstat
    }

    /// Looks at `threads`. A thread that was not there at the last look counts from then on, at most.
    pub fn look(&mut self, threads: &[(u32, u32)], now_ns: u64) {
        self.looks += 1;
        let is_first = self.looks == 1;
        let elapsed_ns = now_ns.saturating_sub(self.looked_ns);
        for &(pid, tid) in threads {
            let known = self.known.get(&(pid, tid));
            let Some((file, run_ns, wait_ns)) =
                self.read(pid, tid, known.and_then(|known| known.file.as_ref()))
            else {
                continue;
            };
            let (run_before, wait_before) = match known {
                Some(known) => (known.run_ns, known.wait_ns),
                None if is_first => (run_ns, wait_ns),
                // What is new here may be old elsewhere: it has come into the group.
                None => (
                    run_ns.saturating_sub(elapsed_ns),
                    wait_ns.saturating_sub(elapsed_ns),
                ),
            };
            self.run_ns = self
                .run_ns
                .saturating_add(run_ns.saturating_sub(run_before));
            self.wait_ns = self
                .wait_ns
                .saturating_add(wait_ns.saturating_sub(wait_before));
            let look = self.looks;
            match self.known.get_mut(&(pid, tid)) {
                Some(known) => {
                    (known.run_ns, known.wait_ns, known.look) = (run_ns, wait_ns, look);
                }
                None => {
                    let file = file.filter(|_| self.open < OPEN_MAX);
                    self.open += usize::from(file.is_some());
                    let known = Known {
                        file,
                        run_ns,
                        wait_ns,
                        look,
                    };
                    self.known.insert((pid, tid), known);
                }
            }
        }
        let (looks, open) = (self.looks, &mut self.open);
        self.known.retain(|_, known| {
            let stays = known.look == looks;
            *open -= usize::from(!stays && known.file.is_some());
            stays
        });
        self.looked_ns = now_ns;
    }

    /// Of a thread that lives: its file if it was opened just now, and its numbers.
    fn read(&self, pid: u32, tid: u32, file: Option<&File>) -> Option<(Option<File>, u64, u64)> {
        let name = match self.counts {
            Counts::Schedstat => "schedstat",
            Counts::Stat => "stat",
        };
        let opened = match file {
            Some(_) => None,
            None => Some(File::open(format!("/proc/{pid}/task/{tid}/{name}")).ok()?),
        };
        let mut buffer = [0; 1024];
        // Of a thread that is gone the open file gives ESRCH, even if its number is another's by now.
        let len = file.or(opened.as_ref())?.read_at(&mut buffer, 0).ok()?;
        let text = str::from_utf8(&buffer[..len]).ok()?;
        let (run_ns, wait_ns) = match self.counts {
            Counts::Schedstat => text::schedstat(text)?,
            Counts::Stat => (text::stat(text)?.ran.saturating_mul(tick_ns()), 0),
        };
        Some((opened, run_ns, wait_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_threads_run() {
        let me = std::process::id();
        let members = Members::Processes(vec![me]);
        assert_eq!(members.processes(), [me]);
        for counts in [Counts::Schedstat, Counts::Stat] {
            let mut sums = ThreadSums::with(counts);
            sums.look(&members.threads(), 1);
            if sums.known.is_empty() {
                eprintln!(
                    "SKIPPED our_own_threads_run ({counts:?}): this kernel does not count it"
                );
                continue;
            }
            assert_eq!(sums.run_ns, 0, "counted from the first look on");
            let mut now = 1;
            while sums.run_ns == 0 {
                now += 1_000_000;
                sums.look(&members.threads(), now);
            }
        }
    }

    /// The file was taken for a source because it was there: nobody ran, and nobody waited.
    #[test]
    fn a_schedstat_of_zeros_is_no_source() {
        let proc = tempfile::tempdir().unwrap();
        let best = |own_ns| Counts::best(proc.path(), own_ns);
        assert_eq!(best(1000), Counts::Stat, "there is none");
        fs::create_dir(proc.path().join("thread-self")).unwrap();
        let file = proc.path().join("thread-self/schedstat");
        for (text, counts) in [
            ("0 0 0\n", Counts::Stat),
            ("", Counts::Stat),
            ("900 0 1\n", Counts::Schedstat),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(best(1000), counts, "{text:?}");
        }
    }

    /// Where it is counted, it is found out at once.
    #[test]
    fn the_choice_for_this_kernel_is_what_its_numbers_say() {
        let has_waits = ThreadSums::new().has_waits();
        let schedstat = || fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let begun = clock::thread_cpu_ns();
        while clock::thread_cpu_ns() < begun + 50_000_000 {}
        let counted = text::schedstat(&schedstat()).is_some_and(|(run_ns, _)| run_ns > 0);
        assert_eq!(has_waits, counted);
    }

    #[test]
    fn threads_that_are_gone_are_forgotten_and_stay_in_the_sum() {
        let mut sums = ThreadSums::with(Counts::Schedstat);
        let known = Known {
            file: None,
            run_ns: 7,
            wait_ns: 7,
            look: 0,
        };
        sums.known.insert((u32::MAX, u32::MAX), known);
        sums.run_ns = 7;
        sums.look(&[(u32::MAX, u32::MAX)], 1);
        assert!(sums.known.is_empty());
        assert_eq!(sums.run_ns, 7);
    }
}
