//! Waiting threads that a CPU which becomes idle would look among, in order.
//!
//! Only idle CPUs ask for the order. While there are none for long, as on a machine that is overloaded, it is
//! given up, and made anew when one idles. That costs what keeping it would have cost since, at most: O(log
//! threads) for each event still, amortised.

use std::collections::{BTreeMap, BTreeSet};

use super::Class;
use crate::event::{Ns, Tid};

/// In the order of queues: since when, and who.
type Order = BTreeSet<(Ns, Tid)>;

/// Changes that nobody needed, for each waiting thread and beyond, before the order is given up.
const UNNEEDED_EACH: usize = 2;
const UNNEEDED: usize = if cfg!(test) { 2 } else { 64 };

#[derive(Debug)]
pub(super) struct Seeking {
    /// Without an allowed mate, of those that may run elsewhere.
    open: BTreeMap<Class, Order>,
    /// Without any mate.
    alone: Order,
    is_kept: bool,
    /// Changes since a CPU idled last.
    unneeded: usize,
}

impl Default for Seeking {
    fn default() -> Seeking {
        Seeking {
            open: BTreeMap::new(),
            alone: BTreeSet::new(),
            is_kept: true,
            unneeded: 0,
        }
    }
}

impl Seeking {
    /// A CPU idles. `all` are those who wait, all without a mate if no other CPU idled before; `None` as class is of
    /// those who cannot run elsewhere.
    pub fn needed(&mut self, all: impl Iterator<Item = (Option<Class>, Ns, Tid)>) {
        self.unneeded = 0;
        if std::mem::replace(&mut self.is_kept, true) {
            return;
        }
        for (class, queued_at, tid) in all {
            self.alone.insert((queued_at, tid));
            if let Some(class) = class {
                self.open(class, queued_at, tid);
            }
        }
    }

    /// One of `waiting` threads has changed, and no CPU idles.
    pub fn not_needed(&mut self, waiting: usize) {
        self.unneeded += 1;
        if self.is_kept && self.unneeded > UNNEEDED_EACH * waiting + UNNEEDED {
            self.is_kept = false;
            self.open.clear();
            self.alone.clear();
        }
    }

    pub fn open(&mut self, class: Class, queued_at: Ns, tid: Tid) {
        if self.is_kept {
            self.open.entry(class).or_default().insert((queued_at, tid));
        }
    }

    pub fn close(&mut self, class: Class, queued_at: Ns, tid: Tid) {
        if let Some(waiting) = self.open.get_mut(&class) {
            waiting.remove(&(queued_at, tid));
            if waiting.is_empty() {
                self.open.remove(&class);
            }
        }
    }

    pub fn alone(&mut self, queued_at: Ns, tid: Tid) {
        if self.is_kept {
            self.alone.insert((queued_at, tid));
        }
    }

    pub fn not_alone(&mut self, queued_at: Ns, tid: Tid) {
        self.alone.remove(&(queued_at, tid));
    }

    /// Who has waited longest without any mate.
    pub fn first_alone(&self) -> Option<Tid> {
        self.alone.first().map(|&(_, tid)| tid)
    }

    /// Who has waited longest of a class, for each class but the one that may run anywhere.
    pub fn restricted(&self) -> impl Iterator<Item = (Class, Tid)> + '_ {
        let classes = self.open.range(Class(1)..);
        classes.filter_map(|(&class, waiting)| Some((class, waiting.first()?.1)))
    }

    /// The same of those who may run anywhere.
    pub fn anywhere(&self) -> Option<Tid> {
        let waiting = self.open.get(&Class::ANY)?;
        waiting.first().map(|&(_, tid)| tid)
    }
}
