//! What a migration promises: the guest goes on at the other side, on its own memory, or here, as if nothing had been.

mod common;

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use amdahl_migrate::{
    Arrival, Departure, DepartureStats, Error, Limits, Stream, tls_accept, tls_connect,
};
use amdahl_pager::{Background, Backing, Engine, Mapping, PAGE};
use amdahl_remote::Credentials;
use amdahl_test_vm::{Kind, Machine, kinds};
use common::{
    CPUS, Owner, PAGES, at_first, is_possible, memory, prove, with_post_copy, without_post_copy,
};

/// Moves a machine that runs, and proves it at the other side.
fn moves(
    what: &str,
    kind: Kind,
    backing: Backing,
    departure: Departure,
    arrival: Arrival,
    (here, there): (impl Stream, impl Stream),
) -> DepartureStats {
    let from = memory(backing);
    let before = at_first(&from);
    let to = Arc::new(Mapping::new(PAGES * PAGE, backing).unwrap());
    // What was in it before does not matter.
    to.write(100 * PAGE, &[9; 3 * PAGE]);
    let mut owner = Owner::new(kind, &from);
    owner.waits_for = 20;
    thread::scope(|scope| {
        let arrived = scope.spawn(|| {
            // SAFETY: nobody else has that memory.
            let offer = unsafe { arrival.receive(&to, there) }.unwrap();
            let machine = Machine::of_state(kind, to.clone(), &offer.state).unwrap();
            let mut landed = offer.accept().unwrap();
            let running = machine.run().unwrap();
            let missing = landed.missing_pages;
            running.wait_for(running.steps() + 20);
            landed.finish(|_| {}).unwrap();
            assert_eq!(landed.missing_now(), 0);
            if missing > 0 {
                let stats = landed.stats().unwrap();
                assert_eq!(stats.pages + stats.zero_pages, missing, "{what}: {stats:?}");
            }
            (running, missing)
        });
        // SAFETY: the machine alone writes to it.
        let departed = unsafe { departure.run(&from, here, &mut owner) };
        let mut departed = departed.unwrap_or_else(|error| panic!("{what}: {error}"));
        departed.wait(|_| {}).unwrap();
        let (running, missing) = arrived.join().unwrap();
        let stats = departed.stats().clone();
        assert_eq!(stats.left_pages, missing);
        assert_eq!(owner.resumed, 0);
        drop(departed);
        // Nothing is needed of the source any more.
        from.write(0, &vec![0xee; PAGES * PAGE]);
        prove(what, running, &before);
        stats
    })
}

#[test]
fn a_machine_moves_while_it_writes() {
    if !is_possible("a_machine_moves_while_it_writes") {
        return;
    }
    for kind in kinds() {
        for backing in [Backing::Small, Backing::Huge, Backing::Shared] {
            for post_copy in [false, true] {
                let what = format!("{kind}, {backing:?}, post-copy {post_copy}");
                let departure = Departure {
                    limits: match post_copy {
                        true => with_post_copy(),
                        false => without_post_copy(),
                    },
                    ..common::departure()
                };
                let arrival = Arrival {
                    background: Background::Off,
                    ..common::arrival()
                };
                let pair = UnixStream::pair().unwrap();
                let stats = moves(&what, kind, backing, departure, arrival, pair);
                assert_eq!(stats.left_pages > 0, post_copy, "{what}: {stats:?}");
                assert_eq!(stats.rounds[0].pages, PAGES as u64);
                assert!(stats.rounds[0].dirty_pages > 0 && stats.dirty_pages_per_second() > 0.0);
                assert!(stats.downtime > std::time::Duration::ZERO);
            }
        }
    }
}

#[test]
fn every_engine_that_can_serves_what_is_left() {
    if !is_possible("every_engine_that_can_serves_what_is_left") {
        return;
    }
    for kind in kinds() {
        for engine in [Engine::Reader, Engine::Sharded] {
            for background in [Background::Unlimited, Background::BytesPerSecond(1 << 30)] {
                let departure = Departure {
                    limits: with_post_copy(),
                    ..common::departure()
                };
                let arrival = Arrival {
                    engine,
                    background,
                    ..common::arrival()
                };
                let what = format!("{kind}, {engine}, {background:?}");
                let pair = UnixStream::pair().unwrap();
                moves(&what, kind, Backing::Small, departure, arrival, pair);
            }
        }
    }
}

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (here, listener.accept().unwrap().0)
}

#[test]
fn it_moves_over_tcp_and_tls() {
    if !is_possible("it_moves_over_tcp_and_tls") {
        return;
    }
    let kind = kinds()[0];
    let plain = Departure {
        limits: with_post_copy(),
        ..common::departure()
    };
    moves(
        "TCP",
        kind,
        Backing::Small,
        plain.clone(),
        common::arrival(),
        tcp(),
    );

    let folder = tempfile::tempdir().unwrap();
    let files = amdahl_test_certificates::make(folder.path(), "migrate").unwrap();
    let credentials = Credentials {
        certificates: files.certificate,
        key: files.key,
        authorities: files.authority,
    };
    let (here, there) = tcp();
    let here = tls_connect(here, &credentials, "127.0.0.1").unwrap();
    let there = tls_accept(there, &credentials).unwrap();
    let departure = Departure {
        credentials: Some(credentials.clone()),
        ..plain
    };
    let arrival = Arrival {
        credentials: Some(credentials),
        ..common::arrival()
    };
    moves(
        "TLS",
        kind,
        Backing::Small,
        departure,
        arrival,
        (here, there),
    );
}

/// Does not move: how the source's side ends. The guest is proven where it was.
fn stays(
    departure: &Departure,
    change: impl FnOnce(&mut Owner),
    other: impl FnOnce(UnixStream) + Send,
) -> (Error, Vec<u8>) {
    let from = memory(Backing::Small);
    let before = at_first(&from);
    let mut owner = Owner::new(Kind::Threads, &from);
    change(&mut owner);
    let (here, there) = UnixStream::pair().unwrap();
    let error = thread::scope(|scope| {
        scope.spawn(|| other(there));
        // SAFETY: the machine alone writes to it.
        let departed = unsafe { departure.run(&from, here, &mut owner) };
        departed.err().expect("it does not leave")
    });
    prove("it stays", owner.running.take().unwrap(), &before);
    (error, owner.throttled)
}

fn receives(
    pages: usize,
    then: impl FnOnce(Result<amdahl_migrate::Offer<UnixStream>, Error>),
) -> impl FnOnce(UnixStream) {
    move |there| {
        let to = Arc::new(Mapping::new(pages * PAGE, Backing::Small).unwrap());
        // SAFETY: nobody else has that memory.
        then(unsafe { common::arrival().receive(&to, there) });
    }
}

#[test]
fn who_refuses_leaves_the_guest_where_it_was() {
    if !is_possible("who_refuses_leaves_the_guest_where_it_was") {
        return;
    }
    for limits in [with_post_copy(), without_post_copy()] {
        let departure = Departure {
            limits,
            ..common::departure()
        };
        let rejects = receives(PAGES, |offer| offer.unwrap().reject("no such devices"));
        let (error, _) = stays(&departure, |_| {}, rejects);
        assert_eq!(error, Error::Refused("no such devices".into()));

        let leaves = receives(PAGES, |offer| drop(offer.unwrap()));
        let (error, _) = stays(&departure, |_| {}, leaves);
        assert!(matches!(error, Error::Cut(_)), "{error}");

        let smaller = receives(PAGES - 1, |offer| assert!(offer.is_err()));
        let (error, _) = stays(&departure, |_| {}, smaller);
        assert!(matches!(error, Error::Refused(_)), "{error}");

        let hears = receives(PAGES, |offer| match offer {
            Err(Error::Refused(why)) => assert!(why.contains("does not want to stop"), "{why}"),
            other => panic!("{:?}", other.err()),
        });
        let (error, _) = stays(&departure, |owner| owner.refuses = true, hears);
        assert_eq!(error, Error::Guest("it does not want to stop".into()));
    }
}

#[test]
fn who_cancels_stays() {
    if !is_possible("who_cancels_stays") {
        return;
    }
    let departure = Departure {
        limits: with_post_copy(),
        ..common::departure()
    };
    let cancel = departure.cancel.clone();
    let departure = Departure {
        // In the middle: after the first round.
        progress: Some(Arc::new(move |_| cancel.store(true, Ordering::Relaxed))),
        ..departure
    };
    let (error, _) = stays(
        &departure,
        |_| {},
        receives(PAGES, |offer| assert!(offer.is_err())),
    );
    assert_eq!(error, Error::Cancelled);
}

#[test]
fn who_writes_too_much_is_asked_to_write_less_and_stays() {
    if !is_possible("who_writes_too_much_is_asked_to_write_less_and_stays") {
        return;
    }
    let departure = Departure {
        limits: Limits {
            downtime_max: std::time::Duration::ZERO,
            rounds_max: 4,
            post_copy: false,
            throttle: true,
        },
        ..common::departure()
    };
    let (error, throttled) = stays(
        &departure,
        // So many steps that most pages are written between two looks.
        |owner| owner.waits_for = 2000,
        receives(PAGES, |offer| assert!(offer.is_err())),
    );
    assert!(
        matches!(error, Error::NotConverging { rounds: 4, .. }),
        "{error}"
    );
    // And as it likes when it stays.
    assert!(
        throttled.len() > 1 && throttled.last() == Some(&0),
        "{throttled:?}"
    );
    assert_eq!(CPUS, 2);
}
