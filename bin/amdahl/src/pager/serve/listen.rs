//! The socket that VMMs connect to.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use amdahl_pager::succession::message::SocketFile;

use crate::cli::serve::Listen;
use crate::failure::Failure;

/// A socket that is listened at. One of our own is removed when this is dropped.
pub struct Listener {
    socket: UnixListener,
    ours: Option<Ours>,
    /// The file is another process's to remove.
    is_lent: AtomicBool,
    place: String,
}

/// A file of ours: by its numbers, since the name may be another's by now.
struct Ours {
    path: PathBuf,
    file: (u64, u64),
}

/// VMMs that connect at once.
const BACKLOG: i32 = 128;
/// How long another program may hold the folder.
const FOLDER_WAIT: Duration = Duration::from_secs(5);

impl Listener {
    /// Listens.
    pub fn open(listen: &Listen, mode: u32) -> Result<Listener, Failure> {
        let listener = match listen {
            Listen::Systemd => systemd()?,
            Listen::Tcp(_) => unreachable!("other hosts connect elsewhere"),
            Listen::Unix(path) => {
                let failed = |error: io::Error| {
                    Failure::result(format!("listening at {}: {error}", path.display()))
                };
                let (socket, file) = bind(path, mode, SocketType::STREAM).map_err(failed)?;
                let place = format!("unix:{}", path.display());
                let path = path.clone();
                let ours = Some(Ours { path, file });
                Listener {
                    socket,
                    ours,
                    is_lent: AtomicBool::new(false),
                    place,
                }
            }
        };
        let set = listener.socket.set_nonblocking(true);
        set.map_err(|error| Failure::result(format!("listening: {error}")))?;
        Ok(listener)
    }

    /// Listens for other daemons of this user, which say whole messages.
    pub fn control(path: &Path) -> Result<Listener, Failure> {
        let failed = |error: io::Error| {
            Failure::result(format!("--control unix:{}: {error}", path.display()))
        };
        let kind = SocketType::SEQPACKET;
        let (socket, file) = bind(path, 0o600, kind).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Listener {
            socket,
            ours: Some(Ours {
                // From now on it may be another process's, elsewhere.
                path: std::path::absolute(path).map_err(failed)?,
                file,
            }),
            is_lent: AtomicBool::new(false),
            place: format!("unix:{}", path.display()),
        })
    }

    /// One that another process has opened, and which is that process's until it is [adopted](Listener::adopt).
    pub fn inherited(
        socket: OwnedFd,
        place: String,
        file: Option<SocketFile>,
    ) -> Result<Listener, Failure> {
        let is_right = sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX)
            && sockopt::socket_acceptconn(&socket) == Ok(true);
        if !is_right {
            return Err(Failure::result(
                "a socket that came is none that is listened at".to_owned(),
            ));
        }
        let ours = file.map(|file| Ours {
            path: PathBuf::from(file.path),
            file: (file.dev, file.ino),
        });
        Ok(Listener {
            socket: UnixListener::from(socket),
            ours,
            is_lent: AtomicBool::new(true),
            place,
        })
    }

    /// Where, in words.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Its file, if that is to be removed at the end. A name that is no text cannot be told.
    pub fn file(&self) -> Option<SocketFile> {
        let Ours { path, file } = self.ours.as_ref()?;
        Some(SocketFile {
            path: std::path::absolute(path).ok()?.to_str()?.to_owned(),
            dev: file.0,
            ino: file.1,
        })
    }

    /// Ours from now on: its file is removed at the end.
    pub fn adopt(&self) {
        self.is_lent.store(false, Ordering::Relaxed);
    }

    /// Whoever connects from now on learns that it is this process that listens.
    pub fn relisten(&self) {
        let _ = rustix::net::listen(&self.socket, BACKLOG);
    }

    /// Another process's from now on.
    pub fn lend(&self) {
        self.is_lent.store(true, Ordering::Relaxed);
    }

    /// The same socket once more, whose file is not removed with it.
    pub fn duplicate(&self) -> io::Result<Listener> {
        let ours = self.ours.as_ref().map(|Ours { path, file }| Ours {
            path: path.clone(),
            file: *file,
        });
        Ok(Listener {
            socket: self.socket.try_clone()?,
            ours,
            is_lent: AtomicBool::new(true),
            place: self.place.clone(),
        })
    }

    /// To be polled.
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(Ours { path, file }) = &self.ours
            && !self.is_lent.load(Ordering::Relaxed)
            && number(path).is_ok_and(|there| there == *file)
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn number(path: &Path) -> io::Result<(u64, u64)> {
    let there = fs::symlink_metadata(path)?;
    Ok((there.dev(), there.ino()))
}

/// A new socket of this name, in place of one that nobody listens at any more.
///
/// It is made under another name and renamed, so that at any time there is a socket that is listened at or the old one. Two programs that
/// do this at once are kept apart by a lock on the folder: no file is left for it.
fn bind(path: &Path, mode: u32, kind: SocketType) -> io::Result<(UnixListener, (u64, u64))> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let lock = File::open(folder)?;
    let begun = Instant::now();
    while let Err(errno) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if !matches!(errno, Errno::WOULDBLOCK | Errno::INTR) {
            return Err(errno.into());
        }
        if begun.elapsed() > FOLDER_WAIT {
            return Err(io::Error::other(
                "another program holds a lock on its folder",
            ));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    if let Ok(there) = fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(io::Error::other(
                "there is a file of that name, which is no socket",
            ));
        }
        // Not for long: a program may listen and take nobody.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let probe = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        match rustix::net::connect(&probe, &SocketAddrUnix::new(path)?) {
            // Whoever listened there is gone.
            Err(Errno::CONNREFUSED | Errno::NOENT) => {}
            // The last: somebody listens who speaks otherwise.
            Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => {
                return Err(io::Error::other(
                    "another program listens there: end it first, or choose another name",
                ));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    // Whoever connects must be able to name it.
    SocketAddrUnix::new(path)?;
    // Beside it, so that it can be renamed.
    // As short as it may be: names of sockets have few bytes.
    let new = folder.join(format!(".{}", std::process::id()));
    let _ = fs::remove_file(&new);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    // The file gets the mode that the socket has: there is no moment with another one.
    fchmod(&socket, Mode::from_raw_mode(mode & 0o600))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&new)?)?;
    let finish = || -> io::Result<(u64, u64)> {
        fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
        rustix::net::listen(&socket, BACKLOG)?;
        fs::rename(&new, path)?;
        number(path)
    };
    match finish() {
        Ok(file) => Ok((UnixListener::from(socket), file)),
        Err(error) => {
            let _ = fs::remove_file(&new);
            Err(error)
        }
    }
}

/// The socket that systemd has opened for us (`sd_listen_fds(3)`): the first descriptor after standard error.
fn systemd() -> Result<Listener, Failure> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let is_ours = variable("LISTEN_PID") == std::process::id().to_string();
    if !is_ours || variable("LISTEN_FDS") != "1" {
        return Err(Failure::usage(
            "--listen systemd: systemd has not handed over one socket (LISTEN_PID, LISTEN_FDS): start this as the service of a socket unit with one ListenStream=".to_owned(),
        ));
    }
    // SAFETY: it is said to be ours, and nothing else here knows of it.
    let socket = unsafe { OwnedFd::from_raw_fd(3) };
    let is_right = sockopt::socket_type(&socket) == Ok(SocketType::STREAM)
        && sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_acceptconn(&socket) == Ok(true);
    if !is_right {
        return Err(Failure::usage(
            "--listen systemd: what was handed over is no Unix stream socket that is listened at (ListenStream=/PATH)".to_owned(),
        ));
    }
    let flags = rustix::io::FdFlags::CLOEXEC;
    rustix::io::fcntl_setfd(socket.as_fd(), flags)
        .map_err(|error| Failure::result(format!("fcntl: {error}")))?;
    Ok(Listener {
        socket: UnixListener::from(socket),
        ours: None,
        is_lent: AtomicBool::new(false),
        place: "systemd's socket".to_owned(),
    })
}

/// Tells systemd of a change of state (`sd_notify(3)`), if it wants to know.
pub fn notify(state: &str) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match name.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&name),
    };
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn path(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("pager.sock")
    }

    fn open(path: &Path, mode: u32) -> Result<Listener, Failure> {
        Listener::open(&Listen::Unix(path.to_owned()), mode)
    }

    #[test]
    fn a_socket_has_its_mode_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o660, 0o666] {
            let listener = open(&path(&folder), mode).unwrap();
            let there = fs::metadata(path(&folder)).unwrap();
            assert_eq!(there.permissions().mode() & 0o777, mode);
            assert!(UnixStream::connect(path(&folder)).is_ok());
            drop(listener);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_socket_without_a_listener_is_replaced_and_one_with_is_not() {
        let folder = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(path(&folder)).unwrap());
        let first = open(&path(&folder), 0o600).unwrap();
        let Err(refused) = open(&path(&folder), 0o600) else {
            panic!("two listen at one name");
        };
        assert!(
            refused.message.contains("another program listens"),
            "{refused:?}"
        );
        drop(first);
        fs::write(path(&folder), "somebody's").unwrap();
        assert!(open(&path(&folder), 0o600).is_err());
        assert_eq!(fs::read(path(&folder)).unwrap(), b"somebody's");
    }

    #[test]
    fn a_socket_that_was_inherited_is_the_others_until_it_is_adopted() {
        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join("c");
        let first = Listener::control(&control).unwrap();
        let inherit = |from: &Listener| {
            let socket = from.socket().try_clone().unwrap().into();
            Listener::inherited(socket, from.place().to_owned(), from.file()).unwrap()
        };
        drop(inherit(&first));
        assert!(control.exists());
        let second = inherit(&first);
        let again = inherit(&first);
        first.lend();
        drop(first);
        assert!(control.exists());
        // One that fails before it serves removes nothing.
        second.relisten();
        drop(second);
        assert!(control.exists());
        again.adopt();
        drop(again);
        assert!(!control.exists());
        let file = File::open("/dev/null").unwrap();
        assert!(Listener::inherited(file.into(), String::new(), None).is_err());
    }

    #[test]
    fn what_another_has_put_there_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let listener = open(&path(&folder), 0o600).unwrap();
        fs::remove_file(path(&folder)).unwrap();
        let another = UnixListener::bind(path(&folder)).unwrap();
        drop(listener);
        assert!(UnixStream::connect(path(&folder)).is_ok());
        drop(another);
    }
}
