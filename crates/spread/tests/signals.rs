//! Signals that arrive in the middle of an addition, and handlers that add themselves.
//!
//! Alone in its program, because handlers are the process's.

#![cfg(not(miri))]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::{io, mem, ptr, thread};

use amdahl_spread::{Counter, Placement};

static COUNTERS: OnceLock<[Counter; 2]> = OnceLock::new();
static HANDLED: AtomicI64 = AtomicI64::new(0);

extern "C" fn handler(_: libc::c_int) {
    for counter in COUNTERS.get().expect("made before the first signal") {
        counter.add(1000);
    }
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// A timer that sends this thread a signal every `interval_ns`.
struct Storm(libc::timer_t);

impl Storm {
    fn new(interval_ns: i64) -> Self {
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: all of the structures are plain data of which zero is valid, and live over the calls.
        unsafe {
            let mut event: libc::sigevent = mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = libc::gettid();
            let made = libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer);
            assert_eq!(made, 0, "{}", io::Error::last_os_error());
            let interval = libc::timespec {
                tv_sec: 0,
                tv_nsec: interval_ns as _,
            };
            let every = libc::itimerspec {
                it_interval: interval,
                it_value: interval,
            };
            assert_eq!(libc::timer_settime(timer, 0, &every, ptr::null_mut()), 0);
        }
        Storm(timer)
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        // SAFETY: made in `new`.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Three threads on two CPUs or more, each with a signal every 30 us, until there were many.
#[test]
fn a_storm_of_signals_loses_nothing() {
    const SIGNALS: i64 = 20_000;
    let counters =
        COUNTERS.get_or_init(|| [Placement::PerCpu, Placement::PerLlc].map(Counter::with));
    // SAFETY: the handler does nothing but atomic additions.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, ptr::null_mut()), 0);
    }
    let added = AtomicI64::new(0);
    let storms = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let _storm = Storm::new(30_000);
                storms.fetch_add(1, Ordering::Relaxed);
                let mut mine = 0;
                while HANDLED.load(Ordering::Relaxed) < SIGNALS {
                    for counter in counters {
                        for _ in 0..200 {
                            counter.add(1);
                        }
                    }
                    mine += 200;
                }
                added.fetch_add(mine, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(storms.into_inner(), 3);
    let expected = added.into_inner() + 1000 * HANDLED.load(Ordering::Relaxed);
    for counter in counters {
        assert_eq!(counter.read(), expected, "{counter:?}");
    }
}
