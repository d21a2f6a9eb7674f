//! Images and memory from standard input and to standard output, which may be pipes.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use amdahl_image::Store;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// `-` as typed.
pub fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Standard input as a file of its own. Refuses a terminal, which nobody types memory into.
pub fn input() -> Result<File, Failure> {
    if io::stdin().is_terminal() {
        return Err(Failure::usage(
            "standard input is a terminal; give it a file or a pipe".to_owned(),
        ));
    }
    duplicate(rustix::stdio::stdin())
}

/// Standard output as a file of its own. Refuses a terminal, which shows no binary data.
pub fn output() -> Result<File, Failure> {
    if io::stdout().is_terminal() {
        return Err(Failure::usage(
            "standard output is a terminal; give it a file or a pipe".to_owned(),
        ));
    }
    duplicate(rustix::stdio::stdout())
}

fn duplicate(fd: rustix::fd::BorrowedFd<'_>) -> Result<File, Failure> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
        .map(File::from)
        .map_err(|error| Failure::result(format!("standard input or output: {error}")))
}

/// A stream that ends with an error when the user wants to stop, also while nothing comes.
pub struct Interruptible {
    file: File,
    interrupt: Interrupt,
}

impl Interruptible {
    /// Reads `file`.
    pub fn new(file: File, interrupt: &Interrupt) -> Interruptible {
        let interrupt = interrupt.clone();
        Interruptible { file, interrupt }
    }
}

impl Read for Interruptible {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.interrupt.asked() {
                return Err(io::Error::other("interrupted"));
            }
            // A signal ends the wait; one that came just before it is seen after this.
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: 200_000_000,
            };
            let mut ready = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut ready, Some(&wait)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return self.file.read(buf),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// An image on standard input as a path that can be opened; the file must live as long.
pub fn image(interrupt: &Interrupt) -> Result<(File, PathBuf), Failure> {
    let input = input()?;
    let failed = |error: io::Error| Failure::result(format!("standard input: {error}"));
    let is_file = input.metadata().map_err(failed)?.is_file();
    let file = match is_file {
        true => input,
        false => {
            // The index is at the end; pages are read at any place.
            let mut file = tempfile::tempfile().map_err(failed)?;
            io::copy(&mut Interruptible::new(input, interrupt), &mut file).map_err(failed)?;
            file
        }
    };
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok((file, path))
}

/// Copies a whole file to standard output.
pub fn copy_out(file: &File, interrupt: &Interrupt) -> io::Result<()> {
    let mut out = output().map_err(|failure| io::Error::other(failure.message))?;
    let len = Store::len(file)?;
    let mut part = vec![0; 1 << 20];
    let mut at = 0;
    while at < len {
        if interrupt.asked() {
            return Err(io::Error::other("interrupted"));
        }
        let part = &mut part[..(len - at).min(1 << 20) as usize];
        file.read_exact_at(part, at)?;
        io::Write::write_all(&mut out, part)?;
        at += part.len() as u64;
    }
    Ok(())
}
