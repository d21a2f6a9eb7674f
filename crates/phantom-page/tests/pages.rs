//! Pages from the making to the end of their writers, as processes see them.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use amdahl_phantom_page::{
    Cpus, OpenError, PAGE_BYTES, PublishError, Publisher, ReadError, Reader, STALE_TICKS, Snapshot,
    Source, coarse_now_ns, remove_abandoned,
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
    use std::io::Write;
    assert!((&other).write(b"lies").is_err());
    publisher.publish(snapshot(10));
    assert_eq!(reader.read(), Ok(snapshot(10)));
}
