//! Ranges that want helpers.

use crate::priority;
use crate::registry::Registry;
use crate::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
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
    pub(crate) helpers: Counted<Vec<u32>>,
    /// The slot of the caller.
    pub(crate) caller: u32,
    pub(crate) lowers: bool,
}

pub(crate) struct Offers {
    /// Open ones: what idle workers look at.
    open: AtomicUsize,
    list: Counted<List>,
}

struct List {
    offers: Vec<*const Offer>,
}

// SAFETY: offers stay until they are withdrawn under the lock, and all of them that is used is `Sync`.
unsafe impl Send for List {}

/// A place in a range for one helper. Must be used.
pub(crate) struct Ticket(*const Offer);

impl Offers {
    pub(crate) fn new(_nodes: u32) -> Self {
        let list = List { offers: Vec::new() };
        Offers {
            open: AtomicUsize::new(0),
            list: Counted::new("list of parallel ranges", list),
        }
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.list.waits
    }

    pub(crate) fn wants_help(&self, _node: u32) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    pub(crate) fn add(&self, offer: &Offer) {
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
        if !self.wants_help(0) {
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
            let mut helpers = offer.helpers.lock();
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
    /// Does a share of the range at the lowest priority.
    pub(crate) fn help(self, worker: &Worker) {
        let registry = worker.registry();
        // SAFETY: the caller waits until `inside` is 0, to which the last line counts.
        let offer = unsafe { &*self.0 };
        let caller = &registry.slots[offer.caller as usize].parker;
        if offer.lowers {
            priority::lower(worker.slot(), self.0.addr());
        }
        // SAFETY: it was made for this.
        unsafe { (offer.help)(self.0, worker) };
        priority::restore(worker.slot());
        offer.inside.fetch_sub(1, Ordering::AcqRel);
        // Not the offer any more, which may be gone; the slot stays.
        caller.unpark();
    }
}
