//! Wakes a thread that waits for a connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Rings until it is answered.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A new one.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Wakes the thread that waits.
    pub fn ring(&self) {
        // It can only fail where 2^64 - 2 rings have not been heard.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// What was rung until now is heard.
    pub fn hear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
