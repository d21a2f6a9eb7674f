//! Files of `/proc` that are read again and again.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// How many files may be kept open. Atomic only so that a poller can move to its thread.
#[derive(Clone, Debug)]
pub(super) struct Room(Arc<AtomicUsize>);

impl Room {
    /// Room for `files`.
    pub(super) fn new(files: usize) -> Room {
        Room(Arc::new(AtomicUsize::new(files)))
    }

    /// As many as the process may open, with plenty left for others.
    pub(super) fn of_process() -> Room {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Room::new(kept(limit))
    }
}

const FILES_MAX: usize = 8192;
/// Of each thread.
const FILES_OF_THREAD: usize = 4;
const LEFT_TO_OTHERS: usize = 256;

/// Files that are kept open where `limit` of them may be open.
fn kept(limit: Option<u64>) -> usize {
    let limit = usize::try_from(limit.unwrap_or(1 << 16)).unwrap_or(1 << 16);
    let room = limit.saturating_sub(LEFT_TO_OTHERS).min(limit / 2);
    room.min(FILES_MAX)
}

/// Threads whose files a [`Poller`](super::Poller) keeps open where `limit` files may be open (`None`: any number). Looking at
/// more of them is dearer, and they are looked at more seldom.
pub fn threads_kept_open(limit: Option<u64>) -> usize {
    kept(limit) / FILES_OF_THREAD
}

/// Files that must be allowed to be open so that those of `threads` are kept open, as far as there are ever so many.
pub fn open_files_for(threads: usize) -> usize {
    let room = threads.saturating_mul(FILES_OF_THREAD).min(FILES_MAX);
    (room + LEFT_TO_OTHERS).max(room * 2)
}

/// A reading that failed although there may be something to read.
pub(super) fn is_unread(why: Errno) -> bool {
    !matches!(
        why,
        Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM
    )
}

/// Readings that failed although there is what was to be read: for want of descriptors or memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// How many.
    pub times: u64,
    /// Why, the first time.
    pub why: Option<Errno>,
}

impl Unread {
    /// Counts a reading that failed, unless that only says that there is nothing any more, or that it is
    /// not for us. Returns whether it was counted.
    pub(super) fn note(&mut self, why: Errno) -> bool {
        let is_unread = is_unread(why);
        if is_unread {
            self.times += 1;
            self.why.get_or_insert(why);
        }
        is_unread
    }

    /// These and `others`.
    pub fn and(self, others: Unread) -> Unread {
        Unread {
            times: self.times + others.times,
            why: self.why.or(others.why),
        }
    }

    /// What `result` gave; [`Unread::note`] takes its error, of the system if it has no number.
    pub(super) fn seen<T>(&mut self, result: std::io::Result<T>) -> Result<T, Errno> {
        result.map_err(|error| {
            let why = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            self.note(why);
            why
        })
    }
}

/// A file that is kept open if there is room, and opened for each reading if not.
#[derive(Debug)]
pub(super) struct Kept {
    path: String,
    open: Option<OwnedFd>,
    room: Room,
}

impl Kept {
    pub(super) fn new(path: String, room: &Room) -> Kept {
        Kept {
            path,
            open: None,
            room: room.clone(),
        }
    }

    /// The file as it is now, as much as fits into `buffer`.
    pub(super) fn read<'a>(&mut self, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        if self.open.is_none() {
            let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
            let take = |left: usize| left.checked_sub(1);
            if self.room.0.fetch_update(Relaxed, Relaxed, take).is_err() {
                let len = rustix::io::pread(&file, &mut *buffer, 0)?;
                return Ok(&buffer[..len]);
            }
            self.open = Some(file);
        }
        let Some(file) = &self.open else {
            return Err(Errno::BADF);
        };
        let len = rustix::io::pread(file, &mut *buffer, 0)?;
        Ok(&buffer[..len])
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.open.is_some() {
            self.room.0.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_with_and_without_room() {
        let room = Room::new(1);
        let mut buffer = [0; 64];
        let mut first = Kept::new("/proc/self/comm".to_owned(), &room);
        let mut second = Kept::new("/proc/self/comm".to_owned(), &room);
        for _ in 0..2 {
            let one = first.read(&mut buffer).expect("readable").to_vec();
            assert_eq!(second.read(&mut buffer).expect("readable"), one);
        }
        assert!(first.open.is_some() && second.open.is_none());
        drop(first);
        assert!(second.read(&mut buffer).is_ok() && second.open.is_some());
        assert_eq!(
            Kept::new("/proc/self/nothing".to_owned(), &room).read(&mut buffer),
            Err(Errno::NOENT)
        );
    }
}
