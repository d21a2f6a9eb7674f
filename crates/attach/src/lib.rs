#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]

mod error;
pub mod maps;
// Elsewhere it says that it is not there.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports))]
mod stopped;
mod uffd;

use std::os::fd::{AsFd, OwnedFd};

use amdahl_pager::{HandedOver, Support};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

pub use error::Error;
use maps::Place;
use stopped::Stopped;

/// Memory of another program that arrives on demand from now on: for whoever serves it, by
/// [`Builder::handed_over`](amdahl_pager::Builder::handed_over) or by [`send`](amdahl_pager::handoff::send) to who does.
#[derive(Debug)]
pub struct Attached {
    /// The program's userfaultfd, of which it keeps a descriptor of its own.
    pub descriptor: OwnedFd,
    /// What is registered with it.
    pub regions: Vec<HandedOver>,
}

/// Takes the memory at `places` out of a program, so that what they hold is to be fetched: whoever touches it waits until somebody serves
/// it. All threads of the program stand still meanwhile, which is some milliseconds, and the time that the kernel takes to free the memory.
///
/// What was there is lost, unless there is an error. The places are of one kind: memory without a file, or shared memory of a memfd, `/dev/shm` or another tmpfs.
///
/// # Errors
/// Any [`Error`]: the program goes on as before, on its own memory; but for [`Error::Discarded`], after which parts of the places are zeros.
pub fn attach(pid: u32, places: &[Place]) -> Result<Attached, Error> {
    let mut parts = attach_in_parts(pid, places, 1)?;
    parts.pop().ok_or(Error::Nothing)
}

/// The same with several userfaultfds, each for a part of the memory, of whole blocks of 2 MiB and about as many bytes: each can be served by itself, and who waits for one part's
/// reader does not wait for another's. Fewer parts where there is less memory, or 0 is asked for.
///
/// # Errors
/// As [`attach`].
pub fn attach_in_parts(pid: u32, places: &[Place], parts: usize) -> Result<Vec<Attached>, Error> {
    if places.is_empty() {
        return Err(Error::Nothing);
    }
    for (nth, place) in places.iter().enumerate() {
        // Given up after it was registered, it would wait for somebody who reads of that: nobody does yet.
        let meets = |other: &Place| {
            other.start < place.start.saturating_add(place.len)
                && place.start < other.start.saturating_add(other.len)
        };
        if places[..nth].iter().any(meets) {
            return Err(Error::Twice { start: place.start });
        }
    }
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let id = id.ok_or(Error::Gone { pid })?;
    let pidfd = pidfd_open(id, PidfdFlags::empty()).map_err(|errno| match errno {
        Errno::SRCH => Error::Gone { pid },
        errno => error::system("pidfd_open", errno),
    })?;
    let mut program = Stopped::all_of(pid)?;
    // Threads stand still, but other processes may have it mapped, too, and who looks at it there is not stopped by any of this.
    let mut numbers = Vec::new();
    let attached = maps::in_parts(places, parts)
        .into_iter()
        .map(|places| {
            let number = program.userfaultfd()?;
            numbers.push(number);
            let taken = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty());
            let descriptor = taken.map_err(|errno| error::system("pidfd_getfd", errno))?;
            uffd::agree(descriptor.as_fd(), Support::probe().features)?;
            Ok((descriptor, places))
        })
        .collect::<Result<Vec<(OwnedFd, Vec<Place>)>, Error>>()
        .and_then(|parts| fill(&mut program, parts));
    if attached.is_err() {
        // Without them nothing is registered.
        for number in numbers {
            let _ = program.call(libc::SYS_close, [number as u64, 0, 0]);
        }
    }
    attached
}

/// Registers the places and gives up what they hold, in an order in which what can fail comes first.
fn fill(program: &mut Stopped, parts: Vec<(OwnedFd, Vec<Place>)>) -> Result<Vec<Attached>, Error> {
    let each = || {
        parts
            .iter()
            .flat_map(|(descriptor, places)| places.iter().map(|place| (descriptor.as_fd(), place)))
    };
    for (descriptor, place) in each() {
        uffd::register(descriptor, place)?;
    }
    // Registered memory is given up with a message that somebody has to read; nobody does yet.
    for (descriptor, place) in each() {
        uffd::unregister(descriptor, place)?;
    }
    let mut is_changed = false;
    let done = each().try_for_each(|(descriptor, place)| {
        let advice = match place.is_shared {
            true => libc::MADV_REMOVE,
            false => libc::MADV_DONTNEED,
        };
        let (start, len) = (place.start as u64, place.len as u64);
        program.call(libc::SYS_madvise, [start, len, advice as u64])?;
        is_changed = true;
        uffd::register(descriptor, place)
    });
    match done {
        Ok(()) => Ok(parts
            .into_iter()
            .map(|(descriptor, places)| Attached {
                descriptor,
                regions: places.iter().map(Place::region).collect(),
            })
            .collect()),
        Err(why) if is_changed => Err(Error::Discarded(Box::new(why))),
        Err(why) => Err(why),
    }
}
