//! What tests of locks need.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use amdahl_range_lock::RangeLock;

/// Each form of lock. Segments are small enough that ranges 4 apart do not meet.
pub fn locks() -> [RangeLock; 2] {
    [
        RangeLock::new(),
        RangeLock::segmented(4, 16).expect("valid"),
    ]
}

#[derive(Default)]
pub struct Count(pub AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub fn waker() -> (Arc<Count>, Waker) {
    let count = Arc::<Count>::default();
    (Arc::clone(&count), Waker::from(count))
}

/// Polls once.
pub fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(waker))
}

/// Polls on this thread until it is ready.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
