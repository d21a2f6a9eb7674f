//! What comes over the socket: one message with one userfaultfd is taken, anything else refused with its reason, in time.

mod common;

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use amdahl_pager::handoff::{HandedOverMemory, Owner, Peer, ReceiveError, receive};
use amdahl_pager::{Backing, Features, Mapping, PAGE, Pager};
use common::{Generated, MINUTE, check_all, is_possible, mapping};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

const PAGES: usize = 64;
const SOURCE: u64 = (PAGES * PAGE) as u64;

/// A userfaultfd; set up, with these features, if there are any.
fn uffd(features: Option<u64>) -> Option<OwnedFd> {
    // SAFETY: a new descriptor of ours; the structure is the one of the call.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
        if fd < 0 {
            println!("SKIPPED: userfaultfd(2) is not allowed to this user");
            return None;
        }
        let fd = OwnedFd::from_raw_fd(fd as i32);
        if let Some(features) = features {
            let mut api = linux_raw_sys::general::uffdio_api {
                api: linux_raw_sys::general::UFFD_API.into(),
                features,
                ioctls: 0,
            };
            assert_eq!(libc::ioctl(fd.as_raw_fd(), 0xc018_aa3f, &mut api), 0);
        }
        Some(fd)
    }
}

/// Registers memory and says so as a VMM does.
fn register(fd: &OwnedFd, memory: &Mapping) -> String {
    let start = memory.as_ptr().expose_provenance();
    let mut register = linux_raw_sys::general::uffdio_register {
        range: linux_raw_sys::general::uffdio_range {
            start: start as u64,
            len: memory.len() as u64,
        },
        mode: 1,
        ioctls: 0,
    };
    // SAFETY: the structure is the one of the call; the memory is ours.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), 0xc020_aa00, &mut register) };
    assert_eq!(done, 0);
    format!(
        r#"[{{"base_host_virt_addr":{start},"size":{},"offset":0,"page_size":4096,"page_size_kib":4096}}]"#,
        memory.len()
    )
}

fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let sent = sendmsg(
        stream,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::empty(),
    );
    assert_eq!(sent.unwrap(), bytes.len());
}

/// Has this process have no more descriptors than it has, until that is dropped.
struct NoMore(libc::rlimit);

impl NoMore {
    fn new() -> NoMore {
        let mut was = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // The lowest that is free.
        let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
        // SAFETY: plain calls, of a process that has this one test.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut was), 0);
            let less = libc::rlimit {
                rlim_cur: next as u64,
                ..was
            };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const less), 0);
        }
        NoMore(was)
    }
}

impl Drop for NoMore {
    fn drop(&mut self) {
        // SAFETY: as above.
        let done = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const self.0) };
        assert_eq!(done, 0);
    }
}

/// It was told that more than one descriptor had come.
#[test]
fn who_may_have_no_more_descriptors_says_so_and_takes_the_next_one() {
    const TEST: &str = "who_may_have_no_more_descriptors_says_so_and_takes_the_next_one";
    if !common::is_child(TEST, "limit", common::ends_well) {
        return;
    }
    let Some(fd) = uffd(Some(0)) else { return };
    let (ours, theirs) = UnixStream::pair().unwrap();
    send(&theirs, MESSAGE.as_bytes(), &[fd.as_fd()]);
    let none = NoMore::new();
    let received = receive(&ours, SOURCE, MINUTE);
    drop(none);
    assert!(
        matches!(received, Err(ReceiveError::NoRoom)),
        "{received:?}"
    );
    assert!(received.unwrap_err().to_string().contains("RLIMIT_NOFILE"));
    let (ours, theirs) = UnixStream::pair().unwrap();
    send(&theirs, MESSAGE.as_bytes(), &[fd.as_fd()]);
    receive(&ours, SOURCE, MINUTE).unwrap();
}

const MESSAGE: &str = r#"[{"base_host_virt_addr":65536,"size":4096,"offset":0,"page_size":4096}]"#;

fn received(act: impl FnOnce(UnixStream) + Send) -> Result<HandedOverMemory, ReceiveError> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| act(theirs));
        let received = receive(&ours, SOURCE, MINUTE);
        // Who still writes finds out.
        drop(ours);
        received
    })
}

#[test]
fn one_message_with_one_userfaultfd_is_taken_however_it_is_cut() {
    let Some(fd) = uffd(Some(Features::EVENT_REMOVE.0)) else {
        return;
    };
    let bytes = MESSAGE.as_bytes();
    for cuts in [
        vec![],
        vec![1],
        vec![10, 11, 40],
        (1..bytes.len()).collect(),
    ] {
        // The descriptor comes with the first piece or with a later one.
        for with in [0, cuts.len()] {
            let taken = received(|stream| {
                let mut from = 0;
                for (nth, to) in cuts.iter().copied().chain([bytes.len()]).enumerate() {
                    let descriptors = [fd.as_fd()];
                    let descriptors = if nth == with { &descriptors[..] } else { &[] };
                    send(&stream, &bytes[from..to], descriptors);
                    from = to;
                }
            });
            let taken = taken.unwrap();
            assert_eq!(taken.regions.len(), 1);
            assert_eq!(taken.features, Some(Features::EVENT_REMOVE));
            let flags = rustix::io::fcntl_getfd(&taken.descriptor).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    }
}

/// Descriptors of this process that lead to a userfaultfd.
fn open_uffds() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    links
        .filter_map(|link| std::fs::read_link(link.ok()?.path()).ok())
        .filter(|to| to.as_os_str() == "anon_inode:[userfaultfd]")
        .count()
}

#[test]
fn anything_else_is_refused_with_its_reason_and_closed() {
    // A process of its own: descriptors are counted.
    const NAME: &str = "HANDOFF_TEST_ALONE";
    if std::env::var_os(NAME).is_none() {
        let status = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "anything_else_is_refused_with_its_reason_and_closed",
                "--nocapture",
            ])
            .env(NAME, "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    let Some(fd) = uffd(Some(0)) else { return };
    let (raw, signals) = (uffd(None).unwrap(), uffd(Some(Features::SIGBUS.0)).unwrap());
    let open = open_uffds();
    let file = tempfile::tempfile().unwrap();
    let message = MESSAGE.as_bytes();
    let refused = |bytes: &[u8], descriptors: &[BorrowedFd<'_>]| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&theirs, bytes, descriptors);
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        receive(&ours, SOURCE, MINUTE).unwrap_err().to_string()
    };
    for (bytes, descriptors, why) in [
        (message, vec![], "no descriptor came"),
        (
            message,
            vec![fd.as_fd(), fd.as_fd()],
            "more than one descriptor",
        ),
        (message, vec![fd.as_fd(); 5], "more than one descriptor"),
        (message, vec![file.as_fd()], "is a file and no userfaultfd"),
        (message, vec![raw.as_fd()], "has not called UFFDIO_API"),
        (message, vec![signals.as_fd()], "feature SIGBUS"),
        (
            &message[..30],
            vec![fd.as_fd()],
            "closed the connection after 30 bytes",
        ),
        (b"[]", vec![fd.as_fd()], "the list of regions is empty"),
        (b"[1]", vec![fd.as_fd()], "no list of regions"),
        (
            b"\x01\0\0\0",
            vec![fd.as_fd()],
            "not Firecracker's hand-off",
        ),
        (b"[] []", vec![fd.as_fd()], "something follows"),
        (
            br#"[{"base_host_virt_addr":65536,"size":1048576,"offset":0}]"#,
            vec![fd.as_fd()],
            "ends at byte 1048576 of the image, which has 262144",
        ),
    ] {
        let refused = refused(bytes, &descriptors);
        assert!(refused.contains(why), "{why}: {refused}");
        assert_eq!(open_uffds(), open, "{why}");
    }
    // A descriptor with each of two pieces.
    let refused = received(|stream| {
        send(&stream, &message[..5], &[fd.as_fd()]);
        send(&stream, &message[5..], &[fd.as_fd()]);
    });
    assert!(
        matches!(refused, Err(ReceiveError::Descriptors)),
        "{refused:?}"
    );
    // Without an end.
    let refused = received(|mut stream| {
        let piece = vec![b'['; 1 << 16];
        while stream.write_all(&piece).is_ok() {}
    });
    assert!(refused.unwrap_err().to_string().contains("longer than"));
    assert_eq!(open_uffds(), open);
}

#[test]
fn who_says_nothing_is_waited_for_as_long_as_is_said() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"[").unwrap();
    let within = Duration::from_millis(30);
    let silent = receive(&ours, SOURCE, within);
    assert!(
        matches!(silent, Err(ReceiveError::Silent { bytes: 1, .. })),
        "{silent:?}"
    );
    let gone = received(drop);
    assert!(
        matches!(gone, Err(ReceiveError::Closed { bytes: 0 })),
        "{gone:?}"
    );
}

#[test]
fn the_peer_is_known() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let peer = Peer::of(&ours).unwrap();
    assert_eq!(peer.pid, Some(std::process::id()));
    assert_eq!(peer.uid, rustix::process::getuid().as_raw());
    assert!(peer.pidfd().is_some());
}

#[test]
fn memory_that_is_whole_is_let_go_and_is_ordinary_memory_then() {
    if !is_possible() {
        return;
    }
    let Some(fd) = uffd(Some(Features::EVENT_REMOVE.0)) else {
        return;
    };
    let memory = mapping(PAGES * PAGE, Backing::Small).unwrap();
    let message = register(&fd, &memory);
    let taken = received(|stream| send(&stream, message.as_bytes(), &[fd.as_fd()])).unwrap();
    let owner = Owner::new(&taken.descriptor, &taken.regions).unwrap();
    let pager = Pager::builder()
        .handed_over(taken.descriptor, &taken.regions)
        .source(Arc::new(Generated::default()))
        .start()
        .unwrap();
    assert!(!owner.is_gone());
    assert_eq!(pager.fill(), 0);
    owner.release().unwrap();
    drop(pager);
    check_all(&memory);
    // With the descriptor still open, and nobody who reads it, this would wait for ever.
    let at = memory.as_ptr().cast();
    // SAFETY: the memory is ours.
    assert_eq!(unsafe { libc::madvise(at, PAGE, libc::MADV_DONTNEED) }, 0);
    let mut page = [1; PAGE];
    memory.read(0, &mut page);
    assert_eq!(page, [0; PAGE]);
}

/// A process with memory of which it touches a page; its descriptor comes by the socket on its standard input.
#[test]
fn whoever_is_refused_is_stopped_rather_than_left_waiting() {
    const NAME: &str = "HANDOFF_TEST_VMM";
    if std::env::var_os(NAME).is_some() {
        let memory = mapping(PAGES * PAGE, Backing::Small).unwrap();
        let fd = uffd(Some(Features::EVENT_REMOVE.0)).unwrap();
        let message = register(&fd, &memory);
        let input = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        send(&UnixStream::from(input), message.as_bytes(), &[fd.as_fd()]);
        memory.read(5 * PAGE, &mut [0; PAGE]);
        std::process::exit(0);
    }
    if uffd(Some(Features::POISON.0)).is_none() {
        return;
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    let test = "whoever_is_refused_is_stopped_rather_than_left_waiting";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(NAME, "1")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let taken = receive(&ours, SOURCE, MINUTE).unwrap();
    let owner = Owner::new(&taken.descriptor, &taken.regions).unwrap();
    assert!(!owner.is_gone());
    assert!(owner.poison());
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status:?}");
    assert!(owner.is_gone());
}
