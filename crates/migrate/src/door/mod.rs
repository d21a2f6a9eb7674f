//! A door: where a process whose memory can move is asked to let it move.
//!
//! The process keeps the guest, the memory and the connection to the other side; who asks only says where to and how, is told what
//! happens, and may call it off as long as that is possible. The socket has a name of its process in the kernel's abstract namespace, so
//! nothing is left behind, and belongs to the network namespace that the process is in. Both sides ask the kernel who the other is:
//! only the user of the process, and root, are heard; and only the process that was meant is believed.
//!
//! One line of JSON says what is wanted ([`Request`]); a line `cancel`, or the end of the connection, calls it off; lines of JSON tell what
//! happens ([`News`]).

mod asking;
mod message;
mod serving;

pub use asking::Asking;
pub use message::{Figures, Files, News, Request, RoundFigures};
pub use serving::{Door, Visit};

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

use rustix::io::Errno;

use crate::Error;

/// Longer lines are nobody's.
const LINE_MAX: u64 = 64 << 10;
/// The same of what is told, the last of which has all rounds, some 100 bytes each.
const NEWS_MAX: usize = 16 << 20;

fn system(operation: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::System {
        operation,
        errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    }
}

fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("amdahl-migrate/{pid}"))
}
