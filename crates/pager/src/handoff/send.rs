//! The side of a VMM, or of who hands memory over in its name.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::describe;
use crate::HandedOver;

/// Sends memory that is registered with a userfaultfd to who serves it: what [`receive`](super::receive) takes. The descriptor stays the
/// caller's.
///
/// # Errors
/// What the system says: whether any of it arrived is not known.
pub fn send(
    stream: &UnixStream,
    regions: &[HandedOver],
    descriptor: BorrowedFd<'_>,
) -> std::io::Result<()> {
    send_with(stream, describe(regions).as_bytes(), Some(descriptor)).map_err(Into::into)
}

/// Sends all bytes, a descriptor with the first if there is one, which stays the caller's.
///
/// # Errors
/// What the system says: whether any of it arrived is not known.
pub fn send_with(
    stream: &UnixStream,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let descriptors = Vec::from_iter(descriptor);
    let mut sent = 0;
    while sent < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if sent == 0 && !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let rest = [IoSlice::new(&bytes[sent..])];
        match sendmsg(stream, &rest, &mut control, SendFlags::NOSIGNAL) {
            Ok(count) => sent += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
