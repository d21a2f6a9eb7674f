//! After the switch-over, while the guest runs at the destination: pages whose answers are late, out of order, doubled, damaged or cut, or never come. The guest goes on with right
//! memory, or its owner is told which page is lost. `AMDAHL_SEEDS=N` runs as many seeds, `AMDAHL_SEED=N` that one.

mod common;
#[path = "../../remote/tests/common/mod.rs"]
mod mischief;

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use amdahl_migrate::{Arrival, Departure, Error};
use amdahl_pager::{Background, Backing, Engine, Loss, Mapping, PAGE, SourceError};
use amdahl_test_vm::{Kind, Machine};
use common::{
    Owner, PAGES, PATIENCE, arrival, at_first, departure, is_possible, memory, prove,
    with_post_copy,
};
use mischief::{Mischief, Random, Unruly, run_seeds};

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// All that went wrong passed.
    Right,
    /// A page of those that are fetched is damaged on each way.
    Damaged,
    /// The source is there no more.
    Gone,
}

/// Seeds with a page that is damaged, or a source that is gone, and answers that had something happen to them.
static HAPPENED: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

fn seed_of_pages(seed: u64) {
    let mut random = Random::of_seed(seed);
    let mut mischief = Mischief {
        held: random.below(600),
        doubled: random.below(60),
        damaged: random.below(60),
        misled: random.below(30),
        cut: random.below(40),
        ..Mischief::default()
    };
    let fate = match seed % 8 {
        0 => Fate::Damaged,
        1 => Fate::Gone,
        _ => Fate::Right,
    };
    // Pages are served at one address of this host, and fetched from another with the same port.
    let at = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = at.local_addr().unwrap().port();
    let from = memory(Backing::Small);
    let before = at_first(&from);
    let to = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
    let mut owner = Owner::new(Kind::Threads, &from);
    owner.waits_for = 20;
    match fate {
        Fate::Gone => mischief.end = Some(2 + random.below(4)),
        // Those that are written all the time come last.
        Fate::Damaged => mischief.bad_page = Some(BAD),
        Fate::Right => {}
    }
    let there_at = format!("127.0.0.2:{port}").parse().unwrap();
    let unruly = Unruly::of(at, there_at, true, mischief, seed);
    let (here, there) = UnixStream::pair().unwrap();
    let departure = Departure {
        limits: with_post_copy(),
        listen: format!("127.0.0.2:{port}"),
        ..departure()
    };
    let arrival = Arrival {
        page_timeout: match fate {
            Fate::Gone => Duration::from_millis(500),
            _ => PATIENCE,
        },
        background: Background::Off,
        engine: Engine::Reader,
        ..arrival()
    };
    let error = thread::scope(|scope| {
        let arrived = scope.spawn(|| -> Result<Option<Error>, Error> {
            // SAFETY: nobody else has that memory.
            let offer = unsafe { arrival.receive(&to, there) }?;
            let machine = Machine::of_state(Kind::Threads, to.clone(), &offer.state).unwrap();
            let mut landed = offer.accept()?;
            assert!(landed.missing_now() > 0, "seed {seed}");
            // Threads that touch what is lost would be stopped, and this process with them: the kernel touches it for them.
            if fate != Fate::Right {
                touch(&to, BAD as usize);
                return Ok(landed.finish(|_| {}).err());
            }
            let running = machine.run().unwrap();
            landed.finish(|_| {})?;
            prove(&format!("seed {seed}"), running, &before);
            Ok(None)
        });
        // SAFETY: the machine alone writes to it.
        let departed = unsafe { departure.run(&from, here, &mut owner) };
        let departed = departed.map(|mut departed| {
            let _ = departed.wait(|_| {});
        });
        let arrived = arrived.join().unwrap();
        match (departed, arrived) {
            (Ok(()), Ok(error)) => error,
            // The first words were cut, before the switch-over: it stays.
            (Err(_), Err(_)) => {
                prove("it stays", owner.running.take().unwrap(), &before);
                None
            }
            (departed, arrived) => panic!("seed {seed}: {departed:?} {arrived:?}"),
        }
    });
    let done = &unruly.done;
    let happened = done.held.load(Ordering::SeqCst)
        + done.doubled.load(Ordering::SeqCst)
        + done.damaged.load(Ordering::SeqCst)
        + done.broken.load(Ordering::SeqCst);
    HAPPENED[2].fetch_add(happened, Ordering::SeqCst);
    match (fate, error) {
        (Fate::Right, None) => {}
        (Fate::Damaged, Some(Error::Lost { page, pages, why })) => {
            let is_damage = matches!(why, Loss::Source(SourceError::Corrupt(_)));
            assert!(
                page as u64 <= BAD && BAD < (page + pages) as u64 && is_damage,
                "seed {seed}: {page} {pages} {why:?}"
            );
            HAPPENED[0].fetch_add(1, Ordering::SeqCst);
        }
        (Fate::Gone, Some(Error::Lost { .. })) => {
            HAPPENED[1].fetch_add(1, Ordering::SeqCst);
        }
        // It was all there before, or stayed.
        (Fate::Damaged | Fate::Gone, None) => {}
        (fate, error) => panic!("seed {seed}: {fate:?}: {error:?}"),
    }
}

/// Has the kernel read a page: an error where a thread would be stopped by a signal.
fn touch(memory: &Mapping, page: usize) {
    let (mut to, _from) = UnixStream::pair().unwrap();
    let at = memory.as_ptr().wrapping_add(page * PAGE);
    // SAFETY: within the mapping; nobody but the kernel reads it.
    let _ = to.write(unsafe { std::slice::from_raw_parts(at, PAGE) });
}

/// A page that is written in each round.
const BAD: u64 = amdahl_test_vm::BOOT_PAGES as u64 + 5;

#[test]
fn after_the_switch_over_memory_is_right_or_the_page_is_named() {
    if !is_possible("after_the_switch_over_memory_is_right_or_the_page_is_named") {
        return;
    }
    let count = run_seeds("after_the_switch_over", 48, seed_of_pages);
    let happened = HAPPENED.each_ref().map(|many| many.load(Ordering::SeqCst));
    println!("{count} seeds: damaged, gone, mischief: {happened:?}");
    // What has not happened was not tested.
    if count >= 40 {
        assert!(happened.iter().all(|many| *many > 0), "{happened:?}");
    }
}
