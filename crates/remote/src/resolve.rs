//! Names of hosts, looked up within a time.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// What a name stands for. The system has no time limit for that, and asks others: a thread that it keeps is left behind, which ends when it gives up.
fn addresses_of(address: &str, until: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let address = address.to_owned();
    by(until, move || Ok(address.to_socket_addrs()?.collect()))
}

/// The host of `host:port`, as a certificate names it: without the brackets of an address of IPv6. Empty where there is no port.
pub fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or("", |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Connects to one of the addresses that a name stands for; `until` is for all of them, and for looking it up.
///
/// # Errors
/// What the system says of the last one.
pub fn connect(address: &str, until: Instant) -> io::Result<TcpStream> {
    let mut socket = Err(io::ErrorKind::NotFound.into());
    let addresses = addresses_of(address, until)?;
    for (tried, address) in addresses.iter().enumerate() {
        // One that says nothing leaves time for the others.
        let left =
            until.saturating_duration_since(Instant::now()) / (addresses.len() - tried) as u32;
        // Zero is refused.
        socket = TcpStream::connect_timeout(address, left.max(Duration::from_millis(1)));
        if socket.is_ok() {
            break;
        }
    }
    socket
}

/// What something gives that has no time limit of its own.
fn by<T: Send + 'static>(
    until: Instant,
    run: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (to, from) = mpsc::channel();
    let thread = thread::Builder::new().name("pages-resolve".into());
    thread.spawn(move || to.send(run()))?;
    let left = until.saturating_duration_since(Instant::now());
    let late = |_| Err(io::ErrorKind::TimedOut.into());
    from.recv_timeout(left).unwrap_or_else(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name server that says nothing kept who connects for as long as the system had patience with it.
    #[test]
    fn what_has_no_time_limit_of_its_own_is_left_behind() {
        let (keeps, kept) = mpsc::channel::<()>();
        let silent = move || kept.recv().map_err(io::Error::other);
        let error = by(Instant::now(), silent).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(keeps);
        let until = Instant::now() + Duration::from_secs(60);
        assert_eq!(by(until, || Ok(7)).unwrap(), 7);
        let local = addresses_of("localhost:80", until).unwrap();
        assert!(local.iter().all(|address| address.ip().is_loopback()) && !local.is_empty());
        let address = "[::1]:80".parse().unwrap();
        assert_eq!(addresses_of("[::1]:80", Instant::now()).unwrap(), [address]);
    }
}
