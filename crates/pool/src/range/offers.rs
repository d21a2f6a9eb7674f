//! Ranges that want helpers.

use std::sync::{Mutex, MutexGuard};

use super::crew::{Crew, Entry};
use crate::priority;
use crate::registry::Registry;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, Padded};
use crate::waits::{Counted, Waits, lock};
use crate::worker::Worker;

/// What helpers know of a range, whatever it does. At the beginning of a [`Region`](super::share::Region), in the
/// frame of the caller, who waits until nobody is inside.
#[repr(C)]
pub(crate) struct Offer {
    pub(crate) help: unsafe fn(*const Offer, &Worker),
    /// Who may help: [`ANYBODY`], or a bit for each node that has a place left. 0 when nobody may any more.
    pub(crate) open: AtomicU64,
    /// Helpers that are here now.
    pub(crate) inside: AtomicU32,
    pub(crate) helpers_max: u32,
    pub(crate) per_node_max: u32,
    /// Those that help or have helped.
    pub(crate) helpers: Mutex<Crew>,
    /// The slot of the caller.
    pub(crate) caller: u32,
    pub(crate) lowers: bool,
}

impl Offer {
    pub(crate) fn helpers(&self, registry: &Registry) -> MutexGuard<'_, Crew> {
        lock(&self.helpers, &registry.range_locks)
    }
}

/// For [`Offer::open`]: on any node.
const ANYBODY: u64 = 1 << 63;

/// Offers with caps per node are told apart on so many nodes.
const NODES: u32 = 63;

pub(crate) struct Offers {
    /// What idle workers look at.
    open: Padded<Open>,
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

/// How many offers are open.
struct Open {
    /// To anybody.
    all: AtomicUsize,
    /// To some nodes.
    some: AtomicUsize,
    /// To each node, beside those to anybody.
    on: Box<[AtomicUsize]>,
}

struct List {
    offers: Vec<*const Offer>,
}

// SAFETY: offers stay until they are withdrawn under the lock, and all of them that is used is `Sync`.
unsafe impl Send for List {}

/// A place in a range for one helper. Must be used.
pub(crate) struct Ticket(*const Offer);

impl Offers {
    pub(crate) fn new(nodes: u32) -> Self {
        let list = List { offers: Vec::new() };
        let none = |_| AtomicUsize::new(0);
        Offers {
            open: Padded(Open {
                all: AtomicUsize::new(0),
                some: AtomicUsize::new(0),
                on: (0..nodes).map(none).collect(),
            }),
            list: Counted::new("list of parallel ranges", list),
            succession: Succession::default(),
        }
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.list.waits
    }

    /// Whether an offer is open to anybody at all.
    pub(crate) fn wants_help(&self) -> bool {
        self.open.all.load(Ordering::Acquire) > 0 || self.wants_help_of_some()
    }

    /// Whether one is open to some nodes.
    pub(crate) fn wants_help_of_some(&self) -> bool {
        self.open.some.load(Ordering::Acquire) > 0
    }

    /// Whether one is open to workers of `node`.
    #[inline]
    pub(crate) fn wants_help_of(&self, node: u32) -> bool {
        self.open.all.load(Ordering::Acquire) > 0
            || self.wants_help_of_some() && self.open.on[node as usize].load(Ordering::Acquire) > 0
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

    /// Offers places to all, or under a cap per node to each node. Whether anybody may take one.
    pub(crate) fn add(&self, offer: &Offer) -> bool {
        let nodes = self.open.on.len() as u32;
        let is_capped = offer.per_node_max < offer.helpers_max;
        self.succession.alone_ns.store(0, Ordering::Relaxed);
        if offer.helpers_max == 0 || offer.per_node_max == 0 {
            return false;
        }
        let to = match is_capped && nodes <= NODES {
            true => (1 << nodes) - 1,
            false => ANYBODY,
        };
        offer.open.store(to, Ordering::Relaxed);
        self.list.lock().offers.push(offer);
        if to == ANYBODY {
            self.open.all.fetch_add(1, Ordering::SeqCst);
        } else {
            self.open.on.iter().for_each(|open| {
                open.fetch_add(1, Ordering::Relaxed);
            });
            self.open.some.fetch_add(1, Ordering::SeqCst);
        }
        true
    }

    /// No helper comes any more; those that have come may still be inside.
    pub(crate) fn close(&self, offer: &Offer) {
        self.close_to(offer, u64::MAX);
    }

    /// No helper comes of these nodes.
    fn close_to(&self, offer: &Offer, nodes: u64) {
        let was = offer.open.fetch_and(!nodes, Ordering::AcqRel);
        if was & nodes & ANYBODY != 0 {
            self.open.all.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let mut closed = was & nodes;
        // Who closes the last node counts the offer.
        if closed != 0 && was & !nodes == 0 {
            self.open.some.fetch_sub(1, Ordering::AcqRel);
        }
        while closed != 0 {
            self.open.on[closed.trailing_zeros() as usize].fetch_sub(1, Ordering::AcqRel);
            closed &= closed - 1;
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
        let node = registry.machine.node(cpu);
        if !self.wants_help_of(node) {
            return None;
        }
        let list = self.list.lock();
        let found = list.offers.iter().find(|&&at| {
            // SAFETY: listed, and the lock is held: its caller is still there.
            let offer = unsafe { &*at };
            let own = match self.open.on.len() as u32 <= NODES {
                true => 1 << node,
                false => 0,
            };
            if offer.caller == index || offer.open.load(Ordering::Acquire) & (ANYBODY | own) == 0 {
                return false;
            }
            let of_node = registry.is_worker(index).then_some(node);
            let limit = registry.counts.load().limit();
            let entry = offer.helpers(registry).enter(index, of_node, limit);
            if entry == Entry::Refused {
                return false;
            }
            offer.inside.fetch_add(1, Ordering::AcqRel);
            match entry {
                Entry::Last => self.close(offer),
                Entry::LastOfNode => self.close_to(offer, own),
                Entry::Refused | Entry::In => {}
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
        priority::help(worker.slot(), self.0.addr(), offer.lowers);
        // SAFETY: it was made for this.
        unsafe { (offer.help)(self.0, worker) };
        priority::restore(worker.slot());
        offer.inside.fetch_sub(1, Ordering::AcqRel);
        // Not the offer any more, which may be gone; the slot stays.
        caller.unpark();
    }
}
