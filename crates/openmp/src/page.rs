//! What others publish about the CPUs that this process can have (`amdahl-phantom-page`), and what is kept of it.

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use amdahl_phantom_page::{Reader, Snapshot};

/// The page of this process, which may come late or be another one later.
#[derive(Default)]
pub(crate) struct Page {
    reader: Option<Reader>,
    /// When it was sought last, if it was.
    sought_ns: Option<u64>,
}

/// Where there is no page that is fresh, one is sought no more often than this.
const SEEK_NS: u64 = 1_000_000_000;

impl Page {
    /// Whether one was found.
    pub(crate) fn is_found(&self) -> bool {
        self.reader.is_some()
    }

    /// What it says at `now_ns`, if it is fresh. `find` finds the one that there is now.
    pub(crate) fn read(
        &mut self,
        now_ns: u64,
        find: impl FnOnce() -> Option<Reader>,
    ) -> Option<Snapshot> {
        let fresh = |reader: &Option<Reader>| reader.as_ref()?.read_fresh(now_ns).ok();
        let is_due = |sought_ns| now_ns.saturating_sub(sought_ns) >= SEEK_NS;
        let snapshot = fresh(&self.reader);
        if snapshot.is_some() || !self.sought_ns.is_none_or(is_due) {
            return snapshot;
        }
        self.sought_ns = Some(now_ns);
        // Where none is found, the writer of the old one may come back.
        self.reader = find().or(self.reader.take());
        fresh(&self.reader)
    }
}

/// Something of the process's under a lock for which nobody waits: who finds it taken does without.
pub(crate) struct Kept<T: 'static> {
    first: Mutex<Option<T>>,
    /// Another one in a child of `fork`, if it has to be; null: the first.
    another: AtomicPtr<Mutex<Option<T>>>,
}

impl<T> Kept<T> {
    pub(crate) const fn new() -> Kept<T> {
        Kept {
            first: Mutex::new(None),
            another: AtomicPtr::new(ptr::null_mut()),
        }
    }

    pub(crate) fn lock(&self) -> &Mutex<Option<T>> {
        // SAFETY: null, or made by `in_child` and never freed.
        unsafe { self.another.load(Ordering::Acquire).as_ref() }.unwrap_or(&self.first)
    }

    /// Of all threads only the one that called `fork` is there. One that had the lock would never give it back: what is
    /// under it is forgotten, not freed, since it may have been changing.
    pub(crate) fn in_child(&self) {
        if self.lock().try_lock().is_err() {
            let new = Box::into_raw(Box::new(Mutex::new(None)));
            self.another.store(new, Ordering::Release);
        }
    }
}
