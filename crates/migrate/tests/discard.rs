//! Memory that is given up while it is copied, and memory that was never touched.

mod common;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use amdahl_migrate::{Departure, Error, Guest, Limits};
use amdahl_pager::{BLOCK, Backing, Mapping, PAGE};
use common::{is_possible, with_post_copy, without_post_copy};
use rustix::mm::{Advice, madvise};

const LEN: usize = 8 * BLOCK;

/// Does something to its memory after each round and when it is stopped.
struct Acts<'a> {
    memory: &'a Mapping,
    round: AtomicUsize,
    is_paused: bool,
    act: &'a (dyn Fn(&Mapping, usize) + Sync),
}

/// The number of the act when the guest is stopped.
const LAST: usize = 1000;

impl Guest for Acts<'_> {
    fn state_bytes(&self) -> u64 {
        assert!(!self.is_paused, "asked while it stands still");
        (self.act)(self.memory, self.round.fetch_add(1, Ordering::Relaxed));
        0
    }

    fn pause(&mut self) -> Result<Vec<u8>, String> {
        self.is_paused = true;
        (self.act)(self.memory, LAST);
        Ok(Vec::new())
    }

    fn resume(&mut self) {
        self.is_paused = false;
    }
}

fn give_up(memory: &Mapping, from: usize, len: usize) {
    let advice = match memory.backing() {
        Backing::Shared => Advice::LinuxRemove,
        _ => Advice::LinuxDontNeed,
    };
    let start = memory.as_ptr().wrapping_add(from);
    // SAFETY: nobody has references to it, and zeros are what is expected there.
    unsafe { madvise(start.cast(), len, advice) }.unwrap();
}

fn bytes(memory: &Mapping) -> Vec<u8> {
    amdahl_test_vm::contents(memory)
}

/// Moves, and proves that both sides are the same: what shared memory takes at the source afterwards.
fn migrate(
    memory: &Arc<Mapping>,
    limits: Limits,
    act: &(dyn Fn(&Mapping, usize) + Sync),
) -> Result<Option<i64>, Error> {
    let to = Arc::new(Mapping::new(memory.len(), Backing::Small).unwrap());
    let (here, there) = UnixStream::pair().unwrap();
    let mut guest = Acts {
        memory,
        round: AtomicUsize::new(0),
        is_paused: false,
        act,
    };
    let departure = Departure {
        limits,
        ..common::departure()
    };
    thread::scope(|scope| {
        let arrived = scope.spawn(|| {
            // SAFETY: nobody else has that memory.
            let mut landed = unsafe { common::arrival().receive(&to, there) }?.accept()?;
            landed.finish(|_| {})
        });
        // SAFETY: the guest alone writes to it.
        let departed = unsafe { departure.run(memory, here, &mut guest) };
        let left = departed.map(|mut departed| {
            departed.wait(|_| {}).unwrap();
        });
        let arrived = arrived.join().unwrap();
        assert_eq!(arrived.is_ok(), left.is_ok());
        let Ok(_) = left else {
            assert!(!guest.is_paused, "it goes on");
            return left.map(|_| None);
        };
        // Before all of it is read.
        let blocks = blocks(memory);
        // Not by assert_eq, which would print them.
        assert!(bytes(&to) == bytes(memory), "{:?}", memory.backing());
        Ok(blocks)
    })
}

/// What a shared memory takes.
fn blocks(memory: &Mapping) -> Option<i64> {
    let file = memory.file()?;
    Some(rustix::fs::fstat(file).unwrap().st_blocks)
}

fn filled(backing: Backing) -> Arc<Mapping> {
    let memory = Arc::new(Mapping::new(LEN, backing).unwrap());
    memory.write(0, &vec![7; LEN]);
    memory
}

#[test]
fn what_is_given_up_while_it_is_copied_is_zeros_at_the_other_side() {
    if !is_possible("what_is_given_up_while_it_is_copied") {
        return;
    }
    let act = |memory: &Mapping, round| match round {
        0 => {
            // Huge pages, if there are any; some small ones; one that is written again, and one that is read.
            give_up(memory, BLOCK, 2 * BLOCK);
            give_up(memory, 5 * BLOCK + 3 * PAGE, 4 * PAGE);
            give_up(memory, 6 * BLOCK, BLOCK);
            memory.write(6 * BLOCK + 9 * PAGE, &[9; 3]);
            if memory.backing() != Backing::Shared {
                memory.read(BLOCK + 5 * PAGE, &mut [0; 8]);
            }
            // Something for the next round.
            memory.write(7 * BLOCK, &[1; 9]);
        }
        LAST => {
            give_up(memory, 3 * BLOCK, BLOCK);
            give_up(memory, 4 * BLOCK + 7 * PAGE, PAGE);
            memory.write(5 * BLOCK, &[2; 9]);
        }
        _ => memory.write(7 * BLOCK, &[round as u8; 9]),
    };
    for backing in [Backing::Small, Backing::Huge, Backing::Shared] {
        for limits in [with_post_copy(), without_post_copy()] {
            migrate(&filled(backing), limits, &act).unwrap();
        }
    }
}

#[test]
fn what_was_never_touched_is_not_allocated_by_leaving() {
    if !is_possible("what_was_never_touched_is_not_allocated") {
        return;
    }
    for limits in [with_post_copy(), without_post_copy()] {
        let memory = Arc::new(Mapping::new(LEN, Backing::Shared).unwrap());
        for page in [0, 700, 701, LEN / PAGE - 1] {
            memory.write(page * PAGE, &[3; 20]);
        }
        let before = blocks(&memory);
        let after = migrate(&memory, limits, &|memory, round| match round {
            LAST => {
                memory.write(700 * PAGE, &[4; 8]);
                give_up(memory, 0, PAGE);
            }
            _ => memory.write(701 * PAGE, &[round as u8 + 5; 8]),
        })
        .unwrap();
        assert!(after < before, "{before:?} {after:?}");
    }
}

#[test]
fn a_guest_that_writes_until_it_is_stopped_stays_if_it_may_not_stand_still() {
    if !is_possible("a_guest_that_writes_until_it_is_stopped_stays") {
        return;
    }
    let limits = Limits {
        downtime_max: std::time::Duration::ZERO,
        rounds_max: 1,
        post_copy: false,
        throttle: false,
    };
    let memory = filled(Backing::Small);
    let error = migrate(&memory, limits, &|memory, round| {
        if round == LAST {
            memory.write(0, &vec![8; 3 * PAGE]);
        }
    });
    let error = error.unwrap_err();
    assert!(
        matches!(
            error,
            Error::NotConverging {
                rounds: 1,
                dirty_pages: 3,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn shared_memory_leaves_only_if_its_owner_says_that_nobody_else_writes_it() {
    let memory = Arc::new(Mapping::new(PAGE, Backing::Shared).unwrap());
    let (here, _there) = UnixStream::pair().unwrap();
    let mut guest = Acts {
        memory: &memory,
        round: AtomicUsize::new(0),
        is_paused: false,
        act: &|_, _| {},
    };
    // SAFETY: nobody writes to it.
    let refused = unsafe { Departure::default().run(&memory, here, &mut guest) };
    assert!(matches!(refused.err(), Some(Error::Config(_))));
}
