//! A process is asked to let its memory move: what it is told, by whom, and what becomes of the guest.

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use amdahl_migrate::door::{Asking, Door, Figures, News, Request};
use amdahl_migrate::{Departure, Error, Way};
use amdahl_pager::{Backing, Mapping, PAGE};
use amdahl_test_vm::{Kind, Machine};
use common::{Owner, PAGES, PATIENCE, arrival, at_first, is_possible, memory, prove};

fn us() -> u32 {
    std::process::id()
}

fn request(to: &Way) -> Request {
    let mut request = Request::new(to);
    request.timeout_ms = PATIENCE.as_millis() as u64;
    request
}

/// The last news, and how many there were of each kind before.
fn last(asking: &mut Asking) -> (News, Vec<News>) {
    let mut before = Vec::new();
    loop {
        match asking.next(PATIENCE).unwrap() {
            Some(news) if news.is_last() => return (news, before),
            Some(news) => before.push(news),
            None => {}
        }
    }
}

/// A connection to a door that says something by itself.
fn knock() -> UnixStream {
    let name = format!("amdahl-migrate/{}", us());
    let address = SocketAddr::from_abstract_name(name).unwrap();
    UnixStream::connect_addr(&address).unwrap()
}

// One test: a process has one door.
#[test]
fn a_process_is_asked_to_move() {
    let folder = tempfile::tempdir().unwrap();
    let way = Way::Unix(folder.path().join("way"));

    // Nobody is at home.
    let none = Asking::begin(us(), &request(&way)).unwrap_err();
    assert!(none.to_string().contains("cannot be asked"), "{none}");
    let none = Asking::begin(u32::MAX >> 2, &request(&way)).unwrap_err();
    assert!(none.to_string().contains("no such process"), "{none}");

    let door = Door::open().unwrap();
    assert!(matches!(Door::open(), Err(Error::System { .. })));
    assert!(door.visit(Duration::ZERO).unwrap().is_none());

    // What is not understood is told, and nobody is let in; nor is one who has gone.
    let long = "x".repeat(70_000);
    for line in ["{}", "no JSON", &long] {
        let mut stream = knock();
        let writer = stream.try_clone().unwrap();
        let text = format!("{line}\n");
        let writing = thread::spawn(move || (&writer).write_all(text.as_bytes()));
        // Let in, and turned away.
        assert!(door.visit(Duration::from_millis(1)).unwrap().is_none());
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        assert!(said.contains("\"stayed\""), "{said}");
        let _ = writing.join().unwrap();
    }
    let gone = knock();
    gone.shutdown(Shutdown::Both).unwrap();
    drop(gone);
    assert!(door.visit(Duration::from_millis(1)).unwrap().is_none());

    // Refused by the program itself.
    let mut asking = Asking::begin(us(), &request(&way)).unwrap();
    let visit = door.visit(PATIENCE).unwrap().unwrap();
    assert_eq!(visit.request().to, way.to_string());
    visit.refuse("not now");
    let why = "not now".to_owned();
    assert_eq!(last(&mut asking), (News::Stayed { why }, vec![]));

    if !is_possible("a_process_is_asked_to_move") {
        return;
    }
    let from = memory(Backing::Small);
    let before = at_first(&from);
    let mut owner = Owner::new(Kind::Threads, &from);

    // Nobody listens there: the guest goes on.
    let mut asking = Asking::begin(us(), &request(&way)).unwrap();
    let visit = door.visit(PATIENCE).unwrap().unwrap();
    // SAFETY: the machine alone writes to the memory.
    let stays = unsafe { visit.run(&Departure::default(), &from, &mut owner) };
    assert!(matches!(stays, Err(Error::Unreachable { .. })), "{stays:?}");
    assert!(matches!(last(&mut asking).0, News::Stayed { .. }));

    // Called off, or left alone, by who asked, while rounds go on that never converge: the guest goes on.
    for says_so in [true, false] {
        let listener = UnixListener::bind(folder.path().join("way")).unwrap();
        let to = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
        thread::scope(|scope| {
            let arrives = scope.spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                // SAFETY: nobody else has that memory.
                unsafe { arrival().receive(&to, stream) }.map(drop)
            });
            let mut never = request(&way);
            (never.downtime_ms, never.rounds, never.post_copy) = (0, u32::MAX, false);
            let asks = scope.spawn(move || {
                let mut asking = Asking::begin(us(), &never).unwrap();
                while !matches!(asking.next(PATIENCE).unwrap(), Some(News::Round { .. })) {}
                if says_so {
                    asking.cancel();
                    assert!(matches!(last(&mut asking).0, News::Stayed { .. }));
                }
            });
            owner.waits_for = 20;
            let visit = door.visit(PATIENCE).unwrap().unwrap();
            // SAFETY: as above.
            let stays = unsafe { visit.run(&Departure::default(), &from, &mut owner) };
            assert_eq!(stays, Err(Error::Cancelled));
            assert!(arrives.join().unwrap().is_err());
            asks.join().unwrap();
        });
        std::fs::remove_file(folder.path().join("way")).unwrap();
    }

    // It moves, with pages that are fetched afterwards, and who asked hears all of it.
    let listener = UnixListener::bind(folder.path().join("way")).unwrap();
    let to = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
    let there = to.clone();
    let (stats, told) = thread::scope(|scope| {
        let arrives = scope.spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            // SAFETY: nobody else has that memory.
            let offer = unsafe { arrival().receive(&there, stream) }.unwrap();
            let machine = Machine::of_state(Kind::Threads, there.clone(), &offer.state).unwrap();
            let mut landed = offer.accept().unwrap();
            let running = machine.run().unwrap();
            landed.finish(|_| {}).unwrap();
            running
        });
        let mut asked = request(&way);
        (asked.downtime_ms, asked.rounds) = (0, 2);
        let asks = scope.spawn(move || last(&mut Asking::begin(us(), &asked).unwrap()));
        let visit = door.visit(PATIENCE).unwrap().unwrap();
        // SAFETY: as above.
        let stats = unsafe { visit.run(&common::departure(), &from, &mut owner) }.unwrap();
        prove("it has moved", arrives.join().unwrap(), &before);
        (stats, asks.join().unwrap())
    });
    let (News::Moved { figures }, before) = told else {
        panic!("{told:?}");
    };
    // As text a fraction may lose its last bit.
    let mut expected = Figures::from(&stats);
    let lost = expected.dirty_pages_per_s - figures.dirty_pages_per_s;
    assert!(
        lost.abs() <= 1e-9 * expected.dirty_pages_per_s,
        "{figures:?}"
    );
    expected.dirty_pages_per_s = figures.dirty_pages_per_s;
    assert_eq!(figures, expected);
    assert!(figures.left_pages > 0, "{figures:?}");
    assert!(
        matches!(before[0], News::Begun { memory_bytes } if memory_bytes == (PAGES * PAGE) as u64)
    );
    let rounds = before
        .iter()
        .filter(|news| matches!(news, News::Round { .. }));
    assert_eq!(rounds.count(), figures.rounds.len());
    assert!(figures.rounds[0].downtime_estimate_ns > 0, "{figures:?}");
    let switched = |news: &&News| matches!(news, News::SwitchedOver { left_pages, .. } if *left_pages == figures.left_pages);
    assert_eq!(before.iter().filter(switched).count(), 1, "{before:?}");
}
