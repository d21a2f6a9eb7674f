//! Sums by scheduler events, from the kernel.

use amdahl_probe::bpf::{CpuSums, PhantomSettings, PhantomSums, RecorderError, Taker};
use amdahl_topology::CpuSet;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::proc::threads::Members;
use crate::sums::{CpuLine, Totals, Who};

/// Programs in the kernel that follow our threads.
pub struct Followed {
    sums: PhantomSums,
    cpus: CpuSet,
    /// Those that the kernel was told of: one that runs already is not known to be ours by its CPU's line.
    added: FxHashSet<u32>,
    /// Those that found no room, of those that live; and how many there ever were.
    refused: FxHashSet<u32>,
    refused_ever: u64,
    has_everyone: bool,
}

impl Followed {
    /// Begins to follow on all of `cpus`, which are those that are online.
    pub fn new(
        members: &Members,
        cpus: &CpuSet,
        keeps_takers: bool,
    ) -> Result<Followed, RecorderError> {
        let room = if *members == Members::Everyone {
            65_536
        } else {
            16_384
        };
        Followed::with_room(members, cpus, keeps_takers, room)
    }

    /// The same, of at most `room` threads.
    fn with_room(
        members: &Members,
        cpus: &CpuSet,
        keeps_takers: bool,
        room: u32,
    ) -> Result<Followed, RecorderError> {
        let has_everyone = *members == Members::Everyone;
        let settings = PhantomSettings {
            everyone: has_everyone,
            by_process: keeps_takers,
            threads: room,
        };
        let sums = PhantomSums::new(&settings)?;
        let mut followed = Followed {
            sums,
            cpus: cpus.clone(),
            added: FxHashSet::default(),
            refused: FxHashSet::default(),
            refused_ever: 0,
            has_everyone,
        };
        followed.refresh(members, cpus)?;
        switch_once_on_each(cpus);
        Ok(followed)
    }

    /// Takes in who has come from elsewhere, and who found no room before. Whom our threads make is known without that.
    pub fn refresh(&mut self, members: &Members, online: &CpuSet) -> Result<(), RecorderError> {
        let mut threads: FxHashSet<u32> =
            members.threads().into_iter().map(|(_, tid)| tid).collect();
        let mut refused = FxHashSet::default();
        for &tid in threads.difference(&self.added) {
            if !self.sums.add(tid)? {
                refused.insert(tid);
            }
        }
        threads.retain(|tid| !refused.contains(tid));
        self.added = threads;
        self.refused_ever += refused.difference(&self.refused).count() as u64;
        self.refused = refused;
        if self.cpus != *online {
            self.cpus.clone_from(online);
        }
        Ok(())
    }

    /// Whose time is kept by process.
    pub fn watch(&self, allowed: &CpuSet) {
        for cpu in self.cpus.iter() {
            self.sums.watch(cpu, allowed.contains(cpu));
        }
    }

    /// The sums now.
    pub fn totals(&self, now_ns: u64, allowed: &CpuSet) -> Totals {
        let lines = self.cpus.iter().filter_map(|cpu| {
            let sums = self.sums.cpu(cpu)?;
            Some((self.line(sums), allowed.contains(cpu)))
        });
        Totals::at(now_ns, lines)
    }

    fn line(&self, sums: CpuSums) -> CpuLine {
        CpuLine {
            since_ns: sums.since,
            who: match sums.tid {
                0 => Who::Nobody,
                tid if sums.is_ours || self.has_everyone || self.added.contains(&tid) => Who::Ours,
                _ => Who::Other,
            },
            run_ns: sums.run_ns,
            idle_ns: sums.idle_ns,
            waits_ns: sums.waits_ns,
            waiting: sums.waiting,
        }
    }

    /// What processes of others had of the allowed CPUs so far, with what goes on: by process, nanoseconds and name.
    pub fn takers(&self, now_ns: u64, allowed: &CpuSet) -> FxHashMap<u32, (u64, String)> {
        let kept = self.sums.takers().into_iter();
        let mut takers: FxHashMap<u32, (u64, String)> = kept
            .map(|Taker { pid, name, ns }| (pid, (ns, name)))
            .collect();
        for cpu in self.cpus.iter().filter(|&cpu| allowed.contains(cpu)) {
            if let Some(sums) = self.sums.cpu(cpu)
                && sums.since != 0
                && self.line(sums).who == Who::Other
            {
                let taker = takers.entry(sums.pid).or_default();
                taker.0 = taker.0.saturating_add(now_ns.saturating_sub(sums.since));
            }
        }
        takers
    }

    /// Threads that found no room, at least: the kernel knows of those alone that others of ours made, we of those alone that we met, and
    /// nobody knows how many are the same.
    pub fn lost(&self) -> u64 {
        self.sums.lost().max(self.refused_ever)
    }
}

/// A CPU tells of itself at a switch only, and one that idles or has one busy thread may not switch for seconds: a thread of ours visits
/// each once. Where it may not go the CPU stays unknown until it switches by itself.
fn switch_once_on_each(cpus: &CpuSet) {
    let cpus = cpus.clone();
    let visit = move || {
        for cpu in cpus.iter() {
            let _ = amdahl_topology::set_allowed(0, &[cpu].into_iter().collect());
        }
    };
    let visitor = std::thread::Builder::new().name("amdahl-visit".into());
    if let Ok(visitor) = visitor.spawn(visit) {
        visitor.join().expect("it does not panic");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;

    /// The table was full, and a program of many threads was ended, since looking at it had failed.
    #[test]
    fn threads_without_room_are_lost_until_there_is_some() {
        let cpus = amdahl_topology::online().unwrap();
        let me = std::process::id();
        let nobody = Members::Threads(Vec::new());
        if let Err(error) = Followed::with_room(&nobody, &cpus, false, 1) {
            let why = "SKIPPED threads_without_room_are_lost_until_there_is_some: no BPF";
            return eprintln!("{why}: {error}");
        }
        std::thread::scope(|scope| {
            let waiting = || {
                let (tell, told) = mpsc::channel();
                let (end, ends) = mpsc::channel::<()>();
                let thread = scope.spawn(move || {
                    // SAFETY: cannot fail.
                    tell.send(unsafe { libc::gettid() } as u32).unwrap();
                    let _ = ends.recv();
                });
                (told.recv().unwrap(), end, thread)
            };
            let mut threads = [(); 3].map(|()| waiting()).into_iter().collect::<Vec<_>>();
            let ours = |threads: &[(u32, _, _)]| {
                Members::Threads(threads.iter().map(|&(tid, _, _)| (me, tid)).collect())
            };
            let members = ours(&threads);
            let mut followed = Followed::with_room(&members, &cpus, false, 1).unwrap();
            assert_eq!((followed.added.len(), followed.lost()), (1, 2));
            followed.refresh(&members, &cpus).unwrap();
            assert_eq!(followed.lost(), 2, "the same two");

            let followed_one = |(tid, _, _): &(u32, _, _)| followed.added.contains(tid);
            let at = threads.iter().position(followed_one).unwrap();
            let (_, end, thread) = threads.remove(at);
            drop(end);
            thread.join().unwrap();
            let members = ours(&threads);
            // It may still have to leave its CPU for the last time.
            let begun = Instant::now();
            while followed.added.len() != 1 || followed.refused.len() != 1 {
                assert!(begun.elapsed() < Duration::from_secs(300), "no room");
                followed.refresh(&members, &cpus).unwrap();
                std::thread::yield_now();
            }
            assert_eq!(followed.lost(), 2);
        });
    }
}
