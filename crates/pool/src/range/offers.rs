//! Ranges that want helpers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::priority;
use crate::registry::Registry;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, Padded};
use crate::waits::{Counted, Waits};
use crate::worker::Worker;

/// What helpers know of a range, whatever it does. At the beginning of a [`Region`](super::share::Region), in the
/// frame of the caller, who waits until nobody is inside.
#[repr(C)]
pub(crate) struct Offer {
    pub(crate) help: unsafe fn(*const Offer, &Worker),
    /// Chunks are left, and not too many help.
    pub(crate) is_open: AtomicBool,
    /// Helpers that are here now.
    pub(crate) inside: AtomicU32,
    pub(crate) helpers_max: u32,
    pub(crate) per_node_max: u32,
    /// Slots of those that help or have helped.
    pub(crate) helpers: Mutex<Vec<u32>>,
    /// The slot of the caller.
    pub(crate) caller: u32,
    pub(crate) lowers: bool,
}

impl Offer {
    pub(crate) fn helpers(&self) -> MutexGuard<'_, Vec<u32>> {
        self.helpers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Offers {
    /// Open ones: what idle workers look at.
    open: Padded<AtomicUsize>,
    list: Counted<List>,
    succession: Succession,
}

/// Ranges that come one after the other, each too short to wake a helper for it: together they are worth one, which
/// then stays for the next ones. Hints, so no update is atomic as a whole.
#[derive(Default)]
struct Succession {
    /// When somebody last worked on a range, ns since the pool began.
    last_ns: AtomicU64,
    /// What callers have worked alone since a helper was invited, without a pause longer than a wake-up.
    alone_ns: AtomicU64,
}

struct List {
    offers: Vec<*const Offer>,
}

// SAFETY: offers stay until they are withdrawn under the lock, and all of them that is used is `Sync`.
unsafe impl Send for List {}

/// A place in a range for one helper. Must be used.
pub(crate) struct Ticket(*const Offer);

impl Offers {
    pub(crate) fn new() -> Self {
        let list = List { offers: Vec::new() };
        Offers {
            open: Padded(AtomicUsize::new(0)),
            list: Counted::new("list of parallel ranges", list),
            succession: Succession::default(),
        }
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.list.waits
    }

    pub(crate) fn wants_help(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// A range begins: how long those before it, in close succession, were worked on by their callers alone.
    pub(crate) fn begin(&self, now_ns: u64, wake_ns: u64) -> u64 {
        if !self.is_recent(now_ns, wake_ns) {
            self.succession.alone_ns.store(0, Ordering::Relaxed);
        }
        self.succession.alone_ns.load(Ordering::Relaxed)
    }

    /// Somebody leaves a range, after `alone_ns` for which a helper would have been worth something.
    pub(crate) fn leave(&self, now_ns: u64, alone_ns: u64) {
        self.succession.last_ns.store(now_ns, Ordering::Relaxed);
        if alone_ns > 0 {
            let alone = &self.succession.alone_ns;
            let sum = alone.load(Ordering::Relaxed).saturating_add(alone_ns);
            alone.store(sum, Ordering::Relaxed);
        }
    }

    /// A range ended a moment ago, so that the next one may begin before a helper could be woken for it.
    pub(crate) fn is_recent(&self, now_ns: u64, wake_ns: u64) -> bool {
        now_ns.saturating_sub(self.succession.last_ns.load(Ordering::Relaxed)) <= wake_ns
    }

    pub(crate) fn add(&self, offer: &Offer) {
        self.succession.alone_ns.store(0, Ordering::Relaxed);
        offer.is_open.store(true, Ordering::Relaxed);
        self.list.lock().offers.push(offer);
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// No helper comes any more; those that have come may still be inside.
    pub(crate) fn close(&self, offer: &Offer) {
        if offer.is_open.swap(false, Ordering::AcqRel) {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// As [`close`](Self::close), and nobody finds it any more.
    pub(crate) fn withdraw(&self, offer: &Offer) {
        self.close(offer);
        self.list
            .lock()
            .offers
            .retain(|&at| !std::ptr::eq(at, offer));
    }

    /// A place to help, in the range that was offered first.
    pub(crate) fn enter(&self, registry: &Registry, index: u32, cpu: u32) -> Option<Ticket> {
        if !self.wants_help() {
            return None;
        }
        let list = self.list.lock();
        let node = registry.machine.node(cpu);
        let found = list.offers.iter().find(|&&at| {
            // SAFETY: listed, and the lock is held: its caller is still there.
            let offer = unsafe { &*at };
            if offer.caller == index || !offer.is_open.load(Ordering::Acquire) {
                return false;
            }
            let mut helpers = offer.helpers();
            let is_of_node =
                |&&slot: &&u32| registry.is_worker(slot) && registry.machine.node(slot) == node;
            let on_node = helpers.iter().filter(is_of_node).count() as u32;
            if helpers.contains(&index) {
                // It was here before and left when nothing was left.
                return false;
            }
            if on_node >= offer.per_node_max {
                return false;
            }
            helpers.push(index);
            let is_full = helpers.len() as u32 >= offer.helpers_max;
            offer.inside.fetch_add(1, Ordering::AcqRel);
            if is_full {
                self.close(offer);
            }
            true
        });
        found.map(|&at| Ticket(at))
    }
}

impl Ticket {
    /// Does a share of the range, at the lowest priority if it takes long.
    pub(crate) fn help(self, worker: &Worker) {
        let registry = worker.registry();
        // SAFETY: the caller waits until `inside` is 0, to which the last line counts.
        let offer = unsafe { &*self.0 };
        let caller = &registry.slots[offer.caller as usize].parker;
        priority::help(worker.slot(), self.0.addr());
        // SAFETY: it was made for this.
        unsafe { (offer.help)(self.0, worker) };
        priority::restore(worker.slot());
        offer.inside.fetch_sub(1, Ordering::AcqRel);
        // Not the offer any more, which may be gone; the slot stays.
        caller.unpark();
    }
}
