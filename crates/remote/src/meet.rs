//! What a client does on a connection before it is a link: connects, greets, and asks what there is.

use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::channel::Channel;
use crate::tls::Fresh;
use crate::wire::{self, ANSWER, AnswerHead, Ask, MAP_MAX, Request, SET_RANGE, SET_STEP, Welcome};
use crate::{BLOCK, Connect, Error, PAGE, resolve};

/// How the other side is talked to, and what it is to be called.
pub(crate) type Tls<'a> = (&'a Fresh<ClientConfig>, ServerName<'static>);

/// Has the kernel find out that the other side, or the way there, is gone: also while nothing is asked for, so that a fault does not
/// meet a dead connection after a long pause.
fn notice_the_end(socket: &TcpStream, within: Duration) -> io::Result<()> {
    use rustix::net::sockopt;
    let probe = (within / 3).max(Duration::from_secs(1));
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, probe)?;
    sockopt::set_tcp_keepintvl(socket, probe)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    let within = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, within)?;
    Ok(())
}

/// Connects and greets.
pub(crate) fn meet(
    connect: &Connect,
    address: &str,
    tls: Option<Tls<'_>>,
    until: Instant,
) -> Result<(Channel, Welcome), Error> {
    let failed = |error| Error::Address {
        address: address.to_owned(),
        error,
    };
    let socket = resolve::connect(address, until).map_err(failed)?;
    let there = socket.peer_addr()?;
    if tls.is_none() && !there.ip().is_loopback() {
        return Err(Error::Open(there));
    }
    notice_the_end(&socket, connect.silence())?;
    let tls = tls.map(|(config, name)| ClientConnection::new(config.get(), name));
    let mut channel = Channel::new(socket, tls.transpose()?.map(Into::into))?;
    let mut hello = wire::hello().to_vec();
    if let Some(secret) = &connect.secret {
        hello.extend(wire::show(secret));
    }
    channel.write_all(&hello, until)?;
    let mut welcome = [0; wire::WELCOME];
    channel.read_all(&mut welcome, until)?;
    Ok((channel, Welcome::of(&welcome)?))
}

/// Asks for the map of a memory, piece by piece: what is allocated follows what has come.
pub(crate) fn map_of(channel: &mut Channel, len: u64, timeout: Duration) -> Result<Vec<u8>, Error> {
    let bytes = len.div_ceil(BLOCK).div_ceil(8);
    let mut map = Vec::new();
    while (map.len() as u64) < bytes {
        let step = (bytes - map.len() as u64).min(MAP_MAX.into()) as u32;
        let offset = map.len() as u64 * 8 * BLOCK;
        map.extend(answer_of(channel, Ask::Map, offset, step, step, timeout)?);
    }
    Ok(map)
}

/// The same for the working set.
pub(crate) fn set_of(
    channel: &mut Channel,
    welcome: &Welcome,
    timeout: Duration,
) -> Result<Vec<Range<u64>>, Error> {
    let pages = welcome.len.div_ceil(PAGE);
    let (mut set, mut all) = (Vec::new(), 0_u64);
    while set.len() < welcome.set as usize {
        let step = (welcome.set - set.len() as u32).min(SET_STEP);
        let offset = set.len() as u64;
        let payload = answer_of(channel, Ask::Set, offset, step, SET_RANGE * step, timeout)?;
        let ranges = wire::set_of(&payload, pages)?;
        let sum: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        all += sum;
        if all > pages {
            return Err(Error::Wire(wire::WireError::Field {
                field: "the pages of the working set",
                value: all,
            }));
        }
        set.extend(ranges);
    }
    Ok(set)
}

/// Asks while nobody else does, and waits for an answer of `bytes`.
fn answer_of(
    channel: &mut Channel,
    ask: Ask,
    offset: u64,
    len: u32,
    bytes: u32,
    timeout: Duration,
) -> Result<Vec<u8>, Error> {
    let request = Request {
        id: 0,
        ask,
        is_urgent: true,
        offset,
        len,
    };
    let until = Instant::now() + timeout;
    channel.write_all(&request.bytes(), until)?;
    let mut head = [0; ANSWER];
    channel.read_all(&mut head, until)?;
    let head = AnswerHead::of(&head)?;
    if head.is.is_err() || head.len != bytes {
        return Err(Error::Wire(wire::WireError::Field {
            field: "the length of an answer",
            value: head.len.into(),
        }));
    }
    let mut payload = vec![0; bytes as usize];
    channel.read_all(&mut payload, until)?;
    if crc32c::crc32c(&payload) != head.crc {
        return Err(Error::Wire(wire::WireError::Checksum("an answer")));
    }
    Ok(payload)
}
