//! Who is at the other end of a socket.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The process that connected: as the kernel says, not as it says itself.
#[derive(Debug)]
pub struct Peer {
    /// Its id; `None` if it is in a PID namespace that is not seen from here.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
    pidfd: Option<OwnedFd>,
}

/// `SO_PEERPIDFD` (Linux 6.5).
const PEER_PIDFD: libc::c_int = 77;

impl Peer {
    /// Of a stream.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(stream: &UnixStream) -> std::io::Result<Peer> {
        let mut who = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        option(stream.as_fd(), libc::SO_PEERCRED, &mut who)?;
        let mut fd: libc::c_int = -1;
        let mut pidfd = match option(stream.as_fd(), PEER_PIDFD, &mut fd) {
            // SAFETY: the kernel has just made it for us.
            Ok(()) if fd >= 0 => Some(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => None,
        };
        if pidfd.is_none()
            && let Some(pid) = Pid::from_raw(who.pid)
        {
            pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
            // Its id may be another's by now, unless it still holds its end.
            if is_hung_up(stream) {
                pidfd = None;
            }
        }
        Ok(Peer {
            pid: u32::try_from(who.pid).ok().filter(|pid| *pid > 0),
            uid: who.uid,
            pidfd,
        })
    }

    /// As another process has found it out.
    pub fn from_parts(pid: Option<u32>, uid: u32, pidfd: Option<OwnedFd>) -> Peer {
        Peer { pid, uid, pidfd }
    }

    /// Readable when the process has ended.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Kills it; whether that was possible.
    pub fn kill(&self) -> bool {
        self.pidfd
            .as_ref()
            .is_some_and(|pidfd| pidfd_send_signal(pidfd, Signal::KILL).is_ok())
    }
}

fn option<T>(socket: BorrowedFd<'_>, name: libc::c_int, value: &mut T) -> std::io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: as many bytes as are told may be written to `value`, which is of plain numbers.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            std::ptr::from_mut(value).cast(),
            &raw mut len,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn is_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).is_err() || fds[0].revents().contains(PollFlags::HUP)
}
