//! The end of a run: what is told of it.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::state::{Mode, Phase, USES, Use, Wait};
use super::{End, Engine, Simulation, USE_NAMES};
use crate::program::{Kind, NONE, Named};
use crate::result::{
    CpuRow, Latency, LockRow, Migrations, ObjectRow, Outcome, RunResult, SchedCounts, TaskRow,
    VERSION,
};
use crate::time::{Ns, show};

/// Lines that say who waits for whom.
const LINES_MAX: usize = 40;

impl Engine<'_> {
    /// Brings all times up to now and tells them.
    pub(super) fn outcome(mut self, simulation: &Simulation) -> Outcome {
        let now = self.s.now;
        let end = self.end.unwrap_or(End::Done);
        for cpu in 0..self.s.cpus.len() as u32 {
            let state = &self.s.cpus[cpu as usize];
            let (mode, task, since, use_) = (state.mode, state.task, state.slice_start, state.use_);
            if mode == Mode::Running && task != NONE {
                self.settle(cpu);
                let task = &self.tasks[task as usize];
                self.tracer.ran(cpu, task.template, task.serial, since, now);
            }
            self.account(cpu, use_);
            self.unpaid(cpu);
        }
        let why = self.why(end);
        for id in 0..self.tasks.len() as u32 {
            let task = &mut self.tasks[id as usize];
            match task.phase {
                Phase::Gone => continue,
                Phase::Ready => task.waited += now - task.ready_since,
                Phase::Blocked => task.slept += now - task.since,
                Phase::OnCpu => {}
            }
            self.fold(id);
        }
        let total = |uses: &[Use]| -> i64 {
            self.s
                .cpus
                .iter()
                .map(|cpu| {
                    uses.iter()
                        .map(|&use_| cpu.used[use_ as usize])
                        .sum::<i64>()
                })
                .sum()
        };
        // CPUs that are offline have nothing to give.
        let offline = total(&[Use::Offline]);
        let capacity = (self.s.cpus.len() as f64 * now as f64 - offline as f64).max(1.0);
        let idle = total(&[Use::Idle, Use::Poll]);
        let search = total(&[Use::Search]);
        let mut used = [0i64; USES];
        for cpu in &self.s.cpus {
            used.iter_mut()
                .zip(cpu.used)
                .for_each(|(sum, one)| *sum += one);
        }
        let result = RunResult {
            version: VERSION,
            workload: self.w.name.clone(),
            params: self.w.params.clone(),
            machine: simulation.topology.describe(),
            cpus: self.s.cpus.len() as u32,
            policy: self.policy.name().to_owned(),
            costs: self.costs.source.clone(),
            seed: self.seed,
            end: match end {
                End::Done => "done",
                End::Duration => "duration",
                End::Deadlock => "deadlock",
                End::TimeLimit => "time-limit",
                End::EventLimit => "event-limit",
                End::TaskLimit => "task-limit",
                End::Stopped => "stopped",
                End::Livelock(_) => "livelock",
            }
            .to_owned(),
            why,
            makespan_ns: now,
            busy: (capacity - idle as f64) / capacity,
            search: search as f64 / capacity,
            used_ns: named(&used),
            sched: self.sched_counts(),
            wakeup_ns: latency(&self.wakeup),
            counters: self
                .w
                .counters
                .iter()
                .cloned()
                .zip(self.counters.iter().copied())
                .collect(),
            histograms: self
                .w
                .histograms
                .iter()
                .cloned()
                .zip(self.histograms.iter().map(latency))
                .collect(),
            tasks: self.task_rows(),
            cpu_rows: self.cpu_rows(),
            locks: self.lock_rows(),
            objects: self.object_rows(),
            events: self.counts.events,
            operations: self.counts.operations,
        };
        Outcome {
            result,
            slices: self.tracer.slices,
            is_cut: self.tracer.is_cut,
        }
    }

    /// What was counted ahead of its time and is not over yet is taken back.
    fn unpaid(&mut self, cpu: u32) {
        let state = &mut self.s.cpus[cpu as usize];
        state
            .used
            .iter_mut()
            .for_each(|used| *used = (*used).max(0));
        let mut left = state.used.iter().sum::<i64>() - self.s.now as i64;
        while left > 0 {
            let most = state.used.iter_mut().max().expect("there are uses");
            let taken = left.min(*most);
            *most -= taken;
            left -= taken;
        }
    }

    fn sched_counts(&self) -> SchedCounts {
        let sum = |of: fn(&super::Cpu) -> u64| self.s.cpus.iter().map(of).sum();
        let [_, core, llc, node, remote] = self.counts.migrations;
        SchedCounts {
            switches: sum(|cpu| cpu.switches),
            wakeups: self.counts.wakeups,
            wakeups_delivered: self.counts.wakeups_delivered,
            steals: self.counts.steals,
            balanced: self.counts.balanced,
            preemptions: self.counts.preemptions,
            idle_entries: sum(|cpu| cpu.idle_entries),
            searches: self.counts.searches,
            examined: self.counts.examined,
            migrations: Migrations {
                core,
                llc,
                node,
                remote,
            },
            dispatched: self.counts.dispatched,
            forks: self.counts.forks,
            affinity_broken: self.counts.affinity_broken,
            tasks_max: self.counts.alive_max,
        }
    }

    fn task_rows(&self) -> Vec<TaskRow> {
        let rows = self
            .w
            .templates
            .iter()
            .zip(&self.sums)
            .map(|(template, sums)| TaskRow {
                name: template.name.clone(),
                count: sums.started,
                ended: sums.ended,
                ran_ns: sums.ran,
                spun_ns: sums.spun,
                waited_ns: sums.waited,
                slept_ns: sums.slept,
                ran_ns_min: sums.ran_min,
                ran_ns_max: sums.ran_max,
                switches: sums.switches,
                migrations: sums.migrations,
                last_end_ns: sums.last_end,
            });
        rows.collect()
    }

    fn cpu_rows(&self) -> Vec<CpuRow> {
        let rows = (0..).zip(&self.s.cpus).map(|(cpu, state)| CpuRow {
            cpu: self.s.machine.kernel_cpu(cpu),
            used_ns: named(&state.used),
            switches: state.switches,
            steals: state.steals,
            idle_entries: state.idle_entries,
        });
        let mut rows: Vec<CpuRow> = rows.collect();
        rows.sort_unstable_by_key(|row| row.cpu);
        rows
    }

    fn lock_rows(&self) -> Vec<LockRow> {
        let own = self.w.locks.len();
        let groups = self.w.names[Kind::Lock as usize].iter().map(|named| {
            let base = named.base as usize;
            (named.name.clone(), base..base + named.len as usize)
        });
        let spaces = std::iter::once(("address space".to_owned(), own..self.locks.len()));
        let rows = groups.chain(spaces).map(|(lock, range)| {
            let locks = &self.locks[range];
            let sum = |of: fn(&super::Lock) -> u64| locks.iter().map(of).sum();
            LockRow {
                lock,
                acquired: sum(|lock| lock.acquired),
                contended: sum(|lock| lock.contended),
                waited_ns: sum(|lock| lock.waited),
                waited_ns_max: locks.iter().map(|lock| lock.waited_max).max().unwrap_or(0),
                held_ns: sum(|lock| lock.held),
                handed_ns: sum(|lock| lock.handed),
            }
        });
        rows.filter(|row| row.acquired > 0 || row.contended > 0)
            .collect()
    }

    fn object_rows(&self) -> Vec<ObjectRow> {
        let mut rows = vec![];
        let mut of = |kind: Kind, name: &str, figures: &dyn Fn(usize) -> (u64, Ns)| {
            for Named {
                name: object,
                base,
                len,
                ..
            } in &self.w.names[kind as usize]
            {
                let range = *base as usize..(*base + *len) as usize;
                let (uses, waited_ns) = range
                    .map(figures)
                    .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
                rows.push(ObjectRow {
                    kind: name.to_owned(),
                    name: object.clone(),
                    uses,
                    waited_ns,
                });
            }
        };
        of(Kind::Pipe, "pipe", &|i| (self.pipes[i].reads, 0));
        of(Kind::Barrier, "barrier", &|i| {
            (self.barriers[i].passed, self.barriers[i].waited)
        });
        of(Kind::Device, "device", &|i| {
            (self.devices[i].requests, self.devices[i].waited)
        });
        of(Kind::Line, "line", &|i| {
            (self.lines[i].touches, self.lines[i].waited)
        });
        rows
    }

    /// The name of a task.
    fn who(&self, id: u32) -> String {
        let task = &self.tasks[id as usize];
        let template = &self.w.templates[task.template as usize];
        match template.count {
            1 => template.name.clone(),
            _ => format!("{}#{}", template.name, self.vars[id as usize * self.w.vars]),
        }
    }

    fn why(&self, end: End) -> Vec<String> {
        match end {
            End::Done | End::Duration | End::Stopped => vec![],
            End::TimeLimit => self.running(format!("{} of simulated time", show(self.limits.time))),
            End::EventLimit => self.running(format!("{} events", self.limits.events)),
            End::TaskLimit => vec![format!("more than {} tasks at once", self.limits.tasks)],
            End::Livelock(template) => vec![format!(
                "a task `{}` goes round and round without taking any time: give its loop something to compute",
                self.w.templates[template as usize].name
            )],
            End::Deadlock => self.who_waits(true),
        }
    }

    /// It had not ended after so much. Whatever has a timer goes on beside tasks that wait for each other for ever.
    fn running(&self, after: String) -> Vec<String> {
        let mut told = vec![format!("it was still running after {after}")];
        told.extend(self.who_waits(false));
        told
    }

    /// Who waits for whom, tasks that are alike in one line. If not all are stuck, since when; and not those that are
    /// ready, or whose waits end by themselves.
    fn who_waits(&self, is_stuck: bool) -> Vec<String> {
        let mut lines: BTreeMap<String, (u64, Ns, String)> = BTreeMap::new();
        let mut order = vec![];
        for id in 0..self.tasks.len() as u32 {
            let task = &self.tasks[id as usize];
            if task.phase == Phase::Gone || !is_stuck && !self.waits_for_another(id) {
                continue;
            }
            let waits = self.waits(id, is_stuck);
            let key = format!("{} {waits}", task.template);
            let entry = lines.entry(key.clone()).or_insert_with(|| {
                order.push(key);
                (0, Ns::MAX, format!("{} {waits}", self.who(id)))
            });
            entry.0 += 1;
            entry.1 = entry.1.min(task.wait_since);
        }
        let mut told: Vec<String> = order
            .iter()
            .take(LINES_MAX)
            .map(|key| {
                let (count, since, line) = &lines[key];
                let since = match is_stuck {
                    true => String::new(),
                    false => format!(", since {}", show(*since)),
                };
                match count {
                    1 => format!("{line}{since}"),
                    _ => format!("{line}{since} (and {} more like it)", count - 1),
                }
            })
            .collect();
        if order.len() > LINES_MAX {
            told.push(format!("... and {} more", order.len() - LINES_MAX));
        }
        told.extend(self.circle());
        told
    }

    /// Whether what it waits for is another task's doing.
    fn waits_for_another(&self, id: u32) -> bool {
        let task = &self.tasks[id as usize];
        let is_timed = matches!(
            task.wait,
            Wait::Nothing | Wait::Timer | Wait::Start | Wait::Device(_)
        );
        !is_timed && (task.phase == Phase::Blocked || task.is_spinning)
    }

    fn waits(&self, id: u32, is_stuck: bool) -> String {
        let task = &self.tasks[id as usize];
        let named = |kind, index| self.w.object_name(kind, index);
        match task.wait {
            _ if task.phase == Phase::Ready && !task.is_spinning => {
                "is ready, but no CPU takes it".to_owned()
            }
            Wait::Lock(lock) => {
                let holder = match self.holder(id) {
                    Some(holder) => format!("held by {}", self.who(holder)),
                    None if self.locks[lock as usize].owner != NONE => {
                        "held by a task that has ended".to_owned()
                    }
                    None => "nobody holds it alone".to_owned(),
                };
                let name = if (lock as usize) < self.w.locks.len() {
                    format!("lock `{}`", named(Kind::Lock, lock))
                } else {
                    "the lock of its address space".to_owned()
                };
                format!("waits for {name}, {holder}")
            }
            Wait::Condition(i) => format!(
                "waits for condition `{}`{}",
                named(Kind::Condition, i),
                if is_stuck {
                    ", which nobody signals"
                } else {
                    ""
                }
            ),
            Wait::Barrier(i) => {
                let state = &self.barriers[i as usize];
                let (here, parties) = (state.waiters.len(), state.spec.parties);
                format!(
                    "waits at barrier `{}`, where {here} of {parties} are",
                    named(Kind::Barrier, i)
                )
            }
            Wait::PipeData(i) => format!(
                "waits for data in pipe `{}`, which is empty",
                named(Kind::Pipe, i)
            ),
            Wait::PipeRoom(i) => format!(
                "waits for room in pipe `{}`, which is full",
                named(Kind::Pipe, i)
            ),
            Wait::Notice(i) => format!(
                "waits for notice `{}`{}",
                named(Kind::Notice, i),
                if is_stuck {
                    ", which nobody leaves"
                } else {
                    ""
                }
            ),
            Wait::Children => format!("waits for {} of its children", task.children),
            Wait::Job(i) => format!(
                "waits for a job of graph `{}`: none is ready, {} are not done",
                named(Kind::Graph, i),
                self.graphs[i as usize].undone
            ),
            Wait::Device(i) => format!("waits for device `{}`", named(Kind::Device, i)),
            Wait::Timer | Wait::Start => "sleeps".to_owned(),
            Wait::Nothing => "runs".to_owned(),
        }
    }

    /// Who holds what `id` waits for.
    fn holder(&self, id: u32) -> Option<u32> {
        let Wait::Lock(lock) = self.tasks[id as usize].wait else {
            return None;
        };
        self.owner(lock)
    }

    /// A circle of tasks that wait for each other's locks.
    fn circle(&self) -> Option<String> {
        let mut colour = vec![0u32; self.tasks.len()];
        for first in 0..self.tasks.len() as u32 {
            let (mut at, mark) = (first, first + 1);
            while colour[at as usize] == 0 {
                colour[at as usize] = mark;
                let Some(next) = self.holder(at) else {
                    break;
                };
                at = next;
                if colour[at as usize] == mark {
                    let mut names = vec![self.who(at)];
                    let mut next = self.holder(at)?;
                    while next != at {
                        names.push(self.who(next));
                        next = self.holder(next)?;
                    }
                    names.push(self.who(at));
                    return Some(format!("circle: {}", names.join(" -> ")));
                }
            }
        }
        None
    }
}

fn named(used: &[i64; USES]) -> BTreeMap<String, Ns> {
    let all = USE_NAMES.iter().zip(used);
    all.filter(|&(_, &ns)| ns > 0)
        .map(|(name, &ns)| ((*name).to_owned(), ns as Ns))
        .collect()
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    Latency {
        count: histogram.len(),
        mean: if histogram.is_empty() {
            0.0
        } else {
            histogram.mean()
        },
        p50: histogram.value_at_quantile(0.5),
        p90: histogram.value_at_quantile(0.9),
        p99: histogram.value_at_quantile(0.99),
        p999: histogram.value_at_quantile(0.999),
        max: histogram.max(),
    }
}
