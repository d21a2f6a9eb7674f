//! Which threads are CPUs of guests, found out while a recording is made: afterwards they may be gone.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use amdahl_sched::vmm::{GuestCpu, ProcessFacts, ThreadFacts, guest_cpu};
use rustix::time::{ClockId, clock_gettime};

use super::facts;
use crate::cli::Selection;
use crate::watch;

/// The first pause between two looks. Each is twice as long as the one before: a thread on a CPU does not show what
/// it runs, so that some looks are needed, and guests come seldom.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A pause is so many times as long as the look before it kept a CPU busy.
const REST: u32 = 100;

/// What was seen of processes with virtual CPUs of KVM.
#[derive(Debug, Default)]
pub struct Guests {
    machines: BTreeMap<u32, Machine>,
}

#[derive(Debug)]
struct Machine {
    process: ProcessFacts,
    threads: BTreeMap<u32, ThreadFacts>,
}

impl Guests {
    /// Looks again and again until the other end of `recording` is gone, and then once more. `root` is the process whose
    /// descendants are recorded.
    pub fn follow(selection: &Selection, root: Option<u32>, recording: &Receiver<()>) -> Guests {
        let mut guests = Guests::default();
        let mut pace = Pace(PAUSE);
        let mut is_last = false;
        loop {
            let spent = guests.visit(selection, root);
            if is_last {
                return guests;
            }
            let goes_on = recording.recv_timeout(pace.pause(spent));
            is_last = goes_on != Err(RecvTimeoutError::Timeout);
        }
    }

    /// Looks at whom `selection` says. The CPU time that it took.
    fn visit(&mut self, selection: &Selection, root: Option<u32>) -> Duration {
        let before = cpu_time();
        self.look(&watch::present(selection, root));
        cpu_time().saturating_sub(before)
    }

    fn look(&mut self, present: &[(u32, Vec<u32>)]) {
        for (pid, tids) in present {
            let process = facts::process(*pid);
            let is_machine = match &process.kvm_vcpus {
                // Who is about to end has closed them already.
                Some(vcpus) => !vcpus.is_empty(),
                None => facts::has_run_guest(&format!("/proc/{pid}/stat")),
            };
            if !is_machine {
                continue;
            }
            let threads = tids.iter().map(|&tid| {
                let thread = facts::thread(*pid, tid, &process);
                (tid, thread)
            });
            let threads: Vec<(u32, ThreadFacts)> = threads.collect();
            self.add(*pid, process, &threads);
        }
    }

    fn add(&mut self, pid: u32, process: ProcessFacts, threads: &[(u32, ThreadFacts)]) {
        let machine = self.machines.entry(pid).or_insert_with(|| Machine {
            process: ProcessFacts::default(),
            threads: BTreeMap::new(),
        });
        machine.process = process;
        for &(tid, seen) in threads {
            let known = machine.threads.entry(tid).or_default();
            known.runs = seen.runs.or(known.runs);
            known.has_run_guest |= seen.has_run_guest;
        }
        machine.conclude();
    }

    /// The guest CPU that the thread `tid` of process `pid` is, which is called `name`.
    pub fn guest_cpu(&self, pid: u32, tid: u32, name: &str) -> Option<GuestCpu> {
        if let Some(machine) = self.machines.get(&pid) {
            let thread = machine.threads.get(&tid).copied();
            return guest_cpu(name, thread.unwrap_or_default(), &machine.process);
        }
        // Names are cheap to look at, descriptors are not.
        guest_cpu(name, ThreadFacts::default(), &ProcessFacts::default())?;
        let process = facts::process(pid);
        guest_cpu(name, ThreadFacts::default(), &process)
    }
}

impl Machine {
    /// A thread that never leaves its CPU does not show which of the guest's it runs; where one such thread and one
    /// CPU are left they belong together.
    fn conclude(&mut self) {
        let is_run = |index: &u32| {
            let mut threads = self.threads.values();
            threads.any(|thread| thread.runs == Some(*index))
        };
        let vcpus = self.process.kvm_vcpus.iter().flat_map(BTreeMap::values);
        let left: Vec<u32> = vcpus.copied().filter(|index| !is_run(index)).collect();
        let busy = self.threads.values_mut();
        let mut busy = busy.filter(|thread| thread.has_run_guest && thread.runs.is_none());
        if let (&[index], Some(thread), None) = (&left[..], busy.next(), busy.next()) {
            thread.runs = Some(index);
        }
    }
}

/// How long the next pause is.
struct Pace(Duration);

impl Pace {
    /// After a look that took `spent`.
    fn pause(&mut self, spent: Duration) -> Duration {
        let pause = self.0.max(spent * REST);
        self.0 = (self.0 * 2).min(PAUSE_MAX);
        pause
    }
}

/// The same for who asks again and again: looks only when a pause is over.
pub struct Visits {
    guests: Guests,
    pace: Pace,
    due: Instant,
}

impl Visits {
    /// There was none.
    pub fn new() -> Visits {
        Visits {
            guests: Guests::default(),
            pace: Pace(PAUSE),
            due: Instant::now(),
        }
    }

    /// What is known now of whom `selection` says; `root` is its process.
    pub fn look(&mut self, selection: &Selection, root: Option<u32>) -> &Guests {
        if Instant::now() >= self.due {
            let spent = self.guests.visit(selection, root);
            self.due = Instant::now() + self.pace.pause(spent);
        }
        &self.guests
    }

    /// What was known at the last look.
    pub fn known(&self) -> &Guests {
        &self.guests
    }
}

/// That the calling thread has used.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(vcpus: &[(i32, u32)]) -> ProcessFacts {
        ProcessFacts {
            name: "my-vmm".to_owned(),
            kvm_vcpus: Some(vcpus.iter().copied().collect()),
        }
    }

    fn found(guests: &Guests, tid: u32) -> Option<Option<u32>> {
        guests.guest_cpu(7, tid, "x").map(|cpu| cpu.index)
    }

    const BUSY: ThreadFacts = ThreadFacts {
        runs: None,
        has_run_guest: true,
    };

    fn runs(index: u32) -> ThreadFacts {
        ThreadFacts {
            runs: Some(index),
            has_run_guest: true,
        }
    }

    #[test]
    fn what_was_seen_once_is_known_for_good() {
        let mut guests = Guests::default();
        let vcpus = [(20, 0), (21, 1), (22, 2)];
        let other = ThreadFacts::default();
        guests.add(
            7,
            process(&vcpus),
            &[(8, runs(1)), (9, BUSY), (10, BUSY), (11, other)],
        );
        assert_eq!(
            [8, 9, 10, 11].map(|tid| found(&guests, tid)),
            [Some(Some(1)), Some(None), Some(None), None]
        );
        // All of them are on a CPU but one; and so it is clear which the last one is.
        guests.add(7, process(&vcpus), &[(8, BUSY), (9, runs(2)), (10, BUSY)]);
        assert_eq!(
            [8, 9, 10, 11].map(|tid| found(&guests, tid)),
            [Some(Some(1)), Some(Some(2)), Some(Some(0)), None]
        );
    }

    #[test]
    fn two_threads_for_one_cpu_are_not_told_apart() {
        let mut guests = Guests::default();
        guests.add(7, process(&[(20, 0)]), &[(8, BUSY), (9, BUSY)]);
        assert_eq!([8, 9].map(|tid| found(&guests, tid)), [Some(None); 2]);
    }
}
