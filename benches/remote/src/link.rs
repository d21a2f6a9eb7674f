//! A link that is long and narrow between two network namespaces of this process's own: packets arrive later, and no more of them than there is room for.
//! Both sides have a kernel's TCP with its windows and its control of congestion, which sees round trips and losses. Needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN.
//!
//! Linux can delay packets by itself (`tc qdisc add … netem`), where it was built with that.

use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a packet at most: jumbo frames, as between hosts of one data centre.
const PACKET: usize = 9000;
/// Of a link without a limit, what may be under way in each direction.
const MOST: usize = 64 << 20;

/// A side of the link: a thread in its namespace, and what it starts.
pub struct Side {
    address: Ipv4Addr,
    work: Sender<Box<dyn FnOnce() + Send>>,
}

impl Side {
    /// Its address, at which the other side reaches it.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Does something there. Threads that it starts are there, too, and the sockets of all of them.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (say, hear) = channel();
        let work = Box::new(move || drop(say.send(work())));
        self.work.send(work).expect("the thread is there");
        hear.recv().expect("the work does not panic")
    }
}

/// Two sides of a new link, of which the second sends no more than so many bytes a second. What waits for its turn is a round trip's worth of that; what
/// comes beyond is lost, as in a router that is set up well, and what is marked for low delay comes first. `way` is the time from one side to the other.
///
/// # Errors
/// What is not allowed or not there.
pub fn new(way: Duration, bytes_per_s: f64) -> Result<(Side, Side), Box<dyn Error>> {
    let (near, near_link) = side(Ipv4Addr::new(198, 18, 0, 1))?;
    let (far, far_link) = side(Ipv4Addr::new(198, 18, 0, 2))?;
    pass(
        near_link.try_clone()?,
        far_link.try_clone()?,
        way,
        f64::INFINITY,
    )?;
    pass(far_link, near_link, way, bytes_per_s)?;
    Ok((near, far))
}

/// A namespace with one interface, whose packets are ours to pass on.
fn side(address: Ipv4Addr) -> Result<(Side, File), Box<dyn Error>> {
    let (say, hear) = channel();
    let (work, todo) = channel::<Box<dyn FnOnce() + Send>>();
    thread::spawn(move || {
        let made = interface(address);
        let is_made = made.is_ok();
        let _ = say.send(made);
        if is_made {
            todo.into_iter().for_each(|work| work());
        }
    });
    let link = hear.recv()??;
    Ok((Side { address, work }, link))
}

/// Takes this thread to a new namespace and makes an interface there.
fn interface(address: Ipv4Addr) -> Result<File, String> {
    let named = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    // SAFETY: changes nothing but the namespace of this thread.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map_err(named("a network namespace"))?;
    let tun = File::options().read(true).write(true).open("/dev/net/tun");
    let tun = tun.map_err(named("/dev/net/tun"))?;
    // SAFETY: a structure of numbers.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    request.ifr_name[0] = b'l'.cast_signed();
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    let ask = |fd: i32, what: libc::Ioctl, request: &mut libc::ifreq| {
        // SAFETY: all that are used here take this structure.
        checked(unsafe { libc::ioctl(fd, what, request) })
    };
    ask(tun.as_raw_fd(), libc::TUNSETIFF, &mut request).map_err(named("TUNSETIFF"))?;
    // SAFETY: gives a new descriptor, which is ours.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        checked(fd).map_err(named("socket"))?;
        OwnedFd::from_raw_fd(fd)
    };
    let socket = socket.as_raw_fd();
    for (what, value) in [
        (libc::SIOCSIFADDR, address),
        (libc::SIOCSIFNETMASK, Ipv4Addr::new(255, 255, 255, 0)),
    ] {
        // SAFETY: a structure of numbers; the address is one of the forms of what it is written to.
        unsafe {
            let mut to: libc::sockaddr_in = mem::zeroed();
            to.sin_family = libc::AF_INET as u16;
            to.sin_addr.s_addr = u32::from(value).to_be();
            request.ifr_ifru.ifru_addr = mem::transmute::<libc::sockaddr_in, libc::sockaddr>(to);
        }
        ask(socket, what, &mut request).map_err(named("the address"))?;
    }
    request.ifr_ifru.ifru_mtu = PACKET as i32;
    ask(socket, libc::SIOCSIFMTU, &mut request).map_err(named("the size of packets"))?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    ask(socket, libc::SIOCSIFFLAGS, &mut request).map_err(named("the interface"))?;
    Ok(tun)
}

fn checked(result: i32) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Passes packets on for as long as the process lives. Those that are marked for low delay pass the others, as in Linux's `pfifo_fast`.
fn pass(mut from: File, to: File, way: Duration, bytes_per_s: f64) -> io::Result<()> {
    // What is under way on a link that is full, and a round trip's worth that waits.
    let room = (bytes_per_s * way.as_secs_f64() * 3.0).min(MOST as f64) as usize;
    let (first, other) = (band(to.try_clone()?), band(to));
    thread::spawn(move || {
        let mut packet = vec![0; PACKET];
        let mut free = Instant::now();
        while let Ok(len) = from.read(&mut packet) {
            let takes = Duration::from_secs_f64(len as f64 / bytes_per_s);
            let now = Instant::now();
            let is_first = len > 1 && packet[0] >> 4 == 4 && packet[1] & 0x1e == 0x10;
            let (band, sent) = match is_first {
                true => (&first, now + takes),
                false => (&other, free.max(now) + takes),
            };
            if band.under_way.load(Ordering::Relaxed) + len > room {
                continue;
            }
            free = free.max(now) + takes;
            band.under_way.fetch_add(len, Ordering::Relaxed);
            if band
                .send
                .send((sent + way, packet[..len].to_vec()))
                .is_err()
            {
                return;
            }
        }
    });
    Ok(())
}

/// Packets that arrive one after the other.
struct Band {
    send: SyncSender<(Instant, Vec<u8>)>,
    /// Bytes of them.
    under_way: Arc<AtomicUsize>,
}

fn band(mut to: File) -> Band {
    let (send, receive) = sync_channel::<(Instant, Vec<u8>)>(MOST / 1024);
    let under_way = Arc::new(AtomicUsize::new(0));
    let arrived = Arc::clone(&under_way);
    thread::spawn(move || {
        for (due, packet) in receive {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            arrived.fetch_sub(packet.len(), Ordering::Relaxed);
            // A packet that the other side does not take is lost, as any may be.
            let _ = to.write(&packet);
        }
    });
    Band { send, under_way }
}
