//! Critical regions, and atomic updates for which the machine has no instruction.

use std::ffi::c_void;

use amdahl_openmp::lock::Lock;
use amdahl_openmp::sync::Line;

/// Of all regions without a name.
static UNNAMED: Line<Lock> = Line(Lock::new());
/// Of all atomic updates.
static ATOMIC: Line<Lock> = Line(Lock::new());

/// A critical region without a name begins.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn GOMP_critical_start() {
    UNNAMED.acquire();
}

/// It ends.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn GOMP_critical_end() {
    UNNAMED.release();
}

/// A critical region begins whose name stands for this word of the program. It is zero at first, and the lock is in it.
///
/// # Safety
/// The word is there as long as the program, and nobody else writes to it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_critical_name_start(name: *mut *mut c_void) {
    // SAFETY: the caller's promise; the word is larger than a lock.
    unsafe { &*name.cast::<Lock>() }.acquire();
}

/// It ends.
///
/// # Safety
/// As [`GOMP_critical_name_start`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_critical_name_end(name: *mut *mut c_void) {
    // SAFETY: as above.
    unsafe { &*name.cast::<Lock>() }.release();
}

/// An atomic update begins.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn GOMP_atomic_start() {
    ATOMIC.acquire();
}

/// It ends.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn GOMP_atomic_end() {
    ATOMIC.release();
}
