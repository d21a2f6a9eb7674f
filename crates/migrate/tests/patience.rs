//! Whoever says nothing, or says it byte by byte, does not keep a guest from going on.

mod common;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use amdahl_migrate::wire::{Identity, Message, Secret};
use amdahl_migrate::{Arrival, Departure, Error, Guest};
use amdahl_pager::{Backing, Mapping, PAGE};
use amdahl_remote::{Connect, Remote};
use common::{Odd, is_possible, with_post_copy, without_post_copy};

const LEN: usize = 100 * PAGE;
/// Longer than any test may last.
const EVER: Duration = Duration::from_secs(1 << 20);

#[derive(Default)]
struct Still {
    memory: Option<Arc<Mapping>>,
    paused: usize,
    resumed: usize,
}

impl Guest for Still {
    fn pause(&mut self) -> Result<Vec<u8>, String> {
        self.paused += 1;
        // Something that is left to be sent, or fetched.
        let memory = self.memory.as_ref().unwrap();
        memory.write(3 * PAGE, b"last words");
        Ok(vec![1; 100])
    }

    fn resume(&mut self) {
        self.resumed += 1;
    }
}

impl Odd {
    /// Up to the switch-over, as one should: what was said first, and where the pages are.
    fn until_switched(&mut self) -> Option<(Identity, Secret, u16)> {
        let mut first = None;
        loop {
            let (kind, payload) = self.hear()?;
            match Message::of(kind, &payload).unwrap() {
                Message::Hello {
                    identity, secret, ..
                } => {
                    first = Some((identity, secret));
                    self.say(&Message::Welcome);
                }
                Message::RoundEnd { round } => self.say(&Message::Ack { round }),
                Message::Switch(switch) => {
                    return first.map(|(identity, secret)| (identity, secret, switch.port));
                }
                _ => {}
            }
        }
    }
}

/// Does not leave: why.
fn stays(departure: &Departure, other: impl FnOnce(&mut Odd) + Send) -> Error {
    let memory = Arc::new(Mapping::new(LEN, Backing::Small).unwrap());
    memory.write(0, &vec![5; LEN]);
    let (here, there) = UnixStream::pair().unwrap();
    let mut guest = Still {
        memory: Some(memory.clone()),
        ..Still::default()
    };
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            let mut odd = Odd(there);
            other(&mut odd);
            // Until the source has had enough.
            let _ = std::io::copy(&mut odd.0, &mut std::io::sink());
        });
        // SAFETY: the guest alone writes to it.
        let error = unsafe { departure.run(&memory, here, &mut guest) };
        let error = error.err().expect("it stays");
        assert_eq!(guest.paused, guest.resumed);
        // It writes again, and nobody reads for others.
        memory.write(0, &[6; PAGE]);
        other.join().unwrap();
        error
    })
}

#[test]
fn a_pause_ends_when_nobody_is_ready() {
    if !is_possible("a_pause_ends_when_nobody_is_ready") {
        return;
    }
    for limits in [with_post_copy(), without_post_copy()] {
        let pause_max = Duration::from_millis(300);
        let departure = Departure {
            limits,
            timeout: EVER,
            pause_max,
            ..Departure::default()
        };
        let error = stays(&departure, |odd| {
            odd.until_switched();
        });
        assert_eq!(error, Error::PausedTooLong(pause_max));
        // Also when something comes all the time.
        let error = stays(&departure, |odd| {
            odd.until_switched();
            trickle(odd);
        });
        assert_eq!(error, Error::PausedTooLong(pause_max));
    }
}

/// A long message, byte by byte, until nobody hears any more.
fn trickle(odd: &mut Odd) {
    let mut frame = Vec::new();
    Message::State(&[0; 200_000]).frame(&mut frame);
    for byte in frame {
        if odd.0.write_all(&[byte]).is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("all of it was waited for");
}

#[test]
fn a_message_that_comes_byte_by_byte_is_not_waited_for() {
    if !is_possible("a_message_that_comes_byte_by_byte_is_not_waited_for") {
        return;
    }
    let timeout = Duration::from_millis(400);
    let departure = Departure {
        limits: with_post_copy(),
        timeout,
        pause_max: EVER,
        ..Departure::default()
    };
    let error = stays(&departure, |odd| {
        odd.until_switched();
        trickle(odd);
    });
    assert_eq!(error, Error::Late(timeout));
    // Nor by the destination.
    let (here, there) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || trickle(&mut Odd(here)));
        let memory = Arc::new(Mapping::new(LEN, Backing::Small).unwrap());
        let arrival = Arrival {
            timeout,
            ..Arrival::default()
        };
        // SAFETY: nobody else has it.
        let late = unsafe { arrival.receive(&memory, there) }.err().unwrap();
        assert_eq!(late, Error::Late(timeout));
        // The memory is nobody's any more, and the connection has ended.
    });
}

#[test]
fn who_cancels_while_the_guest_stands_still_stays() {
    if !is_possible("who_cancels_while_the_guest_stands_still_stays") {
        return;
    }
    for limits in [with_post_copy(), without_post_copy()] {
        let cancel = Arc::new(AtomicBool::new(false));
        let departure = Departure {
            limits,
            timeout: EVER,
            pause_max: EVER,
            cancel: cancel.clone(),
            ..Departure::default()
        };
        let error = stays(&departure, |odd| {
            odd.until_switched();
            cancel.store(true, Ordering::Relaxed);
            // The source says so, in good order.
            let (kind, payload) = odd.hear().unwrap();
            let cancelled = Message::of(kind, &payload);
            assert_eq!(cancelled, Ok(Message::Cancel("cancelled")));
        });
        assert_eq!(error, Error::Cancelled);
    }
}

#[test]
fn pages_are_served_to_the_destination_alone() {
    if !is_possible("pages_are_served_to_the_destination_alone") {
        return;
    }
    let departure = Departure {
        limits: with_post_copy(),
        pause_max: EVER,
        ..common::departure()
    };
    let error = stays(&departure, |odd| {
        let (identity, secret, port) = odd.until_switched().unwrap();
        let knows = Connect {
            secret: Some(secret),
            timeout: common::PATIENCE,
            ..Connect::new(format!("127.0.0.1:{port}"))
        };
        let remote = Remote::connect(knows.clone()).unwrap();
        assert_eq!((remote.identity(), remote.len()), (identity, LEN as u64));
        let strangers = [None, Some(Secret([0; 32]))];
        for secret in strangers {
            let stranger = Connect {
                secret,
                timeout: Duration::from_secs(2),
                ..knows.clone()
            };
            assert!(Remote::connect(stranger).is_err());
        }
        odd.say(&Message::Refused("that was all"));
    });
    assert_eq!(error, Error::Refused("that was all".into()));
}
