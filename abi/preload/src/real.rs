//! The functions behind the interposed ones.

use core::ffi::{CStr, c_char, c_void};
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
