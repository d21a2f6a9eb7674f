//! When the memory of replaced nodes can be used again: when nobody reads them any more.
//!
//! `seize` (Hyaline, Nikolaev and Ravindran 2021): on Linux its pins need no fence, for the one who frees makes all CPUs
//! pass one (`membarrier`). Under loom nothing is freed before the map is.

#[cfg(loom)]
pub(super) use at_the_end::{Pin, Reclaim};
#[cfg(not(loom))]
pub(super) use with_seize::{Pin, Reclaim};

#[cfg(not(loom))]
mod with_seize {
    use crate::sync::{AtomicPtr, Ordering};

    pub(in crate::map) type Pin<'a> = seize::LocalGuard<'a>;

    pub(in crate::map) struct Reclaim(seize::Collector);

    impl Reclaim {
        pub(in crate::map) fn new() -> Self {
            Reclaim(seize::Collector::new())
        }

        #[inline]
        pub(in crate::map) fn pin(&self) -> Pin<'_> {
            self.0.enter()
        }

        /// Frees when nobody is pinned who was so before; this thread may be, too.
        ///
        /// # Safety
        /// Who pins from now on does not find `node`, and `free` may be called for it, once.
        pub(in crate::map) unsafe fn retire<T>(
            pin: &Pin<'_>,
            node: *mut T,
            free: unsafe fn(*mut T, &seize::Collector),
        ) {
            // SAFETY: as promised by the caller.
            unsafe { seize::Guard::defer_retire(pin, node, free) }
        }

        pub(in crate::map) fn refresh(pin: &mut Pin<'_>) {
            seize::Guard::refresh(pin);
        }

        /// What was found is kept by the pin. At least Acquire, and where pins have no fence of their own sequentially
        /// consistent: it must not come before the pin.
        #[inline]
        pub(in crate::map) fn load<T>(pin: &Pin<'_>, from: &AtomicPtr<T>) -> *mut T {
            seize::Guard::protect(pin, from, Ordering::Acquire)
        }

        pub(in crate::map) fn flush(pin: &Pin<'_>) {
            seize::Guard::flush(pin);
        }
    }
}

#[cfg(loom)]
mod at_the_end {
    use std::sync::Mutex;

    use crate::sync::{AtomicPtr, Ordering};

    pub(in crate::map) struct Pin<'a>(&'a Reclaim);

    #[derive(Default)]
    pub(in crate::map) struct Reclaim(Mutex<Vec<Box<dyn FnOnce()>>>);

    impl Reclaim {
        pub(in crate::map) fn new() -> Self {
            Reclaim::default()
        }

        pub(in crate::map) fn pin(&self) -> Pin<'_> {
            Pin(self)
        }

        /// # Safety
        /// As above.
        pub(in crate::map) unsafe fn retire(
            pin: &Pin<'_>,
            node: *mut crate::map::Node,
            free: unsafe fn(*mut crate::map::Node),
        ) {
            // SAFETY: as promised by the caller.
            let free = Box::new(move || unsafe { free(node) });
            pin.0.0.lock().expect("no panic").push(free);
        }

        pub(in crate::map) fn refresh(_: &mut Pin<'_>) {}

        pub(in crate::map) fn load<T>(_: &Pin<'_>, from: &AtomicPtr<T>) -> *mut T {
            from.load(Ordering::Acquire)
        }

        pub(in crate::map) fn flush(_: &Pin<'_>) {}
    }

    impl Drop for Reclaim {
        fn drop(&mut self) {
            self.0
                .get_mut()
                .expect("no panic")
                .drain(..)
                .for_each(|free| free());
        }
    }
}
