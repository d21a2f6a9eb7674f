//! `amdahl scale`: plan, run, analyse, show.

mod analysis;
mod attach;
mod cgroup;
mod explain;
mod noise;
mod output;
mod plan;
mod polled;
mod polls;
mod progress;
mod rounds;
mod run;
mod sites;
mod summary;
mod unnamed;
mod usable;
mod usage;

use std::time::Duration;

use amdahl_probe::bpf::{Decoder, GRANT, Recorder, SCALE, Settings};
use amdahl_probe::perf::{self, Rate, View};
use amdahl_report::point::PointId;
use amdahl_report::schema::{Notice, RunFailure, ScaleResult, Source};

use crate::child;
use crate::cli::{EventBudget, ProbeKind, Scale};
use crate::failure::Failure;
use crate::interrupt::{self, Interrupt};
use crate::java;
use crate::scratch;
use crate::watch;
use crate::watch::preload::{HIDDEN, Seen};
use attach::Attached;
use plan::{Plan, knobs};
use polled::Means;
use run::{Bare, Probed};

/// Runs of a point whose stretches are kept.
const STRETCHED_RUNS_MAX: usize = 8;

/// All runs of one point.
#[derive(Default)]
pub struct PointRuns {
    probed: Vec<Probed>,
    bare: Vec<Bare>,
}

impl PointRuns {
    fn is_empty(&self) -> bool {
        self.probed.is_empty() && self.bare.is_empty()
    }

    /// Stretches are dear, and drawn of one run, a typical one: of many runs those far from the median lose theirs.
    fn keep_stretches_of_typical(&mut self) {
        let mut drawn: Vec<&mut Probed> = self.probed.iter_mut().collect();
        drawn.retain(|run| !run.partition.stretches.is_empty());
        if drawn.len() > STRETCHED_RUNS_MAX {
            drawn.sort_by_key(|run| run.ended.wall);
            let middle = drawn[drawn.len() / 2].ended.wall;
            let farthest = drawn
                .into_iter()
                .max_by_key(|run| run.ended.wall.abs_diff(middle))
                .expect("there are more than some");
            farthest.partition.stretches = Vec::new();
        }
    }

    fn has_rate(&self) -> bool {
        let bare = self.bare.iter().map(|run| run.rate);
        let mut all = self.probed.iter().map(|run| run.rate).chain(bare);
        all.any(|rate| rate.is_some())
    }

    /// Forgets the runs that printed no rate; the rounds that they were of.
    fn drop_silent(&mut self) -> Vec<u32> {
        let probed = self.probed.extract_if(.., |run| run.rate.is_none());
        let mut rounds: Vec<u32> = probed.map(|run| run.round).collect();
        let bare = self.bare.extract_if(.., |run| run.rate.is_none());
        rounds.extend(bare.map(|run| run.round));
        rounds
    }

    /// Forgets a run that is no measurement.
    fn drop_last(&mut self, with_probe: bool) {
        if with_probe {
            self.probed.pop();
        } else {
            self.bare.pop();
        }
    }
}

/// Of a run that is left out.
const NO_RATE: &str = "it printed no number above 0 that --rate matches";

/// What a sweep has measured.
pub struct Sweep {
    plan: Plan,
    points: Vec<PointRuns>,
    failures: Vec<RunFailure>,
    notices: Vec<Notice>,
    sources: Vec<Source>,
    env: Vec<(String, String)>,
    partial: bool,
    decoder: Decoder,
    means: Means,
}

const STRETCHES_MAX: usize = 200_000;

/// Runs the sweep and reports it. Returns the exit code.
pub fn main(scale: &Scale) -> Result<u8, Failure> {
    let rate = scale
        .rate
        .as_deref()
        .map(regex::Regex::new)
        .transpose()
        .map_err(|error| Failure::usage(format!("--rate: {error}")))?;
    if rate.as_ref().is_some_and(|rate| rate.captures_len() < 2) {
        return Err(Failure::usage(
            "--rate: the expression needs a group around the number, e.g. 'tps = ([0-9.]+)'"
                .to_owned(),
        ));
    }
    let interrupt = Interrupt::catch();
    child::adopt_orphans();
    let removed = cgroup::clean_up_after_the_killed();
    scratch::clean_up_after_the_killed();
    let plan = Plan::new(scale)?;
    let target = output::Target::new(scale)?;
    // Of a process that runs already nothing is set.
    let env = knobs(scale.keep_env || scale.pid.is_some());
    let (recorder, mut sources) = open_recorder(scale, &plan)?;
    let mut means = Means::default();
    if recorder.is_none() {
        means = find_means(scale, &plan, &mut sources);
    }
    let mut sweep = Sweep {
        points: plan.points.iter().map(|_| PointRuns::default()).collect(),
        failures: Vec::new(),
        notices: Vec::new(),
        sources,
        env,
        partial: false,
        decoder: Decoder::new(),
        means,
        plan,
    };
    if removed > 0 {
        sweep.notice(
            "cleaned-up",
            format!("Removed {removed} control groups that a killed run had left."),
        );
    }
    for (code, text) in std::mem::take(&mut sweep.plan.notices) {
        sweep.notice(code, text);
    }
    if scale.pid.is_none()
        && let Some(Err(why)) =
            cgroup::Group::new(&sweep.plan.allowed).map(|group| group.cpus.clone())
    {
        let text = format!(
            "Runs are kept on their CPUs by affinity alone, which programs may change: {why}. For a control group \
             with a CPU set start amdahl by systemd-run --scope -p Delegate=yes, or enable cpuset for its group."
        );
        sweep.notice("affinity-only", text);
    }
    match scale.pid {
        Some(pid) => sweep.attach(pid, scale.duration, &interrupt, recorder)?,
        None => sweep.measure(scale, rate.as_ref(), &interrupt, recorder)?,
    }
    if interrupt.insisted() {
        eprintln!("amdahl: interrupted twice: nothing is reported");
        return Ok(interrupt::ABANDONED);
    }
    let last = sweep
        .points
        .iter()
        .flat_map(|runs| &runs.probed)
        .next_back();
    let unnamed = last.and_then(|run| java::notice(&run.decoded.stacks));
    sweep.notices.extend(unnamed);
    sweep.tell_what_polls_saw();
    if scale.rate.is_some() {
        sweep.leave_out_the_silent();
    }
    let mut summary = summary::summarise(&mut sweep, scale);
    if target.writes() {
        let told = output::told_of_the_trace(&summary, &sweep);
        summary.result.warnings.extend(told);
    }
    // A full disk must not take the report of an hour's runs with it.
    let written = target.write(&summary, &sweep);
    let folder = written.as_ref().ok().and_then(|folder| folder.as_deref());
    output::show(scale, &summary.result, folder)?;
    written?;
    Ok(exit_code(&summary.result))
}

/// The version of the control groups that runs can be confined with.
pub fn confinement() -> Option<&'static str> {
    let cpus = amdahl_topology::allowed().ok()?;
    cgroup::Group::new(&cpus)?.cpus.clone().ok()
}

fn exit_code(result: &ScaleResult) -> u8 {
    if result.partial {
        5
    } else if !result.failures.is_empty() {
        4
    } else {
        0
    }
}

fn source(what: &str, how: &str, missing: &str, remedy: &str) -> Source {
    Source {
        what: what.to_owned(),
        how: how.to_owned(),
        missing: missing.to_owned(),
        remedy: remedy.to_owned(),
    }
}

fn open_recorder(scale: &Scale, plan: &Plan) -> Result<(Option<Recorder>, Vec<Source>), Failure> {
    if scale.probe == ProbeKind::Proc {
        return Ok((None, vec![source("scheduling", "/proc", "", "")]));
    }
    let cpus: Vec<u32> = plan.allowed.iter().collect();
    let (hz, one_in) = sampling(scale, plan);
    let settings = Settings {
        sample_hz: hz,
        sample_one_in: one_in,
        memory_bytes: (scale.memory as usize) << 20,
        clock_hz: clock_hz(),
        budget_share: match scale.budget {
            EventBudget::Unlimited => None,
            EventBudget::Percent(percent) => Some(events_share(percent / 100.0)),
        },
        ..Settings::new(&SCALE, cpus)
    };
    match Recorder::new(&settings) {
        Ok(recorder) => {
            let mut sources = vec![
                source("scheduling", "bpf", "", ""),
                source(
                    "user and kernel stacks",
                    &sampled("bpf", hz, one_in),
                    "",
                    "",
                ),
            ];
            sources.push(if recorder.counts_instructions() {
                source("instructions", "perf events", "", "")
            } else {
                source(
                    "instructions",
                    "missing",
                    "There are no hardware counters: extra-work and slow-work are told apart by \
                     how fast loops make progress, and code is sampled by a clock that is blind \
                     while interrupts are off.",
                    "On a virtual machine, ask for a virtual PMU; on bare metal see amdahl doctor.",
                )
            });
            sources.extend(watch::hidden_names(
                "its time is not divided into page faults, locks that are spun for, and the rest.",
            ));
            Ok((Some(recorder), sources))
        }
        Err(error) if scale.probe == ProbeKind::Bpf => Err(watch::refused(&error)),
        Err(error) => Ok((
            None,
            vec![source(
                "scheduling",
                "/proc",
                &format!("BPF cannot be used ({error}): waits are sampled from /proc."),
                watch::bpf_remedy(&error),
            )],
        )),
    }
}

/// Of a CPU's time, what samples may cost in the beginning, where fewer samples would make the shares of short
/// runs less exact.
const FIRST_SAMPLING: f64 = 0.006;
/// The same once a CPU has been sampled for a while.
const SAMPLING: f64 = 0.002;
/// The same, for the interrupts alone, where the rate cannot change during a run.
const STEADY_SAMPLING: f64 = 0.01;
/// What a sample takes beside its interrupt, in nanoseconds: walking and copying stacks.
const SAMPLE_NS: u64 = 8000;
/// Samples per CPU and second.
const USUAL_HZ: u32 = 499;

/// What is left of a budget for events beside the samples, which have at most half of it.
fn events_share(budget: f64) -> f64 {
    (budget - SAMPLING).max(budget / 2.0)
}

/// As many of `hz` samples per CPU and second as one thread can take in.
fn taken_in(hz: u32, plan: &Plan) -> u32 {
    hz.min(32_000 / plan.allowed.len().max(1) as u32).max(10)
}

/// Samples per CPU and second in the beginning, and one in how many of them is taken later: on some virtual machines interrupts are dear.
fn sampling(scale: &Scale, plan: &Plan) -> (u32, u32) {
    if let Some(hz) = scale.sample_hz {
        return (hz, 1);
    }
    let Some(interruption) = perf::interruption_ns(clock_hz()) else {
        return (taken_in(USUAL_HZ, plan), 1);
    };
    let cost = interruption + SAMPLE_NS;
    let hz = taken_in(perf::rate_within(FIRST_SAMPLING, cost), plan);
    (hz, perf::one_in(hz, SAMPLING, cost))
}

/// The same where the rate is that of the beginning for the whole run.
fn steady_hz(scale: &Scale, plan: &Plan) -> u32 {
    let usual = || {
        let cost = perf::interruption_ns(clock_hz());
        let hz = cost.map_or(USUAL_HZ, |cost| perf::rate_within(STEADY_SAMPLING, cost));
        taken_in(hz, plan)
    };
    scale.sample_hz.unwrap_or_else(usual)
}

/// How stacks are taken.
fn sampled(how: &str, hz: u32, one_in: u32) -> String {
    let later = if one_in > 1 {
        format!(", after the first {GRANT} about {}", hz / one_in)
    } else {
        String::new()
    };
    format!("{how} ({hz} samples per CPU and second{later})")
}

/// What there is without BPF.
fn find_means(scale: &Scale, plan: &Plan, sources: &mut Vec<Source>) -> Means {
    let view = View::allowed();
    let rate = Rate {
        hz: steady_hz(scale, plan),
        clock_hz: clock_hz(),
    };
    let how = &sampled("perf events", rate.hz, 1);
    let names = amdahl_probe::symbol::kernel_names_are_readable();
    sources.push(match (&view, names) {
        (Ok(View::Whole), true) => source("user and kernel stacks", how, "", ""),
        (Ok(View::Whole), false) => source(
            "user and kernel stacks",
            how,
            "The kernel hides its names: of its time page faults are told by their number, locks \
             not at all.",
            "As root: sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=1.",
        ),
        (Ok(View::User), _) => source(
            "user stacks",
            how,
            "Kernel code is not sampled: of its time page faults are told by their number, locks \
             not at all.",
            "As root: sysctl kernel.perf_event_paranoid=1.",
        ),
        (Err(error), _) => source(
            "user and kernel stacks",
            "missing",
            &format!(
                "perf events cannot be used ({error}): running code is not named, spinning and \
                 extra work are not told from slow work, page faults only by their number."
            ),
            if amdahl_probe::perf::lacks_descriptors(error) {
                "Allow more open files, some for each CPU: ulimit -n 65536."
            } else {
                "As root: sysctl kernel.perf_event_paranoid=1, or 2 for user code only."
            },
        ),
    });
    sources.push(watch::preload::source(&scale.command));
    Means {
        sampling: view.as_ref().ok().map(|&view| (view, rate)),
        fault_ns: (view.ok() != Some(View::Whole) || !names)
            .then(amdahl_probe::unprivileged::fault_ns)
            .flatten(),
    }
}

/// The clock rate, for the sampling period. A wrong one only changes how many samples there are.
fn clock_hz() -> u64 {
    let read = |path| std::fs::read_to_string(path).ok();
    let max = read("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
        .and_then(|khz| khz.trim().parse::<u64>().ok())
        .map(|khz| khz * 1000);
    let from_cpuinfo = || {
        let text = read("/proc/cpuinfo")?;
        let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
        line.rsplit(' ')
            .next()?
            .parse::<f64>()
            .ok()
            .map(|mhz| (mhz * 1e6) as u64)
    };
    max.or_else(from_cpuinfo).unwrap_or(2_500_000_000)
}

impl Sweep {
    fn notice(&mut self, code: &str, text: String) {
        self.notices.push(Notice {
            code: code.to_owned(),
            text,
        });
    }

    /// What was hidden from polls, and which waits the preload library did not tell.
    fn tell_what_polls_saw(&mut self) {
        let runs = self.points.iter().flat_map(|runs| &runs.probed);
        let seen = Seen::sum(runs.filter_map(|run| run.seen));
        seen.correct(&mut self.sources);
        self.notices.extend(seen.notices());
        if seen.hidden > 0 {
            let [missing, remedy] = HIDDEN;
            self.notice("hidden", format!("{missing} To see it, {remedy}."));
        }
    }

    /// Where other runs printed a rate, one that did not is no measurement.
    fn leave_out_the_silent(&mut self) {
        if !self.points.iter().any(PointRuns::has_rate) {
            return;
        }
        for at in 0..self.points.len() {
            let on = self.plan.points[at].id();
            for round in self.points[at].drop_silent() {
                self.fail(on, round, NO_RATE.to_owned());
            }
        }
    }

    fn fail(&mut self, on: PointId, run: u32, what: String) {
        self.failures.push(RunFailure {
            cpus: on.cpus(),
            threads: on.threads(),
            run,
            what,
        });
    }

    /// Watches a running process instead of making runs.
    fn attach(
        &mut self,
        pid: u32,
        duration: Option<Duration>,
        interrupt: &Interrupt,
        recorder: Option<Recorder>,
    ) -> Result<(), Failure> {
        let attached = Attached {
            pid,
            cpus: &self.plan.allowed,
            duration,
            interrupt,
        };
        let probed = match recorder {
            Some(mut recorder) => attached.recorded(&mut recorder, &mut self.decoder)?,
            None => {
                let mut probed = attached.polled(self.means, &mut self.decoder)?;
                attach::tell_unsampled(&mut probed, &mut self.sources);
                probed
            }
        };
        self.partial = interrupt.asked();
        self.points = vec![PointRuns {
            probed: vec![probed],
            bare: Vec::new(),
        }];
        self.notice(
            "attached",
            "A running process was watched: there is no run on one CPU to compare with, so all CPU \
             time that is not lost by itself counts as work."
                .to_owned(),
        );
        Ok(())
    }
}
