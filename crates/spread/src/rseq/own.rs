//! Registration of single threads where the C library does none.

use std::cell::UnsafeCell;

use super::area::{Area, UNREGISTERED};
use super::sequence;

const AREA_BYTES: u32 = 32;
const UNREGISTER: i32 = 1;

thread_local! {
    /// Without a destructor: it can be used as long as the thread runs.
    static AREA: UnsafeCell<Area> = const {
        UnsafeCell::new(Area {
            cpu_id_start: 0,
            cpu_id: UNREGISTERED,
            rseq_cs: 0,
            flags: 0,
            padding: [0; 3],
        })
    };
    static REGISTERED: Registered = Registered::now();
}

/// This thread's area; its `cpu_id` tells whether the thread is registered.
#[inline]
pub(super) fn area() -> *mut Area {
    AREA.with(UnsafeCell::get)
}

/// Registers this thread, unless it is already; whether it is now. It is not when the kernel has
/// no restartable sequences, when somebody else has registered this thread, and while the
/// thread's destructors run.
#[cold]
pub(super) fn register() -> bool {
    REGISTERED
        .try_with(|registered| registered.0)
        .unwrap_or(false)
}

struct Registered(bool);

impl Registered {
    fn now() -> Self {
        Registered(call(0))
    }
}

impl Drop for Registered {
    /// The area may be unmapped while the thread still runs its last instructions (musl does so),
    /// and the kernel would write to it.
    fn drop(&mut self) {
        if self.0 {
            // The kernel sets `cpu_id` to `UNREGISTERED`.
            let done = call(UNREGISTER);
            debug_assert!(done, "a registered area can be unregistered");
        }
    }
}

fn call(flags: i32) -> bool {
    // SAFETY: the area is 32 bytes, aligned to 32, and lives as long as the thread, which gives it back in
    // `Registered::drop`. The kernel checks everything else.
    let result = unsafe {
        libc::syscall(
            sequence::SYS_RSEQ,
            area().cast::<libc::c_void>(),
            AREA_BYTES,
            flags,
            sequence::SIGNATURE,
        )
    };
    result == 0
}
