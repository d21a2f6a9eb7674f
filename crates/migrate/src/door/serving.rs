//! The side of the process whose memory moves.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_pager::Mapping;
use amdahl_pager::handoff::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::message::{Figures, News, Request};
use super::{LINE_MAX, address, system};
use crate::way::Trust;
use crate::{Departure, DepartureStats, Error, Guest, Redial, Way};

/// Where this process is asked to let its memory move.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
}

/// How long somebody has to say what he wants.
const SAYING: Duration = Duration::from_secs(5);
/// How long who asked may take to hear something; nobody waits for him longer.
const HEARING: Duration = Duration::from_millis(100);

impl Door {
    /// Opens the door of this process. There is one at most; it is gone with the process, or when this is dropped.
    ///
    /// # Errors
    /// [`Error::System`]: there is one already, or somebody else has taken its name.
    pub fn open() -> Result<Door, Error> {
        let bind = || UnixListener::bind_addr(&address(std::process::id())?);
        let listener = bind().map_err(system("the door of this process (a socket)"))?;
        // Who has gone before he was let in is not waited for.
        listener
            .set_nonblocking(true)
            .map_err(system("the door of this process"))?;
        Ok(Door { listener })
    }

    /// Whoever asks next, if somebody does within so long. Who may not ask, or says something else than a [`Request`], is told so and
    /// passed over.
    ///
    /// # Errors
    /// [`Error::System`]: the door is broken.
    pub fn visit(&self, within: Duration) -> Result<Option<Visit>, Error> {
        let begun = Instant::now();
        loop {
            let left = within.saturating_sub(begun.elapsed());
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(
                &mut [PollFd::new(&self.listener, PollFlags::IN)],
                Some(&left),
            ) {
                Ok(0) => return Ok(None),
                // The caller may want to know of the signal.
                Err(Errno::INTR) => return Ok(None),
                Err(errno) => return Err(system("poll")(errno.into())),
                Ok(_) => {}
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Some(visit) = let_in(stream) {
                        return Ok(Some(visit));
                    }
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => return Err(system("accept")(error)),
            }
        }
    }
}

/// Hears what somebody wants.
fn let_in(stream: UnixStream) -> Option<Visit> {
    stream.set_nonblocking(false).ok()?;
    stream.set_write_timeout(Some(HEARING)).ok()?;
    let teller = Teller(Mutex::new(stream.try_clone().ok()));
    let refuse = |why: String| {
        teller.tell(&News::Stayed { why });
        None
    };
    let peer = Peer::of(&stream).ok()?;
    if peer.uid != 0 && peer.uid != rustix::process::geteuid().as_raw() {
        return refuse("another user's process".to_owned());
    }
    let line = match line(&stream) {
        Ok(line) => line,
        Err(error) => return refuse(format!("what is asked did not come: {error}")),
    };
    match Request::of_line(&line) {
        Ok(request) => Some(Visit {
            request,
            stream,
            teller: Arc::new(teller),
            cancel: Arc::default(),
        }),
        Err(why) => refuse(why),
    }
}

/// One line, within the time and room that there are for one.
fn line(stream: &UnixStream) -> io::Result<Vec<u8>> {
    let until = Instant::now() + SAYING;
    let mut line = Vec::new();
    // Byte by byte: what follows is for somebody else.
    let mut byte = [0];
    while (line.len() as u64) < LINE_MAX {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match (&*stream).read(&mut byte) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if byte[0] == b'\n' => {
                stream.set_read_timeout(None)?;
                return Ok(line);
            }
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("it is too long"))
}

/// Tells who asked; one who does not listen is told nothing more.
#[derive(Debug)]
struct Teller(Mutex<Option<UnixStream>>);

impl Teller {
    fn tell(&self, news: &News) {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = serde_json::to_vec(news).expect("text and numbers");
        line.push(b'\n');
        let told = stream.as_mut().map(|stream| stream.write_all(&line));
        if matches!(told, Some(Err(_))) {
            *stream = None;
        }
    }
}

/// Somebody who wants this process's memory to move.
#[derive(Debug)]
pub struct Visit {
    request: Request,
    stream: UnixStream,
    teller: Arc<Teller>,
    cancel: Arc<AtomicBool>,
}

/// Hears nothing more of who asked when it is dropped.
struct Deaf<'a>(&'a UnixStream);

impl Drop for Deaf<'_> {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Read);
    }
}

impl Visit {
    /// What he wants.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Calls it off when it becomes true, as who asked can.
    pub fn cancel(&self) -> Arc<AtomicBool> {
        self.cancel.clone()
    }

    /// Does not do it; why, for people.
    pub fn refuse(self, why: &str) {
        self.teller.tell(&News::Stayed {
            why: why.to_owned(),
        });
    }

    /// Does it: connects to the other side, lets the memory go there, and returns when nothing of it is needed here any more. `with` is what
    /// the request does not say. Who asked can call it off until the switch-over.
    ///
    /// # Safety
    /// That of [`Departure::run`], for as long as this runs.
    ///
    /// # Errors
    /// [`Error::Unknown`]: the guest stands still here; see [`Departed::wait`](crate::Departed::wait). Its pages were served until nobody has been connected for
    /// the timeout. Any other: the guest goes on here, as if nothing had been.
    pub unsafe fn run(
        self,
        with: &Departure,
        memory: &Arc<Mapping>,
        guest: &mut dyn Guest,
    ) -> Result<DepartureStats, Error> {
        let teller = self.teller.clone();
        teller.tell(&News::Begun {
            memory_bytes: memory.len() as u64,
        });
        let moved = thread::scope(|scope| {
            // Also when the guest panics: the thread below is waited for.
            let _end = Deaf(&self.stream);
            let listening = thread::Builder::new()
                .name("migrate-door".to_owned())
                .spawn_scoped(scope, || until_called_off(&self.stream, &self.cancel));
            match listening {
                // SAFETY: by the caller.
                Ok(_) => unsafe { self.go(with, memory, guest) },
                Err(error) => Err(system("a thread")(error)),
            }
        });
        teller.tell(&match &moved {
            Ok(stats) => News::Moved {
                figures: Figures::from(stats),
            },
            Err(error @ Error::Unknown(_)) => News::Unknown {
                why: error.to_string(),
            },
            Err(error) => News::Stayed {
                why: error.to_string(),
            },
        });
        moved
    }

    /// # Safety
    /// As `run`.
    unsafe fn go(
        &self,
        with: &Departure,
        memory: &Arc<Mapping>,
        guest: &mut dyn Guest,
    ) -> Result<DepartureStats, Error> {
        let request = &self.request;
        let way: Way = request.to.parse().map_err(Error::Config)?;
        let credentials = request.tls.as_ref().map(super::Files::credentials);
        let trust = Trust {
            credentials: credentials.as_ref(),
            name: request.tls.as_ref().and_then(|tls| tls.name.as_deref()),
        };
        let timeout = request.timeout();
        let connection = way.connect(trust, timeout)?;
        let redial = request.recovery().map(|within| {
            let (way, teller) = (way.clone(), self.teller.clone());
            let tls = request.tls.clone();
            let connect = move |within| {
                let credentials = tls.as_ref().map(super::Files::credentials);
                let trust = Trust {
                    credentials: credentials.as_ref(),
                    name: tls.as_ref().and_then(|tls| tls.name.as_deref()),
                };
                way.connect(trust, within)
            };
            Redial {
                within,
                connect: Arc::new(connect),
                give_up: Arc::default(),
                tell: Some(Arc::new(move |outage| teller.tell(&News::from(outage)))),
            }
        });
        let (teller, rounds) = (self.teller.clone(), AtomicU64::new(0));
        let departure = Departure {
            limits: request.limits(),
            timeout,
            listen: connection.here,
            credentials,
            cancel: self.cancel.clone(),
            progress: Some(Arc::new(move |round| {
                let number = rounds.fetch_add(1, Ordering::Relaxed) + 1;
                teller.tell(&News::round(number, round));
            })),
            redial,
            ..with.clone()
        };
        // SAFETY: by the caller.
        let mut departed = unsafe { departure.run(memory, connection.stream, guest) }?;
        if !departed.is_unknown() {
            self.teller.tell(&News::SwitchedOver {
                downtime_ns: departed.stats().downtime.as_nanos() as u64,
                left_pages: departed.stats().left_pages,
            });
        }
        let waited = departed.wait(|pages| self.teller.tell(&News::ToFetch { pages }));
        if let Err(error) = waited {
            self.teller.tell(&News::InDoubt {
                why: error.to_string(),
            });
            departed.serve_on(timeout, || false);
            return Err(error);
        }
        Ok(departed.stats().clone())
    }
}

/// Returns when who asked has gone or calls it off; then it is to end, if it can.
fn until_called_off(stream: &UnixStream, cancel: &AtomicBool) {
    let mut line = Vec::new();
    let mut stream = BufReader::new(stream.take(LINE_MAX));
    loop {
        line.clear();
        match stream.read_until(b'\n', &mut line) {
            Ok(1..) if line != b"cancel\n" => {}
            _ => break,
        }
    }
    cancel.store(true, Ordering::Relaxed);
}
