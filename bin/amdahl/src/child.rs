//! Starts one run of the workload: confined, stopped before its program begins, reaped with its
//! resource usage.

use std::ffi::{CString, OsStr};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amdahl_topology::CpuSet;

use crate::interrupt::Interrupt;

/// What to start.
pub struct Command<'a> {
    /// Program and arguments.
    pub args: &'a [String],
    /// Environment variables to set on top of ours.
    pub env: &'a [(String, String)],
    /// CPUs it is confined to.
    pub cpus: &'a CpuSet,
    /// A file to write its process id to, for a control group.
    pub cgroup_procs: Option<&'a std::path::Path>,
    /// Keep the end of its standard output.
    pub keep_stdout: bool,
    /// Show its output on our standard error.
    pub show_output: bool,
}

/// A started process that waits to be let go.
pub struct Child {
    pid: libc::pid_t,
    go: Option<OwnedFd>,
    error: OwnedFd,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    reaped: bool,
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
    /// User CPU seconds of it and its waited-for descendants.
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
    /// The program does not exist or cannot be run.
    #[error("cannot run {program:?}: {source}")]
    Exec {
        /// As typed.
        program: String,
        /// Why.
        source: io::Error,
    },
}

const TAIL_BYTES: usize = 64 << 10;

/// What the child reports: that it is confined, or which step failed.
const READY: i32 = 0;
const ENTER_GROUP: i32 = 1;
const SET_AFFINITY: i32 = 2;
const EXEC: i32 = 3;

fn failure(step: i32, errno: i32, program: &str) -> StartError {
    let source = io::Error::from_raw_os_error(errno);
    let what = match step {
        ENTER_GROUP => "enter the control group",
        SET_AFFINITY => "sched_setaffinity",
        _ => {
            return StartError::Exec {
                program: program.to_owned(),
                source,
            };
        }
    };
    StartError::System { what, source }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: fds has room for two descriptors.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fresh descriptors that nobody else owns.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

fn tail(fd: OwnedFd) -> io::Result<JoinHandle<Vec<u8>>> {
    std::thread::Builder::new()
        .name("amdahl-tail".into())
        .spawn(move || {
            let mut file = std::fs::File::from(fd);
            let (mut kept, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
            while let Ok(len @ 1..) = file.read(&mut buffer) {
                kept.extend_from_slice(&buffer[..len]);
                if kept.len() > 2 * TAIL_BYTES {
                    kept.drain(..kept.len() - TAIL_BYTES);
                }
            }
            kept
        })
}

fn c_string(text: impl AsRef<OsStr>) -> io::Result<CString> {
    CString::new(text.as_ref().as_bytes()).map_err(io::Error::other)
}

impl Child {
    /// Forks; the child confines itself and waits to be let go by [`Child::run`].
    pub fn start(command: &Command<'_>) -> Result<Child, StartError> {
        let failed = |what| move |source| StartError::System { what, source };
        let (go_read, go_write) = pipe().map_err(failed("pipe"))?;
        let (error_read, error_write) = pipe().map_err(failed("pipe"))?;
        let outputs = |keep: bool| -> io::Result<Option<(OwnedFd, OwnedFd)>> {
            if keep && !command.show_output {
                pipe().map(Some)
            } else {
                Ok(None)
            }
        };
        let stdout = outputs(command.keep_stdout).map_err(failed("pipe"))?;
        let stderr = outputs(true).map_err(failed("pipe"))?;
        let null = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")
            .map_err(failed("open /dev/null"))?;

        // Everything that allocates happens before the fork: other threads may hold locks.
        let args: Vec<CString> = command
            .args
            .iter()
            .map(c_string)
            .collect::<io::Result<_>>()
            .map_err(failed("argument"))?;
        let mut argv: Vec<*const libc::c_char> = args.iter().map(|arg| arg.as_ptr()).collect();
        argv.push(ptr::null());
        let mut env: Vec<CString> = Vec::new();
        for (name, value) in std::env::vars_os() {
            if !command.env.iter().any(|(set, _)| OsStr::new(set) == name) {
                let mut pair = name.clone();
                pair.push("=");
                pair.push(&value);
                env.push(c_string(pair).map_err(failed("environment"))?);
            }
        }
        for (name, value) in command.env {
            env.push(c_string(format!("{name}={value}")).map_err(failed("environment"))?);
        }
        let mut envp: Vec<*const libc::c_char> = env.iter().map(|pair| pair.as_ptr()).collect();
        envp.push(ptr::null());
        let words = command.cpus.last().map_or(1, |last| last as usize / 64 + 1);
        let mut mask = vec![0u64; words];
        for cpu in command.cpus.iter() {
            mask[cpu as usize / 64] |= 1 << (cpu % 64);
        }
        let procs = command
            .cgroup_procs
            .map(|path| std::fs::OpenOptions::new().write(true).open(path))
            .transpose()
            .map_err(failed("open the control group"))?;
        let out_fd = match &stdout {
            Some((_, write)) => write.as_raw_fd(),
            None if command.show_output => 2,
            None => null.as_raw_fd(),
        };
        let err_fd = stderr.as_ref().map_or(2, |(_, write)| write.as_raw_fd());
        let parent = std::process::id() as libc::pid_t;

        // SAFETY: the child only makes async-signal-safe calls on memory prepared above, then
        // execs or exits.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(failed("fork")(io::Error::last_os_error()));
        }
        if pid == 0 {
            // SAFETY: see above; all pointers are to live memory of this copy of the process.
            unsafe {
                let fail = |step: i32| -> ! {
                    let report = [step, *libc::__errno_location()];
                    libc::write(error_write.as_raw_fd(), report.as_ptr().cast(), 8);
                    libc::_exit(127)
                };
                libc::setpgid(0, 0);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() != parent {
                    libc::_exit(127);
                }
                if let Some(procs) = &procs {
                    // "0" is the writer itself.
                    if libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) < 0 {
                        fail(ENTER_GROUP);
                    }
                }
                if libc::sched_setaffinity(0, words * 8, mask.as_ptr().cast()) < 0 {
                    fail(SET_AFFINITY);
                }
                libc::dup2(null.as_raw_fd(), 0);
                libc::dup2(out_fd, 1);
                libc::dup2(err_fd, 2);
                for signal in [libc::SIGPIPE, libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                let mut empty: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&raw mut empty);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, ptr::null_mut());
                // Only the parent holds the other end open from here on.
                libc::close(go_write.as_raw_fd());
                let ready = [READY, 0];
                libc::write(error_write.as_raw_fd(), ready.as_ptr().cast(), 8);
                let mut byte = 0u8;
                if libc::read(go_read.as_raw_fd(), (&raw mut byte).cast(), 1) != 1 {
                    libc::_exit(127);
                }
                libc::execvpe(argv[0], argv.as_ptr(), envp.as_ptr());
                fail(EXEC)
            }
        }
        let reader =
            |pair: Option<(OwnedFd, OwnedFd)>| pair.map(|(read, _)| tail(read)).transpose();
        let child = Child {
            pid,
            go: Some(go_write),
            error: error_read,
            stdout: reader(stdout).map_err(failed("start a thread"))?,
            stderr: reader(stderr).map_err(failed("start a thread"))?,
            reaped: false,
        };
        drop(error_write);
        // Entering a control group takes milliseconds, which are not the program's.
        match child.report() {
            Some([READY, _]) => Ok(child),
            Some([step, errno]) => Err(failure(step, errno, &command.args[0])),
            None => Err(failed("confine the process")(io::Error::other(
                "it has been killed",
            ))),
        }
    }

    /// What the child says before its program begins.
    fn report(&self) -> Option<[i32; 2]> {
        let mut report = [0; 8];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.error, &mut report[..]));
        let [step, errno] = *report.as_chunks::<4>().0 else {
            unreachable!("two words");
        };
        (read == Ok(8)).then(|| [i32::from_ne_bytes(step), i32::from_ne_bytes(errno)])
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    /// Lets the program begin, waits for its end, or ends it when time is up or the user says so.
    pub fn run(
        mut self,
        program: &str,
        deadline: Option<Duration>,
        interrupt: &Interrupt,
        clean_up: impl FnOnce(),
    ) -> Result<Ended, StartError> {
        let begun = Instant::now();
        let go = self.go.take().expect("not let go before");
        rustix::io::write(&go, b"!").map_err(|error| StartError::System {
            what: "release the child",
            source: error.into(),
        })?;
        drop(go);
        let mut stopped = None;
        let mut timed_out = false;
        let pidfd = rustix::process::pidfd_open(
            rustix::process::Pid::from_raw(self.pid).expect("a child has a pid"),
            rustix::process::PidfdFlags::empty(),
        )
        .map_err(|error| StartError::System {
            what: "pidfd_open",
            source: error.into(),
        })?;
        // Also the signals' way out: they interrupt the poll.
        loop {
            let left = match (deadline, stopped) {
                (_, Some(_)) => Duration::from_secs(2),
                (Some(deadline), None) => deadline.saturating_sub(begun.elapsed()),
                (None, None) => Duration::from_secs(1),
            };
            let mut polled = [rustix::event::PollFd::new(
                &pidfd,
                rustix::event::PollFlags::IN,
            )];
            let timeout = rustix::event::Timespec {
                tv_sec: left.as_secs().min(1) as i64,
                tv_nsec: if left.as_secs() >= 1 {
                    0
                } else {
                    i64::from(left.subsec_nanos())
                },
            };
            match rustix::event::poll(&mut polled, Some(&timeout)) {
                Ok(1..) => break,
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return Err(StartError::System {
                        what: "poll",
                        source: error.into(),
                    });
                }
            }
            let over = deadline.is_some_and(|deadline| begun.elapsed() >= deadline);
            let patient = Duration::from_secs(2);
            if interrupt.insisted() || stopped.is_some_and(|at: Instant| at.elapsed() > patient) {
                self.signal(libc::SIGKILL);
                stopped.get_or_insert(Instant::now());
            } else if stopped.is_none() && (over || interrupt.asked()) {
                self.signal(libc::SIGTERM);
                stopped = Some(Instant::now());
                timed_out = over;
            }
        }
        let wall = begun.elapsed();
        let mut status = 0;
        // SAFETY: an all-zero rusage is valid, and both pointers are to locals.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::wait4(self.pid, &raw mut status, 0, &raw mut usage);
            usage
        };
        self.reaped = true;
        // What it left behind would keep the pipes open.
        self.signal(libc::SIGTERM);
        clean_up();
        end_orphans();
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
        if let Some([step, errno]) = self.report() {
            return Err(failure(step, errno, program));
        }
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
            user_s: seconds(usage.ru_utime),
            system_s: seconds(usage.ru_stime),
            faults: u64::try_from(usage.ru_minflt).unwrap_or(0),
            major_faults: u64::try_from(usage.ru_majflt).unwrap_or(0),
            stdout,
            stderr,
        })
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the group is the child's own; nothing else can be in it but its descendants.
        unsafe { libc::kill(-self.pid, signal) };
    }
}

/// Makes orphans of the workload our children, so that they can be found without control groups.
pub fn adopt_orphans() {
    // SAFETY: takes no pointers. Where it is not known, orphans go to init as ever.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// Ends what the workload has left: between runs, all our children are orphans of it.
fn end_orphans() {
    // Ending one makes its children ours: again, but not for ever.
    for _ in 0..100 {
        let tasks = std::fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten();
        let lists =
            tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let orphans: Vec<libc::pid_t> = lists
            .flat_map(|list| {
                list.split_whitespace()
                    .filter_map(|pid| pid.parse().ok())
                    .collect::<Vec<_>>()
            })
            .collect();
        if orphans.is_empty() {
            return;
        }
        for pid in orphans {
            // SAFETY: our own child, which nobody else reaps; a null status is allowed.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, ptr::null_mut(), 0);
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(libc::SIGKILL);
            // SAFETY: our own child; a null status is allowed.
            unsafe { libc::waitpid(self.pid, ptr::null_mut(), 0) };
        }
    }
}
