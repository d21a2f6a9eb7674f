//! A process that ends a VM when we end without a word: the VM cannot have its memory then, and nobody else knows what it makes of that.
//!
//! It is this same executable, called [`NAME`]; its standard input is a pipe from us, its standard output the VMM's pidfd.

use std::io::{PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};

use amdahl_pager::handoff::Peer;
use rustix::process::{Signal, pidfd_send_signal};

/// What the executable is called when it is one.
const NAME: &str = "amdahl-vm-guard";
/// Says that the VM needs nobody any more.
const OVER: u8 = b'.';

/// One that watches.
pub struct Guard {
    word: PipeWriter,
    process: Child,
}

impl Guard {
    /// For this VMM, from now on.
    pub fn start(vmm: &Peer) -> Result<Guard, String> {
        let Some(pidfd) = vmm.pidfd() else {
            return Err(
                "this kernel does not tell processes apart for sure (Linux 5.3)".to_owned(),
            );
        };
        let start = || -> std::io::Result<Guard> {
            let (heard, word) = pipe()?;
            let mut command = Command::new("/proc/self/exe");
            command
                .arg0(NAME)
                .stdin(heard)
                .stdout(pidfd.try_clone_to_owned()?)
                // What ends us from a terminal must not end it.
                .process_group(0);
            let process = command.spawn()?;
            Ok(Guard { word, process })
        };
        start().map_err(|error| format!("starting a process that watches: {error}"))
    }

    /// The VM needs nobody any more, or is nobody's yet.
    pub fn over(mut self) {
        let _ = self.word.write_all(&[OVER]);
        drop(self.word);
        let _ = self.process.wait();
    }
}

/// What it does, if this process is one.
pub fn main() -> Option<ExitCode> {
    if std::env::args_os().next()? != NAME {
        return None;
    }
    let mut heard = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut heard);
    if read.is_ok() && heard == [OVER] {
        return Some(ExitCode::SUCCESS);
    }
    Some(end(std::io::stdout().as_fd()))
}

fn end(vmm: BorrowedFd<'_>) -> ExitCode {
    let (is_ended, said) = match pidfd_send_signal(vmm, Signal::KILL) {
        Ok(()) => (true, "is ended"),
        Err(rustix::io::Errno::SRCH) => return ExitCode::SUCCESS,
        Err(_) => (false, "cannot be ended here"),
    };
    let _ = writeln!(
        std::io::stderr(),
        "amdahl: pager offload was killed: its VM, which needs it, {said}"
    );
    match is_ended {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
