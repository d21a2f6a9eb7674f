//! A memory that another host serves, as a source: several connections, which take from one queue what they have room for.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_pager::{Extent, Source, SourceError};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustls::ClientConfig;

use crate::bell::Bell;
use crate::channel::{Channel, wait_for};
use crate::connect::{Connect, Place};
use crate::meet::{map_of, meet, set_of};
use crate::outage::{Deadline, Outages};
use crate::queue::Queue;
use crate::tls::Fresh;
use crate::wire::{
    self, ANSWER, AnswerHead, Ask, Identity, READ_MAX, Refusal, Request, Runs, Welcome,
};
use crate::{BLOCK, Credentials, Error, OWED_MAX, PAGE, lock};

/// Bytes of the largest memory: its map is kept here, a bit for each huge page.
const LEN_MAX: u64 = 64 << 40;

/// Answers up to this size are put into memory of their own; larger ones into buffers that are used again.
const SMALL: usize = 16 << 10;
/// Buffers that are kept.
const KEPT: usize = 64;
/// The longest pause between two tries to connect again.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a page that came damaged is asked for.
const TRIES: u32 = 3;

/// What was asked for until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// Requests that were sent, those included that were sent again.
    pub requests: u64,
    /// Requests that were sent again since a connection failed or content came damaged.
    pub repeated: u64,
    /// Connections that were made after the first of each stream.
    pub reconnects: u64,
    /// Bytes of content that came.
    pub bytes: u64,
}

/// A memory that another host serves.
///
/// It is a [`Source`]. Connections that fail are made again, each time to what the address stands for then, and what was asked on them is asked again, until the
/// [timeout](Connect::timeout) and, if the other side is away, the [recovery](Connect::recovery).
pub struct Remote {
    shared: Arc<Shared>,
}

struct Shared {
    connect: Connect,
    tls: Option<Fresh<ClientConfig>>,
    place: Mutex<Place>,
    outages: Mutex<Outages>,
    /// `outages` has one that goes on.
    is_away: AtomicBool,
    /// Connections that are there.
    there: AtomicUsize,
    /// When something came last, in nanoseconds since `begun`.
    heard_ns: AtomicU64,
    begun: Instant,
    /// Reads that wait.
    readers: AtomicUsize,
    welcome: Welcome,
    /// A bit for each huge page that holds anything.
    map: Vec<u8>,
    working_set: Vec<Range<u64>>,
    work: Mutex<Work>,
    links: Vec<Link>,
    /// Why nothing comes any more.
    gone: OnceLock<&'static str>,
    buffers: Mutex<Vec<Vec<u8>>>,
    requests: AtomicU64,
    repeated: AtomicU64,
    reconnects: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Default)]
struct Work {
    /// Of no connection yet.
    waiting: Queue<Arc<Wanted>>,
    is_ended: bool,
}

/// One connection, while it is there and while it is not.
struct Link {
    bell: Bell,
    /// It sleeps, or is about to look at the queue a last time before it does.
    is_idle: AtomicBool,
    /// It is connected, and is not owed so much that it takes no more.
    takes: AtomicBool,
}

/// Something that somebody waits for.
struct Wanted {
    is_urgent: bool,
    offset: u64,
    len: u32,
    answer: Mutex<Option<Answer>>,
    came: Condvar,
    /// Nobody waits any more.
    is_abandoned: AtomicBool,
}

/// What came: a buffer, of which so many bytes are the answer.
struct Answer {
    head: AnswerHead,
    buffer: Vec<u8>,
}

impl Remote {
    /// Connects, and learns how much memory there is, which huge pages of it hold anything, and which pages are needed first. Until the other side has greeted takes no longer than the
    /// [timeout](Connect::timeout), looking for its name included; then as long at most for what holds anything of each 64 GiB, and for each 4096 ranges of the working set.
    ///
    /// # Errors
    /// [`Error`]: nobody is there, nobody is trusted, or it is not this protocol.
    pub fn connect(connect: Connect) -> Result<Remote, Error> {
        let fresh = |credentials| Fresh::new(credentials, Credentials::client);
        let tls = connect.credentials.as_ref().map(fresh).transpose()?;
        let place = Place::new(&connect, &connect.address)?;
        let until = Instant::now() + connect.timeout;
        let (mut channel, welcome) = meet(&connect, &place.address, place.tls(&tls), until)?;
        if welcome.len > LEN_MAX {
            return Err(Error::Wire(wire::WireError::Field {
                field: "the length of the memory",
                value: welcome.len,
            }));
        }
        let map = map_of(&mut channel, welcome.len, connect.timeout)?;
        let working_set = set_of(&mut channel, &welcome, connect.timeout)?;
        let bell = |_| {
            Ok(Link {
                bell: Bell::new()?,
                is_idle: AtomicBool::new(false),
                takes: AtomicBool::new(false),
            })
        };
        let links: Result<Vec<Link>, io::Error> = (0..connect.streams.max(1)).map(bell).collect();
        let shared = Arc::new(Shared {
            outages: Mutex::new(Outages::new(connect.recovery)),
            is_away: AtomicBool::new(false),
            there: AtomicUsize::new(0),
            heard_ns: AtomicU64::new(0),
            begun: Instant::now(),
            readers: AtomicUsize::new(0),
            place: Mutex::new(place),
            connect,
            tls,
            welcome,
            map,
            working_set,
            work: Mutex::default(),
            links: links?,
            gone: OnceLock::new(),
            buffers: Mutex::default(),
            requests: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        let remote = Remote {
            shared: shared.clone(),
        };
        let mut first = Some(channel);
        for index in 0..shared.links.len() {
            let (shared, channel) = (shared.clone(), first.take());
            thread::Builder::new()
                .name(format!("pages-{index}"))
                .spawn(move || shared.keep(index, channel))?;
        }
        Ok(remote)
    }

    /// Bytes of the memory.
    pub fn len(&self) -> u64 {
        self.shared.welcome.len
    }

    /// No bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which memory it is.
    pub fn identity(&self) -> Identity {
        self.shared.welcome.identity
    }

    /// Pages that are needed first, in their order, as the other side says ([`Serve::working_set`](crate::Serve::working_set)): within the memory, and together no more than
    /// it has.
    pub fn working_set(&self) -> &[Range<u64>] {
        &self.shared.working_set
    }

    /// Why the files of the credentials, which have changed, cannot be used for connections; once for each change, when a
    /// connection has been made anew after it.
    pub fn take_trouble(&self) -> Option<String> {
        self.shared.tls.as_ref()?.take_trouble()
    }

    /// The other side is somewhere else from now on, with another address: connections that are made from now on go there. Those that are there stay. That it is
    /// the same memory is looked at as ever.
    ///
    /// # Errors
    /// [`Error::Address`]: with TLS and no name of its own, when the host is none that a certificate can name.
    pub fn redirect(&self, address: &str) -> Result<(), Error> {
        let place = Place::new(&self.shared.connect, address)?;
        *lock(&self.shared.place) = place;
        Ok(())
    }

    /// How long the other side, which is away, may be that until it is taken for lost; `None`: it is there, or lost.
    pub fn away(&self) -> Option<Duration> {
        lock(&self.shared.outages).left(Instant::now())
    }

    /// What was asked for until now.
    pub fn stats(&self) -> RemoteStats {
        let shared = &self.shared;
        RemoteStats {
            requests: shared.requests.load(Ordering::Relaxed),
            repeated: shared.repeated.load(Ordering::Relaxed),
            reconnects: shared.reconnects.load(Ordering::Relaxed),
            bytes: shared.bytes.load(Ordering::Relaxed),
        }
    }

    fn get(&self, is_urgent: bool, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let reader = Reader::new(&self.shared);
        // In pieces, so that what is urgent never waits behind much, and several connections share it.
        let pieces = into.chunks_mut(READ_MAX as usize);
        let mut at = offset;
        let wanted: Vec<_> = pieces
            .map(|piece| {
                let wanted = Wanted::new(is_urgent, at, piece.len() as u32);
                at += piece.len() as u64;
                self.shared.push(wanted.clone());
                (wanted, piece)
            })
            .collect();
        let mut result = Ok(());
        for (wanted, piece) in wanted {
            if result.is_ok() {
                result = self.take(wanted, piece, &reader.deadline);
            } else {
                self.shared.abandon(&wanted);
            }
        }
        result
    }

    fn take(
        &self,
        mut wanted: Arc<Wanted>,
        into: &mut [u8],
        deadline: &Deadline,
    ) -> Result<(), SourceError> {
        for tries in 1.. {
            let answer = self.shared.wait(&wanted, deadline)?;
            let payload = &answer.buffer[..answer.head.len as usize];
            let is_right = crc32c::crc32c(payload) == answer.head.crc;
            let runs = match answer.head.is {
                _ if !is_right => Err(()),
                Err(why) => {
                    return Err(match why {
                        Refusal::Short => SourceError::Short {
                            end: self.shared.welcome.len,
                        },
                        Refusal::Corrupt => SourceError::Corrupt("where it is stored"),
                        Refusal::Gone => SourceError::Gone("the source of the other host is gone"),
                        Refusal::Failed => SourceError::Io {
                            operation: "reading at the other host",
                            errno: Errno::IO,
                        },
                    });
                }
                Ok(()) => Runs::of(payload, wanted.len).map_err(drop),
            };
            if let Ok(runs) = &runs {
                runs.copy_to(into);
                self.shared
                    .bytes
                    .fetch_add(into.len() as u64, Ordering::Relaxed);
            }
            let is_done = runs.is_ok();
            self.shared.give_back(answer.buffer);
            if is_done {
                return Ok(());
            }
            if tries == TRIES {
                break;
            }
            self.shared.repeated.fetch_add(1, Ordering::Relaxed);
            wanted = Wanted::new(wanted.is_urgent, wanted.offset, wanted.len);
            self.shared.push(wanted.clone());
        }
        Err(SourceError::Corrupt("on the way from the other host"))
    }
}

/// A read that goes on.
struct Reader<'a> {
    shared: &'a Shared,
    deadline: Deadline,
}

impl Reader<'_> {
    fn new(shared: &Shared) -> Reader<'_> {
        shared.readers.fetch_add(1, Ordering::SeqCst);
        let timeout = shared.connect.timeout;
        Reader {
            shared,
            deadline: Deadline::new(&lock(&shared.outages), timeout, Instant::now()),
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.shared.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Source for Remote {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.get(true, offset, into)
    }

    fn read_ahead(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.get(false, offset, into)
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        // Further than any caller goes at once.
        const LOOK_MAX: u64 = 512;
        let holds = |block: u64| {
            let byte = self.shared.map.get((block / 8) as usize);
            byte.is_some_and(|byte| byte & 1 << (block % 8) != 0)
        };
        let all = self.shared.welcome.len.next_multiple_of(PAGE);
        if offset >= all {
            // What reading it says is told.
            return Extent {
                len,
                is_zero: false,
            };
        }
        let len = len.min(all - offset);
        let first = offset / BLOCK;
        let is_zero = !holds(first);
        let mut end = first + 1;
        while end - first < LOOK_MAX
            && end * BLOCK < offset.saturating_add(len)
            && holds(end) != is_zero
        {
            end += 1;
        }
        Extent {
            len: len.min(end * BLOCK - offset),
            is_zero,
        }
    }

    fn is_away(&self) -> bool {
        self.shared.is_away.load(Ordering::Relaxed) && self.away().is_some()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        lock(&self.shared.work).is_ended = true;
        for link in &self.shared.links {
            link.bell.ring();
        }
    }
}

impl Wanted {
    fn new(is_urgent: bool, offset: u64, len: u32) -> Arc<Wanted> {
        Arc::new(Wanted {
            is_urgent,
            offset,
            len,
            answer: Mutex::default(),
            came: Condvar::new(),
            is_abandoned: AtomicBool::new(false),
        })
    }

    fn with_id(&self, id: u32) -> Request {
        Request {
            id,
            ask: Ask::Read,
            is_urgent: self.is_urgent,
            offset: self.offset,
            len: self.len,
        }
    }
}

impl Shared {
    fn push(&self, wanted: Arc<Wanted>) {
        let is_urgent = wanted.is_urgent;
        lock(&self.work).waiting.push(is_urgent, wanted);
        self.wake_one(is_urgent);
    }

    /// Rings at a connection that sleeps and takes such. Where none does, each looks at the queue before it sleeps.
    fn wake_one(&self, is_urgent: bool) {
        // SeqCst on both sides, with the queue's lock between: the link has seen what was pushed, or we see that it is idle.
        let takes = |(index, _): &(usize, &Link)| self.takes(*index, is_urgent);
        let mut links = self.links.iter().enumerate().filter(takes);
        if let Some((_, link)) = links.find(|(_, link)| link.is_idle.swap(false, Ordering::SeqCst))
        {
            link.bell.ring();
        }
    }

    /// Who takes what has changed.
    fn wake_all(&self) {
        for link in &self.links {
            link.is_idle.store(false, Ordering::SeqCst);
            link.bell.ring();
        }
    }

    /// Whether a connection takes what is urgent, or what is not. The first is for what is urgent, the others for the rest; who is
    /// not there or full is stood in for.
    fn takes(&self, index: usize, is_urgent: bool) -> bool {
        let can = |link: &Link| link.takes.load(Ordering::SeqCst);
        match (index, is_urgent) {
            (0, true) => true,
            (0, false) => !self.links[1..].iter().any(can),
            (_, true) => !can(&self.links[0]),
            (_, false) => true,
        }
    }

    /// The next for a connection that is owed `owed` bytes.
    fn next(&self, index: usize, owed: usize) -> Option<Arc<Wanted>> {
        if owed >= OWED_MAX {
            return None;
        }
        let mut work = lock(&self.work);
        loop {
            let next = work
                .waiting
                .pop_of(|is_urgent| self.takes(index, is_urgent))?;
            if !next.is_abandoned.load(Ordering::Relaxed) {
                return Some(next);
            }
        }
    }

    /// Says whether a connection takes more; the others are told when it does not any more.
    fn set_takes(&self, index: usize, takes: bool) {
        let took = self.links[index].takes.swap(takes, Ordering::SeqCst);
        if took && !takes {
            self.wake_all();
        }
    }

    fn wait(&self, wanted: &Wanted, deadline: &Deadline) -> Result<Answer, SourceError> {
        /// A clock that stands is looked at again so soon at least.
        const LOOK: Duration = Duration::from_millis(10);
        let mut answer = lock(&wanted.answer);
        loop {
            if let Some(answer) = answer.take() {
                return Ok(answer);
            }
            let why = self.gone.get().map(|why| SourceError::Gone(why));
            let left = deadline.left(&lock(&self.outages), Instant::now());
            let late = left.is_zero().then_some(SourceError::Late);
            if let Some(error) = why.or(late) {
                drop(answer);
                self.abandon(wanted);
                return Err(error);
            }
            let waited = wanted.came.wait_timeout(answer, left.max(LOOK));
            answer = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Nobody waits for it any more.
    fn abandon(&self, wanted: &Wanted) {
        wanted.is_abandoned.store(true, Ordering::Relaxed);
        // It may have been asked for, or not: where nobody is connected the queue would grow.
        let mut work = lock(&self.work);
        work.waiting.retain(|other| !std::ptr::eq(&**other, wanted));
    }

    /// Room for an answer.
    fn buffer(&self, len: usize) -> Vec<u8> {
        if len <= SMALL {
            return vec![0; len];
        }
        let kept = lock(&self.buffers).pop();
        let largest = READ_MAX as usize + SMALL;
        kept.unwrap_or_else(|| vec![0; len.max(largest)])
    }

    fn give_back(&self, buffer: Vec<u8>) {
        if buffer.len() > SMALL {
            let mut buffers = lock(&self.buffers);
            if buffers.len() < KEPT {
                buffers.push(buffer);
            }
        }
    }

    fn is_ended(&self) -> bool {
        lock(&self.work).is_ended || self.gone.get().is_some()
    }

    /// Keeps one connection, as long as anybody wants it.
    fn keep(&self, index: usize, mut channel: Option<Channel>) {
        let mut pause = Duration::ZERO;
        let mut is_first = true;
        while !self.is_ended() {
            let mut pending = HashMap::new();
            let met = match channel.take() {
                Some(channel) => Ok(channel),
                None => self.meet_again(),
            };
            if let Ok(mut channel) = met {
                if !is_first {
                    self.reconnects.fetch_add(1, Ordering::Relaxed);
                }
                is_first = false;
                let begun = Instant::now();
                let mut has_answered = false;
                self.there.fetch_add(1, Ordering::SeqCst);
                // How it failed is not told: what was asked is asked again, or fails with the time.
                let _ = self.converse(index, &mut channel, &mut pending, &mut has_answered);
                self.there.fetch_sub(1, Ordering::SeqCst);
                self.set_takes(index, false);
                // What breaks after it was of use is worth as much the next time.
                if has_answered || begun.elapsed() > PAUSE_MAX {
                    pause = Duration::ZERO;
                }
            }
            self.look_who_is_there();
            self.ask_again(pending);
            if self.is_ended() {
                break;
            }
            pause = (pause * 2).clamp(Duration::from_millis(10), PAUSE_MAX);
            let until = Instant::now() + pause;
            while Instant::now() < until && !self.is_ended() {
                let mut fds = [PollFd::new(&self.links[index].bell, PollFlags::IN)];
                let _ = wait_for(&mut fds, Some(until));
                self.links[index].bell.hear();
            }
        }
    }

    /// A connection is gone. With the last one the other side is away; and those that have said nothing for as long as the one that was given up for that are no
    /// better, which each of them would be asked for in turn.
    fn look_who_is_there(&self) {
        let now = Instant::now();
        let heard = self.begun + Duration::from_nanos(self.heard_ns.load(Ordering::Relaxed));
        let silent = now.saturating_duration_since(heard);
        if self.there.load(Ordering::SeqCst) == 0 || silent >= self.connect.silence() {
            let mut outages = lock(&self.outages);
            outages.begin(now);
            self.is_away.store(true, Ordering::Relaxed);
        }
    }

    /// Something came. It ends an outage if it `is_answer` or nobody waits for one: who is let in and hears nothing more has gained nothing.
    fn heard(&self, now: Instant, is_answer: bool) {
        let ns = now.saturating_duration_since(self.begun).as_nanos();
        self.heard_ns.fetch_max(ns as u64, Ordering::Relaxed);
        if self.is_away.load(Ordering::Relaxed)
            && (is_answer || self.readers.load(Ordering::SeqCst) == 0)
        {
            let mut outages = lock(&self.outages);
            outages.end(now);
            self.is_away.store(false, Ordering::Relaxed);
        }
    }

    fn meet_again(&self) -> Result<Channel, Error> {
        // A connection that takes as long as a silent one is as useless.
        let until = Instant::now() + self.connect.silence();
        let place = lock(&self.place).clone();
        let tls = place.tls(&self.tls);
        let (channel, welcome) = meet(&self.connect, &place.address, tls, until)?;
        self.heard(Instant::now(), false);
        let is = |welcome: &Welcome| (welcome.len, welcome.identity);
        if is(&welcome) != is(&self.welcome) {
            let _ = self
                .gone
                .set("another memory is served there now than before");
            for link in &self.links {
                link.bell.ring();
            }
            // Those who wait look again.
            for wanted in lock(&self.work).waiting.take_all() {
                let _answer = lock(&wanted.answer);
                wanted.came.notify_all();
            }
            return Err(Error::Changed);
        }
        Ok(channel)
    }

    /// What a connection owed is owed by all again, in front of the others.
    fn ask_again(&self, pending: HashMap<u32, Arc<Wanted>>) {
        if pending.is_empty() {
            return;
        }
        self.repeated
            .fetch_add(pending.len() as u64, Ordering::Relaxed);
        {
            let mut work = lock(&self.work);
            for wanted in pending.into_values() {
                if self.gone.get().is_some() {
                    let _answer = lock(&wanted.answer);
                    wanted.came.notify_all();
                } else {
                    work.waiting.push_front(wanted.is_urgent, wanted);
                }
            }
        }
        self.wake_all();
    }

    /// Asks and hears until the connection fails or nobody wants it; and whether it was ever answered.
    fn converse(
        &self,
        index: usize,
        channel: &mut Channel,
        pending: &mut HashMap<u32, Arc<Wanted>>,
        has_answered: &mut bool,
    ) -> Result<(), Error> {
        let link = &self.links[index];
        let silence = self.connect.silence();
        let (mut id, mut owed) = (0_u32, 0);
        let mut unsent: Vec<u8> = Vec::new();
        let mut answer = Incoming::default();
        let mut heard = Instant::now();
        loop {
            if self.is_ended() {
                return Ok(());
            }
            self.set_takes(index, owed < OWED_MAX);
            while let Some(wanted) = self.next(index, owed) {
                while pending.contains_key(&id) {
                    id = id.wrapping_add(1);
                }
                let request = wanted.with_id(id);
                if pending.is_empty() {
                    heard = Instant::now();
                }
                owed += request.answer_max() as usize;
                unsent.extend_from_slice(&request.bytes());
                pending.insert(id, wanted);
                id = id.wrapping_add(1);
                self.requests.fetch_add(1, Ordering::Relaxed);
            }
            let taken = channel.write(&unsent)?;
            unsent.drain(..taken);
            channel.flush()?;
            while let Some(done) = answer.hear(channel, pending, self)? {
                heard = Instant::now();
                self.heard(heard, done.is_some());
                if let Some((wanted, came)) = done {
                    *has_answered = true;
                    owed -= wanted.with_id(0).answer_max() as usize;
                    *lock(&wanted.answer) = Some(came);
                    wanted.came.notify_all();
                }
            }
            if !unsent.is_empty() && !channel.wants_write() {
                continue;
            }
            link.is_idle.store(owed < OWED_MAX, Ordering::SeqCst);
            // A last look: what is pushed from here on rings.
            self.set_takes(index, owed < OWED_MAX);
            let takes = |is_urgent| self.takes(index, is_urgent);
            let is_wanted = owed < OWED_MAX && lock(&self.work).waiting.has_of(takes);
            if is_wanted {
                link.is_idle.store(false, Ordering::SeqCst);
                continue;
            }
            let until = (!pending.is_empty()).then(|| heard + silence);
            if until.is_some_and(|until| until <= Instant::now()) {
                return Err(Error::Late(silence));
            }
            channel.wait(link.bell.as_fd(), true, until)?;
            link.is_idle.store(false, Ordering::SeqCst);
            link.bell.hear();
        }
    }
}

/// An answer that is coming.
#[derive(Default)]
struct Incoming {
    head: [u8; ANSWER],
    filled: usize,
    now: Option<(Arc<Wanted>, Answer)>,
}

impl Incoming {
    /// Reads on. `None`: nothing more is there now. `Some(None)`: a part came. `Some(Some(..))`: the last part came.
    #[expect(clippy::type_complexity, reason = "three outcomes of one step")]
    fn hear(
        &mut self,
        channel: &mut Channel,
        pending: &mut HashMap<u32, Arc<Wanted>>,
        shared: &Shared,
    ) -> Result<Option<Option<(Arc<Wanted>, Answer)>>, Error> {
        let into = match &mut self.now {
            None => &mut self.head[self.filled..],
            Some((_, answer)) => &mut answer.buffer[self.filled..answer.head.len as usize],
        };
        if !into.is_empty() {
            match channel.read(into)? {
                None => return Ok(None),
                Some(read) => self.filled += read,
            }
        }
        if self.now.is_none() && self.filled == ANSWER {
            let head = AnswerHead::of(&self.head)?;
            // It stays among those that are owed until all of it is there.
            let Some(wanted) = pending.get(&head.id).cloned() else {
                return Err(Error::Wire(wire::WireError::Field {
                    field: "the number of an answer",
                    value: head.id.into(),
                }));
            };
            if head.len > wanted.with_id(head.id).answer_max() {
                return Err(Error::Wire(wire::WireError::Field {
                    field: "the length of an answer",
                    value: head.len.into(),
                }));
            }
            let buffer = shared.buffer(head.len as usize);
            self.now = Some((wanted, Answer { head, buffer }));
            self.filled = 0;
        }
        let is_whole =
            |(_, answer): &mut (Arc<Wanted>, Answer)| self.filled == answer.head.len as usize;
        let done = self.now.take_if(is_whole);
        if let Some((_, answer)) = &done {
            pending.remove(&answer.head.id);
            self.filled = 0;
        }
        Ok(Some(done))
    }
}
