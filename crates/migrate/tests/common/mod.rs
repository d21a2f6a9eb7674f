//! What the tests of migration share: machines as guests, and streams that break.
#![allow(dead_code)] // Each test binary uses a part.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use amdahl_migrate::wire::{HEAD, Head, Message};
use amdahl_migrate::{Arrival, Departure, Guest, Limits, Stream, missing};
use amdahl_pager::{Backing, Mapping, PAGE};
use amdahl_test_vm::{BOOT_PAGES, Kind, Machine, Running, Sum, contents, model};

pub const CPUS: usize = 2;
pub const PAGES: usize = BOOT_PAGES + 2 * 120;
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Nothing ends since the machine that tests it is slow.
pub fn departure() -> Departure {
    Departure {
        timeout: PATIENCE,
        pause_max: PATIENCE,
        shared_is_written_here_only: true,
        ..Departure::default()
    }
}

pub fn arrival() -> Arrival {
    Arrival {
        timeout: PATIENCE,
        page_timeout: PATIENCE,
        ..Arrival::default()
    }
}

pub fn is_possible(test: &str) -> bool {
    match missing() {
        None => true,
        Some(why) => {
            println!("SKIPPED {test}: {why}");
            false
        }
    }
}

/// Memory in which a machine can begin.
pub fn memory(backing: Backing) -> Arc<Mapping> {
    let memory = Mapping::new(PAGES * PAGE, backing).unwrap();
    Machine::boot(&memory);
    for page in BOOT_PAGES..PAGES {
        if page % 5 > 0 {
            memory.write(page * PAGE + 16, &(page as u64).to_le_bytes());
        }
    }
    Arc::new(memory)
}

/// A machine that is to leave.
pub struct Owner {
    pub kind: Kind,
    pub memory: Arc<Mapping>,
    pub running: Option<Running>,
    /// Whether the machine is to be able to write between rounds: each waits for some steps.
    pub waits_for: u64,
    pub throttled: Vec<u8>,
    pub resumed: usize,
    pub refuses: bool,
    state: Vec<u8>,
}

impl Owner {
    pub fn new(kind: Kind, memory: &Arc<Mapping>) -> Owner {
        let machine = Machine::new(kind, memory.clone(), CPUS).unwrap();
        Owner {
            kind,
            memory: memory.clone(),
            running: Some(machine.run().unwrap()),
            waits_for: 0,
            throttled: Vec::new(),
            resumed: 0,
            refuses: false,
            state: Vec::new(),
        }
    }
}

impl Guest for Owner {
    fn state_bytes(&self) -> u64 {
        // Called after each round.
        let running = self.running.as_ref().unwrap();
        running.wait_for_more(self.waits_for);
        16 * CPUS as u64
    }

    fn pause(&mut self) -> Result<Vec<u8>, String> {
        let machine = self.running.take().unwrap().pause();
        self.state = machine.map_err(|error| error.to_string())?.state();
        match self.refuses {
            true => Err("it does not want to stop".into()),
            false => Ok(self.state.clone()),
        }
    }

    fn resume(&mut self) {
        self.resumed += 1;
        let machine = Machine::of_state(self.kind, self.memory.clone(), &self.state).unwrap();
        self.running = Some(machine.run().unwrap());
    }

    fn throttle(&mut self, percent: u8) {
        self.throttled.push(percent);
    }
}

/// Lets a machine run on and proves its memory.
pub fn prove(what: &str, running: Running, at_first: &[u8]) {
    running.wait_for(running.steps() + 40);
    let sums = running.sums().unwrap_or_else(|why| panic!("{what}: {why}"));
    prove_sums(what, &sums, at_first);
}

pub fn prove_sums(what: &str, sums: &[Sum], at_first: &[u8]) {
    for (number, sum) in sums.iter().enumerate() {
        let expected = model::expected(at_first, CPUS, number, sum.steps);
        assert_eq!(*sum, expected, "{what}, CPU {number}");
    }
}

/// All while the guest stands still.
pub fn without_post_copy() -> Limits {
    Limits {
        downtime_max: Duration::from_secs(3600),
        post_copy: false,
        ..Limits::default()
    }
}

/// What was written last is fetched later.
pub fn with_post_copy() -> Limits {
    Limits {
        downtime_max: Duration::ZERO,
        rounds_max: 2,
        post_copy: true,
        ..Limits::default()
    }
}

pub fn at_first(memory: &Mapping) -> Vec<u8> {
    contents(memory)
}

/// What happens to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It ends in both directions when so many bytes have been sent.
    CutSent(u64),
    /// It ends in both directions when so many bytes have come.
    CutReceived(u64),
    /// It ends in both directions after so many bytes of the first message of that kind that is sent.
    CutMessage { kind: u8, at: u64 },
    /// One bit of that byte is sent as another one.
    Flip(u64),
}

/// The kind of a commitment.
pub const COMMIT: u8 = 7;

/// A stream with a fault, which counts.
pub struct Faulty<S> {
    stream: S,
    fault: Option<Fault>,
    pub sent: Arc<AtomicU64>,
    pub received: Arc<AtomicU64>,
    /// Bytes that were sent before the commitment; none was sent: `u64::MAX`.
    pub commit_at: Arc<AtomicU64>,
    /// The fault.
    pub has_happened: Arc<AtomicBool>,
    /// Bytes that the message needs still that is being sent.
    left: u64,
    is_cut: AtomicBool,
    cut: fn(&S),
}

impl<S> Faulty<S> {
    pub fn new(stream: S, fault: Option<Fault>, cut: fn(&S)) -> Faulty<S> {
        Faulty {
            stream,
            fault,
            sent: Arc::default(),
            received: Arc::default(),
            commit_at: Arc::new(AtomicU64::new(u64::MAX)),
            has_happened: Arc::default(),
            left: 0,
            is_cut: AtomicBool::new(false),
            cut,
        }
    }

    fn end(&self) -> io::Error {
        self.is_cut.store(true, Ordering::Relaxed);
        self.has_happened.store(true, Ordering::Relaxed);
        (self.cut)(&self.stream);
        io::ErrorKind::BrokenPipe.into()
    }
}

impl<S: Read> Read for Faulty<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let before = self.received.load(Ordering::Relaxed);
        let mut room = into.len() as u64;
        if let Some(Fault::CutReceived(at)) = self.fault {
            room = room.min(at.saturating_sub(before));
        }
        if self.is_cut.load(Ordering::Relaxed) || room == 0 {
            return Err(self.end());
        }
        let read = self.stream.read(&mut into[..room as usize])?;
        self.received.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl<S: Write> Write for Faulty<S> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let before = self.sent.load(Ordering::Relaxed);
        let mut len = from.len() as u64;
        if self.left == 0 {
            // A message is sent by one call, as long as all of it is taken.
            self.left = len;
            if from[0] == COMMIT {
                self.commit_at.store(before, Ordering::Relaxed);
            }
            if let Some(Fault::CutMessage { kind, at }) = self.fault
                && from[0] == kind
            {
                self.fault = Some(Fault::CutSent(before + at));
            }
        }
        match self.fault {
            _ if self.is_cut.load(Ordering::Relaxed) => return Err(self.end()),
            Some(Fault::CutSent(at)) if before + len > at => {
                len = at.saturating_sub(before);
                if len == 0 {
                    return Err(self.end());
                }
            }
            Some(Fault::Flip(at)) if (before..before + len).contains(&at) => {
                if at > before {
                    len = at - before;
                } else {
                    self.sent.fetch_add(1, Ordering::Relaxed);
                    self.has_happened.store(true, Ordering::Relaxed);
                    self.stream.write_all(&[from[0] ^ 1 << (at % 8)])?;
                    self.left -= 1;
                    return Ok(1);
                }
            }
            _ => {}
        }
        let sent = self.stream.write(&from[..len as usize])?;
        self.left -= sent as u64;
        self.sent.fetch_add(sent as u64, Ordering::Relaxed);
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl<S: Stream> Stream for Faulty<S> {
    fn set_timeout(&mut self, at_most: Duration) -> io::Result<()> {
        self.stream.set_timeout(at_most)
    }
}

/// A side that says and does as it likes.
pub struct Odd(pub UnixStream);

impl Odd {
    pub fn say(&mut self, message: &Message) {
        let mut frame = Vec::new();
        message.frame(&mut frame);
        let _ = self.0.write_all(&frame);
    }

    /// The next message, by its kind; `None`: the other side has had enough.
    pub fn hear(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; HEAD];
        self.0.read_exact(&mut head).ok()?;
        let head = Head::of(&head).unwrap();
        let mut payload = vec![0; head.len];
        self.0.read_exact(&mut payload).ok()?;
        Some((head.kind, payload))
    }
}
