//! The handler of SIGBUS: finds who serves an address, else passes the signal on.

use std::cell::Cell;
use std::mem::{MaybeUninit, zeroed};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::plan::scatter;
use crate::sync::Padded;

/// Serves addresses inside of the handler.
pub(crate) trait Serve: Send + Sync {
    /// The page at `address` is missing. Async-signal-safe. False: it is not ours.
    fn serve(&self, address: usize, thread: u64) -> bool;
}

/// A place in the list of those who serve. Places are never freed, since a handler may be on its way through the list; they are
/// used again.
struct Place {
    /// Boxed, so that the pointer is thin; null: free.
    server: AtomicPtr<Arc<dyn Serve>>,
    /// Handlers that may use the server, counted in many lines.
    inside: Box<[Padded<AtomicUsize>]>,
    next: *const Place,
}

// SAFETY: `next` is never changed, and points to a place that is never freed.
unsafe impl Sync for Place {}

static FIRST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());
/// Servers that have ended until now.
static ENDED: AtomicU64 = AtomicU64::new(0);
/// Serialises who adds and takes away. Installed?
static CHANGE: Mutex<bool> = Mutex::new(false);
/// What handled SIGBUS before; set before the handler is.
static BEFORE: AtomicPtr<Before> = AtomicPtr::new(ptr::null_mut());

struct Before {
    action: libc::sigaction,
    /// It wanted one signal, and has had it: the default follows.
    is_spent: AtomicBool,
}

/// Counters of a place: threads are spread over them.
const STRIPES: usize = 64;

/// A server on the list, until it is ended.
pub(crate) struct Registered(&'static Place);

/// Has the handler ask `server`. Installs the handler at the first time.
pub(crate) fn register(server: Arc<dyn Serve>) -> Result<Registered, Errno> {
    let mut installed = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        install()?;
        *installed = true;
    }
    let server = Box::into_raw(Box::new(server));
    let mut place = FIRST.load(Ordering::Acquire).cast_const();
    // SAFETY: places are never freed.
    while let Some(free) = unsafe { place.as_ref() } {
        if free.server.load(Ordering::Relaxed).is_null() {
            free.server.store(server, Ordering::SeqCst);
            return Ok(Registered(free));
        }
        place = free.next;
    }
    let place = Box::leak(Box::new(Place {
        server: AtomicPtr::new(server),
        inside: (0..STRIPES).map(|_| Padded(AtomicUsize::new(0))).collect(),
        next: FIRST.load(Ordering::Relaxed),
    }));
    // Release: pairs with the Acquire of the handler.
    FIRST.store(place, Ordering::Release);
    Ok(Registered(place))
}

impl Registered {
    /// Takes the server away; waits at most so long for handlers that use it. It is never freed if one of them is kept for longer by
    /// its source.
    pub fn end(self, at_most: Duration) {
        let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        // SeqCst, before the server goes: a handler that finds it gone sees that one more has ended.
        ENDED.fetch_add(1, Ordering::SeqCst);
        let server = self.0.server.swap(ptr::null_mut(), Ordering::SeqCst);
        let until = Instant::now() + at_most;
        // A handler counts itself before it looks: once a counter is seen at 0, who comes later sees null.
        for inside in &self.0.inside {
            while inside.0.load(Ordering::SeqCst) != 0 {
                if Instant::now() > until {
                    return;
                }
                std::thread::yield_now();
            }
        }
        // SAFETY: made by `register`, and nobody has it any longer.
        drop(unsafe { Box::from_raw(server) });
    }
}

thread_local! {
    static HERE: u8 = const { 0 };
    /// The address that this thread has tried once more, and after how many servers had ended.
    static TRIED: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

/// A number that tells this thread from all others that run. Not 0.
pub(crate) fn this_thread() -> u64 {
    HERE.with(|here| ptr::from_ref(here).addr() as u64)
}

/// Our own action. Async-signal-safe.
fn ours() -> libc::sigaction {
    // SAFETY: zeros are a valid structure, which is filled here.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        // No alternate stack: what fetches a page needs more than such a stack has, and the memory that is filled is nobody's stack.
        // A source may itself be memory that arrives on demand: the signal is not blocked.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
        action.sa_sigaction = handler as *const () as usize;
        // Another handler on top of ours, which touches what this thread fetches, would wait for itself.
        libc::sigfillset(&mut action.sa_mask);
        for at_once in [
            libc::SIGBUS,
            libc::SIGSEGV,
            libc::SIGILL,
            libc::SIGFPE,
            libc::SIGTRAP,
            libc::SIGSYS,
            libc::SIGABRT,
        ] {
            libc::sigdelset(&mut action.sa_mask, at_once);
        }
        action
    }
}

fn install() -> Result<(), Errno> {
    let failed = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
    // SAFETY: all structures are valid; the handler is async-signal-safe if all servers are.
    unsafe {
        let mut before: libc::sigaction = zeroed();
        if libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) != 0 {
            return Err(failed());
        }
        let before = Before {
            action: before,
            is_spent: AtomicBool::new(false),
        };
        BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
        match libc::sigaction(libc::SIGBUS, &ours(), ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(failed()),
        }
    }
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is this thread's; the kernel's information is valid.
    let (errno, code, address) = unsafe {
        (
            *libc::__errno_location(),
            (*info).si_code,
            (*info).si_addr().addr(),
        )
    };
    // What somebody has sent has no address. A poisoned page has another code where the kernel knows of broken memory at all: nobody
    // can help there.
    let is_done = code == libc::BUS_ADRERR && (ask(address) || is_new(address));
    if !is_done {
        pass_on(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn ask(address: usize) -> bool {
    let thread = this_thread();
    let stripe = (scatter(thread) >> 58) as usize % STRIPES;
    let mut place = FIRST.load(Ordering::Acquire).cast_const();
    // SAFETY: places are never freed.
    while let Some(here) = unsafe { place.as_ref() } {
        let inside = &here.inside[stripe].0;
        inside.fetch_add(1, Ordering::SeqCst);
        let server = here.server.load(Ordering::SeqCst);
        // SAFETY: who takes it away waits until we are counted out, or leaves it.
        let is_done =
            unsafe { server.as_ref() }.is_some_and(|server| server.serve(address, thread));
        inside.fetch_sub(1, Ordering::Release);
        if is_done {
            return true;
        }
        place = here.next;
    }
    false
}

/// Whoever served the address may have ended between the fault and now, and the memory be ordinary: the access is tried once more after
/// each end. If it fails again, it is nobody's.
fn is_new(address: usize) -> bool {
    let ended = ENDED.load(Ordering::SeqCst);
    TRIED.with(|tried| ended != 0 && tried.replace((address, ended)) != (address, ended))
}

/// Does what would have been done without us.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: set before the handler was installed, never freed.
    let before = unsafe { &*BEFORE.load(Ordering::Acquire) };
    let flags = before.action.sa_flags;
    let mut to = before.action.sa_sigaction;
    let is_once = flags & libc::SA_RESETHAND != 0 && to > libc::SIG_IGN;
    if before.is_spent.fetch_or(is_once, Ordering::Relaxed) {
        to = libc::SIG_DFL;
    }
    // SAFETY: the kernel's information is valid.
    let is_sent = unsafe { (*info).si_code } <= 0;
    match to {
        libc::SIG_IGN if is_sent => {}
        // A fault cannot be ignored.
        libc::SIG_DFL | libc::SIG_IGN => die(signal, info),
        _ => {
            // As the kernel would have called it: with the signals blocked that were when ours came, those that it asked for, and
            // this one unless it asked for it.
            // SAFETY: the kernel's context is valid, and its mask has eight bytes; the sets are ours; the handler is the process's.
            unsafe {
                let mut mask: libc::sigset_t = zeroed();
                let interrupted = &raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask;
                (&raw mut mask)
                    .cast::<u64>()
                    .write(interrupted.cast::<u64>().read());
                let mut within = MaybeUninit::uninit();
                libc::pthread_sigmask(libc::SIG_SETMASK, &mask, within.as_mut_ptr());
                mask = before.action.sa_mask;
                if flags & libc::SA_NODEFER == 0 {
                    libc::sigaddset(&mut mask, signal);
                }
                libc::pthread_sigmask(libc::SIG_BLOCK, &mask, ptr::null_mut());
                if flags & libc::SA_SIGINFO != 0 {
                    let to: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(to);
                    to(signal, info, context);
                } else {
                    let to: extern "C" fn(i32) = std::mem::transmute(to);
                    to(signal);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, within.as_ptr(), ptr::null_mut());
                // The handler of Rust's standard library takes itself away and has the access made again, to end by the default.
                // It is away, but we are not.
                let mut now: libc::sigaction = zeroed();
                libc::sigaction(signal, ptr::null(), &mut now);
                if now.sa_sigaction == libc::SIG_DFL {
                    before.is_spent.store(true, Ordering::Relaxed);
                    libc::sigaction(signal, &ours(), ptr::null_mut());
                }
            }
        }
    }
}

/// Ends the process by this signal, at once: to return would leave it without our handler if the access succeeded now.
fn die(signal: i32, info: *mut libc::siginfo_t) {
    // SAFETY: the structures are valid; the information is the kernel's own, sent by a thread to itself.
    unsafe {
        let mut default: libc::sigaction = zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &default, ptr::null_mut());
        let (process, thread) = (libc::getpid(), libc::gettid());
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
        let mut only: libc::sigset_t = zeroed();
        libc::sigaddset(&mut only, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &only, ptr::null_mut());
        // Not reached, unless the information was refused.
        libc::syscall(libc::SYS_tgkill, process, thread, signal);
    }
}
