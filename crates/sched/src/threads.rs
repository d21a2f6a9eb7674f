//! The threads of an analysis: those that live, and what remains of those that are gone.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::chain::Episode;
use crate::event::{CpuId, Ns, Tid};
use crate::names::Name;
use crate::outcome::ThreadRow;
use crate::wasted::Class;

/// Living threads at most; what comes beyond is refused.
const LIVING_MAX: usize = 1 << 18;
/// Threads that are gone and are kept by number; the smaller half becomes rows by name beyond.
pub(crate) const GONE_MAX: usize = 1 << 14;
/// Such rows.
pub(crate) const NAMES_MAX: usize = 1 << 12;
/// The row of threads of further names.
pub(crate) const OTHERS: &str = "[others]";

/// What a thread is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// Not seen yet, or lost sight of.
    #[default]
    Unknown,
    /// On a CPU.
    Running,
    /// Woken; its run queue is about to be told.
    Placing { since: Ns },
    /// In a run queue.
    Waiting { since: Ns, is_woken: bool },
    /// Asleep.
    Sleeping {
        since: Ns,
        in_iowait: bool,
        uninterruptible: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Thread {
    pub state: State,
    /// Where it runs or waits, or did last.
    pub cpu: Option<CpuId>,
    pub class: Class,
    pub name: Name,
    /// Name of who woke it last, and whether that took it to another LLC.
    pub waker: Option<Name>,
    pub woken_to_other_llc: bool,
    pub episode: Episode,
    /// Where it is followed in the [timelines](crate::timelines::Timelines); 0 nowhere.
    pub timeline: u64,
    /// Sums; its name is filled in at the end.
    pub row: ThreadRow,
}

#[derive(Debug)]
pub(crate) struct Threads {
    living: FxHashMap<Tid, Thread>,
    gone: Vec<ThreadRow>,
    by_name: BTreeMap<Box<str>, ThreadRow>,
    nameless: Name,
}

impl Threads {
    /// Without any; threads that are not named yet are called `nameless`.
    pub fn new(nameless: Name) -> Threads {
        Threads {
            living: FxHashMap::default(),
            gone: Vec::new(),
            by_name: BTreeMap::new(),
            nameless,
        }
    }

    pub fn get(&self, tid: Tid) -> Option<&Thread> {
        self.living.get(&tid)
    }

    pub fn get_mut(&mut self, tid: Tid) -> Option<&mut Thread> {
        self.living.get_mut(&tid)
    }

    /// The thread, which is made if it was not seen before; `None` if there are too many.
    pub fn entry(&mut self, tid: Tid) -> Option<&mut Thread> {
        if self.living.len() >= LIVING_MAX && !self.living.contains_key(&tid) {
            return None;
        }
        let nameless = &self.nameless;
        Some(self.living.entry(tid).or_insert_with(|| Thread {
            state: State::Unknown,
            cpu: None,
            class: Class::ANY,
            name: nameless.clone(),
            waker: None,
            woken_to_other_llc: false,
            episode: Episode::default(),
            timeline: 0,
            row: ThreadRow {
                tid,
                threads: 1,
                ..ThreadRow::default()
            },
        }))
    }

    /// Those that live, in no order.
    pub fn living(&self) -> impl Iterator<Item = &Thread> {
        self.living.values()
    }

    /// The thread is gone; its number may come again as another one's.
    pub fn retire(&mut self, tid: Tid) {
        let Some(thread) = self.living.remove(&tid) else {
            return;
        };
        self.gone.push(finished(&thread));
        if self.gone.len() > GONE_MAX {
            self.fold();
        }
    }

    fn fold(&mut self) {
        self.gone
            .sort_unstable_by_key(|row| std::cmp::Reverse((row.run_ns, row.tid)));
        for row in self.gone.split_off(GONE_MAX / 2) {
            let is_known = self.by_name.contains_key(&row.name);
            let name: Box<str> = if is_known || self.by_name.len() < NAMES_MAX {
                row.name.clone()
            } else {
                OTHERS.into()
            };
            let sum = self
                .by_name
                .entry(name.clone())
                .or_insert_with(|| ThreadRow {
                    name,
                    pid: row.pid,
                    ..ThreadRow::default()
                });
            sum.absorb(&row);
        }
    }

    /// All rows, without the stretches that last still; those go to `extra`.
    pub fn rows(&self, mut extra: impl FnMut(&Thread, &mut ThreadRow)) -> Vec<ThreadRow> {
        let living = self.living.values().map(|thread| {
            let mut row = finished(thread);
            extra(thread, &mut row);
            row
        });
        let gone = self.gone.iter().chain(self.by_name.values()).cloned();
        let mut rows: Vec<ThreadRow> = living.chain(gone).collect();
        rows.sort_unstable_by(|a, b| {
            (b.run_ns, b.wait_ns())
                .cmp(&(a.run_ns, a.wait_ns()))
                .then_with(|| (a.tid, &a.name).cmp(&(b.tid, &b.name)))
        });
        rows
    }
}

fn finished(thread: &Thread) -> ThreadRow {
    ThreadRow {
        name: (&*thread.name).into(),
        last_cpu: thread.cpu,
        ..thread.row.clone()
    }
}
