//! Restores of an image, in `amdahl pager bench`: how long until a guest's first answer, and what many take together.

use std::fmt::Write as _;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use amdahl_pager::measure::{Copies, Image, Restore, be_vm, median, share};
use serde::Serialize;

use super::duration;

/// Of 1000 parts of the image, what the guest needs.
const NEEDED_PERMILLE: usize = 100;

pub const WAYS: [(Restore, &str, &str); 7] = [
    (
        Restore::Whole,
        "whole",
        "the whole image is read first, by several threads",
    ),
    (
        Restore::WholeByOne,
        "whole-by-one",
        "the same by one thread, as VMMs read a snapshot",
    ),
    (
        Restore::Plain,
        "plain",
        "one descriptor, one reader, copies of 4 KiB",
    ),
    (
        Restore::Demand,
        "demand",
        "the pager, which knows nothing of what will be touched",
    ),
    (
        Restore::Recorded,
        "recorded",
        "the recorded working set is fetched first",
    ),
    (
        Restore::Clean,
        "clean",
        "the same, of clean pages that nobody has used before",
    ),
    (
        Restore::CleanAgain,
        "clean-again",
        "the same, of clean pages that another VM has used",
    ),
];

/// What was found.
#[derive(Default, Serialize)]
pub struct Restores {
    image_bytes: usize,
    needed_bytes: usize,
    ways: Vec<Way>,
}

#[derive(Serialize)]
struct Way {
    name: &'static str,
    meaning: &'static str,
    first_answer_ns: Option<f64>,
    /// The median over the rounds.
    whole_by_this: Option<f64>,
    plain_by_this: Option<f64>,
    rounds_ns: Vec<f64>,
    skipped: Option<String>,
}

/// Measures, each round all ways. `go_on` is asked before each.
pub fn measure(
    bytes: usize,
    rounds: usize,
    mut go_on: impl FnMut() -> ControlFlow<()>,
) -> Result<Restores, String> {
    let mut image = Image::new(bytes, NEEDED_PERMILLE).map_err(|error| error.to_string())?;
    let mut restores = Restores {
        image_bytes: image.bytes(),
        needed_bytes: image.needed_bytes(),
        ways: Vec::new(),
    };
    for (_, name, meaning) in WAYS {
        restores.ways.push(Way {
            name,
            meaning,
            first_answer_ns: None,
            whole_by_this: None,
            plain_by_this: None,
            rounds_ns: Vec::new(),
            skipped: None,
        });
    }
    'all: for _ in 0..rounds {
        for ((how, ..), way) in WAYS.iter().zip(&mut restores.ways) {
            if go_on().is_break() {
                break 'all;
            }
            match image.restore(*how) {
                Ok(took) => way.rounds_ns.push(took.as_nanos() as f64),
                Err(error) => way.skipped = Some(error.to_string()),
            }
        }
    }
    let of = |name: &str| {
        let way = restores.ways.iter().find(|way| way.name == name);
        way.map_or(Vec::new(), |way| way.rounds_ns.clone())
    };
    let (whole, plain) = (of("whole"), of("plain"));
    for way in &mut restores.ways {
        let by = |other: &[f64]| {
            let ratios = other
                .iter()
                .zip(&way.rounds_ns)
                .map(|(other, ns)| other / ns);
            median(&ratios.collect::<Vec<_>>())
        };
        (way.whole_by_this, way.plain_by_this) = (by(&whole), by(&plain));
        way.first_answer_ns = median(&way.rounds_ns);
    }
    Ok(restores)
}

impl Restores {
    pub fn text(&self) -> String {
        let mut text = format!(
            "restore of {} MiB, of which a guest needs {} MiB for its first answer\n  {:<12} {:>12} {:>14} {:>14}\n",
            self.image_bytes >> 20,
            self.needed_bytes >> 20,
            "way",
            "first answer",
            "whole by this",
            "plain by this"
        );
        let ratio =
            |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}x"));
        for way in &self.ways {
            if let Some(why) = &way.skipped {
                let _ = writeln!(text, "  SKIPPED {}: {why}", way.name);
                continue;
            }
            let _ = writeln!(
                text,
                "  {:<12} {:>12} {:>14} {:>14}",
                way.name,
                duration(way.first_answer_ns),
                ratio(way.whole_by_this),
                ratio(way.plain_by_this)
            );
        }
        text + "\n"
    }
}

/// Many processes of one image.
#[derive(Serialize)]
pub struct Many {
    processes: u32,
    image_bytes: u64,
    /// Proportional set sizes of all mappings of it, of all processes and of who fills them.
    pss_bytes: u64,
    pages_fetched: u64,
}

/// Has them read all of an image.
pub fn many(processes: u32, bytes: usize) -> io::Result<Many> {
    let vm = || {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["pager", "bench", "--be-vm"])
            .stdout(Stdio::null());
        Ok(command)
    };
    let Copies {
        image_bytes,
        pss_bytes,
        pages_fetched,
    } = share(processes as usize, bytes, vm)?;
    Ok(Many {
        processes,
        image_bytes,
        pss_bytes,
        pages_fetched,
    })
}

impl Many {
    pub fn text(&self) -> String {
        format!(
            "{} processes that read one image of {} MiB: its pages take {:.2}x of one copy, and {} of {} were fetched once\n\n",
            self.processes,
            self.image_bytes >> 20,
            self.pss_bytes as f64 / self.image_bytes as f64,
            self.pages_fetched,
            self.image_bytes / amdahl_pager::PAGE as u64
        )
    }
}

/// One of them: ends with who started it.
pub fn vm() -> io::Result<()> {
    let stream = io::stdin().as_fd().try_clone_to_owned()?;
    be_vm(UnixStream::from(stream))
}
