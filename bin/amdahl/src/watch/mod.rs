//! What the deep views share: whom they watch, for how long, and the following of a recording
//! while it is made.

pub mod live;
pub mod machine;
pub mod processes;

use std::time::{Duration, Instant};

use amdahl_probe::bpf::{Counts, Part, Recorder, RecorderError, keep_up};
use amdahl_probe::clock;
use amdahl_speedup::event::Ns;
use amdahl_topology::CpuSet;

use crate::child::{Child, Command, Ended};
use crate::cli::Selection;
use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// How long to look at what does not end by itself when `--for` does not say.
const DEFAULT: Duration = Duration::from_secs(10);

/// Takes what a recording tells, in the order of time.
pub trait Follow: Send {
    /// A process that was there before the recording, with its threads' ids and names. It may come
    /// more than once.
    fn attach(&mut self, pid: u32, threads: &[(u32, String)]);

    /// What happened since the last part.
    fn take(&mut self, part: Part);
}

/// What is known when the recording has ended.
pub struct Watched {
    /// When it began.
    pub from: Ns,
    /// When it ended.
    pub to: Ns,
    /// What was lost.
    pub counts: Counts,
    /// How the command ended, if one was given.
    pub ended: Option<Ended>,
    /// Ctrl-C ended it.
    pub interrupted: bool,
}

/// All CPUs that are online: threads may be anywhere.
pub fn cpus() -> Result<CpuSet, Failure> {
    let failed = |error| Failure::machine(format!("cannot read which CPUs there are: {error}"));
    amdahl_topology::online().map_err(failed)
}

/// Records what `selection` says until it ends, time is up, or Ctrl-C. Parts are taken by `follow` on
/// a thread of its own.
pub fn watch(
    selection: &Selection,
    cpus: &CpuSet,
    recorder: &mut Recorder,
    interrupt: &Interrupt,
    follow: &mut impl Follow,
) -> Result<Watched, Failure> {
    let failed = |error: RecorderError| Failure::machine(error.to_string());
    let watched: Vec<u32> = cpus.iter().collect();
    let parts = recorder.begin(&watched).map_err(failed)?;
    let child = start(selection, cpus)?;
    let root = selection.pid.or(child.as_ref().map(Child::pid));
    enter(selection, root, recorder, follow)?;
    let from = clock::monotonic();
    std::thread::scope(|scope| {
        let following = std::thread::Builder::new()
            .name("amdahl-analyse".into())
            .spawn_scoped(scope, move || {
                keep_up();
                for part in parts {
                    follow.take(part);
                }
            })
            .map_err(|error| Failure::machine(format!("cannot start a thread: {error}")))?;
        let ended = match child {
            Some(child) => {
                let program = &selection.command[0];
                let ended = child.run(program, selection.duration, interrupt, || ());
                ended
                    .map(Some)
                    .map_err(|error| Failure::program(error.to_string()))
            }
            None => {
                let duration = selection.duration.unwrap_or(DEFAULT);
                wait_for(selection.pid, duration, interrupt, || {
                    // Whoever joins a group later was not forked by one of its members.
                    if selection.cgroup.is_some() {
                        join(selection, recorder);
                    }
                });
                Ok(None)
            }
        };
        let to = clock::monotonic();
        let counts = recorder.end();
        following.join().expect("the analysis does not panic");
        Ok(Watched {
            from,
            to,
            counts: counts.map_err(failed)?,
            ended: ended?,
            interrupted: interrupt.asked(),
        })
    })
}

/// Whom `selection` says, now; `root` is its process.
fn present(selection: &Selection, root: Option<u32>) -> Vec<(u32, Vec<u32>)> {
    match (&selection.cgroup, root) {
        (Some(group), _) => processes::in_cgroup(group),
        (None, Some(pid)) if !selection.system => processes::tree(pid),
        _ => processes::all(),
    }
}

/// Makes those who are there part of the workload, and tells `follow` of them.
fn enter(
    selection: &Selection,
    root: Option<u32>,
    recorder: &mut Recorder,
    follow: &mut impl Follow,
) -> Result<(), Failure> {
    for (pid, tids) in present(selection, root) {
        if !selection.system {
            for &tid in &tids {
                let added = recorder.add(tid, pid);
                added.map_err(|error| Failure::machine(error.to_string()))?;
            }
        }
        let named = tids.iter().map(|&tid| (tid, processes::comm(pid, tid)));
        follow.attach(pid, &named.collect::<Vec<_>>());
    }
    Ok(())
}

/// Adds those who have joined the group.
fn join(selection: &Selection, recorder: &mut Recorder) {
    for (pid, tids) in present(selection, None) {
        for tid in tids {
            // A full table counts as lost events.
            let _ = recorder.add(tid, pid);
        }
    }
}

fn start(selection: &Selection, cpus: &CpuSet) -> Result<Option<Child>, Failure> {
    if selection.command.is_empty() {
        return Ok(None);
    }
    let allowed = amdahl_topology::allowed().unwrap_or_else(|_| cpus.clone());
    let child = Child::start(&Command {
        args: &selection.command,
        env: &[],
        cpus: &allowed,
        cgroup_procs: None,
        keep_stdout: false,
        show_output: !selection.quiet,
    });
    child
        .map(Some)
        .map_err(|error| Failure::program(error.to_string()))
}

/// Waits until `duration` is over, process `pid` has ended, or the user wants no more; calls
/// `each_second` about once a second.
pub fn wait_for(
    pid: Option<u32>,
    duration: Duration,
    interrupt: &Interrupt,
    mut each_second: impl FnMut(),
) {
    let begun = Instant::now();
    let handle = pid
        .and_then(|pid| rustix::process::Pid::from_raw(pid as i32))
        .and_then(|pid| {
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
        });
    if pid.is_some() && handle.is_none() {
        return;
    }
    while begun.elapsed() < duration && !interrupt.asked() {
        let left = duration
            .saturating_sub(begun.elapsed())
            .min(Duration::from_secs(1));
        let timeout = rustix::event::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut polled: Vec<_> = handle
            .iter()
            .map(|handle| rustix::event::PollFd::new(handle, rustix::event::PollFlags::IN))
            .collect();
        if rustix::event::poll(&mut polled, Some(&timeout)) == Ok(1) {
            break;
        }
        each_second();
    }
}
