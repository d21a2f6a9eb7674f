//! What the deep views share: whom they watch, for how long, and the following of a recording
//! while it is made.

pub mod later;
pub mod live;
pub mod machine;
pub mod preload;
pub mod processes;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use amdahl_probe::bpf::{Counts, Part, Recorder, RecorderError, keep_up};
use amdahl_probe::clock;
use amdahl_report::schema::Source;
use amdahl_speedup::event::Ns;
use amdahl_topology::CpuSet;

use crate::child::{self, Child, Command, Ended, Input};
use crate::cli::Selection;
use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// How long to look at what does not end by itself when `--for` does not say.
pub const DEFAULT: Duration = Duration::from_secs(10);

/// How long threads that have ended may wait for a CPU once more before they count as not ended.
const LAST_SWITCHES: Duration = Duration::from_millis(200);

/// Takes what a recording tells, in the order of time.
pub trait Follow: Send {
    /// A process that was there before the recording, with its threads' ids and names. It may come
    /// more than once.
    fn attach(&mut self, pid: u32, threads: &[(u32, String)]);

    /// A look at those who were there before the recording, which records already; once, before any part.
    fn look_back(&mut self, _present: &Present) {}

    /// What happened since the last part.
    fn take(&mut self, part: Part);
}

/// Whom a recording finds.
pub struct Present {
    /// They are watched since then, or longer.
    pub since: Ns,
    /// Processes with their threads.
    pub threads: Vec<(u32, Vec<u32>)>,
    /// Set before the recording ends: what is seen from then on may not be true of it.
    pub is_over: AtomicBool,
}

impl Present {
    fn since_now(threads: Vec<(u32, Vec<u32>)>) -> Present {
        Present {
            since: clock::monotonic(),
            threads,
            is_over: AtomicBool::new(false),
        }
    }

    fn is_over(&self) {
        // Release: pairs with the Acquire of those who look back, who have seen nothing of what comes next.
        self.is_over.store(true, Ordering::Release);
    }
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

/// All CPUs that are online: threads may be anywhere. Refuses a process that does not exist.
pub fn cpus(pid: Option<u32>) -> Result<CpuSet, Failure> {
    if let Some(pid) = pid {
        existing(pid)?;
    }
    let failed = |error| Failure::machine(format!("cannot read which CPUs there are: {error}"));
    amdahl_topology::online().map_err(failed)
}

/// Refuses a process that does not exist. Returns the CPUs where it may run.
pub fn existing(pid: u32) -> Result<CpuSet, Failure> {
    amdahl_topology::allowed_of(pid).map_err(|error| {
        Failure::program(format!("--pid {pid}: there is no such process ({error})"))
    })
}

/// Why `--probe bpf` cannot be had, and what helps.
pub fn refused(error: &RecorderError) -> Failure {
    Failure::machine(format!(
        "--probe bpf: {error}. To get it: {}; see amdahl doctor",
        bpf_remedy(error)
    ))
}

/// What lets BPF be used.
pub fn bpf_remedy(error: &RecorderError) -> &'static str {
    match error {
        RecorderError::NoBtf(_) | RecorderError::TooOld { .. } => {
            "use a newer kernel that has BTF (all large distributions since 2022)"
        }
        RecorderError::PidNamespace => {
            "share the PID namespace of the host (docker run --pid=host, hostPID: true of Kubernetes), or watch the container from \
             the host"
        }
        error if error.is_at_limit_of_files() => {
            "allow more open files, several for each CPU: ulimit -n 65536, as root where the hard limit (ulimit -Hn) is \
             lower; LimitNOFILE of a service"
        }
        _ => {
            "run as root, or with CAP_BPF, CAP_PERFMON, CAP_SYS_RESOURCE and, for names of the kernel's code, CAP_SYSLOG: setcap \
             cap_bpf,cap_perfmon,cap_sys_resource,cap_syslog+ep amdahl; in a container: --pid=host --cap-add BPF \
             --cap-add PERFMON --cap-add SYS_RESOURCE --cap-add SYSLOG"
        }
    }
}

/// Where the kernel hides the names of its functions: with BPF and without CAP_SYSLOG. `lost` is what that takes away.
pub fn hidden_names(lost: &str) -> Option<Source> {
    (!amdahl_probe::symbol::kernel_names_are_readable()).then(|| Source {
        what: "kernel symbol names".to_owned(),
        how: "missing".to_owned(),
        missing: format!("The kernel hides its names: {lost}"),
        remedy: SHOWN_NAMES.to_owned(),
    })
}

/// What makes the kernel show the names of its functions.
pub const SHOWN_NAMES: &str = "run as root or with CAP_SYSLOG; or as root: sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=1";

/// What `contention_begin` does not tell: of a rwsem it comes after the spinning (that of mutexes comes before it).
pub const SPINNING_FOR_RWSEM: &str = "Who wants a rwsem (mmap_lock is one) to write spins before it sleeps: that is not \
    told, nor who got the lock by it.";

/// The exit code of a view that has shown its result.
pub fn finished(
    selection: &Selection,
    ended: Option<&Ended>,
    interrupted: bool,
) -> Result<u8, Failure> {
    match ended.map(|ended| &ended.outcome) {
        _ if interrupted => Ok(5),
        Some(Err(how)) => {
            let program = &selection.command[0];
            Err(Failure::program(format!("{program}: {how}")))
        }
        _ => Ok(0),
    }
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
    watch_and_say(selection, cpus, recorder, interrupt, follow, || Ok(()))
}

/// As [`watch`]; calls `begun` when nothing more can keep the recording from its begin: the recorder records, and the
/// command has started. No part is taken before, and an error ends it all.
pub fn watch_and_say(
    selection: &Selection,
    cpus: &CpuSet,
    recorder: &mut Recorder,
    interrupt: &Interrupt,
    follow: &mut impl Follow,
    begun: impl FnOnce() -> Result<(), Failure>,
) -> Result<Watched, Failure> {
    let failed = |error: RecorderError| Failure::machine(error.to_string());
    let watched: Vec<u32> = cpus.iter().collect();
    let parts = recorder.begin(&watched).map_err(failed)?;
    let mut child = start(selection, cpus, &[])?;
    let root = selection.pid.or(child.as_ref().map(Child::pid));
    let threads = enter(selection, root, recorder, follow)?;
    let present = Present::since_now(threads);
    begin(&mut child)?;
    begun()?;
    std::thread::scope(|scope| {
        let following = take_all(scope, parts, follow, &present)?;
        let ended = run(selection, child, interrupt, || join(selection, recorder));
        if root.is_some_and(processes::has_ended) {
            wait_for_last_switches(recorder);
        }
        let to = clock::monotonic();
        present.is_over();
        let counts = recorder.end();
        following.join().expect("the analysis does not panic");
        Ok(Watched {
            from: present.since,
            to,
            counts: counts.map_err(failed)?,
            ended: ended?,
            interrupted: interrupt.asked(),
        })
    })
}

/// Who waits for a thread or a process hears of its end before it has left its CPU for the last time. Waits until all
/// that have ended have left it, for at most [`LAST_SWITCHES`].
fn wait_for_last_switches(recorder: &Recorder) {
    let begun = Instant::now();
    let is_leaving = |tid: &u32| processes::has_ended(*tid);
    while recorder.without_last_switch().iter().any(is_leaving) && begun.elapsed() < LAST_SWITCHES {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Lets `follow` look at those who are there, then hands it the parts of a recording, on a thread of its own.
fn take_all<'scope>(
    scope: &'scope Scope<'scope, '_>,
    parts: Receiver<Part>,
    follow: &'scope mut impl Follow,
    present: &'scope Present,
) -> Result<ScopedJoinHandle<'scope, ()>, Failure> {
    std::thread::Builder::new()
        .name("amdahl-look".into())
        .spawn_scoped(scope, move || {
            follow.look_back(present);
            // Who wants to know when all are watched can see it.
            let _ = rustix::thread::set_name(c"amdahl-analyse");
            keep_up();
            for part in parts {
                follow.take(part);
            }
        })
        .map_err(|error| Failure::machine(format!("cannot start a thread: {error}")))
}

/// Whom `selection` says, now; `root` is its process.
pub fn present(selection: &Selection, root: Option<u32>) -> Vec<(u32, Vec<u32>)> {
    match (&selection.cgroup, root) {
        (Some(group), _) => processes::in_cgroup(group),
        (None, Some(pid)) if !selection.system => processes::tree(pid),
        _ => processes::all(),
    }
}

/// Makes those who are there part of the workload, and tells `follow` of them. Returns them.
fn enter(
    selection: &Selection,
    root: Option<u32>,
    recorder: &mut Recorder,
    follow: &mut impl Follow,
) -> Result<Vec<(u32, Vec<u32>)>, Failure> {
    let present = present(selection, root);
    for (pid, tids) in &present {
        let pid = *pid;
        if !selection.system {
            for &tid in tids {
                let added = recorder.add(tid, pid);
                added.map_err(|error| Failure::machine(error.to_string()))?;
            }
        }
        let named = tids.iter().map(|&tid| (tid, processes::comm(pid, tid)));
        follow.attach(pid, &named.collect::<Vec<_>>());
    }
    Ok(present)
}

/// Adds those who have joined the group: they were not forked by one of its members.
fn join(selection: &Selection, recorder: &mut Recorder) {
    if selection.cgroup.is_none() {
        return;
    }
    for (pid, tids) in present(selection, None) {
        for tid in tids {
            // A full table counts as lost events.
            let _ = recorder.add(tid, pid);
        }
    }
}

/// Starts the command of `selection`, if it has one, with `env` on top of ours; it waits to be let go.
pub fn start(
    selection: &Selection,
    cpus: &CpuSet,
    env: &[(String, String)],
) -> Result<Option<Child>, Failure> {
    start_as(selection, cpus, env, false)
}

/// The same for a command that goes on if we are killed.
pub fn start_to_last(
    selection: &Selection,
    cpus: &CpuSet,
    env: &[(String, String)],
) -> Result<Option<Child>, Failure> {
    start_as(selection, cpus, env, true)
}

fn start_as(
    selection: &Selection,
    cpus: &CpuSet,
    env: &[(String, String)],
    lasts: bool,
) -> Result<Option<Child>, Failure> {
    if selection.command.is_empty() {
        return Ok(None);
    }
    child::adopt_orphans();
    let allowed = amdahl_topology::allowed().unwrap_or_else(|_| cpus.clone());
    let child = Child::start(&Command {
        args: &selection.command,
        env,
        cpus: &allowed,
        cgroup_procs: None,
        input: Input::of_ours(),
        removes_maps: false,
        keep_stdout: false,
        show_output: !selection.quiet,
        lasts,
    });
    child
        .map(Some)
        .map_err(|error| Failure::program(error.to_string()))
}

/// Lets the command begin, if there is one; returns when it has.
pub fn begin(child: &mut Option<Child>) -> Result<(), Failure> {
    let begun = child.as_mut().map_or(Ok(()), Child::begin);
    begun.map_err(|error| Failure::program(error.to_string()))
}

/// Runs the command to its end, or waits as long as `selection` says; `each_second` is called about
/// once a second where there is no command.
pub fn run(
    selection: &Selection,
    child: Option<Child>,
    interrupt: &Interrupt,
    each_second: impl FnMut(),
) -> Result<Option<Ended>, Failure> {
    let Some(child) = child else {
        let duration = selection.duration.unwrap_or(DEFAULT);
        wait_for(selection.pid, duration, interrupt, each_second);
        return Ok(None);
    };
    let ended = child.run(selection.duration, interrupt, || ());
    ended
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Who had too few descriptors was told to run as root, which he did.
    #[test]
    fn what_helps_against_a_lack_of_descriptors_is_more_of_them() {
        let remedy = |errno: i32| {
            bpf_remedy(&RecorderError::System {
                what: "open the side band of mappings",
                source: std::io::Error::from_raw_os_error(errno),
            })
        };
        assert!(remedy(libc::EMFILE).contains("ulimit -n"));
        assert!(remedy(libc::EPERM).contains("run as root"));
    }
}
