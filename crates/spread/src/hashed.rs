//! Locks for keys, in an array of fixed size.

mod guard;
mod kind;

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::thread;

use rustc_hash::FxBuildHasher;

pub use guard::{KeyGuard, KeysGuard};
pub use kind::{Kind, Mutex, RwLock};

use crate::memory::{self, OutOfMemory};
use guard::{Claim, Claims};
use kind::sealed::Mode;

/// Locks for any number of keys: an array of mutexes, each in cache lines of its own, of which a
/// key's hash chooses one.
pub type HashedMutexes<Q, S = FxBuildHasher> = HashedLocks<Mutex, Q, S>;

/// As [`HashedMutexes`], with reader-writer locks.
pub type HashedRwLocks<Q, S = FxBuildHasher> = HashedLocks<RwLock, Q, S>;

/// Locks for any number of keys of type `Q`: an array of locks of which a key's hash chooses one.
///
/// Keys may share a lock, so that a thread which holds one key and waits for another may
/// wait for itself. Therefore: *a thread holds one guard of an array at a time.* Who needs several keys takes
/// them together (`lock_many`): each lock once, in the order of the array, so that no two threads wait for each other in a circle.
/// A thread that waits while it holds a guard of the same array panics in debug builds; the `try_` forms never wait
/// and may be used at any time.
///
/// The locks are parking_lot's: one atomic instruction to take and one to release where nobody waits, parked threads
/// otherwise, fair every half a millisecond.
///
/// # Keys
/// Whatever is [`Hash`]: numbers, `str`, `Path`, tuples and enums of them. Equal keys have one lock. The type belongs to the array, since equal
/// numbers of different types (`1_u32`, `1_u64`) hash differently and would not exclude each other. Borrowed forms are enough:
/// an array for names is one of `str`, and takes `&String`, too.
///
/// # Keys that strangers choose
/// The hasher of the default is rustc's: it takes a nanosecond, and is known to everybody. Who chooses keys can therefore choose them
/// such that all of them have one lock. Nothing breaks by that, but users of those keys wait for each other. For such keys
/// give a hasher with a secret, such as the standard library's:
///
/// ```
/// use std::hash::RandomState;
/// use amdahl_spread::HashedMutexes;
///
/// let sessions: HashedMutexes<str, RandomState> = HashedMutexes::default();
/// let _one = sessions.lock("whatever a client sends");
/// ```
///
/// # Poisoning
/// There is none: the locks contain no data that could be half-changed. A guard that is dropped by a panic releases its locks, all of them if there are several.
///
/// ```
/// use amdahl_spread::HashedMutexes;
/// let accounts = HashedMutexes::new();
/// {
///     let _both = accounts.lock_many(["alice", "bob"]);
///     // Nobody else has alice or bob now.
/// }
/// let _one = accounts.lock("alice");
/// ```
pub struct HashedLocks<K: Kind, Q: ?Sized, S = FxBuildHasher> {
    locks: Box<[Padded<K>]>,
    hasher: S,
    /// Tells arrays apart, those that are no more too: a guard may be forgotten.
    id: guard::Id,
    /// It looks at keys and keeps none.
    keys: PhantomData<fn(&Q)>,
}

#[derive(Default)]
#[repr(align(128))]
struct Padded<K>(K);

/// More could not be numbered by a [`Claim`]; they would take 128 GiB.
const LOCKS_MAX: usize = 1 << 30;

impl<K: Kind, Q: ?Sized> HashedLocks<K, Q> {
    /// [`Self::LOCKS_PER_CPU`] for each CPU that this process may use (affinity and CPU quota counted), 128 bytes each.
    ///
    /// # Panics
    /// As [`with_hasher`](Self::with_hasher).
    pub fn new() -> Self {
        Self::default()
    }

    /// At least so many locks, rounded up to a power of two.
    ///
    /// # Panics
    /// As [`with_hasher`](Self::with_hasher).
    pub fn with_locks(locks: NonZeroUsize) -> Self {
        Self::with_hasher(locks, FxBuildHasher)
    }
}

impl<K: Kind, Q: ?Sized, S> HashedLocks<K, Q, S> {
    /// Locks for each CPU that this process may use: of `n` threads that hold one lock each, another one then finds
    /// its own taken with a probability of 1/16 or less.
    pub const LOCKS_PER_CPU: usize = 16;

    /// At least so many locks, rounded up to a power of two (but no more than 2^30), 128 bytes each, chosen by a hash of which the
    /// low bits are good.
    ///
    /// # Panics
    /// There is no memory for so many; [`try_with_hasher`](Self::try_with_hasher) says so instead.
    pub fn with_hasher(locks: NonZeroUsize, hasher: S) -> Self {
        Self::try_with_hasher(locks, hasher).unwrap_or_else(|error| panic!("hashed locks: {error}"))
    }

    /// As [`with_hasher`](Self::with_hasher).
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn try_with_hasher(locks: NonZeroUsize, hasher: S) -> Result<Self, OutOfMemory> {
        let locks = locks.get().min(LOCKS_MAX).next_power_of_two();
        Ok(HashedLocks {
            locks: memory::filled(locks, Padded::default)?,
            hasher,
            id: guard::Id::new(),
            keys: PhantomData,
        })
    }

    /// How many locks there are.
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    fn kind(&self, index: usize) -> &K {
        &self.locks[index].0
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

impl<K: Kind, Q: Hash + ?Sized, S: BuildHasher> HashedLocks<K, Q, S> {
    /// Which lock a key has, from 0. Keys with equal numbers exclude each other.
    pub fn index_of(&self, key: &Q) -> usize {
        self.hasher.hash_one(key) as usize & (self.locks.len() - 1)
    }

    fn one(&self, key: &Q, mode: Mode) -> KeyGuard<'_, K> {
        guard::assert_free(self.id);
        let lock = self.kind(self.index_of(key));
        lock.acquire(mode);
        KeyGuard::new(lock, mode, self.id)
    }

    fn try_one(&self, key: &Q, mode: Mode) -> Option<KeyGuard<'_, K>> {
        let lock = self.kind(self.index_of(key));
        lock.try_acquire(mode)
            .then(|| KeyGuard::new(lock, mode, self.id))
    }

    fn of_keys<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k Q>,
        mode: Mode,
    ) -> impl Iterator<Item = Claim>
    where
        Q: 'k,
    {
        let claim = move |key| Claim::new(self.index_of(key), mode);
        keys.into_iter().map(claim)
    }
}

/// What to take: each lock once, in the order of the array, exclusive if any of its keys is. O(k log k).
fn claims(all: impl Iterator<Item = Claim>) -> Claims {
    let mut claims: Claims = all.collect();
    if claims.len() > 1 {
        // Exclusive comes before shared.
        claims.sort_unstable();
        claims.dedup_by_key(|claim| claim.index());
    }
    claims
}

impl<Q: Hash + ?Sized, S: BuildHasher> HashedLocks<Mutex, Q, S> {
    /// Takes the lock of `key`; waits for it.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a guard of this array.
    #[inline]
    pub fn lock(&self, key: &Q) -> KeyGuard<'_, Mutex> {
        self.one(key, Mode::Exclusive)
    }

    /// Takes the lock of `key` if it is free.
    #[inline]
    pub fn try_lock(&self, key: &Q) -> Option<KeyGuard<'_, Mutex>> {
        self.try_one(key, Mode::Exclusive)
    }

    /// Takes the locks of all `keys`; waits for them. Allocates for more than eight keys. O(k log k).
    ///
    /// # Panics
    /// As [`lock`](Self::lock).
    pub fn lock_many<'k>(&self, keys: impl IntoIterator<Item = &'k Q>) -> KeysGuard<'_, Mutex>
    where
        Q: 'k,
    {
        self.many(claims(self.of_keys(keys, Mode::Exclusive)))
    }

    /// Takes the locks of all `keys` if all are free, and none otherwise.
    pub fn try_lock_many<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k Q>,
    ) -> Option<KeysGuard<'_, Mutex>>
    where
        Q: 'k,
    {
        self.try_many(claims(self.of_keys(keys, Mode::Exclusive)))
    }
}

impl<Q: ?Sized, S> HashedLocks<Mutex, Q, S> {
    /// Takes all locks there are; waits for them. O(locks).
    ///
    /// # Panics
    /// In debug builds, if this thread holds a guard of this array.
    pub fn lock_all(&self) -> KeysGuard<'_, Mutex> {
        self.many(self.all(Mode::Exclusive))
    }
}

impl<Q: Hash + ?Sized, S: BuildHasher> HashedLocks<RwLock, Q, S> {
    /// Takes the lock of `key` shared; waits for it.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a guard of this array.
    #[inline]
    pub fn read(&self, key: &Q) -> KeyGuard<'_, RwLock> {
        self.one(key, Mode::Shared)
    }

    /// Takes the lock of `key` exclusively; waits for it.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn write(&self, key: &Q) -> KeyGuard<'_, RwLock> {
        self.one(key, Mode::Exclusive)
    }

    /// Takes the lock of `key` shared if that needs no waiting.
    #[inline]
    pub fn try_read(&self, key: &Q) -> Option<KeyGuard<'_, RwLock>> {
        self.try_one(key, Mode::Shared)
    }

    /// Takes the lock of `key` exclusively if it is free.
    #[inline]
    pub fn try_write(&self, key: &Q) -> Option<KeyGuard<'_, RwLock>> {
        self.try_one(key, Mode::Exclusive)
    }

    /// Takes the locks of the keys in `read` shared and those in `write` exclusively; waits for them. A lock
    /// that has keys in both is taken exclusively. Allocates for more than eight keys. O(k log k).
    ///
    /// # Panics
    /// As [`read`](Self::read).
    pub fn lock_many<'r, 'w>(
        &self,
        read: impl IntoIterator<Item = &'r Q>,
        write: impl IntoIterator<Item = &'w Q>,
    ) -> KeysGuard<'_, RwLock>
    where
        Q: 'r + 'w,
    {
        let shared = self.of_keys(read, Mode::Shared);
        self.many(claims(shared.chain(self.of_keys(write, Mode::Exclusive))))
    }

    /// As [`lock_many`](Self::lock_many) if no lock needs waiting, and none of them otherwise.
    pub fn try_lock_many<'r, 'w>(
        &self,
        read: impl IntoIterator<Item = &'r Q>,
        write: impl IntoIterator<Item = &'w Q>,
    ) -> Option<KeysGuard<'_, RwLock>>
    where
        Q: 'r + 'w,
    {
        let shared = self.of_keys(read, Mode::Shared);
        self.try_many(claims(shared.chain(self.of_keys(write, Mode::Exclusive))))
    }
}

impl<Q: ?Sized, S> HashedLocks<RwLock, Q, S> {
    /// Takes all locks there are shared; waits for them. O(locks).
    ///
    /// # Panics
    /// In debug builds, if this thread holds a guard of this array.
    pub fn read_all(&self) -> KeysGuard<'_, RwLock> {
        self.many(self.all(Mode::Shared))
    }

    /// Takes all locks there are exclusively; waits for them. O(locks).
    ///
    /// # Panics
    /// As [`read_all`](Self::read_all).
    pub fn write_all(&self) -> KeysGuard<'_, RwLock> {
        self.many(self.all(Mode::Exclusive))
    }
}

/// [`LOCKS_PER_CPU`](HashedLocks::LOCKS_PER_CPU) for each CPU that this process may use, with a hasher of the type's default.
impl<K: Kind, Q: ?Sized, S: Default> Default for HashedLocks<K, Q, S> {
    fn default() -> Self {
        let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let locks = cpus * Self::LOCKS_PER_CPU;
        let locks = NonZeroUsize::new(locks).expect("neither factor is 0");
        Self::with_hasher(locks, S::default())
    }
}

impl<K: Kind, Q: ?Sized, S> fmt::Debug for HashedLocks<K, Q, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashedLocks")
            .field("locks", &self.locks.len())
            .finish_non_exhaustive()
    }
}
