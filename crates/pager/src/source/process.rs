//! Memory of another process as a source.

use rustix::io::Errno;

use super::{Source, SourceError, there};
use crate::sys::memory::read_process;

/// Memory of another process, which stands still meanwhile: what it changes arrives in either state.
///
/// Needs the right to trace the process (the same user and `kernel.yama.ptrace_scope`, or `CAP_SYS_PTRACE`).
#[derive(Clone, Copy, Debug)]
pub struct ProcessSource {
    pid: i32,
    start: u64,
    len: u64,
}

impl ProcessSource {
    /// `len` bytes from address `start` of process `pid`.
    pub fn new(pid: u32, start: u64, len: u64) -> ProcessSource {
        ProcessSource {
            pid: pid as i32,
            start,
            len,
        }
    }
}

impl Source for ProcessSource {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let into = there(self.len, offset, into)?;
        let mut done = 0;
        while done < into.len() {
            let address = self.start.wrapping_add(offset + done as u64);
            match read_process(self.pid, address, &mut into[done..]) {
                Ok(0) => return Err(SourceError::Gone("the process ends here")),
                Ok(read) => done += read,
                Err(Errno::SRCH) => return Err(SourceError::Gone("there is no such process")),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(SourceError::Io {
                        operation: "process_vm_readv",
                        errno,
                    });
                }
            }
        }
        Ok(())
    }

    fn is_signal_safe(&self) -> bool {
        true
    }
}
