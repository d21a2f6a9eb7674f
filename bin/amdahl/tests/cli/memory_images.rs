//! `amdahl pager pack|unpack|verify|info`.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;

use super::tool::{Place, until};

/// 3 MiB: pages with a text, each second of them zero, some of them twice.
fn memory() -> Vec<u8> {
    let page = |number: usize| match number % 2 {
        0 => vec![0; 4096],
        _ => format!("page {:9} ", number % 300).into_bytes().repeat(300)[..4096].to_vec(),
    };
    (0..768).flat_map(page).collect()
}

#[test]
fn what_is_packed_is_unpacked_again() {
    let place = Place::new();
    let memory = memory();
    fs::write(place.join("vm.mem"), &memory).expect("written");
    let text = place
        .amdahl(["pager", "pack", "vm.mem", "-o", "vm.ami"])
        .ends_with(0)
        .out;
    for part in [
        "3.0 MiB of memory",
        "768 pages, 50.0 % zero",
        "150 stored",
        "identity ",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let text = place.amdahl(["pager", "verify", "vm.ami"]).ends_with(0).out;
    assert!(text.starts_with("good: 768 pages"), "{text}");
    place
        .amdahl(["pager", "unpack", "vm.ami", "-o", "again.mem"])
        .ends_with(0);
    assert!(fs::read(place.join("again.mem")).expect("a file") == memory);
    let blocks = fs::metadata(place.join("again.mem"))
        .expect("a file")
        .blocks();
    assert!(
        blocks * 512 < 2 << 20,
        "{blocks} blocks: zero pages are holes"
    );

    // A later state, as a difference.
    let mut later = memory.clone();
    later[4096 * 101] ^= 1;
    fs::write(place.join("later.mem"), &later).expect("written");
    let args = [
        "pager",
        "pack",
        "later.mem",
        "-o",
        "later.ami",
        "--base",
        "vm.ami",
        "--json",
        "--threads",
        "1",
    ];
    let json = place.amdahl(args).ends_with(0).json();
    assert_eq!(
        (&json["stored_pages"], &json["absent_pages"]),
        (&1.into(), &767.into())
    );
    let json = place
        .amdahl(["pager", "info", "later.ami", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(json["layers"][0]["base"], json["layers"][1]["identity"]);
    let text = place
        .amdahl(["pager", "info", "later.ami"])
        .ends_with(0)
        .out;
    for part in ["99.9 % as in the base", "base 1: ", "1 zstd", "identity"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    place
        .amdahl(["pager", "unpack", "later.ami", "-o", "again.mem"])
        .ends_with(0);
    assert!(fs::read(place.join("again.mem")).expect("a file") == later);

    // Without its base it is nothing; with another one neither.
    fs::create_dir(place.join("away")).expect("a folder");
    fs::rename(place.join("vm.ami"), place.join("away/vm.ami")).expect("moved");
    let ran = place.amdahl(["pager", "info", "later.ami"]).ends_with(2);
    assert!(
        ran.err.contains("\"vm.ami\"") && ran.err.contains("--base"),
        "{}",
        ran.err
    );
    place
        .amdahl(["pager", "info", "later.ami", "--base", "away/vm.ami"])
        .ends_with(0);
    let args = ["pager", "verify", "away/vm.ami", "--base", "later.ami"];
    assert!(place.amdahl(args).ends_with(2).err.contains("has no base"));
}

#[test]
fn pipes_and_standard_streams_do() {
    let place = Place::new();
    let memory = memory();
    fs::write(place.join("vm.mem"), &memory).expect("written");
    place
        .amdahl(["pager", "pack", "vm.mem", "-o", "vm.ami", "-q"])
        .ends_with(0);
    let image = fs::read(place.join("vm.ami")).expect("an image");

    let run = |args: &[&str], input: &[u8], status: i32| {
        let mut command = place.tool(args);
        let command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let mut stdin = child.stdin.take().expect("a pipe");
        let ran = std::thread::scope(|scope| {
            scope.spawn(move || {
                let _ = stdin.write_all(input);
            });
            child.wait_with_output().expect("it ends")
        });
        assert_eq!(
            ran.status.code(),
            Some(status),
            "{args:?}: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
        ran.stdout
    };
    // The same image, whichever way its memory came and it went.
    assert!(run(&["pager", "pack", "-", "-o", "-"], &memory, 0) == image);
    assert!(run(&["pager", "unpack", "-", "-o", "-"], &image, 0) == memory);
    run(&["pager", "verify", "-q", "-"], &image, 0);
    run(&["pager", "unpack", "-", "-o", "x"], &image[..9000], 7);
    run(&["pager", "pack", "-", "-o", "x"], &memory[..9000], 2);
    assert!(!place.join("x").exists());

    // A file as standard input is read at any place.
    let mut command = place.tool(["pager", "unpack", "-", "-o", "again.mem"]);
    command.stdin(File::open(place.join("vm.ami")).expect("an image"));
    place.run(command).ends_with(0);
    assert!(fs::read(place.join("again.mem")).expect("a file") == memory);
}

#[test]
fn damage_is_told_page_by_page() {
    let place = Place::new();
    fs::write(place.join("vm.mem"), memory()).expect("written");
    let args = [
        "pager",
        "pack",
        "vm.mem",
        "-o",
        "vm.ami",
        "--compress",
        "none",
    ];
    place.amdahl(args).ends_with(0);
    let mut image = fs::read(place.join("vm.ami")).expect("an image");
    image[4096 + 5] ^= 1;
    fs::write(place.join("vm.ami"), image).expect("written");
    let text = place.amdahl(["pager", "verify", "vm.ami"]).ends_with(7).out;
    for part in [
        "pages 1 to 1: ",
        "pages 301 to 301: ",
        "checksum of a cluster at byte 4096",
        "damaged: 12 of 768",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let json = place
        .amdahl(["pager", "verify", "--json", "vm.ami"])
        .ends_with(7)
        .json();
    assert_eq!(
        (&json["good"], &json["damages"][0]["first_page"]),
        (&false.into(), &1.into())
    );
    place
        .amdahl(["pager", "unpack", "vm.ami", "-o", "x.mem"])
        .ends_with(7);
    assert!(!place.join("x.mem").exists());
    let ran = place.amdahl(["pager", "info", "vm.mem"]).ends_with(7);
    assert!(ran.err.contains("not a memory image"), "{}", ran.err);
}

#[test]
fn what_is_needed_first_is_kept_with_the_image() {
    let place = Place::new();
    fs::write(place.join("vm.mem"), memory()).expect("written");
    fs::write(place.join("first"), "# boot\n700-703\n3\n").expect("written");
    fs::write(place.join("note"), "{\"vcpus\": 160}").expect("written");
    let pack = |more: &[&str], status: i32| {
        let args = ["pager", "pack", "vm.mem", "-o", "vm.ami"]
            .iter()
            .chain(more);
        place.amdahl(args).ends_with(status)
    };
    pack(
        &[
            "--working-set",
            "first",
            "--metadata",
            "note",
            "--region",
            "0x100000000:0:0x300000",
        ],
        0,
    );
    let json = place
        .amdahl(["pager", "info", "vm.ami", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(json["working_set_pages"], 5);
    assert_eq!(json["regions"][0]["guest_address"], 1_u64 << 32);
    assert_eq!(json["metadata_bytes"], 14);
    pack(&["--region", "0:0:0x400000"], 2);
    pack(&["--cluster", "5K"], 2);
    pack(&["--compress", "zstd:99"], 2);
    fs::write(place.join("first"), "768\n").expect("written");
    let ran = pack(&["--working-set", "first"], 2);
    assert!(ran.err.contains("page 768"), "{}", ran.err);
    let ran = place
        .amdahl(["pager", "pack", "vm.mem", "-o", "/dev/null"])
        .ends_with(2);
    assert!(ran.err.contains("no regular file"), "{}", ran.err);
}

/// Names of files that are on their way to be `vm.ami`.
fn parts(place: &Place) -> Vec<String> {
    let names = place.names().into_iter();
    names
        .filter(|name| name.ends_with(".amdahl-part"))
        .collect()
}

#[test]
fn whoever_is_ended_leaves_nothing_for_long() {
    let place = Place::new();
    let memory = memory();
    mkfifoat(CWD, place.join("pipe"), Mode::from_raw_mode(0o600)).expect("a pipe");
    fs::write(place.join("vm.ami"), "the old one").expect("written");
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let running = place.start(place.tool(["pager", "pack", "pipe", "-o", "vm.ami"]));
        let mut pipe = File::options()
            .write(true)
            .open(place.join("pipe"))
            .expect("the pipe");
        pipe.write_all(&memory).expect("it reads");
        until("a file is begun", || {
            (parts(&place).len() == 1).then_some(())
        });
        running.signal(signal);
        let ran = running.ended();
        drop(pipe);
        assert_eq!(place.read("vm.ami"), "the old one");
        if signal == Signal::KILL {
            // Nobody could clean up; the next one does.
            assert_eq!(parts(&place).len(), 1);
        } else {
            assert_eq!(ran.status.code(), Some(5), "{ran:?}");
            assert!(ran.err.contains("no file was written"), "{}", ran.err);
            assert_eq!(parts(&place), [""; 0]);
        }
    }
    fs::write(place.join("vm.mem"), &memory).expect("written");
    place
        .amdahl(["pager", "pack", "vm.mem", "-o", "vm.ami"])
        .ends_with(0);
    assert_eq!(place.names(), ["pipe", "vm.ami", "vm.mem"]);
}
