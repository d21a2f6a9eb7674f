//! What threads did over time, in columns of equal length.

use std::collections::BTreeMap;

use crate::columns::{Cell, Columns};
use crate::event::{Ns, Tid};
use crate::names::Name;
use crate::threads::Thread;

/// Threads that are followed at most; beyond, the half that ran least is forgotten.
const FOLLOWED_MAX: usize = 600;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It is on a CPU.
    Running,
    /// It is runnable and waits for a CPU.
    Waiting,
    /// It sleeps, and signals do not end that (state D).
    Blocked,
    /// It sleeps otherwise.
    Asleep,
}

/// Time in a column by what the thread did, in the order of [`Doing`]. What is missing is not known.
pub type Spent = [Ns; 4];

impl Cell for Spent {
    fn merge(&mut self, other: &Spent) {
        for (sum, more) in self.iter_mut().zip(other) {
            *sum += more;
        }
    }
}

/// One thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Its number.
    pub tid: Tid,
    /// Its process.
    pub pid: Tid,
    /// Its name, the last one it had.
    pub name: Box<str>,
    /// From the beginning on; nothing is known of those after the last one.
    pub cells: Vec<Spent>,
}

#[derive(Clone, Debug)]
struct Followed {
    tid: Tid,
    pid: Tid,
    name: Name,
    run_ns: Ns,
}

/// The threads that ran most, of those of the selection. Threads that are gone are among them, each by itself
/// although a number came again.
#[derive(Clone, Debug)]
pub struct Timelines {
    columns: Columns<u64, Spent>,
    /// By the order in which they came; from 1 on.
    followed: BTreeMap<u64, Followed>,
    last: u64,
    /// The most that somebody who was forgotten had run. Who has not run more is not followed.
    forgotten_ns: Option<Ns>,
}

impl Timelines {
    /// Nobody yet; at most `cells_max` cells over all threads, and with 0 none.
    pub(crate) fn new(begin: Ns, cells_max: usize) -> Timelines {
        Timelines {
            columns: Columns::new(begin, cells_max),
            followed: BTreeMap::new(),
            last: 0,
            forgotten_ns: None,
        }
    }

    /// Length of a column.
    pub fn column_ns(&self) -> Ns {
        self.columns.column_ns()
    }

    /// What a thread did. O(log threads + columns that it touches), amortised.
    pub(crate) fn add(&mut self, thread: &mut Thread, doing: Doing, from: Ns, to: Ns) {
        // Of strangers it is not known what they do off their CPU.
        if thread.row.pid == 0 || from >= to || self.columns.is_off() {
            return;
        }
        if !self.followed.contains_key(&thread.timeline) {
            if self.forgotten_ns.is_some_and(|ns| thread.row.run_ns <= ns) {
                return;
            }
            if self.followed.len() >= FOLLOWED_MAX {
                self.forget();
            }
            self.last += 1;
            thread.timeline = self.last;
            let followed = Followed {
                tid: thread.row.tid,
                pid: thread.row.pid,
                name: thread.name.clone(),
                run_ns: 0,
            };
            self.followed.insert(self.last, followed);
        }
        self.go_on(thread, doing, from, to);
    }

    /// The same for those alone that are followed already.
    pub(crate) fn go_on(&mut self, thread: &Thread, doing: Doing, from: Ns, to: Ns) {
        let Some(followed) = self.followed.get_mut(&thread.timeline) else {
            return;
        };
        followed.run_ns = thread.row.run_ns;
        if followed.name != thread.name {
            followed.name = thread.name.clone();
        }
        let add = |spent: &mut Spent, ns| spent[doing as usize] += ns;
        self.columns.add(thread.timeline, from, to, add);
    }

    /// By time on CPUs, most first.
    fn order(&self) -> Vec<u64> {
        let mut order: Vec<u64> = self.followed.keys().copied().collect();
        order.sort_by_key(|id| (std::cmp::Reverse(self.followed[id].run_ns), *id));
        order
    }

    fn forget(&mut self) {
        for id in self.order().split_off(FOLLOWED_MAX / 2) {
            self.columns.remove(id);
            if let Some(followed) = self.followed.remove(&id) {
                self.forgotten_ns = self.forgotten_ns.max(Some(followed.run_ns));
            }
        }
    }

    /// The threads, most time on CPUs first.
    pub fn rows(&self) -> Vec<Timeline> {
        let rows = self.order().into_iter().map(|id| {
            let followed = &self.followed[&id];
            Timeline {
                tid: followed.tid,
                pid: followed.pid,
                name: (&*followed.name).into(),
                cells: self.columns.row(id).to_vec(),
            }
        });
        rows.collect()
    }
}
