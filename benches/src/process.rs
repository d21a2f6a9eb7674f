//! Runs programs one at a time and leaves none behind, Ctrl-C and a killed bench included.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open,
    set_child_subreaper, set_parent_process_death_signal, wait,
};

/// A run that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(3600);
/// What a program gets to put things in order after it was asked to end.
const GRACE: Duration = Duration::from_secs(15);
/// How often a wait looks whether the user wants to stop.
const LOOK: Duration = Duration::from_millis(100);

/// What a program used, its waited-for descendants included.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User CPU seconds.
    pub user_s: f64,
    /// Kernel CPU seconds.
    pub system_s: f64,
    /// Largest resident set of any one process.
    pub resident_bytes_max: u64,
}

/// A program that ended well.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// From its start to its end.
    pub wall_s: f64,
    /// What it used.
    pub usage: Usage,
}

/// Why a run gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The user wants to stop.
    #[error("interrupted")]
    Interrupted,
    /// It does not come to an end.
    #[error("{program} took more than {} s", LIMIT.as_secs())]
    Late {
        /// Which program.
        program: String,
    },
    /// A system call failed.
    #[error("cannot run {program}: {source}")]
    System {
        /// Which program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It ended badly.
    #[error("{program}: {status}: {said}")]
    Failed {
        /// Which program.
        program: String,
        /// How.
        status: ExitStatus,
        /// The last line that it said.
        said: String,
    },
}

/// Starts programs. There is one, in the main thread.
pub struct Runner {
    asked: Arc<AtomicBool>,
}

impl Runner {
    /// Catches SIGINT, SIGTERM and SIGHUP, and adopts orphans, so that whatever is started stays
    /// among our descendants.
    pub fn new() -> io::Result<Runner> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&asked))?;
        }
        set_child_subreaper(Some(getpid()))?;
        Ok(Runner { asked })
    }

    /// The user wants to stop.
    pub fn is_asked_to_stop(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Runs to the end. Standard output is the caller's choice; it must not be a pipe, which
    /// nobody would read.
    pub fn run(&self, command: &mut Command) -> Result<Ended, RunError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let system = |source| RunError::System {
            program: program.clone(),
            source,
        };
        if self.is_asked_to_stop() {
            return Err(RunError::Interrupted);
        }
        let mut said = tempfile::tempfile().map_err(system)?;
        command
            .stdin(Stdio::null())
            .stderr(said.try_clone().map_err(system)?)
            // A terminal's Ctrl-C is for us alone; we pass it on once.
            .process_group(0);
        end_with_parent(command);
        let begun = Instant::now();
        let child = command.spawn().map_err(system)?;
        let waited = self.wait(&child, begun).map_err(system)?;
        if let Some(stopped) = waited {
            stop(child).map_err(system)?;
            return Err(match stopped {
                Stopped::Asked => RunError::Interrupted,
                Stopped::Late => RunError::Late { program },
            });
        }
        let wall_s = begun.elapsed().as_secs_f64();
        let (status, usage) = reap(child).map_err(system)?;
        end_left_behind(Duration::ZERO).map_err(system)?;
        if status.success() {
            return Ok(Ended { wall_s, usage });
        }
        let said = last_line(&mut said).map_err(system)?;
        Err(RunError::Failed {
            program,
            status,
            said,
        })
    }

    /// Waits for the end of a child; `None` when it came.
    fn wait(&self, child: &Child, begun: Instant) -> io::Result<Option<Stopped>> {
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let look = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(LOOK.subsec_nanos()),
        };
        loop {
            match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&look)) {
                Ok(1..) => return Ok(None),
                Ok(0) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if self.is_asked_to_stop() {
                return Ok(Some(Stopped::Asked));
            }
            if begun.elapsed() > LIMIT {
                return Ok(Some(Stopped::Late));
            }
        }
    }
}

/// A program that runs beside one run of a [`Runner`], whose end ends it too.
pub struct Background(Option<Child>);

impl Background {
    /// Starts it.
    pub fn start(command: &mut Command) -> io::Result<Background> {
        command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        end_with_parent(command);
        Ok(Background(Some(command.spawn()?)))
    }

    /// Ends it with all of its processes.
    pub fn end(mut self) {
        self.kill();
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            // Its descendants become ours and are reaped by the next run.
            let _ = child.wait();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Asks the program to end if we are killed.
pub fn end_with_parent(command: &mut Command) {
    // SAFETY: a single system call, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
    }
}

enum Stopped {
    Asked,
    Late,
}

/// Asks a child's process group to end, then ends whatever is left.
fn stop(child: Child) -> io::Result<()> {
    let _ = kill_process_group(Pid::from_child(&child), Signal::TERM);
    drop(child);
    end_left_behind(GRACE)
}

/// Waits for a child, with what it used.
pub fn reap(child: Child) -> io::Result<(ExitStatus, Usage)> {
    let pid = Pid::from_child(&child).as_raw_nonzero().get();
    let mut status = 0;
    let usage = loop {
        // SAFETY: an all-zero rusage is valid, both pointers are to locals, and nobody else
        // waits for the child, which is consumed.
        let (waited, usage) = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            (libc::wait4(pid, &raw mut status, 0, &raw mut usage), usage)
        };
        if waited == pid {
            break usage;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    let usage = Usage {
        user_s: seconds(usage.ru_utime),
        system_s: seconds(usage.ru_stime),
        resident_bytes_max: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    };
    Ok((ExitStatus::from_raw(status), usage))
}

/// Reaps all descendants; after `grace` they are killed. No [`Child`] may be left unwaited.
fn end_left_behind(grace: Duration) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        // Whoever dies becomes ours, now or when its parent dies too.
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => continue,
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
            Ok(None) => {}
        }
        if begun.elapsed() >= grace {
            for pid in descendants()? {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// All descendants, zombies included.
fn descendants() -> io::Result<Vec<Pid>> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = next.pop() {
        for pid in children.remove(&parent).unwrap_or_default() {
            found.extend(Pid::from_raw(pid));
            next.push(pid);
        }
    }
    Ok(found)
}

/// The parent of a process; `None` if it has ended.
pub fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; state and parent come after it.
    let after_name = stat.rsplit(')').next()?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

fn last_line(said: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    said.rewind()?;
    said.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.trim_end().lines().last().unwrap_or("it said nothing");
    Ok(line.to_owned())
}
