//! QEMU's own post-copy, between two processes without KVM.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Ends, Outcome, PAGES, PATIENCE, Result};

/// As in guest/touch.c.
const STATE: u64 = 0x70_0000;
const TOOK: u64 = 0x80_0000;

/// The guest, a multiboot kernel.
pub fn compile(folder: &Path) -> Result<PathBuf> {
    super::compile(
        folder,
        include_str!("../../guest/touch.c"),
        &[
            "-m32",
            "-ffreestanding",
            "-fno-pic",
            "-no-pie",
            "-fno-stack-protector",
            "-fno-asynchronous-unwind-tables",
            "-nostdlib",
            "-static",
            "-Wl,-Ttext-segment=0x100000,--build-id=none,-e_start,-z,noseparate-code",
        ],
    )
}

/// A QEMU with its monitor and its guest's serial line.
struct Machine {
    lines: BufReader<UnixStream>,
    events: Vec<Value>,
    serial: UnixStream,
    _child: Ends,
}

impl Machine {
    fn start(folder: &Path, name: &str, kernel: &Path, more: &[&str]) -> Result<Machine> {
        let socket = |what: &str| folder.join(format!("{name}.{what}"));
        for what in ["qmp", "serial"] {
            let _ = fs::remove_file(socket(what));
        }
        let listen = |what: &str| format!("unix:{},server=on,wait=off", socket(what).display());
        let child = Command::new("qemu-system-x86_64")
            .args([
                "-accel", "tcg", "-machine", "pc", "-m", "640", "-display", "none", "-vga", "none",
            ])
            .args(["-nodefaults", "-no-user-config", "-kernel"])
            .arg(kernel)
            .args(["-serial", &listen("serial"), "-qmp", &listen("qmp")])
            .args(more)
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| {
                format!("qemu-system-x86_64 (apt-get install qemu-system-x86): {error}")
            })?;
        let mut child = Ends(child, None);
        let mut connect = |what: &str| -> Result<UnixStream> {
            let begun = Instant::now();
            loop {
                match UnixStream::connect(socket(what)) {
                    Ok(stream) => {
                        stream.set_read_timeout(Some(PATIENCE))?;
                        return Ok(stream);
                    }
                    Err(_) if begun.elapsed() < PATIENCE && child.0.try_wait()?.is_none() => {
                        thread::sleep(Duration::from_millis(5));
                    }
                    Err(error) => return Err(format!("QEMU's {what} socket: {error}").into()),
                }
            }
        };
        let (monitor, serial) = (connect("qmp")?, connect("serial")?);
        let mut machine = Machine {
            lines: BufReader::new(monitor),
            events: vec![],
            serial,
            _child: child,
        };
        machine.line()?;
        machine.ask("qmp_capabilities", json!({}))?;
        Ok(machine)
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    fn ask(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let text = json!({"execute": command, "arguments": arguments}).to_string();
        self.lines.get_mut().write_all(text.as_bytes())?;
        loop {
            let mut said = self.line()?;
            if said.get("event").is_some() {
                self.events.push(said);
            } else if let Some(error) = said.get("error") {
                return Err(format!("QEMU, {command}: {error}").into());
            } else {
                return Ok(said["return"].take());
            }
        }
    }

    fn until(&mut self, event: &str) -> Result<()> {
        while !self.events.iter().any(|said| said["event"] == event) {
            let said = self.line()?;
            self.events.push(said);
        }
        Ok(())
    }

    fn says(&mut self, byte: u8) -> Result<()> {
        let mut said = [0];
        self.serial.read_exact(&mut said)?;
        match said[0] == byte {
            true => Ok(()),
            false => Err(format!("the guest said {said:?}").into()),
        }
    }

    fn words(&mut self, folder: &Path, at: u64, count: u32) -> Result<Vec<u32>> {
        let file = folder.join("words");
        let arguments = json!({"val": at, "size": count * 4, "filename": file});
        self.ask("pmemsave", arguments)?;
        let bytes = fs::read(&file)?;
        let words = bytes.chunks_exact(4);
        Ok(words
            .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
            .collect())
    }
}

/// Post-copy from the first page on: nothing is sent before the guest runs on the other side.
pub fn migrate(folder: &Path, kernel: &Path, preempts: bool) -> Result<Outcome> {
    let mut from = Machine::start(folder, "from", kernel, &[])?;
    from.says(b'r')?;
    let mut to = Machine::start(folder, "to", kernel, &["-incoming", "defer"])?;
    for machine in [&mut from, &mut to] {
        let mut wanted = vec![json!({"capability": "postcopy-ram", "state": true})];
        if preempts {
            wanted.push(json!({"capability": "postcopy-preempt", "state": true}));
        }
        machine.ask("migrate-set-capabilities", json!({"capabilities": wanted}))?;
    }
    let limits = json!({"max-bandwidth": 1_u64 << 40, "max-postcopy-bandwidth": 0});
    from.ask("migrate-set-parameters", limits)?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let uri = json!({"uri": format!("tcp:127.0.0.1:{port}")});
    to.ask("migrate-incoming", uri.clone())?;

    let hz = ticks_per_us();
    let begun = Instant::now();
    from.ask("migrate", uri)?;
    from.ask("migrate-start-postcopy", json!({}))?;
    to.until("RESUME")?;
    to.serial.write_all(b"g")?;
    let (total_s, faults) = loop {
        let said = from.ask("query-migrate", json!({}))?;
        match said["status"].as_str() {
            Some("completed") => {
                let faults = said["ram"]["postcopy-requests"].as_u64();
                break (
                    begun.elapsed().as_secs_f64(),
                    faults.ok_or("QEMU does not count requests")?,
                );
            }
            Some("failed" | "cancelled" | "postcopy-paused") => {
                return Err(format!("QEMU's migration: {said}").into());
            }
            _ if begun.elapsed() > PATIENCE => return Err("QEMU's migration does not end".into()),
            _ => thread::sleep(Duration::from_millis(2)),
        }
    };
    to.says(b'd')?;
    let state = to.words(folder, STATE, 2)?;
    if state != [1, 0] {
        return Err(format!("the guest found {} wrong words", state[1]).into());
    }
    let took = to.words(folder, TOOK, PAGES)?;
    let touches_us = took
        .into_iter()
        .map(|ticks| f64::from(ticks) / hz)
        .collect();
    Ok(Outcome::new(total_s, faults, touches_us))
}

/// Of the counter that an emulated guest reads, too.
#[cfg(target_arch = "x86_64")]
fn ticks_per_us() -> f64 {
    // SAFETY: reading the time stamp counter has no effect.
    let ticks = || unsafe { core::arch::x86_64::_rdtsc() };
    let (since, begun) = (ticks(), Instant::now());
    while begun.elapsed() < Duration::from_millis(50) {}
    (ticks() - since) as f64 / (begun.elapsed().as_secs_f64() * 1e6)
}

/// QEMU's other hosts show their guests a clock of a GHz.
#[cfg(not(target_arch = "x86_64"))]
fn ticks_per_us() -> f64 {
    1_000.0
}
