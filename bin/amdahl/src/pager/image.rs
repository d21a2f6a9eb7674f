//! `amdahl pager pack|unpack|verify|info`.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use amdahl_image::{
    Error, Image, Input, LayerInfo, Pack, Packed, PageRun, Unpack, Verified, Verify,
};
use serde_json::json;

use super::meter::{Meter, size};
use super::shelf::Anywhere;
use super::stdio::{self, Interruptible, is_dash};
use crate::cli::pager::{ImageFile, PagerInfo, PagerPack, PagerUnpack, PagerVerify};
use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// Exit code when an image is damaged.
pub const DAMAGED: u8 = 7;
/// Exit code when the user ended it.
const INTERRUPTED: u8 = 5;

/// What the user is told of an error.
pub fn failure(error: Error) -> Failure {
    let message = error.to_string();
    match error {
        Error::Interrupted => interrupted(),
        Error::Input { .. } | Error::NoBase { .. } | Error::WrongBase { .. } => {
            let hint = matches!(error, Error::NoBase { .. });
            let hint = if hint { ": --base IMG" } else { "" };
            Failure::usage(format!("{message}{hint}"))
        }
        _ if error.is_damage() => Failure {
            message,
            code: DAMAGED,
        },
        _ => Failure::result(message),
    }
}

fn interrupted() -> Failure {
    Failure {
        message: "interrupted; no file was written".to_owned(),
        code: INTERRUPTED,
    }
}

/// Whatever else went wrong: the user wanted it to end.
fn or_interrupted<T>(done: Result<T, Failure>, interrupt: &Interrupt) -> Result<T, Failure> {
    done.map_err(|failure| match interrupt.asked() {
        true => interrupted(),
        false => failure,
    })
}

fn print(text: &str) -> Result<(), Failure> {
    // A reader who has seen enough is no failure.
    match writeln!(anstream::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::result(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&serde_json::to_string_pretty(value).map_err(|error| Failure::result(error.to_string()))?)
}

/// `amdahl pager pack`.
pub fn pack(args: &PagerPack) -> Result<u8, Failure> {
    let interrupt = Interrupt::catch();
    let to_stdout = is_dash(&args.output);
    if to_stdout {
        // Before an hour is spent on it.
        stdio::output()?;
    }
    let mut how = Pack::new()
        .compression(args.compress)
        .cluster_bytes(args.cluster)
        .regions(args.region.clone());
    if let Some(threads) = args.threads {
        how = how.threads(threads);
    }
    if let Some(base) = &args.base {
        let base = Image::options().open_on(&Anywhere::default(), base);
        how = how.base(Arc::new(base.map_err(failure)?));
    }
    if let Some(path) = &args.working_set {
        how = how.working_set(
            working_set(&text(path)?)
                .map_err(|wrong| Failure::usage(format!("{}: {wrong}", path.display())))?,
        );
    }
    if let Some(path) = &args.metadata {
        let metadata = fs::read(path);
        how = how.metadata(metadata.map_err(|error| unreadable(path, &error))?);
    }
    let input = memory(&args.memory, &interrupt)?;
    let mut meter = Meter::new("packing", args.quiet, &interrupt);
    let packed = match to_stdout {
        false => how
            .file(input, &args.output, &mut |progress| meter.tell(progress))
            .map_err(failure),
        true => pack_out(&how, input, &mut meter, &interrupt),
    };
    let packed = or_interrupted(packed, &interrupt)?;
    drop(meter);
    if args.quiet {
        return Ok(0);
    }
    let shown = match args.json {
        true => serde_json::to_string_pretty(&packed_json(&packed))
            .map_err(|error| Failure::result(error.to_string()))?,
        false => packed_text(&packed),
    };
    if to_stdout {
        let _ = writeln!(anstream::stderr(), "{shown}");
        return Ok(0);
    }
    print(&shown)?;
    Ok(0)
}

/// The header, which is first in the image, is known last.
fn pack_out(
    how: &Pack,
    input: Input,
    meter: &mut Meter,
    interrupt: &Interrupt,
) -> Result<Packed, Failure> {
    let failed = |error: std::io::Error| Failure::result(format!("standard output: {error}"));
    let file = tempfile::tempfile().map_err(|error| {
        let folder = std::env::temp_dir();
        let folder = folder.display();
        Failure::result(format!("temporary file in {folder} (TMPDIR): {error}"))
    })?;
    let packed = how
        .sink(input, &file, &mut |progress| meter.tell(progress))
        .map_err(failure)?;
    stdio::copy_out(&file, interrupt).map_err(failed)?;
    Ok(packed)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::result(format!("{}: {error}", path.display()))
}

fn text(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

fn memory(path: &Path, interrupt: &Interrupt) -> Result<Input, Failure> {
    let mut file = match is_dash(path) {
        true => stdio::input()?,
        false => File::open(path).map_err(|error| unreadable(path, &error))?,
    };
    let kind = file.metadata().map_err(|error| unreadable(path, &error))?;
    let begins = std::io::Seek::stream_position(&mut file).is_ok_and(|at| at == 0);
    // What can be read at any place is read by all threads.
    if kind.is_file() && begins {
        return Ok(Input::Stored(Arc::new(file)));
    }
    Ok(Input::Stream(Box::new(Interruptible::new(file, interrupt))))
}

/// A page or a range of pages a line.
fn working_set(text: &str) -> Result<Vec<PageRun>, String> {
    let mut runs: Vec<PageRun> = Vec::new();
    for (line, at) in text.lines().zip(1..) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = || format!("line {at}: {line:?} is no page and no range such as 512-1023");
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
        let (first, last) = match line.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(line)?, number(line)?),
        };
        let count = last
            .checked_sub(first)
            .and_then(|n| n.checked_add(1))
            .ok_or_else(wrong)?;
        match runs.last_mut() {
            Some(run) if run.first.checked_add(run.count) == Some(first) => {
                run.count = run.count.checked_add(count).ok_or_else(wrong)?;
            }
            _ => runs.push(PageRun { first, count }),
        }
    }
    Ok(runs)
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "0 %".to_owned(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

fn packed_text(packed: &Packed) -> String {
    let pages = packed.memory_bytes / 4096;
    let mut text = format!(
        "{} of memory in {} ({})\n",
        size(packed.memory_bytes),
        size(packed.file_bytes),
        percent(packed.file_bytes, packed.memory_bytes),
    );
    text += &counts(
        pages,
        packed.zero_pages,
        packed.absent_pages,
        packed.data_pages,
        packed.stored_pages,
    );
    text + &format!("\nidentity {}", packed.identity)
}

fn counts(pages: u64, zero: u64, absent: u64, data: u64, stored: u64) -> String {
    let mut parts = vec![
        format!("{pages} pages"),
        format!("{} zero", percent(zero, pages)),
    ];
    if absent > 0 {
        parts.push(format!("{} as in the base", percent(absent, pages)));
    }
    parts.push(format!(
        "{} duplicates",
        percent(data.saturating_sub(stored), pages)
    ));
    parts.push(format!("{stored} stored"));
    parts.join(", ")
}

fn packed_json(packed: &Packed) -> serde_json::Value {
    json!({
        "format": "amdahl.image-pack/1",
        "identity": packed.identity.to_string(),
        "memory_bytes": packed.memory_bytes,
        "file_bytes": packed.file_bytes,
        "zero_pages": packed.zero_pages,
        "absent_pages": packed.absent_pages,
        "data_pages": packed.data_pages,
        "stored_pages": packed.stored_pages,
    })
}

/// Opens an image; what keeps it open if it is on standard input.
fn open(file: &ImageFile, interrupt: &Interrupt) -> Result<(Arc<Image>, Option<File>), Failure> {
    let (path, kept) = match is_dash(&file.image) {
        true => {
            let (kept, path) = or_interrupted(stdio::image(interrupt), interrupt)?;
            (path, Some(kept))
        }
        false => (file.image.clone(), None),
    };
    let options = file
        .base
        .iter()
        .fold(Image::options(), |options, base| options.base(base));
    let image = options.open_on(&Anywhere::default(), path);
    Ok((Arc::new(image.map_err(failure)?), kept))
}

/// `amdahl pager unpack`.
pub fn unpack(args: &PagerUnpack) -> Result<u8, Failure> {
    let interrupt = Interrupt::catch();
    let (image, _kept) = open(&args.file, &interrupt)?;
    let mut how = Unpack::new();
    if let Some(threads) = args.threads {
        how = how.threads(threads);
    }
    let mut meter = Meter::new("unpacking", args.quiet, &interrupt);
    let mut watch = |progress| meter.tell(progress);
    let unpacked = match is_dash(&args.output) {
        true => how.stream(&image, &mut stdio::output()?, &mut watch),
        false => how.file(&image, &args.output, &mut watch),
    };
    or_interrupted(unpacked.map_err(failure), &interrupt)?;
    Ok(0)
}

/// `amdahl pager verify`.
pub fn verify(args: &PagerVerify) -> Result<u8, Failure> {
    let interrupt = Interrupt::catch();
    let (image, _kept) = open(&args.file, &interrupt)?;
    let mut how = Verify::new();
    if let Some(threads) = args.threads {
        how = how.threads(threads);
    }
    let mut meter = Meter::new("verifying", args.quiet, &interrupt);
    let verified = how.run(&image, &mut |progress| meter.tell(progress));
    drop(meter);
    let verified = verified.map_err(failure)?;
    if args.json {
        print_json(&verified_json(&verified))?;
    } else if !args.quiet {
        print(&verified_text(&image, &verified))?;
    }
    Ok(match verified.damages.is_empty() {
        false => DAMAGED,
        true if !verified.is_complete => INTERRUPTED,
        true => 0,
    })
}

fn verified_text(image: &Image, verified: &Verified) -> String {
    if verified.is_good() {
        return format!(
            "good: {} pages in {} clusters, {} layers; identity {}",
            verified.pages,
            verified.clusters,
            image.info().len(),
            image.identity(),
        );
    }
    let mut text = String::new();
    if !verified.is_complete {
        let pages: u64 = image.info().iter().map(|layer| layer.pages).sum();
        text += &format!(
            "interrupted: {} of {pages} pages were looked at",
            verified.pages
        );
        if verified.damages.is_empty() {
            return text + ", nothing wrong was found in these";
        }
        text.push('\n');
    }
    for damage in &verified.damages {
        let pages = match &damage.pages {
            Some(pages) => format!("pages {} to {}: ", pages.start, pages.end - 1),
            None => String::new(),
        };
        text += &format!("{pages}{}\n", amdahl_report::plain::plain(&damage.what));
    }
    let told: u64 = verified
        .damages
        .iter()
        .flat_map(|damage| damage.pages.clone())
        .map(|pages| pages.end - pages.start)
        .sum();
    if told < verified.damaged_pages {
        text += &format!("and {} more pages\n", verified.damaged_pages - told);
    }
    text + &format!(
        "damaged: {} of {} pages cannot be read",
        verified.damaged_pages, verified.pages
    )
}

fn verified_json(verified: &Verified) -> serde_json::Value {
    let damage = |damage: &amdahl_image::Damage| {
        json!({
            "path": damage.path.to_string_lossy(),
            "first_page": damage.pages.as_ref().map(|pages| pages.start),
            "pages": damage.pages.as_ref().map(|pages| pages.end - pages.start),
            "what": damage.what,
        })
    };
    json!({
        "format": "amdahl.image-verify/1",
        "good": verified.is_good(),
        "complete": verified.is_complete,
        "pages": verified.pages,
        "clusters": verified.clusters,
        "damaged_pages": verified.damaged_pages,
        "damages": verified.damages.iter().map(damage).collect::<Vec<_>>(),
    })
}

/// `amdahl pager info`.
pub fn info(args: &PagerInfo) -> Result<u8, Failure> {
    let interrupt = Interrupt::catch();
    let (image, _kept) = open(&args.file, &interrupt)?;
    let shown = About::of(&image).map_err(failure)?;
    match args.json {
        true => print_json(&shown.json())?,
        false => print(&shown.text())?,
    }
    Ok(0)
}

/// What is told of an image.
struct About {
    layers: Vec<LayerInfo>,
    codecs: Vec<(&'static str, u64)>,
    working_set_pages: u64,
    regions: Vec<amdahl_image::Region>,
    metadata_bytes: usize,
}

impl About {
    fn of(image: &Image) -> amdahl_image::Result<About> {
        let name = |codec| match codec {
            amdahl_image::Codec::Plain => "plain",
            amdahl_image::Codec::Zstd => "zstd",
            amdahl_image::Codec::Lz4 => "lz4",
        };
        let codecs = image.codecs()?.into_iter();
        Ok(About {
            layers: image.info(),
            codecs: codecs.map(|(codec, count)| (name(codec), count)).collect(),
            working_set_pages: image.working_set()?.iter().map(|run| run.count).sum(),
            regions: image.regions()?,
            metadata_bytes: image.metadata()?.len(),
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (layer, at) in self.layers.iter().zip(0..) {
            if at > 0 {
                text += &format!("\nbase {at}: ");
            }
            text += &format!(
                "{}\n  memory    {}\n  file      {} ({})\n  pages     {}\n",
                amdahl_report::plain::plain(&layer.path.display().to_string()),
                size(layer.memory_bytes),
                size(layer.file_bytes),
                percent(layer.file_bytes, layer.memory_bytes),
                counts(
                    layer.pages,
                    layer.zero_pages,
                    layer.absent_pages,
                    layer.data_pages,
                    layer.stored_pages
                ),
            );
            text += &format!(
                "  clusters  {} of {}",
                layer.clusters,
                size(layer.cluster_bytes)
            );
            if at == 0 {
                let codecs: Vec<String> = self
                    .codecs
                    .iter()
                    .map(|(name, count)| format!("{count} {name}"))
                    .collect();
                text += &format!(
                    ": {}",
                    if codecs.is_empty() {
                        "none".to_owned()
                    } else {
                        codecs.join(", ")
                    }
                );
            }
            text += &format!("\n  identity  {}", layer.identity);
            if let Some(base) = layer.base {
                text += &format!("\n  base      {base}");
            }
            text.push('\n');
        }
        if self.working_set_pages > 0 {
            let bytes = self.working_set_pages.saturating_mul(4096);
            text += &format!(
                "working set: {} pages ({})\n",
                self.working_set_pages,
                size(bytes)
            );
        }
        for region in &self.regions {
            text += &format!(
                "guest {:#x} to {:#x}: at {:#x}\n",
                region.guest_address,
                region.guest_address + region.len,
                region.offset
            );
        }
        if self.metadata_bytes > 0 {
            text += &format!("metadata: {} bytes\n", self.metadata_bytes);
        }
        text.truncate(text.trim_end().len());
        text
    }

    fn json(&self) -> serde_json::Value {
        let layer = |layer: &LayerInfo| {
            json!({
                "path": layer.path.to_string_lossy(),
                "identity": layer.identity.to_string(),
                "base": layer.base.map(|base| base.to_string()),
                "memory_bytes": layer.memory_bytes,
                "file_bytes": layer.file_bytes,
                "cluster_bytes": layer.cluster_bytes,
                "pages": layer.pages,
                "zero_pages": layer.zero_pages,
                "absent_pages": layer.absent_pages,
                "data_pages": layer.data_pages,
                "stored_pages": layer.stored_pages,
                "duplicate_pages": layer.data_pages.saturating_sub(layer.stored_pages),
                "clusters": layer.clusters,
            })
        };
        let region = |region: &amdahl_image::Region| {
            json!({
                "guest_address": region.guest_address,
                "offset": region.offset,
                "bytes": region.len,
            })
        };
        let codecs: serde_json::Map<String, serde_json::Value> = self
            .codecs
            .iter()
            .map(|(name, count)| ((*name).to_owned(), json!(count)))
            .collect();
        json!({
            "format": "amdahl.image-info/1",
            "layers": self.layers.iter().map(layer).collect::<Vec<_>>(),
            "clusters_by_codec": codecs,
            "working_set_pages": self.working_set_pages,
            "regions": self.regions.iter().map(region).collect::<Vec<_>>(),
            "metadata_bytes": self.metadata_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_sets_are_read() {
        let runs = working_set("# first\n7\n8-9 # more\n\n 3 - 3 \n").unwrap();
        let run = |first, count| PageRun { first, count };
        assert_eq!(runs, [run(7, 3), run(3, 1)]);
        assert_eq!(working_set("1-18446744073709551615\n0").unwrap().len(), 2);
        for wrong in [
            "x",
            "3-",
            "5-4",
            "-1",
            "0-18446744073709551615",
            "99999999999999999999",
            "0-5\n6-18446744073709551615",
        ] {
            assert!(working_set(wrong).is_err(), "{wrong}");
        }
    }
}
