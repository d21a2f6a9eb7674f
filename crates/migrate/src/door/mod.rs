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

/// Longer lines are nobody's.
const LINE_MAX: u64 = 64 << 10;

fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("amdahl-migrate/{pid}"))
}
