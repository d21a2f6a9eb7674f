//! The handler of SIGBUS beside others: what is not ours goes where it would have gone.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::thread;

use amdahl_pager::{BLOCK, Backing, Engine, Mapping, PAGE, Pager, Source, SourceError};
use common::{
    Generated, MINUTE, begin, check, check_all, contents, is_child, is_possible, mapping,
};

fn inline(memory: &Arc<Mapping>, source: Arc<dyn Source>) -> Pager {
    Pager::builder()
        .mapping(memory, 0)
        .source(source)
        .engine(Engine::Inline)
        .start()
        .unwrap()
}

fn is_well(status: ExitStatus) -> bool {
    status.success()
}

fn dies_of_it(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGBUS)
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// What handles SIGBUS from now on.
fn handle(to: libc::sighandler_t, flags: i32, also_blocked: &[i32]) {
    // SAFETY: the structures are valid; the handlers of these tests do what handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = to;
        action.sa_flags = flags;
        for signal in also_blocked {
            libc::sigaddset(&mut action.sa_mask, *signal);
        }
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()), 0);
    }
}

fn handled_by() -> libc::sighandler_t {
    // SAFETY: asks.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGBUS, ptr::null(), &mut action), 0);
        action.sa_sigaction
    }
}

/// As `kill` sends it, to this thread.
fn send(signal: i32) {
    // SAFETY: of this process and thread.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
    assert_eq!(sent, 0);
}

/// As a fault at an address has it, without one.
fn send_fault(address: *mut u8) {
    #[repr(C)]
    struct Info {
        signal: i32,
        errno: i32,
        code: i32,
        padding: i32,
        address: *mut u8,
        rest: [u64; 13],
    }
    let info = Info {
        signal: libc::SIGBUS,
        errno: 0,
        code: libc::BUS_ADRERR,
        padding: 0,
        address,
        rest: [0; 13],
    };
    // SAFETY: of this process and thread; the information has the size that the kernel reads.
    let sent = unsafe {
        let (process, thread) = (libc::getpid(), libc::gettid());
        libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            process,
            thread,
            libc::SIGBUS,
            &raw const info,
        )
    };
    assert_eq!(sent, 0);
}

#[test]
fn a_signal_that_was_sent_ends_the_process_as_ever() {
    if !is_possible() {
        return;
    }
    let test = "a_signal_that_was_sent_ends_the_process_as_ever";
    if is_child(test, "default", dies_of_it) {
        handle(libc::SIG_DFL, 0, &[]);
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let _pager = inline(&memory, Arc::new(Generated::default()));
        check(&memory, 1, 1);
        // It was taken for nothing, and reset the handler.
        send(libc::SIGBUS);
        println!("alive");
    }
    // The handler of the standard library takes itself away at the first.
    if is_child(test, "rust", dies_of_it) {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let _pager = inline(&memory, Arc::new(Generated::default()));
        let ours = handled_by();
        send(libc::SIGBUS);
        assert_eq!(handled_by(), ours);
        check_all(&memory);
        send(libc::SIGBUS);
        println!("alive");
    }
}

#[test]
fn a_signal_that_is_ignored_stays_so() {
    if !is_possible() {
        return;
    }
    if is_child("a_signal_that_is_ignored_stays_so", "ignored", is_well) {
        handle(libc::SIG_IGN, 0, &[]);
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let _pager = inline(&memory, Arc::new(Generated::default()));
        send(libc::SIGBUS);
        check_all(&memory);
    }
}

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BLOCKED: AtomicI32 = AtomicI32::new(0);

fn is_blocked(signal: i32) -> bool {
    // SAFETY: asks.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut mask);
        libc::sigismember(&mask, signal) == 1
    }
}

fn note() {
    let signals = [libc::SIGBUS, libc::SIGUSR1, libc::SIGUSR2];
    let blocked = signals
        .iter()
        .enumerate()
        .filter(|(_, signal)| is_blocked(**signal));
    let blocked = blocked.fold(0, |all, (bit, _)| all | 1 << bit);
    BLOCKED.store(blocked, Ordering::SeqCst);
    CALLS.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn with_information(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's.
    assert!(unsafe { (*info).si_code } <= 0);
    note();
}

extern "C" fn without(_: i32) {
    note();
}

#[test]
fn handlers_of_before_are_called_as_they_asked_for() {
    if !is_possible() {
        return;
    }
    let test = "handlers_of_before_are_called_as_they_asked_for";
    let with = with_information as Handler as libc::sighandler_t;
    let without = without as extern "C" fn(i32) as libc::sighandler_t;
    let nodefer = libc::SA_NODEFER;
    for (variant, to, flags, blocked) in [
        ("information", with, libc::SA_SIGINFO, 0b011),
        ("plain", without, 0, 0b011),
        ("nodefer", without, nodefer, 0b010),
    ] {
        if is_child(test, variant, is_well) {
            handle(to, flags, &[libc::SIGUSR1]);
            let memory = mapping(BLOCK, Backing::Small).unwrap();
            let _pager = inline(&memory, Arc::new(Generated::default()));
            for calls in 1..4 {
                send(libc::SIGBUS);
                assert_eq!(CALLS.load(Ordering::SeqCst), calls);
                assert_eq!(BLOCKED.load(Ordering::SeqCst), blocked);
                assert!(!is_blocked(libc::SIGUSR1) && !is_blocked(libc::SIGBUS));
            }
            check_all(&memory);
        }
    }
    let once = "once";
    if is_child(test, once, dies_of_it) {
        handle(without, libc::SA_RESETHAND, &[]);
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let _pager = inline(&memory, Arc::new(Generated::default()));
        send(libc::SIGBUS);
        check_all(&memory);
        assert_eq!(CALLS.load(Ordering::SeqCst), 1);
        send(libc::SIGBUS);
    }
}

/// A thread came to the handler after the pager had ended: the signal was passed on, and the handler reset.
#[test]
fn who_comes_to_the_handler_too_late_tries_again() {
    if !is_possible() {
        return;
    }
    let test = "who_comes_to_the_handler_too_late_tries_again";
    if is_child(test, "late", is_well) {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let pager = inline(&memory, Arc::new(Generated::default()));
        let ours = handled_by();
        assert_eq!(pager.finish().1, 0);
        send_fault(memory.as_ptr());
        assert_eq!(handled_by(), ours);
        // Another pager, another end.
        let other = mapping(BLOCK, Backing::Small).unwrap();
        inline(&other, Arc::new(Generated::default())).finish();
        send_fault(memory.as_ptr());
        check_all(&memory);
        check_all(&other);
    }
    // But not for ever.
    if is_child(test, "deadly", dies_of_it) {
        handle(libc::SIG_DFL, 0, &[]);
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        drop(inline(&memory, Arc::new(Generated::default())));
        send_fault(memory.as_ptr());
        send_fault(memory.as_ptr());
        println!("alive");
    }
}

#[test]
fn threads_fault_while_the_pager_finishes() {
    if !is_possible() {
        return;
    }
    for _ in 0..200 {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let pager = inline(&memory, Arc::new(Generated::default()));
        let touching: Vec<_> = (0..3)
            .map(|_| {
                let memory = Arc::clone(&memory);
                begin(move || check_all(&memory))
            })
            .collect();
        assert_eq!(pager.finish().1, 0);
        for touching in touching {
            touching.recv_timeout(MINUTE).unwrap();
        }
    }
}

static WINDOW: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

extern "C" fn touches(_: i32) {
    // SAFETY: of the mapping, which lives.
    unsafe { WINDOW.load(Ordering::SeqCst).read_volatile() };
    CALLS.fetch_add(1, Ordering::SeqCst);
}

/// A handler of the application interrupted a fetch and touched what the same thread fetched: it waited for itself.
#[test]
fn a_handler_that_touches_the_window_waits_until_it_is_there() {
    if !is_possible() {
        return;
    }
    let test = "a_handler_that_touches_the_window_waits_until_it_is_there";
    if is_child(test, "window", is_well) {
        struct Interrupted;
        impl Source for Interrupted {
            fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
                send(libc::SIGUSR1);
                contents(offset, into);
                Ok(())
            }
            fn is_signal_safe(&self) -> bool {
                true
            }
        }
        let memory = mapping(BLOCK, Backing::Huge).unwrap();
        WINDOW.store(memory.as_ptr().wrapping_add(9 * PAGE), Ordering::SeqCst);
        // SAFETY: a handler that reads a byte.
        unsafe { libc::signal(libc::SIGUSR1, touches as extern "C" fn(i32) as usize) };
        let pager = Pager::builder()
            .mapping(&memory, 0)
            .source(Arc::new(Interrupted))
            .engine(Engine::Inline)
            .timeout(std::time::Duration::from_millis(200))
            .start()
            .unwrap();
        let touching = thread::spawn(move || check_all(&memory));
        touching.join().unwrap();
        assert_eq!(pager.stats().lost_pages, 0);
        assert!(CALLS.load(Ordering::SeqCst) > 0);
    }
}
