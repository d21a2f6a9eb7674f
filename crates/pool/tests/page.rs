#![cfg(not(any(loom, miri)))]
//! The page of `amdahl phantom`, as a pool's process finds it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use amdahl_phantom_page::{PAGE_BYTES, Publisher, Snapshot, Source, coarse_now_ns};
use amdahl_pool::{CpuSource, ThisMachine};

/// In a process whose environment names `page`: the tick that it reads. The environment is asked when it begins.
fn read_by_another(page: &Path) -> Option<u64> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "a_page_is_read_if_it_is_one_and_fresh",
        ])
        .env("AMDAHL_PHANTOM", page)
        .env("AMDAHL_POOL_READS", "1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let (_, told) = text.split_once("tick ").expect("it tells");
    told.split_whitespace().next().unwrap().parse().ok()
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}

#[test]
fn a_page_is_read_if_it_is_one_and_fresh() {
    if std::env::var_os("AMDAHL_POOL_READS").is_some() {
        match ThisMachine::new().published() {
            Some(snapshot) => println!("tick {}", snapshot.ticks),
            None => println!("tick none"),
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut publisher = Publisher::create(&at("page"), Source::Proc).unwrap();
    let mut publish = |time_ns| {
        publisher.publish(Snapshot {
            time_ns,
            ticks: 7,
            // The longest, so that it stays fresh however long a process takes to start.
            tick_us: 10_000_000,
            window_us: 100_000,
            allowed: 4,
            ..Snapshot::default()
        });
    };
    publish(coarse_now_ns());
    assert_eq!(read_by_another(&at("page")), Some(7));
    let bytes = fs::read(at("page")).unwrap();
    // The copy is a page as well.
    write(&at("copy"), &bytes);
    assert_eq!(read_by_another(&at("copy")), Some(7));
    // Of another version.
    let mut other = bytes.clone();
    other[8] ^= 1;
    write(&at("version"), &other);
    assert_eq!(read_by_another(&at("version")), None);
    // Whose figures cannot be.
    let mut hostile = bytes.clone();
    hostile[64..PAGE_BYTES].fill(0xff);
    write(&at("hostile"), &hostile);
    assert_eq!(read_by_another(&at("hostile")), None);
    write(&at("short"), &bytes[..100]);
    for other in ["short", "nothing"] {
        assert_eq!(read_by_another(&at(other)), None, "{other}");
    }
    assert_eq!(read_by_another(Path::new("off")), None);
    // Whoever published has gone long ago.
    publish(1);
    let is_long_up = coarse_now_ns() > 101_000_000_000;
    assert_eq!(read_by_another(&at("page")).is_none(), is_long_up);
}
