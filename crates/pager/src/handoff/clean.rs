//! Clean pages for VMMs: the process that has them offers their file, a VMM maps it and hands the mappings over.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use super::describe;
use super::receive::is_readable;
use super::send::send_with;
use crate::sys::support::Support;
use crate::sys::uffd::Features;
use crate::{CleanPages, Error, HandedOver, Mapping};

/// What is sent with the file: name and version.
const OFFER: [u8; 8] = *b"AMDLCP\0\x01";

/// The file of another process's clean pages.
#[derive(Debug)]
pub struct Offer {
    file: OwnedFd,
    bytes: u64,
}

/// Why no file was taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OfferError {
    /// Nothing came, or not all.
    #[error("no file of clean pages was offered within {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// The other end is closed.
    #[error("the connection was closed before a file of clean pages was offered")]
    Closed,
    /// Something else is spoken there.
    #[error("what was sent is no offer of clean pages, or one of another version")]
    Foreign,
    /// One belongs to an offer.
    #[error("the offer of clean pages came without its file, or with more than one")]
    Descriptors,
    /// One came, and this process may have no more.
    #[error(
        "the file of clean pages could not be taken: this process may have no more descriptors (RLIMIT_NOFILE)"
    )]
    NoRoom,
    /// A system call failed.
    #[error("{operation}: {}", std::io::Error::from(*errno))]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

/// Sends the file of clean pages: 8 bytes, `AMDLCP`, 0 and the version 1, with its descriptor beside them.
///
/// # Errors
/// [`Unsupported`](std::io::ErrorKind::Unsupported): this kernel may let others [change](Support::can_offer) them; what the system says.
pub fn offer(stream: &UnixStream, clean: &CleanPages) -> std::io::Result<()> {
    if let Some(doubt) = Support::probe().doubt() {
        return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, doubt));
    }
    offer_in_spite(stream, clean)
}

/// The same on every kernel: for who knows that this one has the fixes of CVE-2022-0847 and CVE-2022-2590, or trusts who maps the pages.
/// Else one VM may change what all others read.
///
/// # Errors
/// What the system says.
pub fn offer_in_spite(stream: &UnixStream, clean: &CleanPages) -> std::io::Result<()> {
    send_with(stream, &OFFER, Some(clean.file()))?;
    Ok(())
}

/// Takes an offer. Returns after `within` at the latest, whatever the peer does; takes nothing of what is sent after the offer.
///
/// # Errors
/// [`OfferError`]; what came with it is closed then.
pub fn take_offer(stream: &UnixStream, within: Duration) -> Result<Offer, OfferError> {
    let begun = Instant::now();
    let system = |operation| move |errno| OfferError::System { operation, errno };
    let (mut bytes, mut count) = ([0; OFFER.len()], 0);
    let mut file: Option<OwnedFd> = None;
    while count < bytes.len() {
        let left = within.saturating_sub(begun.elapsed());
        if !is_readable(stream, left).map_err(system("poll"))? {
            return Err(OfferError::Silent(within));
        }
        // Room for more than is expected, so that more is noticed; beyond that the kernel says so.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes[count..])];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match recvmsg(stream, &mut into, &mut control, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(Errno::CONNRESET) => return Err(OfferError::Closed),
            Err(errno) => return Err(system("recvmsg")(errno)),
        };
        for sent in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = sent {
                for another in descriptors {
                    if file.replace(another).is_some() {
                        return Err(OfferError::Descriptors);
                    }
                }
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            // There was room for one in the buffer.
            return Err(match file {
                Some(_) => OfferError::Descriptors,
                None => OfferError::NoRoom,
            });
        }
        if received.bytes == 0 {
            return Err(OfferError::Closed);
        }
        count += received.bytes;
        if bytes[..count] != OFFER[..count] {
            return Err(OfferError::Foreign);
        }
    }
    let file = file.ok_or(OfferError::Descriptors)?;
    let bytes = fstat(&file).map_err(system("fstat"))?.st_size as u64;
    Ok(Offer { file, bytes })
}

impl Offer {
    /// Bytes of the content, in whole pages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file, for who maps it by himself: privately, registered for missing and minor faults, and not checked by anybody.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A mapping of it, to be [handed over](hand_over) before anything touches it.
    ///
    /// # Errors
    /// As [`Mapping::of_clean`]: among others, that the file is not sealed, and so not what was promised.
    pub fn map(&self, offset: u64, len: usize) -> Result<Mapping, Error> {
        Mapping::of_clean(self.file.as_fd(), offset, len)
    }
}

/// Hands mappings of another process's clean pages over to it: registers them with a userfaultfd, and sends that with [what it
/// is](describe). The other end takes them by [`receive`](super::receive), and serves them by a pager with
/// [its clean pages](crate::Builder::clean). Whoever touches a missing page waits from now on. A child of `fork` does not get the memory.
///
/// Until then the mappings cannot be touched. The userfaultfd is to be kept as long as the memory is used: should the other process end without a word, who touches a missing page waits. When nobody has
/// the descriptor any more, missing pages read as whatever the file has.
///
/// # Errors
/// [`Error::Config`] for other memory; [`Error::Unavailable`]; [`Error::System`].
pub fn hand_over(stream: &UnixStream, mappings: &[&Mapping]) -> Result<OwnedFd, Error> {
    let (descriptor, regions) = register(mappings)?;
    let sent = send_with(
        stream,
        describe(&regions).as_bytes(),
        Some(descriptor.as_fd()),
    );
    sent.map_err(Error::system("sendmsg"))?;
    // Not before all is done: after an error nobody serves them, and nobody is to read them.
    for mapping in mappings {
        mapping.open_clean()?;
    }
    Ok(descriptor)
}

fn register(mappings: &[&Mapping]) -> Result<(OwnedFd, Vec<HandedOver>), Error> {
    let support = Support::probe();
    if !support.can_share() {
        return Err(Error::Unavailable(support.missing().join("; ")));
    }
    let wanted = Features::MISSING_SHMEM
        .or(Features::MINOR_SHMEM)
        .or(Features::EVENT_REMOVE)
        .or(Features::EVENT_UNMAP)
        .or(Features::EVENT_REMAP)
        .or(Features::POISON)
        .or(Features::THREAD_ID)
        .and(support.features);
    let uffd = support
        .open(wanted, true)
        .map_err(Error::system("userfaultfd"))?;
    let regions = mappings.iter().map(|mapping| mapping.register_clean(&uffd));
    let regions = regions.collect::<Result<Vec<HandedOver>, Error>>()?;
    Ok((uffd.into_fd(), regions))
}
