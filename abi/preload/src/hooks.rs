//! The interposed functions.
//!
//! A lock is first tried: when it is free, that was all. Only when it is not does the
//! thread take the time, and calls the function that the program meant. They are
//! `C-unwind` and hold nothing with a destructor, because a thread that is cancelled
//! while it waits is unwound from inside libc through these frames.

use core::ffi::{c_int, c_void};

use crate::real;
use crate::region::{self, Kind, begin, end};
use crate::sys::{EBUSY, EINTR, ENOSYS, EOWNERDEAD, ETIMEDOUT, errno, set_errno};

type Ptr = *mut c_void;
type F0 = unsafe extern "C-unwind" fn();
type F1 = unsafe extern "C-unwind" fn(Ptr) -> c_int;
type F2 = unsafe extern "C-unwind" fn(Ptr, Ptr) -> c_int;
type F3 = unsafe extern "C-unwind" fn(Ptr, Ptr, Ptr) -> c_int;
type F3Clock = unsafe extern "C-unwind" fn(Ptr, c_int, Ptr) -> c_int;
type F4Clock = unsafe extern "C-unwind" fn(Ptr, Ptr, c_int, Ptr) -> c_int;
type F4 = unsafe extern "C-unwind" fn(Ptr, Ptr, Ptr, Ptr) -> c_int;

/// Exports `$name`, which calls `$to` with the address it was called from as one more argument.
macro_rules! export {
    ($name:ident => $to:ident ($($arg:ident: $type:ty),+), $x86:literal, $arm:literal) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name($($arg: $type),+) -> c_int {
            core::arch::naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {to}", to = sym $to)
        }
        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name($($arg: $type),+) -> c_int {
            core::arch::naked_asm!(concat!("mov ", $arm, ", x30"), "b {to}", to = sym $to)
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $type),+) -> c_int {
            // SAFETY: the arguments are passed on as they came.
            unsafe { $to($($arg),+, 0) }
        }
    };
}

/// The function behind, or an early return with `$missing`.
macro_rules! real {
    ($name:ident as $type:ty, $missing:expr) => {{
        let at = real::$name.get();
        if at.is_null() {
            return $missing;
        }
        // SAFETY: the function of that name has this type in every libc.
        unsafe { core::mem::transmute::<Ptr, $type>(at) }
    }};
}

/// A lock asked for from inside `dlsym`, before any thread can exist: nobody contends for it.
const AS_IF_LOCKED: c_int = 0;

fn waited(result: c_int) -> bool {
    matches!(result, 0 | ETIMEDOUT | EOWNERDEAD)
}

/// `export` of a lock that has a `try` form.
macro_rules! lock {
    ($name:ident => $to:ident, $kind:expr, try $try:ident, $real:ident) => {
        unsafe extern "C-unwind" fn $to(lock: Ptr, caller: u64) -> c_int {
            let tried = real!($try as F1, AS_IF_LOCKED);
            // SAFETY: the caller's lock, passed on.
            let result = unsafe { tried(lock) };
            if result == 0 || result == EOWNERDEAD {
                return result;
            }
            let real = real!($real as F1, AS_IF_LOCKED);
            if result != EBUSY {
                // SAFETY: as above.
                return unsafe { real(lock) };
            }
            let episode = begin($kind, lock as u64, caller);
            // SAFETY: as above.
            let result = unsafe { real(lock) };
            end(episode, waited(result));
            result
        }
        export!($name => $to(lock: Ptr), "rsi", "x1");
    };
    ($name:ident => $to:ident, $kind:expr, try $try:ident, until $real:ident) => {
        unsafe extern "C-unwind" fn $to(lock: Ptr, until: Ptr, caller: u64) -> c_int {
            let tried = real!($try as F1, AS_IF_LOCKED);
            // SAFETY: the caller's lock, passed on.
            let result = unsafe { tried(lock) };
            if result == 0 || result == EOWNERDEAD {
                return result;
            }
            let real = real!($real as F2, ENOSYS);
            let episode = begin($kind, lock as u64, caller);
            // SAFETY: the caller's arguments, passed on.
            let result = unsafe { real(lock, until) };
            end(episode, waited(result));
            result
        }
        export!($name => $to(lock: Ptr, until: Ptr), "rdx", "x2");
    };
    ($name:ident => $to:ident, $kind:expr, try $try:ident, clock $real:ident) => {
        unsafe extern "C-unwind" fn $to(lock: Ptr, clock: c_int, until: Ptr, caller: u64) -> c_int {
            let tried = real!($try as F1, AS_IF_LOCKED);
            // SAFETY: the caller's lock, passed on.
            let result = unsafe { tried(lock) };
            if result == 0 || result == EOWNERDEAD {
                return result;
            }
            let real = real!($real as F3Clock, ENOSYS);
            let episode = begin($kind, lock as u64, caller);
            // SAFETY: the caller's arguments, passed on.
            let result = unsafe { real(lock, clock, until) };
            end(episode, waited(result));
            result
        }
        export!($name => $to(lock: Ptr, clock: c_int, until: Ptr), "rcx", "x3");
    };
}

lock!(pthread_mutex_lock => mutex_lock, Kind::Mutex,
    try PTHREAD_MUTEX_TRYLOCK, PTHREAD_MUTEX_LOCK);
lock!(pthread_mutex_timedlock => mutex_timedlock, Kind::Mutex,
    try PTHREAD_MUTEX_TRYLOCK, until PTHREAD_MUTEX_TIMEDLOCK);
lock!(pthread_mutex_clocklock => mutex_clocklock, Kind::Mutex,
    try PTHREAD_MUTEX_TRYLOCK, clock PTHREAD_MUTEX_CLOCKLOCK);
lock!(pthread_rwlock_rdlock => rwlock_rdlock, Kind::RwlockRead,
    try PTHREAD_RWLOCK_TRYRDLOCK, PTHREAD_RWLOCK_RDLOCK);
lock!(pthread_rwlock_timedrdlock => rwlock_timedrdlock, Kind::RwlockRead,
    try PTHREAD_RWLOCK_TRYRDLOCK, until PTHREAD_RWLOCK_TIMEDRDLOCK);
lock!(pthread_rwlock_clockrdlock => rwlock_clockrdlock, Kind::RwlockRead,
    try PTHREAD_RWLOCK_TRYRDLOCK, clock PTHREAD_RWLOCK_CLOCKRDLOCK);
lock!(pthread_rwlock_wrlock => rwlock_wrlock, Kind::RwlockWrite,
    try PTHREAD_RWLOCK_TRYWRLOCK, PTHREAD_RWLOCK_WRLOCK);
lock!(pthread_rwlock_timedwrlock => rwlock_timedwrlock, Kind::RwlockWrite,
    try PTHREAD_RWLOCK_TRYWRLOCK, until PTHREAD_RWLOCK_TIMEDWRLOCK);
lock!(pthread_rwlock_clockwrlock => rwlock_clockwrlock, Kind::RwlockWrite,
    try PTHREAD_RWLOCK_TRYWRLOCK, clock PTHREAD_RWLOCK_CLOCKWRLOCK);
lock!(pthread_spin_lock => spin_lock, Kind::Spin,
    try PTHREAD_SPIN_TRYLOCK, PTHREAD_SPIN_LOCK);

// Condition variables have older versions of another layout on x86-64: "GLIBC_2.3.2" is the one
// that programs use. Where it does not exist there is only one, which plain lookup finds.

unsafe extern "C-unwind" fn cond_wait(cond: Ptr, mutex: Ptr, caller: u64) -> c_int {
    let real = real!(PTHREAD_COND_WAIT as F2, ENOSYS);
    let episode = begin(Kind::Condition, cond as u64, caller);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(cond, mutex) };
    end(episode, waited(result));
    result
}
export!(pthread_cond_wait => cond_wait(cond: Ptr, mutex: Ptr), "rdx", "x2");

unsafe extern "C-unwind" fn cond_timedwait(
    cond: Ptr,
    mutex: Ptr,
    until: Ptr,
    caller: u64,
) -> c_int {
    let real = real!(PTHREAD_COND_TIMEDWAIT as F3, ENOSYS);
    let episode = begin(Kind::Condition, cond as u64, caller);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(cond, mutex, until) };
    end(episode, waited(result));
    result
}
export!(pthread_cond_timedwait => cond_timedwait(cond: Ptr, mutex: Ptr, until: Ptr), "rcx", "x3");

unsafe extern "C-unwind" fn cond_clockwait(
    cond: Ptr,
    mutex: Ptr,
    clock: c_int,
    until: Ptr,
    caller: u64,
) -> c_int {
    let real = real!(PTHREAD_COND_CLOCKWAIT as F4Clock, ENOSYS);
    let episode = begin(Kind::Condition, cond as u64, caller);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(cond, mutex, clock, until) };
    end(episode, waited(result));
    result
}
export!(pthread_cond_clockwait =>
    cond_clockwait(cond: Ptr, mutex: Ptr, clock: c_int, until: Ptr), "r8", "x4");

unsafe extern "C-unwind" fn barrier_wait(barrier: Ptr, caller: u64) -> c_int {
    let real = real!(PTHREAD_BARRIER_WAIT as F1, ENOSYS);
    let episode = begin(Kind::Barrier, barrier as u64, caller);
    // SAFETY: the caller's barrier, passed on.
    let result = unsafe { real(barrier) };
    // The one that is told apart (-1) completed the round: it did not wait for the others.
    end(episode, result == 0);
    result
}
export!(pthread_barrier_wait => barrier_wait(barrier: Ptr), "rsi", "x1");

/// What waits for a semaphore or a thread must also act on a cancellation when it need not wait.
extern "C-unwind" fn test_cancel() -> c_int {
    let real = real!(PTHREAD_TESTCANCEL as F0, 0);
    // SAFETY: takes nothing; may unwind this thread, which holds nothing.
    unsafe { real() };
    0
}

fn sem_try(sem: Ptr) -> bool {
    let tried = real!(SEM_TRYWAIT as F1, false);
    let before = errno();
    // SAFETY: the caller's semaphore, passed on.
    let taken = unsafe { tried(sem) } == 0;
    set_errno(before);
    taken
}

fn sem_waited(result: c_int) -> bool {
    result == 0 || matches!(errno(), ETIMEDOUT | EINTR)
}

unsafe extern "C-unwind" fn semaphore_wait(sem: Ptr, caller: u64) -> c_int {
    test_cancel();
    if sem_try(sem) {
        return 0;
    }
    let real = real!(SEM_WAIT as F1, -1);
    let episode = begin(Kind::Semaphore, sem as u64, caller);
    // SAFETY: the caller's semaphore, passed on.
    let result = unsafe { real(sem) };
    end(episode, sem_waited(result));
    result
}
export!(sem_wait => semaphore_wait(sem: Ptr), "rsi", "x1");

unsafe extern "C-unwind" fn semaphore_timedwait(sem: Ptr, until: Ptr, caller: u64) -> c_int {
    test_cancel();
    if sem_try(sem) {
        return 0;
    }
    let real = real!(SEM_TIMEDWAIT as F2, -1);
    let episode = begin(Kind::Semaphore, sem as u64, caller);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(sem, until) };
    end(episode, sem_waited(result));
    result
}
export!(sem_timedwait => semaphore_timedwait(sem: Ptr, until: Ptr), "rdx", "x2");

unsafe extern "C-unwind" fn semaphore_clockwait(
    sem: Ptr,
    clock: c_int,
    until: Ptr,
    caller: u64,
) -> c_int {
    test_cancel();
    if sem_try(sem) {
        return 0;
    }
    let real = real!(SEM_CLOCKWAIT as F3Clock, -1);
    let episode = begin(Kind::Semaphore, sem as u64, caller);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(sem, clock, until) };
    end(episode, sem_waited(result));
    result
}
export!(sem_clockwait => semaphore_clockwait(sem: Ptr, clock: c_int, until: Ptr), "rcx", "x3");

fn try_join(thread: Ptr, value: Ptr) -> bool {
    let tried = real!(PTHREAD_TRYJOIN_NP as F2, false);
    // SAFETY: the caller's arguments, passed on. Any failure is told by the real call after it.
    unsafe { tried(thread, value) == 0 }
}

unsafe extern "C-unwind" fn join(thread: Ptr, value: Ptr, caller: u64) -> c_int {
    test_cancel();
    if try_join(thread, value) {
        return 0;
    }
    let real = real!(PTHREAD_JOIN as F2, ENOSYS);
    let episode = begin(Kind::Join, thread as u64, caller);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(thread, value) };
    end(episode, waited(result));
    result
}
export!(pthread_join => join(thread: Ptr, value: Ptr), "rdx", "x2");

unsafe extern "C-unwind" fn timedjoin(thread: Ptr, value: Ptr, until: Ptr, caller: u64) -> c_int {
    test_cancel();
    if try_join(thread, value) {
        return 0;
    }
    let real = real!(PTHREAD_TIMEDJOIN_NP as F3, ENOSYS);
    let episode = begin(Kind::Join, thread as u64, caller);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(thread, value, until) };
    end(episode, waited(result));
    result
}
export!(pthread_timedjoin_np => timedjoin(thread: Ptr, value: Ptr, until: Ptr), "rcx", "x3");

unsafe extern "C-unwind" fn clockjoin(
    thread: Ptr,
    value: Ptr,
    clock: c_int,
    until: Ptr,
    caller: u64,
) -> c_int {
    test_cancel();
    if try_join(thread, value) {
        return 0;
    }
    let real = real!(PTHREAD_CLOCKJOIN_NP as F4Clock, ENOSYS);
    let episode = begin(Kind::Join, thread as u64, caller);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(thread, value, clock, until) };
    end(episode, waited(result));
    result
}
export!(pthread_clockjoin_np =>
    clockjoin(thread: Ptr, value: Ptr, clock: c_int, until: Ptr), "r8", "x4");

/// Not timed: before a process has its second thread, and usually before it confines itself to
/// few system calls, is the time to make its file.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_create(
    thread: Ptr,
    attributes: Ptr,
    start: Ptr,
    argument: Ptr,
) -> c_int {
    let real = real!(PTHREAD_CREATE as F4, ENOSYS);
    // A library's constructor that comes before ours may start threads.
    real::look_up_all();
    region::prepare();
    // SAFETY: the caller's arguments, passed on.
    unsafe { real(thread, attributes, start, argument) }
}
