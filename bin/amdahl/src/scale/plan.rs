//! What the flags of `amdahl scale` mean on this machine.

use amdahl_report::point::PointId;
use amdahl_topology::{CpuSet, Order, Quota, Topology};

use super::attach;
use crate::cli::Scale;
use crate::failure::Failure;
use crate::java;
use crate::knobs::KNOBS;
use crate::watch;

/// One point of the sweep.
#[derive(Clone, Debug)]
pub struct PlannedPoint {
    /// CPUs it runs on.
    pub cpus: CpuSet,
    /// What `{cpus}` becomes.
    pub threads: u32,
}

impl PlannedPoint {
    /// Which point it is.
    pub fn id(&self) -> PointId {
        PointId::new(self.cpus.len() as u32, self.threads)
    }
}

/// Runs for each CPU count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// With the probe.
    pub probed: u32,
    /// Without.
    pub bare: u32,
}

impl Runs {
    /// The cheapest that `amdahl compare` can judge: it takes four and four runs for the Mann-Whitney test to find
    /// anything at 5 %. The stack needs fewer, and runs with the probe have to be analysed as well.
    const DEFAULT: Runs = Runs { probed: 3, bare: 4 };
}

impl Scale {
    /// How many runs are made.
    pub fn planned_runs(&self) -> Runs {
        Runs {
            probed: self.runs.unwrap_or(Runs::DEFAULT.probed),
            bare: self.bare_runs.or(self.runs).unwrap_or(Runs::DEFAULT.bare),
        }
    }
}

/// What will be done.
#[derive(Debug)]
pub struct Plan {
    /// The machine.
    pub topology: Topology,
    /// CPUs we may use.
    pub allowed: CpuSet,
    /// CPU quota, if any.
    pub quota: Option<Quota>,
    /// In rising order.
    pub points: Vec<PlannedPoint>,
    /// Things the user should know.
    pub notices: Vec<(&'static str, String)>,
}

/// The kernel has fewer thread ids than this (2^22), and other processes want some.
const THREADS_MAX: u32 = 1 << 20;

/// Frame pointers lead through compiled Java code.
const JAVA: (&str, &str) = (
    java::VARIABLE,
    "-XX:ActiveProcessorCount={cpus} -XX:+PreserveFramePointer",
);

/// The environment variables that tell programs their number of threads.
pub fn knobs(keep: bool) -> Vec<(String, String)> {
    if keep {
        return Vec::new();
    }
    let with_ours = |(name, value): (&str, &str)| {
        let value = match (name, std::env::var(name)) {
            (java::VARIABLE, Ok(before)) if !before.is_empty() => format!("{before} {value}"),
            _ => value.to_owned(),
        };
        (name.to_owned(), value)
    };
    KNOBS
        .iter()
        .map(|knob| (knob.name, knob.value))
        .chain([JAVA])
        .map(with_ours)
        .collect()
}

/// The same for the result, which others may read: what the user gives Java, perhaps a password, is not in it.
pub fn told((name, value): (String, String)) -> (String, String) {
    let own = (name == java::VARIABLE).then(|| std::env::var(&name).ok());
    let own = own.flatten().filter(|own| !own.is_empty());
    let ours = own.as_deref().and_then(|own| value.strip_prefix(own));
    let value = ours.map_or_else(|| value.clone(), |ours| format!("${name}{ours}"));
    (name, value)
}

/// A quota below `cpus` CPUs is felt.
fn quota_notice(quota: Option<&Quota>, cpus: u32) -> Option<(&'static str, String)> {
    let quota = quota.filter(|quota| quota.cpus < f64::from(cpus))?;
    let text = format!(
        "A control group allows {:.2} CPUs' worth of time ({}): beyond that, runs are throttled, which is shown as \
         stolen.",
        quota.cpus,
        quota.source.display()
    );
    Some(("quota", text))
}

impl Plan {
    /// The point that the result is about: the largest number of CPUs with a thread for each.
    pub fn main_point(&self) -> Option<usize> {
        let is_ordinary = |point: &PlannedPoint| !point.id().is_oversubscribed();
        self.points.iter().rposition(is_ordinary)
    }

    /// Looks at the machine and decides.
    pub fn new(scale: &Scale) -> Result<Plan, Failure> {
        match scale.pid {
            Some(pid) => Plan::of_running(pid),
            None => Plan::of_command(scale),
        }
    }

    /// One point: the CPUs that a running process may use, as it is.
    fn of_running(pid: u32) -> Result<Plan, Failure> {
        let allowed = attach::cpus_of(pid)?;
        let quota = amdahl_topology::quota_of(pid).ok().flatten();
        let cpus = allowed.len() as u32;
        Ok(Plan {
            topology: watch::machine::topology(&allowed)?,
            notices: quota_notice(quota.as_ref(), cpus).into_iter().collect(),
            points: vec![PlannedPoint {
                cpus: allowed.clone(),
                threads: cpus,
            }],
            allowed,
            quota,
        })
    }

    fn of_command(scale: &Scale) -> Result<Plan, Failure> {
        let allowed =
            amdahl_topology::allowed().map_err(|error| Failure::machine(error.to_string()))?;
        let topology = watch::machine::topology(&allowed)?;
        let quota = amdahl_topology::quota().ok().flatten();
        let mut notices = Vec::new();
        let max = allowed.len() as u32;
        let order = topology.sweep_order(
            if scale.spread {
                Order::Spread
            } else {
                Order::Compact
            },
            &allowed,
        );
        let mut counts = if scale.cpus.is_empty() {
            amdahl_topology::sweep_counts(max, &topology)
        } else {
            scale.cpus.clone()
        };
        counts.sort_unstable();
        counts.dedup();
        if counts.contains(&0) {
            return Err(Failure::usage(
                "--cpus: 0 CPUs cannot run anything; counts begin at 1".to_owned(),
            ));
        }
        if let Some(&above) = counts.iter().find(|&&count| count > max) {
            return Err(Failure::usage(format!(
                "--cpus: {above} CPUs asked for, but only {max} are allowed here ({allowed}); \
                 leave it out, or use --oversubscribe for more threads than CPUs"
            )));
        }
        if counts.first() != Some(&1) {
            notices.push((
                "no-one-cpu-run",
                format!(
                    "There is no run on one CPU: work, extra-work, slow-work and the speedup are \
                     relative to {} CPUs. Add 1 to --cpus for the usual meaning.",
                    counts.first().copied().unwrap_or(1)
                ),
            ));
        }
        let most = *counts.last().unwrap_or(&1);
        notices.extend(quota_notice(quota.as_ref(), most));
        let has_placeholder = scale.command.iter().any(|arg| arg.contains("{cpus}"));
        if !has_placeholder {
            notices.push((
                "no-placeholder",
                if scale.keep_env {
                    "The command has no {cpus} and --keep-env leaves the environment alone: the \
                     program is only confined to fewer CPUs."
                        .to_owned()
                } else {
                    "The command has no {cpus}: its number of threads is set by the usual \
                     environment variables (OMP_NUM_THREADS, GOMAXPROCS, ...) and the CPUs it may \
                     use. If it takes the number elsewhere, put {cpus} there."
                        .to_owned()
                },
            ));
        }
        let mut points: Vec<PlannedPoint> = counts
            .iter()
            .map(|&count| PlannedPoint {
                cpus: order.iter().take(count as usize).copied().collect(),
                threads: count,
            })
            .collect();
        if let Some(last) = points.last().cloned() {
            for &factor in scale.oversubscribe.iter().filter(|&&factor| factor > 1) {
                let threads = last.threads.checked_mul(factor);
                let threads = threads.filter(|&threads| threads <= THREADS_MAX).ok_or_else(|| {
                    Failure::usage(format!(
                        "--oversubscribe: {factor} times {} threads is beyond {THREADS_MAX}, more \
                         than any kernel allows; use factors such as 2,4",
                        last.threads
                    ))
                })?;
                points.push(PlannedPoint {
                    threads,
                    ..last.clone()
                });
            }
        }
        Ok(Plan {
            topology,
            allowed,
            quota,
            points,
            notices,
        })
    }
}
