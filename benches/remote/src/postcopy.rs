//! Post-copy side by side: memory of another process arrives over TCP while one thread touches every page of it once, in
//! the same scattered order: between two QEMUs (the guest is ours, its CPU is emulated), and by `amdahl-pager`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_figures::median;
use amdahl_pager::{Background, Backing, Mapping, MemorySource, Pager};
use amdahl_remote::{Connect, Remote, Serve, Server};
use serde_json::{Value, json};

use crate::Measured;

/// As in guest/touch.c.
const PAGES_LOG2: u32 = 17;
const PAGES: u32 = 1 << PAGES_LOG2;
const WORDS: u32 = 1024;
const STATE: u64 = 0x70_0000;
const TOOK: u64 = 0x80_0000;
const LEN: usize = PAGES as usize * 4096;
const GUEST: &str = include_str!("../guest/touch.c");

/// Whoever waits for longer than this has met something that is broken.
const PATIENCE: Duration = Duration::from_secs(60);
/// Set in the child that is the other host.
const ROLE: &str = "AMDAHL_BENCH_REMOTE_SERVES";

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Outcome {
    /// Until all memory had arrived.
    total_s: f64,
    /// Requests for single pages that somebody waited for.
    faults: usize,
    /// Of each touch, falling.
    touches_us: Vec<f64>,
}

impl Outcome {
    fn new(total_s: f64, faults: u64, mut touches_us: Vec<f64>) -> Outcome {
        touches_us.sort_by(|a, b| b.total_cmp(a));
        Outcome {
            total_s,
            faults: (faults as usize).clamp(1, touches_us.len()),
            touches_us,
        }
    }

    /// Of faults alone: as many of the slowest touches as there were requests. `part` is of the slowest.
    fn slowest(&self, part: f64) -> f64 {
        self.touches_us[(part * self.faults as f64) as usize]
    }
}

/// What the three figures are.
#[derive(Clone, Copy)]
pub enum What {
    Total,
    Median,
    Slowest,
}

/// The same memory three times: ours, QEMU's post-copy, and with `postcopy-preempt`.
struct Round {
    ours: Outcome,
    plain: Outcome,
    preempt: Outcome,
}

/// Measured once, for all figures.
fn rounds(count: usize) -> Result<&'static [Round]> {
    static ROUNDS: OnceLock<std::result::Result<Vec<Round>, String>> = OnceLock::new();
    let measure = || -> Result<Vec<Round>> {
        let folder = tempfile::tempdir()?;
        let kernel = compile(folder.path())?;
        let round = |_| {
            Ok(Round {
                plain: qemu(folder.path(), &kernel, false)?,
                ours: ours()?,
                preempt: qemu(folder.path(), &kernel, true)?,
            })
        };
        (0..count).map(round).collect()
    };
    match ROUNDS.get_or_init(|| measure().map_err(|error| error.to_string())) {
        Ok(rounds) => Ok(rounds),
        Err(error) => Err(error.as_str().into()),
    }
}

/// Ours by the better of QEMU's two settings in each round.
pub fn by_qemu(what: What, count: usize) -> Measured {
    let (value, unit): (fn(&Outcome) -> f64, _) = match what {
        What::Total => (|outcome| outcome.total_s, "s until all was there"),
        What::Median => (|outcome| outcome.slowest(0.5), "us, median of faults"),
        What::Slowest => (
            |outcome| outcome.slowest(0.01),
            "us, slowest hundredth of faults",
        ),
    };
    let rounds = rounds(count)?;
    let of = |value: &dyn Fn(&Round) -> f64| median(rounds.iter().map(value).collect());
    let versus = format!(
        "{:.3} / the better of QEMU's post-copy {:.3} and with postcopy-preempt {:.3} {unit}; 512 MiB over TCP, one thread touches all at random, medians of {count} rounds",
        of(&|round| value(&round.ours)),
        of(&|round| value(&round.plain)),
        of(&|round| value(&round.preempt)),
    );
    let ratio = of(&|round| value(&round.ours) / value(&round.plain).min(value(&round.preempt)));
    Ok((ratio, versus))
}

// ---- amdahl-pager

/// This process is the source of another one until that ends: says where it listens.
pub fn serve_if_asked() -> Result<bool> {
    if std::env::var_os(ROLE).is_none() {
        return Ok(false);
    }
    let mut memory = vec![0; LEN];
    for (number, bytes) in memory.chunks_exact_mut(4).enumerate() {
        let number = number as u32;
        bytes.copy_from_slice(&word(number / WORDS, number % WORDS).to_le_bytes());
    }
    let source = Arc::new(MemorySource::of_bytes(memory.into()));
    let server = Server::start(
        "127.0.0.1:0",
        Serve::new(source, LEN as u64, *b"amdahl-post-copy"),
    )?;
    println!("{}", server.address());
    std::io::stdin().read_to_end(&mut vec![])?;
    Ok(true)
}

/// A child that ends when this is dropped; its input, whose end it may wait for.
struct Ends(Child, Option<ChildStdin>);

impl Drop for Ends {
    fn drop(&mut self) {
        drop(self.1.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ours() -> Result<Outcome> {
    let mut child = Command::new(std::env::current_exe()?)
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let said = child.stdout.take().ok_or("no pipe")?;
    let input = child.stdin.take();
    let child = Ends(child, input);
    let mut address = String::new();
    BufReader::new(said).read_line(&mut address)?;

    let begun = Instant::now();
    let remote = Arc::new(Remote::connect(Connect::new(address.trim()))?);
    let memory = Arc::new(Mapping::new(LEN, Backing::Huge)?);
    let pager = Pager::builder()
        .mapping(&memory, 0)
        .source(remote)
        .background(Background::Unlimited)
        .start()?;
    let (touches, total_s) = thread::scope(|scope| {
        let touches = scope.spawn(|| {
            let mut took = vec![0.0; PAGES as usize];
            let (mut page, mut wrong) = (1_u32, 0);
            for took in &mut took {
                page = page.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % PAGES;
                let (target, at) = ((page ^ (page >> 7)) % PAGES, page % WORDS);
                let mut value = [0; 4];
                let since = Instant::now();
                memory.read((target * WORDS + at) as usize * 4, &mut value);
                *took = since.elapsed().as_secs_f64() * 1e6;
                wrong += u32::from(u32::from_le_bytes(value) != word(target, at));
            }
            (took, wrong)
        });
        pager.fill();
        let total_s = begun.elapsed().as_secs_f64();
        (touches.join().expect("it only reads"), total_s)
    });
    let (touches_us, wrong) = touches;
    let missing = pager.missing_pages();
    let faults = pager.stats().faults;
    drop(pager);
    drop(child);
    if wrong > 0 || missing > 0 {
        return Err(format!("{wrong} words are wrong, {missing} pages are missing").into());
    }
    Ok(Outcome::new(total_s, faults, touches_us))
}

/// As in guest/touch.c.
fn word(page: u32, at: u32) -> u32 {
    let mut x = (page * WORDS + at)
        .wrapping_mul(2_654_435_761)
        .wrapping_add(1);
    x ^= x >> 15;
    x = x.wrapping_mul(2_246_822_519);
    x ^ (x >> 13)
}

// ---- QEMU

fn compile(folder: &Path) -> Result<std::path::PathBuf> {
    let (source, kernel) = (folder.join("touch.c"), folder.join("touch.elf"));
    fs::write(&source, GUEST)?;
    let done = Command::new("gcc")
        .args([
            "-m32",
            "-O2",
            "-ffreestanding",
            "-fno-pic",
            "-no-pie",
            "-fno-stack-protector",
        ])
        .args(["-fno-asynchronous-unwind-tables", "-nostdlib", "-static"])
        .arg("-Wl,-Ttext-segment=0x100000,--build-id=none,-e_start,-z,noseparate-code")
        .arg(format!("-DPAGES_LOG2={PAGES_LOG2}"))
        .arg("-o")
        .args([&kernel, &source])
        .output()
        .map_err(|error| format!("gcc: {error}"))?;
    if !done.status.success() {
        return Err(format!("gcc: {}", String::from_utf8_lossy(&done.stderr)).into());
    }
    Ok(kernel)
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
fn qemu(folder: &Path, kernel: &Path, preempts: bool) -> Result<Outcome> {
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
