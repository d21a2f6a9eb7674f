//! Ctrl-C: what is measured stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the user wants to stop.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches SIGINT, SIGTERM and SIGHUP. A second one ends us at once.
    pub fn catch() -> Interrupt {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // Registered first, so that it acts only on the second signal.
            let _ =
                signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag));
            let _ = signal_hook::flag::register(signal, Arc::clone(&flag));
        }
        Interrupt(flag)
    }

    /// It was asked for.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
