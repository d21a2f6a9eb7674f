//! `--pid`: a running process and its descendants instead of a command. One point, stack only.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amdahl_probe::bpf::{Decoder, Recorder, RecorderError, ThreadName};
use amdahl_probe::clock;
use amdahl_probe::perf::Sampler;
use amdahl_probe::symbol::Symbolizer;
use amdahl_probe::unprivileged::preload::Records;
use amdahl_probe::unprivileged::{PollError, Poller, Scope};
use amdahl_report::schema::Source;
use amdahl_speedup::event::StackTable;
use amdahl_speedup::snapshot::ThreadState;
use amdahl_topology::CpuSet;

use super::analysis::{Analysis, Run, Who};
use super::polled::{Means, Polling, Sampling, Watched, sampler};
use super::run::{Probed, ProbedError, Taken};
use super::usage::Usage;
use super::{STRETCHES_MAX, source};
use crate::child::Ended;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::watch::{self, processes};

/// The CPUs where a process, its descendants and their threads may run. Refuses a process that does not exist.
pub fn cpus_of(pid: u32) -> Result<CpuSet, Failure> {
    let own = watch::existing(pid)?;
    let tree = processes::tree(pid);
    let tids = tree.iter().flat_map(|(_, tids)| tids);
    // One that has ended meanwhile needs no CPU.
    let masks = tids.filter_map(|&tid| amdahl_topology::allowed_of(tid).ok());
    Ok(masks.fold(own, |all, more| all.iter().chain(more.iter()).collect()))
}

/// Whom to watch, and for how long: until it ends, time is up, or Ctrl-C.
pub struct Attached<'a> {
    /// The first process.
    pub pid: u32,
    /// CPUs where it and its descendants may run.
    pub cpus: &'a CpuSet,
    /// How long at most.
    pub duration: Option<Duration>,
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
}

/// What lacks where no perf event of running threads could be opened, besides what every run without BPF lacks.
pub fn tell_unsampled(probed: &mut Probed, sources: &mut Vec<Source>) {
    let Some(why) = probed.unsampled.take() else {
        return;
    };
    sources.retain(|source| !source.what.ends_with("stacks"));
    sources.push(source(
        "user and kernel stacks",
        "missing",
        &format!(
            "perf events of running threads cannot be opened ({why}): running code is not named, spinning is \
             not told from work, page faults only by their number."
        ),
        "Watch as the user who runs the process, or as root; where there are too many open files, raise the \
         limit (ulimit -n).",
    ));
}

impl Attached<'_> {
    /// Watches under the recorder.
    pub fn recorded(
        &self,
        recorder: &mut Recorder,
        decoder: &mut Decoder,
    ) -> Result<Probed, Failure> {
        let failed = |error: RecorderError| Failure::machine(error.to_string());
        let watched: Vec<u32> = self.cpus.iter().collect();
        let parts = recorder.begin(&watched).map_err(failed)?;
        let mut names = Vec::new();
        for (process, tids) in processes::tree(self.pid) {
            decoder.attach(process);
            for tid in tids {
                recorder.add(tid, process).map_err(failed)?;
                names.push((
                    tid,
                    ThreadName {
                        pid: process,
                        name: processes::comm(process, tid),
                    },
                ));
            }
        }
        let taken = Taken::from(self.pid, self.cpus);
        let mut usage = Usage::of(self.pid);
        let (from, begun) = (clock::monotonic(), Instant::now());
        let (threads, stacks) = found(self.pid)?;
        let run = Run {
            cpus: self.cpus,
            from,
            who: Who::Found(threads),
            stretches: STRETCHES_MAX,
        };
        let mut analysis = Analysis::new(run, stacks, decoder);
        let followed = analysis.follow_during(recorder, parts, || {
            self.wait(&mut usage);
            clock::monotonic()
        });
        let (to, last, counts) = followed.map_err(failed)?;
        let [steal, throttled] = taken.since();
        let mut analysed = analysis.finish(last, to, throttled, &counts);
        for (tid, name) in names {
            analysed.decoded.threads.entry(tid).or_insert(name);
        }
        let ended = as_run(begun.elapsed(), &usage);
        Ok(Probed::new(ended, analysed, steal, &counts))
    }

    /// Watches by polls, and by samples where those may be had of running threads.
    pub fn polled(&self, means: Means, decoder: &mut Decoder) -> Result<Probed, Failure> {
        let failed = |error: ProbedError| Failure::machine(error.to_string());
        let watched: Vec<u32> = self.cpus.iter().collect();
        let tree = processes::tree(self.pid);
        for &(process, _) in &tree {
            decoder.attach(process);
        }
        let tids: Vec<u32> = tree.into_iter().flat_map(|(_, tids)| tids).collect();
        let taken = Taken::from(self.pid, self.cpus);
        let mut usage = Usage::of(self.pid);
        let Sampling {
            sampler,
            unsampled,
            left_out,
        } = sampler(means, |view, rate| {
            Sampler::of_running(&tids, &watched, view, rate)
        });
        let fault_ns = match unsampled {
            Some(_) => means.fault_ns.or_else(amdahl_probe::unprivileged::fault_ns),
            None => means.fault_ns,
        };
        let polling =
            Polling::start(self.pid, None).map_err(|error| match watch::existing(self.pid) {
                Err(gone) => gone,
                Ok(_) => failed(error),
            })?;
        let (from, begun) = (clock::monotonic(), Instant::now());
        self.wait(&mut usage);
        let (to, wall) = (clock::monotonic(), begun.elapsed());
        let sampled = sampler.map(Sampler::end).unwrap_or_default();
        let polled = polling.end().map_err(failed)?;
        let run = Watched {
            cpus: self.cpus,
            span: [from, to],
            ended: as_run(wall, &usage),
            polled,
            sampled,
            waits: Records::default(),
            steal: taken.since()[0],
            fault_ns,
            stretches: STRETCHES_MAX,
        };
        Ok(Probed {
            unsampled,
            left_out,
            ..run.charge(decoder)
        })
    }

    fn wait(&self, usage: &mut Usage) {
        let duration = self.duration.unwrap_or(watch::DEFAULT);
        watch::wait_for(Some(self.pid), duration, self.interrupt, || usage.look());
        usage.look();
    }
}

/// The threads of a process and its descendants as they are now, and the stacks in which they wait.
fn found(pid: u32) -> Result<(Vec<ThreadState>, StackTable), Failure> {
    let scope = Scope {
        root: Some(pid),
        adopter: None,
        cgroup: None,
    };
    let gone = |error: PollError| Failure::program(format!("--pid {pid}: {error}"));
    let mut poller = Poller::new(scope).map_err(gone)?.copy_stacks(0);
    let threads = poller.poll().threads;
    let copies = poller.take_stacks();
    let mut symbolizer = Symbolizer::new();
    for process in copies.iter().map(|copy| copy.pid).collect::<HashSet<_>>() {
        // One that is gone again has no names: that is no failure.
        let _ = symbolizer.maps_mut().snapshot(process);
        symbolizer.touch(process);
    }
    let named = copies.iter().map(|copy| symbolizer.resolve_copy(copy));
    Ok((threads, named.map(Arc::new).collect()))
}

/// The time of watching, as if it was a run.
fn as_run(wall: Duration, usage: &Usage) -> Ended {
    let [user_s, system_s] = usage.cpu_s();
    let [faults, major_faults] = usage.faults();
    Ended {
        outcome: Ok(()),
        wall,
        timed_out: false,
        user_s,
        system_s,
        faults,
        major_faults,
        stdout: String::new(),
        stderr: String::new(),
    }
}
