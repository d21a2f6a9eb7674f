//! Hashed locks on parking_lot's and std's locks, and one lock for all.

use std::hash::{BuildHasher, Hash, RandomState};
use std::hint::black_box;
use std::sync::{Mutex, RwLock};

use amdahl_figures::Figure;
use amdahl_spread::{HashedMutexes, HashedRwLocks};
use crossbeam_utils::CachePadded;
use rustc_hash::FxBuildHasher;

use super::measure::{Contender, stated};
use crate::Effort;

/// What `HashedLocks` would be on std's locks.
struct OnStd<L> {
    locks: Box<[CachePadded<L>]>,
}

impl<L: Default> OnStd<L> {
    fn new(locks: usize) -> Self {
        OnStd {
            locks: (0..locks).map(|_| CachePadded::default()).collect(),
        }
    }

    #[inline]
    fn of<K: Hash>(&self, key: &K) -> &L {
        &self.locks[FxBuildHasher.hash_one(key) as usize & (self.locks.len() - 1)]
    }
}

/// Addresses of pages, of which each thread has many in a random order.
#[inline(always)]
fn key(n: u64) -> u64 {
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) << 12
}

pub fn figures(effort: &Effort, threads: usize) -> Vec<Figure> {
    let (mutexes, rw_locks) = (HashedMutexes::new(), HashedRwLocks::new());
    let keyed: HashedMutexes<u64, RandomState> = HashedMutexes::default();
    let std_mutexes: OnStd<Mutex<()>> = OnStd::new(mutexes.locks());
    let std_rw_locks: OnStd<RwLock<()>> = OnStd::new(mutexes.locks());
    let one = CachePadded::new(Mutex::new(()));
    let no_panic = "no panic";
    // Each thread walks through the keys from another place.
    let keys = |thread: usize, n: u64| (0..n).map(move |n| key(n + ((thread as u64) << 32)));
    let contenders = [
        Contender::new("HashedMutexes lock", |thread, n| {
            keys(thread, n).for_each(|key| drop(black_box(mutexes.lock(&key))));
        }),
        Contender::new(
            "HashedMutexes lock, the standard library's keyed hash",
            |thread, n| {
                keys(thread, n).for_each(|key| drop(black_box(keyed.lock(&key))));
            },
        ),
        Contender::new("hashed std::sync::Mutex lock", |thread, n| {
            keys(thread, n)
                .for_each(|key| drop(black_box(std_mutexes.of(&key).lock().expect(no_panic))));
        }),
        Contender::new("HashedRwLocks read", |thread, n| {
            keys(thread, n).for_each(|key| drop(black_box(rw_locks.read(&key))));
        }),
        Contender::new("hashed std::sync::RwLock read", |thread, n| {
            keys(thread, n)
                .for_each(|key| drop(black_box(std_rw_locks.of(&key).read().expect(no_panic))));
        }),
        Contender::new("HashedRwLocks write", |thread, n| {
            keys(thread, n).for_each(|key| drop(black_box(rw_locks.write(&key))));
        }),
        Contender::new("hashed std::sync::RwLock write", |thread, n| {
            keys(thread, n)
                .for_each(|key| drop(black_box(std_rw_locks.of(&key).write().expect(no_panic))));
        }),
        Contender::new("HashedMutexes lock_many of 3", |thread, n| {
            keys(thread, n)
                .for_each(|key| drop(black_box(mutexes.lock_many(&[key, key + 4096, !key]))));
        }),
        Contender::new("one std::sync::Mutex lock", |thread, n| {
            keys(thread, n).for_each(|key| {
                black_box(key);
                drop(black_box(one.lock().expect(no_panic)));
            });
        }),
    ];
    stated("hashed locks", effort, threads, &contenders)
}
