//! Ctrl-C: what is measured stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Whether the user wants to stop: how many times that was said.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicU32>);

impl Interrupt {
    /// Catches SIGINT, SIGTERM and SIGHUP. The third one ends us at once.
    pub fn catch() -> Interrupt {
        let said = Arc::new(AtomicU32::new(0));
        for signal in SIGNALS {
            let said = Arc::clone(&said);
            let act = move || {
                if said.fetch_add(1, Ordering::Relaxed) >= 2 {
                    signal_hook::low_level::exit(i32::from(ABANDONED));
                }
            };
            // SAFETY: a counter and _exit are async-signal-safe.
            let _ = unsafe { signal_hook::low_level::register(signal, act) };
        }
        Interrupt(said)
    }

    /// Makes `flag` true when it is asked for, as long as what is returned lives.
    pub fn sets(&self, flag: &Arc<AtomicBool>) -> Sets {
        let set = |signal| signal_hook::flag::register(signal, Arc::clone(flag)).ok();
        let sets = Sets(SIGNALS.into_iter().filter_map(set).collect());
        // Said before there was anybody to hear it.
        if self.asked() {
            flag.store(true, Ordering::Relaxed);
        }
        sets
    }

    /// The same, said by a key.
    pub fn say(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// It was asked for.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// It was asked for again: end the program at once, and report nothing.
    pub fn insisted(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 1
    }
}

/// See [`Interrupt::sets`].
#[must_use]
pub struct Sets(Vec<signal_hook::SigId>);

impl Drop for Sets {
    fn drop(&mut self) {
        for id in self.0.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Exit code after a second Ctrl-C.
pub const ABANDONED: u8 = 130;
