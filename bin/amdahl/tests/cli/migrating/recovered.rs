//! `amdahl pager migrate` after the switch-over, when the way or the source is away for longer than a page may take: it goes on, or ends with clear words.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_migrate::wire::{HEAD, Head, Message};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::Signal;

use super::asked::{BUSY, ask, can_move, demo, says};
use super::listens;
use crate::mischief::gate::{Cut, Gate, Shut};
use crate::tool::{Place, Running, until};

/// The address from which a source seems to come, at which its pages are fetched.
const VIA: [u8; 4] = [127, 0, 0, 5];

/// Passes a migration on, as an address of its own: also the pages, as soon as it was said where they are.
struct Between {
    /// Where the source connects.
    control: Gate,
    pages: Arc<Mutex<Option<Gate>>>,
}

impl Between {
    /// Pages are cut so.
    fn new(to: SocketAddr, cut: Cut) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = Gate::new("127.0.0.1:0", listener.local_addr().unwrap());
        let pages = Arc::<Mutex<Option<Gate>>>::default();
        let found = pages.clone();
        thread::spawn(move || {
            for source in listener.incoming() {
                let (source, found) = (source.unwrap(), found.clone());
                thread::spawn(move || {
                    if let Some(destination) = connect(to) {
                        pass(&source, &destination, &found, cut);
                        let _ = source.shutdown(Shutdown::Both);
                        let _ = destination.shutdown(Shutdown::Both);
                    }
                });
            }
        });
        Between { control, pages }
    }

    fn to(&self) -> String {
        format!("tcp:{}", self.control.address)
    }

    /// Does something with the gate of the pages, once it was shut.
    fn when_shut<T>(&self, act: impl FnOnce(&Gate) -> T) -> T {
        until("pages are cut", || {
            let pages = self.pages.lock().unwrap();
            pages.as_ref()?.happened().checked_sub(1)
        });
        act(self.pages.lock().unwrap().as_ref().unwrap())
    }
}

/// From the address that is ours.
fn connect(to: SocketAddr) -> Option<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((VIA, 0))).unwrap();
    rustix::net::connect(&socket, &to).ok()?;
    Some(socket.into())
}

fn pass(source: &TcpStream, destination: &TcpStream, found: &Mutex<Option<Gate>>, cut: Cut) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::copy(&mut { destination }, &mut { source });
            let _ = source.shutdown(Shutdown::Both);
        });
        let _ = pass_messages(source, destination, found, cut);
        let _ = destination.shutdown(Shutdown::Both);
    });
}

fn pass_messages(
    mut source: &TcpStream,
    mut destination: &TcpStream,
    found: &Mutex<Option<Gate>>,
    cut: Cut,
) -> std::io::Result<()> {
    loop {
        let mut head = [0; HEAD];
        source.read_exact(&mut head)?;
        let parsed = Head::of(&head).expect("the head of a message");
        let mut payload = vec![0; parsed.len];
        source.read_exact(&mut payload)?;
        if let Ok(Message::Switch(switch)) = Message::of(parsed.kind, &payload) {
            let here = SocketAddr::from((VIA, switch.port)).to_string();
            let gate = Gate::new(&here, ([127, 0, 0, 1], switch.port).into());
            gate.cut([cut]);
            *found.lock().unwrap() = Some(gate);
        }
        destination.write_all(&head)?;
        destination.write_all(&payload)?;
    }
}

/// Seconds for a page, and for all that is said.
const TIMEOUT: u64 = 3;

/// One that moves through a [`Between`]: it, who has it moved, and where it goes.
struct Moving {
    here: Running,
    there: Running,
    asked: Running,
    between: Between,
}

fn moving(place: &Place, recover: &str, cut: Cut) -> Moving {
    let timeout = TIMEOUT.to_string();
    let both = ["--timeout", &timeout, "--recover", recover];
    let listen = ["pager", "demo-vm", "--memory", "16M", "--json"];
    let listen = [&listen[..], &["--listen", "tcp:127.0.0.1:0"], &both].concat();
    let there = place.start(place.tool(listen));
    let to = listens(&there);
    let to = to.strip_prefix("tcp:").unwrap().parse().unwrap();
    let between = Between::new(to, cut);
    let here = demo(place, &BUSY);
    let fast = ["--downtime", "0", "--rounds", "1", "--json"];
    let args = [&fast[..], &both].concat();
    let asked = ask(place, here.pid(), &between.to(), &args, &[]);
    Moving {
        here,
        there,
        asked,
        between,
    }
}

/// After this no page came in time, if nobody had patience with it.
fn last_longer_than_a_page_may_take() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(TIMEOUT + 1) {
        thread::sleep(Duration::from_millis(50));
    }
}

/// It runs there with all of its pages, and nobody else knows otherwise.
fn has_moved(moving: Moving) {
    says(&moving.there, "--pid");
    let asked = moving.asked.ended().ends_with(0);
    assert_eq!(asked.json()["outcome"], "moved");
    assert!(asked.json()["left_pages"].as_u64() > Some(0));
    moving.here.ended().ends_with(0).says("moved:");
    let there = moving.there.err_so_far();
    let words = [
        "paused: ",
        "what needs missing pages waits for the source",
        "recovered after ",
    ];
    for words in words {
        assert!(there.contains(words), "{there}");
    }
    let ended = is_right_json(moving.there);
    assert_eq!(ended["outcome"], "ended");
}

fn is_right_json(demo: Running) -> serde_json::Value {
    demo.signal(Signal::INT);
    demo.ended().ends_with(0).json()
}

#[test]
fn a_way_that_is_gone_for_longer_than_a_page_may_take_costs_nothing() {
    if !can_move() {
        return;
    }
    for how in [Shut::Silent, Shut::Refusing] {
        let place = Place::new();
        let cut = Cut {
            how,
            after: 100_000,
            lasts: None,
        };
        let moving = moving(&place, "200", cut);
        moving.between.when_shut(|_| ());
        // All of the way.
        moving.between.control.shut(Shut::Refusing);
        says(&moving.asked, "paused: ");
        says(&moving.there, "paused: ");
        last_longer_than_a_page_may_take();
        moving.between.control.open();
        moving.between.when_shut(Gate::open);
        says(&moving.asked, "recovered after ");
        has_moved(moving);
    }
}

#[test]
fn a_source_that_stands_still_for_longer_than_a_page_may_take_costs_nothing() {
    if !can_move() {
        return;
    }
    let place = Place::new();
    let cut = Cut {
        how: Shut::Silent,
        after: 100_000,
        lasts: None,
    };
    let moving = moving(&place, "200", cut);
    moving
        .between
        .when_shut(|_| moving.here.signal(Signal::STOP));
    // It is the source that says nothing from here on.
    moving.between.when_shut(Gate::open);
    says(&moving.there, "paused: no pages come");
    last_longer_than_a_page_may_take();
    moving.here.signal(Signal::CONT);
    has_moved(moving);
}

#[test]
fn a_way_that_is_gone_for_longer_than_the_patience_ends_it_with_clear_words() {
    if !can_move() {
        return;
    }
    for recover in ["0", "1"] {
        let place = Place::new();
        let cut = Cut {
            how: Shut::Refusing,
            after: 100_000,
            lasts: None,
        };
        let moving = moving(&place, recover, cut);
        moving.between.when_shut(|_| ());
        moving.between.control.shut(Shut::Refusing);
        let there = moving.there.ended().ends_with(1);
        let message = there.message();
        assert!(
            message.contains("cannot be had from the source any more"),
            "{message}"
        );
        let (asked, here) = (moving.asked.ended(), moving.here.ended());
        assert_eq!(asked.json()["outcome"], "unknown");
        for ran in [asked.ends_with(1), here.ends_with(1)] {
            let message = ran.message();
            assert!(
                message.contains("whether the destination runs is not known"),
                "{message}"
            );
        }
        let has_waited = there.err.contains("paused: ");
        assert_eq!(has_waited, recover == "1", "{}", there.err);
    }
}
