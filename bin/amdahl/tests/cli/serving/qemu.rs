//! QEMU as it is installed: its guest's memory arrives on demand, by `amdahl pager attach`, and the guest proves it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::{Daemon, vmm};
use crate::tool::{HANGS_AFTER, Place, Running, has, skipped, until};

/// Of the guest.
const MEMORY: usize = 64 << 20;

/// The guest; `None` where it cannot be built.
fn guest(place: &Place) -> Option<PathBuf> {
    let (source, kernel) = (place.join("guest.c"), place.join("guest"));
    std::fs::write(&source, include_str!("guest.c")).expect("written");
    let mut gcc = Command::new("gcc");
    gcc.args(["-m32", "-O2", "-ffreestanding", "-fno-pic", "-no-pie"])
        .args(["-fno-stack-protector", "-fno-asynchronous-unwind-tables"])
        .args(["-nostdlib", "-static", "-o"])
        .arg(&kernel)
        .arg("-Wl,-Ttext-segment=0x100000,--build-id=none,-e_start,-z,noseparate-code")
        .arg(&source);
    let built = place.run(place.here(gcc));
    if !built.status.success() {
        skipped(format_args!("no guest: gcc -m32 fails: {}", built.err));
        return None;
    }
    Some(kernel)
}

struct Qemu {
    running: Running,
    monitor: BufReader<UnixStream>,
    serial: UnixStream,
}

impl Qemu {
    fn start(place: &Place, name: &str, memory: &str, more: &[&str]) -> Qemu {
        let socket = |what: &str| place.join(&format!("{name}.{what}"));
        let listen = |what: &str| format!("unix:{},server=on,wait=off", socket(what).display());
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args([
                "-accel", "tcg", "-m", "64M", "-display", "none", "-vga", "none",
            ])
            .args([
                "-nodefaults",
                "-no-user-config",
                "-machine",
                "pc,memory-backend=ram",
            ])
            .args(["-object", &format!("{memory},id=ram,size=64M,share=on")])
            .args(["-kernel", "guest"])
            .args(["-serial", &listen("serial"), "-qmp", &listen("qmp")])
            .args(more);
        let running = place.start(place.here(command));
        let connect = |what: &str| {
            let stream = until("QEMU listens", || UnixStream::connect(socket(what)).ok());
            stream
                .set_read_timeout(Some(HANGS_AFTER))
                .expect("a timeout");
            stream
        };
        let mut qemu = Qemu {
            monitor: BufReader::new(connect("qmp")),
            serial: connect("serial"),
            running,
        };
        qemu.hear(|line| line.get("QMP").is_some());
        qemu.ask("qmp_capabilities", json!({}));
        let shared = json!([{"capability": "x-ignore-shared", "state": true}]);
        qemu.ask("migrate-set-capabilities", json!({"capabilities": shared}));
        qemu
    }

    fn hear(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            let read = self.monitor.read_line(&mut line).expect("a line");
            assert!(read > 0, "QEMU has ended: {}", self.running.err_so_far());
            let line: Value = serde_json::from_str(&line).expect("JSON");
            if is_it(&line) {
                return line;
            }
        }
    }

    fn ask(&mut self, what: &str, arguments: Value) -> Value {
        let line = json!({"execute": what, "arguments": arguments});
        writeln!(self.monitor.get_mut(), "{line}").expect("it listens");
        let line = self.hear(|line| line.get("return").is_some() || line.get("error").is_some());
        assert!(line.get("error").is_none(), "{what}: {line}");
        line["return"].clone()
    }

    /// Until a migration is over.
    fn until_migrated(&mut self) {
        until("QEMU's state", || {
            let status = self.ask("query-migrate", json!({}))["status"].clone();
            assert_ne!(status, "failed", "{}", self.running.err_so_far());
            (status == "completed").then_some(())
        });
    }

    fn serial(&mut self) -> u8 {
        let mut byte = [0];
        self.serial
            .read_exact(&mut byte)
            .expect("the guest says something");
        byte[0]
    }

    /// The guest looks at all of its memory, and writes it.
    fn is_right(&mut self) {
        self.serial.write_all(b"?").expect("the guest listens");
        assert_eq!(self.serial(), b'r', "the guest found its memory changed");
    }
}

#[test]
fn a_guest_of_qemu_goes_on_while_its_memory_arrives() {
    if !vmm::is_possible() {
        return;
    }
    if cfg!(not(target_arch = "x86_64")) || !has("qemu-system-x86_64") || !has("gcc") {
        return skipped("qemu-system-x86_64 or gcc is not there");
    }
    let place = Place::new();
    if guest(&place).is_none() {
        return;
    }
    // A guest runs; its memory stays in a file, and all else goes into another.
    let file = format!(
        "memory-backend-file,mem-path={}",
        place.join("ram").display()
    );
    let mut before = Qemu::start(&place, "before", &file, &[]);
    assert_eq!(before.serial(), b'f');
    before.is_right();
    before.ask("stop", json!({}));
    before.ask("migrate", json!({"uri": "exec:cat > state"}));
    before.until_migrated();
    drop(before);
    let image = std::fs::read(place.join("ram")).expect("the guest's memory");
    assert_eq!(image.len(), MEMORY);

    // Another one, whose memory is an empty memfd.
    for (parts, count) in [("1", 1), ("3", 3)] {
        let daemon = Daemon::start(&place, "ram", &[]);
        let mut after = Qemu::start(
            &place,
            "after",
            "memory-backend-memfd",
            &["-S", "-incoming", "defer"],
        );
        let pid = after.running.pid().to_string();
        let attach = |map: &str, parts: &str| {
            place.amdahl([
                "pager",
                "attach",
                "--pid",
                &pid,
                "--map",
                map,
                "--to",
                "unix:pager.sock",
                "--parts",
                parts,
                "--json",
            ])
        };
        let wrong = attach("elsewhere", "1").ends_with(1);
        assert!(
            wrong.message().contains("memory-backend-memfd"),
            "{}",
            wrong.err
        );
        let attached = attach("memory-backend-memfd", parts).ends_with(0).json();
        let regions = attached["regions"].as_array().expect("a list");
        let bytes: u64 = regions
            .iter()
            .filter_map(|region| region["bytes"].as_u64())
            .sum();
        assert_eq!((bytes, regions.len()), (MEMORY as u64, count), "{attached}");
        after.ask("migrate-incoming", json!({"uri": "exec:cat state"}));
        after.until_migrated();
        after.ask("cont", json!({}));
        after.is_right();
        // What it has written itself.
        after.is_right();
        drop(after);

        // Each part is served as if it were a VM.
        let ends = until("all parts to end", || {
            let mut lines = daemon.lines();
            lines.retain(|line| line["event"] == "end");
            (lines.len() == count).then_some(lines)
        });
        let sum = |name: &str| -> u64 { ends.iter().filter_map(|end| end[name].as_u64()).sum() };
        assert!(ends.iter().all(|end| end["outcome"] == "gone"), "{ends:?}");
        assert!(sum("faults") > 0, "{ends:?}");
        // What is zero was never read from the file, and not all was needed.
        assert!(sum("pages_read") >= 16 << 8, "{ends:?}");
    }
}
