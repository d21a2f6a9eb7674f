//! Connections that break and processes that die, at any point: the guest runs at one side alone, on its own memory, or nowhere, and its
//! owner is told.

mod common;

use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use amdahl_migrate::{Arrival, Departure, Error, Guest, Landed, Limits};
use amdahl_pager::{Background, Backing, Engine, Mapping, PAGE};
use amdahl_test_vm::{Kind, Machine, Running, contents, kinds};
use common::{
    Fault, Faulty, Owner, PAGES, arrival, at_first, is_possible, memory, prove, with_post_copy,
    without_post_copy,
};

fn cut(stream: &UnixStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

fn departure(limits: Limits) -> Departure {
    Departure {
        limits,
        ..common::departure()
    }
}

/// How both sides ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Moved,
    Stayed,
    /// It runs there, and the source does not know.
    MovedUnknown,
    /// It stands still, and the source does not know.
    StoppedUnknown,
}

/// What went over the connection.
struct Told {
    sent: u64,
    received: u64,
    /// Bytes before the commitment, if it was begun.
    commit_at: Option<u64>,
    has_happened: bool,
}

/// One migration between two threads, of a machine of threads.
fn migrate(limits: Limits, fault: Option<Fault>) -> (End, Told) {
    let from = memory(Backing::Small);
    let before = at_first(&from);
    let to = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
    let mut owner = Owner::new(Kind::Threads, &from);
    // It has written something after each round, so the rounds are as many as they may be.
    owner.waits_for = 20;
    let (here, there) = UnixStream::pair().unwrap();
    let here = Faulty::new(here, fault, cut);
    let (sent, received) = (here.sent.clone(), here.received.clone());
    let (commit_at, has_happened) = (here.commit_at.clone(), here.has_happened.clone());
    let runs_there = AtomicBool::new(false);
    let end = thread::scope(|scope| {
        let arrived = scope.spawn(|| -> Result<(Running, Landed<UnixStream>), Error> {
            // SAFETY: nobody else has that memory.
            let offer = unsafe { arrival().receive(&to, there) }?;
            let machine = Machine::of_state(Kind::Threads, to.clone(), &offer.state).unwrap();
            let mut landed = offer.accept()?;
            runs_there.store(true, Ordering::SeqCst);
            let running = machine.run().unwrap();
            // Pages come over connections of their own, which nobody cuts here.
            landed.finish(|_| {}).unwrap();
            Ok((running, landed))
        });
        // SAFETY: the machine alone writes to it.
        let departed = unsafe { departure(limits).run(&from, here, &mut owner) };
        match departed {
            Err(error) => {
                let arrived = arrived.join().unwrap();
                assert!(arrived.is_err(), "{fault:?}: {error}, and it arrived");
                prove("it stays", owner.running.take().unwrap(), &before);
                End::Stayed
            }
            Ok(mut departed) => {
                assert!(owner.running.is_none(), "who has left does not run");
                let waited = departed.wait(|_| {});
                let arrived = arrived.join().unwrap();
                let end = match (&waited, &arrived) {
                    (Ok(()), Ok(_)) => End::Moved,
                    (Err(Error::Unknown(_)), Ok(_)) => End::MovedUnknown,
                    (Err(Error::Unknown(_)), Err(_)) => End::StoppedUnknown,
                    other => panic!("{fault:?}: {:?} {:?}", other.0, other.1.is_ok()),
                };
                drop(departed);
                from.write(0, &vec![0xee; PAGES * PAGE]);
                if let Ok((running, _)) = arrived {
                    prove("it has moved", running, &before);
                }
                end
            }
        }
    });
    let ran = matches!(end, End::Moved | End::MovedUnknown);
    assert_eq!(runs_there.load(Ordering::SeqCst), ran, "{fault:?}: {end:?}");
    let count = |bytes: &std::sync::atomic::AtomicU64| bytes.load(Ordering::Relaxed);
    let commit_at = Some(count(&commit_at)).filter(|&at| at < u64::MAX);
    let told = Told {
        sent: count(&sent),
        received: count(&received),
        commit_at,
        has_happened: has_happened.load(Ordering::Relaxed),
    };
    (end, told)
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

/// How it has to end, by where the fault was.
fn expected(fault: Fault, told: &Told) -> End {
    /// Bytes of a commitment.
    const COMMIT: u64 = 16;
    let Some(commit_at) = told.commit_at else {
        return End::Stayed;
    };
    match fault {
        _ if !told.has_happened => End::Moved,
        Fault::CutSent(at) if at < commit_at + COMMIT => End::StoppedUnknown,
        // The destination refuses what it does not understand.
        Fault::Flip(_) => End::Stayed,
        // The commitment was sent, and was heard before the connection ended or with its end.
        _ => End::MovedUnknown,
    }
}

fn at_any_byte(faults: u64, seeds: u64) {
    for seed in 0..seeds {
        let limits = match seed % 2 {
            0 => without_post_copy(),
            _ => with_post_copy(),
        };
        let mut random = Random(seed);
        let (end, told) = migrate(limits, None);
        assert_eq!(end, End::Moved);
        for nth in 0..faults {
            let fault = match nth % 3 {
                0 => Fault::CutSent(random.below(told.sent)),
                1 => Fault::CutReceived(random.below(told.received)),
                _ => Fault::Flip(random.below(told.sent)),
            };
            let (end, told) = migrate(limits, Some(fault));
            let expected = expected(fault, &told);
            assert_eq!(end, expected, "{fault:?}");
        }
    }
}

#[test]
fn whatever_byte_a_connection_ends_at_the_guest_runs_at_one_side_on_its_own_memory() {
    if is_possible("whatever_byte_a_connection_ends_at") {
        at_any_byte(9, 2);
    }
}

#[test]
#[ignore = "takes minutes"]
fn whatever_byte_a_connection_ends_at_many_times() {
    if is_possible("whatever_byte_a_connection_ends_at_many_times") {
        at_any_byte(100, 4);
    }
}

#[test]
fn each_answer_that_is_cut_ends_as_is_written_down() {
    if !is_possible("each_answer_that_is_cut") {
        return;
    }
    // Welcome, two receipts, readiness, a take-over; then progress and the end.
    const HEAD: u64 = 16;
    let welcome = HEAD + 10;
    let receipts = welcome + 2 * (HEAD + 4);
    let ready = receipts + HEAD;
    let running = ready + HEAD;
    let limits = with_post_copy();
    for at in [0, 5, welcome, receipts - 1, receipts, ready - 1] {
        let (end, ..) = migrate(limits, Some(Fault::CutReceived(at)));
        assert_eq!(end, End::Stayed, "{at}");
    }
    // The destination runs, and its word of that is lost; or later.
    for at in [ready, running - 1, running] {
        let (end, ..) = migrate(limits, Some(Fault::CutReceived(at)));
        assert_eq!(end, End::MovedUnknown, "{at}");
    }
}

#[test]
fn each_message_that_is_cut_ends_as_is_written_down() {
    if !is_possible("each_message_that_is_cut") {
        return;
    }
    const HELLO: u8 = 1;
    const PAGES: u8 = 2;
    const ROUND_END: u8 = 3;
    const STATE: u8 = 4;
    const MISSING: u8 = 5;
    const SWITCH: u8 = 6;
    const COMMIT: u8 = 7;
    for (kind, at) in [
        (HELLO, 0),
        (HELLO, 20),
        (PAGES, 1000),
        (ROUND_END, 17),
        (MISSING, 3),
        (STATE, 0),
        (SWITCH, 15),
        (SWITCH, 39),
    ] {
        let fault = Fault::CutMessage { kind, at };
        let (end, ..) = migrate(with_post_copy(), Some(fault));
        assert_eq!(end, End::Stayed, "{fault:?}");
    }
    // The source has given its word, and the destination has not heard it: nobody runs, and the source's owner is told to look.
    for limits in [with_post_copy(), without_post_copy()] {
        for at in [0, 1, 15] {
            let fault = Fault::CutMessage { kind: COMMIT, at };
            let (end, ..) = migrate(limits, Some(fault));
            assert_eq!(end, End::StoppedUnknown, "{fault:?}");
        }
    }
}

/// Stops the process that it is in when the machine is to be stopped.
struct Mortal {
    _machine: Owner,
}

impl Guest for Mortal {
    fn pause(&mut self) -> Result<Vec<u8>, String> {
        std::process::abort()
    }

    fn resume(&mut self) {}
}

const ROLE: &str = "MIGRATE_TEST_ROLE";

/// Another process, which has a part in the test of that name, and the way to it.
fn child(test: &str, role: &str) -> (Child, UnixStream) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("way");
    let listener = UnixListener::bind(&path).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, format!("{role}:{}", path.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (stream, _) = listener.accept().unwrap();
    (child, stream)
}

/// The part of this process, if it is a child: who it is, and the way to the other.
fn role() -> Option<(String, UnixStream)> {
    let value = std::env::var(ROLE).ok()?;
    let (role, path) = value.split_once(':').unwrap();
    Some((role.to_owned(), UnixStream::connect(path).unwrap()))
}

/// Goes on until the parent closes its end.
fn until_told() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

fn kind_of(name: &str) -> Kind {
    match name {
        "kvm" => Kind::Kvm,
        _ => Kind::Threads,
    }
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Kvm => "kvm",
        _ => "threads",
    }
}

/// Only what is touched is fetched.
fn on_demand() -> Arrival {
    Arrival {
        background: Background::Off,
        engine: Engine::Reader,
        ..arrival()
    }
}

/// The owner of a machine of which much is left when it goes.
fn busy(kind: Kind, from: &Arc<Mapping>) -> Owner {
    let mut owner = Owner::new(kind, from);
    owner.waits_for = 20;
    owner
}

/// The source, in a process of its own: sends a machine that runs, and stays until it is told to end.
fn source(role: &str, stream: UnixStream) {
    let kind = kind_of(role.split('-').next_back().unwrap());
    let from = memory(Backing::Small);
    let mut owner = busy(kind, &from);
    if role.starts_with("mortal") {
        let mut mortal = Mortal { _machine: owner };
        // SAFETY: the machine alone writes to it.
        let _ = unsafe { departure(with_post_copy()).run(&from, stream, &mut mortal) };
        return;
    }
    // SAFETY: as above.
    let departed = unsafe { departure(with_post_copy()).run(&from, stream, &mut owner) };
    let mut departed = departed.unwrap_or_else(|error| panic!("{error}"));
    let _ = departed.wait(|_| {});
    until_told();
}

#[test]
fn a_machine_moves_to_another_process() {
    const TEST: &str = "a_machine_moves_to_another_process";
    if let Some((role, stream)) = role() {
        return source(&role, stream);
    }
    if !is_possible(TEST) {
        return;
    }
    for kind in kinds() {
        let (mut source, stream) = child(TEST, &format!("source-{}", name_of(kind)));
        let to = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
        // SAFETY: nobody else has that memory.
        let offer = unsafe { arrival().receive(&to, stream) }.unwrap();
        let machine = Machine::of_state(kind, to, &offer.state).unwrap();
        let mut landed = offer.accept().unwrap();
        assert!(landed.missing_pages > 0);
        let running = machine.run().unwrap();
        landed.finish(|_| {}).unwrap();
        // The source is gone for good, and the machine needs it no more.
        source.kill().unwrap();
        source.wait().unwrap();
        let before = at_first(&memory(Backing::Small));
        prove(&format!("{kind}"), running, &before);
    }
}

#[test]
fn a_source_that_dies_before_the_switch_over_leaves_nothing_that_runs() {
    const TEST: &str = "a_source_that_dies_before_the_switch_over_leaves_nothing_that_runs";
    if let Some((role, stream)) = role() {
        return source(&role, stream);
    }
    if !is_possible(TEST) {
        return;
    }
    let (mut source, stream) = child(TEST, "mortal-threads");
    let to = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
    // SAFETY: nobody else has that memory.
    let offer = unsafe { arrival().receive(&to, stream) };
    let error = offer.err().expect("nothing is offered");
    assert!(matches!(error, Error::Cut(_)), "{error}");
    assert!(!source.wait().unwrap().success());
}

#[test]
fn a_source_that_dies_after_the_switch_over_stops_the_guest_with_an_error() {
    const TEST: &str = "a_source_that_dies_after_the_switch_over_stops_the_guest_with_an_error";
    if let Some((role, stream)) = role() {
        return source(&role, stream);
    }
    if !is_possible(TEST) {
        return;
    }
    for kind in kinds() {
        let (mut source, stream) = child(TEST, &format!("source-{}", name_of(kind)));
        let to = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
        let arrival = Arrival {
            // For the pages that are lost; what comes before may take as long as it likes.
            page_timeout: Duration::from_secs(3),
            ..on_demand()
        };
        // SAFETY: nobody else has that memory.
        let offer = unsafe { arrival.receive(&to, stream) }.unwrap();
        let state = offer.state.clone();
        let mut landed = offer.accept().unwrap();
        assert!(landed.missing_now() > 0);
        source.kill().unwrap();
        source.wait().unwrap();
        if kind == Kind::Kvm {
            // A CPU that touches what is missing does not go on. Threads would be stopped by a signal, and this process with them.
            let machine = Machine::of_state(kind, to, &state).unwrap();
            let refused = machine.run().unwrap().sums();
            assert!(refused.is_err(), "{refused:?}");
        }
        let error = landed.finish(|_| {}).unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
    }
}

/// The destination, in a process of its own: lets the machine run and fetches what it touches, until it is killed.
fn destination(role: &str, stream: UnixStream) {
    let kind = kind_of(role.split('-').next_back().unwrap());
    let to = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
    // SAFETY: nobody else has that memory.
    let offer = unsafe { on_demand().receive(&to, stream) }.unwrap();
    let machine = Machine::of_state(kind, to, &offer.state).unwrap();
    let _landed = offer.accept().unwrap();
    let _running = machine.run().unwrap();
    until_told();
}

#[test]
fn a_destination_that_dies_after_the_switch_over_is_not_known_to_run() {
    const TEST: &str = "a_destination_that_dies_after_the_switch_over_is_not_known_to_run";
    if let Some((role, stream)) = role() {
        return destination(&role, stream);
    }
    if !is_possible(TEST) {
        return;
    }
    for kind in kinds() {
        let (mut destination, stream) = child(TEST, &format!("destination-{}", name_of(kind)));
        let from = memory(Backing::Small);
        let mut owner = busy(kind, &from);
        // SAFETY: the machine alone writes to it.
        let departed = unsafe { departure(with_post_copy()).run(&from, stream, &mut owner) };
        let mut departed = departed.unwrap_or_else(|error| panic!("{error}"));
        assert!(departed.stats().left_pages > 0);
        let (left, resumed) = (contents(&from), owner.resumed);
        destination.kill().unwrap();
        destination.wait().unwrap();
        // It may have run on, for all that is known here: the guest does not go on, and its memory is as it left it.
        let error = departed.wait(|_| {}).unwrap_err();
        assert!(
            matches!(&error, Error::Unknown(why) if matches!(**why, Error::Cut(_))),
            "{error}"
        );
        assert!(error.to_string().contains("Ask there"), "{error}");
        assert!(departed.is_unknown());
        assert_eq!(departed.wait(|_| {}), Err(error));
        // Whoever fetched pages has ended, and nobody comes again.
        departed.serve_on(Duration::from_millis(1), || false);
        assert_eq!(departed.connections(), 0);
        drop(departed);
        assert!(owner.running.is_none() && owner.resumed == resumed);
        assert!(contents(&from) == left);
    }
}
