//! What each thread holds, in debug builds: so that one which would wait for itself panics instead.

#[cfg(all(debug_assertions, not(loom)))]
pub(crate) use noted::{Held, all_of, give, next_lock, take, waits_for_held};

#[cfg(all(debug_assertions, not(loom)))]
mod noted {
    use std::cell::RefCell;
    use std::panic::Location;
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::Kind;
    use crate::span::Span;

    #[derive(Clone, Copy)]
    pub(crate) struct Held {
        lock: u64,
        pub(crate) span: Span,
        pub(crate) kind: Kind,
        pub(crate) at: &'static Location<'static>,
    }

    thread_local!(static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) });

    /// A number for a lock, which no other has had.
    pub(crate) fn next_lock() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// A thread at its end has lost its list: then nothing is noted, and nothing found.
    fn with_held<T: Default>(change: impl FnOnce(&mut Vec<Held>) -> T) -> T {
        let changed = HELD.try_with(|held| change(&mut held.borrow_mut()));
        changed.unwrap_or_default()
    }

    pub(crate) fn take(lock: u64, span: Span, kind: Kind, at: &'static Location<'static>) {
        with_held(|held| {
            held.push(Held {
                lock,
                span,
                kind,
                at,
            });
        });
    }

    pub(crate) fn give(lock: u64, span: Span, kind: Kind) -> Option<&'static Location<'static>> {
        with_held(|held| {
            let is_it = |h: &Held| h.lock == lock && h.span == span && h.kind == kind;
            let at = held.iter().rposition(is_it)?;
            Some(held.swap_remove(at).at)
        })
    }

    pub(crate) fn all_of(lock: u64) -> Vec<Held> {
        with_held(|held| held.iter().filter(|h| h.lock == lock).copied().collect())
    }

    /// Of a request, the last of those that `waiting` has, the held one for which it waits at the end of a chain of requests that
    /// wait for each other.
    ///
    /// O(n^2) of n requests that wait, once for each link of the chain.
    pub(crate) fn waits_for_held<'h, T>(
        waiting: &[T],
        held: &'h [Held],
        for_held: impl Fn(&T, &Held) -> bool,
        for_other: impl Fn(&T, &T) -> bool,
        is_it: impl Fn(&T) -> bool,
    ) -> Option<&'h Held> {
        let mut known: Vec<Option<&Held>> = waiting
            .iter()
            .map(|one| held.iter().find(|held| for_held(one, held)))
            .collect();
        loop {
            let mut is_over = true;
            for at in 0..waiting.len() {
                if known[at].is_none() {
                    let others = waiting.iter().zip(&known);
                    let mut others = others.filter(|(other, _)| for_other(&waiting[at], other));
                    known[at] = others.find_map(|(_, held)| *held);
                    is_over &= known[at].is_none();
                }
            }
            if is_over {
                let mut all = waiting.iter().zip(known).rev();
                return all.find(|(one, _)| is_it(one)).and_then(|(_, held)| held);
            }
        }
    }
}
