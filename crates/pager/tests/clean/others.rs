//! Clean pages in other processes, some of which would like to change them.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use amdahl_pager::handoff::{
    OfferError, Question, ReceiveError, ask, hand_over, offer, offer_in_spite, question, receive,
    take_offer,
};
use amdahl_pager::{CleanPages, Engine, Mapping, PAGE, Pager, Source};

use super::common::{self, Generated, MIB, MINUTE, check, check_all, ends, expected, peek};
use super::{can_offer, can_share, clean, in_file, vm};

#[test]
fn offers_are_taken_whole_or_not_at_all() {
    let clean = clean(Generated::default(), MIB);
    let taken = |act: &dyn Fn(&UnixStream)| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        act(&theirs);
        drop(theirs);
        take_offer(&ours, MINUTE)
    };
    let good = taken(&|stream| offer_in_spite(stream, &clean).unwrap()).unwrap();
    assert_eq!(good.bytes(), MIB as u64);
    assert!(matches!(taken(&|_| {}), Err(OfferError::Closed)));
    let write =
        |bytes: &'static [u8]| move |mut stream: &UnixStream| stream.write_all(bytes).unwrap();
    assert!(matches!(taken(&write(b"AMDL")), Err(OfferError::Closed)));
    assert!(matches!(taken(&write(b"[{")), Err(OfferError::Foreign)));
    assert!(matches!(
        taken(&write(b"AMDLCP\0\x02")),
        Err(OfferError::Foreign)
    ));
    assert!(matches!(
        taken(&write(b"AMDLCP\0\x01")),
        Err(OfferError::Descriptors)
    ));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let silent = take_offer(&ours, Duration::from_millis(1));
    assert!(matches!(silent, Err(OfferError::Silent(_))));
    // What follows is left.
    offer_in_spite(&theirs, &clean).unwrap();
    (&theirs).write_all(b"next").unwrap();
    take_offer(&ours, MINUTE).unwrap();
    let mut next = [0; 4];
    (&ours).read_exact(&mut next).unwrap();
    assert_eq!(&next, b"next");
}

#[test]
fn who_asks_for_an_offer_is_told_from_who_hands_over() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let silent = question(&ours, Duration::from_millis(1));
    assert!(matches!(silent, Err(ReceiveError::Silent { bytes: 0, .. })));
    ask(&theirs, Question::WorkingSet).unwrap();
    ask(&theirs, Question::CleanPages).unwrap();
    (&theirs).write_all(b"[{}]").unwrap();
    let asked = || question(&ours, MINUTE).unwrap();
    assert_eq!(asked(), Some(Question::WorkingSet));
    assert_eq!(asked(), Some(Question::CleanPages));
    // Questions are taken, and nothing of what is none.
    assert_eq!(asked(), None);
    let mut next = [0; 4];
    (&ours).read_exact(&mut next).unwrap();
    assert_eq!(&next, b"[{}]");
    for bytes in [&b"AMDLCQ\0\x02"[..], b"AMDLCP\0\x01", b"AMDLWS\0\x01"] {
        (&theirs).write_all(bytes).unwrap();
        assert!(matches!(
            question(&ours, MINUTE),
            Err(ReceiveError::Malformed(_))
        ));
    }
    (&theirs).write_all(b"AMD").unwrap();
    let silent = question(&ours, Duration::from_millis(1));
    assert!(matches!(silent, Err(ReceiveError::Silent { bytes: 3, .. })));
    drop(theirs);
    assert!(matches!(
        question(&ours, MINUTE),
        Err(ReceiveError::Closed { bytes: 0 })
    ));
}

/// Whoever has the descriptor may try what it likes.
#[test]
fn nobody_changes_the_copy_by_its_descriptor() {
    if !can_offer() {
        return;
    }
    let clean = clean(Generated::default(), MIB);
    let before = clean.file();
    let touched = Mapping::of_clean(before, 0, MIB).unwrap();
    let is_readable = |memory: &Mapping| peek(memory, 0).is_some();
    assert!(!is_readable(&touched), "before it is registered");
    assert!(!is_readable(&clean.map(0, MIB).unwrap()));
    // By force, and without a pager: allocates zeros in the file, and sees some.
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the memory is this test's.
    let done = unsafe { libc::mprotect(touched.as_ptr().cast(), MIB, both) };
    assert_eq!(done, 0);
    for page in 0..256 {
        let mut found = [1; PAGE];
        touched.read(page * PAGE, &mut found);
        assert!(found == [0; PAGE]);
        touched.write(page * PAGE, &[1]);
    }
    let (memory, pager) = vm(&clean, Engine::Sharded);
    check_all(&memory);
    drop(pager);
    attack(clean.file());
    check_all(&memory);
    let (late, _pager) = vm(&clean, Engine::Sharded);
    check_all(&late);
    for page in 0..256 {
        assert!(in_file(&clean, page) == expected(page));
    }
}

/// Tries to change a file of clean pages by its descriptor.
fn attack(file: BorrowedFd<'_>) {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path);
    let again = OwnedFd::from(again.expect("who may write to a file may open it so"));
    for file in [file, again.as_fd()] {
        let raw = file.as_raw_fd();
        attack_by_pipe(raw);
        attack_by_force(file);
        // SAFETY: what should fail; a mapping that is made all the same stays, and the test ends.
        unsafe {
            assert!(libc::pwrite(raw, [1u8].as_ptr().cast(), 1, 0) < 0);
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let shared =
                |how| libc::mmap(std::ptr::null_mut(), PAGE, how, libc::MAP_SHARED, raw, 0);
            assert_eq!(shared(both), libc::MAP_FAILED);
            let read = shared(libc::PROT_READ);
            assert_ne!(read, libc::MAP_FAILED);
            assert!(libc::mprotect(read, PAGE, both) < 0);
            assert!(libc::madvise(read, PAGE, libc::MADV_REMOVE) < 0);
            libc::munmap(read, PAGE);
            let private = libc::mmap(std::ptr::null_mut(), PAGE, both, libc::MAP_PRIVATE, raw, 0);
            assert_ne!(private, libc::MAP_FAILED);
            private.cast::<u8>().write_volatile(99);
            assert!(libc::madvise(private, PAGE, libc::MADV_REMOVE) < 0);
            libc::munmap(private, PAGE);
            // May make huge pages of what is there; whether the kernel does is its business.
            let len = 2 * MIB;
            let private = libc::mmap(std::ptr::null_mut(), len, both, libc::MAP_PRIVATE, raw, 0);
            assert_ne!(private, libc::MAP_FAILED);
            let _ = libc::madvise(private, len, libc::MADV_COLLAPSE);
            libc::munmap(private, len);
            let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            assert!(libc::fallocate(raw, punch, 0, PAGE as i64) < 0);
            let zero = libc::FALLOC_FL_ZERO_RANGE;
            assert!(libc::fallocate(raw, zero, 0, PAGE as i64) < 0);
            // May allocate what is missing, and nothing else.
            let _ = libc::fallocate(raw, 0, 0, MIB as i64);
            assert!(libc::ftruncate(raw, 0) < 0);
            assert!(libc::ftruncate(raw, 64 * MIB as i64) < 0);
            assert!(libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_WRITE) < 0);
        }
    }
}

/// Into the file by a pipe; and into a page of it that a pipe has.
fn attack_by_pipe(raw: i32) {
    let (mut ends, mut byte) = ([0; 2], [0u8; 1]);
    let (from, null) = (&mut 0i64, std::ptr::null_mut());
    // SAFETY: the pipe is made and closed here; the buffers are as long as is said.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        assert_eq!(libc::write(ends[1], [7u8].as_ptr().cast(), 1), 1);
        assert!(libc::splice(ends[0], null, raw, from, 1, 0) < 0);
        assert_eq!(libc::read(ends[0], byte.as_mut_ptr().cast(), 1), 1);
        assert_eq!(libc::splice(raw, from, ends[1], null, 1, 0), 1);
        assert_eq!(libc::write(ends[1], [7u8].as_ptr().cast(), 1), 1);
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
}

/// Maps a page by a userfaultfd of its own, and writes to it by force where it may only read.
fn attack_by_force(file: BorrowedFd<'_>) {
    const CONTINUE: libc::c_ulong = 0xc020_aa07;
    const MINOR: u64 = 1 << 2;
    let raw = file.as_raw_fd();
    let (read, null) = (libc::PROT_READ, std::ptr::null_mut());
    // SAFETY: a mapping of this function's.
    let at = unsafe { libc::mmap(null, PAGE, read, libc::MAP_PRIVATE, raw, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let at = at.addr();
    if let Some([uffd, _other]) = common::registered(at, PAGE, 1 | MINOR) {
        let mut mapped = [at as u64, PAGE as u64, 0, 0];
        // SAFETY: the call takes as many words.
        let done = unsafe { libc::ioctl(uffd.as_raw_fd(), CONTINUE, &mut mapped) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        let memory = std::fs::OpenOptions::new()
            .write(true)
            .open("/proc/self/mem");
        // It gets a copy, or nothing.
        let _ = memory.unwrap().write_at(&[7; 64], at as u64);
    }
    // SAFETY: nobody has it any more.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(at), PAGE) };
}

/// Where the file is mapped for who fills it.
pub(super) fn mapped_to_write(clean: &CleanPages) -> usize {
    use std::os::unix::fs::MetadataExt;

    let file = std::fs::File::from(clean.file().try_clone_to_owned().unwrap());
    let inode = file.metadata().unwrap().ino().to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut starts = maps.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_it = words[1] == "rw-s" && words[4] == inode;
        is_it.then(|| usize::from_str_radix(words[0].split('-').next()?, 16).ok())?
    });
    starts.next().expect("the copy is mapped")
}

#[test]
fn a_child_of_fork_has_neither_the_memory_nor_the_copy() {
    if !can_share() {
        return;
    }
    let clean = clean(Generated::default(), MIB);
    let (memory, _pager) = vm(&clean, Engine::Sharded);
    check(&memory, 3, 3);
    let at = memory.as_ptr();
    let copy = mapped_to_write(&clean);
    // SAFETY: the child makes system calls alone.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut is_there = 0u8;
            let mut is_gone = |at: *mut libc::c_void| libc::mincore(at, PAGE, &mut is_there) < 0;
            let memory = is_gone(at.cast());
            let copy = is_gone(std::ptr::without_provenance_mut(copy));
            libc::_exit(if memory && copy { 7 } else { 1 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7);
    check_all(&memory);
}

// VMs as processes of their own: each gets the file, maps it, and hands the mapping over.

const SOCKET: &str = "PAGER_TEST_CLEAN";
const LEN: usize = 4 * MIB;

/// What a VM does, and says with each step.
#[test]
fn a_vm() {
    let Ok(path) = std::env::var(SOCKET) else {
        return;
    };
    let mut stream = UnixStream::connect(path).unwrap();
    let mut number = [0];
    stream.read_exact(&mut number).unwrap();
    let offer = take_offer(&stream, MINUTE).unwrap();
    assert_eq!(offer.bytes(), LEN as u64);
    let memory = offer.map(0, LEN).unwrap();
    let _kept = hand_over(&stream, &[&memory]).unwrap();
    for nth in 0..LEN / PAGE {
        let page = common::mix(nth as u64 + u64::from(number[0])) as usize % (LEN / PAGE);
        check(&memory, page, page as u64);
    }
    check_all(&memory);
    attack(offer.file());
    for page in (0..LEN / PAGE).step_by(3) {
        memory.write(page * PAGE + 8, &[number[0]; 8]);
    }
    stream.write_all(&[1]).unwrap();
    // When all have written.
    stream.read_exact(&mut number).unwrap();
    for page in 0..LEN / PAGE {
        let (mut found, mut own) = ([0; PAGE], expected(page));
        memory.read(page * PAGE, &mut found);
        if page % 3 == 0 {
            own[8..16].copy_from_slice(&[number[0]; 8]);
        }
        assert!(found == own, "page {page}");
    }
}

#[test]
fn processes_share_the_copy_and_nothing_else() {
    if !can_offer() {
        return;
    }
    ends("serving processes", || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pager");
        let listener = UnixListener::bind(&path).unwrap();
        let source = Arc::new(Generated::counted(LEN / PAGE));
        let all: Arc<dyn Source> = Arc::<Generated>::clone(&source);
        let clean = Arc::new(CleanPages::new(all, LEN as u64).unwrap());
        let children: Vec<Child> = (0..4)
            .map(|_| {
                Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "others::a_vm", "--nocapture"])
                    .env(SOCKET, &path)
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let mut vms: Vec<_> = (1..=4u8)
            .map(|number| {
                let (stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(MINUTE)).unwrap();
                (&stream).write_all(&[number]).unwrap();
                offer(&stream, &clean).unwrap();
                let memory = receive(&stream, LEN as u64, MINUTE).unwrap();
                let pager = Pager::builder()
                    .handed_over(memory.descriptor, &memory.regions)
                    .clean(&clean)
                    .start()
                    .unwrap();
                (stream, pager, number)
            })
            .collect();
        for (stream, _, _) in &mut vms {
            stream.read_exact(&mut [0]).unwrap();
        }
        for (stream, pager, number) in &mut vms {
            stream.write_all(&[*number]).unwrap();
            // Counted when the page is there, which the VM may notice earlier.
            let begun = Instant::now();
            while pager.stats().shared_pages as usize != LEN / PAGE {
                assert!(begun.elapsed() < MINUTE, "{:?}", pager.stats());
                thread::yield_now();
            }
        }
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        for (page, count) in source.per_page.iter().enumerate() {
            assert_eq!(count.load(Ordering::Relaxed), 1, "page {page}");
            assert!(in_file(&clean, page) == expected(page));
        }
    });
}
