//! The least that a thread does that serves its own fault: a signal, a copy.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys::support::Support;
use crate::sys::uffd::{Features, Uffd};
use crate::{Error, Mapping, PAGE};

struct Served {
    uffd: Uffd,
    start: usize,
    len: usize,
    content: *const u8,
    before: libc::sigaction,
}

/// What the handler serves. One at a time.
static SERVED: AtomicPtr<Served> = AtomicPtr::new(ptr::null_mut());
static ONE: Mutex<()> = Mutex::new(());

pub(super) struct Floor {
    _one: MutexGuard<'static, ()>,
}

impl Floor {
    /// Fills `memory` from `content`, which is as long. Takes SIGBUS for as long as it lives.
    pub fn start(memory: &Arc<Mapping>, content: *mut u8) -> Result<Floor, Error> {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let support = Support::probe();
        let uffd = support
            .open(Features::SIGBUS.and(support.features), false)
            .map_err(|_| Error::Unavailable(support.missing().join("; ")))?;
        let start = memory.as_ptr().expose_provenance();
        // SAFETY: new memory, which is read for what is put there.
        unsafe { uffd.register(start..start + memory.len()) }
            .map_err(Error::system("UFFDIO_REGISTER"))?;
        // SAFETY: zeros are a valid structure; it is filled below.
        let (mut action, mut before): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        action.sa_sigaction = handler as *const () as usize;
        // SAFETY: both are valid.
        unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) };
        let served = Box::new(Served {
            uffd,
            start,
            len: memory.len(),
            content,
            before,
        });
        SERVED.store(Box::into_raw(served), Ordering::Release);
        // SAFETY: the handler is async-signal-safe.
        unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) };
        Ok(Floor { _one: one })
    }
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: set before the handler was installed, freed after it was taken away; the kernel's information is valid; the
    // content is as long as the memory.
    unsafe {
        let served = &*SERVED.load(Ordering::Acquire);
        let at = ((*info).si_addr().addr() & !(PAGE - 1)).wrapping_sub(served.start);
        if at < served.len {
            let page = served.start + at..served.start + at + PAGE;
            let _ = served.uffd.copy(page, served.content.add(at));
            return;
        }
        // Somebody else's: a pager that serves beside.
        let before = served.before.sa_sigaction;
        if served.before.sa_flags & libc::SA_SIGINFO != 0 && before > libc::SIG_IGN {
            let before: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(before);
            before(signal, info, context);
        } else {
            libc::sigaction(signal, &served.before, ptr::null_mut());
        }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let served = SERVED.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: made by `start`; nobody touches the memory any more, so no handler runs for it.
        unsafe {
            let served = Box::from_raw(served);
            libc::sigaction(libc::SIGBUS, &served.before, ptr::null_mut());
        }
    }
}
