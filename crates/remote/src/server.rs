//! Gives a memory to others: a thread for each connection, which only talks, and workers, which read the source. Where it holds all of them up, others
//! stand in.

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, iter};

use amdahl_pager::{Source, SourceError};
use rustix::event::{PollFd, PollFlags};
use rustls::{ServerConfig, ServerConnection};

use crate::bell::Bell;
use crate::channel::{Channel, wait_for};
use crate::hurry::Hurry;
use crate::queue::Queue;
use crate::tls::Fresh;
use crate::wire::{self, Ask, Content, Identity, Refusal, Request, Secret, Welcome, WireError};
use crate::{BLOCK, Credentials, Error, OWED_MAX, PAGE, lock};

/// Threads that may stand in for workers at once. With so many reads more than workers that say nothing, all wait.
const STAND_INS: usize = 64;
/// How long nothing is begun of what waits before somebody stands in.
const HELD_UP: Duration = Duration::from_millis(100);

/// What is served, and to whom.
#[derive(Clone)]
pub struct Serve {
    /// The memory.
    pub source: Arc<dyn Source>,
    /// Its bytes.
    pub len: u64,
    /// What it is known by: another memory must have another identity, or clients that come back take it for this one.
    pub identity: Identity,
    /// Pages that are needed first, in their order, which clients learn when they connect: within the memory, and together no more than it has, or they refuse them. Of more than
    /// 2^20 ranges the first are told.
    pub working_set: Arc<[Range<u64>]>,
    /// `None` is allowed at addresses of this host alone.
    pub credentials: Option<Credentials>,
    /// What a client has to show before it is told anything. Without TLS it keeps other users of this host out, with TLS others with a
    /// certificate of the same authority.
    pub secret: Option<Secret>,
    /// Threads that read the source; 0 is one for each CPU. While the source holds all of them up there are more, up to 64.
    pub workers: usize,
    /// More connections than these wait to be accepted.
    pub connections_max: usize,
    /// A greeting that takes longer, or an answer of which the other side takes nothing for so long, ends the connection.
    pub timeout: Duration,
}

impl Serve {
    /// With the usual limits, and without TLS.
    pub fn new(source: Arc<dyn Source>, len: u64, identity: Identity) -> Serve {
        Serve {
            source,
            len,
            identity,
            working_set: Arc::default(),
            credentials: None,
            secret: None,
            workers: 0,
            connections_max: 1024,
            timeout: Duration::from_secs(10),
        }
    }
}

/// What was served until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Connections that are open.
    pub connections: usize,
    /// Connections that were ended because of what the other side said, or did not say.
    pub failed: u64,
    /// Requests that came.
    pub received: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Of these, with a refusal.
    pub refused: u64,
    /// Bytes of answers.
    pub bytes: u64,
}

/// Something to read, and for whom.
struct Job {
    request: Request,
    of: Arc<Peer>,
}

/// What was asked for, as it is to be sent, and the bytes that were owed for it.
struct Answer {
    bytes: Vec<u8>,
    owed: usize,
}

/// Who is connected.
struct Peer {
    answers: Mutex<Queue<Answer>>,
    bell: Bell,
    is_gone: AtomicBool,
}

/// What waits to be read.
#[derive(Default)]
struct Work {
    jobs: Queue<Job>,
    /// Jobs that were begun until now.
    begun: u64,
    /// Somebody looks whether they are begun.
    is_watched: bool,
}

impl Work {
    fn begin(&mut self) -> Option<Job> {
        let job = self.jobs.pop()?;
        self.begun += 1;
        Some(job)
    }
}

struct Inner {
    serve: Serve,
    tls: Option<Fresh<ServerConfig>>,
    work: Mutex<Work>,
    has_jobs: Condvar,
    /// For who watches them.
    has_begun: Condvar,
    stand_ins: Mutex<Vec<JoinHandle<()>>>,
    is_ended: AtomicBool,
    /// Of the thread that accepts.
    bell: Bell,
    peers: Mutex<Vec<Arc<Peer>>>,
    connections: AtomicUsize,
    failed: AtomicU64,
    received: AtomicU64,
    requests: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
}

/// A memory that is being served. Dropped, it ends: nobody is accepted any more, and connections are closed, those that are still in
/// their greeting within the timeout. Threads that are in the source are not waited for: see [`finish`](Server::finish).
pub struct Server {
    inner: Arc<Inner>,
    address: SocketAddr,
    accepts: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
}

impl Server {
    /// Begins to serve at `address`, such as `127.0.0.1:7000`; port 0 is any that is free.
    ///
    /// # Errors
    /// [`Error::Open`] for an address that others can reach without TLS, [`Error::Address`], and what is wrong with credentials.
    pub fn start(address: &str, serve: Serve) -> Result<Server, Error> {
        let failed = |error| Error::Address {
            address: address.to_owned(),
            error,
        };
        let all: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
        let is_open = |address: &&SocketAddr| !address.ip().is_loopback();
        if let (None, Some(&open)) = (&serve.credentials, all.iter().find(is_open)) {
            return Err(Error::Open(open));
        }
        let fresh = |credentials| Fresh::new(credentials, Credentials::server);
        let tls = serve.credentials.as_ref().map(fresh).transpose()?;
        let listener = TcpListener::bind(&all[..]).map_err(failed)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;

        let workers = match serve.workers {
            0 => thread::available_parallelism().map_or(1, Into::into),
            workers => workers,
        };
        let inner = Arc::new(Inner {
            serve,
            tls,
            work: Mutex::default(),
            has_jobs: Condvar::new(),
            has_begun: Condvar::new(),
            stand_ins: Mutex::default(),
            is_ended: AtomicBool::new(false),
            bell: Bell::new()?,
            peers: Mutex::default(),
            connections: AtomicUsize::new(0),
            failed: AtomicU64::new(0),
            received: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        // From here on whatever fails ends what has begun.
        let mut server = Server {
            inner: inner.clone(),
            address,
            accepts: None,
            workers: Vec::new(),
        };
        for _ in 0..workers {
            let inner = inner.clone();
            let worker = thread::Builder::new().name("pages-worker".into());
            server.workers.push(worker.spawn(move || inner.work())?);
        }
        let (watch, watched) = (thread::Builder::new(), inner.clone());
        let watch = watch.name("pages-watch".into());
        server.workers.push(watch.spawn(move || watched.watch())?);
        let accepts = thread::Builder::new().name("pages-accept".into());
        server.accepts = Some(accepts.spawn(move || inner.accept(&listener))?);
        Ok(server)
    }

    /// Where it is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it, and returns when nobody is in the source any more nor will be: what was read before may still be sent. Lasts as long as the
    /// source takes for what was asked of it last.
    pub fn finish(mut self) {
        let (workers, inner) = (std::mem::take(&mut self.workers), self.inner.clone());
        drop(self);
        for worker in workers {
            let _ = worker.join();
        }
        // Nobody starts any more of these.
        let stand_ins = std::mem::take(&mut *lock(&inner.stand_ins));
        for stand_in in stand_ins {
            let _ = stand_in.join();
        }
    }

    /// Why the files of the credentials, which have changed, cannot be used for connections; once for each change, when the
    /// first connection has been made after it.
    pub fn take_trouble(&self) -> Option<String> {
        self.inner.tls.as_ref()?.take_trouble()
    }

    /// What was served until now.
    pub fn stats(&self) -> ServerStats {
        let inner = &self.inner;
        ServerStats {
            connections: inner.connections.load(Ordering::Relaxed),
            failed: inner.failed.load(Ordering::Relaxed),
            received: inner.received.load(Ordering::Relaxed),
            requests: inner.requests.load(Ordering::Relaxed),
            refused: inner.refused.load(Ordering::Relaxed),
            bytes: inner.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        {
            // Under the lock, so that no worker is between looking and sleeping.
            let _work = lock(&self.inner.work);
            self.inner.is_ended.store(true, Ordering::Release);
        }
        self.inner.has_jobs.notify_all();
        self.inner.has_begun.notify_all();
        self.inner.bell.ring();
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
        // After the last was accepted.
        for peer in lock(&self.inner.peers).iter() {
            peer.bell.ring();
        }
    }
}

impl Inner {
    fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while !self.is_ended() {
            let is_full = self.connections.load(Ordering::Relaxed) >= self.serve.connections_max;
            if !is_full {
                match listener.accept() {
                    Ok((socket, _)) => {
                        if self.begin(socket).is_err() {
                            self.failed.fetch_add(1, Ordering::Relaxed);
                        }
                        continue;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // Of this connection alone, or of descriptors that others may give back.
                    Err(_) => {
                        let soon = Instant::now() + Duration::from_millis(100);
                        let mut fds = [PollFd::new(&self.bell, PollFlags::IN)];
                        let _ = wait_for(&mut fds, Some(soon));
                        self.bell.hear();
                        continue;
                    }
                }
            }
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, !is_full);
            let mut fds = [
                PollFd::from_borrowed_fd(listener.as_fd(), flags),
                PollFd::new(&self.bell, PollFlags::IN),
            ];
            let _ = wait_for(&mut fds, None);
            self.bell.hear();
        }
    }

    fn begin(self: &Arc<Self>, socket: TcpStream) -> io::Result<()> {
        let peer = Arc::new(Peer {
            answers: Mutex::default(),
            bell: Bell::new()?,
            is_gone: AtomicBool::new(false),
        });
        lock(&self.peers).push(peer.clone());
        self.connections.fetch_add(1, Ordering::Relaxed);
        let (inner, of) = (self.clone(), peer.clone());
        let spawned = thread::Builder::new()
            .name("pages-peer".into())
            .spawn(move || {
                // Whatever happens there, its place is free afterwards.
                let talked = catch_unwind(AssertUnwindSafe(|| inner.converse(socket, &of)));
                if !matches!(talked, Ok(Ok(()))) && !inner.is_ended() {
                    inner.failed.fetch_add(1, Ordering::Relaxed);
                }
                inner.end(&of);
            });
        if spawned.is_err() {
            self.end(&peer);
        }
        spawned.map(drop)
    }

    fn end(&self, peer: &Arc<Peer>) {
        peer.is_gone.store(true, Ordering::Relaxed);
        lock(&self.peers).retain(|other| !Arc::ptr_eq(other, peer));
        lock(&self.work)
            .jobs
            .retain(|job| !Arc::ptr_eq(&job.of, peer));
        self.connections.fetch_sub(1, Ordering::Relaxed);
        // There may be room for another.
        self.bell.ring();
    }

    /// Talks until the other side is done: `Ok`, or fails.
    fn converse(&self, socket: TcpStream, peer: &Arc<Peer>) -> Result<(), Error> {
        match self.serve_all(socket, peer) {
            // Between two requests: it needs nothing more.
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            other => other,
        }
    }

    fn serve_all(&self, socket: TcpStream, peer: &Arc<Peer>) -> Result<(), Error> {
        use rustix::net::sockopt;
        // A host that is gone without a word is noticed.
        sockopt::set_socket_keepalive(&socket, true).map_err(io::Error::from)?;
        sockopt::set_tcp_keepidle(&socket, Duration::from_secs(30)).map_err(io::Error::from)?;
        let tls = self.tls.as_ref().map(Fresh::get);
        let tls = tls.map(ServerConnection::new).transpose()?;
        let mut channel = Channel::new(socket, tls.map(Into::into))?;

        let until = Instant::now() + self.serve.timeout;
        let mut hello = [0; wire::HELLO];
        channel.read_all(&mut hello, until)?;
        let greeted = wire::check_hello(&hello);
        // Also to who speaks another version, which tells them ours; to strangers nothing.
        if !matches!(greeted, Ok(()) | Err(WireError::Version(_))) {
            greeted?;
        }
        if let Some(secret) = &self.serve.secret {
            let mut shown = [0; wire::SHOWN];
            channel.read_all(&mut shown, until)?;
            if !wire::is_shown(secret, &shown) {
                return Err(io::Error::from(io::ErrorKind::PermissionDenied).into());
            }
        }
        let welcome = Welcome {
            len: self.serve.len,
            identity: self.serve.identity,
            set: self.working_set().len() as u32,
        };
        channel.write_all(&welcome.bytes(), until)?;
        greeted?;

        let mut now: Option<(Answer, usize)> = None;
        let (mut owed, mut came) = (0, Vec::new());
        let mut hurry = Hurry::default();
        let mut moved = Instant::now();
        loop {
            if self.is_ended() {
                return Ok(());
            }
            // What can be sent.
            loop {
                if now.is_none() {
                    now = lock(&peer.answers).pop().map(|answer| (answer, 0));
                }
                let Some((answer, sent)) = &mut now else {
                    break;
                };
                let taken = channel.write(&answer.bytes[*sent..])?;
                *sent += taken;
                if taken > 0 {
                    moved = Instant::now();
                }
                if *sent == answer.bytes.len() {
                    owed -= answer.owed;
                    self.bytes.fetch_add(*sent as u64, Ordering::Relaxed);
                    now = None;
                } else if taken == 0 {
                    channel.flush()?;
                    if channel.wants_write() {
                        break;
                    }
                }
            }
            if channel.flush()? {
                moved = Instant::now();
            }
            // What is asked for.
            let has_room = owed < OWED_MAX;
            if has_room && self.hear(&mut channel, &mut came, peer, &mut owed, &mut hurry)? {
                continue;
            }
            // Reading may have left something to be said, too.
            if channel.flush()? {
                moved = Instant::now();
            }
            let is_stuck = channel.wants_write();
            let until = is_stuck.then(|| moved + self.serve.timeout);
            if until.is_some_and(|until| until <= Instant::now()) {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            channel.wait(peer.bell.as_fd(), has_room, until)?;
            peer.bell.hear();
        }
    }

    /// Reads requests; whether there was anything.
    fn hear(
        &self,
        channel: &mut Channel,
        came: &mut Vec<u8>,
        peer: &Arc<Peer>,
        owed: &mut usize,
        hurry: &mut Hurry,
    ) -> Result<bool, Error> {
        let mut bytes = [0; 16 * wire::REQUEST];
        let Some(read) = channel.read(&mut bytes)? else {
            return Ok(false);
        };
        came.extend_from_slice(&bytes[..read]);
        let (requests, rest) = came.as_chunks::<{ wire::REQUEST }>();
        for request in requests {
            let request = Request::of(request)?;
            *owed += request.answer_max() as usize;
            if request.ask == Ask::Read
                && let Some(hurries) = hurry.change(request.is_urgent)
            {
                channel.hurry(hurries);
            }
            let mut work = lock(&self.work);
            let is_watched = std::mem::replace(&mut work.is_watched, true);
            work.jobs.push(
                request.is_urgent,
                Job {
                    request,
                    of: peer.clone(),
                },
            );
            drop(work);
            self.received.fetch_add(1, Ordering::Relaxed);
            self.has_jobs.notify_one();
            if !is_watched {
                self.has_begun.notify_one();
            }
        }
        *came = rest.to_vec();
        Ok(true)
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            self.do_job(job);
        }
    }

    fn do_job(&self, Job { request, of }: Job) {
        if of.is_gone.load(Ordering::Relaxed) {
            return;
        }
        // A source that panics costs its answer, not this thread.
        let answer = catch_unwind(AssertUnwindSafe(|| self.answer(&request)));
        let answer = answer.unwrap_or(Err((Refusal::Gone, "the source has failed".into())));
        let answer = answer.unwrap_or_else(|(why, reason)| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            wire::refusal(request.id, why, &reason)
        });
        self.requests.fetch_add(1, Ordering::Relaxed);
        let answer = Answer {
            bytes: answer,
            owed: request.answer_max() as usize,
        };
        lock(&of.answers).push(request.is_urgent, answer);
        of.bell.ring();
    }

    fn next(&self) -> Option<Job> {
        let mut work = lock(&self.work);
        loop {
            if self.is_ended() {
                return None;
            }
            if let Some(job) = work.begin() {
                return Some(job);
            }
            work = self
                .has_jobs
                .wait(work)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has somebody stand in whenever jobs wait and none is begun for a while: all workers are held up by the source. Sleeps while nothing is asked for.
    fn watch(self: &Arc<Self>) {
        let mut work = lock(&self.work);
        while !self.is_ended() {
            if !work.is_watched {
                work = self
                    .has_begun
                    .wait(work)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let begun = work.begun;
            (work, _) = self
                .has_begun
                .wait_timeout_while(work, HELD_UP, |_| !self.is_ended())
                .unwrap_or_else(PoisonError::into_inner);
            work.is_watched = work.jobs.has_of(|_| true);
            if work.is_watched && work.begun == begun && !self.is_ended() {
                drop(work);
                self.stand_in();
                work = lock(&self.work);
            }
        }
    }

    /// One more thread, until nothing waits. If there can be none, the next look tries again.
    fn stand_in(self: &Arc<Self>) {
        let mut stand_ins = lock(&self.stand_ins);
        stand_ins.retain(|stand_in| !stand_in.is_finished());
        if stand_ins.len() < STAND_INS {
            let inner = self.clone();
            let stand_in = thread::Builder::new().name("pages-stand-in".into());
            stand_ins.extend(stand_in.spawn(move || inner.work_off()));
        }
    }

    fn work_off(&self) {
        while !self.is_ended() {
            let job = lock(&self.work).begin();
            let Some(job) = job else { return };
            self.do_job(job);
        }
    }

    fn answer(&self, request: &Request) -> Result<Vec<u8>, (Refusal, String)> {
        let source = &self.serve.source;
        let refused = |error: SourceError| {
            let why = match error {
                SourceError::Short { .. } => Refusal::Short,
                SourceError::Corrupt(_) => Refusal::Corrupt,
                SourceError::Gone(_) => Refusal::Gone,
                _ => Refusal::Failed,
            };
            (why, error.to_string())
        };
        match request.ask {
            Ask::Read => {
                // Of the last page all may be read, whatever is behind the end of the memory in it.
                let end = self.serve.len.next_multiple_of(PAGE);
                if request.offset.saturating_add(request.len.into()) > end {
                    let end = self.serve.len;
                    return Err(refused(SourceError::Short { end }));
                }
                let mut at = 0;
                let runs = iter::from_fn(|| {
                    let left = Some(request.len - at).filter(|&left| left > 0)?;
                    let extent = source.extent(request.offset + u64::from(at), left.into());
                    let len = u32::try_from(extent.len).map_or(left, |len| len.clamp(1, left));
                    at += len;
                    Some((len, extent.is_zero))
                });
                Content::new(request.len, runs)
                    .fill(request.id, request.offset, |at, into| {
                        source.read(request.offset + u64::from(at), into)
                    })
                    .map_err(refused)
            }
            Ask::Map => Ok(wire::map_answer(request.id, &self.map(request))),
            Ask::Set => {
                let set = self.working_set();
                let first = usize::try_from(request.offset).unwrap_or(usize::MAX);
                let rest = set.get(first..).unwrap_or_default();
                let ranges = &rest[..rest.len().min(request.len as usize)];
                Ok(wire::set_answer(request.id, ranges))
            }
        }
    }

    /// What is told of it.
    fn working_set(&self) -> &[Range<u64>] {
        let set = &self.serve.working_set;
        &set[..set.len().min(wire::SET_MAX as usize)]
    }

    /// A bit for each huge page that holds anything. A step for each of them.
    fn map(&self, request: &Request) -> Vec<u8> {
        let mut bits = vec![0; request.len as usize];
        let first = request.offset / BLOCK;
        let end = self
            .serve
            .len
            .div_ceil(BLOCK)
            .min(first + 8 * bits.len() as u64);
        let mut at = first * BLOCK;
        while at < end * BLOCK {
            let extent = self.serve.source.extent(at, end * BLOCK - at);
            let block = at / BLOCK - first;
            if extent.is_zero {
                at = at.saturating_add(extent.len.max(1));
            } else {
                bits[(block / 8) as usize] |= 1 << (block % 8);
                at = (first + block + 1) * BLOCK;
            }
        }
        bits
    }
}
