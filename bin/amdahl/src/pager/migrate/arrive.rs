//! Threads that arrive from another amdahl.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use amdahl_migrate::{Arrival, Await, Connection, Error, Trust, Way};
use amdahl_pager::{Backing, Mapping, PAGE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::demo::{Demo, Stopped, park_when_lost};
use super::{failure, tell, tells};
use crate::cli::migrate::{PagerMigrate, WayArgs};
use crate::failure::Failure;
use crate::screen;

/// Takes threads in, and ends when all of their pages are there and right.
pub fn main(args: &PagerMigrate, way: &Way) -> Result<u8, Failure> {
    let mut arrived = take_in(&args.way, way, args.demo.memory)?;
    if let Err(page) = arrived.demo.end() {
        return Err(Failure::result(format!(
            "page {page} is wrong: please report this"
        )));
    }
    screen::print(&match args.way.json {
        true => format!("{:#}\n", arrived.document()),
        false => format!(
            "arrived: all {} pages are right; {} were fetched after the switch-over, {} faults\n",
            arrived.pages, arrived.missing, arrived.faults
        ),
    })
}

/// A demonstration that has arrived, with all of its pages.
pub struct Arrived {
    pub demo: Demo,
    pub memory: Arc<Mapping>,
    pub pages: usize,
    /// Of these, fetched after the switch-over.
    pub missing: u64,
    /// How often the source was away.
    pub outages: u32,
    pub faults: u64,
    fault_ns: [Option<u64>; 2],
}

impl Arrived {
    /// The destination's document.
    pub fn document(&self) -> Value {
        json!({
            "format": "amdahl.pager.migrate/1",
            "side": "destination",
            "pages": self.pages,
            "missing_pages": self.missing,
            "outages": self.outages,
            "faults": self.faults,
            "fault_ns_p50": self.fault_ns[0],
            "fault_ns_p99": self.fault_ns[1],
        })
    }
}

/// Waits for a demonstration at a place, runs it, and returns when all is there.
pub fn take_in(args: &WayArgs, way: &Way, bytes: usize) -> Result<Arrived, Failure> {
    let memory =
        Mapping::new(bytes, Backing::Small).map_err(|error| Failure::machine(error.to_string()))?;
    let memory = Arc::new(memory);
    let (connection, listens) = accept(args, way)?;
    let pages = bytes / PAGE;
    let arrival = Arrival {
        timeout: args.timeout(),
        page_timeout: args.timeout(),
        // How often each page was written.
        state_bytes_max: (pages * 4) as u64 + (1 << 20),
        host: connection.there,
        name: args.tls.tls_name.clone(),
        credentials: args.tls.credentials(),
        recovery: args.recovery().map(|within| Await {
            within,
            accept: Arc::new(args.by(move |within, trust| listens.next(within, trust))),
            tell: tells(
                args.quiet,
                "what needs missing pages waits for the source, which may have another address,",
            ),
        }),
        ..Arrival::default()
    };
    // SAFETY: nobody else has the memory.
    let offer = unsafe { arrival.receive(&memory, connection.stream) }.map_err(failure)?;
    let stopped = match Stopped::of_state(memory.clone(), &offer.state) {
        Ok(stopped) => stopped,
        Err(why) => {
            offer.reject(why);
            return Err(Failure::result(why.to_owned()));
        }
    };
    park_when_lost();
    let mut landed = offer.accept().map_err(failure)?;
    let demo = Demo::new(stopped);
    let missing = landed.missing_pages;
    tell(
        args.quiet,
        &format!("the threads run here; {missing} pages are missing"),
    );
    landed
        .finish(|now| tell(args.quiet, &format!("{now} pages to be fetched")))
        .map_err(failure)?;
    let stats = landed.stats();
    let quantile = |of| {
        stats
            .as_ref()
            .and_then(|stats| stats.latency_ns.quantile(of))
    };
    Ok(Arrived {
        demo,
        memory,
        pages,
        missing,
        outages: landed.outages(),
        faults: stats.as_ref().map_or(0, |stats| stats.faults),
        fault_ns: [quantile(0.5), quantile(0.99)],
    })
}

/// A socket's file, which goes with it.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Where the source connects; again, too.
enum Listener {
    Unix {
        listener: UnixListener,
        /// Goes with it.
        _file: SocketFile,
    },
    Tcp(TcpListener),
}

impl Listener {
    /// Who has connected, if somebody does within that time.
    fn next(&self, within: Duration, trust: Trust<'_>) -> Result<Option<Connection>, Error> {
        let within = Timespec::try_from(within).expect("less than a century");
        let mut fds = [match self {
            Listener::Unix { listener, .. } => PollFd::new(listener, PollFlags::IN),
            Listener::Tcp(listener) => PollFd::new(listener, PollFlags::IN),
        }];
        match poll(&mut fds, Some(&within)) {
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            _ => {}
        }
        let came = match self {
            Listener::Unix { listener, .. } => listener
                .accept()
                .map(|(stream, _)| Ok(Connection::of_unix(stream))),
            Listener::Tcp(listener) => listener
                .accept()
                .map(|(socket, _)| Connection::of_tcp(socket, trust, false)),
        };
        match came {
            Ok(connection) => connection.map(Some),
            // It has gone before it was let in.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(Error::Cut(error.to_string())),
        }
    }
}

fn accept(args: &WayArgs, way: &Way) -> Result<(Connection, Listener), Failure> {
    let waiting = |where_: &str| tell(args.quiet, &format!("waiting at {where_}"));
    let at = |error: std::io::Error| Failure::result(format!("{way}: {error}"));
    let listener = match way {
        Way::Unix(path) => {
            let listener = UnixListener::bind(path).map_err(|error| match error.kind() {
                std::io::ErrorKind::AddrInUse => Failure::result(format!(
                    "{} is there already: remove it if nobody listens at it",
                    path.display()
                )),
                _ => at(error),
            })?;
            let file = SocketFile(path.clone());
            listener.set_nonblocking(true).map_err(at)?;
            waiting(&way.to_string());
            Listener::Unix {
                listener,
                _file: file,
            }
        }
        Way::Tcp(address) => {
            let listener = TcpListener::bind(address).map_err(at)?;
            let bound = listener.local_addr().map_err(at)?;
            if args.tls.tls_certificate.is_none() && !bound.ip().is_loopback() {
                return Err(Failure::usage(format!(
                    "{bound} can be reached by other hosts: give --tls-certificate, --tls-key and --tls-authorities, or listen at 127.0.0.1"
                )));
            }
            listener.set_nonblocking(true).map_err(at)?;
            waiting(&format!("tcp:{bound}"));
            Listener::Tcp(listener)
        }
    };
    loop {
        let next = args.trusting(|trust| listener.next(Duration::from_secs(3600), trust));
        if let Some(connection) = next.map_err(failure)? {
            return Ok((connection, listener));
        }
    }
}
