//! Writes the folder of a result so that nobody ever finds half a result in it.
//!
//! Files are written into a hidden folder beside the destination (inside it, if it exists) and
//! renamed into place at the end, `result.json` last. The hidden folder is locked while its
//! writer lives; the next writer to the same place removes those whose writer was killed.

mod unfinished;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::check::{Checked, Invalid, check};
use crate::load::RESULT_FILE;
use crate::samples::{self, SAMPLES_FILE};
use crate::schema::{SampleRow, ScaleResult};
use unfinished::Unfinished;

/// Why a result could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The operating system refused; the error number is in `source`.
    #[error("cannot {operation} {}: {source}; {}", path.display(), remedy(source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// With the error number of the system call.
        #[source]
        source: io::Error,
    },
    /// The result breaks the format's own rules: a defect of the caller.
    #[error("the result is not valid: `{at}` {what}; this is a defect of amdahl, please report it")]
    Invalid {
        /// Path of the figure.
        at: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file name that would leave the folder.
    #[error("`{name}` is not a plain file name")]
    Name {
        /// The name.
        name: String,
    },
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space, or write to another disk"
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            "choose a folder that you may write to"
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            "choose a folder inside one that exists"
        }
        _ => "choose another folder",
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SaveError {
    let path = path.to_owned();
    move |source| SaveError::Io {
        operation,
        path,
        source,
    }
}

/// A result folder that is being written; dropped before [`commit`](Self::commit) it leaves nothing.
#[derive(Debug)]
pub struct Folder {
    destination: PathBuf,
    unfinished: Unfinished,
    /// The destination was there before: its other files stay.
    is_update: bool,
}

impl Folder {
    /// Begins a folder at `destination`, whose parent must exist. Tells a read-only place at once,
    /// so call it before measuring. Removes what killed writers left beside it.
    ///
    /// # Errors
    /// [`SaveError::Io`] when the place cannot be written to.
    pub fn create(destination: &Path) -> Result<Folder, SaveError> {
        let parent = match destination.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => destination,
        };
        let is_update = match fs::metadata(destination) {
            Ok(metadata) if !metadata.is_dir() => {
                let error = io::Error::from_raw_os_error(rustix::io::Errno::NOTDIR.raw_os_error());
                return Err(failed("write the folder", destination)(error));
            }
            found => found.is_ok(),
        };
        // Beside a new folder, so that it appears whole; inside an existing one, which may be
        // another file system than its parent.
        let place = if is_update { destination } else { parent };
        let unfinished = Unfinished::create(place).map_err(failed("create a folder in", place))?;
        Ok(Folder {
            destination: destination.to_owned(),
            unfinished,
            is_update,
        })
    }

    /// Where the folder will be.
    pub fn destination(&self) -> &Path {
        &self.destination
    }

    /// A new file of the folder, buffered. Flush it and look at the error before [`commit`](Self::commit).
    ///
    /// # Errors
    /// [`SaveError::Name`] when `name` is not a single path component, [`SaveError::Io`] otherwise.
    pub fn file(&self, name: &str) -> Result<BufWriter<File>, SaveError> {
        if Path::new(name).file_name() != Some(name.as_ref()) {
            return Err(SaveError::Name {
                name: name.to_owned(),
            });
        }
        let path = self.unfinished.path().join(name);
        let file = File::create(&path).map_err(failed("create", &self.destination.join(name)))?;
        Ok(BufWriter::with_capacity(256 << 10, file))
    }

    /// Gives an error of a writer from [`file`](Self::file) its name and remedy.
    pub fn write_error(&self, name: &str, source: io::Error) -> SaveError {
        failed("write", &self.destination.join(name))(source)
    }

    /// Writes `content` as the file `name`.
    ///
    /// # Errors
    /// As [`file`](Self::file), and for a full disk.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), SaveError> {
        let mut file = self.file(name)?;
        file.write_all(content)
            .and_then(|()| file.flush())
            .map_err(|source| self.write_error(name, source))
    }

    /// Checks `result` and writes it as [`RESULT_FILE`].
    ///
    /// # Errors
    /// [`SaveError::Invalid`] when the result would not be read again, or as [`write`](Self::write).
    pub fn result(&self, result: &ScaleResult) -> Result<(), SaveError> {
        self.write(RESULT_FILE, to_json(result)?.as_bytes())
    }

    /// Writes `rows` as [`SAMPLES_FILE`].
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn samples(&self, rows: impl IntoIterator<Item = SampleRow>) -> Result<(), SaveError> {
        samples::write(rows, self.file(SAMPLES_FILE)?)
            .map(drop)
            .map_err(|error| self.write_error(SAMPLES_FILE, io::Error::other(error)))
    }

    /// Puts the files in place. A new folder appears whole; in one that exists each file is
    /// replaced whole, [`RESULT_FILE`] last, and other files stay.
    ///
    /// # Errors
    /// [`SaveError::Io`] when a file cannot be renamed into place.
    pub fn commit(self) -> Result<(), SaveError> {
        let from = self.unfinished.path().to_owned();
        for entry in list(&from)? {
            let file = File::open(&entry).map_err(failed("open", &entry))?;
            // Some file systems tell that the disk is full only now.
            file.sync_all().map_err(failed("write", &entry))?;
        }
        if !self.is_update {
            match fs::rename(&from, &self.destination) {
                // Somebody else made it meanwhile: then it is an update after all.
                Err(_) if self.destination.is_dir() => {}
                other => return other.map_err(failed("create", &self.destination)),
            }
        }
        for entry in list(&from)? {
            let to = self.destination.join(entry.file_name().unwrap_or_default());
            fs::rename(&entry, &to).map_err(failed("replace", &to))?;
        }
        Ok(())
    }
}

/// Checks `result` and gives it as the text of `result.json`.
///
/// # Errors
/// [`SaveError::Invalid`] when [`load`](crate::load::load) would refuse it.
pub fn to_json(result: &ScaleResult) -> Result<String, SaveError> {
    json_of(result, check, serde_json::to_string_pretty)
}

/// Checks a result of any schema and gives it as the text of its file, in the form that `write`
/// gives it.
pub(crate) fn json_of<T>(
    result: &T,
    check: impl Fn(&T) -> Checked,
    write: impl Fn(&T) -> serde_json::Result<String>,
) -> Result<String, SaveError> {
    check(result).map_err(|Invalid { at, what }| SaveError::Invalid { at, what })?;
    let text = write(result).map_err(|error| SaveError::Invalid {
        at: String::new(),
        what: error.to_string(),
    })?;
    Ok(text + "\n")
}

/// Writes a folder that holds nothing but [`RESULT_FILE`].
///
/// # Errors
/// As [`Folder::create`], [`Folder::result`] and [`Folder::commit`].
pub fn save(result: &ScaleResult, destination: &Path) -> Result<(), SaveError> {
    let folder = Folder::create(destination)?;
    folder.result(result)?;
    folder.commit()
}

/// Files of the unfinished folder, [`RESULT_FILE`] last.
fn list(folder: &Path) -> Result<Vec<PathBuf>, SaveError> {
    let mut paths = fs::read_dir(folder)
        .and_then(|entries| {
            entries
                .map(|entry| entry.map(|e| e.path()))
                .collect::<io::Result<Vec<_>>>()
        })
        .map_err(failed("read", folder))?;
    paths.sort_by_key(|path| (path.ends_with(RESULT_FILE), path.clone()));
    Ok(paths)
}
