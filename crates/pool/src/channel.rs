//! A bounded channel whose ends spin before they sleep, as long as experience says that it pays.
//!
//! After S. Mazumdar's pipes that spin (Linux Plumbers 2018), with the length learnt instead of tuned. The ring
//! is D. Vyukov's bounded queue for many producers and consumers, with laps told apart so that any power of two,
//! 1 included, is a capacity.

mod ring;
mod waiters;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::task::{Context, Poll};

use ring::Ring;
use waiters::{Ticket, Waiters};

use crate::waits::{self, WaitCount};

struct Shared<T> {
    ring: Ring<T>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    is_closed: AtomicBool,
    /// Those who wait for something to receive, and those who wait for room.
    filled: Waiters,
    freed: Waiters,
}

/// A channel with room for at least `capacity` values: rounded up to a power of two.
///
/// ```
/// let (to, from) = amdahl_pool::channel(4);
/// std::thread::spawn(move || (0..10).for_each(|n| to.send(n).expect("somebody receives")));
/// let mut sum = 0;
/// while let Ok(n) = from.recv() {
///     sum += n;
/// }
/// assert_eq!(sum, 45);
/// ```
pub fn channel<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        ring: Ring::new(capacity),
        senders: AtomicUsize::new(1),
        receivers: AtomicUsize::new(1),
        is_closed: AtomicBool::new(false),
        filled: Waiters::new(&waits::RECEIVERS),
        freed: Waiters::new(&waits::SENDERS),
    });
    (Sender(shared.clone()), Receiver(shared))
}

/// The end that gives. Clones give to the same channel.
pub struct Sender<T: Send>(Arc<Shared<T>>);

/// The end that takes. Each value goes to one of its clones.
pub struct Receiver<T: Send>(Arc<Shared<T>>);

/// Nobody receives any more; the value comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the channel has no receiver any more")]
pub struct SendError<T>(pub T);

/// All values were received, and nobody sends any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the channel is empty and has no sender any more")]
pub struct RecvError;

/// Why a value was not sent at once; it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T> {
    /// No room now.
    #[error("the channel is full")]
    Full(T),
    /// Nobody receives any more.
    #[error("the channel has no receiver any more")]
    Closed(T),
}

/// Why nothing was received at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TryRecvError {
    /// Nothing is there now.
    #[error("the channel is empty")]
    Empty,
    /// Nor will anything come.
    #[error("the channel is empty and has no sender any more")]
    Closed,
}

impl<T: Send> Shared<T> {
    fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(TrySendError::Closed(value));
        }
        self.ring.push(value).map_err(TrySendError::Full)?;
        // Has a fence, which pairs with that of `close`: either who closes sees the value, or we see the close.
        self.filled.notify();
        if self.is_closed.load(Ordering::Relaxed) {
            // Sent as the last receiver went: dropped with all that it has left, and not only when senders go.
            self.drain();
        }
        Ok(())
    }

    fn drain(&self) {
        while let Some(value) = self.ring.pop() {
            crate::job::quietly(|| drop(value));
        }
    }

    fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut value = self.ring.pop();
        if value.is_none() {
            if !self.is_closed.load(Ordering::Acquire) {
                return Err(TryRecvError::Empty);
            }
            // What was sent before the close is seen after it.
            value = self.ring.pop();
        }
        let value = value.ok_or(TryRecvError::Closed)?;
        self.freed.notify();
        Ok(value)
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.filled.notify_all();
        self.freed.notify_all();
    }
}

impl<T: Send> Sender<T> {
    /// Sends, after waiting for room if there is none. A worker of a pool that waits here lets another one run, if there
    /// is one that does not wait itself. What nobody has received when the last receiver goes is dropped at once.
    ///
    /// # Errors
    /// [`SendError`] with the value, if all receivers are gone.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut value = Some(value);
        let attempt = || match self.0.try_send(value.take()?) {
            Ok(()) => Some(Ok(())),
            Err(TrySendError::Closed(back)) => Some(Err(SendError(back))),
            Err(TrySendError::Full(back)) => {
                value = Some(back);
                None
            }
        };
        self.0.freed.block(attempt, || self.0.ring.has_room())
    }

    /// Sends if there is room now.
    ///
    /// # Errors
    /// [`TrySendError`] with the value.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        self.0.try_send(value)
    }

    /// Sends, as a future: dropped before it is ready, nothing was sent.
    pub fn send_async(&self, value: T) -> SendFuture<'_, T> {
        SendFuture {
            shared: &self.0,
            value: Some(value),
            ticket: None,
        }
    }

    /// Waits of senders for room until now, blocking ones only.
    pub fn waits(&self) -> WaitCount {
        self.0.freed.count()
    }
}

impl<T: Send> Receiver<T> {
    /// Receives, after waiting for a value if there is none. A worker of a pool that waits here lets another one run, if
    /// there is one that does not wait itself.
    ///
    /// # Errors
    /// [`RecvError`] when all has been received and all senders are gone.
    pub fn recv(&self) -> Result<T, RecvError> {
        let attempt = || match self.0.try_recv() {
            Ok(value) => Some(Ok(value)),
            Err(TryRecvError::Closed) => Some(Err(RecvError)),
            Err(TryRecvError::Empty) => None,
        };
        self.0.filled.block(attempt, || self.0.ring.has_value())
    }

    /// Receives if a value is there.
    ///
    /// # Errors
    /// [`TryRecvError`].
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.0.try_recv()
    }

    /// Receives, as a future: dropped before it is ready, nothing was received.
    pub fn recv_async(&self) -> RecvFuture<'_, T> {
        RecvFuture {
            shared: &self.0,
            ticket: None,
        }
    }

    /// Waits of receivers for values until now, blocking ones only.
    pub fn waits(&self) -> WaitCount {
        self.0.filled.count()
    }
}

/// Of [`Sender::send_async`].
#[must_use = "a future does nothing until it is awaited"]
pub struct SendFuture<'a, T: Send> {
    shared: &'a Shared<T>,
    value: Option<T>,
    ticket: Option<Ticket>,
}

/// Of [`Receiver::recv_async`].
#[must_use = "a future does nothing until it is awaited"]
pub struct RecvFuture<'a, T: Send> {
    shared: &'a Shared<T>,
    ticket: Option<Ticket>,
}

// Nothing in it is pinned.
impl<T: Send> Unpin for SendFuture<'_, T> {}

impl<T: Send> Future for SendFuture<'_, T> {
    type Output = Result<(), SendError<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.shared
            .freed
            .poll(&mut this.ticket, context.waker(), || {
                match this
                    .shared
                    .try_send(this.value.take().expect("not polled after it was ready"))
                {
                    Ok(()) => Some(Ok(())),
                    Err(TrySendError::Closed(back)) => Some(Err(SendError(back))),
                    Err(TrySendError::Full(back)) => {
                        this.value = Some(back);
                        None
                    }
                }
            })
    }
}

impl<T: Send> Future for RecvFuture<'_, T> {
    type Output = Result<T, RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.shared
            .filled
            .poll(&mut this.ticket, context.waker(), || {
                match this.shared.try_recv() {
                    Ok(value) => Some(Ok(value)),
                    Err(TryRecvError::Closed) => Some(Err(RecvError)),
                    Err(TryRecvError::Empty) => None,
                }
            })
    }
}

impl<T: Send> Drop for SendFuture<'_, T> {
    fn drop(&mut self) {
        self.shared.freed.leave(self.ticket.take());
    }
}

impl<T: Send> Drop for RecvFuture<'_, T> {
    fn drop(&mut self) {
        self.shared.filled.leave(self.ticket.take());
    }
}

impl<T: Send> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Sender(self.0.clone())
    }
}

impl<T: Send> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.receivers.fetch_add(1, Ordering::Relaxed);
        Receiver(self.0.clone())
    }
}

impl<T: Send> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.close();
        }
    }
}

impl<T: Send> Drop for Receiver<T> {
    fn drop(&mut self) {
        if self.0.receivers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.close();
            // Nobody will ever see them; their destructors may release somebody.
            self.0.drain();
        }
    }
}

impl<T: Send> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("capacity", &self.0.ring.capacity())
            .finish()
    }
}

impl<T: Send> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("capacity", &self.0.ring.capacity())
            .finish()
    }
}
