//! After the switch-over the source, or the way to it, is away for a while: longer than a page may take, and the guest goes on with right memory; longer than the patience, and both
//! owners are told. Nobody else takes the place of a side. `AMDAHL_SEEDS=N` runs as many seeds, `AMDAHL_SEED=N` that one.

mod common;
#[path = "../../remote/tests/common/mod.rs"]
mod mischief;

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_migrate::wire::Message;
use amdahl_migrate::{
    Arrival, Await, Connection, Departure, Error, Outage, Redial, TellOutage, Trust,
};
use amdahl_pager::{Background, Backing, Engine, Mapping, PAGE};
use amdahl_test_vm::{Kind, Machine};
use common::{
    Odd, Owner, PAGES, PATIENCE, arrival, at_first, departure, is_possible, memory, prove_sums,
    with_post_copy,
};
use mischief::gate::{Cut, Gate, Shut};
use mischief::{Random, run_seeds_by};

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The source is back where it was.
    Back,
    /// It is back with another address.
    Moved,
    /// It is back for none of the tries.
    Lost,
}

/// Seeds that were back, had moved and were lost; outages that either side was told of.
static HAPPENED: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

fn tell() -> (Arc<TellOutage>, Arc<Mutex<Vec<Outage>>>) {
    let told = Arc::<Mutex<Vec<Outage>>>::default();
    let to = told.clone();
    let tell = move |outage: &Outage| to.lock().unwrap().push(outage.clone());
    (Arc::new(tell), told)
}

/// Begun and over in turn.
fn check_told(seed: u64, told: &[Outage]) -> u64 {
    for (nth, outage) in told.iter().enumerate() {
        let is_begun = matches!(outage, Outage::Begun { .. });
        assert_eq!(is_begun, nth % 2 == 0, "seed {seed}: {told:?}");
    }
    told.len().div_ceil(2) as u64
}

/// Who connects within that time.
fn accept(listener: &TcpListener, within: Duration) -> Option<TcpStream> {
    listener.set_nonblocking(true).unwrap();
    let begun = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return Some(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        if begun.elapsed() >= within {
            return None;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn seed_of_outages(seed: u64) {
    let mut random = Random::of_seed(seed);
    let fate = match seed % 4 {
        0 => Fate::Lost,
        1 => Fate::Moved,
        _ => Fate::Back,
    };
    // Where it comes back a busy machine has seconds for a page, and it is away for longer than that.
    let page_timeout = Duration::from_millis(if fate == Fate::Lost { 300 } else { 5000 });
    let within = match fate {
        Fate::Lost => 2 * page_timeout,
        _ => PATIENCE,
    };
    let lasts = (fate != Fate::Lost).then_some(page_timeout * 5 / 4);
    // The destination listens behind a gate; pages are served at one address of this host, and fetched through a gate at another with the same port.
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let control = Gate::new("127.0.0.1:0", listener.local_addr().unwrap());
    let at = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = at.local_addr().unwrap().port();
    let pages = Gate::of(at, format!("127.0.0.2:{port}").parse().unwrap());
    let from = memory(Backing::Small);
    let before = at_first(&from);
    let to = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
    let mut owner = Owner::new(Kind::Threads, &from);
    owner.waits_for = 20;
    let (tell_here, told_here) = tell();
    let (tell_there, told_there) = tell();
    let has_moved = fate == Fate::Moved;
    let connect_to = control.address;
    let departure = Departure {
        limits: with_post_copy(),
        listen: format!("127.0.0.2:{port}"),
        redial: Some(Redial {
            within,
            connect: Arc::new(move |_| {
                let cut = |error: std::io::Error| Error::Cut(error.to_string());
                let socket = TcpStream::connect(connect_to).map_err(cut)?;
                let mut connection = Connection::of_tcp(socket, Trust::default(), true)?;
                let here = if has_moved {
                    "127.0.0.3:0"
                } else {
                    "127.0.0.2:0"
                };
                here.clone_into(&mut connection.here);
                Ok(connection)
            }),
            give_up: Arc::default(),
            tell: Some(tell_here),
        }),
        ..departure()
    };
    let waits = listener.clone();
    let arrival = Arrival {
        page_timeout,
        background: Background::Off,
        engine: Engine::Reader,
        recovery: Some(Await {
            within,
            accept: Arc::new(move |within| {
                let Some(socket) = accept(&waits, within) else {
                    return Ok(None);
                };
                let mut connection = Connection::of_tcp(socket, Trust::default(), false)?;
                let there = if has_moved { "127.0.0.3" } else { "127.0.0.1" };
                there.clone_into(&mut connection.there);
                Ok(Some(connection))
            }),
            tell: Some(tell_there),
        }),
        ..arrival()
    };
    // At any byte after the promise: of the word that it runs, of progress; of pages.
    let kind = random.below(3);
    let how = |random: &mut Random| match random.below(2) {
        0 => Shut::Silent,
        _ => Shut::Refusing,
    };
    let control_cut = Cut {
        how: Shut::Refusing,
        after: 16 + random.below(80),
        lasts,
    };
    let pages_cut = Cut {
        how: how(&mut random),
        after: random.below(60_000),
        lasts: lasts.filter(|_| !has_moved),
    };
    thread::scope(|scope| {
        let arrived = scope.spawn(|| -> Result<Option<Error>, Error> {
            let first = accept(&listener, PATIENCE).unwrap();
            // SAFETY: nobody else has that memory.
            let offer = unsafe { arrival.receive(&to, first) }?;
            let cut = |gate: &Gate, cut: Cut| {
                let after = gate.passed() + cut.after;
                gate.cut([Cut { after, ..cut }]);
            };
            if has_moved || kind != 1 {
                cut(&control, control_cut);
            }
            if fate != Fate::Back || kind != 0 {
                cut(&pages, pages_cut);
            }
            let machine = Machine::of_state(Kind::Threads, to.clone(), &offer.state).unwrap();
            let mut landed = offer.accept()?;
            assert!(landed.missing_now() > 0, "seed {seed}");
            if fate == Fate::Lost {
                let ended = landed.finish(|_| {});
                return Ok(ended.err());
            }
            let running = machine.run().unwrap();
            // It stops when it has written something, and looks at all of its memory before, wherever that is: it waits for what does not come.
            let sums = scope.spawn(move || {
                let until = running.steps() + 40;
                while running.steps() < until && !running.has_failed() {
                    thread::sleep(Duration::from_millis(1));
                }
                running.sums()
            });
            landed.finish(|_| {})?;
            let sums = sums.join().unwrap().unwrap();
            prove_sums(&format!("seed {seed}"), &sums, &before);
            Ok(None)
        });
        let source = TcpStream::connect(control.address).unwrap();
        // SAFETY: the machine alone writes to it.
        let departed = unsafe { departure.run(&from, source, &mut owner) };
        let mut departed = departed.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let waited = departed.wait(|_| {});
        let arrived = arrived.join().unwrap();
        let told = check_told(seed, &told_here.lock().unwrap())
            + check_told(seed, &told_there.lock().unwrap());
        HAPPENED[3].fetch_add(told, Ordering::SeqCst);
        match (fate, waited, arrived) {
            (Fate::Back | Fate::Moved, Ok(()), Ok(None)) => {}
            (Fate::Lost, Err(Error::Unknown(_)), Ok(Some(Error::Lost { .. }))) => {}
            (fate, waited, arrived) => panic!("seed {seed}: {fate:?}: {waited:?} {arrived:?}"),
        }
        HAPPENED[fate as usize].fetch_add(1, Ordering::SeqCst);
    });
}

#[test]
fn a_source_that_comes_back_goes_on_where_it_was_and_one_that_does_not_is_lost() {
    if !is_possible("a_source_that_comes_back_goes_on_where_it_was") {
        return;
    }
    let count = run_seeds_by(16, "a_source_that_comes_back", 32, seed_of_outages);
    let happened = HAPPENED.each_ref().map(|many| many.load(Ordering::SeqCst));
    println!("{count} seeds: back, moved, lost, outages told: {happened:?}");
    if count >= 32 {
        assert!(happened.iter().all(|many| *many >= 8), "{happened:?}");
    }
}

/// Refuses, or ends: the kinds of messages that were said to it meanwhile.
fn refuses(odd: &mut Odd) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let Some((kind, _)) = odd.hear() {
        kinds.push(kind);
    }
    kinds
}

#[test]
fn nobody_else_takes_the_place_of_a_side() {
    if !is_possible("nobody_else_takes_the_place_of_a_side") {
        return;
    }
    const RESUME: u8 = 9;
    const PROOF: u8 = 10;
    const REFUSED: u8 = 22;
    const CHALLENGE: u8 = 23;
    let from = Arc::new(Mapping::new(64 * PAGE, Backing::Small).unwrap());
    from.write(5 * PAGE, &[5; PAGE]);
    let to = Arc::new(Mapping::new(64 * PAGE, Backing::Small).unwrap());
    // Those who are let in at the destination, one after the other; the last is the source.
    let (comes, come) = std::sync::mpsc::channel::<UnixStream>();
    let (come, comes_too) = (Mutex::new(come), comes.clone());
    let tries = Arc::new(AtomicU64::new(0));
    let (dials, said) = (tries.clone(), Arc::new(Mutex::new(Vec::new())));
    let said_to = said.clone();
    let is_safe = Arc::new(AtomicBool::new(false));
    let safe = is_safe.clone();
    let departure = Departure {
        redial: Some(Redial {
            within: PATIENCE,
            connect: Arc::new(move |_| {
                let (here, there) = UnixStream::pair().unwrap();
                if dials.fetch_add(1, Ordering::SeqCst) == 0 {
                    // Somebody has taken the destination's place.
                    let said = said_to.clone();
                    thread::spawn(move || {
                        let mut odd = Odd(there);
                        let first = odd.hear().unwrap();
                        odd.say(&Message::Challenge {
                            nonce: [1; 32],
                            proof: [2; 32],
                        });
                        let rest = refuses(&mut odd);
                        said.lock()
                            .unwrap()
                            .extend([first.0].into_iter().chain(rest));
                    });
                } else if !safe.load(Ordering::SeqCst) {
                    return Err(Error::Cut("not yet".into()));
                } else {
                    comes_too.send(there).unwrap();
                }
                Ok(Connection::of_unix(here))
            }),
            give_up: Arc::default(),
            tell: None,
        }),
        ..departure()
    };
    let (tell, told) = tell();
    let arrival = Arrival {
        recovery: Some(Await {
            within: PATIENCE,
            accept: Arc::new(move |within| {
                let next = come.lock().unwrap().recv_timeout(within);
                Ok(next.ok().map(Connection::of_unix))
            }),
            tell: Some(tell),
        }),
        ..arrival()
    };
    struct Still;
    impl amdahl_migrate::Guest for Still {
        fn pause(&mut self) -> Result<Vec<u8>, String> {
            Ok(vec![7])
        }
        fn resume(&mut self) {
            panic!("it has left");
        }
    }
    // The connection ends after the word that it runs, in either direction.
    let (here, there) = UnixStream::pair().unwrap();
    let ends = there.try_clone().unwrap();
    thread::scope(|scope| {
        let arrived = scope.spawn(|| {
            // SAFETY: nobody else has that memory.
            let offer = unsafe { arrival.receive(&to, there) }.unwrap();
            let mut landed = offer.accept().unwrap();
            ends.shutdown(std::net::Shutdown::Both).unwrap();
            let finished = landed.finish(|_| {});
            (finished, landed.outages())
        });
        let strangers = scope.spawn(|| {
            let nonce = [3; 32];
            let hello = Message::Hello {
                len: 64 * PAGE as u64,
                identity: [0; 16],
                secret: amdahl_migrate::wire::Secret([0; 32]),
            };
            for first in [hello, Message::Resume { nonce }, Message::Farewell] {
                let (odd, there) = UnixStream::pair().unwrap();
                comes.send(there).unwrap();
                let mut odd = Odd(odd);
                odd.say(&first);
                if first == (Message::Resume { nonce }) {
                    // What it says is said back to it.
                    let (kind, payload) = odd.hear().unwrap();
                    assert_eq!(kind, CHALLENGE);
                    let proof = payload[32..].try_into().unwrap();
                    odd.say(&Message::Proof { proof, port: 80 });
                }
                assert_eq!(refuses(&mut odd), [REFUSED], "{first:?}");
            }
            is_safe.store(true, Ordering::SeqCst);
        });
        // SAFETY: nobody writes to it.
        let departed = unsafe { departure.run(&from, here, &mut Still) };
        let waited = departed.unwrap().wait(|_| {});
        strangers.join().unwrap();
        let (finished, outages) = arrived.join().unwrap();
        assert_eq!((waited, finished, outages), (Ok(()), Ok(()), 1));
    });
    assert!(tries.load(Ordering::SeqCst) >= 2);
    // Who could not prove anything was told a number that nobody else is told, and nothing more.
    let begun = Instant::now();
    while said.lock().unwrap().is_empty() {
        assert!(begun.elapsed() < PATIENCE);
        thread::yield_now();
    }
    assert_eq!(*said.lock().unwrap(), [RESUME]);
    assert!(!said.lock().unwrap().contains(&PROOF));
    assert_eq!(told.lock().unwrap().len(), 2);
    let mut page = [0; PAGE];
    to.read(5 * PAGE, &mut page);
    assert_eq!(page, [5; PAGE]);
}

/// Who asks for the end of it is not kept waiting for somebody who does not come back.
#[test]
fn a_recovery_is_given_up_when_its_owner_wants_that() {
    if !is_possible("a_recovery_is_given_up_when_its_owner_wants_that") {
        return;
    }
    let from = memory(Backing::Small);
    let to = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
    let mut owner = Owner::new(Kind::Threads, &from);
    let give_up = Arc::new(AtomicBool::new(false));
    let asks = give_up.clone();
    let departure = Departure {
        redial: Some(Redial {
            within: Duration::MAX,
            connect: Arc::new(|_| Err(Error::Cut("nobody is there".into()))),
            give_up,
            tell: Some(Arc::new(move |_| asks.store(true, Ordering::SeqCst))),
        }),
        ..departure()
    };
    let (here, there) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: nobody else has that memory.
            let offer = unsafe { arrival().receive(&to, there) }.unwrap();
            // It ends without a word.
            drop(offer.accept().unwrap());
        });
        // SAFETY: the machine alone writes to it.
        let mut departed = unsafe { departure.run(&from, here, &mut owner) }.unwrap();
        let unknown = departed.wait(|_| {}).unwrap_err();
        assert!(matches!(unknown, Error::Unknown(_)), "{unknown}");
        assert_eq!(departed.wait(|_| {}), Err(unknown));
        assert!(departed.is_unknown());
    });
}
