//! What VMs begin with: an image or a raw file, and which of its pages are needed first.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use amdahl_image::{Image, Store};
use amdahl_object::{Limits, is_object};
use amdahl_pager::succession::Filled;
use amdahl_pager::{
    CleanPages, Extent, FileSource, ImageSource, PAGE, Source, SourceError, StoreSource,
};

use amdahl_remote::{Connect, Identity, Remote};

use super::{pages, tell};
use crate::cli::serve::PagerServe;
use crate::failure::Failure;
use crate::pager::image;
use crate::pager::shelf::Anywhere;

/// One copy of all pages.
pub struct Clean {
    pub pages: Arc<CleanPages>,
    /// What another process needs to go on with those that map it.
    pub filled: Arc<Filled>,
}

/// The memory, shared by all VMs.
pub struct Memory {
    /// Its content.
    pub source: Arc<dyn Source>,
    /// Bytes.
    pub bytes: u64,
    /// Pages that are needed first, in their order.
    pub working_set: Vec<Range<u64>>,
    /// In a word.
    pub kind: &'static str,
    /// Another memory has another one.
    pub identity: Identity,
    /// The source, where there is one copy of its pages for all.
    pub clean: Option<Clean>,
    image: Option<Arc<ImageSource>>,
    object: Option<Arc<StoreSource>>,
    remote: Option<Arc<Remote>>,
    recorder: Option<Arc<Recorder>>,
}

impl Memory {
    /// For how long the other host, which is away, is waited for; `None`: it is there, or lost, or there is none.
    pub fn away(&self) -> Option<Duration> {
        self.remote.as_ref()?.away()
    }

    /// Opens it.
    pub fn open(args: &PagerServe, cache_bytes: usize) -> Result<Memory, Failure> {
        let path = &args.image;
        let address = path.to_str().and_then(|path| path.strip_prefix("tcp:"));
        // What objects keep is a part of the cache.
        let mut limits = Limits {
            timeout: Duration::from_secs(args.read_timeout),
            ..Limits::default()
        };
        limits.kept_bytes = limits.kept_bytes.min(cache_bytes / 4);
        let cache_bytes = match is_object(path) {
            true => cache_bytes - limits.kept_bytes,
            false => cache_bytes,
        };
        let shelf = Anywhere::within(limits);
        let mut memory = match address {
            Some(address) => {
                let remote = Remote::connect(Connect {
                    name: args.tls.tls_name.clone(),
                    credentials: args.tls.credentials(),
                    timeout: Duration::from_secs(args.read_timeout),
                    recovery: Duration::from_secs(args.recover),
                    ..Connect::new(address)
                });
                let remote = Arc::new(remote.map_err(pages::failure)?);
                let working_set = match args.no_working_set {
                    true => Vec::new(),
                    false => remote.working_set().to_vec(),
                };
                Memory {
                    bytes: remote.len(),
                    identity: remote.identity(),
                    source: Arc::clone(&remote) as Arc<dyn Source>,
                    working_set,
                    kind: "memory of another host",
                    clean: None,
                    image: None,
                    object: None,
                    remote: Some(remote),
                    recorder: None,
                }
            }
            None if is_image(&shelf, path, args)? => {
                let options = Image::options().cache_bytes(cache_bytes);
                let options = args
                    .base
                    .iter()
                    .fold(options, |options, base| options.base(base));
                let image = options.open_on(&shelf, path).map_err(image::failure)?;
                let working_set = match args.no_working_set {
                    true => Vec::new(),
                    false => image.working_set().map_err(image::failure)?,
                };
                let (bytes, identity) = (image.memory_bytes(), image.identity());
                // Half of a strong hash is enough to tell memories apart.
                let identity = *identity.0.first_chunk().expect("longer");
                let source = Arc::new(ImageSource::new(Arc::new(image)));
                Memory {
                    source: Arc::clone(&source) as Arc<dyn Source>,
                    bytes,
                    working_set: working_set
                        .iter()
                        .map(|run| run.first..run.first.saturating_add(run.count))
                        .collect(),
                    kind: "image",
                    identity,
                    clean: None,
                    image: Some(source),
                    object: None,
                    remote: None,
                    recorder: None,
                }
            }
            None if is_object(path) => {
                let failed = |error| unreadable(path, &error);
                let object = shelf.object(path).map_err(failed)?;
                let identity = object.version();
                let source = Arc::new(StoreSource::new(Box::new(object)).map_err(failed)?);
                if source.is_empty() {
                    return Err(empty(path));
                }
                Memory {
                    bytes: source.len(),
                    source: Arc::clone(&source) as Arc<dyn Source>,
                    working_set: Vec::new(),
                    kind: "raw memory",
                    identity,
                    clean: None,
                    image: None,
                    object: Some(source),
                    remote: None,
                    recorder: None,
                }
            }
            None => {
                let raw = |error| unreadable(path, &error);
                // Once: by its name another may be found the next time.
                let file = File::open(path).map_err(raw)?;
                let identity = identity_of(&file).map_err(raw)?;
                let source = FileSource::of(file).map_err(raw)?;
                if source.is_empty() {
                    return Err(empty(path));
                }
                Memory {
                    bytes: source.len(),
                    source: Arc::new(source),
                    working_set: Vec::new(),
                    kind: "raw memory",
                    identity,
                    clean: None,
                    image: None,
                    object: None,
                    remote: None,
                    recorder: None,
                }
            }
        };
        if args.share {
            let refused = |why: &dyn Display| Failure::machine(format!("--share: {why}"));
            let filled = Filled::new(memory.bytes, memory.identity);
            let filled = Arc::new(filled.map_err(|error| refused(&error))?);
            let pages = CleanPages::new(Arc::clone(&memory.source), memory.bytes)
                .map(|pages| pages.timeout(Duration::from_secs(args.read_timeout)))
                .and_then(|pages| pages.noted(Arc::clone(&filled)))
                .map_err(|error| refused(&error))?;
            let pages = Arc::new(pages);
            memory.source = Arc::clone(&pages) as Arc<dyn Source>;
            memory.clean = Some(Clean { pages, filled });
        }
        if let Some(path) = &args.record_working_set {
            // What is fetched before it is touched would be missed.
            memory.working_set.clear();
            let recorder = Arc::new(Recorder::new(
                Arc::clone(&memory.source),
                path,
                memory.bytes,
            ));
            memory.source = Arc::clone(&recorder) as Arc<dyn Source>;
            memory.recorder = Some(recorder);
        }
        Ok(memory)
    }

    /// Pages of the working set, counted as often as they are named.
    pub fn working_set_pages(&self) -> u64 {
        let pages = |range: &Range<u64>| range.end - range.start;
        self.working_set.iter().map(pages).sum()
    }

    /// The same in words, with what stands before.
    pub fn working_set_text(&self) -> String {
        match self.working_set_pages() {
            0 => String::new(),
            pages => format!(", working set {}", tell::pages(pages as usize)),
        }
    }

    /// More words about the last error, once.
    pub fn take_error(&self) -> Option<String> {
        Some(self.take_failure()?.0)
    }

    /// The same, and whether the image is damaged.
    pub fn take_failure(&self) -> Option<(String, bool)> {
        match (&self.image, &self.object) {
            (Some(image), _) => image.take_failure(),
            (None, Some(object)) => Some((object.take_error()?, false)),
            (None, None) => None,
        }
    }

    /// Why the host whose memory it is may not be reached later, once.
    pub fn take_trouble(&self) -> Option<String> {
        self.remote.as_ref()?.take_trouble()
    }

    /// What is touched is written down.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }
}

/// Of a raw file: which file it is, and when it was changed. Its content would take as long to read as it is large.
fn identity_of(file: &File) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    let of = file.metadata()?;
    let which = of.dev() ^ of.ino().rotate_left(32);
    let when =
        (of.mtime() as u64).rotate_left(30) ^ of.mtime_nsec() as u64 ^ of.len().rotate_left(48);
    let mut identity = Identity::default();
    identity[..8].copy_from_slice(&which.to_le_bytes());
    identity[8..].copy_from_slice(&when.to_le_bytes());
    Ok(identity)
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::result(format!("{}: {error}", path.display()))
}

fn empty(path: &Path) -> Failure {
    Failure::usage(format!("{}: it is empty", path.display()))
}

/// Whether it is an image. One that is damaged where it begins must not be taken for memory, so a name that says it is one is believed.
fn is_image(shelf: &Anywhere, path: &Path, args: &PagerServe) -> Result<bool, Failure> {
    let is_named = path.extension().is_some_and(|end| end == "ami");
    if args.raw || is_named || !args.base.is_empty() {
        return Ok(!args.raw);
    }
    let mut begin = [0; amdahl_image::MAGIC.len()];
    if is_object(path) {
        let object = shelf.object(path);
        let read = object.and_then(|object| object.read_exact_at(&mut begin, 0));
        return is_magic(read, &begin).map_err(|error| unreadable(path, &error));
    }
    // Before it is opened: that waits at a pipe.
    let kind = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    if !kind.is_file() {
        return Err(Failure::usage(format!(
            "{}: a file is needed, whose pages can be read in any order",
            path.display()
        )));
    }
    let mut file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let read = file.read_exact(&mut begin);
    is_magic(read, &begin).map_err(|error| unreadable(path, &error))
}

fn is_magic(read: io::Result<()>, begin: &[u8]) -> io::Result<bool> {
    match read {
        Ok(()) => Ok(begin == amdahl_image::MAGIC),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// A source that notes the order in which its pages are asked for the first time. Exact where a pager asks for touched pages alone.
pub struct Recorder {
    source: Arc<dyn Source>,
    path: PathBuf,
    is_on: AtomicBool,
    touched: Mutex<Touched>,
}

#[derive(Default)]
struct Touched {
    seen: Vec<u64>,
    runs: Vec<Range<u64>>,
}

impl Touched {
    fn note(&mut self, page: u64) {
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        let Some(seen) = self.seen.get_mut(word) else {
            return;
        };
        if *seen & bit != 0 {
            return;
        }
        *seen |= bit;
        match self.runs.last_mut() {
            Some(last) if last.end == page => last.end += 1,
            _ => self.runs.push(page..page + 1),
        }
    }
}

impl Recorder {
    fn new(source: Arc<dyn Source>, path: &Path, bytes: u64) -> Recorder {
        let words = bytes.div_ceil(PAGE as u64).div_ceil(64) as usize;
        Recorder {
            source,
            path: path.to_owned(),
            is_on: AtomicBool::new(true),
            touched: Mutex::new(Touched {
                seen: vec![0; words],
                runs: Vec::new(),
            }),
        }
    }

    /// Goes on with what another process has written there: those pages were touched before.
    pub fn resume(&self) {
        let Ok(text) = std::fs::read_to_string(&self.path) else {
            return;
        };
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        let most = touched.seen.len() as u64 * 64;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (first, last) = line.split_once('-').unwrap_or((line, line));
            if let (Ok(first), Ok(last)) = (first.parse::<u64>(), last.parse::<u64>()) {
                for page in first..last.saturating_add(1).min(most) {
                    touched.note(page);
                }
            }
        }
    }

    /// From now on pages are fetched that nobody touches.
    pub fn end(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    /// Writes what was touched until now, in the form that `pack --working-set` reads.
    pub fn write(&self) -> Result<(), Failure> {
        let text = {
            let touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
            text(&touched.runs)
        };
        let write = || -> io::Result<()> {
            let folder = match self.path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            };
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(text.as_bytes())?;
            file.persist(&self.path)?;
            Ok(())
        };
        write().map_err(|error| {
            Failure::result(format!(
                "--record-working-set {}: {error}",
                self.path.display()
            ))
        })
    }
}

fn text(runs: &[Range<u64>]) -> String {
    let pages: u64 = runs.iter().map(|run| run.end - run.start).sum();
    let mut text =
        format!("# {pages} pages of 4096 bytes, in the order in which they were touched\n");
    for run in runs {
        text += &match run.end - run.start {
            1 => format!("{}\n", run.start),
            _ => format!("{}-{}\n", run.start, run.end - 1),
        };
    }
    text
}

impl Source for Recorder {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.source.read(offset, into)
    }

    fn read_ahead(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.source.read_ahead(offset, into)
    }

    fn is_away(&self) -> bool {
        self.source.is_away()
    }

    /// Asked once for each page that is fetched, before it is read.
    fn extent(&self, offset: u64, len: u64) -> Extent {
        if self.is_on.load(Ordering::Relaxed) {
            let first = offset / PAGE as u64;
            let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
            for page in first..first.saturating_add(len / PAGE as u64) {
                touched.note(page);
            }
        }
        self.source.extent(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was looked for by its name once more, after it was opened.
    #[test]
    fn a_raw_file_is_known_by_what_it_is_and_not_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (name, other) = (folder.path().join("memory"), folder.path().join("other"));
        std::fs::write(&name, [1; PAGE]).unwrap();
        let file = File::open(&name).unwrap();
        let identity = identity_of(&file).unwrap();
        std::fs::write(&other, [2; 2 * PAGE]).unwrap();
        std::fs::rename(&other, &name).unwrap();
        assert_eq!(identity_of(&file).unwrap(), identity);
        assert_ne!(identity_of(&File::open(&name).unwrap()).unwrap(), identity);
    }

    #[test]
    fn pages_are_written_once_in_the_order_in_which_they_came() {
        let mut touched = Touched {
            seen: vec![0; 2],
            runs: Vec::new(),
        };
        for page in [70, 5, 6, 7, 5, 71, 8, 1000] {
            touched.note(page);
        }
        let text = text(&touched.runs);
        let (_, lines) = text.split_once('\n').unwrap();
        assert_eq!(lines, "70\n5-7\n71\n8\n");
        assert!(text.starts_with("# 6 pages"));
    }
}
