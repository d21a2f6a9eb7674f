//! Receives the message and its descriptor.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use super::message::{Malformed, Message, parse};
use crate::{Features, HandedOver};

/// Memory that a VMM has handed over.
#[derive(Debug)]
pub struct HandedOverMemory {
    /// Its userfaultfd.
    pub descriptor: OwnedFd,
    /// What its owner has asked the kernel for; `None` where the kernel does not tell (before Linux 4.14, or without /proc).
    pub features: Option<Features>,
    /// Which memory, and where its content is.
    pub regions: Vec<HandedOver>,
}

/// Why nothing was received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// What was sent cannot be served.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// Nothing more came.
    #[error("the message did not end within {} s; {bytes} bytes of it came", within.as_secs_f64())]
    Silent {
        /// How long was waited.
        within: Duration,
        /// What came until then.
        bytes: usize,
    },
    /// The peer went away.
    #[error("the peer closed the connection after {bytes} bytes, in the middle of its message")]
    Closed {
        /// What came until then.
        bytes: usize,
    },
    /// The message came alone.
    #[error(
        "no descriptor came with the message: the userfaultfd must be sent beside it (SCM_RIGHTS)"
    )]
    NoDescriptor,
    /// More came than one.
    #[error(
        "more than one descriptor came: one is expected, the userfaultfd (Firecracker with guest_memfd, which sends others beside it, is not served)"
    )]
    Descriptors,
    /// One came, and this process may have no more.
    #[error(
        "the descriptor that came with the message could not be taken: this process may have no more of them (RLIMIT_NOFILE)"
    )]
    NoRoom,
    /// It is something else.
    #[error("the descriptor that came is {0} and no userfaultfd")]
    Kind(String),
    /// It cannot tell of faults.
    #[error("the userfaultfd that came is not set up: its owner has not called UFFDIO_API")]
    NotSetUp,
    /// It does not tell of faults.
    #[error(
        "the userfaultfd that came has the feature SIGBUS: faults are told by a signal and not by messages"
    )]
    Signals,
    /// A system call failed.
    #[error("{operation}: {}", std::io::Error::from(*errno))]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

/// Takes a VMM's memory from a stream, for a source of so many bytes. Returns after `within` at the latest, whatever the peer does.
///
/// # Errors
/// [`ReceiveError`]; all descriptors that came are closed then.
pub fn receive(
    stream: &UnixStream,
    source_bytes: u64,
    within: Duration,
) -> Result<HandedOverMemory, ReceiveError> {
    let begun = Instant::now();
    let mut message = Message::new();
    let mut descriptor: Option<OwnedFd> = None;
    loop {
        let left = within.saturating_sub(begun.elapsed());
        let bytes = message.bytes().len();
        if !is_readable(stream, left).map_err(|errno| system("poll", errno))? {
            return Err(ReceiveError::Silent { within, bytes });
        }
        let mut piece = [0; 4096];
        // Room for more than is expected, so that more is noticed; beyond that the kernel says so.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut piece)],
            &mut control,
            flags,
        );
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(Errno::CONNRESET) => return Err(ReceiveError::Closed { bytes }),
            Err(errno) => return Err(system("recvmsg", errno)),
        };
        for sent in control.drain() {
            let RecvAncillaryMessage::ScmRights(descriptors) = sent else {
                continue;
            };
            for another in descriptors {
                if descriptor.replace(another).is_some() {
                    return Err(ReceiveError::Descriptors);
                }
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            // There was room for one in the buffer.
            return Err(match descriptor {
                Some(_) => ReceiveError::Descriptors,
                None => ReceiveError::NoRoom,
            });
        }
        if received.bytes == 0 {
            return Err(ReceiveError::Closed { bytes });
        }
        if message.push(&piece[..received.bytes])? {
            break;
        }
    }
    let regions = parse(message.bytes(), source_bytes)?;
    let descriptor = descriptor.ok_or(ReceiveError::NoDescriptor)?;
    let features = examine(&descriptor)?;
    Ok(HandedOverMemory {
        descriptor,
        features,
        regions,
    })
}

fn system(operation: &'static str, errno: Errno) -> ReceiveError {
    ReceiveError::System { operation, errno }
}

/// Waits for something to read, or the end of the stream.
pub(super) fn is_readable(stream: &UnixStream, within: Duration) -> Result<bool, Errno> {
    let within = Timespec {
        tv_sec: i64::try_from(within.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: within.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&within)) {
        Ok(ready) => Ok(ready > 0),
        // The caller looks at the clock.
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Whether it is a userfaultfd that tells of faults, and what its owner has asked the kernel for, if that can be known.
///
/// # Errors
/// [`ReceiveError`]: it is not.
pub fn examine(descriptor: &OwnedFd) -> Result<Option<Features>, ReceiveError> {
    let number = descriptor.as_raw_fd();
    let kind = std::fs::read_link(format!("/proc/self/fd/{number}"));
    let Ok(kind) = kind else {
        return Ok(None);
    };
    if kind.as_os_str() != "anon_inode:[userfaultfd]" {
        return Err(ReceiveError::Kind(described(&kind.to_string_lossy())));
    }
    // One that blocks, or is not set up, is always in error.
    let flags = fcntl_getfl(descriptor).map_err(|errno| system("fcntl", errno))?;
    fcntl_setfl(descriptor, flags | OFlags::NONBLOCK).map_err(|errno| system("fcntl", errno))?;
    let mut ready = [PollFd::new(descriptor, PollFlags::IN)];
    let _ = poll(&mut ready, Some(&Timespec::default()));
    if ready[0].revents().contains(PollFlags::ERR) {
        return Err(ReceiveError::NotSetUp);
    }
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"));
    let Some(features) = info.ok().as_deref().and_then(features) else {
        return Ok(None);
    };
    if features.contain(Features::SIGBUS) {
        return Err(ReceiveError::Signals);
    }
    Ok(Some(features))
}

/// What is said of another descriptor: its kind and not its path, which is the peer's choice.
fn described(link: &str) -> String {
    let kinds = ["socket:", "pipe:", "anon_inode:", "/memfd:"];
    match kinds.iter().find(|kind| link.starts_with(**kind)) {
        Some(&"anon_inode:") => format!("an {}", link.chars().take(40).collect::<String>()),
        Some(&"/memfd:") => "a memfd".to_owned(),
        Some(kind) => format!("a {}", kind.trim_end_matches(':')),
        None => "a file".to_owned(),
    }
}

/// The features in what /proc says of a userfaultfd: interface, features asked for, features there are, in hexadecimal.
fn features(info: &str) -> Option<Features> {
    let line = info.lines().find_map(|line| line.strip_prefix("API:"))?;
    let asked = line.trim().split(':').nth(1)?;
    let asked = u64::from_str_radix(asked, 16).ok()?;
    // The kernel's own note that there was an agreement.
    const INITIALIZED: u64 = 1 << 31;
    Some(Features(asked & !INITIALIZED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_features_are_the_second_number() {
        let info = "pos:\t0\npending:\t0\ntotal:\t0\nAPI:\taa:80000108:80000000000001ff\n";
        assert_eq!(features(info), Some(Features(0x108)));
        assert_eq!(features("pos:\t0\n"), None);
        assert_eq!(features("API:\tzz\n"), None);
    }

    #[test]
    fn other_descriptors_are_named_by_their_kind() {
        assert_eq!(described("socket:[12]"), "a socket");
        assert_eq!(described("/memfd:guest (deleted)"), "a memfd");
        assert_eq!(described("/etc/shadow"), "a file");
        assert_eq!(described("anon_inode:[eventfd]"), "an anon_inode:[eventfd]");
    }
}
