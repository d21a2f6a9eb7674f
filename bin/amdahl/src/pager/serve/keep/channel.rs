//! The connection between two daemons: whole messages, with their descriptors, never waiting longer than told.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use amdahl_pager::handoff::Peer;
use amdahl_pager::succession::message::{BYTES_MAX, DESCRIPTORS_MAX, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    recvmsg, sendmsg,
};

/// How long the other side may keep a message from being sent.
const SEND_WAIT: Duration = Duration::from_secs(2);

/// One end.
pub struct Channel {
    /// A socket of whole messages, whatever the type says.
    socket: UnixStream,
    /// Who is at the other.
    pub peer: Peer,
}

/// What came.
pub enum Came {
    /// This, with these descriptors.
    Message(Message, Vec<OwnedFd>),
    /// Nothing, in time.
    Nothing,
    /// The end.
    End,
}

impl Channel {
    /// Of a connected socket. Programs of other users are refused.
    pub fn new(socket: OwnedFd) -> Result<Channel, String> {
        let socket = UnixStream::from(socket);
        let peer = Peer::of(&socket).map_err(|error| format!("who is there: {error}"))?;
        let us = rustix::process::geteuid().as_raw();
        if peer.uid != us {
            return Err(format!(
                "it is a program of user {} and not of {us}",
                peer.uid
            ));
        }
        Ok(Channel { socket, peer })
    }

    /// To whoever is controlled there.
    pub fn connect(path: &Path) -> Result<Channel, String> {
        let failed = |errno: Errno| std::io::Error::from(errno).to_string();
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
        let socket = socket.map_err(failed)?;
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        rustix::net::connect(&socket, &address).map_err(failed)?;
        Channel::new(socket)
    }

    /// To be polled.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Says something.
    pub fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> Result<(), String> {
        let bytes = message.encode().map_err(|error| error.to_string())?;
        let begun = Instant::now();
        loop {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty()
                && !control.push(SendAncillaryMessage::ScmRights(descriptors))
            {
                return Err("too many descriptors".to_owned());
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = SEND_WAIT.saturating_sub(begun.elapsed());
                    if left.is_zero() {
                        return Err(format!("it reads nothing for {} s", SEND_WAIT.as_secs()));
                    }
                    ready(self.socket(), PollFlags::OUT, left);
                }
                Err(errno) => return Err(std::io::Error::from(errno).to_string()),
            }
        }
    }

    /// What comes next, waiting for it at most so long.
    pub fn receive(&self, within: Duration) -> Result<Came, String> {
        let begun = Instant::now();
        let mut bytes = vec![0; BYTES_MAX];
        loop {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            let received = match recvmsg(&self.socket, parts, &mut control, flags) {
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    let left = within.saturating_sub(begun.elapsed());
                    if left.is_zero() {
                        return Ok(Came::Nothing);
                    }
                    ready(self.socket(), PollFlags::IN, left);
                    continue;
                }
                Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Came::End),
                Err(errno) => return Err(std::io::Error::from(errno).to_string()),
            };
            let mut descriptors = Vec::new();
            for sent in control.drain() {
                if let RecvAncillaryMessage::ScmRights(some) = sent {
                    descriptors.extend(some);
                }
            }
            if received.bytes == 0 {
                return Ok(Came::End);
            }
            if received
                .flags
                .intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC)
            {
                return Err("its message is too long, or has too many descriptors".to_owned());
            }
            let message = Message::decode(&bytes[..received.bytes], descriptors.len());
            return match message {
                Ok(message) => Ok(Came::Message(message, descriptors)),
                Err(error) => Err(error.to_string()),
            };
        }
    }
}

fn ready(socket: BorrowedFd<'_>, flags: PollFlags, within: Duration) {
    let within = Timespec {
        tv_sec: i64::try_from(within.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: within.subsec_nanos().into(),
    };
    let _ = poll(
        &mut [PollFd::from_borrowed_fd(socket, flags)],
        Some(&within),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .expect("a pair");
        (Channel::new(ours).expect("of this user"), theirs)
    }

    #[test]
    fn messages_come_whole_and_the_end_after_them() {
        let (ours, theirs) = pair();
        let theirs = Channel::new(theirs).expect("of this user");
        let file = std::fs::File::open("/dev/null").expect("a file");
        let fds = [file.as_fd(); 3];
        let vm = amdahl_pager::succession::message::Vm {
            number: 3,
            pid: None,
            uid: 0,
            features: None,
            regions: Vec::new(),
            maps: false,
        };
        theirs.send(&Message::Take, &[]).expect("sent");
        theirs.send(&Message::Vm(vm), &fds).expect("sent");
        drop(theirs);
        let take = ours.receive(Duration::ZERO);
        assert!(matches!(take, Ok(Came::Message(Message::Take, _))));
        let vm = ours.receive(Duration::ZERO);
        assert!(matches!(vm, Ok(Came::Message(Message::Vm(_), fds)) if fds.len() == 3));
        assert!(matches!(ours.receive(Duration::ZERO), Ok(Came::End)));
        assert!(ours.send(&Message::Mine, &[]).is_err());
    }

    #[test]
    fn what_is_no_message_is_an_error_and_nothing_is_nothing() {
        let (ours, theirs) = pair();
        assert!(matches!(ours.receive(Duration::ZERO), Ok(Came::Nothing)));
        for bytes in [&b"{"[..], b"{\"is\":\"unheard-of\"}", &[0; 10]] {
            rustix::io::write(&theirs, bytes).expect("sent");
            assert!(ours.receive(Duration::ZERO).is_err());
        }
    }
}
