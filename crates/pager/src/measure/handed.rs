//! Memory that is served as that of a VMM: by the descriptor that its owner has made, registered and sent through a socket, with its messages of changes.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::handoff::{receive, send};
use crate::sys::support::Support;
use crate::sys::uffd::Features;
use crate::{Error, HandedOver, MemorySource, PAGE, Pager};

/// A pager of memory that was handed over, and what the owner keeps.
pub(super) struct Handed {
    /// Ends before the owner's descriptor is closed.
    _pager: Pager,
    _descriptor: OwnedFd,
}

impl Handed {
    /// Of memory of this process, which its owner registers as Firecracker does.
    pub fn start(start: usize, len: usize, source: MemorySource) -> Result<Handed, Error> {
        let support = Support::probe();
        let wanted = Features::EVENT_REMOVE
            .or(Features::THREAD_ID)
            .and(support.features);
        let uffd = support
            .open(wanted, true)
            .map_err(|_| Error::Unavailable(support.missing().join("; ")))?;
        // SAFETY: new memory, which is read for what is put there.
        unsafe { uffd.register(start..start + len) }.map_err(Error::system("UFFDIO_REGISTER"))?;
        let descriptor = uffd.into_fd();
        let region = HandedOver {
            start,
            len,
            source_offset: 0,
            page_bytes: PAGE,
        };
        let unavailable = |why: String| Error::Unavailable(why);
        let (ours, theirs) =
            UnixStream::pair().map_err(|error| unavailable(format!("socketpair: {error}")))?;
        send(&theirs, &[region], descriptor.as_fd())
            .map_err(|error| unavailable(format!("sendmsg: {error}")))?;
        let taken = receive(&ours, len as u64, Duration::from_secs(10))
            .map_err(|error| unavailable(error.to_string()))?;
        let pager = Pager::builder()
            .handed_over(taken.descriptor, &taken.regions)
            .source(Arc::new(source))
            .start()?;
        Ok(Handed {
            _pager: pager,
            _descriptor: descriptor,
        })
    }
}
