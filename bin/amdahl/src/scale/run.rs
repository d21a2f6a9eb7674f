//! One run: started, confined, watched, analysed.

use std::time::{Duration, SystemTime};

use amdahl_probe::bpf::{Counts, Decoded, Decoder, Recorder};
use amdahl_probe::clock;
use amdahl_speedup::event::StackTable;
use amdahl_speedup::partition::RunPartition;
use amdahl_speedup::stack::Measured;
use amdahl_topology::{CpuSet, Throttle};

use super::analysis::{self, Analysed, Analysis, Who};
use super::cgroup::Group;
use crate::child::{Child, Command, Ended, Input, StartError};
use crate::interrupt::Interrupt;
use crate::java;
use crate::watch::preload::Seen;

/// What every run of a sweep shares.
pub struct Workload<'a> {
    /// Program and arguments with `{cpus}` in them.
    pub command: &'a [String],
    /// Environment with `{cpus}` in it.
    pub env: &'a [(String, String)],
    /// End each run after this time.
    pub duration: Option<Duration>,
    /// Work per second in the program's output.
    pub rate: Option<&'a regex::Regex>,
    /// Its standard input.
    pub input: Input,
    /// Pass the program's output on.
    pub show_output: bool,
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
}

/// A run with the probe.
pub struct Probed {
    /// How it ended.
    pub ended: Ended,
    /// Where its capacity went.
    pub partition: RunPartition,
    /// The same, condensed for comparison.
    pub measured: Measured,
    /// Stacks and names.
    pub decoded: Decoded,
    /// Work per second.
    pub rate: Option<f64>,
    /// CPU seconds spent on the analysis.
    pub analysis_s: f64,
    /// In a control group of this version that has its CPU set.
    pub group: Option<&'static str>,
    /// Processes that were still there at its end.
    pub left: usize,
    /// Share of the run whose events fitted into memory.
    pub cut: f64,
    /// Share of that in which scheduler events were recorded.
    pub recorded: f64,
    /// Why there are no samples, although they are allowed.
    pub unsampled: Option<String>,
    /// What was not sampled for want of descriptors, and why.
    pub left_out: Vec<String>,
    /// How much polls and the preload library saw; of runs without privileges.
    pub seen: Option<Seen>,
    /// In which round of the sweep; 0 if in none.
    pub round: u32,
}

/// A run without the probe.
pub struct Bare {
    /// How it ended.
    pub ended: Ended,
    /// Work per second.
    pub rate: Option<f64>,
    /// In which round of the sweep; 0 if in none.
    pub round: u32,
}

/// Steal time of the CPUs in nanoseconds, as the hypervisor reports it.
pub(super) fn steal_ns(cpus: &CpuSet) -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: u64 = stat
        .lines()
        .filter_map(|line| {
            let mut fields = line.strip_prefix("cpu")?.split_whitespace();
            let cpu: u32 = fields.next()?.parse().ok()?;
            cpus.contains(cpu)
                .then(|| fields.nth(7)?.parse::<u64>().ok())?
        })
        .sum();
    ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// Version of the hierarchy whose CPU set confines a run.
pub(super) fn confined_by(group: Option<&Group>) -> Option<&'static str> {
    group?.cpus.as_ref().ok().copied()
}

/// CPU time that is taken away before a process gets it.
pub(super) struct Taken<'a> {
    cpus: &'a CpuSet,
    throttle: Option<Throttle>,
    before: [u64; 2],
}

impl Taken<'_> {
    /// From process `pid` on `cpus`, from now on.
    pub(super) fn from(pid: u32, cpus: &CpuSet) -> Taken<'_> {
        let mut taken = Taken {
            cpus,
            throttle: Throttle::open_for(pid).ok(),
            before: [0; 2],
        };
        taken.before = taken.since();
        taken
    }

    /// Nanoseconds that the hypervisor took, and that quotas held it back.
    pub(super) fn since(&self) -> [u64; 2] {
        let throttled = self.throttle.as_ref().and_then(Throttle::read);
        let throttled = throttled.map_or(0, |stat| stat.throttled_ns);
        let [steal_before, throttled_before] = self.before;
        [
            steal_ns(self.cpus).saturating_sub(steal_before),
            throttled.saturating_sub(throttled_before),
        ]
    }
}

impl Workload<'_> {
    pub(super) fn start(
        &self,
        cpus: &CpuSet,
        threads: u32,
        group: &mut Option<Group>,
        more_env: &[(String, String)],
    ) -> Result<Child, StartError> {
        let args: Vec<String> = self
            .command
            .iter()
            .map(|arg| crate::knobs::fill(arg, threads))
            .collect();
        let is_replaced = |name: &str| more_env.iter().any(|(other, _)| other == name);
        let env: Vec<(String, String)> = self
            .env
            .iter()
            .filter(|(name, _)| !is_replaced(name))
            .map(|(name, value)| (name.clone(), crate::knobs::fill(value, threads)))
            .chain(more_env.iter().cloned())
            .collect();
        let start = |group: Option<&Group>| {
            Child::start(&Command {
                args: &args,
                env: &env,
                cpus,
                cgroup_procs: group.map(Group::procs).as_deref(),
                input: self.input,
                removes_maps: more_env.iter().any(|(name, _)| name == java::VARIABLE),
                keep_stdout: self.rate.is_some(),
                show_output: self.show_output,
                lasts: false,
            })
        };
        match start(group.as_ref()) {
            // Who may make a group may still not be allowed to move processes: affinity remains.
            Err(StartError::Group(_)) if group.is_some() => {
                *group = None;
                start(None)
            }
            other => other,
        }
    }

    pub(super) fn rate_of(&self, ended: &Ended) -> Option<f64> {
        let text = format!("{}\n{}", ended.stdout, ended.stderr);
        let found = self.rate?.captures_iter(&text).last()?;
        let rate: Option<f64> = found.get(1)?.as_str().parse().ok();
        // `inf` is a number to the parser, and no rate; nothing is a multiple of none.
        rate.filter(|rate| rate.is_finite() && *rate > 0.0)
    }

    pub(super) fn wait(
        &self,
        child: Child,
        group: &mut Option<Group>,
    ) -> Result<(Ended, usize), StartError> {
        let mut left = 0;
        let ended = child.run(self.duration, self.interrupt, || {
            left = group.as_ref().map_or(0, |group| group.left().len());
            drop(group.take());
        })?;
        Ok((ended, left))
    }

    /// Runs without looking inside.
    pub fn bare(&self, cpus: &CpuSet, threads: u32) -> Result<Bare, StartError> {
        let mut group = Group::new(cpus);
        let child = self.start(cpus, threads, &mut group, &[])?;
        let (ended, _) = self.wait(child, &mut group)?;
        let rate = self.rate_of(&ended);
        Ok(Bare {
            ended,
            rate,
            round: 0,
        })
    }

    /// Runs under the recorder.
    pub fn probed(
        &self,
        cpus: &CpuSet,
        threads: u32,
        recorder: &mut Recorder,
        decoder: &mut Decoder,
        stretches: usize,
    ) -> Result<Probed, ProbedError> {
        let mut group = Group::new(cpus);
        let watched: Vec<u32> = cpus.iter().collect();
        let parts = recorder.begin(&watched)?;
        let began = SystemTime::now();
        let java = java::names_at_exit(self.env).map(|(name, value)| {
            let value = crate::knobs::fill(&value, threads);
            (name, value)
        });
        let more_env = java.as_slice();
        let child = self.start(cpus, threads, &mut group, more_env)?;
        let version = confined_by(group.as_ref());
        let pid = child.pid();
        recorder.add(pid, pid)?;
        let taken = Taken::from(pid, cpus);
        let from = clock::monotonic();
        let run = analysis::Run {
            cpus,
            from,
            who: Who::Started(pid),
            stretches,
        };
        let mut analysis = Analysis::new(run, StackTable::new(), decoder);
        let ((waited, to), last, counts) = analysis.follow_during(recorder, parts, || {
            let waited = self.wait(child, &mut group);
            let to = match &waited {
                Ok((ended, _)) => from + ended.wall.as_nanos() as u64,
                Err(_) => clock::monotonic(),
            };
            (waited, to)
        })?;
        let [steal, throttled] = taken.since();
        let (ended, left) = waited?;
        let rate = self.rate_of(&ended);
        let analysed = analysis.finish(last, to, throttled, &counts);
        if java.is_some() {
            let named = analysed.decoded.threads.values().map(|thread| thread.pid);
            // Of many, names are forgotten.
            let processes = named.chain(analysed.partition.processes.values().copied());
            java::remove_maps(&processes.chain([pid]).collect(), began);
        }
        Ok(Probed {
            group: version,
            left,
            rate,
            ..Probed::new(ended, analysed, steal, &counts)
        })
    }
}

impl Probed {
    /// A run of which the hypervisor took `steal` nanoseconds.
    pub(super) fn new(ended: Ended, analysed: Analysed, steal: u64, counts: &Counts) -> Probed {
        let Analysed {
            mut partition,
            mut decoded,
            seconds,
            covered,
            cut,
        } = analysed;
        let recorded = partition.recorded();
        partition.lost += counts.stacks_lost;
        // What is known of the whole run, as far as the partition accounts for it: all is scaled below.
        let instructions = counts.instructions.map(|counted| match recorded < 1.0 {
            // Counted at switches, they miss those of gaps; samples do not, up to where the memory for them ended.
            true => partition.instructions.values().sum::<u64>() as f64 * partition.accounted(),
            false => counted as f64 * covered,
        });
        let measured = Measured::new(
            &partition,
            &decoded.stacks,
            steal as f64 * covered,
            instructions,
            std::mem::take(&mut decoded.progress),
        )
        .scaled(1.0 / covered.max(f64::MIN_POSITIVE));
        Probed {
            ended,
            partition,
            measured,
            decoded,
            rate: None,
            analysis_s: seconds,
            group: None,
            left: 0,
            cut,
            recorded,
            unsampled: None,
            left_out: Vec::new(),
            seen: None,
            round: 0,
        }
    }
}

/// A probed run failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbedError {
    /// To start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// To record.
    #[error(transparent)]
    Record(#[from] amdahl_probe::bpf::RecorderError),
    /// To poll.
    #[error("cannot watch the program: {0}")]
    Poll(String),
}
