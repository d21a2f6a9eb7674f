//! What a probe tells about locks: the input vocabulary of [`crate::Tracker`].
//!
//! Times are nanoseconds of one monotonic clock, threads are kernel thread ids.

use amdahl_speedup::event::{Ns, Tid};
use amdahl_speedup::primitive::{KernelPrimitive, UserLock};

/// Names a place of waiting: equal for waits with the same code around them. 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(pub u64);

/// A lock by its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId {
    /// The process in whose address space it lies; 0 is the kernel, or memory that processes
    /// share.
    pub pid: Tid,
    /// Its address; 0 is unknown.
    pub address: u64,
}

/// What the probe knows of the kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A lock of the kernel.
    Kernel(KernelPrimitive),
    /// A deep sleep in the kernel: it counts only where the stack at its place shows a wait for a
    /// grace period of RCU, or for the readers of a per-CPU rwsem. Without a stack it does not.
    KernelSleep,
    /// A sleep of some microseconds between two tries. It is no wait of its own: it prolongs the one after
    /// which a thread of Go goes on looking for work, for which the goroutine that wanted the lock waits as well.
    Nap,
    /// A futex: the stack at its place tells which primitive it is part of.
    Futex,
    /// A semaphore of Go's runtime, for which a goroutine waited, whatever its threads did meanwhile: the stack at its place tells which
    /// primitive it is part of.
    Goroutine,
    /// A primitive in user space that the probe knows by itself.
    User(UserLock),
}

/// Who ended a wait: who released the lock last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waker {
    /// The thread.
    pub tid: Tid,
    /// When.
    pub ts: Ns,
    /// Where it was then.
    pub place: Place,
}

/// One stretch of waiting that is over, or that lasts until the recording ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    /// Who waited.
    pub tid: Tid,
    /// Of which process.
    pub pid: Tid,
    /// For what.
    pub lock: LockId,
    /// What that is.
    pub kind: Kind,
    /// Begin.
    pub begin: Ns,
    /// When the thread ran on.
    pub end: Ns,
    /// Where.
    pub place: Place,
    /// Who ended it, where known; `None` also for time-outs and signals.
    pub waker: Option<Waker>,
    /// A futex's value that the waiter expected.
    pub expected: u32,
    /// It had not ended when the recording did.
    pub is_open: bool,
    /// It had begun before the recording did, at whose begin `begin` is: it is longer than that.
    pub began_before: bool,
    /// It was polled: begin and end are known to within half the time between polls, and it may
    /// have been several.
    pub is_polled: bool,
}

/// One stretch in which a goroutine was parked for a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parked {
    /// It, of [`Kind::Goroutine`], with all before it that it goes on with. The thread is that which goes on with the goroutine.
    pub wait: Wait,
    /// Of its length, what was told before: whoever was woken lost a race and waits again. 0 if it is a wait of its own.
    pub before: Ns,
}

/// One time that somebody had a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hold {
    /// Who had it.
    pub tid: Tid,
    /// Which.
    pub lock: LockId,
    /// What that is: how it was wanted.
    pub kind: Kind,
    /// Acquired.
    pub begin: Ns,
    /// Released.
    pub end: Ns,
    /// Where it was acquired.
    pub place: Place,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Somebody waited.
    Wait(Wait),
    /// A goroutine waited.
    Parked(Parked),
    /// Somebody held.
    Hold(Hold),
    /// The probe lost this many events.
    Lost(u64),
}
