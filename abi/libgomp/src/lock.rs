//! Locks of programs, in memory of theirs. C programs give its address; so do Fortran programs (the names that end with
//! `_`) where the lock fits into their integer, else that of an integer that holds the address.
//!
//! Locks of programs that were compiled for OpenMP 2.5 are another type where they can be nested. Their functions have
//! the same names of another version; see `omp-1.0.c`.

use std::ffi::c_int;
use std::ptr;

use amdahl_openmp::lock::{Lock, NestLock, ThreadNestLock};
use amdahl_openmp::{sys, thread};

const _: () = assert!(size_of::<Lock>() == 4 && align_of::<Lock>() == 4);
const _: () = assert!(size_of::<NestLock>() == 16 && align_of::<NestLock>() == 8);
const _: () = assert!(size_of::<ThreadNestLock>() == 8 && align_of::<ThreadNestLock>() == 4);

/// Functions of C, and those of Fortran which are the same.
macro_rules! lock {
    ($(#[$doc:meta] $name:ident $fortran:ident $(: $result:ty)? = |$lock:ident: $type:ty| $does:expr;)+) => { $(
        lock! { @one #[$doc] $name $(: $result)? = |$lock: $type| $does }
        lock! { @one #[$doc] $fortran $(: $result)? = |$lock: $type| $does }
    )+ };
    (@one #[$doc:meta] $name:ident $(: $result:ty)? = |$lock:ident: $type:ty| $does:expr) => {
        #[$doc]
        ///
        /// # Safety
        /// The lock is valid, and was initialised unless this does it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($lock: *mut $type) $(-> $result)? {
            // SAFETY: the caller's promise.
            unsafe { $does }
        }
    };
}

lock! {
    /// Makes a lock, which is free.
    omp_init_lock omp_init_lock_ = |lock: Lock| lock.write(Lock::new());
    /// The end of a lock, which is free.
    omp_destroy_lock omp_destroy_lock_ = |lock: Lock| lock.write(Lock::new());
    /// Takes a lock.
    omp_set_lock omp_set_lock_ = |lock: Lock| (*lock).acquire();
    /// Gives back a lock.
    omp_unset_lock omp_unset_lock_ = |lock: Lock| (*lock).release();
    /// Takes a lock if it is free, and says whether it was.
    omp_test_lock omp_test_lock_: c_int = |lock: Lock| (*lock).try_acquire().into();

    /// Makes a lock for threads.
    amdahl_omp_1_0_init_nest_lock amdahl_omp_1_0_init_nest_lock_ =
        |lock: ThreadNestLock| lock.write(ThreadNestLock::default());
    /// The end of a lock for threads.
    amdahl_omp_1_0_destroy_nest_lock amdahl_omp_1_0_destroy_nest_lock_ =
        |lock: ThreadNestLock| lock.write(ThreadNestLock::default());
    /// Takes a lock for the calling thread, once more if it has it.
    amdahl_omp_1_0_set_nest_lock amdahl_omp_1_0_set_nest_lock_ =
        |lock: ThreadNestLock| { (*lock).acquire(sys::thread_number()); };
    /// Gives it back once.
    amdahl_omp_1_0_unset_nest_lock amdahl_omp_1_0_unset_nest_lock_ = |lock: ThreadNestLock| (*lock).release();
    /// Takes it if nobody else has it, and says how often it is taken now.
    amdahl_omp_1_0_test_nest_lock amdahl_omp_1_0_test_nest_lock_: c_int =
        |lock: ThreadNestLock| (*lock).try_acquire(sys::thread_number()) as c_int;
}

/// Functions of C, and those of Fortran, whose integer holds the lock's address.
macro_rules! nest_lock {
    ($(#[$doc:meta] $name:ident $fortran:ident $(: $result:ty)? = |$lock:ident| $does:expr;)+) => { $(
        lock! { @one #[$doc] $name $(: $result)? = |$lock: NestLock| $does }

        #[$doc]
        ///
        /// # Safety
        /// The integer is valid, and the lock was initialised.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $fortran(integer: *mut *mut NestLock) $(-> $result)? {
            // SAFETY: the caller's promise.
            unsafe { $name(*integer) }
        }
    )+ };
}

nest_lock! {
    /// Takes a lock for what the calling thread executes, once more if it has it.
    omp_set_nest_lock omp_set_nest_lock_ = |lock| { (*lock).acquire(thread::current()); };
    /// Gives it back once.
    omp_unset_nest_lock omp_unset_nest_lock_ = |lock| (*lock).release();
    /// Takes it if nobody else has it, and says how often it is taken now.
    omp_test_nest_lock omp_test_nest_lock_: c_int = |lock| (*lock).try_acquire(thread::current()) as c_int;
}

/// Makes a lock that can be taken again by who has it.
///
/// # Safety
/// The lock is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn omp_init_nest_lock(lock: *mut NestLock) {
    // SAFETY: the caller's promise.
    unsafe { lock.write(NestLock::default()) };
}

/// The same, at an address that is written to the integer.
///
/// # Safety
/// The integer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn omp_init_nest_lock_(integer: *mut *mut NestLock) {
    // SAFETY: the caller's promise.
    unsafe { integer.write(Box::into_raw(Box::default())) };
}

/// The end of a lock, which is free.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn omp_destroy_nest_lock(lock: *mut NestLock) {
    let _ = lock;
}

/// The end of a lock, and of what the integer stands for.
///
/// # Safety
/// The integer is valid, and the lock was initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn omp_destroy_nest_lock_(integer: *mut *mut NestLock) {
    // SAFETY: made by `omp_init_nest_lock_`.
    unsafe {
        let lock = integer.replace(ptr::null_mut());
        if !lock.is_null() {
            drop(Box::from_raw(lock));
        }
    }
}
