//! Helpers at the lowest priority, and the caller's lent to them.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::registry::Slot;
use crate::sync::Ordering;
use crate::sys::{self, Standing};
use crate::waits::CountedGuard;

/// A helper that has worked for so long is lowered. What it would take from others before is less than a time slice.
pub(crate) const LOWER_AFTER: Duration = Duration::from_micros(300);

/// What a slot's thread helps with, and how low it is. Changed under the slot's lock, by its thread and by who lends.
#[derive(Debug, Default)]
pub(crate) struct Helping {
    /// The range, by its address; 0: none.
    range: usize,
    /// What to go back to, if it is lowered.
    before: Option<Standing>,
    /// The caller waits for it: it is not lowered any more.
    is_awaited: bool,
    /// When to lower it, if it is still at it.
    due: Option<Instant>,
}

/// How priorities can be lowered, such that they can be raised again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lowering {
    /// To nice 19.
    Nice,
    /// Not at all: this process could not raise it again (it lacks `CAP_SYS_NICE`, or a limit `RLIMIT_NICE` of 20).
    Not,
}

/// Which it is here; tried once, on a thread of its own.
pub(crate) fn lowering() -> Lowering {
    static LOWERING: OnceLock<Lowering> = OnceLock::new();
    *LOWERING.get_or_init(|| {
        let tried = std::thread::Builder::new().spawn(|| {
            let tid = sys::thread_id();
            let Some(before) = sys::standing(tid) else {
                return Lowering::Not;
            };
            let there_and_back =
                |low: Standing| sys::set_standing(tid, low) && sys::set_standing(tid, before);
            if there_and_back(before.nicest()) {
                Lowering::Nice
            } else {
                Lowering::Not
            }
        });
        tried
            .ok()
            .and_then(|thread| thread.join().ok())
            .unwrap_or(Lowering::Not)
    })
}

fn helping(slot: &Slot) -> CountedGuard<'_, Helping> {
    slot.helping.lock()
}

/// This thread, that of `slot`, begins to help with `range`, which lowers its helpers or not.
pub(crate) fn help(slot: &Slot, range: usize, lowers: bool) {
    let mut helping = helping(slot);
    helping.range = range;
    helping.is_awaited = false;
    helping.due = lowers.then(|| Instant::now() + LOWER_AFTER);
    slot.helps.store(true, Ordering::Relaxed);
}

/// The thread of `slot`, whoever asks, if it helps for so long that being in others' way counts, and what lowering costs does not.
/// Whether it was lowered.
pub(crate) fn lower_if_due(slot: &Slot) -> bool {
    let tid = slot.thread_id.load(Ordering::Relaxed);
    let mut helping = helping(slot);
    if helping.is_awaited
        || helping.before.is_some()
        || helping.due.is_none_or(|due| Instant::now() < due)
    {
        return false;
    }
    let Some(before) = sys::standing(tid) else {
        return false;
    };
    let low = match lowering() {
        Lowering::Nice => before.nicest(),
        Lowering::Not => return false,
    };
    let is_lowered = sys::set_standing(tid, low);
    if is_lowered {
        helping.before = Some(before);
    }
    is_lowered
}

/// It has ended.
pub(crate) fn restore(slot: &Slot) {
    let mut helping = helping(slot);
    helping.range = 0;
    helping.due = None;
    slot.helps.store(false, Ordering::Relaxed);
    if let Some(before) = helping.before.take() {
        sys::set_standing(slot.thread_id.load(Ordering::Relaxed), before);
    }
}

/// As long as it lives, what a helper does is no help: it has the priority that it had before.
pub(crate) struct Aside<'a> {
    slot: &'a Slot,
    helping: Helping,
}

/// This thread, that of `slot`, does something else than to help, if it helps.
pub(crate) fn aside(slot: &Slot) -> Option<Aside<'_>> {
    if !slot.helps.load(Ordering::Relaxed) {
        return None;
    }
    let mut own = helping(slot);
    if let Some(before) = own.before.take() {
        sys::set_standing(slot.thread_id.load(Ordering::Relaxed), before);
    }
    let helping = std::mem::take(&mut *own);
    slot.helps.store(false, Ordering::Relaxed);
    Some(Aside { slot, helping })
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        // Lowered again when it is due, unless the caller waits by then.
        *helping(self.slot) = std::mem::take(&mut self.helping);
        self.slot.helps.store(true, Ordering::Relaxed);
    }
}

/// Gives the thread of `slot` the priority of the calling thread, if it helps with `range` and is lowered. If it is not yet, it
/// stays as it is.
pub(crate) fn lend(slot: &Slot, range: usize) {
    let mut helping = helping(slot);
    if helping.range != range {
        return;
    }
    helping.is_awaited = true;
    if helping.before.is_none() {
        return;
    }
    if let Some(own) = sys::standing(sys::thread_id())
        && sys::set_standing(slot.thread_id.load(Ordering::Relaxed), own)
        && helping.before == Some(own)
    {
        helping.before = None;
    }
}

pub(crate) fn is_helping(slot: &Slot, range: usize) -> bool {
    helping(slot).range == range
}
