//! The tests of a program once more, in a process that is registered for restartable sequences in another way.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{env, io};

/// Says in such a process how it should be registered: `own` or `none`.
pub const EXPECTED: &str = "AMDAHL_SPREAD_REGISTRATION";

/// Where the C library leaves it to us, like musl and glibc before 2.35.
pub fn unregistered() {
    again("own", |command| {
        command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    });
}

/// Where there are no restartable sequences.
pub fn refused() {
    again("none", |command| {
        // SAFETY: makes two system calls and allocates nothing.
        unsafe { command.pre_exec(refuse_rseq) };
    });
}

fn again(expected: &str, prepare: impl FnOnce(&mut Command)) {
    if env::var_os(EXPECTED).is_some() {
        return;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(EXPECTED, expected);
    prepare(&mut command);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("SKIPPED: {expected}: a process cannot be prepared for it here: {error}");
            return;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{expected}: {text}");
}

/// As a sandbox does that does not know the system call: it fails with ENOSYS, for this process and what it becomes.
fn refuse_rseq() -> io::Result<()> {
    let instruction = |code: u32, k: u32, jf: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let number = libc::SYS_rseq as u32;
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 1),
        instruction(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
            0,
        ),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: `filter` describes `program`, which lives over the call; the other arguments are plain numbers.
    let result = unsafe {
        let first = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        match first {
            0 => libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter),
            _ => first,
        }
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
