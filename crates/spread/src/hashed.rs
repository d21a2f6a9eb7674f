//! Locks for keys, in an array of fixed size.

mod guard;
mod kind;

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::num::NonZeroUsize;
use std::thread;

use rustc_hash::FxBuildHasher;

pub use guard::{KeyGuard, KeysGuard};
pub use kind::{Kind, Mutex, RwLock};

use guard::{Claim, Claims};
use kind::sealed::Mode;

/// Locks for any number of keys: an array of mutexes, each in cache lines of its own, of which a
/// key's hash chooses one.
pub type HashedMutexes<S = FxBuildHasher> = HashedLocks<Mutex, S>;

/// As [`HashedMutexes`], with reader-writer locks.
pub type HashedRwLocks<S = FxBuildHasher> = HashedLocks<RwLock, S>;

/// Locks for any number of keys: an array of locks of which a key's hash chooses one.
///
/// Keys may share a lock, so that a thread which holds one key and waits for another may
/// wait for itself. Therefore: *a thread holds one guard of an array at a time.* Who needs several keys takes
/// them together (`lock_many`): each lock once, in the order of the array, so that no two threads wait for each other in a circle.
/// A thread that waits while it holds a guard of the same array panics in debug builds; the `try_` forms never wait
/// and may be used at any time.
///
/// The locks are parking_lot's: one atomic instruction to take and one to release where nobody waits, parked threads
/// otherwise, fair every half a millisecond. There is no poisoning: a guard that is dropped by a
/// panic releases its locks.
///
/// ```
/// use amdahl_spread::HashedMutexes;
/// let accounts = HashedMutexes::new();
/// {
///     let _both = accounts.lock_many(["alice", "bob"]);
///     // Nobody else has alice or bob now.
/// }
/// let _one = accounts.lock(&"alice");
/// ```
pub struct HashedLocks<K: Kind, S = FxBuildHasher> {
    locks: Box<[Padded<K>]>,
    hasher: S,
    /// Tells arrays apart, those that are no more too: a guard may be forgotten.
    id: guard::Id,
}

#[derive(Default)]
#[repr(align(128))]
struct Padded<K>(K);

/// More could not be numbered by a [`Claim`]; they would take 128 GiB.
const LOCKS_MAX: usize = 1 << 30;

impl<K: Kind> HashedLocks<K> {
    /// Locks for each CPU that this process may use: of `n` threads that hold one lock each, another one then finds
    /// its own taken with a probability of 1/16 or less.
    pub const LOCKS_PER_CPU: usize = 16;

    /// [`Self::LOCKS_PER_CPU`] for each CPU that this process may use (affinity and CPU quota counted), 128 bytes each.
    pub fn new() -> Self {
        let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let locks = cpus * Self::LOCKS_PER_CPU;
        Self::with_locks(NonZeroUsize::new(locks).expect("neither factor is 0"))
    }

    /// At least so many locks, rounded up to a power of two.
    pub fn with_locks(locks: NonZeroUsize) -> Self {
        Self::with_hasher(locks, FxBuildHasher)
    }
}

impl<K: Kind, S: BuildHasher> HashedLocks<K, S> {
    /// At least so many locks, rounded up to a power of two (but no more than 2^30), chosen by a hash of which the
    /// low bits are good.
    pub fn with_hasher(locks: NonZeroUsize, hasher: S) -> Self {
        let locks = locks.get().min(LOCKS_MAX).next_power_of_two();
        HashedLocks {
            locks: (0..locks).map(|_| Padded::default()).collect(),
            hasher,
            id: guard::Id::new(),
        }
    }

    /// How many locks there are.
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    /// Which lock a key has, from 0. Keys with equal numbers exclude each other.
    pub fn index_of<Q: Hash>(&self, key: &Q) -> usize {
        self.hasher.hash_one(key) as usize & (self.locks.len() - 1)
    }

    fn kind(&self, index: usize) -> &K {
        &self.locks[index].0
    }

    fn one<Q: Hash>(&self, key: &Q, mode: Mode) -> KeyGuard<'_, K> {
        guard::assert_free(self.id);
        let lock = self.kind(self.index_of(key));
        lock.acquire(mode);
        KeyGuard::new(lock, mode, self.id)
    }

    fn try_one<Q: Hash>(&self, key: &Q, mode: Mode) -> Option<KeyGuard<'_, K>> {
        let lock = self.kind(self.index_of(key));
        lock.try_acquire(mode)
            .then(|| KeyGuard::new(lock, mode, self.id))
    }

    /// What to take for keys: each lock once, in the order of the array, exclusive if any of its keys is. O(k log k).
    fn claims<Q: Hash>(&self, keys: impl Iterator<Item = (Q, Mode)>) -> Claims {
        let mut claims: Claims = keys
            .map(|(key, mode)| Claim::new(self.index_of(&key), mode))
            .collect();
        if claims.len() > 1 {
            // Exclusive comes before shared.
            claims.sort_unstable();
            claims.dedup_by_key(|claim| claim.index());
        }
        claims
    }

    fn all(&self, mode: Mode) -> Claims {
        let all = 0..self.locks.len();
        all.map(|index| Claim::new(index, mode)).collect()
    }

    fn many(&self, claims: Claims) -> KeysGuard<'_, K> {
        guard::assert_free(self.id);
        KeysGuard::acquire(&self.locks, claims, self.id)
    }

    fn try_many(&self, claims: Claims) -> Option<KeysGuard<'_, K>> {
        KeysGuard::try_acquire(&self.locks, claims, self.id)
    }
}

impl<S: BuildHasher> HashedLocks<Mutex, S> {
    /// Takes the lock of `key`; waits for it.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a guard of this array.
    #[inline]
    pub fn lock<Q: Hash>(&self, key: &Q) -> KeyGuard<'_, Mutex> {
        self.one(key, Mode::Exclusive)
    }

    /// Takes the lock of `key` if it is free.
    #[inline]
    pub fn try_lock<Q: Hash>(&self, key: &Q) -> Option<KeyGuard<'_, Mutex>> {
        self.try_one(key, Mode::Exclusive)
    }

    /// Takes the locks of all `keys`; waits for them. Allocates for more than eight keys. O(k log k).
    ///
    /// # Panics
    /// As [`lock`](Self::lock).
    pub fn lock_many<Q: Hash>(&self, keys: impl IntoIterator<Item = Q>) -> KeysGuard<'_, Mutex> {
        self.many(self.claims(exclusive(keys)))
    }

    /// Takes the locks of all `keys` if all are free, and none otherwise.
    pub fn try_lock_many<Q: Hash>(
        &self,
        keys: impl IntoIterator<Item = Q>,
    ) -> Option<KeysGuard<'_, Mutex>> {
        self.try_many(self.claims(exclusive(keys)))
    }

    /// Takes all locks there are; waits for them. O(locks).
    ///
    /// # Panics
    /// As [`lock`](Self::lock).
    pub fn lock_all(&self) -> KeysGuard<'_, Mutex> {
        self.many(self.all(Mode::Exclusive))
    }
}

impl<S: BuildHasher> HashedLocks<RwLock, S> {
    /// Takes the lock of `key` shared; waits for it.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a guard of this array.
    #[inline]
    pub fn read<Q: Hash>(&self, key: &Q) -> KeyGuard<'_, RwLock> {
        self.one(key, Mode::Shared)
    }

    /// Takes the lock of `key` exclusively; waits for it.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn write<Q: Hash>(&self, key: &Q) -> KeyGuard<'_, RwLock> {
        self.one(key, Mode::Exclusive)
    }

    /// Takes the lock of `key` shared if that needs no waiting.
    #[inline]
    pub fn try_read<Q: Hash>(&self, key: &Q) -> Option<KeyGuard<'_, RwLock>> {
        self.try_one(key, Mode::Shared)
    }

    /// Takes the lock of `key` exclusively if it is free.
    #[inline]
    pub fn try_write<Q: Hash>(&self, key: &Q) -> Option<KeyGuard<'_, RwLock>> {
        self.try_one(key, Mode::Exclusive)
    }

    /// Takes the locks of the keys in `read` shared and those in `write` exclusively; waits for them. A lock
    /// that has keys in both is taken exclusively. Allocates for more than eight keys. O(k log k).
    ///
    /// # Panics
    /// As [`read`](Self::read).
    pub fn lock_many<Q: Hash>(
        &self,
        read: impl IntoIterator<Item = Q>,
        write: impl IntoIterator<Item = Q>,
    ) -> KeysGuard<'_, RwLock> {
        self.many(self.claims(shared(read).chain(exclusive(write))))
    }

    /// As [`lock_many`](Self::lock_many) if no lock needs waiting, and none of them otherwise.
    pub fn try_lock_many<Q: Hash>(
        &self,
        read: impl IntoIterator<Item = Q>,
        write: impl IntoIterator<Item = Q>,
    ) -> Option<KeysGuard<'_, RwLock>> {
        self.try_many(self.claims(shared(read).chain(exclusive(write))))
    }

    /// Takes all locks there are shared; waits for them. O(locks).
    ///
    /// # Panics
    /// As [`read`](Self::read).
    pub fn read_all(&self) -> KeysGuard<'_, RwLock> {
        self.many(self.all(Mode::Shared))
    }

    /// Takes all locks there are exclusively; waits for them. O(locks).
    ///
    /// # Panics
    /// As [`read`](Self::read).
    pub fn write_all(&self) -> KeysGuard<'_, RwLock> {
        self.many(self.all(Mode::Exclusive))
    }
}

fn shared<Q>(keys: impl IntoIterator<Item = Q>) -> impl Iterator<Item = (Q, Mode)> {
    keys.into_iter().map(|key| (key, Mode::Shared))
}

fn exclusive<Q>(keys: impl IntoIterator<Item = Q>) -> impl Iterator<Item = (Q, Mode)> {
    keys.into_iter().map(|key| (key, Mode::Exclusive))
}

impl<K: Kind> Default for HashedLocks<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Kind, S> fmt::Debug for HashedLocks<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashedLocks")
            .field("locks", &self.locks.len())
            .finish_non_exhaustive()
    }
}
