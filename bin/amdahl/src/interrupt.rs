//! Ctrl-C: what is measured stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether the user wants to stop: how many times that was said.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicU32>);

impl Interrupt {
    /// Catches SIGINT, SIGTERM and SIGHUP. The third one ends us at once.
    pub fn catch() -> Interrupt {
        let said = Arc::new(AtomicU32::new(0));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
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

/// Exit code after a second Ctrl-C.
pub const ABANDONED: u8 = 130;
