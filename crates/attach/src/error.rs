//! What can go wrong.

use rustix::io::Errno;
use thiserror::Error;

/// Why a program's memory was not taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There is no such process, or it has ended.
    #[error("process {pid} is not there")]
    Gone {
        /// Which.
        pid: u32,
    },
    /// No memory was named.
    #[error("no memory is to be taken")]
    Nothing,
    /// Two places have memory in common.
    #[error(
        "the memory at {start:#x} is named twice: name each mapping once, by its address in /proc/PID/maps"
    )]
    Twice {
        /// The address of the second one.
        start: usize,
    },
    /// The user may not.
    #[error(
        "process {pid} may not be stopped and changed: that takes its user and kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE, and nobody else (a debugger) that has it stopped"
    )]
    Refused {
        /// Which.
        pid: u32,
    },
    /// The program itself may have no userfaultfd.
    #[error(
        "process {pid} may have no userfaultfd that serves the kernel, too: give its user access (setfacl -m u:USER:rw /dev/userfaultfd), or sysctl vm.unprivileged_userfaultfd=1; a sandbox of system calls (seccomp) may be in the way"
    )]
    NoUserfault {
        /// Which.
        pid: u32,
    },
    /// A thread of it cannot be stopped.
    #[error("thread {tid} does not stop: it waits in the kernel without being interrupted")]
    Busy {
        /// Which.
        tid: i32,
    },
    /// This kind of machine.
    #[error("{0}")]
    Unavailable(&'static str),
    /// This memory cannot be filled on demand.
    #[error(
        "the memory at {start:#x} cannot be filled on demand: only memory without a file, and shared memory of a memfd or tmpfs, which has no userfaultfd yet"
    )]
    Kind {
        /// Its address.
        start: usize,
    },
    /// Some of it was given up already.
    #[error("{0}; some of the memory holds zeros now: end the program")]
    Discarded(Box<Error>),
    /// A system call failed, here or in the program.
    #[error("{operation}: {}", std::io::Error::from(*errno))]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

pub(crate) fn system(operation: &'static str, errno: Errno) -> Error {
    Error::System { operation, errno }
}
