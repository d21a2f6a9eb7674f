//! The functions behind the interposed ones.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::Relaxed};

use crate::sys;

/// A function of libc, found once.
pub struct Real {
    name: &'static CStr,
    /// If there is such a version, else the default one: the version that programs of today are linked with, where an older one has another layout.
    version: Option<&'static CStr>,
    at: AtomicPtr<c_void>,
}

/// Thread that looks a function up: a failing `dlsym` allocates, and an allocator may lock.
static LOOKING: AtomicU32 = AtomicU32::new(0);

type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

impl Real {
    const fn new(name: &'static CStr, version: Option<&'static CStr>) -> Real {
        Real {
            name,
            version,
            at: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Its address; null if there is none, or if it is being looked up by this very thread.
    #[inline]
    pub fn get(&self) -> *mut c_void {
        // Relaxed: the pointer is a constant of the process, whoever finds it finds the same.
        let at = self.at.load(Relaxed);
        if at.is_null() { self.look_up() } else { at }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let tid = sys::tid();
        if LOOKING.load(Relaxed) == tid {
            return core::ptr::null_mut();
        }
        let errno = sys::errno();
        let alone = LOOKING.compare_exchange(0, tid, Relaxed, Relaxed).is_ok();
        let mut at = core::ptr::null_mut();
        if let Some(version) = self.version {
            // SAFETY: the name is a C string; dlsym may be called from any thread.
            let dlvsym = unsafe { sys::dlsym(sys::RTLD_DEFAULT, c"dlvsym".as_ptr()) };
            if !dlvsym.is_null() {
                // SAFETY: libc's dlvsym has this type.
                let dlvsym = unsafe { core::mem::transmute::<*mut c_void, Dlvsym>(dlvsym) };
                // SAFETY: both are C strings.
                at = unsafe { dlvsym(sys::RTLD_NEXT, self.name.as_ptr(), version.as_ptr()) };
            }
        }
        if at.is_null() {
            // SAFETY: the name is a C string.
            at = unsafe { sys::dlsym(sys::RTLD_NEXT, self.name.as_ptr()) };
        }
        if alone {
            LOOKING.store(0, Relaxed);
        }
        sys::set_errno(errno);
        self.at.store(at, Relaxed);
        at
    }
}

/// Defines a [`Real`] for each function, and [`ALL`] of them.
macro_rules! reals {
    ($($constant:ident = $name:literal $(at $version:literal)?;)+) => {
        $(pub static $constant: Real = Real::new($name, reals!(@ $($version)?));)+
        static ALL: &[&Real] = &[$(&$constant),+];
    };
    (@ $version:literal) => {
        Some($version)
    };
    (@) => {
        None
    };
}

reals! {
    // First: an allocator may take a mutex when the look-up of a function fails that this libc does not have.
    PTHREAD_MUTEX_TRYLOCK = c"pthread_mutex_trylock";
    PTHREAD_MUTEX_LOCK = c"pthread_mutex_lock";
    PTHREAD_BARRIER_WAIT = c"pthread_barrier_wait";
    PTHREAD_CLOCKJOIN_NP = c"pthread_clockjoin_np";
    PTHREAD_COND_CLOCKWAIT = c"pthread_cond_clockwait";
    PTHREAD_COND_TIMEDWAIT = c"pthread_cond_timedwait" at c"GLIBC_2.3.2";
    PTHREAD_COND_WAIT = c"pthread_cond_wait" at c"GLIBC_2.3.2";
    PTHREAD_CREATE = c"pthread_create";
    PTHREAD_JOIN = c"pthread_join";
    PTHREAD_MUTEX_CLOCKLOCK = c"pthread_mutex_clocklock";
    PTHREAD_MUTEX_TIMEDLOCK = c"pthread_mutex_timedlock";
    PTHREAD_RWLOCK_CLOCKRDLOCK = c"pthread_rwlock_clockrdlock";
    PTHREAD_RWLOCK_CLOCKWRLOCK = c"pthread_rwlock_clockwrlock";
    PTHREAD_RWLOCK_RDLOCK = c"pthread_rwlock_rdlock";
    PTHREAD_RWLOCK_TIMEDRDLOCK = c"pthread_rwlock_timedrdlock";
    PTHREAD_RWLOCK_TIMEDWRLOCK = c"pthread_rwlock_timedwrlock";
    PTHREAD_RWLOCK_TRYRDLOCK = c"pthread_rwlock_tryrdlock";
    PTHREAD_RWLOCK_TRYWRLOCK = c"pthread_rwlock_trywrlock";
    PTHREAD_RWLOCK_WRLOCK = c"pthread_rwlock_wrlock";
    PTHREAD_SPIN_LOCK = c"pthread_spin_lock";
    PTHREAD_SPIN_TRYLOCK = c"pthread_spin_trylock";
    PTHREAD_TESTCANCEL = c"pthread_testcancel";
    PTHREAD_TIMEDJOIN_NP = c"pthread_timedjoin_np";
    PTHREAD_TRYJOIN_NP = c"pthread_tryjoin_np";
    SEM_CLOCKWAIT = c"sem_clockwait";
    SEM_TIMEDWAIT = c"sem_timedwait";
    SEM_TRYWAIT = c"sem_trywait";
    SEM_WAIT = c"sem_wait";
}

/// Has all of them found while the process has one thread. `dlsym` waits for the dynamic linker's lock, which a thread
/// keeps that opens a library while its constructors run; one of them may wait for the thread that looks a function up.
///
/// Not done when the first of them is called, which may be by an allocator in the middle of its own start: only what is
/// called is looked up then. It is a matter of one thread, for which the lock is no obstacle.
pub fn look_up_all() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if !IS_DONE.swap(true, Relaxed) {
        for real in ALL {
            real.get();
        }
    }
}

type Handler = Option<extern "C" fn()>;
type RegisterAtfork = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
type PthreadAtfork = unsafe extern "C" fn(Handler, Handler, Handler) -> c_int;

/// Has `child` called in forked children. In GNU libc `pthread_atfork` is linked statically into
/// every library and calls `__register_atfork`, which no other libc has: looked up instead of
/// linked, neither is needed for this library to be loaded.
pub fn at_fork_in_child(child: extern "C" fn()) {
    let lookup = |name: &CStr| {
        // SAFETY: the name is a C string.
        unsafe { sys::dlsym(sys::RTLD_DEFAULT, name.as_ptr()) }
    };
    let at = lookup(c"__register_atfork");
    if !at.is_null() {
        // SAFETY: GNU libc's function of that name has this type.
        let register = unsafe { core::mem::transmute::<*mut c_void, RegisterAtfork>(at) };
        // SAFETY: the handler may run in a forked child; null means that it is never unloaded,
        // which is true of a preloaded library.
        unsafe { register(None, None, Some(child), core::ptr::null_mut()) };
        return;
    }
    let at = lookup(c"pthread_atfork");
    if !at.is_null() {
        // SAFETY: POSIX gives the function of that name this type.
        let register = unsafe { core::mem::transmute::<*mut c_void, PthreadAtfork>(at) };
        // SAFETY: as above.
        unsafe { register(None, None, Some(child)) };
    }
}
