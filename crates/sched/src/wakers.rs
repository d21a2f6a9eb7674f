//! Who wakes whom, by names.

use rustc_hash::FxHashMap;

use crate::event::{Ns, Waker};
use crate::names::Name;

/// Pairs of names that are kept apart.
const PAIRS_MAX: usize = 16_384;

/// Wake-ups of threads of one name by threads of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeRow {
    /// Name of the waking threads, `[timer]` or `[interrupt]`.
    pub waker: Box<str>,
    /// Name of the woken threads.
    pub woken: Box<str>,
    /// How often.
    pub count: u64,
    /// How often the woken one went to another last-level cache.
    pub to_other_llc: u64,
    /// Sum of the times until they ran.
    pub waited_ns: Ns,
    /// The longest of these.
    pub waited_max_ns: Ns,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    to_other_llc: u64,
    waited_ns: Ns,
    waited_max_ns: Ns,
}

/// Names of wakers that are no threads.
pub(crate) fn waker_name(waker: Waker) -> &'static str {
    match waker {
        Waker::Timer => "[timer]",
        Waker::Interrupt => "[interrupt]",
        Waker::Thread(_) => "[unknown]",
    }
}

#[derive(Debug, Default)]
pub(crate) struct Wakers {
    pairs: FxHashMap<(Name, Name), Sum>,
    /// Wake-ups of pairs that were too many to be kept apart.
    pub others: u64,
}

impl Wakers {
    /// The woken thread runs.
    pub fn add(&mut self, waker: Name, woken: Name, waited_ns: Ns, to_other_llc: bool) {
        let key = (waker, woken);
        if self.pairs.len() >= PAIRS_MAX && !self.pairs.contains_key(&key) {
            self.fold();
        }
        let sum = self.pairs.entry(key).or_default();
        sum.count += 1;
        sum.to_other_llc += u64::from(to_other_llc);
        sum.waited_ns = sum.waited_ns.saturating_add(waited_ns);
        sum.waited_max_ns = sum.waited_max_ns.max(waited_ns);
    }

    /// Largest first.
    pub fn rows(&self) -> Vec<WakeRow> {
        let mut rows: Vec<WakeRow> = self
            .pairs
            .iter()
            .map(|((waker, woken), sum)| WakeRow {
                waker: (&**waker).into(),
                woken: (&**woken).into(),
                count: sum.count,
                to_other_llc: sum.to_other_llc,
                waited_ns: sum.waited_ns,
                waited_max_ns: sum.waited_max_ns,
            })
            .collect();
        rows.sort_unstable_by(|a, b| {
            b.count
                .cmp(&a.count)
                .then_with(|| (&a.waker, &a.woken).cmp(&(&b.waker, &b.woken)))
        });
        rows
    }

    fn fold(&mut self) {
        let mut counts: Vec<u64> = self.pairs.values().map(|sum| sum.count).collect();
        let middle = counts.len() / 2;
        let limit = *counts.select_nth_unstable(middle).1;
        let others = &mut self.others;
        self.pairs.retain(|_, sum| {
            let is_kept = sum.count > limit;
            *others += if is_kept { 0 } else { sum.count };
            is_kept
        });
    }
}
