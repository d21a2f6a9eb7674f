//! Hashed locks: guards exclude each other, and taking many neither deadlocks nor leaks.

mod threads;

use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;

use amdahl_spread::{HashedMutexes, HashedRwLocks};
use proptest::prelude::*;

fn few(locks: usize) -> NonZeroUsize {
    NonZeroUsize::new(locks).expect("not 0")
}

/// Numbers that whoever holds their lock may change.
struct Guarded(Vec<UnsafeCell<u64>>);

// SAFETY: the tests change a number only while they hold its lock.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new(len: usize) -> Self {
        Guarded((0..len).map(|_| UnsafeCell::new(0)).collect())
    }

    /// Not atomic: an increment is lost if two threads are here at once.
    fn increment(&self, at: usize) {
        let number = self.0[at].get();
        // SAFETY: the caller holds the lock.
        unsafe { number.write(std::hint::black_box(number.read()) + 1) };
    }

    fn total(mut self) -> u64 {
        self.0.iter_mut().map(|number| *number.get_mut()).sum()
    }
}

const KEYS: usize = 40;
const ROUNDS: usize = if cfg!(miri) { 30 } else { 3000 };

/// Keys for a round: always others, with repetitions.
fn keys(thread: usize, round: usize) -> [usize; 5] {
    std::array::from_fn(|n| (thread * 7 + round * (n + 1) * 13 + n * n) % KEYS)
}

/// Threads take one lock and several, so many times.
fn exclude_each_other(threads: usize, rounds: usize) {
    let locks = HashedMutexes::with_locks(few(8));
    let numbers = Guarded::new(KEYS);
    let added: usize = thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|thread| {
                let (locks, numbers) = (&locks, &numbers);
                scope.spawn(move || {
                    let mut added = 0;
                    for round in 0..rounds {
                        let keys = keys(thread, round);
                        let guard = match round % 3 {
                            0 => {
                                let _one = locks.lock(&keys[0]);
                                numbers.increment(keys[0]);
                                added += 1;
                                continue;
                            }
                            1 => Some(locks.lock_many(&keys)),
                            _ => locks.try_lock_many(&keys),
                        };
                        if let Some(guard) = guard {
                            assert!((1..=5).contains(&guard.locks()));
                            keys.iter().for_each(|&key| numbers.increment(key));
                            added += keys.len();
                        }
                    }
                    added
                })
            })
            .collect();
        all.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(numbers.total(), added as u64);
    let all: Vec<usize> = (0..KEYS).collect();
    assert_eq!(locks.try_lock_many(&all).unwrap().locks(), 8);
}

#[test]
#[cfg_attr(miri, ignore = "Miri refuses how parking_lot calls futex")]
fn many_at_once_exclude_each_other() {
    exclude_each_other(4, ROUNDS);
}

/// Threads read and write, one lock, several and all, so many times.
fn share(threads: usize, rounds: usize) {
    let locks = HashedRwLocks::with_locks(few(8));
    let numbers = Guarded::new(KEYS);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (locks, numbers) = (&locks, &numbers);
            scope.spawn(move || {
                for round in 0..rounds {
                    let [a, b, c, d, _] = keys(thread, round);
                    if round % 5 == 0 {
                        let _all = locks.write_all();
                        numbers.increment(a);
                        numbers.increment(b);
                        continue;
                    }
                    let _some = locks.lock_many(&[a, b], &[c, d]);
                    numbers.increment(c);
                    numbers.increment(d);
                }
            });
        }
    });
    assert_eq!(numbers.total(), (threads * 2 * rounds) as u64);
    let (one, other) = (locks.try_read(&1).unwrap(), locks.try_read(&1).unwrap());
    assert!(locks.try_write(&1).is_none());
    drop((one, other));
    assert!(locks.try_write(&1).is_some());
    assert_eq!(locks.read_all().locks(), 8);
}

#[test]
#[cfg_attr(miri, ignore = "Miri refuses how parking_lot calls futex")]
fn readers_share_and_writers_do_not() {
    share(4, ROUNDS);
}

#[test]
#[ignore = "takes two minutes"]
fn sixty_four_threads_exclude_each_other_for_minutes() {
    threads::for_minutes(|| {
        exclude_each_other(64, 10 * ROUNDS);
        share(64, 10 * ROUNDS);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 256 }))]

    /// What is held is what the keys need, each lock once; a failed attempt leaves nothing behind.
    #[test]
    fn each_lock_is_taken_once(
        read in prop::collection::vec(0_u32..100, 0..20),
        write in prop::collection::vec(0_u32..100, 0..20),
        other in 0_u32..100,
    ) {
        let locks = HashedRwLocks::with_locks(few(16));
        let index = |keys: &[u32]| keys.iter().map(|key| locks.index_of(key)).collect();
        let (shared, exclusive): (BTreeSet<usize>, BTreeSet<usize>) = (index(&read), index(&write));
        let guard = locks.lock_many(&read, &write);
        prop_assert_eq!(guard.locks(), shared.union(&exclusive).count());
        let at = locks.index_of(&other);
        let (is_shared, is_exclusive) = (shared.contains(&at), exclusive.contains(&at));
        prop_assert_eq!(locks.try_read(&other).is_some(), !is_exclusive);
        prop_assert_eq!(locks.try_write(&other).is_some(), !is_exclusive && !is_shared);
        let again = locks.try_lock_many(&read, &write);
        prop_assert_eq!(again.is_some(), exclusive.is_empty());
        drop((again, guard));
        let all: Vec<u32> = (0..1000).collect();
        prop_assert_eq!(locks.try_lock_many([], &all).unwrap().locks(), 16);
    }
}

#[test]
fn sizes_are_powers_of_two_and_follow_the_cpus() {
    assert_eq!(HashedMutexes::<u32>::with_locks(few(1)).locks(), 1);
    assert_eq!(HashedMutexes::<u32>::with_locks(few(33)).locks(), 64);
    let cpus = thread::available_parallelism().unwrap().get();
    let all = (cpus * 16).next_power_of_two();
    assert_eq!(HashedMutexes::<u32>::new().locks(), all);
    assert_eq!(HashedRwLocks::<str, RandomState>::default().locks(), all);
}

#[test]
fn keys_are_spread() {
    let locks = HashedMutexes::with_locks(few(64));
    let mut used = [0; 64];
    // Addresses of pages: many low bits are equal.
    (0..6400_u64).for_each(|page| used[locks.index_of(&(page * 4096))] += 1);
    assert!(
        used.iter().all(|&keys| (25..400).contains(&keys)),
        "{used:?}"
    );
}

/// Keys without a size of their own could not be given, and equal numbers of different types had different locks.
#[test]
fn any_type_can_be_a_key() {
    #[derive(Hash)]
    enum Key<'a> {
        Inode(u32, u64),
        Name(&'a str),
    }
    let names: HashedMutexes<str> = HashedMutexes::with_locks(few(1 << 16));
    let owned = String::from("alice");
    let _alice = names.lock("alice");
    assert!(names.try_lock(&owned).is_none());
    assert!(names.try_lock("bob").is_some());
    assert!(names.try_lock_many(["bob", &owned]).is_none());

    let paths: HashedRwLocks<Path> = HashedRwLocks::new();
    let both = paths.lock_many([Path::new("/a")], [Path::new("/b"), Path::new("/b")]);
    assert!((1..=2).contains(&both.locks()));

    let mixed = HashedMutexes::with_locks(few(1 << 16));
    let _inode = mixed.lock(&Key::Inode(8, 4711));
    assert!(mixed.try_lock(&Key::Inode(8, 4711)).is_none());
    assert!(mixed.try_lock(&Key::Name("4711")).is_some());
}

/// Threads share arrays of any keys, which they do not own.
#[test]
fn arrays_go_from_thread_to_thread_whatever_their_keys() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&HashedMutexes::<std::rc::Rc<str>>::new());
}

#[test]
fn a_hasher_with_a_secret_spreads_what_a_stranger_has_chosen() {
    fn used<S: BuildHasher>(locks: &HashedMutexes<u64, S>, keys: &[u64]) -> usize {
        let used: BTreeSet<usize> = keys.iter().map(|key| locks.index_of(key)).collect();
        used.len()
    }
    let known = HashedMutexes::with_locks(few(64));
    let chosen = (0_u64..).filter(|key| known.index_of(key) == 0);
    let chosen: Vec<u64> = chosen.take(1000).collect();
    assert_eq!(used(&known, &chosen), 1);
    let secret = HashedMutexes::with_hasher(few(64), RandomState::new());
    // All but one in 10^100 secrets do.
    assert!(used(&secret, &chosen) > 16);
}

#[test]
fn a_panic_releases() {
    let locks = HashedMutexes::with_locks(few(4));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _guard = locks.lock_many(&[1, 2, 3]);
        panic!("while holding");
    }));
    assert!(result.is_err());
    let all: Vec<i32> = (0..100).collect();
    assert_eq!(locks.try_lock_many(&all).unwrap().locks(), 4);
}

/// An array in the place of one that was dropped with a guard forgotten was taken for it.
#[test]
fn what_was_forgotten_of_an_array_is_not_held_of_another() {
    // One of them is where the one before was, with most allocators the next.
    for _ in 0..100 {
        let locks = HashedMutexes::with_locks(few(4));
        drop(locks.lock(&1));
        std::mem::forget(locks.lock(&1));
    }
}

/// The key's lock may be one that the thread holds for another key.
#[test]
#[cfg(debug_assertions)]
fn waiting_for_oneself_is_noticed() {
    let (locks, others) = (HashedMutexes::new(), HashedMutexes::new());
    let guard = locks.lock(&1);
    let _fine = others.lock(&1);
    let result = catch_unwind(AssertUnwindSafe(|| drop(locks.lock(&2))));
    assert!(result.is_err());
    let _never_waits = locks.try_lock(&2);
    drop(guard);
    drop(_never_waits);
    drop(locks.lock(&2));
}
