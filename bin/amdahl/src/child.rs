//! Starts one run of the workload: confined, stopped before its program begins, reaped with its
//! resource usage, ended with all that it leaves when we are done with it or, unless it is to last, are no more (`guard`).

pub mod guard;
mod input;

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amdahl_topology::CpuSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::descriptors;
use crate::interrupt::Interrupt;
use guard::{End, Orders, Usage};
pub use input::Input;

/// What to start.
pub struct Command<'a> {
    /// Program and arguments.
    pub args: &'a [String],
    /// Environment variables to set on top of ours.
    pub env: &'a [(String, String)],
    /// CPUs it is confined to.
    pub cpus: &'a CpuSet,
    /// A file to write its process id to, for a control group.
    pub cgroup_procs: Option<&'a Path>,
    /// Its standard input.
    pub input: Input,
    /// If we are killed, remove the maps of names that Java's virtual machines wrote.
    pub removes_maps: bool,
    /// Keep the end of its standard output.
    pub keep_stdout: bool,
    /// Show its output on our standard error.
    pub show_output: bool,
    /// It goes on if we, or the guard between us and it, are killed. Of its output nothing is kept then.
    pub lasts: bool,
}

/// A started process that waits to be let go.
pub struct Child {
    program: String,
    pid: libc::pid_t,
    lasts: bool,
    /// Of the program's process.
    pidfd: OwnedFd,
    report: OwnedFd,
    /// When it was let go.
    begun: Option<Instant>,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    /// Closed when nothing more of the two is waited for.
    output: io::PipeWriter,
    guard: Guard,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// `Ok` for exit code 0, else what happened.
    pub outcome: Result<(), String>,
    /// From the start of the program to its end.
    pub wall: Duration,
    /// It had not ended when its time was up, and was ended.
    pub timed_out: bool,
    /// User CPU seconds of it and its descendants, also of those that nobody waited for.
    pub user_s: f64,
    /// Kernel CPU seconds of the same.
    pub system_s: f64,
    /// Page faults of the same that needed no disk.
    pub faults: u64,
    /// Page faults of the same that needed one, or a second attempt.
    pub major_faults: u64,
    /// The end of its standard output, if kept.
    pub stdout: String,
    /// The end of its standard error.
    pub stderr: String,
}

/// The program could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A system call of ours failed.
    #[error("cannot start a process: {what}: {source}")]
    System {
        /// Which.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The control group cannot be entered.
    #[error("cannot enter the control group of the run: {0}")]
    Group(io::Error),
    /// The process between us and the program is gone, and how that ended with it.
    #[error("the run is lost: its guard, the process amdahl-guard, was killed")]
    Guard,
    /// The program was to end, and goes on.
    #[error(
        "{program:?} runs with the rights of another user, so that it could not be ended: it goes on as process {pid}. \
         End it as that user (as root: kill {pid}), and start amdahl with those rights instead of the program."
    )]
    NotOurs {
        /// What was run.
        program: String,
        /// Its process.
        pid: u32,
    },
    /// The program does not exist or cannot be run.
    #[error("cannot run {program:?}: {source}")]
    Exec {
        /// What was to be run.
        program: String,
        /// Why.
        source: io::Error,
    },
}

const TAIL_BYTES: usize = 64 << 10;
/// A pipe holds no more than this of what was written before a moment.
const PIPE_BYTES_MAX: usize = 1 << 20;

fn failed(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

/// Keeps the end of what comes from `fd`, until that is closed. When the other end of `over` is, what is there by then is the end:
/// a process that cannot be ended may keep `fd` open.
fn tail(fd: OwnedFd, over: io::PipeReader) -> io::Result<JoinHandle<Vec<u8>>> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    std::thread::Builder::new()
        .name("amdahl-tail".into())
        .spawn(move || {
            let (mut kept, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
            // Bytes that are still wanted, since it is over.
            let mut wanted = None;
            while wanted != Some(0) {
                if wanted.is_none() {
                    let mut polled = [
                        PollFd::new(&fd, PollFlags::IN),
                        PollFd::new(&over, PollFlags::IN),
                    ];
                    match poll(&mut polled, None) {
                        Ok(_) if polled[1].revents().is_empty() => {}
                        Ok(_) => wanted = Some(PIPE_BYTES_MAX),
                        Err(Errno::INTR) => continue,
                        Err(_) => break,
                    }
                }
                match rustix::io::read(&fd, &mut buffer[..]) {
                    Ok(len @ 1..) => {
                        wanted = wanted.map(|wanted: usize| wanted.saturating_sub(len));
                        kept.extend_from_slice(&buffer[..len]);
                        if kept.len() > 2 * TAIL_BYTES {
                            kept.drain(..kept.len() - TAIL_BYTES);
                        }
                    }
                    Err(Errno::AGAIN) if wanted.is_none() => {}
                    Err(Errno::INTR) => {}
                    Ok(0) | Err(_) => break,
                }
            }
            kept
        })
}

/// The program's parent. Dropping it ends what is left of the program.
struct Guard {
    process: std::process::Child,
    channel: UnixStream,
    /// The program's process waits for a byte, or for the end of this.
    go: Option<io::PipeWriter>,
}

impl Guard {
    /// Ends what is left of the program; what its orphans used.
    fn end(mut self) -> Usage {
        self.say_over();
        End::read(&mut self.channel).map_or(Usage::default(), |orphans| orphans.usage)
    }

    fn say_over(&mut self) {
        // Until that is closed it waits for the program's process.
        self.go = None;
        self.say(guard::OVER);
    }

    fn say(&mut self, word: u8) {
        // It may be gone already.
        let _ = self.channel.write_all(&[word]);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.say_over();
        let _ = self.process.wait();
    }
}

impl Child {
    /// Starts a guard, and below it a process that confines itself and waits to be let go by [`Child::run`].
    pub fn start(command: &Command<'_>) -> Result<Child, StartError> {
        let (go_read, go) = io::pipe().map_err(failed("pipe"))?;
        let (report, report_write) = io::pipe().map_err(failed("pipe"))?;
        let (channel, theirs) = UnixStream::pair().map_err(failed("socketpair"))?;
        let orders = Orders {
            go: go_read.as_raw_fd(),
            report: report_write.as_raw_fd(),
            channel: theirs.as_raw_fd(),
            cpus: command.cpus.clone(),
            procs: command.cgroup_procs.map(|path| path.as_os_str().to_owned()),
            removes_maps: command.removes_maps,
            lasts: command.lasts,
            env: command
                .env
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            command: command.args.iter().map(Into::into).collect(),
        };
        // Whatever lies at our path by now, this is the version that is running.
        let mut process = std::process::Command::new("/proc/self/exe");
        process.arg0(guard::NAME).args(orders.to_args());
        let input = command.input.open();
        process.stdin(input.map_err(failed("open standard input again"))?);
        process
            .stdout(match (command.show_output, command.keep_stdout) {
                (true, _) => Stdio::from(io::stderr()),
                (false, true) => Stdio::piped(),
                (false, false) => Stdio::null(),
            })
            .stderr(match (command.show_output, command.lasts) {
                (true, _) => Stdio::inherit(),
                // Of a pipe nobody would read any more it would die.
                (false, true) => Stdio::null(),
                (false, false) => Stdio::piped(),
            })
            // Not among those whom a terminal, or a `kill -9` of all of us, ends.
            .process_group(0);
        let handed = [orders.go, orders.report, orders.channel];
        let give_back = descriptors::give_back();
        // SAFETY: only async-signal-safe calls.
        unsafe {
            process.pre_exec(move || {
                for fd in handed {
                    if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                give_back()
            });
        }
        let started = process.spawn().map_err(failed("start its guard"))?;
        drop((process, go_read, report_write, theirs));
        let mut guard = Guard {
            process: started,
            channel,
            go: Some(go),
        };
        let (over, output) = io::pipe().map_err(failed("pipe"))?;
        let tail = |fd: OwnedFd| tail(fd, over.try_clone()?);
        let stdout = guard.process.stdout.take().map(OwnedFd::from).map(tail);
        let stderr = guard.process.stderr.take().map(OwnedFd::from).map(tail);
        let stdout = stdout.transpose().map_err(failed("start a thread"))?;
        let stderr = stderr.transpose().map_err(failed("start a thread"))?;
        let report = OwnedFd::from(report);
        // Entering a control group takes milliseconds, which are not the program's.
        let pid = match guard::read_report(&report) {
            Some([guard::READY, pid]) => pid,
            Some([step, errno]) => {
                let error = io::Error::from_raw_os_error(errno);
                return Err(match step {
                    guard::ENTER_GROUP => StartError::Group(error),
                    guard::SET_AFFINITY => failed("sched_setaffinity")(error),
                    _ => failed("fork")(error),
                });
            }
            None => {
                let killed = io::Error::other("it has been killed");
                return Err(failed("confine the process")(killed));
            }
        };
        let pidfd = rustix::process::pidfd_open(
            Pid::from_raw(pid).expect("a child has a pid"),
            rustix::process::PidfdFlags::empty(),
        );
        Ok(Child {
            program: command.args[0].clone(),
            pid,
            lasts: command.lasts,
            pidfd: pidfd.map_err(|error| failed("pidfd_open")(error.into()))?,
            report,
            begun: None,
            stdout,
            stderr,
            output,
            guard,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    /// The process that orphans of the program go to.
    pub fn adopter(&self) -> u32 {
        self.guard.process.id()
    }

    /// Lets the program begin. Returns when it has, or is known not to exist; [`Child::run`] does it where nobody else did.
    pub fn begin(&mut self) -> Result<(), StartError> {
        let Some(mut go) = self.guard.go.take() else {
            return Ok(());
        };
        self.begun = Some(Instant::now());
        let released = go.write_all(b"!");
        released.map_err(failed("release the child"))?;
        drop(go);
        // All copies of the other end are closed when its process becomes the program.
        match guard::read_report(&self.report) {
            Some([_, errno]) => Err(StartError::Exec {
                program: self.program.clone(),
                source: io::Error::from_raw_os_error(errno),
            }),
            None => Ok(()),
        }
    }

    /// Waits for the end of the program, or ends it when time is up or the user says so.
    pub fn run(
        mut self,
        deadline: Option<Duration>,
        interrupt: &Interrupt,
        clean_up: impl FnOnce(),
    ) -> Result<Ended, StartError> {
        if let Err(error) = self.begin() {
            clean_up();
            drop(self.guard);
            end_orphans();
            return Err(error);
        }
        let begun = self.begun.expect("it has begun");
        let mut stopped = None;
        let mut timed_out = false;
        let mut signalled = Ok(());
        // Also the signals' way out: they interrupt the poll.
        loop {
            let left = match (deadline, stopped) {
                (_, Some(_)) => Duration::from_secs(2),
                (Some(deadline), None) => deadline.saturating_sub(begun.elapsed()),
                (None, None) => Duration::from_secs(1),
            };
            let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
            let timeout = rustix::event::Timespec {
                tv_sec: left.as_secs().min(1) as i64,
                tv_nsec: if left.as_secs() >= 1 {
                    0
                } else {
                    i64::from(left.subsec_nanos())
                },
            };
            match poll(&mut polled, Some(&timeout)) {
                Ok(1..) => break,
                Ok(0) | Err(Errno::INTR) => {}
                Err(error) => {
                    return Err(StartError::System {
                        what: "poll",
                        source: error.into(),
                    });
                }
            }
            let over = deadline.is_some_and(|deadline| begun.elapsed() >= deadline);
            if stopped.is_none() && (over || interrupt.asked()) {
                self.guard.say(guard::ENDING);
            }
            let patient = Duration::from_secs(2);
            if interrupt.insisted() || stopped.is_some_and(|at: Instant| at.elapsed() > patient) {
                signalled = self.signal(Signal::KILL);
                stopped.get_or_insert(Instant::now());
            } else if stopped.is_none() && (over || interrupt.asked()) {
                signalled = self.signal(Signal::TERM);
                stopped = Some(Instant::now());
                timed_out = over;
            }
            if signalled == Err(Errno::PERM) {
                clean_up();
                return Err(StartError::NotOurs {
                    pid: self.pid(),
                    program: self.program,
                });
            }
        }
        let wall = begun.elapsed();
        let end = End::read(&mut self.guard.channel);
        // A guard that was killed has left it to us.
        let own = (end.is_err() && self.lasts && guard::children().contains(&self.pid))
            .then(|| guard::wait_for(self.pid));
        clean_up();
        // What is left would keep the pipes open.
        let mut usage = self.guard.end();
        usage.add(end_orphans());
        let end = own.or(end.ok()).ok_or(StartError::Guard)?;
        let status = end.status;
        usage.add(end.usage);
        drop(self.output);
        let text = |thread: Option<JoinHandle<Vec<u8>>>| {
            let bytes = thread
                .and_then(|thread| thread.join().ok())
                .unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (stdout, stderr) = (text(self.stdout.take()), text(self.stderr.take()));
        let outcome = if stopped.is_some() && deadline.is_some()
            || libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        {
            Ok(())
        } else if libc::WIFEXITED(status) {
            Err(format!("exit code {}", libc::WEXITSTATUS(status)))
        } else {
            Err(format!("killed by signal {}", libc::WTERMSIG(status)))
        };
        Ok(Ended {
            outcome,
            wall,
            timed_out,
            user_s: usage.user_us as f64 * 1e-6,
            system_s: usage.system_us as f64 * 1e-6,
            faults: usage.faults,
            major_faults: usage.major_faults,
            stdout,
            stderr,
        })
    }

    /// To the program and what it has started in its process group; one that may get it is enough.
    fn signal(&self, signal: Signal) -> Result<(), Errno> {
        // The group is the child's own; nothing else can be in it but its descendants.
        let group = Pid::from_raw(self.pid).expect("a child has a pid");
        rustix::process::kill_process_group(group, signal)
    }
}

/// Makes orphans below us our children, so that they can be found without control groups.
pub fn adopt_orphans() {
    INHERITED.get_or_init(guard::children);
    // SAFETY: takes no pointers. Where it is not known, orphans go to init as ever.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// Our children before we started any: those of a shell that became us by `exec`.
static INHERITED: OnceLock<Vec<libc::pid_t>> = OnceLock::new();

/// Ends what a guard that was killed has left to us: between runs, all our children but those that we had before are that.
fn end_orphans() -> Usage {
    guard::end_children(INHERITED.get().map_or(&[], Vec::as_slice))
}
