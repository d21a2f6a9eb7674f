//! Threads that serve themselves, inside of the handler of SIGBUS.

use std::sync::Arc;

use crate::inner::{Inner, Served};
use crate::sys::clock::now_ns;
use crate::sys::signal::Serve;

/// The pager as the handler sees it.
pub(crate) struct Inline(pub Arc<Inner>);

impl Serve for Inline {
    fn serve(&self, address: usize, thread: u64) -> bool {
        let inner = &*self.0;
        let Some(page) = inner.space.page(address) else {
            return false;
        };
        let since_ns = now_ns();
        match inner.serve(page, thread, since_ns) {
            Served::Done => {}
            // The signal goes on to whom it would have gone without us.
            Served::Lost => return false,
            // Ended by who fetches it, or by the watchdog; then another try finds out.
            Served::Busy => inner.waits.wait(&inner.pages, page, inner.timeout),
            // Another try finds it changed.
            Served::Later => std::thread::yield_now(),
        }
        inner
            .tally
            .latency
            .record(now_ns().saturating_sub(since_ns));
        true
    }
}
