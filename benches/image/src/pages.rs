//! One page at random: how long it takes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use amdahl_figures::{Figure, Random, Target, Unit};
use amdahl_image::{Compression, Image, PAGE_BYTES, Pack, PageKind};

use amdahl_figures::median;

use crate::whole::pack;

const READS: usize = 12_000;
/// Reads of one side before it is the other one's turn.
const TURN: usize = 500;
/// What people choose for the seekable format of zstd, and what qcow2 has.
const FRAME: usize = 64 << 10;

/// A way to read a page into a buffer.
type Side<'a> = Box<dyn FnMut(u64, &mut [u8]) -> Result<(), String> + 'a>;

/// Frames of zstd with a table in memory: the seekable format as fast as it can be.
struct Frames {
    file: File,
    offsets: Vec<u64>,
    zstd: zstd::bulk::Decompressor<'static>,
    packed: Vec<u8>,
    plain: Vec<u8>,
}

impl Frames {
    fn new(memory: &[u8], path: &Path) -> std::io::Result<Frames> {
        let mut all = Vec::new();
        let mut offsets = vec![0];
        let mut compressor = zstd::bulk::Compressor::new(1)?;
        for frame in memory.chunks(FRAME) {
            all.extend(compressor.compress(frame)?);
            offsets.push(all.len() as u64);
        }
        std::fs::write(path, &all)?;
        Ok(Frames {
            file: File::open(path)?,
            offsets,
            zstd: zstd::bulk::Decompressor::new()?,
            packed: vec![0; 2 * FRAME],
            plain: vec![0; FRAME],
        })
    }

    fn read(&mut self, page: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let at = page as usize * PAGE_BYTES;
        let frame = at / FRAME;
        let len = (self.offsets[frame + 1] - self.offsets[frame]) as usize;
        self.file
            .read_exact_at(&mut self.packed[..len], self.offsets[frame])?;
        self.zstd
            .decompress_to_buffer(&self.packed[..len], &mut self.plain[..])?;
        buf.copy_from_slice(&self.plain[at % FRAME..][..PAGE_BYTES]);
        Ok(())
    }
}

/// Latencies of each side in ns, sorted.
fn measure(pages: &[u64], sides: &mut [Side<'_>]) -> Result<Vec<Vec<f64>>, String> {
    let mut random = Random(1);
    let mut page = vec![0; PAGE_BYTES];
    let mut times = vec![Vec::with_capacity(READS); sides.len()];
    // The first turn, which warms up, does not count.
    for turn in 0..=READS / TURN {
        for (side, times) in sides.iter_mut().zip(&mut times) {
            for _ in 0..TURN {
                let number = pages[(random.number() % pages.len() as u64) as usize];
                let begun = Instant::now();
                side(number, &mut page)?;
                if turn > 0 {
                    times.push(begun.elapsed().as_nanos() as f64);
                }
            }
        }
    }
    times
        .iter_mut()
        .for_each(|times| times.sort_by(f64::total_cmp));
    Ok(times)
}

fn at(times: &[f64], quantile: f64) -> f64 {
    times[((times.len() - 1) as f64 * quantile) as usize]
}

/// Reads of compressed qcow2 by qemu-io, less what the same reads of a raw file take there, plus `raw_ns`.
fn qcow2_ns(memory: &Path, pages: &[u64], raw_ns: f64) -> Result<f64, String> {
    let packed = memory.with_extension("qcow2");
    let convert = Command::new("qemu-img")
        .args(["convert", "-c", "-f", "raw", "-O", "qcow2"])
        .args([memory, &packed])
        .status()
        .map_err(|error| format!("qemu-img: {error}"))?;
    if !convert.success() {
        return Err(format!("qemu-img: {convert}"));
    }
    let mut random = Random(7);
    let reads: Vec<String> = (0..3000)
        .map(|_| pages[(random.number() % pages.len() as u64) as usize])
        .map(|page| format!("read -q {} 4096\n", page * PAGE_BYTES as u64))
        .collect();
    let run = |format: &str, path: &Path| -> Result<f64, String> {
        let mut child = Command::new("qemu-io")
            .args(["-r", "-f", format])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("qemu-io: {error}"))?;
        let begun = Instant::now();
        let mut stdin = child.stdin.take().ok_or("no standard input")?;
        let written = std::io::Write::write_all(&mut stdin, reads.concat().as_bytes());
        written.map_err(|error| format!("qemu-io: {error}"))?;
        drop(stdin);
        match child.wait() {
            Ok(status) if status.success() => {
                Ok(begun.elapsed().as_nanos() as f64 / reads.len() as f64)
            }
            Ok(status) => Err(format!("qemu-io: {status}")),
            Err(error) => Err(format!("qemu-io: {error}")),
        }
    };
    let mut more = Vec::new();
    for _ in 0..5 {
        let raw = run("raw", memory)?;
        more.push(run("qcow2", &packed)? - raw);
    }
    let _ = std::fs::remove_file(packed);
    Ok(median(more) + raw_ns)
}

/// All figures of one memory.
pub fn figures(program: &str, memory: &Path, wanted: &dyn Fn(&str) -> bool) -> Vec<Figure> {
    let names = ["zstd", "lz4", "none"];
    let row = |name: &str, what: &str| format!("random page {what}, {name}: {program}");
    let rows: Vec<String> = names
        .iter()
        .flat_map(|name| {
            [
                "p50 / frames of 64 KiB",
                "p99 / frames of 64 KiB",
                "p50",
                "p50 / raw file",
                "mean / qcow2",
            ]
            .map(|what| row(name, what))
        })
        .collect();
    if !rows.iter().any(|row| wanted(row)) {
        return Vec::new();
    }
    match measured(memory) {
        Err(why) => vec![Figure {
            name: row("all", "p50"),
            value: Err(why),
            unit: Unit::Ns,
            target: Target::Stated,
            versus: String::new(),
        }],
        Ok((times, qcow2)) => {
            let mut figures = Vec::new();
            let (raw, frames) = (&times[3], &times[4]);
            for (name, ours) in names.iter().zip(&times) {
                let us = |ns: f64| format!("{:.1} us", ns / 1e3);
                for (what, quantile) in [("p50", 0.5), ("p99", 0.99)] {
                    figures.push(Figure {
                        name: row(name, &format!("{what} / frames of 64 KiB")),
                        value: Ok(at(ours, quantile) / at(frames, quantile)),
                        unit: Unit::Ratio,
                        target: Target::AtMost(0.5),
                        versus: format!("{} against {} of zstd -1 with a table in memory; no cache, both in memory", us(at(ours, quantile)), us(at(frames, quantile))),
                    });
                }
                figures.push(Figure {
                    name: row(name, "p50"),
                    value: Ok(at(ours, 0.5)),
                    unit: Unit::Ns,
                    target: Target::Stated,
                    versus: format!(
                        "p99 {}; pread of a raw file {}, p99 {}",
                        us(at(ours, 0.99)),
                        us(at(raw, 0.5)),
                        us(at(raw, 0.99))
                    ),
                });
                let mean = ours.iter().sum::<f64>() / ours.len() as f64;
                figures.push(Figure {
                    name: row(name, "mean / qcow2"),
                    value: qcow2.as_ref().map(|qcow2| mean / qcow2).map_err(String::clone),
                    unit: Unit::Ratio,
                    target: Target::AtMost(0.5),
                    versus: match &qcow2 {
                        Ok(qcow2) => format!("{} against {} of qemu-img convert -c, read by qemu-io less what raw takes there", us(mean), us(*qcow2)),
                        Err(_) => String::new(),
                    },
                });
            }
            figures.retain(|figure| wanted(&figure.name));
            figures
        }
    }
}

type Measured = (Vec<Vec<f64>>, Result<f64, String>);

fn measured(memory: &Path) -> Result<Measured, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", memory.display());
    let content = std::fs::read(memory).map_err(failed)?;
    let mut images = Vec::new();
    for (name, compression) in [
        ("zstd", Compression::Zstd(1)),
        ("lz4", Compression::Lz4),
        ("none", Compression::None),
    ] {
        let path = memory.with_extension(name);
        pack(memory, &path, &Pack::new().compression(compression))?;
        // Every page is unpacked anew.
        let image = Image::options().cache_bytes(0).open(&path);
        images.push(image.map_err(|error| error.to_string())?);
    }
    let pages = images[0].pages();
    let data: Vec<u64> = (0..pages)
        .filter(|page| images[0].kind(*page).ok() == Some(PageKind::Data))
        .collect();
    if data.is_empty() {
        return Err("a memory without content".to_owned());
    }
    let raw = File::open(memory).map_err(failed)?;
    let frames_path = memory.with_extension("frames");
    let mut frames = Frames::new(&content, &frames_path).map_err(failed)?;
    let mut sides: Vec<Side<'_>> = images
        .iter()
        .map(|image| -> Side<'_> {
            Box::new(|page, buf| {
                image
                    .read(page * PAGE_BYTES as u64, buf)
                    .map_err(|error| error.to_string())
            })
        })
        .collect();
    sides.push(Box::new(|page, buf| {
        raw.read_exact_at(buf, page * PAGE_BYTES as u64)
            .map_err(|error| error.to_string())
    }));
    sides.push(Box::new(|page, buf| {
        frames.read(page, buf).map_err(|error| error.to_string())
    }));
    let times = measure(&data, &mut sides)?;
    drop(sides);
    let _ = std::fs::remove_file(frames_path);
    let raw_mean = times[3].iter().sum::<f64>() / times[3].len() as f64;
    Ok((times, qcow2_ns(memory, &data, raw_mean)))
}
