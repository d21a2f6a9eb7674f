//! The functions behind the interposed ones.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed};

use crate::sys;

/// A function of libc, found once.
pub struct Real {
    name: &'static CStr,
    /// The version that programs of today are linked with, where an older one has another layout.
    version: Option<&'static CStr>,
    at: AtomicPtr<c_void>,
}

/// Thread that looks a function up: a failing `dlsym` allocates, and an allocator may lock.
static LOOKING: AtomicU32 = AtomicU32::new(0);

type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

impl Real {
    /// The default version of `name`.
    pub const fn new(name: &'static CStr) -> Real {
        Real {
            name,
            version: None,
            at: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// `version` of `name` if there is such a version, else the default one.
    pub const fn versioned(name: &'static CStr, version: &'static CStr) -> Real {
        Real {
            name,
            version: Some(version),
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
