//! The folder of a recording: the one place of this crate with system calls.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::read::{Part, ReadError, read_part};
use super::write::{Meta, PartWriter, WriteError};
use crate::event::{Event, Ns};

/// Larger files are refused unread.
const PART_BYTES_MAX: u64 = 256 << 20;
/// A part is written after so long, whether it is full or not.
const PART_NS: Ns = 5_000_000_000;

/// Why a folder could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The operating system refused; the error number is in `source`.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// With the error number.
        #[source]
        source: io::Error,
    },
    /// A part could not be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Which part.
        path: PathBuf,
        /// Why.
        #[source]
        source: WriteError,
    },
    /// A part could not be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which part.
        path: PathBuf,
        /// Why.
        #[source]
        source: ReadError,
    },
    /// There is none.
    #[error("{} holds no parts of a recording", path.display())]
    Empty {
        /// Which folder.
        path: PathBuf,
    },
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io {
        operation,
        path,
        source,
    }
}

/// What a finished recording keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Bytes of all parts.
    pub bytes: u64,
    /// Events of them.
    pub events: u64,
    /// Events of parts that were removed because the disk space was used up.
    pub events_dropped: u64,
    /// When the oldest event that is kept happened.
    pub since: Option<Ns>,
}

/// Writes parts, and removes the oldest where they would take more space than allowed: what is
/// kept is the end of the recording.
#[derive(Debug)]
pub struct FolderWriter {
    folder: PathBuf,
    bytes_max: u64,
    part: PartWriter,
    number: u64,
    /// Number, bytes, events and first time of the parts that are there.
    parts: VecDeque<(u64, u64, u64, Ns)>,
    kept: Kept,
}

impl FolderWriter {
    /// Writes into `folder`, which exists and is empty, at most `bytes_max` bytes (and one part).
    pub fn new(folder: &Path, meta: Meta, bytes_max: u64) -> FolderWriter {
        FolderWriter {
            folder: folder.to_owned(),
            bytes_max,
            part: PartWriter::new(meta),
            number: 0,
            parts: VecDeque::new(),
            kept: Kept::default(),
        }
    }

    /// The recording begins now, whatever its description says. To be told before any event.
    pub fn begin_at(&mut self, begin: Ns) {
        self.part.begin_at(begin);
    }

    /// Adds an event; in order of time.
    ///
    /// # Errors
    /// When a part is full and cannot be written.
    pub fn add(&mut self, event: Event) -> Result<(), FolderError> {
        let ts = event.ts();
        let is_full = self.part.add(event);
        let is_old = self
            .part
            .first()
            .is_some_and(|first| ts.saturating_sub(first) > PART_NS);
        if is_full || is_old {
            self.end_part()
        } else {
            Ok(())
        }
    }

    /// Writes the last part.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(mut self) -> Result<Kept, FolderError> {
        if !self.part.is_empty() || self.number == 0 {
            self.end_part()?;
        }
        self.kept.since = self.parts.front().map(|part| part.3);
        Ok(self.kept)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:06}.parquet"))
    }

    fn end_part(&mut self) -> Result<(), FolderError> {
        self.number += 1;
        let (events, first) = (self.part.len() as u64, self.part.first().unwrap_or(0));
        let path = self.path(self.number);
        let unfinished = self.folder.join(".unfinished");
        let file = File::create(&unfinished).map_err(failed("create", &unfinished))?;
        let file = self.part.write(file).map_err(|source| FolderError::Write {
            path: path.clone(),
            source,
        })?;
        let bytes = file
            .metadata()
            .map_err(failed("look at", &unfinished))?
            .len();
        fs::rename(&unfinished, &path).map_err(failed("rename", &unfinished))?;
        self.parts.push_back((self.number, bytes, events, first));
        self.kept.bytes += bytes;
        self.kept.events += events;
        while self.kept.bytes > self.bytes_max && self.parts.len() > 1 {
            let Some((number, bytes, events, _)) = self.parts.pop_front() else {
                break;
            };
            let path = self.path(number);
            fs::remove_file(&path).map_err(failed("remove", &path))?;
            self.kept.bytes -= bytes;
            self.kept.events -= events;
            self.kept.events_dropped += events;
        }
        Ok(())
    }
}

/// Whether `path` is named as a part is: by a number. Parquet files of other names may lie beside.
pub fn is_part(path: &Path) -> bool {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    path.extension()
        .is_some_and(|extension| extension == "parquet")
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads the parts of a folder one after the other.
#[derive(Debug)]
pub struct FolderReader {
    parts: std::vec::IntoIter<PathBuf>,
    window: Window,
}

/// A part of the time of a recording, in nanoseconds since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Events before it are left out.
    pub from: Ns,
    /// Events after it are left out.
    pub to: Ns,
}

impl Default for Window {
    /// All of it.
    fn default() -> Window {
        Window::new(0, Ns::MAX)
    }
}

impl Window {
    /// From one time to another.
    pub fn new(from: Ns, to: Ns) -> Window {
        Window { from, to }
    }

    /// Leaves the events of this window and what is known of threads until then; false where it comes after the window.
    fn cut(&self, part: &mut Part) -> bool {
        let begin = part.meta.begin;
        let first = part.events.first().map_or(begin, Event::ts);
        let (from, to) = (
            begin.saturating_add(self.from),
            begin.saturating_add(self.to),
        );
        part.events.retain_mut(|event| {
            if let Event::Thread { ts, .. } | Event::Allowed { ts, .. } = event {
                *ts = from.max(*ts);
            }
            (from..=to).contains(&event.ts())
        });
        if self.from > 0 {
            part.meta.begin = part.meta.begin.max(from);
        }
        first <= to
    }
}

impl FolderReader {
    /// The parts of `path`: a folder of them, or one of them.
    ///
    /// # Errors
    /// When there is none, or the folder cannot be read.
    pub fn open(path: &Path) -> Result<FolderReader, FolderError> {
        let metadata = fs::metadata(path).map_err(failed("open", path))?;
        if !metadata.is_dir() {
            let parts = vec![path.to_owned()].into_iter();
            return Ok(FolderReader {
                parts,
                window: Window::default(),
            });
        }
        let mut parts = Vec::new();
        for entry in fs::read_dir(path).map_err(failed("read", path))? {
            let part = entry.map_err(failed("read", path))?.path();
            if is_part(&part) {
                parts.push(part);
            }
        }
        if parts.is_empty() {
            return Err(FolderError::Empty {
                path: path.to_owned(),
            });
        }
        // Numbers of more than six digits are longer names.
        parts.sort_by_key(|part| (part.as_os_str().len(), part.clone()));
        Ok(FolderReader {
            parts: parts.into_iter(),
            window: Window::default(),
        })
    }

    /// Only what happened in a window.
    pub fn within(self, window: Window) -> FolderReader {
        FolderReader { window, ..self }
    }
}

impl Iterator for FolderReader {
    type Item = Result<Part, FolderError>;

    fn next(&mut self) -> Option<Self::Item> {
        let path = self.parts.next()?;
        let mut part = match read_file(&path) {
            Ok(part) => part,
            Err(error) => return Some(Err(error)),
        };
        self.window.cut(&mut part).then_some(Ok(part))
    }
}

fn read_file(path: &Path) -> Result<Part, FolderError> {
    // Asked before opening: opening a pipe would wait for a writer.
    let metadata = fs::metadata(path).map_err(failed("open", path))?;
    let refused = |text: &str| FolderError::Read {
        path: path.to_owned(),
        source: ReadError::Parquet(text.to_owned()),
    };
    if !metadata.is_file() {
        return Err(refused("it is not a regular file"));
    }
    if metadata.len() > PART_BYTES_MAX {
        return Err(refused("it is larger than a part of a recording"));
    }
    let bytes = fs::read(path).map_err(failed("read", path))?;
    read_part(bytes).map_err(|source| FolderError::Read {
        path: path.to_owned(),
        source,
    })
}
