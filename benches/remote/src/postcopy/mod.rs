//! Post-copy side by side: memory of another process arrives over TCP while one thread touches every page of it once, in
//! the same scattered order: between two QEMUs (the guest is ours, its CPU is emulated), and by `amdahl-pager`. And memory of a
//! process that CRIU dumped, restored lazily from files.

mod criu;
mod qemu;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::Measured;
use amdahl_figures::median;
use amdahl_pager::{Background, Backing, FileSource, Mapping, MemorySource, Pager, Source};
use amdahl_remote::{Connect, Remote, Serve, Server};

/// As in guest/touch.c.
const PAGES_LOG2: u32 = 17;
const PAGES: u32 = 1 << PAGES_LOG2;
const WORDS: u32 = 1024;
const LEN: usize = PAGES as usize * 4096;

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

/// What the figures are.
#[derive(Clone, Copy)]
pub enum What {
    Total,
    Median,
    Slowest,
    /// All faults together: what the one who touches loses.
    Lost,
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
        let kernel = qemu::compile(folder.path())?;
        let round = |_| {
            Ok(Round {
                plain: qemu::migrate(folder.path(), &kernel, false)?,
                ours: ours()?,
                preempt: qemu::migrate(folder.path(), &kernel, true)?,
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
        What::Lost => (
            |outcome| outcome.touches_us[..outcome.faults].iter().sum(),
            "us in all faults",
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
    let source = Arc::new(MemorySource::of_bytes(content().into()));
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
    let arrived = arrive(remote, begun)?;
    drop(child);
    Ok(Outcome::new(
        arrived.total_s,
        arrived.faults,
        arrived.touches_us,
    ))
}

struct Arrived {
    total_s: f64,
    faults: u64,
    touches_us: Vec<f64>,
}

/// Touches all that the source has while it is brought.
fn arrive(source: Arc<dyn Source>, begun: Instant) -> Result<Arrived> {
    let memory = Arc::new(Mapping::new(LEN, Backing::Huge)?);
    let pager = Pager::builder()
        .mapping(&memory, 0)
        .source(source)
        .background(Background::Unlimited)
        .start()?;
    let ((touches_us, wrong), total_s) = thread::scope(|scope| {
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
    let missing = pager.missing_pages();
    if wrong > 0 || missing > 0 {
        return Err(format!("{wrong} words are wrong, {missing} pages are missing").into());
    }
    Ok(Arrived {
        total_s,
        faults: pager.stats().faults,
        touches_us,
    })
}

/// All the memory, as guest/touch.c and guest/process.c fill it.
fn content() -> Vec<u8> {
    let mut memory = vec![0; LEN];
    for (number, bytes) in memory.chunks_exact_mut(4).enumerate() {
        let number = number as u32;
        bytes.copy_from_slice(&word(number / WORDS, number % WORDS).to_le_bytes());
    }
    memory
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

fn compile(folder: &Path, source: &str, options: &[&str]) -> Result<PathBuf> {
    let (text, program) = (folder.join("program.c"), folder.join("program"));
    fs::write(&text, source)?;
    let done = Command::new("gcc")
        .arg("-O2")
        .args(options)
        .arg(format!("-DPAGES_LOG2={PAGES_LOG2}"))
        .arg("-o")
        .args([&program, &text])
        .output()
        .map_err(|error| format!("gcc: {error}"))?;
    if !done.status.success() {
        return Err(format!("gcc: {}", String::from_utf8_lossy(&done.stderr)).into());
    }
    Ok(program)
}

// ---- from files

/// Touches that take longer were faults, whoever brought the page.
const FAULT_US: f64 = 10.0;

/// A restore.
struct Touched {
    total_s: f64,
    /// Falling.
    faults_us: Vec<f64>,
}

impl Touched {
    fn new(total_s: f64, mut touches_us: Vec<f64>) -> Touched {
        touches_us.retain(|&us| us > FAULT_US);
        touches_us.sort_by(|a, b| b.total_cmp(a));
        Touched {
            total_s,
            faults_us: touches_us,
        }
    }

    /// `part` is of the slowest.
    fn slowest(&self, part: f64) -> f64 {
        let at = (part * self.faults_us.len() as f64) as usize;
        self.faults_us.get(at).copied().unwrap_or(FAULT_US)
    }
}

/// The same memory twice.
struct Pair {
    ours: Touched,
    criu: Touched,
}

/// Measured once, for all figures.
fn pairs(count: usize) -> Result<&'static [Pair]> {
    static PAIRS: OnceLock<std::result::Result<Vec<Pair>, String>> = OnceLock::new();
    let measure = || -> Result<Vec<Pair>> {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        let program = criu::compile(folder.path())?;
        let file = folder.path().join("memory");
        fs::write(&file, content())?;
        let pair = |_| {
            let restored = criu::restore(folder.path(), &program)?;
            let source = Arc::new(FileSource::open(&file)?);
            let arrived = arrive(source, Instant::now())?;
            Ok(Pair {
                ours: Touched::new(arrived.total_s, arrived.touches_us),
                criu: Touched::new(restored.total_s, restored.touches_us),
            })
        };
        (0..count).map(pair).collect()
    };
    match PAIRS.get_or_init(|| measure().map_err(|error| error.to_string())) {
        Ok(pairs) => Ok(pairs),
        Err(error) => Err(error.as_str().into()),
    }
}

/// Ours from a raw file by a process that CRIU restores lazily from its image files, all in memory.
pub fn by_criu(what: What, count: usize) -> Measured {
    let (value, unit): (fn(&Touched) -> f64, _) = match what {
        What::Total => (
            |touched| touched.total_s,
            "s until all was there, CRIU's with the restoring of the process",
        ),
        What::Median => (
            |touched| touched.slowest(0.5),
            "us, median of touches above 10 us",
        ),
        What::Slowest => (
            |touched| touched.slowest(0.01),
            "us, slowest hundredth of touches above 10 us",
        ),
        What::Lost => (
            |touched| touched.faults_us.iter().sum(),
            "us in all touches above 10 us",
        ),
    };
    let pairs = pairs(count)?;
    let of = |value: &dyn Fn(&Pair) -> f64| median(pairs.iter().map(value).collect());
    let versus = format!(
        "{:.3} / {:.3} of criu lazy-pages {unit} ({} and {} of {PAGES}); 512 MiB from files in memory, one thread touches all at random, medians of {count} rounds",
        of(&|pair| value(&pair.ours)),
        of(&|pair| value(&pair.criu)),
        of(&|pair| pair.ours.faults_us.len() as f64),
        of(&|pair| pair.criu.faults_us.len() as f64),
    );
    let ratio = of(&|pair| value(&pair.ours) / value(&pair.criu));
    Ok((ratio, versus))
}
