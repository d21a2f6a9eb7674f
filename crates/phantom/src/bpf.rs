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
    has_everyone: bool,
}

impl Followed {
    /// Begins to follow on all of `cpus`, which are those that are online.
    pub fn new(
        members: &Members,
        cpus: &CpuSet,
        keeps_takers: bool,
    ) -> Result<Followed, RecorderError> {
        let has_everyone = *members == Members::Everyone;
        let settings = PhantomSettings {
            everyone: has_everyone,
            by_process: keeps_takers,
            threads: if has_everyone { 65_536 } else { 16_384 },
        };
        let sums = PhantomSums::new(&settings)?;
        let mut followed = Followed {
            sums,
            cpus: cpus.clone(),
            added: FxHashSet::default(),
            has_everyone,
        };
        followed.refresh(members, cpus)?;
        switch_once_on_each(cpus);
        Ok(followed)
    }

    /// Takes in who has come from elsewhere. Whom our threads make is known without that.
    pub fn refresh(&mut self, members: &Members, online: &CpuSet) -> Result<(), RecorderError> {
        let threads: FxHashSet<u32> = members.threads().into_iter().map(|(_, tid)| tid).collect();
        for &tid in threads.difference(&self.added) {
            self.sums.add(tid)?;
        }
        self.added = threads;
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

    /// Threads that found no room.
    pub fn lost(&self) -> u64 {
        self.sums.lost()
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
