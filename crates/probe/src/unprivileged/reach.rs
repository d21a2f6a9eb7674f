//! Who is at the other end of what a thread waits for.
//!
//! The kernel tells a process's own user which descriptors it has, and `/proc/PID/fd`
//! names pipes and sockets by inode. A pipe whose opposite end the workload holds, or a
//! TCP connection to itself, is a partner; what leads elsewhere is outside.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use amdahl_speedup::event::Tid;
use amdahl_speedup::snapshot::Reach;
use rustc_hash::{FxHashMap, FxHashSet};

/// Descriptors looked at in one call of `poll` or `select`.
const POLLED_MAX: usize = 64;
/// Answers kept; all are forgotten when there are more.
const ANSWERS_MAX: usize = 16_384;
/// An answer is asked for again after this many polls: descriptors are used again.
const ANSWER_POLLS: u64 = 64;
const TABLE_BYTES_MAX: u64 = 4 << 20;

/// What the threads wait for, found out once and remembered for a while.
#[derive(Debug, Default)]
pub(super) struct Reaches {
    answers: FxHashMap<(Tid, u32, u64), (Reach, u64)>,
    held: Held,
    poll: u64,
}

/// Descriptors of the whole workload.
#[derive(Debug, Default)]
struct Held {
    /// Pipes by inode: held for reading, held for writing.
    pipes: FxHashMap<u64, [bool; 2]>,
    sockets: FxHashSet<u64>,
    /// TCP sockets by inode, and inodes by (local, remote) address.
    tcp: FxHashMap<u64, (String, String)>,
    by_addresses: FxHashMap<(String, String), u64>,
    unix: FxHashSet<u64>,
    read_at: Option<Instant>,
    took: Duration,
}

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Descriptor {
    Pipe { inode: u64, reads: bool },
    Socket { inode: u64 },
    Fixed(Reach),
    Epoll,
}

impl Reaches {
    /// A new poll begins.
    pub(super) fn tick(&mut self) {
        self.poll += 1;
        if self.answers.len() > ANSWERS_MAX {
            self.answers.clear();
        }
    }

    /// Where the system call `number` with `args` of process `pid` leads. `pids` is the workload.
    pub(super) fn of(&mut self, pid: Tid, number: u32, args: &[u64; 6], pids: &[Tid]) -> Reach {
        let Some(target) = target(number, args) else {
            return Reach::Unknown;
        };
        let key = (pid, number, args[0]);
        if let Some(&(reach, until)) = self.answers.get(&key)
            && until > self.poll
        {
            return reach;
        }
        let reach = match target {
            Target::Descriptor(fd) => self.descriptor(pid, fd, pids, 0),
            Target::Poll { at, count } => {
                let fds = polled(pid, at, count);
                self.any(pid, &fds, pids, 0)
            }
            Target::Select { count, sets } => {
                let fds = selected(pid, count, sets);
                self.any(pid, &fds, pids, 0)
            }
        };
        // `poll` arrays at the same address change more often than descriptors do.
        let polls = if matches!(target, Target::Descriptor(_)) {
            ANSWER_POLLS
        } else {
            8
        };
        self.answers.insert(key, (reach, self.poll + polls));
        reach
    }

    /// Where several descriptors lead: whoever waits for the workload and for others waits for
    /// the workload, since that is what it can be faulted for.
    fn any(&mut self, pid: Tid, fds: &[u64], pids: &[Tid], depth: u32) -> Reach {
        let mut found = Reach::Unknown;
        for &fd in fds {
            found = match (found, self.descriptor(pid, fd, pids, depth)) {
                (_, Reach::Workload) => return Reach::Workload,
                (_, Reach::Outside) | (Reach::Outside, _) => Reach::Outside,
                (Reach::Unknown, other) => other,
                (known, _) => known,
            };
        }
        found
    }

    fn descriptor(&mut self, pid: Tid, fd: u64, pids: &[Tid], depth: u32) -> Reach {
        let Some(descriptor) = look(pid, fd) else {
            return Reach::Unknown;
        };
        match descriptor {
            Descriptor::Fixed(reach) => reach,
            Descriptor::Epoll if depth < 3 => {
                let fds = watched(pid, fd);
                self.any(pid, &fds, pids, depth + 1)
            }
            Descriptor::Epoll => Reach::Unknown,
            Descriptor::Pipe { inode, reads } => {
                if !self.held.pipes.contains_key(&inode) {
                    self.held.refresh(pids);
                }
                match self.held.pipes.get(&inode) {
                    Some([_, true]) if reads => Reach::Workload,
                    Some([true, _]) if !reads => Reach::Workload,
                    Some(_) => Reach::Outside,
                    None => Reach::Unknown,
                }
            }
            Descriptor::Socket { inode } => {
                if !self.held.sockets.contains(&inode) {
                    self.held.refresh(pids);
                }
                self.held.socket(inode, pids.len())
            }
        }
    }
}

impl Held {
    /// Reads all descriptors again, unless that was done lately in relation to what it costs.
    fn refresh(&mut self, pids: &[Tid]) {
        let pause = (self.took * 500).max(Duration::from_millis(100));
        if self.read_at.is_some_and(|at| at.elapsed() < pause) {
            return;
        }
        let start = Instant::now();
        *self = Held::default();
        for &pid in pids {
            let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
                continue;
            };
            for entry in entries.flatten() {
                let Some(fd) = entry.file_name().to_str().and_then(|fd| fd.parse().ok()) else {
                    continue;
                };
                match look(pid, fd) {
                    Some(Descriptor::Pipe { inode, reads }) => {
                        self.pipes.entry(inode).or_default()[usize::from(!reads)] = true;
                    }
                    Some(Descriptor::Socket { inode }) => {
                        self.sockets.insert(inode);
                    }
                    _ => {}
                }
            }
        }
        if let (false, Some(pid)) = (self.sockets.is_empty(), pids.first()) {
            for table in ["tcp", "tcp6"] {
                self.tcp(&text(&format!("/proc/{pid}/net/{table}")));
            }
            self.unix(&text(&format!("/proc/{pid}/net/unix")));
        }
        self.took = start.elapsed();
        self.read_at = Some(start);
    }

    /// `/proc/net/tcp`: number, local address, remote address, ..., inode as tenth.
    fn tcp(&mut self, text: &str) {
        for line in text.lines().skip(1) {
            let mut words = line.split_ascii_whitespace().skip(1);
            let (Some(local), Some(remote)) = (words.next(), words.next()) else {
                continue;
            };
            let Some(inode) = words.nth(6).and_then(|inode| inode.parse::<u64>().ok()) else {
                continue;
            };
            if self.sockets.contains(&inode) {
                self.tcp
                    .insert(inode, (local.to_owned(), remote.to_owned()));
                self.by_addresses
                    .insert((local.to_owned(), remote.to_owned()), inode);
            }
        }
    }

    /// `/proc/net/unix`: inode as seventh.
    fn unix(&mut self, text: &str) {
        let inodes = text
            .lines()
            .skip(1)
            .filter_map(|line| line.split_ascii_whitespace().nth(6)?.parse().ok());
        self.unix
            .extend(inodes.filter(|inode| self.sockets.contains(inode)));
    }

    fn socket(&self, inode: u64, processes: usize) -> Reach {
        if self.unix.contains(&inode) {
            // The other end of a local socket is not told. If the workload has two sockets, or two
            // processes, they are most likely connected.
            let is_alone = self.unix.len() < 2 && processes < 2;
            return if is_alone {
                Reach::Outside
            } else {
                Reach::Workload
            };
        }
        match self.tcp.get(&inode) {
            Some((local, remote))
                if self
                    .by_addresses
                    .contains_key(&(remote.clone(), local.clone())) =>
            {
                Reach::Workload
            }
            Some(_) => Reach::Outside,
            None => Reach::Unknown,
        }
    }
}

fn text(path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(path) {
        // What was read before an error is as good as a shorter table.
        let _ = file.take(TABLE_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn look(pid: Tid, fd: u64) -> Option<Descriptor> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let link = fs::read_link(&path).ok()?;
    let link = link.to_str()?;
    let inode = |prefix: &str| {
        link.strip_prefix(prefix)?
            .strip_suffix(']')?
            .parse::<u64>()
            .ok()
    };
    if let Some(inode) = inode("pipe:[") {
        // The permissions of the link are those of the descriptor.
        let mode = fs::symlink_metadata(&path).ok()?.permissions().mode();
        return Some(Descriptor::Pipe {
            inode,
            reads: mode & 0o400 != 0,
        });
    }
    if let Some(inode) = inode("socket:[") {
        return Some(Descriptor::Socket { inode });
    }
    Some(match link {
        "anon_inode:[eventpoll]" => Descriptor::Epoll,
        "anon_inode:[eventfd]" | "anon_inode:[pidfd]" => Descriptor::Fixed(Reach::Workload),
        "anon_inode:[timerfd]" => Descriptor::Fixed(Reach::Timer),
        _ if link.starts_with("anon_inode:") => Descriptor::Fixed(Reach::Unknown),
        // Terminals and other devices.
        _ if link.starts_with("/dev/") => Descriptor::Fixed(Reach::Outside),
        _ => match fs::metadata(&path) {
            Ok(file) if file.file_type().is_fifo() => {
                let mode = fs::symlink_metadata(&path).ok()?.permissions().mode();
                Descriptor::Pipe {
                    inode: file.ino(),
                    reads: mode & 0o400 != 0,
                }
            }
            _ => Descriptor::Fixed(Reach::Storage),
        },
    })
}

/// Descriptors that an epoll descriptor watches.
fn watched(pid: Tid, fd: u64) -> Vec<u64> {
    let text = text(&format!("/proc/{pid}/fdinfo/{fd}"));
    let fds = text.lines().filter_map(|line| {
        line.strip_prefix("tfd:")?
            .split_ascii_whitespace()
            .next()?
            .parse()
            .ok()
    });
    fds.take(POLLED_MAX).collect()
}

/// Memory of another process, if it may be read.
pub(crate) fn memory(pid: Tid, at: u64, buffer: &mut [u8]) -> usize {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: at as *mut libc::c_void,
        iov_len: buffer.len(),
    };
    // SAFETY: `local` is a buffer that we own; the kernel checks the other side.
    let len = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
    usize::try_from(len).unwrap_or(0)
}

fn polled(pid: Tid, at: u64, count: u64) -> Vec<u64> {
    const POLLFD_BYTES: usize = 8;
    let mut bytes = [0; POLLFD_BYTES * POLLED_MAX];
    let wanted = (count as usize).min(POLLED_MAX) * POLLFD_BYTES;
    let len = memory(pid, at, &mut bytes[..wanted]);
    let entries = bytes[..len].chunks_exact(POLLFD_BYTES);
    let fds = entries.map(|entry| i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]));
    fds.filter_map(|fd| u64::try_from(fd).ok()).collect()
}

fn selected(pid: Tid, count: u64, sets: [u64; 3]) -> Vec<u64> {
    const BYTES_MAX: usize = 128;
    let wanted = (count as usize)
        .div_ceil(64)
        .saturating_mul(8)
        .min(BYTES_MAX);
    let mut fds = Vec::new();
    for at in sets.into_iter().filter(|&at| at != 0) {
        let mut bytes = [0; BYTES_MAX];
        let len = memory(pid, at, &mut bytes[..wanted]);
        let bits = (0..len as u64 * 8).filter(|&bit| bytes[bit as usize / 8] >> (bit % 8) & 1 == 1);
        fds.extend(bits.filter(|&bit| bit < count).take(POLLED_MAX));
    }
    fds
}

/// What a system call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Descriptor(u64),
    Poll { at: u64, count: u64 },
    Select { count: u64, sets: [u64; 3] },
}

fn target(number: u32, args: &[u64; 6]) -> Option<Target> {
    use libc as l;
    let is = |list: &[libc::c_long]| list.contains(&libc::c_long::from(number));
    #[cfg(target_arch = "x86_64")]
    if is(&[l::SYS_poll]) {
        return Some(Target::Poll {
            at: args[0],
            count: args[1],
        });
    } else if is(&[l::SYS_select]) {
        return Some(Target::Select {
            count: args[0],
            sets: [args[1], args[2], args[3]],
        });
    } else if is(&[l::SYS_epoll_wait, l::SYS_accept]) {
        return Some(Target::Descriptor(args[0]));
    }
    if is(&[l::SYS_ppoll]) {
        Some(Target::Poll {
            at: args[0],
            count: args[1],
        })
    } else if is(&[l::SYS_pselect6]) {
        Some(Target::Select {
            count: args[0],
            sets: [args[1], args[2], args[3]],
        })
    } else if is(&[
        l::SYS_read,
        l::SYS_readv,
        l::SYS_write,
        l::SYS_writev,
        l::SYS_epoll_pwait,
        l::SYS_epoll_pwait2,
        l::SYS_recvfrom,
        l::SYS_recvmsg,
        l::SYS_recvmmsg,
        l::SYS_sendto,
        l::SYS_sendmsg,
        l::SYS_sendmmsg,
        l::SYS_accept4,
        l::SYS_connect,
        l::SYS_splice,
        l::SYS_tee,
        l::SYS_vmsplice,
        l::SYS_sendfile,
        l::SYS_ioctl,
    ]) {
        Some(Target::Descriptor(args[0]))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    fn own() -> [Tid; 1] {
        [std::process::id()]
    }

    fn reads(fd: &impl AsRawFd) -> Reach {
        let args = [fd.as_raw_fd() as u64, 0, 0, 0, 0, 0];
        Reaches::default().of(own()[0], libc::SYS_read as u32, &args, &own())
    }

    #[test]
    fn a_pipe_leads_to_whoever_holds_its_other_end() {
        let (read, write) = std::io::pipe().expect("a pipe");
        assert_eq!(reads(&read), Reach::Workload);
        drop(write);
        assert_eq!(reads(&read), Reach::Outside);
    }

    #[test]
    fn connections_within_the_workload_are_partners() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let near =
            std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let (far, _) = listener.accept().expect("accepts");
        assert_eq!(
            (reads(&near), reads(&far)),
            (Reach::Workload, Reach::Workload)
        );
        assert_eq!(reads(&listener), Reach::Outside);
        let (one, _other) = UnixStream::pair().expect("a pair");
        assert_eq!(reads(&one), Reach::Workload);
    }

    #[test]
    fn files_are_storage_and_devices_outside() {
        assert_eq!(
            reads(&fs::File::open("/proc/self/exe").expect("opens")),
            Reach::Storage
        );
        assert_eq!(
            reads(&fs::File::open("/dev/null").expect("opens")),
            Reach::Outside
        );
    }

    #[test]
    fn poll_is_followed_into_the_memory_of_the_caller() {
        let (read, _write) = std::io::pipe().expect("a pipe");
        let fds = [libc::pollfd {
            fd: read.as_raw_fd(),
            events: 1,
            revents: 0,
        }];
        let args = [fds.as_ptr() as u64, 1, 0, 0, 0, 0];
        let reach = Reaches::default().of(own()[0], libc::SYS_ppoll as u32, &args, &own());
        assert_eq!(reach, Reach::Workload);
        // Memory that is not there.
        let args = [8, 1, 0, 0, 0, 0];
        let reach = Reaches::default().of(own()[0], libc::SYS_ppoll as u32, &args, &own());
        assert_eq!(reach, Reach::Unknown);
    }

    #[test]
    fn select_reads_sets_of_bits() {
        let (read, _write) = std::io::pipe().expect("a pipe");
        let fd = read.as_raw_fd() as u64;
        let mut set = [0_u64; 16];
        set[fd as usize / 64] |= 1 << (fd % 64);
        assert_eq!(
            selected(own()[0], fd + 1, [set.as_ptr() as u64, 0, 0]),
            [fd]
        );
        assert_eq!(selected(own()[0], fd, [set.as_ptr() as u64, 0, 0]), []);
    }
}
