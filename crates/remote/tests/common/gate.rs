//! Stands in the way and can be shut: for a while, or for good. What passes is not looked at.
#![allow(dead_code)] // Each test binary uses a part.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// How it is shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shut {
    /// Nothing passes and nothing ends, as where the way is gone, or who is behind it is stopped. What was on its way arrives afterwards.
    Silent,
    /// All connections end, and none is let in.
    Refusing,
}

/// When, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub how: Shut,
    /// After so many bytes from behind it, exactly.
    pub after: u64,
    /// `None`: for good.
    pub lasts: Option<Duration>,
}

#[derive(Default)]
struct State {
    cuts: Vec<Cut>,
    shut: Option<(Shut, Option<Instant>)>,
    passed: u64,
    happened: u64,
    is_ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Where clients connect.
pub struct Gate {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

/// How often it is looked at whether something has changed.
const LOOK: Duration = Duration::from_millis(20);

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Whether it is shut now; it may be opened by that.
    fn shut(state: &mut State) -> Option<Shut> {
        if let Some((_, Some(until))) = state.shut
            && until <= Instant::now()
        {
            state.shut = None;
        }
        state.shut.map(|(how, _)| how)
    }

    /// Waits while nothing passes. Whether it goes on.
    fn pass(&self) -> bool {
        let mut state = self.state();
        while !state.is_ended {
            match Shared::shut(&mut state) {
                None => return true,
                Some(Shut::Refusing) => return false,
                Some(Shut::Silent) => {
                    state = self.changed.wait_timeout(state, LOOK).unwrap().0;
                }
            }
        }
        false
    }

    /// Of so many bytes from behind, how many pass before it is shut.
    fn passes(&self, bytes: usize) -> usize {
        let mut state = self.state();
        let end = state.passed + bytes as u64;
        let next = state.cuts.last().copied().filter(|cut| cut.after < end);
        let Some(cut) = next else {
            state.passed = end;
            return bytes;
        };
        let passes = cut.after.saturating_sub(state.passed);
        state.passed += passes;
        state.cuts.pop();
        state.happened += 1;
        state.shut = Some((cut.how, cut.lasts.map(|lasts| Instant::now() + lasts)));
        passes as usize
    }

    fn copy(&self, from: &mut TcpStream, to: &mut TcpStream, is_back: bool) -> std::io::Result<()> {
        let mut bytes = [0; 16 << 10];
        from.set_read_timeout(Some(LOOK))?;
        loop {
            if !self.pass() {
                return Ok(());
            }
            let read = match from.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut rest = &bytes[..read];
            while !rest.is_empty() {
                if !self.pass() {
                    return Ok(());
                }
                let passes = match is_back {
                    true => self.passes(rest.len()),
                    false => rest.len(),
                };
                to.write_all(&rest[..passes])?;
                rest = &rest[passes..];
            }
        }
    }
}

impl Gate {
    /// In front of `to`.
    pub fn new(at: &str, to: SocketAddr) -> Gate {
        Gate::of(TcpListener::bind(at).unwrap(), to)
    }

    /// The same of a socket that listens already.
    pub fn of(listener: TcpListener, to: SocketAddr) -> Gate {
        let gate = Gate {
            address: listener.local_addr().unwrap(),
            shared: Arc::default(),
        };
        let shared = gate.shared.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                if shared.state().is_ended {
                    return;
                }
                let (client, shared) = (client.unwrap(), shared.clone());
                thread::spawn(move || {
                    if !shared.pass() {
                        return;
                    }
                    let Ok(server) = TcpStream::connect(to) else {
                        return;
                    };
                    for socket in [&client, &server] {
                        socket.set_nodelay(true).unwrap();
                    }
                    let both = |one: &TcpStream| one.try_clone().unwrap();
                    let (mut from, mut to) = (both(&client), both(&server));
                    let there = shared.clone();
                    thread::spawn(move || {
                        let _ = there.copy(&mut from, &mut to, false);
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                    let (mut from, mut to) = (server, client);
                    let _ = shared.copy(&mut from, &mut to, true);
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        });
        gate
    }

    /// Is cut then; those that have to happen last come first.
    pub fn cut(&self, cuts: impl IntoIterator<Item = Cut>) {
        self.shared.state().cuts.extend(cuts);
    }

    /// Is shut from now on.
    pub fn shut(&self, how: Shut) {
        self.shared.state().shut = Some((how, None));
    }

    pub fn open(&self) {
        self.shared.state().shut = None;
        self.shared.changed.notify_all();
    }

    /// Bytes that have come from behind.
    pub fn passed(&self) -> u64 {
        self.shared.state().passed
    }

    /// Cuts that have happened.
    pub fn happened(&self) -> u64 {
        self.shared.state().happened
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.state().is_ended = true;
        self.shared.changed.notify_all();
        let _ = TcpStream::connect(self.address);
    }
}
