//! One run watched without privileges: polled through `/proc`, its waits recorded by the preload
//! library where the program takes one, sampled where perf events are allowed.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use amdahl_probe::bpf::{Counts, Decoded, Decoder, Part, ThreadName};
use amdahl_probe::clock;
use amdahl_probe::perf::{Counter, LeftOut, Rate, Sampler, View};
use amdahl_probe::symbol::Symbolizer;
use amdahl_probe::unprivileged::preload::{self, Records};
use amdahl_probe::unprivileged::{Poller, Scope, StackCopy};
use amdahl_speedup::cause::Cause;
use amdahl_speedup::event::{CallStack, Event, Ns, StackId, StackTable};
use amdahl_speedup::partition::{ChargeKey, HYPERVISOR, RunPartition};
use amdahl_speedup::snapshot::{Charger, CpuUsage, Snapshot};
use amdahl_speedup::stack::Measured;
use amdahl_topology::CpuSet;

use super::cgroup::Group;
use super::polls::Polls;
use super::run::{Probed, ProbedError, Workload, confined_by, steal_ns};
use crate::child::Ended;
use crate::scratch::Scratch;
use crate::watch::preload::{self as library, Seen};

/// The first stack stands for CPU time that nobody sampled; those of waiting threads follow.
const BLANK: StackId = StackId(0);

/// What there is besides `/proc`, the same in all runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Means {
    /// Samples, where they are allowed.
    pub sampling: Option<(View, Rate)>,
    /// What a page fault costs, where samples do not tell.
    pub fault_ns: Option<f64>,
}

/// A sampler, and what cannot be sampled although it is allowed.
#[derive(Default)]
pub(super) struct Sampling {
    /// None: polls remain.
    pub(super) sampler: Option<Sampler>,
    /// Why there is none, if it is allowed: for want of memory or descriptors.
    pub(super) unsampled: Option<String>,
    /// What the sampler has no descriptors for.
    pub(super) left_out: Vec<String>,
}

/// Begins to sample where that is allowed.
pub(super) fn sampler(
    means: Means,
    open: impl FnOnce(View, Rate) -> std::io::Result<Sampler>,
) -> Sampling {
    match means.sampling.map(|(view, rate)| open(view, rate)) {
        Some(Ok(sampler)) => Sampling {
            left_out: sampler.left_out().iter().map(told).collect(),
            sampler: Some(sampler),
            ..Sampling::default()
        },
        Some(Err(error)) => Sampling {
            unsampled: Some(error.to_string()),
            ..Sampling::default()
        },
        None => Sampling::default(),
    }
}

/// `page faults (Too many open files)`.
fn told(left: &LeftOut) -> String {
    let what = match left.counter {
        Counter::UserInstructions => "instructions",
        _ => "page faults",
    };
    format!("{what} ({})", left.error)
}

/// A poller at work on a thread of its own, whose CPU time is what polling costs.
pub(super) struct Polling {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Polled>,
}

/// What was polled.
pub(super) struct Polled {
    pub(super) poller: Poller,
    polls: Vec<Snapshot>,
    copies: Vec<StackCopy>,
    symbolizer: Symbolizer,
}

impl Polling {
    /// Begins to poll a process and its descendants, whose orphans go to `adopter`.
    pub(super) fn start(root: u32, adopter: Option<u32>) -> Result<Polling, ProbedError> {
        let failed = |what: &dyn std::fmt::Display| ProbedError::Poll(what.to_string());
        let scope = Scope {
            root: Some(root),
            adopter,
            cgroup: None,
        };
        let poller = Poller::new(scope).map_err(|error| failed(&error))?;
        let poller = poller.copy_stacks(BLANK.0 + 1);
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::Builder::new()
            .name("amdahl-poll".into())
            .spawn(move || poll(poller, &is_over))
            .map_err(|error| failed(&error))?;
        Ok(Polling { over, thread })
    }

    /// Polls for the last time.
    pub(super) fn end(self) -> Result<Polled, ProbedError> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        let polled = self.thread.join();
        polled.map_err(|_| ProbedError::Poll("the poller ended early".to_owned()))
    }
}

fn poll(mut poller: Poller, is_over: &AtomicBool) -> Polled {
    let mut polls = Polls::default();
    let mut copied = Copied::default();
    while !is_over.load(Ordering::Relaxed) {
        polls.keep(poller.poll());
        copied.take(&mut poller);
        std::thread::park_timeout(poller.pause());
    }
    let last = poller.poll_with_cpus();
    // The last look may be the first one.
    copied.take(&mut poller);
    Polled {
        poller,
        polls: polls.end(last),
        copies: copied.copies,
        symbolizer: copied.symbolizer,
    }
}

/// Stacks as they were copied, and what names them.
#[derive(Default)]
struct Copied {
    copies: Vec<StackCopy>,
    symbolizer: Symbolizer,
    programs: HashMap<u32, Option<(u64, u64)>>,
}

impl Copied {
    fn take(&mut self, poller: &mut Poller) {
        for copy in poller.take_stacks() {
            // A process that has become another program has other mappings. One that
            // is gone again has no names: that is no failure.
            let program = std::fs::metadata(format!("/proc/{}/exe", copy.pid));
            let program = program.map(|file| (file.dev(), file.ino())).ok();
            if self.programs.insert(copy.pid, program) != Some(program) {
                let _ = self.symbolizer.maps_mut().snapshot(copy.pid);
                self.symbolizer.touch(copy.pid);
            }
            self.copies.push(copy);
        }
    }
}

/// What was seen of a run.
pub(super) struct Watched<'a> {
    /// Its CPUs.
    pub(super) cpus: &'a CpuSet,
    /// Its begin and its end.
    pub(super) span: [Ns; 2],
    /// How it ended, and what it used.
    pub(super) ended: Ended,
    pub(super) polled: Polled,
    /// Samples, where there are any.
    pub(super) sampled: (Part, Counts),
    /// What the preload library recorded.
    pub(super) waits: Records,
    /// Nanoseconds that the hypervisor took.
    pub(super) steal: Ns,
    /// What a page fault costs, where samples do not tell.
    pub(super) fault_ns: Option<f64>,
    /// Stretches to keep for a trace.
    pub(super) stretches: usize,
}

impl Watched<'_> {
    /// Where the capacity went.
    pub(super) fn charge(self, decoder: &mut Decoder) -> Probed {
        let begun = Instant::now();
        let Polled {
            poller,
            polls,
            copies,
            mut symbolizer,
        } = self.polled;
        let ([from, to], ended) = (self.span, self.ended);
        let (part, counts) = self.sampled;
        let mut stacks: StackTable = vec![Arc::new(CallStack::default())];
        let named = copies.iter().map(|copy| symbolizer.resolve_copy(copy));
        stacks.extend(named.map(Arc::new));
        let threads = poller.names().iter().map(|(&tid, name)| (tid, name.pid));
        let seen = Seen::new(poller.blindness(), threads, &self.waits);
        let mut decoded = Decoded::after(stacks);
        let events = decoder.decode(part, &mut decoded);
        let watched: Vec<u32> = self.cpus.iter().collect();
        let mut charger = Charger::new(&watched, from).keep_stretches(self.stretches);
        let mut polls = polls.iter().peekable();
        events.for_each(&decoded, |event| {
            while let Some(poll) = polls.next_if(|poll| poll.ts < event.ts()) {
                charger.feed(poll, &decoded.stacks);
            }
            if let Event::Sample(sample) = event {
                charger.sample(sample, &decoded.stacks);
            }
        });
        for poll in polls {
            charger.feed(poll, &decoded.stacks);
        }
        let faults_ns = self.fault_ns.map(|each| each * ended.faults as f64);
        let usage = CpuUsage {
            user_ns: (ended.user_s * 1e9) as u64,
            system_ns: (ended.system_s * 1e9) as u64,
            faults_ns: faults_ns.map(|ns| ns as u64),
        };
        let mut sites = Vec::new();
        let next = decoded.stacks.len() as u32;
        let mut partition = charger.finish(
            to,
            Some(usage),
            &self.waits.processes,
            |pid, caller| {
                sites.push(Arc::new(symbolizer.resolve_full(pid, &[caller], &[])));
                Some(StackId(next + sites.len() as u32 - 1))
            },
            BLANK,
        );
        partition.lost += counts.stacks_lost;
        decoded.stacks.extend(sites);
        let names = poller.names().iter();
        decoded.threads = names
            .map(|(&tid, name)| {
                (
                    tid,
                    ThreadName {
                        pid: name.pid,
                        name: name.name.clone(),
                    },
                )
            })
            .collect();
        let progress = std::mem::take(&mut decoded.progress);
        let measured = Measured::new(
            &partition,
            &decoded.stacks,
            not_charged(self.steal, &partition),
            counts.instructions.map(|count| count as f64),
            progress,
        );
        Probed {
            ended,
            partition,
            measured,
            decoded,
            rate: None,
            analysis_s: begun.elapsed().as_secs_f64(),
            group: None,
            left: 0,
            cut: 1.0,
            recorded: 1.0,
            unsampled: None,
            left_out: Vec::new(),
            seen: Some(seen),
            round: 0,
        }
    }
}

/// What the hypervisor took from the program's own time: kernels that account for steal apart from it have that charged already.
fn not_charged(steal: Ns, partition: &RunPartition) -> f64 {
    let is_steal = |key: &ChargeKey| (key.cause, key.object) == (Cause::Stolen, HYPERVISOR);
    let charged = partition.off.iter().filter(|(key, _)| is_steal(key));
    let charged: f64 = charged.map(|(_, charge)| charge.ns).sum();
    (steal as f64 - charged).max(0.0)
}

impl Workload<'_> {
    /// Runs under the poller.
    pub fn polled(
        &self,
        cpus: &CpuSet,
        threads: u32,
        means: Means,
        decoder: &mut Decoder,
        stretches: usize,
    ) -> Result<Probed, ProbedError> {
        let failed = |what: &dyn std::fmt::Display| ProbedError::Poll(what.to_string());
        let mut group = Group::new(cpus);
        let records = Scratch::new().map_err(|error| failed(&error))?;
        let env = library::env(&self.command[0], records.path());
        let child = self.start(cpus, threads, &mut group, &env)?;
        let version = confined_by(group.as_ref());
        let watched: Vec<u32> = cpus.iter().collect();
        let Sampling {
            sampler,
            unsampled,
            left_out,
        } = sampler(means, |view, rate| {
            Sampler::new(child.pid(), &watched, view, rate)
        });
        let polling = Polling::start(child.pid(), Some(child.adopter()))?;
        let steal_before = steal_ns(cpus);
        let from = clock::monotonic();
        let waited = self.wait(child, &mut group);
        let steal = steal_ns(cpus).saturating_sub(steal_before);
        let polled = polling.end()?;
        let sampled = sampler.map(Sampler::end).unwrap_or_default();
        let (ended, left) = waited?;
        let waits = preload::read_dir(records.path()).map_err(|error| failed(&error))?;
        let rate = self.rate_of(&ended);
        let run = Watched {
            cpus,
            span: [from, from + ended.wall.as_nanos() as u64],
            ended,
            polled,
            sampled,
            waits,
            steal,
            fault_ns: means.fault_ns,
            stretches,
        };
        Ok(Probed {
            rate,
            group: version,
            left,
            unsampled,
            left_out,
            ..run.charge(decoder)
        })
    }
}

#[cfg(test)]
mod tests {
    use amdahl_speedup::partition::{Charge, QUOTA};
    use amdahl_speedup::snapshot::State;

    use super::*;

    #[test]
    fn steal_is_charged_once() {
        let mut partition = RunPartition::default();
        let taken = |object, ns| {
            let key = ChargeKey {
                cause: Cause::Stolen,
                tid: 0,
                stack: None,
                object,
            };
            (key, Charge { ns, count: 1 })
        };
        partition.off.extend([taken(QUOTA, 7.0), taken(0, 5.0)]);
        assert_eq!(not_charged(30, &partition), 30.0);
        partition.off.extend([taken(HYPERVISOR, 20.0)]);
        assert_eq!(not_charged(30, &partition), 10.0);
        assert_eq!(not_charged(10, &partition), 0.0);
    }

    /// Who is ended at once looks once all the same.
    #[test]
    fn stacks_that_are_first_seen_at_the_end_are_copied() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let waiter = std::thread::spawn(move || stopped.recv());
        let waits = |polled: &Polled| {
            let threads = polled.polls.iter().flat_map(|poll| &poll.threads);
            let stacks = threads.filter_map(|thread| match &thread.state {
                State::Waiting(waiting) => waiting.blocked.stack,
                _ => None,
            });
            stacks.map(|stack| stack.0 - BLANK.0).max()
        };
        let begun = Instant::now();
        let (seen, polled) = loop {
            let scope = Scope {
                root: Some(std::process::id()),
                adopter: None,
                cgroup: None,
            };
            let poller = Poller::new(scope).expect("it lives");
            let polled = poll(poller.copy_stacks(BLANK.0 + 1), &AtomicBool::new(true));
            if let Some(seen) = waits(&polled) {
                break (seen, polled);
            }
            // It may not be there yet.
            assert!(begun.elapsed().as_secs() < 10, "nobody waits");
        };
        assert_eq!(polled.copies.len(), seen as usize);
        drop(stop);
        let _ = waiter.join();
    }
}
