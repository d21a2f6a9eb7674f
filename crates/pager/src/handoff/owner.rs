//! What can be done for memory that was handed over, beside the pager that serves it.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::sys::uffd::{Messages, Uffd};
use crate::{HandedOver, PAGE};

/// Memory of another process by its userfaultfd: whether it is still there, and its release.
#[derive(Debug)]
pub struct Owner {
    uffd: Uffd,
    regions: Box<[HandedOver]>,
}

/// Changes of the memory by its owner that are waited for.
const CHANGES: usize = 10_000;

impl Owner {
    /// Of a descriptor that was handed over, of which a duplicate is kept.
    ///
    /// # Errors
    /// No further descriptor can be had.
    pub fn new(descriptor: &OwnedFd, regions: &[HandedOver]) -> std::io::Result<Owner> {
        Ok(Owner {
            uffd: Uffd::handed_over(descriptor.try_clone()?),
            regions: regions.into(),
        })
    }

    /// Whether the memory is gone, with the last process that had it. One system call.
    ///
    /// While its owner changes the memory it is there.
    pub fn is_gone(&self) -> bool {
        // Zeros for a page that nobody has registered: refused in any case, but only after the kernel has looked for the memory.
        // The lowest addresses that may be mapped are hardly ever; some machines allow them only further up. And behind each region.
        let ends = self.regions.iter().map(|region| region.start + region.len);
        [1 << 16, 1 << 20, 1 << 24]
            .into_iter()
            .chain(ends)
            .filter(|at| {
                let touches =
                    |region: &HandedOver| region.start <= *at && *at - region.start < region.len;
                !self.regions.iter().any(touches)
            })
            .map(|at: usize| self.uffd.zero(at..at + PAGE).error)
            .find(|error| *error != Some(Errno::INVAL))
            .is_some_and(|error| error == Some(Errno::SRCH))
    }

    /// Lets the memory go: it is ordinary memory from now on, for which nobody needs to serve faults or messages. Whoever waits is woken.
    ///
    /// Only for memory of which nothing is missing, or all that is was made deadly: what is missing reads as zero afterwards. A pager that
    /// serves it should still be there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn release(&self) -> std::io::Result<()> {
        for region in &self.regions {
            let all = region.start..region.start + region.len;
            match self.uffd.unregister(all) {
                // It is mapped no longer, or something else is there now, which is not ours.
                Ok(()) | Err(Errno::INVAL | Errno::NOMEM) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        // Whoever began to change the memory before waits until it is read. Bounded: faults on other memory of theirs come without an end.
        let _ = (0..CHANGES).all(|_| self.take_messages());
        Ok(())
    }

    /// Makes all that is missing deadly to touch, rather than waited for without an end: for memory that nobody will serve. Whether that
    /// was possible (Linux 6.6). Answers the messages of changes meanwhile, so no pager may be there.
    pub fn poison(&self) -> bool {
        let mut changes = CHANGES;
        self.regions.iter().all(|region| {
            let end = region.start + region.len;
            let (mut at, mut part) = (region.start, usize::MAX);
            while at < end {
                let placed = self.uffd.poison_part(at..end, region.page_bytes, &mut part);
                at += placed.bytes;
                match placed.error {
                    None => {}
                    // There, or mapped no longer.
                    Some(Errno::EXIST | Errno::NOENT) if placed.bytes == 0 => {
                        at += region.page_bytes;
                    }
                    Some(Errno::EXIST | Errno::NOENT) => {}
                    Some(Errno::AGAIN) if changes > 0 => {
                        changes -= 1;
                        // Whoever changes the memory waits until it is told.
                        if placed.bytes == 0 && !self.take_messages() {
                            std::thread::yield_now();
                        }
                    }
                    Some(_) => return false,
                }
            }
            true
        })
    }

    /// Reads messages; whether there were any.
    fn take_messages(&self) -> bool {
        let mut messages: Messages<16> = Messages::new();
        let read = self.uffd.read(&mut messages);
        // A descriptor in a message is closed here.
        read.is_ok_and(|read| read.map(drop).count() > 0)
    }
}
