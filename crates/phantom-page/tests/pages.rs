//! Pages from the making to the end of their writers, as processes see them.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use amdahl_phantom_page::{
    BAR_BYTES, Cpus, ForeignError, ForeignPage, OpenError, PAGE_BYTES, PublishError, Publisher,
    ReadError, Reader, STALE_TICKS, Snapshot, Source, coarse_now_ns, remove_abandoned,
};

fn open(path: &Path) -> Result<Reader, OpenError> {
    Reader::open(&CString::new(path.as_os_str().as_bytes()).expect("no zero"))
}

fn snapshot(time_ns: u64) -> Snapshot {
    Snapshot {
        time_ns,
        ticks: 1,
        tick_us: 20_000,
        window_us: 100_000,
        runnable: Cpus::from_f64(1.5),
        allowed: 2,
        ..Snapshot::default()
    }
}

#[test]
fn a_page_is_published_read_and_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("phantom-pid-1");
    assert_eq!(open(&path).err(), Some(OpenError::NotFound));
    let mut publisher = Publisher::create(&path, Source::Bpf).unwrap();
    let reader = open(&path).unwrap();
    assert_eq!(reader.read(), Err(ReadError::Empty));
    let now = coarse_now_ns();
    publisher.publish(snapshot(now));
    assert_eq!(reader.read_fresh(now), Ok(snapshot(now)));
    let later = now + STALE_TICKS * 20_000_000 + 1;
    assert_eq!(reader.read_fresh(later), Err(ReadError::Stale));
    assert_eq!(
        (reader.writer(), reader.source()),
        (std::process::id(), Source::Bpf)
    );
    drop(publisher);
    assert!(!path.exists());
    assert_eq!(reader.read(), Ok(snapshot(now)), "what is mapped stays");
}

#[test]
fn there_is_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("phantom-system");
    let first = Publisher::create(&path, Source::Proc).unwrap();
    match Publisher::create(&path, Source::Proc) {
        Err(PublishError::Taken { writer, .. }) => assert_eq!(writer, std::process::id()),
        other => panic!("{other:?}"),
    }
    assert_eq!(remove_abandoned(folder.path()), 0);
    drop(first);
    Publisher::create(&path, Source::Proc).unwrap();
}

/// A writer that is killed leaves its file, unlocked.
#[test]
fn what_a_killed_writer_left_is_taken_over_by_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("phantom-pid-2");
    let publisher = Publisher::create(&path, Source::Proc).unwrap();
    let saved = fs::read(&path).unwrap();
    drop(publisher);
    fs::write(&path, saved).unwrap();
    let reader = open(&path).unwrap();
    let mut next = Publisher::create(&path, Source::Bpf).unwrap();
    next.publish(snapshot(7));
    assert_eq!(
        (reader.read(), reader.source()),
        (Ok(snapshot(7)), Source::Bpf)
    );
}

#[test]
fn what_killed_writers_left_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join("phantom-pid-3");
    let other = folder.path().join("notes");
    fs::write(&left, [0; PAGE_BYTES]).unwrap();
    fs::write(&other, "mine").unwrap();
    std::os::unix::fs::symlink(&other, folder.path().join("phantom-link")).unwrap();
    let _served = Publisher::create(&folder.path().join("phantom-pid-4"), Source::Proc).unwrap();
    assert_eq!(remove_abandoned(folder.path()), 1);
    assert!(!left.exists() && other.exists());
    assert!(folder.path().join("phantom-pid-4").exists());
}

#[test]
fn what_is_no_page_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    let refusal = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        open(&path).err()
    };
    assert_eq!(refusal(b"short"), Some(OpenError::NotAPage));
    assert_eq!(refusal(&[0; PAGE_BYTES]), Some(OpenError::NoMagic));
    let mut page = [0; PAGE_BYTES];
    page[..8].copy_from_slice(b"AMDAHLPH");
    page[8..12].copy_from_slice(&2u32.to_ne_bytes());
    assert_eq!(refusal(&page), Some(OpenError::Version(2)));
    assert_eq!(open(folder.path()).err(), Some(OpenError::NotAPage));
    page[8..12].copy_from_slice(&1u32.to_ne_bytes());
    assert_eq!(refusal(&page), None);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(
        open(&path).err(),
        Some(OpenError::Untrusted { mode: 0o666, .. })
    ));
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(open(&link).err(), Some(OpenError::System { .. })));
}

fn foreign(path: &Path) -> ForeignPage {
    ForeignPage::open(&CString::new(path.as_os_str().as_bytes()).expect("no zero")).unwrap()
}

#[test]
fn a_kept_file_outlives_its_writers_and_says_nothing_between_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest");
    let mut publisher = Publisher::keeping(&path, Source::Proc).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), BAR_BYTES as u64);
    let page = foreign(&path);
    assert_eq!(page.read(), Err(ForeignError::Read(ReadError::Empty)));
    publisher.publish(snapshot(5));
    let read = page.read().unwrap();
    assert_eq!(
        (read.snapshot, read.writer, read.source),
        (snapshot(5), std::process::id(), Source::Proc)
    );
    assert!(matches!(
        Publisher::keeping(&path, Source::Proc).err(),
        Some(PublishError::Taken { .. })
    ));
    drop(publisher);
    assert_eq!(page.read(), Err(ForeignError::Read(ReadError::Empty)));
    let mut next = Publisher::keeping(&path, Source::Bpf).unwrap();
    next.publish(snapshot(6));
    // The same file: a guest has it mapped.
    assert_eq!(page.read().unwrap().snapshot, snapshot(6));
    // One that was killed leaves its last tick, which is not the next one's.
    let left = fs::read(&path).unwrap();
    drop(next);
    fs::write(&path, left).unwrap();
    assert_eq!(page.read().unwrap().snapshot, snapshot(6));
    let _third = Publisher::keeping(&path, Source::Bpf).unwrap();
    assert_eq!(page.read(), Err(ForeignError::Read(ReadError::Empty)));
}

#[test]
fn what_is_somebody_else_s_or_something_else_is_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest");
    let refused = |path: &Path| match Publisher::keeping(path, Source::Proc) {
        Err(PublishError::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    fs::write(&path, "a thesis").unwrap();
    assert!(refused(&path).contains("size"));
    fs::write(&path, [b'x'; PAGE_BYTES]).unwrap();
    assert!(refused(&path).contains("something else"));
    assert_eq!(fs::read(&path).unwrap(), [b'x'; PAGE_BYTES]);
    fs::write(&path, [0; 3 * PAGE_BYTES]).unwrap();
    assert!(refused(&path).contains("power of two"));
    // As a VMM makes it that begins first.
    fs::write(&path, [0; 2 * PAGE_BYTES]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
    assert!(refused(&path).contains("others"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    drop(Publisher::keeping(&path, Source::Proc).unwrap());
    let about = fs::metadata(&path).unwrap();
    assert_eq!(
        (about.len(), about.permissions().mode() & 0o777),
        (2 * PAGE_BYTES as u64, 0o600)
    );
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(
        Publisher::keeping(&link, Source::Proc).err(),
        Some(PublishError::System { .. })
    ));
    assert!(Publisher::keeping(folder.path(), Source::Proc).is_err());
    if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
        eprintln!("SKIPPED files of other users: this user cannot give one away");
        return;
    }
    assert!(refused(&path).contains("another user"));
}

/// Whoever may write the file may shorten it, or write anything: that must not kill a reader that believes nobody.
#[test]
fn a_page_of_another_machine_may_be_anything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest");
    let mut publisher = Publisher::keeping(&path, Source::Proc).unwrap();
    publisher.publish(snapshot(5));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let page = foreign(&path);
    assert!(page.read().is_ok(), "mode and owner say nothing");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let with = |at: u64, word: u64| {
        file.write_all_at(&word.to_ne_bytes(), at).unwrap();
        page.read().err()
    };
    assert_eq!(with(64, 3), Some(ForeignError::Read(ReadError::Busy)));
    assert_eq!(with(64, 4), None);
    let damaged = Some(ForeignError::Read(ReadError::Damaged));
    for number in [f64::NAN, -1.0, f64::INFINITY, 1e300] {
        assert_eq!(
            with(96, number.to_bits().rotate_left(32)),
            damaged,
            "{number}"
        );
    }
    assert_eq!(with(96, 0), None);
    assert_eq!(with(120, u64::MAX), damaged);
    assert_eq!(with(8, 2), Some(ForeignError::Open(OpenError::Version(2))));
    assert_eq!(with(0, 2), Some(ForeignError::Open(OpenError::NoMagic)));
    file.set_len(100).unwrap();
    assert_eq!(
        page.read().err(),
        Some(ForeignError::Open(OpenError::NotAPage))
    );
    // The writer has the page mapped, and writes when it ends.
    file.set_len(BAR_BYTES as u64).unwrap();
}

#[test]
fn a_page_that_is_read_by_system_calls_is_one_tick_s() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest");
    let mut publisher = Publisher::keeping(&path, Source::Proc).unwrap();
    let page = foreign(&path);
    let whole = |n: u64| Snapshot {
        ticks: n,
        others: Cpus::from_bits(n as u32),
        quota: Cpus::from_bits(n as u32),
        ..snapshot(n)
    };
    publisher.publish(whole(1));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 1;
            while !is_over.load(Ordering::Relaxed) {
                n += 1;
                publisher.publish(whole(n));
                // About as long as a read takes: some meet a change, some do not.
                for _ in 0..16 {
                    std::hint::spin_loop();
                }
            }
        });
        // Also when an assertion fails, or the writer would be waited for.
        let _over = Over(&is_over);
        let mut last = 0;
        for _ in 0..20_000 {
            let read = loop {
                if let Ok(read) = page.read() {
                    break read.snapshot;
                }
            };
            assert_eq!(read, whole(read.ticks));
            assert!(read.ticks >= last);
            last = read.ticks;
        }
    });
}

/// Sets a flag on drop.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_page_without_a_name_is_sealed() {
    let mut publisher = Publisher::anonymous(Source::Proc).unwrap();
    publisher.publish(snapshot(9));
    let name = format!("/proc/self/fd/{}", publisher.descriptor());
    let reader = open(Path::new(&name)).unwrap();
    assert_eq!(reader.read(), Ok(snapshot(9)));
    // A second descriptor of the same memory, as who inherits it can get one.
    let other = OpenOptions::new().write(true).open(&name).unwrap();
    assert!(other.set_len(0).is_err(), "shortening kills readers");
    assert!((&other).write(b"lies").is_err());
    publisher.publish(snapshot(10));
    assert_eq!(reader.read(), Ok(snapshot(10)));
}

/// A file system of 64 KiB at `folder`, in a mount namespace that only this thread is in; or why not.
fn small_file_system(folder: &Path) -> std::io::Result<()> {
    let at = CString::new(folder.as_os_str().as_bytes()).expect("no zero");
    let (none, tmpfs, root) = (std::ptr::null(), c"tmpfs".as_ptr(), c"/".as_ptr());
    let options = c"size=64k".as_ptr().cast();
    let done = |result: i32| match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: all pointers are to strings that end with a zero, or null where the kernel looks at none.
    unsafe {
        done(libc::unshare(libc::CLONE_NEWNS))?;
        // Nobody else is to see what comes.
        let private = libc::MS_REC | libc::MS_PRIVATE;
        done(libc::mount(none, root, none, private, std::ptr::null()))?;
        done(libc::mount(tmpfs, at.as_ptr(), tmpfs, 0, options))
    }
}

/// Who published on a full file system, and who read there, died of SIGBUS.
#[test]
fn a_full_file_system_is_an_error_and_kills_nobody() {
    let folder = tempfile::tempdir().unwrap();
    // A thread of its own, since its namespace ends with it.
    let test = || {
        if let Err(why) = small_file_system(folder.path()) {
            return eprintln!(
                "SKIPPED a_full_file_system_is_an_error_and_kills_nobody: no small file system: {why}"
            );
        }
        let at = |name: &str| folder.path().join(name);
        let (left, path, sparse) = (at("left"), at("page"), at("sparse"));
        let saved = Publisher::create(&left, Source::Proc).unwrap();
        let bytes = fs::read(&left).unwrap();
        drop(saved);
        fs::write(&left, bytes).unwrap();
        let hole = fs::File::create(&sparse).unwrap();
        hole.set_len(PAGE_BYTES as u64).unwrap();
        let mut filler = fs::File::create(at("filler")).unwrap();
        while filler.write(&[1; PAGE_BYTES]).is_ok_and(|len| len > 0) {}

        match Publisher::create(&path, Source::Proc) {
            Err(error @ PublishError::NoRoom { .. }) => {
                assert!(error.to_string().contains("is full"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        assert!(!path.exists());
        for (kept, stays) in [(&path, false), (&sparse, true)] {
            let made = Publisher::keeping(kept, Source::Proc);
            assert!(matches!(made, Err(PublishError::NoRoom { .. })), "{made:?}");
            assert_eq!(kept.exists(), stays);
        }
        assert_eq!(open(&sparse).err(), Some(OpenError::NoMagic));
        // What has its memory already needs none.
        let mut publisher = Publisher::create(&left, Source::Proc).unwrap();
        publisher.publish(snapshot(7));
        assert_eq!(open(&left).unwrap().read(), Ok(snapshot(7)));

        filler.set_len(0).unwrap();
        let mut publisher = Publisher::create(&path, Source::Proc).unwrap();
        filler.set_len(0).unwrap();
        while filler.write(&[1; PAGE_BYTES]).is_ok_and(|len| len > 0) {}
        publisher.publish(snapshot(8));
        assert_eq!(open(&path).unwrap().read(), Ok(snapshot(8)));
    };
    std::thread::scope(|scope| scope.spawn(test).join()).unwrap();
}

/// Files of the kernel say that they are longer than they are.
#[test]
fn a_file_that_is_shorter_than_it_says_is_refused() {
    let path = Path::new("/sys/devices/system/cpu/online");
    if fs::metadata(path).map_or(0, |about| about.len()) < PAGE_BYTES as u64 {
        return eprintln!(
            "SKIPPED a_file_that_is_shorter_than_it_says_is_refused: no such file here"
        );
    }
    assert_eq!(open(path).err(), Some(OpenError::NotAPage));
}

/// A page of which only the first words were ever written, as a writer of another make might.
#[test]
fn holes_behind_the_beginning_are_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    let file = fs::File::create(&path).unwrap();
    file.set_len(PAGE_BYTES as u64).unwrap();
    assert_eq!(open(&path).err(), Some(OpenError::NoMagic));
    file.write_all_at(b"AMDAHLPH\x01\0\0\0", 0).unwrap();
    assert_eq!(open(&path).unwrap().read(), Err(ReadError::Empty));
}

/// Who cleans up holds the lock of a file for a moment, also of one that is just being made: its maker was told that
/// somebody publishes there.
#[test]
fn one_who_cleans_up_is_not_taken_for_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    remove_abandoned(folder.path());
                }
            });
        }
        let path = folder.path().join("phantom-pid-5");
        let made = (0..2000).try_for_each(|_| {
            fs::write(&path, "left").unwrap();
            Publisher::create(&path, Source::Proc).map(drop)
        });
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        made.unwrap();
    });
}
