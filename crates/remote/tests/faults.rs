//! Connections that break, lie and fall silent: right content or a clear error, within the timeout.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_pager::{MemorySource, Source, SourceError};
use amdahl_remote::{Connect, Remote, Serve, Server};

/// What happens to a connection.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It ends after so many bytes of answers.
    Cut(u64),
    /// One bit of that byte of the answers is another one.
    Flip(u64),
    /// After so many bytes of answers nothing comes any more.
    Silence(u64),
    /// It ends after so many bytes of requests.
    CutRequests(u64),
}

/// Stands between both sides; the faults happen to the connections in turn, and none to those that come after.
struct Between {
    address: SocketAddr,
    faults: Arc<Mutex<Vec<Fault>>>,
    is_ended: Arc<AtomicBool>,
    met: Arc<AtomicU64>,
}

impl Between {
    fn new(to: Arc<Mutex<SocketAddr>>) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let between = Between {
            address: listener.local_addr().unwrap(),
            faults: Arc::default(),
            is_ended: Arc::default(),
            met: Arc::default(),
        };
        let (faults, is_ended, met) = (
            between.faults.clone(),
            between.is_ended.clone(),
            between.met.clone(),
        );
        thread::spawn(move || {
            for client in listener.incoming() {
                if is_ended.load(Ordering::Relaxed) {
                    return;
                }
                let client = client.unwrap();
                let fault = faults.lock().unwrap().pop();

                let Ok(server) = TcpStream::connect(*to.lock().unwrap()) else {
                    continue;
                };
                let pass = |mut from: TcpStream, mut to: TcpStream, fault: Option<Fault>| {
                    let met = met.clone();
                    thread::spawn(move || {
                        let _ = copy(&mut from, &mut to, fault, &met);
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                };
                let (there, back) = match fault {
                    Some(Fault::CutRequests(after)) => (Some(Fault::Cut(after)), None),
                    other => (None, other),
                };
                pass(
                    client.try_clone().unwrap(),
                    server.try_clone().unwrap(),
                    there,
                );
                pass(server, client, back);
            }
        });
        between
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn copy(
    from: &mut TcpStream,
    to: &mut TcpStream,
    fault: Option<Fault>,
    met: &AtomicU64,
) -> std::io::Result<()> {
    let mut passed = 0;
    let mut bytes = [0; 16 << 10];
    loop {
        let read = from.read(&mut bytes)?;
        if read == 0 {
            return Ok(());
        }
        let bytes = &mut bytes[..read];
        let here = passed..passed + read as u64;
        passed = here.end;
        if let Some(Fault::Cut(at) | Fault::Flip(at) | Fault::Silence(at)) = fault
            && here.contains(&at)
        {
            met.fetch_add(1, Ordering::Relaxed);
        }
        match fault {
            Some(Fault::Cut(at)) if here.contains(&at) => {
                return to.write_all(&bytes[..(at - here.start) as usize]);
            }
            Some(Fault::Flip(at)) if here.contains(&at) => {
                bytes[(at - here.start) as usize] ^= 1 << (at % 8);
            }
            Some(Fault::Silence(at)) if here.end > at => {
                // Until the other side gives up.
                while to.read(&mut [0; 1])? > 0 {}
                return Ok(());
            }
            _ => {}
        }
        to.write_all(bytes)?;
    }
}

fn content(len: usize) -> Arc<[u8]> {
    (0..len).map(|at| (at * 7 + at / 4096) as u8 | 1).collect()
}

fn serve(content: &Arc<[u8]>) -> Serve {
    let source = MemorySource::of_bytes(content.clone());
    Serve::new(Arc::new(source), content.len() as u64, *b"0123456789abcdef")
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[test]
fn content_is_right_whatever_breaks_and_wherever() {
    let content = content(6 << 20);
    let server = Server::start("127.0.0.1:0", serve(&content)).unwrap();
    let mut met = 0;
    for seed in 0..150 {
        let mut random = Random(seed);
        let between = Between::new(Arc::new(Mutex::new(server.address())));
        // The first connection is the one that says what there is; it fails in a test of its own.
        let streams = 1 + random.below(3) as usize;
        let connect = Connect {
            streams,
            timeout: Duration::from_secs(30),
            ..Connect::new(between.address.to_string())
        };
        let faults = (0..1 + random.below(4)).map(|_| {
            let at = match random.below(3) {
                0 => random.below(200),
                1 => random.below(10_000),
                _ => random.below(1 << 20),
            };
            match random.below(3) {
                0 => Fault::Cut(at),
                1 => Fault::Flip(at),
                _ => Fault::CutRequests(at % 400),
            }
        });
        let faults: Vec<Fault> = faults.collect();
        let remote = loop {
            // A fault in the very first words is one that the caller is told of.
            between.faults.lock().unwrap().clone_from(&faults);
            match Remote::connect(connect.clone()) {
                Ok(remote) => break remote,
                Err(_) => between.faults.lock().unwrap().clear(),
            }
            if let Ok(remote) = Remote::connect(connect.clone()) {
                break remote;
            }
        };
        thread::scope(|scope| {
            for thread in 0..3 {
                let (remote, content) = (&remote, &content);
                scope.spawn(move || {
                    let mut random = Random(seed << 8 | thread);
                    for _ in 0..6 {
                        let at = random.below(1000) * 4096;
                        let mut into = vec![0; 4096 << random.below(9)];
                        let into = &mut into[..];
                        remote
                            .read(at, into)
                            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                        assert!(*into == content[at as usize..][..into.len()], "seed {seed}");
                    }
                });
            }
        });
        met += between.met.load(Ordering::Relaxed);
    }
    assert!(met > 100, "only {met} faults happened");
}

#[test]
fn a_silent_connection_is_replaced() {
    let content = content(4 << 20);
    let server = Server::start("127.0.0.1:0", serve(&content)).unwrap();
    let between = Between::new(Arc::new(Mutex::new(server.address())));
    between.faults.lock().unwrap().push(Fault::Silence(100_000));
    let connect = Connect {
        streams: 1,
        timeout: Duration::from_secs(3),
        ..Connect::new(between.address.to_string())
    };
    let remote = Remote::connect(connect).unwrap();
    let mut into = vec![0; 1 << 20];
    remote.read(0, &mut into).unwrap();
    assert!(into == content[..1 << 20]);
    assert!(remote.stats().reconnects > 0 && remote.stats().repeated > 0);
}

/// A memory whose first page nobody gets until it is let go.
struct Deaf {
    content: Arc<[u8]>,
    asked: AtomicU64,
    is_let_go: AtomicBool,
}

impl Source for Deaf {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        if offset < 4096 {
            self.asked.fetch_add(1, Ordering::SeqCst);
            while !self.is_let_go.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        into.copy_from_slice(&self.content[offset as usize..][..into.len()]);
        Ok(())
    }
}

/// As many silent reads as there are workers stopped every client.
#[test]
fn pages_that_the_source_keeps_back_keep_no_others_back() {
    const SILENT: u64 = 3;
    let content = content(1 << 20);
    let source = Arc::new(Deaf {
        content: content.clone(),
        asked: AtomicU64::new(0),
        is_let_go: AtomicBool::new(false),
    });
    let serve = Serve {
        workers: 1,
        source: source.clone(),
        ..serve(&content)
    };
    let server = Server::start("127.0.0.1:0", serve).unwrap();
    let connect = || {
        // Long enough for no connection to be given up meanwhile.
        Remote::connect(Connect {
            timeout: Duration::from_secs(60),
            ..Connect::new(server.address().to_string())
        })
        .unwrap()
    };
    thread::scope(|scope| {
        let silent = || {
            let remote = connect();
            move || remote.read(0, &mut [0; 4096])
        };
        let silent: Vec<_> = (0..SILENT).map(|_| scope.spawn(silent())).collect();
        while source.asked.load(Ordering::SeqCst) < SILENT
            && !silent.iter().any(|s| s.is_finished())
        {
            thread::yield_now();
        }
        let mut page = [0; 4096];
        let read = connect().read(4096, &mut page);
        source.is_let_go.store(true, Ordering::SeqCst);
        assert_eq!(read, Ok(()));
        assert!(page == content[4096..8192]);
        for silent in silent {
            assert_eq!(silent.join().unwrap(), Ok(()));
        }
    });
    // Whoever stood in is waited for, too.
    server.finish();
}

#[test]
fn when_nobody_is_there_any_more_the_timeout_ends_it() {
    let content = content(4 << 20);
    let server = Server::start("127.0.0.1:0", serve(&content)).unwrap();
    let timeout = Duration::from_millis(500);
    let connect = Connect {
        timeout,
        ..Connect::new(server.address().to_string())
    };
    let remote = Remote::connect(connect).unwrap();
    drop(server);
    let begun = Instant::now();
    let error = remote.read(0, &mut [0; 4096]).unwrap_err();
    assert_eq!(error, SourceError::Late);
    assert!(begun.elapsed() >= timeout);
}

#[test]
fn the_same_memory_may_come_back_and_another_one_may_not() {
    let content = content(4 << 20);
    let server = Server::start("127.0.0.1:0", serve(&content)).unwrap();
    let at = Arc::new(Mutex::new(server.address()));
    let between = Between::new(at.clone());
    let remote = Remote::connect(Connect::new(between.address.to_string())).unwrap();
    let mut page = [0; 4096];
    remote.read(0, &mut page).unwrap();

    drop(server);
    // It is the same with a working set, too.
    let again = Serve {
        working_set: std::iter::once(0..1).collect(),
        ..serve(&content)
    };
    let server = Server::start("127.0.0.1:0", again).unwrap();
    *at.lock().unwrap() = server.address();
    remote.read(4096, &mut page).unwrap();
    assert!(page == content[4096..8192]);

    drop(server);
    let other = Serve {
        identity: *b"fedcba9876543210",
        ..serve(&content)
    };
    let server = Server::start("127.0.0.1:0", other).unwrap();
    *at.lock().unwrap() = server.address();
    let error = remote.read(8192, &mut page).unwrap_err();
    assert!(matches!(error, SourceError::Gone(_)), "{error}");
    // And at once from now on.
    assert!(matches!(
        remote.read(0, &mut page),
        Err(SourceError::Gone(_))
    ));
}

#[test]
fn a_client_that_takes_nothing_is_let_go() {
    let content = content(4 << 20);
    let serve = Serve {
        timeout: Duration::from_millis(300),
        ..serve(&content)
    };
    let server = Server::start("127.0.0.1:0", serve).unwrap();
    // The greeting is awaited no longer than all else.
    let mut late = 0;
    let mut socket = loop {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        let greeted = socket
            .write_all(&amdahl_remote::wire::hello())
            .and_then(|()| socket.read_exact(&mut [0; amdahl_remote::wire::WELCOME]));
        if greeted.is_ok() {
            break socket;
        }
        late += 1;
    };
    let request = amdahl_remote::wire::Request {
        id: 0,
        ask: amdahl_remote::wire::Ask::Read,
        is_urgent: false,
        offset: 0,
        len: amdahl_remote::wire::READ_MAX,
    };
    // More than all buffers of the kernel hold, until the server has had enough.
    while socket.write_all(&request.bytes()).is_ok() {}
    while server.stats().connections > 0 {
        thread::yield_now();
    }
    assert_eq!(server.stats().failed, 1 + late);
}
