//! The process between us and a program under test: its parent, and that of all orphans it leaves.
//!
//! It is this same executable, called [`NAME`]. It ends what is left of the program when we say so, and when we are
//! no more, however that came: everything below it descends from the program, so that nothing
//! else can be meant. A process beside the program that is merely told of our end could not find those who have left
//! the process group; control groups, which could, are not everybody's. A program that is to last ([`Orders::lasts`])
//! is the exception: if we die without a word it waits for the program's own end, and ends then what that has left. It is executed, not only forked: a copy of
//! us would share our memory, so that each first write to a page cost us a copy while a run is measured.
//!
//! Ours are the ends of three connections. `go` is read by the program's process before it becomes the program.
//! `report` has what keeps it from that. `channel` is a socket: our single byte says that the run is over, its end
//! without one that we have died; the other way comes how the program ended, once.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::ptr;
use std::time::SystemTime;

use amdahl_topology::CpuSet;
use rustix::event::{PollFd, PollFlags, poll};

/// What the executable is called when it is a guard.
pub const NAME: &str = "amdahl-guard";

/// What a process says before it becomes the program: a step, and the error number or, of [`READY`], its process id.
pub type Report = [i32; 2];

/// It is confined and waits.
pub const READY: i32 = 0;
/// The control group cannot be entered.
pub const ENTER_GROUP: i32 = 1;
/// The CPUs cannot be used.
pub const SET_AFFINITY: i32 = 2;
/// There is no new process; or, after [`READY`], it cannot become the program.
pub const START: i32 = 3;

/// Says that a run is over.
pub const OVER: u8 = b'.';
/// Says before that that the program is to end: if we die now, one that was to last is ended, too.
pub const ENDING: u8 = b'!';

/// What a guard is to do.
pub struct Orders {
    /// Where the program's process waits for a byte.
    pub go: RawFd,
    /// Where it says a [`Report`].
    pub report: RawFd,
    /// How the guard is spoken to.
    pub channel: RawFd,
    /// CPUs of the program.
    pub cpus: CpuSet,
    /// File of a control group to write a process id to.
    pub procs: Option<OsString>,
    /// If we die, nobody else removes the maps of names that Java's virtual machines write.
    pub removes_maps: bool,
    /// If we die, or the guard does, the program goes on.
    pub lasts: bool,
    /// Variables to set on top of the guard's own.
    pub env: Vec<(OsString, OsString)>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

impl Orders {
    /// As arguments of the guard.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = [self.go, self.report, self.channel]
            .iter()
            .map(|fd| fd.to_string().into())
            .collect();
        args.push(self.cpus.to_string().into());
        args.push(self.procs.clone().unwrap_or_default());
        args.push(u8::from(self.removes_maps).to_string().into());
        args.push(u8::from(self.lasts).to_string().into());
        args.push(self.env.len().to_string().into());
        for (name, value) in &self.env {
            args.extend([name.clone(), value.clone()]);
        }
        args.extend(self.command.iter().cloned());
        args
    }

    fn from_args(mut args: impl Iterator<Item = OsString>) -> Option<Orders> {
        let mut next = || args.next();
        fn number<T: std::str::FromStr>(text: OsString) -> Option<T> {
            text.to_str()?.parse().ok()
        }
        let [go, report, channel] = [number(next()?)?, number(next()?)?, number(next()?)?];
        let cpus = next()?.to_str()?.parse().ok()?;
        let procs = Some(next()?).filter(|path| !path.is_empty());
        let removes_maps = next()? == "1";
        let lasts = next()? == "1";
        let variables: usize = number(next()?)?;
        let env = (0..variables).map(|_| Some((next()?, next()?)));
        let env = env.collect::<Option<Vec<_>>>()?;
        let command: Vec<OsString> = args.collect();
        (!command.is_empty()).then_some(Orders {
            go,
            report,
            channel,
            cpus,
            procs,
            removes_maps,
            lasts,
            env,
            command,
        })
    }
}

/// What processes used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// User and kernel CPU time.
    pub user_us: u64,
    pub system_us: u64,
    /// Page faults, without and with a disk.
    pub faults: u64,
    pub major_faults: u64,
}

impl Usage {
    fn of(usage: &libc::rusage) -> Usage {
        let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        Usage {
            user_us: us(usage.ru_utime),
            system_us: us(usage.ru_stime),
            faults: u64::try_from(usage.ru_minflt).unwrap_or(0),
            major_faults: u64::try_from(usage.ru_majflt).unwrap_or(0),
        }
    }

    /// Adds that of others.
    pub fn add(&mut self, other: Usage) {
        self.user_us += other.user_us;
        self.system_us += other.system_us;
        self.faults += other.faults;
        self.major_faults += other.major_faults;
    }
}

/// How the program ended, with what it and its waited-for descendants used; then, of those that became orphans, how all that have
/// ended did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// As `wait` gives it; 0 of orphans.
    pub status: i32,
    pub usage: Usage,
}

const END_BYTES: usize = 5 * 8;

impl End {
    fn to_bytes(self) -> [u8; END_BYTES] {
        let words = [
            u64::from(self.status as u32),
            self.usage.user_us,
            self.usage.system_us,
            self.usage.faults,
            self.usage.major_faults,
        ];
        let mut bytes = [0; END_BYTES];
        for (into, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *into = word.to_ne_bytes();
        }
        bytes
    }

    /// What the guard says; an error if it is gone without a word.
    pub fn read(channel: &mut UnixStream) -> io::Result<End> {
        let mut bytes = [0; END_BYTES];
        channel.read_exact(&mut bytes)?;
        let words: Vec<u64> = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_ne_bytes(*word))
            .collect();
        Ok(End {
            status: words[0] as i32,
            usage: Usage {
                user_us: words[1],
                system_us: words[2],
                faults: words[3],
                major_faults: words[4],
            },
        })
    }
}

/// What a guard does, if this process is one.
pub fn main() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    if args.next()? != NAME {
        return None;
    }
    let Some(orders) = Orders::from_args(args) else {
        eprintln!("{NAME}: a part of amdahl that is started by it alone");
        return Some(ExitCode::from(2));
    };
    let done = guard(orders);
    Some(if done.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A descriptor that was handed to us by its number.
fn handed(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD takes no pointer; a wrong number is an error.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and who started us gave it to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn guard(orders: Orders) -> io::Result<()> {
    let begun = SystemTime::now();
    let mut channel = UnixStream::from(handed(orders.channel)?);
    let mut report = File::from(handed(orders.report)?);
    let go = File::from(handed(orders.go)?);
    // SAFETY: a string that ends with 0; without a name we are called `exe`.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"amdahl-guard".as_ptr()) };
    super::adopt_orphans();
    let deaths = blocked(libc::SIGCHLD)?;
    let procs = orders
        .procs
        .as_ref()
        .map(|path| File::options().write(true).open(path));
    let procs = match procs.transpose() {
        Ok(procs) => procs,
        Err(error) => return tell(&mut report, ENTER_GROUP, &error),
    };

    let mut command = Command::new(&orders.command[0]);
    command
        .args(&orders.command[1..])
        .envs(orders.env.iter().map(|(name, value)| (name, value)))
        .process_group(0);
    let confine = confined(go, report.try_clone()?, procs, orders.cpus, orders.lasts);
    // SAFETY: we have one thread, so that its copy holds no lock that nobody will release; `confined` makes system calls alone.
    unsafe { command.pre_exec(confine) };
    let started = command.spawn();
    // It has our copies of the descriptors.
    drop(command);
    let program = match started {
        Ok(child) => child.id() as libc::pid_t,
        Err(error) => return tell(&mut report, START, &error),
    };
    drop(report);

    let mut orphans = Usage::default();
    let (mut lasts, mut has_ended, mut has_died) = (orders.lasts, false, false);
    loop {
        let mut polled = [
            PollFd::new(&deaths, PollFlags::IN),
            PollFd::new(&channel, PollFlags::IN),
        ];
        // Of one whose other end is closed there is always something to read.
        let asked = if has_died { 1 } else { 2 };
        match poll(&mut polled[..asked], None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        let [has_deaths, is_told] = polled.map(|fd| !fd.revents().is_empty());
        if has_deaths {
            let mut one = [0; size_of::<libc::signalfd_siginfo>()];
            rustix::io::read(&deaths, &mut one)?;
            orphans.add(reap(program, &mut channel, &mut has_ended));
        }
        if is_told {
            let mut word = [0];
            match channel.read(&mut word) {
                Ok(1) if word == [ENDING] => lasts = false,
                Ok(1) => break,
                _ => has_died = true,
            }
        }
        if has_died && (has_ended || !lasts) {
            break;
        }
    }
    orphans.add(end_children(&[]));
    let all = End {
        status: 0,
        usage: orphans,
    };
    // Who reads it may be gone.
    let _ = channel.write_all(&all.to_bytes());
    if has_died && orders.removes_maps {
        crate::java::remove_maps_of_the_killed(begun);
    }
    Ok(())
}

fn tell(report: &mut File, step: i32, error: &io::Error) -> io::Result<()> {
    let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
    report.write_all(&report_bytes([step, errno]))
}

fn report_bytes([step, value]: Report) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&step.to_ne_bytes());
    bytes[4..].copy_from_slice(&value.to_ne_bytes());
    bytes
}

/// What is read from `report`; `None` at its end.
pub fn read_report(report: &OwnedFd) -> Option<Report> {
    let mut bytes = [0; 8];
    let read = rustix::io::retry_on_intr(|| rustix::io::read(report, &mut bytes[..]));
    let [step, value] = *bytes.as_chunks::<4>().0 else {
        unreachable!("two words");
    };
    (read == Ok(8)).then(|| [i32::from_ne_bytes(step), i32::from_ne_bytes(value)])
}

/// What the program's process does before it becomes the program.
fn confined(
    go: File,
    report: File,
    procs: Option<File>,
    cpus: CpuSet,
    lasts: bool,
) -> impl FnMut() -> io::Result<()> + Send + Sync + 'static {
    let guard = std::process::id() as libc::pid_t;
    move || {
        let fail = |step, error: io::Error| {
            let errno = error.raw_os_error().unwrap_or(0);
            let _ = (&report).write_all(&report_bytes([step, errno]));
            error
        };
        if !lasts {
            // SAFETY: takes no pointer.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            // SAFETY: cannot fail.
            if unsafe { libc::getppid() } != guard {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        if let Some(mut procs) = procs.as_ref() {
            // "0" is the writer itself.
            procs
                .write_all(b"0")
                .map_err(|error| fail(ENTER_GROUP, error))?;
        }
        if amdahl_topology::set_allowed(0, &cpus).is_err() {
            return Err(fail(SET_AFFINITY, io::Error::last_os_error()));
        }
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the default action is no function.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: an all-zero set is valid, and the pointers are to it. What the guard has blocked the program must hear.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        }
        // SAFETY: cannot fail.
        let me = unsafe { libc::getpid() };
        (&report).write_all(&report_bytes([READY, me]))?;
        // Without a byte nobody is there any more who wants the program to begin.
        (&go).read_exact(&mut [0])
    }
}

/// A descriptor that is readable when `signal` came, which does nothing else from now on.
fn blocked(signal: i32) -> io::Result<OwnedFd> {
    // SAFETY: an all-zero set is valid, and all pointers are to it.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fresh, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes note of children that have ended: the program, which sets `has_ended`, and orphans, of which it returns what they used.
fn reap(program: libc::pid_t, channel: &mut UnixStream, has_ended: &mut bool) -> Usage {
    let mut orphans = Usage::default();
    loop {
        // SAFETY: an all-zero siginfo is valid, and the pointer is to it.
        let ended = unsafe {
            let mut about: libc::siginfo_t = std::mem::zeroed();
            let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            match libc::waitid(libc::P_ALL, 0, &raw mut about, how) {
                0 => about.si_pid(),
                _ => 0,
            }
        };
        if ended == 0 {
            return orphans;
        }
        if ended == program {
            // What it leaves in its process group. Before it is reaped its number cannot be another's.
            // SAFETY: takes no pointer.
            unsafe { libc::kill(-program, libc::SIGTERM) };
        }
        let end = wait_for(ended);
        if ended == program {
            *has_ended = true;
            // Who reads it may be gone.
            let _ = channel.write_all(&end.to_bytes());
        } else {
            orphans.add(end.usage);
        }
    }
}

/// Waits for a child, and what it used with those that it had waited for.
pub fn wait_for(pid: libc::pid_t) -> End {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid, and both pointers are to locals.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::wait4(pid, &raw mut status, 0, &raw mut usage);
        usage
    };
    let usage = Usage::of(&usage);
    End { status, usage }
}

/// Our children, from `/proc`.
pub fn children() -> Vec<libc::pid_t> {
    let tasks = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Ends our children but for `others`, and, as they become ours by that, their descendants; what they used.
pub fn end_children(others: &[libc::pid_t]) -> Usage {
    let mut usage = Usage::default();
    // Again, because ending one makes its children ours, but not for ever.
    for _ in 0..100 {
        let mut ended = 0;
        for pid in children() {
            if others.contains(&pid) {
                continue;
            }
            // One that runs with another user's rights cannot be ended, and is not waited for.
            // SAFETY: takes no pointer; our own child, which nobody else reaps.
            if unsafe { libc::kill(pid, libc::SIGKILL) } == 0 {
                usage.add(wait_for(pid).usage);
                ended += 1;
            }
        }
        if ended == 0 {
            break;
        }
    }
    usage
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn orders_survive_the_command_line() {
        let text = |text: &[u8]| OsString::from_vec(text.to_vec());
        let orders = Orders {
            go: 3,
            report: 4,
            channel: 5,
            cpus: "0-2,70".parse().expect("CPUs"),
            procs: Some(text(b"/sys/fs/cgroup/a b/cgroup.procs")),
            removes_maps: true,
            lasts: true,
            env: vec![(text(b"A"), text(b"")), (text(b"B"), text(b"x=y\xff"))],
            command: vec![text(b"./program"), text(b""), text(b"--"), text(b"A=1")],
        };
        let back = Orders::from_args(orders.to_args().into_iter()).expect("the same");
        assert_eq!(back.to_args(), orders.to_args());
        assert_eq!((back.go, back.report, back.channel), (3, 4, 5));
        assert_eq!(back.cpus, orders.cpus);
        assert_eq!(back.procs, orders.procs);
        assert!(back.removes_maps && back.lasts);
        assert_eq!(back.env, orders.env);
        assert_eq!(back.command, orders.command);
    }

    #[test]
    fn what_are_no_orders_is_refused() {
        for args in [
            "",
            "1 2",
            "1 2 x 0 /p 0 0 0 true",
            "1 2 3 0 /p 0 0 2 A 1 true",
            "1 2 3 0 /p 0 0 0",
        ] {
            let args = args.split(' ').map(OsString::from);
            assert!(Orders::from_args(args).is_none());
        }
    }

    #[test]
    fn an_end_is_told_whole() {
        let (mut ours, mut theirs) = UnixStream::pair().expect("a pair");
        let end = End {
            status: 7 << 8,
            usage: Usage {
                user_us: 1 << 40,
                system_us: 3,
                faults: 4,
                major_faults: 5,
            },
        };
        theirs.write_all(&end.to_bytes()).expect("written");
        assert_eq!(End::read(&mut ours).expect("read"), end);
        drop(theirs);
        assert!(End::read(&mut ours).is_err());
    }
}
