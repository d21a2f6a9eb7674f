//! A program whose threads stand still, one of which makes system calls for us: ptrace. Everything here is the edge.

#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::Error;
use crate::error::system;
#[cfg(target_arch = "x86_64")]
use x86_64::Registers;

/// How long a thread has to stop; and a system call that it makes for us, to end.
const STOPPING: Duration = Duration::from_secs(5);
const CALLING: Duration = Duration::from_secs(300);
/// Between two looks. The kernel tells by SIGCHLD or a wait without an end alone.
const OFTEN: Duration = Duration::from_micros(200);

/// The threads of a program. They go on when this is dropped; the kernel lets them go on, too, when we are killed.
#[derive(Debug)]
pub struct Stopped {
    pid: u32,
    threads: BTreeSet<i32>,
    memory: File,
}

/// A call of ptrace that gives nothing.
fn ptrace(request: libc::c_uint, tid: i32, address: usize, data: usize) -> Result<(), Errno> {
    // SAFETY: by the callers: `data` is what the request takes, a number or a pointer to something that is large enough and lives.
    let done = unsafe { libc::ptrace(request, tid, address, data) };
    match done {
        -1 => Err(last()),
        _ => Ok(()),
    }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// What a thread has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halt {
    /// It has ended.
    Ended,
    /// It was asked to stop, and has.
    Asked,
    /// A signal is to be delivered, or a trap was met.
    Signal(i32),
}

fn wait(tid: i32, within: Duration) -> Result<Halt, Error> {
    let until = Instant::now() + within;
    loop {
        let mut status = 0;
        // SAFETY: a number is written.
        match unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) } {
            0 => {}
            -1 => match last() {
                Errno::INTR => continue,
                Errno::CHILD => return Ok(Halt::Ended),
                errno => return Err(system("waitpid", errno)),
            },
            _ if !libc::WIFSTOPPED(status) => return Ok(Halt::Ended),
            _ if status >> 16 == libc::PTRACE_EVENT_STOP => return Ok(Halt::Asked),
            _ => return Ok(Halt::Signal(libc::WSTOPSIG(status))),
        }
        if Instant::now() >= until {
            return Err(Error::Busy { tid });
        }
        std::thread::sleep(OFTEN);
    }
}

impl Stopped {
    /// Stops all threads of a process, also those that are started meanwhile.
    pub fn all_of(pid: u32) -> Result<Stopped, Error> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(Error::Unavailable(
                "system calls can be made in another program on x86-64 alone, as of now",
            ));
        }
        let refused = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => Error::Refused { pid },
            _ => Error::Gone { pid },
        };
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .map_err(refused)?;
        let mut stopped = Stopped {
            pid,
            threads: BTreeSet::new(),
            memory,
        };
        loop {
            let before = stopped.threads.len();
            let folder = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(refused)?;
            let names = folder.flatten().map(|entry| entry.file_name());
            let threads: Vec<i32> = names
                .filter_map(|name| name.to_str()?.parse().ok())
                .collect();
            for tid in threads {
                if !stopped.threads.contains(&tid) {
                    stopped.stop(tid)?;
                }
            }
            // Those that stand still start no others.
            if stopped.threads.len() == before {
                break;
            }
        }
        match stopped.threads.is_empty() {
            true => Err(Error::Gone { pid }),
            false => Ok(stopped),
        }
    }

    fn stop(&mut self, tid: i32) -> Result<(), Error> {
        match ptrace(libc::PTRACE_SEIZE, tid, 0, 0) {
            Ok(()) => {}
            // It has ended meanwhile.
            Err(Errno::SRCH) => return Ok(()),
            Err(Errno::PERM) => return Err(Error::Refused { pid: self.pid }),
            Err(errno) => return Err(system("PTRACE_SEIZE", errno)),
        }
        self.threads.insert(tid);
        match ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0) {
            Ok(()) => {}
            Err(Errno::SRCH) => {
                self.threads.remove(&tid);
                return Ok(());
            }
            Err(errno) => return Err(system("PTRACE_INTERRUPT", errno)),
        }
        loop {
            match wait(tid, STOPPING)? {
                Halt::Asked => return Ok(()),
                Halt::Ended => {
                    self.threads.remove(&tid);
                    return Ok(());
                }
                // That came first: it is delivered, and then it stops.
                Halt::Signal(signal) => ptrace(libc::PTRACE_CONT, tid, 0, signal as usize)
                    .map_err(|errno| system("PTRACE_CONT", errno))?,
            }
        }
    }

    /// A userfaultfd that the program makes: its number there.
    pub fn userfaultfd(&mut self) -> Result<i32, Error> {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
        let none = Error::NoUserfault { pid: self.pid };
        let may_not = |error: &Error| {
            matches!(
                error,
                Error::System {
                    errno: Errno::PERM | Errno::NOSYS | Errno::ACCESS | Errno::NOENT,
                    ..
                }
            )
        };
        match self.call(libc::SYS_userfaultfd, [flags, 0, 0]) {
            Err(error) if may_not(&error) => {}
            made => return made.map(|number| number as i32),
        }
        /// `USERFAULTFD_IOC_NEW`.
        const NEW: u64 = 0xaa00;
        let device = self.open(c"/dev/userfaultfd");
        let device = match device {
            Err(error) if may_not(&error) => return Err(none),
            device => device?,
        };
        let made = self.call(libc::SYS_ioctl, [device, NEW, flags]);
        let _ = self.call(libc::SYS_close, [device, 0, 0]);
        match made {
            Err(error) if may_not(&error) => Err(none),
            made => made.map(|number| number as i32),
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for tid in &self.threads {
            // One that has ended is not there.
            let _ = ptrace(libc::PTRACE_DETACH, *tid, 0, 0);
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Stopped {
    /// Has the program make a system call; what it gives.
    pub fn call(&mut self, number: libc::c_long, arguments: [u64; 3]) -> Result<u64, Error> {
        let arguments = [arguments[0], arguments[1], arguments[2], 0];
        self.call4(number, arguments)
    }

    fn open(&mut self, path: &std::ffi::CStr) -> Result<u64, Error> {
        let tid = self.thread()?;
        // Below what the thread's code may use below its stack pointer. Nobody reads what is there, and it is put back all the same.
        let at = Registers::of(tid)?.stack().wrapping_sub(1024) & !15;
        let bytes = path.to_bytes_with_nul();
        let mut before = vec![0; bytes.len()];
        let io = |error: std::io::Error| {
            system(
                "/proc/PID/mem",
                Errno::from_io_error(&error).unwrap_or(Errno::IO),
            )
        };
        self.memory.read_exact_at(&mut before, at).map_err(io)?;
        self.memory.write_all_at(bytes, at).map_err(io)?;
        let here = libc::AT_FDCWD as i64 as u64;
        let flags = (libc::O_RDWR | libc::O_CLOEXEC) as u64;
        let opened = self.call4(libc::SYS_openat, [here, at, flags, 0]);
        self.memory.write_all_at(&before, at).map_err(io)?;
        opened
    }

    fn thread(&self) -> Result<i32, Error> {
        // The first one is there to the end.
        let first = self.threads.first().copied();
        first.ok_or(Error::Gone { pid: self.pid })
    }

    fn call4(&mut self, number: libc::c_long, arguments: [u64; 4]) -> Result<u64, Error> {
        let tid = self.thread()?;
        let code = self.syscall_instruction()?;
        let registers = Registers::of(tid)?;
        let mut mask = 0_u64;
        let held = ptr::from_mut(&mut mask).expose_provenance();
        ptrace(libc::PTRACE_GETSIGMASK, tid, size_of::<u64>(), held)
            .map_err(|errno| system("PTRACE_GETSIGMASK", errno))?;
        // No handler runs in the middle.
        let all = u64::MAX;
        let none = ptr::from_ref(&all).expose_provenance();
        ptrace(libc::PTRACE_SETSIGMASK, tid, size_of::<u64>(), none)
            .map_err(|errno| system("PTRACE_SETSIGMASK", errno))?;
        let made = registers
            .calling(code, number, arguments)
            .set(tid)
            .and_then(|()| step(tid))
            .and_then(|()| Registers::of(tid));
        // As before, whatever it was; a system call that was interrupted begins anew by itself.
        let back = registers.set(tid);
        let held = ptr::from_ref(&mask).expose_provenance();
        let unheld = ptrace(libc::PTRACE_SETSIGMASK, tid, size_of::<u64>(), held);
        let made = made?.result();
        back?;
        unheld.map_err(|errno| system("PTRACE_SETSIGMASK", errno))?;
        match made {
            // -4095 to -1.
            error if error > u64::MAX - 4095 => Err(system(
                "a system call in the program",
                Errno::from_raw_os_error((error as i64).wrapping_neg() as i32),
            )),
            given => Ok(given),
        }
    }

    /// Where the kernel's own library in the program has the instruction that calls the kernel.
    fn syscall_instruction(&self) -> Result<u64, Error> {
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        let maps = crate::maps::of(self.pid)?;
        let none = Error::Unavailable(
            "the program has no vdso, in which system calls could be made for it (a 32-bit program, or vdso=0)",
        );
        let vdso = maps
            .iter()
            .find(|map| map.name == "[vdso]")
            .ok_or(none.clone())?;
        let mut bytes = vec![0; vdso.range.len().min(64 << 10)];
        let start = vdso.range.start as u64;
        if self.memory.read_exact_at(&mut bytes, start).is_err() {
            return Err(none);
        }
        let at = bytes.windows(2).position(|bytes| bytes == SYSCALL);
        at.map(|at| start + at as u64).ok_or(none)
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Stopped {
    pub fn call(&mut self, _: libc::c_long, _: [u64; 3]) -> Result<u64, Error> {
        Err(Error::Unavailable("not on this kind of machine"))
    }

    fn open(&mut self, _: &std::ffi::CStr) -> Result<u64, Error> {
        Err(Error::Unavailable("not on this kind of machine"))
    }
}

/// Lets a thread do one instruction.
#[cfg(target_arch = "x86_64")]
fn step(tid: i32) -> Result<(), Error> {
    loop {
        ptrace(libc::PTRACE_SINGLESTEP, tid, 0, 0)
            .map_err(|errno| system("PTRACE_SINGLESTEP", errno))?;
        match wait(tid, CALLING)? {
            Halt::Signal(libc::SIGTRAP) => return Ok(()),
            // It was asked to stop once more, or somebody has sent SIGSTOP: before the instruction.
            Halt::Asked | Halt::Signal(libc::SIGSTOP) => {}
            Halt::Signal(_) => {
                return Err(Error::Unavailable(
                    "a system call in the program ended by a signal: it is in a sandbox that does not allow it",
                ));
            }
            Halt::Ended => return Err(system("a system call in the program", Errno::SRCH)),
        }
    }
}
