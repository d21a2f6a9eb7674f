//! Signals as they were when this process began. Rust's start ignores SIGPIPE, and its `exec` has it end the program and
//! blocks nothing, whatever was there before: services are often started with it ignored.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, mem, ptr};

static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);

/// Called before Rust's start.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: an all-zero sigaction is valid, and the call writes no more than that.
    let ignores = unsafe {
        let mut was: libc::sigaction = mem::zeroed();
        libc::sigaction(libc::SIGPIPE, ptr::null(), &raw mut was) == 0
            && was.sa_sigaction == libc::SIG_IGN
    };
    IGNORES_PIPE.store(ignores, Ordering::Relaxed);
}

/// Becomes the program, which finds signals as this process did. Returns only where that fails.
pub fn exec(command: &mut Command) -> io::Error {
    let ignores_pipe = IGNORES_PIPE.load(Ordering::Relaxed);
    // SAFETY: the mask of this thread, which is the first one and has not changed it, is written to `blocked`. The closure
    // makes system calls on its own copies alone.
    unsafe {
        let mut blocked: libc::sigset_t = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &raw mut blocked);
        command.pre_exec(move || {
            if ignores_pipe {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, ptr::null_mut());
            Ok(())
        });
    }
    command.exec()
}
