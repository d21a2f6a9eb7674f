//! What the program gets as its standard input: the same in every run.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Where a program's standard input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// There is none: it is at its end at once.
    Nothing,
    /// Our own is a file or device: opened again, and read from where we found it.
    Again {
        /// That place, in bytes.
        from: u64,
    },
    /// Our own is a pipe or socket, whose content is gone once it is read.
    Once,
}

impl Input {
    /// What our own standard input can be to a program.
    pub fn of_ours() -> Input {
        Input::of(io::stdin().as_fd())
    }

    fn of(fd: BorrowedFd<'_>) -> Input {
        let Ok(mut file) = fd.try_clone_to_owned().map(File::from) else {
            return Input::Nothing;
        };
        let Ok(kind) = file.metadata().map(|about| about.file_type()) else {
            return Input::Nothing;
        };
        // A terminal belongs to its foreground processes: whoever else reads from it is stopped.
        if rustix::termios::isatty(fd) {
            Input::Nothing
        } else if kind.is_fifo() || kind.is_socket() {
            Input::Once
        } else if kind.is_file() || kind.is_char_device() || kind.is_block_device() {
            // Devices that cannot be sought have no place.
            let from = file.stream_position().unwrap_or(0);
            Input::Again { from }
        } else {
            Input::Nothing
        }
    }

    /// The same for a program that runs several times, and whether content is lost by that.
    pub fn for_several_runs(self) -> (Input, bool) {
        match self {
            Input::Once => (Input::Nothing, has_content(io::stdin().as_fd())),
            other => (other, false),
        }
    }

    /// Opens it for one run.
    pub(super) fn open(self) -> io::Result<Stdio> {
        match self {
            Input::Nothing => Ok(Stdio::null()),
            Input::Once => Ok(io::stdin().as_fd().try_clone_to_owned()?.into()),
            Input::Again { from } => {
                // Not a copy of our descriptor: that would go on where the run before stopped.
                let mut file = File::open("/proc/self/fd/0")?;
                if from > 0 {
                    file.seek(SeekFrom::Start(from))?;
                }
                Ok(file.into())
            }
        }
    }
}

/// There is something to read, or whoever could write it is still there.
fn has_content(pipe: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&pipe, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let _ = poll(&mut polled, Some(&now));
    !polled[0].revents().contains(PollFlags::HUP)
        || rustix::io::ioctl_fionread(pipe).is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn files_and_devices_can_be_opened_again_and_pipes_cannot() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"head, then the rest").expect("written");
        file.seek(SeekFrom::Start(4)).expect("sought");
        assert_eq!(Input::of(file.as_fd()), Input::Again { from: 4 });
        let zeros = File::open("/dev/zero").expect("a device");
        assert_eq!(Input::of(zeros.as_fd()), Input::Again { from: 0 });
        let folder = File::open("/").expect("a folder");
        assert_eq!(Input::of(folder.as_fd()), Input::Nothing);
        let (read, _write) = io::pipe().expect("a pipe");
        assert_eq!(Input::of(read.as_fd()), Input::Once);
    }

    #[test]
    fn a_pipe_at_its_end_loses_nothing() {
        let (mut read, mut write) = io::pipe().expect("a pipe");
        assert!(has_content(read.as_fd()), "somebody may still write");
        write.write_all(b"x").expect("written");
        drop(write);
        assert!(has_content(read.as_fd()), "something was written");
        let mut text = String::new();
        read.read_to_string(&mut text).expect("read");
        assert!(!has_content(read.as_fd()));
    }
}
