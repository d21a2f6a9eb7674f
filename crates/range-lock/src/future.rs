use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::guard::{Access, ByTask, Guard};
use crate::lock::{Hold, Pending, RangeLock, Turn};
use crate::span::Span;
use crate::waiter::Wake;

/// Becomes a guard when the range is free. Needs no particular runtime.
///
/// It takes its place in the queue when it is polled first. Dropped before that, it has done nothing; dropped
/// while it waits, it leaves no trace, and who waited for it alone goes on. That is so when a panic drops it, too.
///
/// A [`Waker`](std::task::Waker) that panics when it is woken does so in the thread that gives the range back, downgrades it or gives up, unless that
/// panics already. The range is given back all the same, and all others are woken.
///
/// # Panics
/// If it is polled after it was ready.
#[must_use = "a future does nothing unless it is polled"]
pub struct Acquire<'a, A: Access> {
    lock: &'a RangeLock,
    /// `None`: the range is empty.
    span: Option<Span>,
    state: State,
    access: PhantomData<A>,
}

enum State {
    New,
    Waiting(Pending),
    Done,
}

impl<'a, A: Access> Acquire<'a, A> {
    pub(crate) fn new(lock: &'a RangeLock, span: Option<Span>) -> Self {
        Acquire {
            lock,
            span,
            state: State::New,
            access: PhantomData,
        }
    }
}

// Nothing in it is pinned.
impl<A: Access> Unpin for Acquire<'_, A> {}

impl<'a, A: Access> Future for Acquire<'a, A> {
    type Output = Guard<'a, A, ByTask>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let lock = self.lock;
        let Some(span) = self.span else {
            return Poll::Ready(Guard::new(lock, None));
        };
        let wake = || Wake::Task(context.waker().clone());
        if let State::Waiting(pending) = &self.state {
            // A waker that panics leaves the request where it is.
            pending.waiter().wake_by(wake());
        }
        let turn = match std::mem::replace(&mut self.state, State::Done) {
            State::New => lock.start(span, A::KIND, wake),
            State::Waiting(pending) => lock.go_on(span, A::KIND, pending, wake),
            State::Done => panic!("polled after it was ready"),
        };
        match turn {
            Turn::Granted(place) => Poll::Ready(Guard::new(lock, Some(Hold { span, place }))),
            Turn::Waits(pending) => {
                self.state = State::Waiting(pending);
                Poll::Pending
            }
        }
    }
}

impl<A: Access> Drop for Acquire<'_, A> {
    fn drop(&mut self) {
        if let (State::Waiting(pending), Some(span)) = (&self.state, self.span) {
            self.lock.cancel(span, A::KIND, pending);
        }
    }
}

impl<A: Access> std::fmt::Debug for Acquire<'_, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match self.state {
            State::New => "new",
            State::Waiting(_) => "waiting",
            State::Done => "done",
        };
        write!(f, "Acquire({:?} {:?}, {state})", A::KIND, self.span)
    }
}
