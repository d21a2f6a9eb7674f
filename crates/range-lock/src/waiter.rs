use std::task::Waker;

use crate::sync::{Arc, AtomicUsize, Mutex, Ordering, Thread, whole};

/// Whom to wake.
pub(crate) enum Wake {
    Thread(Thread),
    Task(Waker),
}

impl Wake {
    fn wake(self) {
        match self {
            Wake::Thread(thread) => thread.unpark(),
            Wake::Task(waker) => waker.wake(),
        }
    }
}

/// Those who can go on. They are woken after all internal locks are left: a waker is foreign code.
#[derive(Default)]
pub(crate) struct Woken(Vec<Wake>);

impl Woken {
    /// All of them, though one panics; where the thread panics already, whatever they do.
    pub(crate) fn wake(self) {
        let mut rest = Rest(self.0.into_iter());
        if std::thread::panicking() {
            return;
        }
        for one in rest.0.by_ref() {
            one.wake();
        }
    }
}

/// Those who are still to be woken.
struct Rest(std::vec::IntoIter<Wake>);

impl Drop for Rest {
    fn drop(&mut self) {
        for one in &mut self.0 {
            // A second panic would end the process.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.wake()));
        }
    }
}

/// A request that waits: how many earlier requests it waits for, as in the range locks that Jan Kara (2013) and
/// Davidlohr Bueso (2017) proposed for Linux.
pub(crate) struct Waiter {
    blockers: AtomicUsize,
    wake: Mutex<Option<Wake>>,
}

impl Waiter {
    pub(crate) fn new(wake: Wake) -> Arc<Waiter> {
        Arc::new(Waiter {
            blockers: AtomicUsize::new(0),
            wake: Mutex::new(Some(wake)),
        })
    }

    /// Says how many it waits for, before anybody else knows of it.
    pub(crate) fn wait_for(&self, blockers: usize) {
        // Relaxed: the lock under which the waiter is made known publishes it.
        self.blockers.store(blockers, Ordering::Relaxed);
    }

    /// One of those that it waits for has become two.
    pub(crate) fn one_more(&self) {
        // Relaxed: as above; the count cannot be zero meanwhile.
        self.blockers.fetch_add(1, Ordering::Relaxed);
    }

    /// One of those that it waits for is gone.
    pub(crate) fn one_less(&self, woken: &mut Woken) {
        // AcqRel: what all the former holders did happens before what the waiter does (`is_granted`).
        let before = self.blockers.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a request waits for more than was counted");
        if before == 1 {
            woken.0.extend(whole(self.wake.lock()).take());
        }
    }

    /// Whether it waits for nobody any more: the range is its own.
    pub(crate) fn is_granted(&self) -> bool {
        // Acquire: pairs with the AcqRel of `one_less`.
        self.blockers.load(Ordering::Acquire) == 0
    }

    /// Says whom to wake from now on. To be followed by `is_granted`: who grants afterwards finds the new one,
    /// who granted before has left the mutex, and so is seen.
    pub(crate) fn wake_by(&self, wake: Wake) {
        let mut place = whole(self.wake.lock());
        let former = match (&*place, &wake) {
            (Some(Wake::Task(known)), Wake::Task(new)) if known.will_wake(new) => Some(wake),
            _ => place.replace(wake),
        };
        drop(place);
        drop(former); // Outside of the mutex: a waker is foreign code.
    }
}
