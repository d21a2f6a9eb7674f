//! What is agreed on with the kernel about the program's userfaultfd.

use std::os::fd::BorrowedFd;

use amdahl_pager::Features;
use linux_raw_sys::general as raw;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use crate::Error;
use crate::error::system;
use crate::maps::Place;

const GROUP: u8 = raw::USERFAULTFD_IOC as u8;
const API: Opcode = opcode::read_write::<raw::uffdio_api>(GROUP, raw::_UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<raw::uffdio_register>(GROUP, raw::_UFFDIO_REGISTER as u8);
const UNREGISTER: Opcode = opcode::read::<raw::uffdio_range>(GROUP, raw::_UFFDIO_UNREGISTER as u8);

/// Agrees on what the pager is to be told, as far as the kernel can.
pub fn agree(descriptor: BorrowedFd<'_>, there: Features) -> Result<(), Error> {
    // What the program does to its memory, so that no zeros come where content should be, nor content where zeros should.
    let wanted = Features::MISSING_SHMEM
        .or(Features::MISSING_HUGETLBFS)
        .or(Features::EVENT_REMOVE)
        .or(Features::EVENT_UNMAP)
        .or(Features::EVENT_REMAP)
        .or(Features::POISON)
        .or(Features::THREAD_ID)
        .and(there);
    // Children need a privilege of who asks.
    let with_children = wanted.or(Features::EVENT_FORK.and(there));
    let agreed = match ask(descriptor, with_children) {
        Err(Errno::PERM) => ask(descriptor, wanted),
        agreed => agreed,
    };
    agreed.map_err(|errno| system("UFFDIO_API", errno))
}

fn ask(descriptor: BorrowedFd<'_>, features: Features) -> Result<(), Errno> {
    let mut api = raw::uffdio_api {
        api: raw::UFFD_API.into(),
        features: features.0,
        ioctls: 0,
    };
    // SAFETY: the opcode takes this structure.
    unsafe { ioctl(descriptor, Updater::<API, _>::new(&mut api)) }
}

fn range(place: &Place) -> raw::uffdio_range {
    raw::uffdio_range {
        start: place.start as u64,
        len: place.len as u64,
    }
}

/// Has missing pages told from now on.
pub fn register(descriptor: BorrowedFd<'_>, place: &Place) -> Result<(), Error> {
    let mut register = raw::uffdio_register {
        range: range(place),
        mode: raw::UFFDIO_REGISTER_MODE_MISSING.into(),
        ioctls: 0,
    };
    // SAFETY: the opcode takes this structure; the memory is another program's, whose threads wait where pages are missing.
    let done = unsafe { ioctl(descriptor, Updater::<REGISTER, _>::new(&mut register)) };
    done.map_err(|errno| match errno {
        Errno::INVAL | Errno::BUSY | Errno::PERM => Error::Kind { start: place.start },
        errno => system("UFFDIO_REGISTER", errno),
    })
}

/// Ends that.
pub fn unregister(descriptor: BorrowedFd<'_>, place: &Place) -> Result<(), Error> {
    let mut range = range(place);
    // SAFETY: the opcode takes this structure.
    unsafe { ioctl(descriptor, Updater::<UNREGISTER, _>::new(&mut range)) }
        .map_err(|errno| system("UFFDIO_UNREGISTER", errno))
}
