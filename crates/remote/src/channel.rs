//! A connection that never blocks, with TLS or without.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;

/// Bytes that are made ready for the kernel at once without TLS, where nothing else gathers them.
const GATHERED: usize = 64 << 10;

/// IPTOS_LOWDELAY: RFC 1349, and what Linux makes a packet of the first band of.
const LOW_DELAY: u8 = 0x10;

/// A connection.
#[derive(Debug)]
pub struct Channel {
    socket: TcpStream,
    tls: Option<Box<rustls::Connection>>,
    /// Without TLS: what the kernel has not taken yet.
    unsent: Vec<u8>,
    sent: usize,
}

fn would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

fn ended() -> io::Error {
    io::Error::new(
        ErrorKind::UnexpectedEof,
        "the other side closed the connection",
    )
}

impl Channel {
    /// Of a connected socket, and TLS on it if it is to be used.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(socket: TcpStream, tls: Option<rustls::Connection>) -> io::Result<Channel> {
        socket.set_nonblocking(true)?;
        // A request is one small packet that somebody waits for.
        socket.set_nodelay(true)?;
        Ok(Channel {
            socket,
            tls: tls.map(Box::new),
            unsent: Vec::new(),
            sent: 0,
        })
    }

    /// Says whether what is sent is what somebody waits for: it is marked for low delay then, and queues of this host (`pfifo_fast`, `prio`) and routers that look at
    /// that let it pass others. A connection that is full is behind itself alone, and a packet that a full queue loses is sent again after 0.2 s. What cannot be marked is not.
    pub fn hurry(&self, hurries: bool) {
        let mark = if hurries { LOW_DELAY } else { 0 };
        let (v4, v6) = (
            sockopt::set_ip_tos(&self.socket, mark),
            sockopt::set_ipv6_tclass(&self.socket, mark.into()),
        );
        let _ = (v4, v6);
    }

    /// Something is there that the kernel has not taken.
    pub fn wants_write(&self) -> bool {
        match &self.tls {
            Some(tls) => tls.wants_write(),
            None => self.sent < self.unsent.len(),
        }
    }

    /// Reads what is there: `None` when that is nothing now.
    ///
    /// # Errors
    /// What the system or TLS says; [`ErrorKind::UnexpectedEof`] when the other side has closed.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(tls) = &mut self.tls else {
            return match would_block(self.socket.read(into))? {
                Some(0) => Err(ended()),
                read => Ok(read),
            };
        };
        loop {
            if let Some(read) = would_block(tls.reader().read(into))? {
                return if read == 0 {
                    Err(ended())
                } else {
                    Ok(Some(read))
                };
            }
            match would_block(tls.read_tls(&mut self.socket))? {
                None => return Ok(None),
                Some(0) => return Err(ended()),
                Some(_) => {}
            }
            if let Err(error) = tls.process_new_packets() {
                // What TLS has to say to the other side about it, if it can be said at once.
                let _ = tls.write_tls(&mut self.socket);
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
        }
    }

    /// Takes what there is room for, and sends what the kernel takes. Returns how many bytes were taken.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let taken = match &mut self.tls {
            Some(tls) => tls.writer().write(from)?,
            None if self.unsent.len() >= GATHERED => 0,
            None => {
                let taken = from.len().min(GATHERED);
                self.unsent.extend_from_slice(&from[..taken]);
                taken
            }
        };
        Ok(taken)
    }

    /// Sends what the kernel takes; whether that was anything.
    ///
    /// # Errors
    /// What the system says.
    pub fn flush(&mut self) -> io::Result<bool> {
        let mut has_sent = false;
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() && would_block(tls.write_tls(&mut self.socket))?.is_some() {
                has_sent = true;
            }
            return Ok(has_sent);
        }
        while self.sent < self.unsent.len() {
            match would_block(self.socket.write(&self.unsent[self.sent..]))? {
                None => return Ok(has_sent),
                Some(sent) => self.sent += sent,
            }
            has_sent = true;
        }
        self.unsent.clear();
        self.sent = 0;
        Ok(has_sent)
    }

    /// Waits until there is something to read, room to write if that is wanted, `event` is signalled or the time is over: then it is false.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(
        &self,
        event: BorrowedFd<'_>,
        reads: bool,
        until: Option<Instant>,
    ) -> io::Result<bool> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, reads);
        flags.set(PollFlags::OUT, self.wants_write());
        let mut fds = [
            PollFd::from_borrowed_fd(self.socket.as_fd(), flags),
            PollFd::from_borrowed_fd(event, PollFlags::IN),
        ];
        let ready = wait_for(&mut fds, until)?;
        // These are told whether they are asked for or not, and again until somebody reads.
        if !reads && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            return Err(ErrorKind::ConnectionReset.into());
        }
        Ok(ready)
    }

    /// Reads all of `into`, or fails when the time is over.
    ///
    /// # Errors
    /// What the system says; [`ErrorKind::TimedOut`].
    pub fn read_all(&mut self, into: &mut [u8], until: Instant) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            self.flush()?;
            match self.read(&mut into[done..])? {
                Some(read) => done += read,
                None => self.wait_alone(PollFlags::IN, until)?,
            }
        }
        Ok(())
    }

    /// Sends all of `from`, or fails when the time is over.
    ///
    /// # Errors
    /// As [`read_all`](Channel::read_all).
    pub fn write_all(&mut self, mut from: &[u8], until: Instant) -> io::Result<()> {
        while !from.is_empty() {
            let taken = self.write(from)?;
            from = &from[taken..];
            self.flush()?;
            if taken == 0 && self.wants_write() {
                self.wait_alone(PollFlags::empty(), until)?;
            }
        }
        Ok(())
    }

    fn wait_alone(&self, mut flags: PollFlags, until: Instant) -> io::Result<()> {
        flags.set(PollFlags::OUT, self.wants_write());
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), flags)];
        match wait_for(&mut fds, Some(until))? {
            true => Ok(()),
            false => Err(ErrorKind::TimedOut.into()),
        }
    }
}

/// Waits for one of `fds`, at most until the time; false when that is over.
pub fn wait_for(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<bool> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    if left == Some(Duration::ZERO) {
        return Ok(false);
    }
    let timeout = left.map(|left| Timespec::try_from(left).expect("less than a century"));
    match poll(fds, timeout.as_ref()) {
        Ok(0) => Ok(false),
        Ok(_) | Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
