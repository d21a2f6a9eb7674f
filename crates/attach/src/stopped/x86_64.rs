//! Registers of a thread that stands still.

use std::mem::MaybeUninit;

use crate::Error;
use crate::error::system;

/// All that a thread's code can see.
#[derive(Clone, Copy, Debug)]
pub struct Registers(libc::user_regs_struct);

impl Registers {
    pub fn of(tid: i32) -> Result<Registers, Error> {
        let mut registers = MaybeUninit::<libc::user_regs_struct>::uninit();
        let to = registers.as_mut_ptr().expose_provenance();
        super::ptrace(libc::PTRACE_GETREGS, tid, 0, to)
            .map_err(|errno| system("PTRACE_GETREGS", errno))?;
        // SAFETY: the kernel has written all of it.
        Ok(Registers(unsafe { registers.assume_init() }))
    }

    pub fn set(&self, tid: i32) -> Result<(), Error> {
        let from = (&raw const self.0).expose_provenance();
        super::ptrace(libc::PTRACE_SETREGS, tid, 0, from)
            .map_err(|errno| system("PTRACE_SETREGS", errno))
    }

    /// The same, about to make a system call by the instruction at `code`.
    pub fn calling(&self, code: u64, number: libc::c_long, [a, b, c, d]: [u64; 4]) -> Registers {
        let mut registers = self.0;
        registers.rip = code;
        registers.rax = number as u64;
        // No system call is to begin anew before that.
        registers.orig_rax = u64::MAX;
        (registers.rdi, registers.rsi, registers.rdx, registers.r10) = (a, b, c, d);
        Registers(registers)
    }

    /// What a system call has given.
    pub fn result(&self) -> u64 {
        self.0.rax
    }

    pub fn stack(&self) -> u64 {
        self.0.rsp
    }
}
