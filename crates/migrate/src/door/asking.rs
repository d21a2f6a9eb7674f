//! The side that asks.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use amdahl_pager::handoff::Peer;

use super::message::{News, Request};
use super::{NEWS_MAX, address, system};
use crate::Error;

/// A process was asked to let its memory move. Dropped, that is called off, if it still can be.
#[derive(Debug)]
pub struct Asking {
    pid: u32,
    stream: UnixStream,
    /// What has come of lines.
    read: Vec<u8>,
}

impl Asking {
    /// Asks a process.
    ///
    /// # Errors
    /// [`Error::NoDoor`]: the process is not there, has no door, or the door is somebody else's. [`Error::System`].
    pub fn begin(pid: u32, request: &Request) -> Result<Asking, Error> {
        let none = |why: &'static str| Error::NoDoor { pid, why };
        let stream = address(pid).and_then(|address| UnixStream::connect_addr(&address));
        let stream = stream.map_err(|error| {
            if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
                return none("there is no such process");
            }
            match error.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => none(
                    "it cannot be asked to move: only programs that offer it can (`amdahl pager demo-vm`, or amdahl_migrate::door::Door in a program of yours), in the same network and PID namespace",
                ),
                _ => system("connect")(error),
            }
        })?;
        // Anybody can take a name.
        let peer = Peer::of(&stream).map_err(system("who is asked"))?;
        if peer.pid != Some(pid) {
            return Err(none("another process answers in its name"));
        }
        let mut line = serde_json::to_vec(request).expect("text and numbers");
        line.push(b'\n');
        match (&stream).write_all(&line) {
            // Who turns somebody away does not listen, and says why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            asked => asked.map_err(system("asking"))?,
        }
        Ok(Asking {
            pid,
            stream,
            read: Vec::new(),
        })
    }

    /// What happens next, if anything does within so long. Nothing follows the news that [are the last](News::is_last).
    ///
    /// # Errors
    /// [`Error::NoDoor`]: the process has ended, or says something that is not understood. Where its guest is must be asked at the other side.
    pub fn next(&mut self, within: Duration) -> Result<Option<News>, Error> {
        let none = |why| Error::NoDoor { pid: self.pid, why };
        if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.read.drain(..=end).collect();
            let news = serde_json::from_slice(&line);
            return news
                .map(Some)
                .map_err(|_| none("what it says is not understood: is it of another version?"));
        }
        if self.read.len() > NEWS_MAX {
            return Err(none(
                "what it says is not understood: is it of another version?",
            ));
        }
        self.stream
            .set_read_timeout(Some(within.max(Duration::from_millis(1))))
            .map_err(system("a timeout"))?;
        let mut part = [0; 4096];
        match self.stream.read(&mut part) {
            Ok(0) => Err(none("it has ended, or does not say more")),
            Ok(read) => {
                self.read.extend_from_slice(&part[..read]);
                // What came before has none.
                match part[..read].contains(&b'\n') {
                    true => self.next(within),
                    false => Ok(None),
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(None)
            }
            Err(_) => Err(none("it has ended")),
        }
    }

    /// Calls it off, if that is still possible: the news say which it was.
    pub fn cancel(&mut self) {
        // Who has ended is noticed by `next`.
        let _ = self.stream.write_all(b"cancel\n");
    }
}
