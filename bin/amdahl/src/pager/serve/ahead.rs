//! What is fetched before a VM touches it: its working set, and all of the rest at the end.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_pager::handoff::{Layout, tell_ready};
use amdahl_pager::{Pager, WorkingSet};
use serde_json::json;

use super::tell::{Line, Vm, pages};
use super::vm::Shared;

/// Pages that are fetched at once for a working set: so many are out of their order.
const STEP_PAGES: u64 = 1024;
/// The same, where order does not matter.
const FILL_PAGES: usize = 4096;

/// Tells a VMM when this is dropped that its working set is there, or not waited for any more.
pub struct Ready<'a>(pub &'a UnixStream);

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        // Who is gone by then needs no word.
        let _ = tell_ready(self.0);
    }
}

/// What a VM needs first is fetched, in its order: while it runs, when faults overtake that, or before, when it is waited for. Whether it was done.
pub fn replay(
    shared: &Shared,
    vm: Vm,
    pager: &Pager,
    layout: &Layout,
    cancel: &AtomicBool,
    is_awaited: bool,
) -> bool {
    let begun = Instant::now();
    let steps = layout.steps(shared.memory.working_set.iter().cloned(), STEP_PAGES);
    let next = AtomicUsize::new(0);
    let is_over =
        || cancel.load(Ordering::Relaxed) || shared.interrupt.asked() || shared.keep.is_pausing();
    // Two: one unpacks while the other puts pages into place.
    thread::scope(|scope| {
        let work = || {
            while let Some(step) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
                if is_over() {
                    return;
                }
                match is_awaited {
                    true => pager.prefetch(step),
                    false => pager.replay(step, is_over),
                };
            }
        };
        // Without it the other takes longer.
        let _ = thread::Builder::new().spawn_scoped(scope, work);
        work();
    });
    if is_over() {
        return false;
    }
    let count: u64 = steps.iter().map(WorkingSet::pages).sum();
    let time = begun.elapsed();
    shared.teller.tell(&Line::new(
        "working-set",
        format!(
            "{}: its working set of {} is there after {}",
            vm.name(),
            pages(count as usize),
            super::tell::duration(time)
        ),
        vm.fields(json!({ "pages": count, "seconds": time.as_secs_f64() })),
    ));
    true
}

/// How far the last fetching has come.
#[derive(Default)]
pub struct Filling {
    pub is_done: AtomicBool,
}

/// Fetches all that is missing, in pieces after which it can be ended.
pub fn fill(pager: &Pager, cancel: &AtomicBool, state: &Filling, read_timeout: Duration) {
    for start in (0..pager.pages()).step_by(FILL_PAGES) {
        if cancel.load(Ordering::Relaxed) {
            return;
        }
        let end = pager.pages().min(start + FILL_PAGES);
        let begun = Instant::now();
        let missing = pager.prefetch(&WorkingSet::from_pages(start as u64..end as u64));
        if missing > 0 && begun.elapsed() >= read_timeout {
            // The source says nothing: the rest would take as long, each time.
            break;
        }
    }
    // Release: pairs with the Acquire in `watch`.
    state.is_done.store(true, Ordering::Release);
}
