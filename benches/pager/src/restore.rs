//! Restores of an image: the first answer of one, the memory of many.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};

use amdahl_figures::{Figure, Target, Unit};
use amdahl_pager::measure::{Image, Restore, be_vm, share};

const MIB: usize = 1 << 20;
/// The largest image, in MiB.
const MOST_MIB: usize = 4096;
/// Of 1000 parts of the image, what the guest needs.
const NEEDED_PERMILLE: usize = 100;
/// Processes of one image, and its size.
const PROCESSES: usize = 50;
const SHARED_BYTES: usize = 256 * MIB;

const WAYS: [Restore; 7] = [
    Restore::Whole,
    Restore::WholeByOne,
    Restore::Plain,
    Restore::Demand,
    Restore::Recorded,
    Restore::Clean,
    Restore::CleanAgain,
];

/// What a process of the figure of many restores does.
pub fn vm() -> ExitCode {
    let stream = io::stdin().as_fd().try_clone_to_owned();
    match stream.and_then(|stream| be_vm(UnixStream::from(stream))) {
        // Ended by who started it, or that is gone.
        Ok(()) | Err(_) => ExitCode::FAILURE,
    }
}

pub fn figures(rounds: usize) -> Vec<Figure> {
    let mut figures = first_answer(rounds);
    figures.push(many());
    figures
}

/// A quarter of the memory that is free: the image is one, and one is read as a whole.
pub fn image_mib() -> Result<usize, String> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|error| error.to_string())?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<usize>().ok());
    let kib = kib.ok_or("/proc/meminfo does not tell what memory is free")?;
    match (kib / 1024 / 4).min(MOST_MIB) / 256 * 256 {
        0 => Err("less than 1 GiB of memory is free".to_owned()),
        mib => Ok(mib),
    }
}

fn first_answer(rounds: usize) -> Vec<Figure> {
    let mib = image_mib();
    let times = mib.clone().and_then(|mib| measure(mib * MIB, rounds));
    let size = mib.map_or_else(|_| "an image".to_owned(), |mib| format!("{mib} MiB"));
    let ratio = |one: Restore, other: Restore| -> Result<f64, String> {
        let times = times.as_ref().map_err(String::clone)?;
        let of = |way| {
            WAYS.iter()
                .position(|each| *each == way)
                .expect("one of them")
        };
        // A host that takes free memory back makes some rounds several times as long, whoever's they are.
        let least = |way| {
            let taken = times.iter().map(|round| round[of(way)]);
            taken.min_by(f64::total_cmp)
        };
        let ratio = least(one).zip(least(other)).map(|(one, other)| one / other);
        ratio.ok_or_else(|| "not measured".to_owned())
    };
    let mut figures = Vec::new();
    for (ours, name, target) in [
        (Restore::Demand, "on demand", Target::Stated),
        (
            Restore::Recorded,
            "exact set fetched before",
            Target::AtLeast(5.0),
        ),
        (
            Restore::Clean,
            "exact set, clean pages, first VM",
            Target::Stated,
        ),
        (
            Restore::CleanAgain,
            "exact set, clean pages, next VM",
            Target::AtLeast(5.0),
        ),
    ] {
        for (other, by, target, versus) in [
            (
                Restore::WholeByOne,
                "the whole image's",
                target,
                "the whole image is read first, by one thread, as VMMs read a snapshot",
            ),
            (
                Restore::Whole,
                "the whole image's by several threads",
                target,
                "the whole image is read first, by as many threads as fetch a set",
            ),
            (
                Restore::Plain,
                "plain's",
                target,
                "one descriptor, one reader, 4 KiB copies",
            ),
        ] {
            figures.push(Figure {
                name: format!("restore of {size}, 10 % needed, first answer: {by} by ours, {name}"),
                value: ratio(other, ours),
                unit: Unit::Ratio,
                target,
                versus: format!("{versus}; the least of the rounds each"),
            });
        }
    }
    figures
}

/// Seconds until the first answer, of each way in each round.
fn measure(bytes: usize, rounds: usize) -> Result<Vec<[f64; WAYS.len()]>, String> {
    let mut image = Image::new(bytes, NEEDED_PERMILLE).map_err(|error| error.to_string())?;
    (0..rounds)
        .map(|_| {
            let mut round = [0.0; WAYS.len()];
            for (way, seconds) in WAYS.into_iter().zip(&mut round) {
                let took = image.restore(way).map_err(|error| error.to_string())?;
                *seconds = took.as_secs_f64();
            }
            Ok(round)
        })
        .collect()
}

fn many() -> Figure {
    let vm = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--vm").stdout(Stdio::null());
        Ok(command)
    };
    let copies = share(PROCESSES, SHARED_BYTES, vm);
    Figure {
        name: format!(
            "restores of {} MiB by {PROCESSES} processes, memory of clean pages by one copy's",
            SHARED_BYTES / MIB
        ),
        value: copies
            .map_err(|error| error.to_string())
            .and_then(|copies| {
                let ratio = copies.pss_bytes as f64 / copies.image_bytes as f64;
                let is_once = copies.pages_fetched * 4096 == copies.image_bytes;
                match ratio >= 0.95 && is_once {
                    true => Ok(ratio),
                    false => Err(format!("not all was read, or not once: {copies:?}")),
                }
            }),
        unit: Unit::Ratio,
        target: Target::AtMost(1.05),
        versus: "proportional set sizes of all mappings, of all processes and of who fills them"
            .to_owned(),
    }
}
