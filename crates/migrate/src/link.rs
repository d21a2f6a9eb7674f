//! Messages over a stream.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::DerefMut;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amdahl_remote::Credentials;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ConnectionCommon, ServerConnection, SideData, StreamOwned};

use crate::Error;
use crate::wire::{HEAD, Head, Message};

/// A connection to the other side: bytes in both directions, in order.
pub trait Stream: Read + Write + Send {
    /// How long a read or a write may take before it fails with [`ErrorKind::WouldBlock`] or [`ErrorKind::TimedOut`], and can be tried again. It is
    /// short: whether the migration goes on is looked at in between.
    ///
    /// # Errors
    /// What the system says.
    fn set_timeout(&mut self, at_most: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_timeout(&mut self, at_most: Duration) -> io::Result<()> {
        self.set_nodelay(true)?;
        self.set_read_timeout(Some(at_most))?;
        self.set_write_timeout(Some(at_most))
    }
}

impl Stream for UnixStream {
    fn set_timeout(&mut self, at_most: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(at_most))?;
        self.set_write_timeout(Some(at_most))
    }
}

/// The connection of the beginning, or one that was made in its place.
pub(crate) enum Line<S> {
    First(S),
    Again(Box<dyn Stream>),
}

impl<S: Stream> Line<S> {
    fn stream(&mut self) -> &mut (dyn Stream + '_) {
        match self {
            Line::First(stream) => stream,
            Line::Again(stream) => &mut **stream,
        }
    }
}

impl<S: Stream> Read for Line<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream().read(into)
    }
}

impl<S: Stream> Write for Line<S> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream().write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream().flush()
    }
}

impl<S: Stream> Stream for Line<S> {
    fn set_timeout(&mut self, at_most: Duration) -> io::Result<()> {
        self.stream().set_timeout(at_most)
    }
}

impl<S: Stream + ?Sized> Stream for Box<S> {
    fn set_timeout(&mut self, at_most: Duration) -> io::Result<()> {
        (**self).set_timeout(at_most)
    }
}

/// A socket below TLS, which reads and writes more than once for a call: all of them end in time.
struct Bounded {
    socket: TcpStream,
    at_most: Duration,
    until: Instant,
}

impl Bounded {
    fn new(socket: TcpStream) -> Bounded {
        Bounded {
            socket,
            at_most: SLICE,
            until: Instant::now(),
        }
    }

    fn check(&self) -> io::Result<()> {
        match Instant::now() < self.until {
            true => Ok(()),
            false => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

impl Read for Bounded {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.socket.read(into)
    }
}

impl Write for Bounded {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.socket.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

struct Tls<C: DerefMut<Target = ConnectionCommon<D>>, D: SideData>(StreamOwned<C, Bounded>);

impl<C: DerefMut<Target = ConnectionCommon<D>>, D: SideData> Tls<C, D> {
    fn begin(&mut self) -> &mut StreamOwned<C, Bounded> {
        self.0.sock.until = Instant::now() + self.0.sock.at_most;
        &mut self.0
    }
}

impl<C: DerefMut<Target = ConnectionCommon<D>>, D: SideData> Read for Tls<C, D> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.begin().read(into)
    }
}

impl<C: DerefMut<Target = ConnectionCommon<D>>, D: SideData> Write for Tls<C, D> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.begin().write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.begin().flush()
    }
}

impl<C: DerefMut<Target = ConnectionCommon<D>> + Send, D: SideData> Stream for Tls<C, D> {
    fn set_timeout(&mut self, at_most: Duration) -> io::Result<()> {
        self.0.sock.at_most = at_most;
        self.0.sock.socket.set_timeout(at_most)
    }
}

/// TLS 1.3 with certificates on both sides, by the side that has connected. `name` is the name in the other side's certificate.
///
/// # Errors
/// [`Error`]: what is wrong with the credentials. Whether the other side is trusted shows when something is sent.
pub fn tls_connect(
    socket: TcpStream,
    credentials: &Credentials,
    name: &str,
) -> Result<impl Stream + 'static, Error> {
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| Error::Config("this is no name that a certificate can have"))?;
    let connection =
        ClientConnection::new(credentials.client()?, name).map_err(amdahl_remote::Error::from)?;
    Ok(Tls(StreamOwned::new(connection, Bounded::new(socket))))
}

/// The same, by the side that was connected to.
///
/// # Errors
/// As [`tls_connect`].
pub fn tls_accept(
    socket: TcpStream,
    credentials: &Credentials,
) -> Result<impl Stream + 'static, Error> {
    let connection =
        ServerConnection::new(credentials.server()?).map_err(amdahl_remote::Error::from)?;
    Ok(Tls(StreamOwned::new(connection, Bounded::new(socket))))
}

/// How long a call of the system waits before it is looked whether to go on.
const SLICE: Duration = Duration::from_millis(50);

/// When a message is waited for no longer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience {
    /// All of a message has to be sent, or come, within so long, however it comes.
    pub timeout: Duration,
    /// And by then, whatever has to be sent or come.
    pub until: Option<(Instant, Duration)>,
    /// And before that is so.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl Patience {
    pub fn new(timeout: Duration) -> Patience {
        Patience {
            timeout,
            ..Patience::default()
        }
    }

    /// The same for a message of which something is left: somebody who takes or gives a byte now and then is not waited for either. Cancelling
    /// does not end it in the middle unless the guest stands still.
    fn check_between(&self, begun: Instant) -> Result<(), Error> {
        match begun.elapsed() >= self.timeout || self.until.is_some() {
            true => self.check(begun),
            false => Ok(()),
        }
    }

    /// Whether there is any left, for a message that was begun then.
    pub fn check(&self, begun: Instant) -> Result<(), Error> {
        let is_cancelled = |cancel: &Arc<AtomicBool>| cancel.load(Ordering::Relaxed);
        if self.cancel.as_ref().is_some_and(is_cancelled) {
            return Err(Error::Cancelled);
        }
        if begun.elapsed() >= self.timeout {
            return Err(Error::Late(self.timeout));
        }
        match self.until {
            Some((until, max)) if until <= Instant::now() => Err(Error::PausedTooLong(max)),
            _ => Ok(()),
        }
    }
}

pub(crate) struct Link<S> {
    stream: S,
    pub patience: Patience,
    /// A message was sent in part: none can follow it.
    is_torn: bool,
    frame: Vec<u8>,
    payload: Vec<u8>,
    /// Bytes that were sent.
    pub sent: u64,
    /// How long sending and receiving has taken.
    pub spent: Duration,
}

fn cut(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => Error::Cut("the other side has closed the connection".into()),
        _ => Error::Cut(error.to_string()),
    }
}

/// Tries until something was done or there is no patience left.
fn patiently(
    patience: &Patience,
    begun: Instant,
    mut act: impl FnMut() -> io::Result<usize>,
) -> Result<usize, Error> {
    loop {
        match act() {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                patience.check(begun)?;
            }
            done => return done.map_err(cut),
        }
    }
}

fn read_all(
    stream: &mut impl Stream,
    patience: &Patience,
    begun: Instant,
    mut into: &mut [u8],
) -> Result<(), Error> {
    while !into.is_empty() {
        patience.check_between(begun)?;
        match patiently(patience, begun, || stream.read(into))? {
            0 => return Err(cut(ErrorKind::UnexpectedEof.into())),
            read => into = &mut into[read..],
        }
    }
    Ok(())
}

impl<S: Stream> Link<S> {
    pub fn new(mut stream: S, patience: Patience) -> Result<Link<S>, Error> {
        let at_most = SLICE.min(patience.timeout).max(Duration::from_millis(1));
        stream.set_timeout(at_most).map_err(cut)?;
        Ok(Link {
            stream,
            patience,
            is_torn: false,
            frame: Vec::new(),
            payload: Vec::new(),
            sent: 0,
            spent: Duration::ZERO,
        })
    }

    pub fn into_stream(self) -> S {
        self.stream
    }

    pub fn send(&mut self, message: &Message) -> Result<(), Error> {
        if self.is_torn {
            return Err(Error::Cut("a message was sent in part".into()));
        }
        message.frame(&mut self.frame);
        let begun = Instant::now();
        let mut rest = &self.frame[..];
        while !rest.is_empty() {
            self.patience.check_between(begun)?;
            match patiently(&self.patience, begun, || self.stream.write(rest))? {
                0 => return Err(cut(ErrorKind::WriteZero.into())),
                written => rest = &rest[written..],
            }
            self.is_torn = !rest.is_empty();
        }
        patiently(&self.patience, begun, || self.stream.flush().map(|()| 0))?;
        self.sent += self.frame.len() as u64;
        self.spent += begun.elapsed();
        Ok(())
    }

    pub fn receive(&mut self) -> Result<Message<'_>, Error> {
        let begun = Instant::now();
        let mut head = [0; HEAD];
        read_all(&mut self.stream, &self.patience, begun, &mut head)?;
        let head = Head::of(&head)?;
        self.payload.resize(head.len, 0);
        read_all(&mut self.stream, &self.patience, begun, &mut self.payload)?;
        head.check(&self.payload)?;
        self.spent += begun.elapsed();
        Ok(Message::of(head.kind, &self.payload)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all that is written, at most so much at once, and is cancelled meanwhile.
    struct Taker {
        at_once: usize,
        cancel: Arc<AtomicBool>,
    }

    impl Read for Taker {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(ErrorKind::WouldBlock.into())
        }
    }

    impl Write for Taker {
        fn write(&mut self, from: &[u8]) -> io::Result<usize> {
            self.cancel.store(true, Ordering::Relaxed);
            Ok(from.len().min(self.at_once))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Stream for Taker {
        fn set_timeout(&mut self, _: Duration) -> io::Result<()> {
            Ok(())
        }
    }

    fn link(at_once: usize) -> Link<Taker> {
        let cancel = Arc::new(AtomicBool::new(false));
        let patience = Patience {
            until: Some((Instant::now() + Duration::from_secs(1000), Duration::ZERO)),
            cancel: Some(Arc::clone(&cancel)),
            ..Patience::new(Duration::from_secs(1000))
        };
        Link::new(Taker { at_once, cancel }, patience).unwrap()
    }

    #[test]
    fn a_message_that_is_whole_was_sent_and_another_may_follow() {
        let mut link = link(usize::MAX);
        assert_eq!(link.send(&Message::Commit), Ok(()));
        assert_eq!(link.send(&Message::Commit), Err(Error::Cancelled));
        link.patience = Patience::new(Duration::from_secs(1000));
        assert_eq!(link.send(&Message::Cancel("cancelled")), Ok(()));
    }

    #[test]
    fn nothing_follows_a_part_of_a_message() {
        let mut link = link(1);
        assert_eq!(link.send(&Message::Commit), Err(Error::Cancelled));
        link.patience = Patience::new(Duration::from_secs(1000));
        let torn = link.send(&Message::Cancel("cancelled"));
        assert!(matches!(torn, Err(Error::Cut(_))), "{torn:?}");
    }
}
