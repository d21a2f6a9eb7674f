//! Stands between client and server and knows their frames: answers come late, in another order, twice, damaged or cut, as a seed says.
#![allow(dead_code)] // Each test binary uses a part.

pub mod gate;

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use amdahl_remote::wire::{ANSWER, AnswerHead, HELLO, REQUEST, Request, SHOWN, WELCOME};

/// Seeds that run at the same time: most of their time they wait.
const AT_ONCE: usize = 6;

/// Runs `usual` seeds, or `AMDAHL_SEEDS=N`, or `AMDAHL_SEED=N` alone. One that fails, or does not end, says how it is repeated. How many there were.
pub fn run_seeds(test: &str, usual: u64, run: impl Fn(u64) + Send + Sync + 'static) -> u64 {
    run_seeds_by(AT_ONCE, test, usual, run)
}

/// The same, so many at the same time.
pub fn run_seeds_by(
    at_once: usize,
    test: &str,
    usual: u64,
    run: impl Fn(u64) + Send + Sync + 'static,
) -> u64 {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        let number = text.parse::<u64>();
        Some(number.unwrap_or_else(|_| panic!("{name} is a number of seeds")))
    };
    let seeds = match number("AMDAHL_SEED") {
        Some(one) => one..one + 1,
        None => 0..number("AMDAHL_SEEDS").unwrap_or(usual),
    };
    let (next, run) = (AtomicU64::new(seeds.start), Arc::new(run));
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end {
                        return;
                    }
                    run_seed(test, seed, run.clone());
                }
            });
        }
    });
    seeds.end - seeds.start
}

fn run_seed(test: &str, seed: u64, run: Arc<impl Fn(u64) + Send + Sync + 'static>) {
    let (to, ended) = std::sync::mpsc::channel();
    let running = thread::spawn(move || {
        run(seed);
        let _ = to.send(());
    });
    // What never ends is what is looked for: many times longer than any timeout in it.
    let ended = ended.recv_timeout(Duration::from_secs(300));
    if let Err(why) = ended {
        let (package, binary) = (env!("CARGO_PKG_NAME"), env!("CARGO_CRATE_NAME"));
        eprintln!(
            "to repeat seed {seed}: AMDAHL_SEED={seed} cargo test -p {package} --test {binary} {test}"
        );
        assert!(
            why == std::sync::mpsc::RecvTimeoutError::Disconnected,
            "seed {seed} does not end"
        );
        running.join().expect("the seed failed");
    }
}

#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// That of a seed, which differs from those beside it.
    pub fn of_seed(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed);
        random.below(2);
        random
    }

    /// How often something happens that does not happen at all in half of the seeds: less than `most`.
    pub fn often(&mut self, most: u64) -> u64 {
        match self.below(2) {
            0 => 0,
            _ => self.below(most),
        }
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What happens to answers: of 1000, how many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mischief {
    /// Kept back until others have passed, or nothing else comes.
    pub held: u64,
    /// Sent once more, at once or later.
    pub doubled: u64,
    /// With another bit in what follows the head.
    pub damaged: u64,
    /// With another bit in the head.
    pub misled: u64,
    /// Cut in the middle, and the connection with them.
    pub cut: u64,
    /// Never sent, and nothing after them on that connection. Once.
    pub silenced: u64,
    /// All answers with a byte of this page are damaged.
    pub bad_page: Option<u64>,
    /// After so many answers nobody is there any more.
    pub end: Option<u64>,
}

/// What has happened.
#[derive(Debug, Default)]
pub struct Done {
    pub answers: AtomicU64,
    pub held: AtomicU64,
    pub overtaken: AtomicU64,
    pub doubled: AtomicU64,
    pub damaged: AtomicU64,
    pub broken: AtomicU64,
    pub is_over: AtomicBool,
    is_silenced: AtomicBool,
}

/// Where clients connect.
pub struct Unruly {
    pub address: SocketAddr,
    pub done: Arc<Done>,
    is_ended: Arc<AtomicBool>,
}

/// One connection, from its first answer on.
struct Passage {
    random: Random,
    mischief: Mischief,
    done: Arc<Done>,
    /// What was asked for under which number.
    asked: Arc<Mutex<HashMap<u32, Request>>>,
    held: Vec<Vec<u8>>,
}

impl Unruly {
    /// At that address, in front of a server whose clients show a secret, or do not.
    pub fn new(
        at: &str,
        to: SocketAddr,
        has_secret: bool,
        mischief: Mischief,
        seed: u64,
    ) -> Unruly {
        let listener = TcpListener::bind(at).unwrap();
        Unruly::of(listener, to, has_secret, mischief, seed)
    }

    /// The same of a socket that listens already.
    pub fn of(
        listener: TcpListener,
        to: SocketAddr,
        has_secret: bool,
        mischief: Mischief,
        seed: u64,
    ) -> Unruly {
        let unruly = Unruly {
            address: listener.local_addr().unwrap(),
            done: Arc::default(),
            is_ended: Arc::default(),
        };
        let (done, is_ended) = (unruly.done.clone(), unruly.is_ended.clone());
        thread::spawn(move || {
            for (number, client) in listener.incoming().enumerate() {
                if is_ended.load(Ordering::SeqCst) {
                    return;
                }
                let client = client.unwrap();
                if done.is_over.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(to) else {
                    continue;
                };
                for socket in [&client, &server] {
                    socket.set_nodelay(true).unwrap();
                }
                let asked = Arc::<Mutex<HashMap<u32, Request>>>::default();
                let greeting = HELLO + if has_secret { SHOWN } else { 0 };
                let passage = Passage {
                    random: Random(seed ^ (number as u64) << 40),
                    mischief,
                    done: done.clone(),
                    asked: asked.clone(),
                    held: Vec::new(),
                };
                let both = |one: &TcpStream| one.try_clone().unwrap();
                let (from, to) = (both(&client), both(&server));
                between(from, to, move |from, to| ask(from, to, greeting, &asked));
                between(server, client, move |from, to| passage.answer(from, to));
            }
        });
        unruly
    }
}

impl Drop for Unruly {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

/// Passes on until one of the two ends, which ends both.
fn between(
    mut from: TcpStream,
    mut to: TcpStream,
    pass: impl FnOnce(&mut TcpStream, &mut TcpStream) -> std::io::Result<()> + Send + 'static,
) {
    thread::spawn(move || {
        let _ = pass(&mut from, &mut to);
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    });
}

fn ask(
    from: &mut TcpStream,
    to: &mut TcpStream,
    greeting: usize,
    asked: &Mutex<HashMap<u32, Request>>,
) -> std::io::Result<()> {
    let mut hello = vec![0; greeting];
    from.read_exact(&mut hello)?;
    to.write_all(&hello)?;
    loop {
        let mut bytes = [0; REQUEST];
        from.read_exact(&mut bytes)?;
        let request = Request::of(&bytes).expect("a request");
        // Before its answer can come.
        asked.lock().unwrap().insert(request.id, request);
        to.write_all(&bytes)?;
    }
}

impl Passage {
    fn answer(mut self, from: &mut TcpStream, to: &mut TcpStream) -> std::io::Result<()> {
        let mut welcome = [0; WELCOME];
        from.read_exact(&mut welcome)?;
        to.write_all(&welcome)?;
        // Nothing waits longer for what nothing follows.
        from.set_read_timeout(Some(Duration::from_millis(2)))?;
        loop {
            let Some(frame) = self.frame(from, to)? else {
                return Ok(());
            };
            let head: [u8; ANSWER] = *frame.first_chunk().expect("a head");
            let head = AnswerHead::of(&head).expect("the head of an answer");
            let request = self.asked.lock().unwrap().get(&head.id).copied();
            let request = request.expect("an answer to something");
            let answers = self.done.answers.fetch_add(1, Ordering::SeqCst) + 1;
            if self.mischief.end.is_some_and(|end| answers > end) {
                self.done.is_over.store(true, Ordering::SeqCst);
            }
            if self.done.is_over.load(Ordering::SeqCst) {
                return Ok(());
            }
            self.pass(frame, &request, to)?;
        }
    }

    /// The next answer. While none comes, what was kept back goes on, in any order.
    fn frame(
        &mut self,
        from: &mut TcpStream,
        to: &mut TcpStream,
    ) -> std::io::Result<Option<Vec<u8>>> {
        let (mut frame, mut count) = (vec![0; ANSWER], 0);
        loop {
            match from.read(&mut frame[count..]) {
                Ok(0) => return Ok(None),
                Ok(read) => count += read,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    while !self.held.is_empty() {
                        self.let_one_go(to)?;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if count == ANSWER && frame.len() == ANSWER {
                let len = u32::from_le_bytes(frame[8..12].try_into().expect("4 bytes"));
                frame.resize(ANSWER + len as usize, 0);
            }
            if count == frame.len() {
                return Ok(Some(frame));
            }
        }
    }

    fn let_one_go(&mut self, to: &mut TcpStream) -> std::io::Result<()> {
        let which = self.random.below(self.held.len() as u64) as usize;
        to.write_all(&self.held.swap_remove(which))
    }

    fn pass(
        &mut self,
        mut frame: Vec<u8>,
        request: &Request,
        to: &mut TcpStream,
    ) -> std::io::Result<()> {
        let mischief = self.mischief;
        let mut dice = self.random.below(1000);
        // One of them at most.
        let mut is = |permille: u64| {
            let is = dice < permille;
            dice = dice.wrapping_sub(permille);
            is
        };
        let count = |what: &AtomicU64| {
            what.fetch_add(1, Ordering::SeqCst);
        };
        let pages = request.offset / 4096..(request.offset + u64::from(request.len)).div_ceil(4096);
        let is_bad = mischief.bad_page.is_some_and(|page| pages.contains(&page));
        let len = frame.len() as u64;
        if is_bad || is(mischief.damaged) {
            if len > ANSWER as u64 {
                let at = ANSWER + self.random.below(len - ANSWER as u64) as usize;
                frame[at] ^= 1 << self.random.below(8);
                count(&self.done.damaged);
            }
            return to.write_all(&frame);
        }
        if is(mischief.held) {
            count(&self.done.held);
            self.held.push(frame);
            return Ok(());
        }
        if is(mischief.doubled) {
            count(&self.done.doubled);
            match self.random.below(2) {
                0 => self.held.push(frame.clone()),
                _ => to.write_all(&frame)?,
            }
        } else if is(mischief.misled) {
            count(&self.done.broken);
            frame[self.random.below(ANSWER as u64) as usize] ^= 1 << self.random.below(8);
        } else if is(mischief.cut) {
            count(&self.done.broken);
            to.write_all(&frame[..self.random.below(len) as usize])?;
            return Err(ErrorKind::ConnectionReset.into());
        } else if is(mischief.silenced) && !self.done.is_silenced.swap(true, Ordering::SeqCst) {
            count(&self.done.broken);
            // Until the other side gives up.
            while to.read(&mut [0; 1])? > 0 {}
            return Ok(());
        }
        to.write_all(&frame)?;
        if !self.held.is_empty() && self.random.below(3) == 0 {
            count(&self.done.overtaken);
            self.let_one_go(to)?;
        }
        Ok(())
    }
}
