//! When the memory of replaced nodes can be used again: when nobody reads them any more.
//!
//! `seize` (Hyaline, Nikolaev and Ravindran 2021): on Linux its pins need no fence, for the one who frees makes all CPUs
//! pass one (`membarrier`). Loom sees a model in its place: not whether seize keeps its promise, but whether the map keeps to it.

#[cfg(loom)]
pub(super) use modelled::{Life, Pin, Reclaim};
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

/// What is promised of retired nodes, within one mutex. When a node could be freed its life ends, and who looks at it afterwards or
/// meanwhile panics; its memory stays until the map's end.
#[cfg(loom)]
mod modelled {
    use loom::cell::UnsafeCell;

    use crate::map::Node;
    use crate::sync::{AtomicPtr, Mutex, Ordering, whole};

    pub(in crate::map) struct Reclaim(Mutex<State>);

    #[derive(Default)]
    struct State {
        /// Of all times.
        pins: u64,
        /// The numbers of those that are left.
        pinned: Vec<u64>,
        retired: Vec<Retired>,
        over: Vec<Retired>,
    }

    struct Retired {
        node: *mut Node,
        free: unsafe fn(*mut Node),
        /// Of all pins, those made before.
        pins: u64,
    }

    impl Reclaim {
        pub(in crate::map) fn new() -> Self {
            Reclaim(Mutex::new(State::default()))
        }

        pub(in crate::map) fn pin(&self) -> Pin<'_> {
            let mut state = whole(self.0.lock());
            let number = state.pins;
            state.pins += 1;
            state.pinned.push(number);
            Pin {
                reclaim: self,
                number,
            }
        }

        /// # Safety
        /// As above.
        pub(in crate::map) unsafe fn retire(
            pin: &Pin<'_>,
            node: *mut Node,
            free: unsafe fn(*mut Node),
        ) {
            let mut state = whole(pin.reclaim.0.lock());
            let pins = state.pins;
            state.retired.push(Retired { node, free, pins });
        }

        pub(in crate::map) fn refresh(pin: &mut Pin<'_>) {
            // The old one ends first, as it does in seize.
            pin.end();
            let new = pin.reclaim.pin();
            pin.number = new.number;
            std::mem::forget(new);
        }

        pub(in crate::map) fn load<T>(_: &Pin<'_>, from: &AtomicPtr<T>) -> *mut T {
            from.load(Ordering::Acquire)
        }

        pub(in crate::map) fn flush(_: &Pin<'_>) {}
    }

    impl Drop for Reclaim {
        fn drop(&mut self) {
            let mut state = whole(self.0.lock());
            assert!(state.pinned.is_empty() && state.retired.is_empty());
            for one in state.over.drain(..) {
                // SAFETY: as promised to `retire`, and the map is gone.
                unsafe { (one.free)(one.node) };
            }
        }
    }

    pub(in crate::map) struct Pin<'a> {
        reclaim: &'a Reclaim,
        number: u64,
    }

    impl Pin<'_> {
        fn end(&self) {
            let mut state = whole(self.reclaim.0.lock());
            let state = &mut *state;
            state.pinned.retain(|&number| number != self.number);
            let oldest = state.pinned.iter().min().copied().unwrap_or(u64::MAX);
            for one in state.retired.extract_if(.., |one| one.pins <= oldest) {
                // SAFETY: its memory is freed at the map's end.
                unsafe { (*one.node).life().end() };
                state.over.push(one);
            }
        }
    }

    impl Drop for Pin<'_> {
        fn drop(&mut self) {
            self.end();
        }
    }

    /// Whether a node could be freed by now.
    pub(in crate::map) struct Life(UnsafeCell<bool>);

    impl Life {
        pub(in crate::map) fn new() -> Self {
            Life(UnsafeCell::new(false))
        }

        /// Loom panics if it ends beside that.
        pub(in crate::map) fn look(&self) {
            // SAFETY: loom checks it.
            let is_over = self.0.with(|is_over| unsafe { *is_over });
            assert!(!is_over, "a node is looked at that could be freed by now");
        }

        fn end(&self) {
            // SAFETY: as above.
            self.0.with_mut(|is_over| unsafe { *is_over = true });
        }
    }
}
