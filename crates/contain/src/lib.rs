#![doc = include_str!("../README.md")]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// How many calls of [`contained`] this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Runs `read`; `None` if it panics, of which nothing is shown.
///
/// Costs two writes to a thread-local variable. The first call of the process sets the panic hook, which
/// panics if that thread is panicking.
pub fn contained<T>(read: impl FnOnce() -> T) -> Option<T> {
    hush();
    let _inside = Inside::enter();
    catch_unwind(AssertUnwindSafe(read)).ok()
}

/// Whether a panic of this thread now would be contained: for panic hooks of others.
pub fn is_contained() -> bool {
    cfg!(not(panic = "abort")) && DEPTH.get() > 0
}

/// Counts the call, also when the payload of the panic cannot be dropped.
struct Inside;

impl Inside {
    fn enter() -> Inside {
        DEPTH.set(DEPTH.get() + 1);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// From now on the hook is silent on threads that are inside of [`contained`].
fn hush() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| {
            if !is_contained() {
                usual(panic);
            }
        }));
    });
}
