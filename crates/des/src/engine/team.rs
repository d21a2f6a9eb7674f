//! Teams whose size `amdahl-openmp` decides by what `amdahl-phantom` would publish: both with their own code. What the kernel would
//! count is read off the simulated run queues.

use amdahl_openmp::sizing::Sizing;
use amdahl_phantom::{Estimator, Follower, Reading, Settings};
use amdahl_phantom_page::{Foreign, Snapshot, Source};

use super::Engine;
use super::state::{Mode, Phase, Use};
use crate::program::{Page, TeamSpec};
use crate::time::{NEVER, Ns};

/// A machine's clock does not begin with the run: at 0 nothing was ever looked at.
const BOOTED: Ns = 1_000_000_000;

pub(crate) struct Team {
    /// When its page is renewed next; never before the first region begins.
    pub due: Ns,
    sizing: Option<Sizing>,
    host: Published,
    guest: Published,
    follower: Follower,
    /// How many of others could run, over time, as looks at ticks tell.
    others: Ns,
}

/// A page and who writes it.
struct Published {
    estimator: Estimator,
    ticks: u64,
    snapshot: Option<Snapshot>,
}

impl Published {
    fn new() -> Published {
        Published {
            estimator: Estimator::new(Settings::default()),
            ticks: 0,
            snapshot: None,
        }
    }

    fn tick(&mut self, reading: Reading, tick: Ns) {
        if let Some(estimate) = self.estimator.tick(reading) {
            self.ticks += 1;
            self.snapshot = Some(estimate.snapshot(self.ticks, tick));
        }
    }
}

impl Team {
    pub fn new() -> Team {
        Team {
            due: NEVER,
            sizing: None,
            host: Published::new(),
            guest: Published::new(),
            follower: Follower::default(),
            others: 0,
        }
    }
}

/// What the host's scheduler knows of a team.
#[derive(Default)]
struct Known {
    members: u32,
    ran: Ns,
    /// Could run and did not.
    waited: Ns,
    /// Tasks of others that run or could, at this moment.
    others: u32,
}

impl Engine<'_> {
    /// When the next page is renewed.
    pub(super) fn next_page(&self) -> Ns {
        let due = self.teams.iter().map(|team| team.due);
        due.min().unwrap_or(NEVER)
    }

    /// Renews the pages that are due.
    pub(super) fn renew_pages(&mut self) {
        for at in 0..self.teams.len() {
            if self.teams[at].due <= self.s.now {
                self.renew(at);
            }
        }
    }

    fn renew(&mut self, at: usize) {
        let (w, now) = (self.w, self.s.now);
        let spec = &w.teams[at];
        let known = self.known(spec);
        let idle = self.idled();
        let team = &mut self.teams[at];
        team.due = now + spec.tick;
        team.others += Ns::from(known.others) * spec.tick;
        let at_ns = BOOTED + now;
        let host = Reading {
            at_ns,
            run_ns: known.ran,
            run_has_steal: true,
            wait_ns: Some(known.waited),
            idle_ns: idle,
            others_ns: team.others,
            allowed: self.s.online.count(),
            limit: Some(known.members),
            ..Reading::default()
        };
        team.host.tick(host, spec.tick);
        if spec.page == Page::Host {
            return;
        }
        if let Some(snapshot) = team.host.snapshot.filter(|_| spec.page == Page::Guest) {
            let seen = Foreign {
                snapshot,
                writer: 1,
                source: Source::Bpf,
            };
            team.follower.look(at_ns, Ok(seen));
        }
        // A thread whose virtual CPU has lost its CPU runs, as its own kernel sees it.
        let ran = known.ran + known.waited;
        let guest = Reading {
            at_ns,
            run_ns: ran,
            run_has_steal: true,
            wait_ns: Some(0),
            idle_ns: (Ns::from(known.members) * now).saturating_sub(ran),
            steal_ns: known.waited,
            allowed: known.members,
            host: team.follower.reading(),
            ..Reading::default()
        };
        team.guest.tick(guest, spec.tick);
    }

    /// O(tasks).
    fn known(&self, spec: &TeamSpec) -> Known {
        let mut known = Known::default();
        for &template in &spec.tasks {
            // Of those that have ended.
            let sums = &self.sums[template as usize];
            known.ran += sums.ran;
            known.waited += sums.waited;
        }
        for task in self.tasks.iter().filter(|task| task.phase != Phase::Gone) {
            let is_ready = task.phase == Phase::Ready;
            if !spec.tasks.contains(&task.template) {
                known.others += u32::from(is_ready || task.phase == Phase::OnCpu);
                continue;
            }
            known.members += 1;
            known.ran += task.ran;
            known.waited += task.waited;
            if is_ready {
                known.waited += self.s.now - task.ready_since;
            }
        }
        // What runs now is in no sum yet.
        for cpu in self.s.cpus.iter().filter(|cpu| cpu.mode == Mode::Running) {
            if spec.tasks.contains(&self.tasks[cpu.task as usize].template) {
                known.ran += self.s.now - cpu.settled;
            }
        }
        known
    }

    /// Time for which CPUs had nothing to run. O(CPUs).
    fn idled(&self) -> Ns {
        let of = |cpu: &super::Cpu| {
            let is_idle = matches!(cpu.use_, Use::Idle | Use::Poll);
            let present = if is_idle { self.s.now - cpu.since } else { 0 };
            let past = cpu.used[Use::Idle as usize] + cpu.used[Use::Poll as usize];
            past.max(0) as Ns + present
        };
        self.s.cpus.iter().map(of).sum()
    }

    /// Threads that a region of the team has which begins now.
    pub(super) fn size_of(&mut self, at: u32) -> u32 {
        let at = at as usize;
        let spec = &self.w.teams[at];
        let is_first = self.teams[at].sizing.is_none();
        if is_first {
            self.renew(at);
        }
        let members = self.known(spec).members.max(1);
        let (usable, page) = match spec.page {
            Page::Host => (members.min(self.s.online.count()), &self.teams[at].host),
            Page::Guest | Page::Steal => (members, &self.teams[at].guest),
        };
        let (published, now) = (page.snapshot, BOOTED + self.s.now);
        let team = &mut self.teams[at];
        let sizing = team
            .sizing
            .get_or_insert_with(|| Sizing::new(now, 0, usable));
        if sizing.is_due(now) {
            // Who has a page does not ask what was lost or stolen.
            sizing.look(now, published, 0, || None, usable);
        }
        sizing.cpus().min(usable)
    }
}
