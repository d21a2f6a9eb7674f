//! All of a memory: packed, unpacked, and how large it is.

use std::fs;
use std::ops::ControlFlow::Continue;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use amdahl_figures::{Figure, Target, Unit, median};
use amdahl_image::{Compression, Image, Input, Pack, Unpack};

const ROUNDS: usize = 5;

/// Seconds that it takes.
fn timed(work: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program}: {status}")),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

fn bytes(path: &Path) -> Result<f64, String> {
    let meta = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(meta.len() as f64)
}

/// Packs with the library, as the command does.
pub fn pack(memory: &Path, image: &Path, how: &Pack) -> Result<(), String> {
    let file = fs::File::open(memory).map_err(|error| error.to_string())?;
    how.file(Input::Stored(Arc::new(file)), image, &mut |_| Continue(()))
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// Ours and theirs in turn; the median of the quotients, and how long each took.
fn quotient(
    mut ours: impl FnMut() -> Result<(), String>,
    mut theirs: impl FnMut() -> Result<(), String>,
) -> Result<(f64, f64, f64), String> {
    ours()?;
    theirs()?;
    let (mut quotients, mut ours_s, mut theirs_s) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (a, b) = match round % 2 {
            0 => {
                let a = timed(&mut ours)?;
                (a, timed(&mut theirs)?)
            }
            _ => {
                let b = timed(&mut theirs)?;
                (timed(&mut ours)?, b)
            }
        };
        quotients.push(a / b);
        ours_s.push(a);
        theirs_s.push(b);
    }
    Ok((median(quotients), median(ours_s), median(theirs_s)))
}

fn time_row(
    name: String,
    target: Target,
    what: &str,
    memory_bytes: f64,
    measured: Result<(f64, f64, f64), String>,
) -> Figure {
    let (value, versus) = match measured {
        Ok((ratio, ours_s, theirs_s)) => {
            let speed = |s: f64| format!("{:.0} MB/s", memory_bytes / s / 1e6);
            (
                Ok(ratio),
                format!("{} against {} of {what}", speed(ours_s), speed(theirs_s)),
            )
        }
        Err(why) => (Err(why), String::new()),
    };
    Figure {
        name,
        value,
        unit: Unit::Ratio,
        target,
        versus,
    }
}

/// All figures of one memory; its image is left in `folder`.
pub fn figures(program: &str, memory: &Path, wanted: &dyn Fn(&str) -> bool) -> Vec<Figure> {
    let image = memory.with_extension("ami");
    let other = memory.with_extension("other");
    let memory_bytes = bytes(memory).unwrap_or(f64::NAN);
    let mut figures = Vec::new();
    let rivals: [(&str, Compression, &str, Vec<&str>, Target); 3] = [
        (
            "zstd -1 -T0",
            Compression::Zstd(1),
            "zstd",
            vec!["-1", "-T0", "-q", "-f", text(memory), "-o", text(&other)],
            Target::AtMost(1.0),
        ),
        (
            "lz4 -1",
            Compression::Lz4,
            "lz4",
            vec!["-1", "-q", "-f", text(memory), text(&other)],
            Target::AtMost(1.0),
        ),
        (
            "qemu-img convert -c",
            Compression::Zstd(1),
            "qemu-img",
            vec![
                "convert",
                "-c",
                "-f",
                "raw",
                "-O",
                "qcow2",
                text(memory),
                text(&other),
            ],
            Target::AtMost(1.0),
        ),
    ];
    for (name, compression, tool, args, target) in rivals {
        let how = Pack::new().compression(compression);
        let row = format!("time to pack / {name}: {program}");
        if wanted(&row) {
            let measured = quotient(|| pack(memory, &image, &how), || run(tool, &args));
            figures.push(time_row(row, target, name, memory_bytes, measured));
        }
        let row = format!("size / {name}: {program}");
        if wanted(&row) {
            let both = pack(memory, &image, &how).and_then(|()| run(tool, &args));
            let sizes = both.and_then(|()| Ok((bytes(&image)?, bytes(&other)?)));
            let versus = match &sizes {
                Ok((ours, theirs)) => format!(
                    "{:.1} MB against {:.1} MB, of {:.1} MB",
                    ours / 1e6,
                    theirs / 1e6,
                    memory_bytes / 1e6
                ),
                Err(_) => String::new(),
            };
            figures.push(Figure {
                name: row,
                value: sizes.map(|(ours, theirs)| ours / theirs),
                unit: Unit::Ratio,
                // What can be read from its beginning only has an easier task, which is allowed for beside zstd.
                target: match tool {
                    "zstd" => Target::AtMost(1.2),
                    _ => Target::AtMost(1.0),
                },
                versus,
            });
        }
    }
    let row = format!("time to unpack / zstd -d: {program}");
    if wanted(&row) {
        let again = memory.with_extension("again");
        let prepared = pack(memory, &image, &Pack::new()).and_then(|()| {
            run(
                "zstd",
                &["-1", "-q", "-f", text(memory), "-o", text(&other)],
            )
        });
        let opened = prepared.and_then(|()| Image::open(&image).map_err(|error| error.to_string()));
        let measured = opened.map(Arc::new).and_then(|image| {
            let ours = || {
                Unpack::new()
                    .file(&image, &again, &mut |_| Continue(()))
                    .map_err(|error| error.to_string())
            };
            let theirs = || {
                run(
                    "zstd",
                    &["-d", "-q", "-f", text(&other), "-o", text(&again)],
                )
            };
            quotient(ours, theirs)
        });
        figures.push(time_row(
            row,
            Target::AtMost(1.0),
            "zstd -d",
            memory_bytes,
            measured,
        ));
        let _ = fs::remove_file(again);
    }
    let _ = fs::remove_file(other);
    figures
}
