//! After the switch-over: a connection that ends may be made again, by the source, and the migration goes on from there.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use crate::link::{Link, Patience, Stream};
use crate::session::{Session, is_same};
use crate::wire::{Message, Nonce, Proof, WireError};
use crate::{Connection, Error, sys};

/// What is told of the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outage {
    /// It is away. The guest runs on at the destination until it touches what is missing, and waits there.
    Begun {
        /// What has failed.
        why: String,
        /// How long it is waited for.
        within: Duration,
    },
    /// It is back, and the migration has gone on.
    Over {
        /// How long it was away.
        lasted: Duration,
    },
}

/// Somebody who wants to know of outages.
pub type TellOutage = dyn Fn(&Outage) + Send + Sync;

/// How a source finds its destination again.
#[derive(Clone)]
pub struct Redial {
    /// How long it tries, each time that the connection has ended.
    pub within: Duration,
    /// Connects, within the time that it is given. What it is called stands for may be looked up each time, so that the destination, and this host, may have another address.
    pub connect: Arc<dyn Fn(Duration) -> Result<Connection, Error> + Send + Sync>,
    /// Ends that when it becomes true.
    pub give_up: Arc<AtomicBool>,
    /// Is told.
    pub tell: Option<Arc<TellOutage>>,
}

/// How a destination is found again by its source.
#[derive(Clone)]
pub struct Await {
    /// How long it waits, each time that the source is away: for the connection, and for pages beside [`Arrival::page_timeout`](crate::Arrival::page_timeout).
    pub within: Duration,
    /// Who has connected, if somebody does within the time that it is given. Anybody may: who it is is looked at.
    pub accept: Arc<dyn Fn(Duration) -> Result<Option<Connection>, Error> + Send + Sync>,
    /// Is told.
    pub tell: Option<Arc<TellOutage>>,
}

impl fmt::Debug for Await {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Await")
            .field("within", &self.within)
            .finish_non_exhaustive()
    }
}

/// A source that is back.
pub(crate) struct Back {
    pub stream: Box<dyn Stream>,
    /// Its host.
    pub there: String,
    /// Where it serves pages; 0: it serves none.
    pub port: u16,
}

/// A pause between two tries, which ends when it is to.
pub(crate) fn pause(length: Duration, is_over: impl Fn() -> bool) {
    const LOOK: Duration = Duration::from_millis(20);
    let begun = Instant::now();
    while !is_over() {
        match length.checked_sub(begun.elapsed()) {
            None | Some(Duration::ZERO) => return,
            Some(left) => thread::sleep(left.min(LOOK)),
        }
    }
}

fn unexpected<T>(message: &Message) -> Result<T, Error> {
    match message {
        Message::Refused(why) | Message::Cancel(why) => Err(Error::Refused((*why).to_owned())),
        other => Err(WireError::Unexpected(other.name()).into()),
    }
}

/// Makes sure that the destination of this migration is there, and that it takes us for its source. `port` says where pages are served, to who is known: how
/// many it lacks.
pub(crate) fn resume<S: Stream>(
    link: &mut Link<S>,
    session: &Session,
    port: impl FnOnce() -> Result<u16, Error>,
) -> Result<u64, Error> {
    let here: Nonce = sys::random()?;
    link.send(&Message::Resume { nonce: here })?;
    let (there, proof): (Nonce, Proof) = match link.receive()? {
        Message::Challenge { nonce, proof } => (nonce, proof),
        other => return unexpected(&other),
    };
    if !is_same(proof, session.of_destination(&here, &there)) {
        return Err(stranger());
    }
    let port = port()?;
    link.send(&Message::Proof {
        proof: session.of_source(&here, &there, port),
        port,
    })?;
    match link.receive()? {
        Message::Resumed { missing } => Ok(missing),
        other => unexpected(&other),
    }
}

/// The same at the other side, up to what is said to a source that is known: where it serves pages.
fn recognise<S: Stream>(link: &mut Link<S>, session: &Session) -> Result<u16, Error> {
    let there: Nonce = match link.receive()? {
        Message::Resume { nonce } => nonce,
        other => return unexpected(&other),
    };
    let here: Nonce = sys::random()?;
    let proof = session.of_destination(&there, &here);
    link.send(&Message::Challenge { nonce: here, proof })?;
    match link.receive()? {
        Message::Proof { proof, port } => {
            match is_same(proof, session.of_source(&there, &here, port)) {
                true => Ok(port),
                false => Err(stranger()),
            }
        }
        other => unexpected(&other),
    }
}

fn stranger() -> Error {
    Error::Refused("it is not the other side of this migration".to_owned())
}

/// Connections that may greet at the same time.
const GREETING: usize = 16;

/// Lets in who connects until it is over, and passes on who is the source; `is_back` is true from then on.
pub(crate) fn let_in<'scope>(
    scope: &'scope Scope<'scope, '_>,
    of: &'scope Await,
    session: Session,
    timeout: Duration,
    is_over: &'scope Arc<AtomicBool>,
    is_back: &'scope Arc<AtomicBool>,
    to: Sender<Back>,
) {
    const LOOK: Duration = Duration::from_millis(100);
    let greeting = Arc::new(AtomicUsize::new(0));
    while !is_over.load(Ordering::Relaxed) {
        if greeting.load(Ordering::SeqCst) >= GREETING {
            thread::sleep(LOOK);
            continue;
        }
        let connection = match (of.accept)(LOOK) {
            Ok(Some(connection)) => connection,
            Ok(None) => continue,
            // Of this connection alone, or of what may pass.
            Err(_) => {
                pause(LOOK, || is_over.load(Ordering::Relaxed));
                continue;
            }
        };
        let (to, greets) = (to.clone(), greeting.clone());
        greeting.fetch_add(1, Ordering::SeqCst);
        let greet = move || {
            let patience = Patience {
                cancel: Some(is_over.clone()),
                ..Patience::new(timeout)
            };
            let back = Link::new(connection.stream, patience).and_then(|mut link| {
                let port = recognise(&mut link, &session);
                if let Err(error) = &port {
                    let _ = link.send(&Message::Refused(&error.to_string()));
                }
                Ok((link, port?))
            });
            greets.fetch_sub(1, Ordering::SeqCst);
            if let Ok((link, port)) = back {
                let _ = to.send(Back {
                    stream: link.into_stream(),
                    there: connection.there,
                    port,
                });
                is_back.store(true, Ordering::SeqCst);
            }
        };
        let spawned = thread::Builder::new()
            .name("migrate-greet".to_owned())
            .spawn_scoped(scope, greet);
        if spawned.is_err() {
            greeting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Those who come back, to who waits for them.
pub(crate) struct Returns<'a> {
    pub of: &'a Await,
    pub from: Receiver<Back>,
    /// There is one in `from`.
    pub is_back: Arc<AtomicBool>,
}

impl Returns<'_> {
    /// The last who is back.
    pub fn next(&self) -> Option<Back> {
        self.is_back.store(false, Ordering::SeqCst);
        self.from.try_iter().last()
    }
}
