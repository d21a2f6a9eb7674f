//! Memory of another process as a source.

use std::fs::File;
use std::sync::Arc;

use rustix::io::{Errno, pread};

use super::{Source, SourceError, there};

/// Memory of another process, which stands still meanwhile: what it changes arrives in either state.
///
/// Needs `/proc` and the right to trace the process (the same user and `kernel.yama.ptrace_scope`, or `CAP_SYS_PTRACE`), both when it is made.
/// The memory is that of then: if the process ends or becomes another program, it is [gone](SourceError::Gone), whatever has its number or its
/// addresses afterwards.
#[derive(Clone, Debug)]
pub struct ProcessSource {
    /// Of the process's memory, which this keeps apart from any that comes later; or why there is none.
    memory: Result<Arc<File>, Errno>,
    start: u64,
    len: u64,
}

impl ProcessSource {
    /// `len` bytes from address `start` of process `pid`. If it cannot be read, each read says why.
    pub fn new(pid: u32, start: u64, len: u64) -> ProcessSource {
        let memory = File::open(format!("/proc/{pid}/mem"));
        let memory = memory
            .map(Arc::new)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        ProcessSource { memory, start, len }
    }
}

impl Source for ProcessSource {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let memory = match &self.memory {
            Ok(memory) => memory,
            Err(Errno::NOENT | Errno::SRCH) => {
                return Err(SourceError::Gone("there is no such process"));
            }
            Err(errno) => {
                return Err(SourceError::Io {
                    operation: "open(/proc/PID/mem)",
                    errno: *errno,
                });
            }
        };
        let into = there(self.len, offset, into)?;
        let mut done = 0;
        while done < into.len() {
            let address = self.start.wrapping_add(offset + done as u64);
            match pread(memory, &mut into[done..], address) {
                Ok(0) => return Err(SourceError::Gone("the process has ended")),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(SourceError::Io {
                        operation: "pread(/proc/PID/mem)",
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
