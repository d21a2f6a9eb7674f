//! A link that is long and narrow: passes bytes on, later, and no more of them than it has room for.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The link. Its threads end with its connections, and the last with the process.
pub struct Relay {
    address: SocketAddr,
}

impl Relay {
    /// To `to`; bytes arrive `way` later, at most `bytes_per_s` of answers over all connections.
    pub fn new(to: SocketAddr, way: Duration, bytes_per_s: f64) -> std::io::Result<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let free = Arc::new(Mutex::new(Instant::now()));
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect(to) else {
                    return;
                };
                for socket in [&client, &server] {
                    let _ = socket.set_nodelay(true);
                }
                let (Ok(client_too), Ok(server_too)) = (client.try_clone(), server.try_clone())
                else {
                    return;
                };
                pass(client, server, way, None);
                pass(
                    server_too,
                    client_too,
                    way,
                    Some((free.clone(), bytes_per_s)),
                );
            }
        });
        Ok(Relay { address })
    }

    /// Where it begins.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    way: Duration,
    limit: Option<(Arc<Mutex<Instant>>, f64)>,
) {
    // As much as is under way on a link of 1 GB/s.
    let (send, receive) = sync_channel::<(Instant, Vec<u8>)>(1024);
    thread::spawn(move || {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(read) = from.read(&mut bytes) {
            let now = Instant::now();
            let mut sent = now;
            if let Some((free, bytes_per_s)) = &limit {
                let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
                *free = (*free).max(now) + Duration::from_secs_f64(read as f64 / bytes_per_s);
                sent = *free;
            }
            // The link takes no more than it passes on.
            thread::sleep(sent.saturating_duration_since(now));
            if read == 0 || send.send((sent + way, bytes[..read].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in receive {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
