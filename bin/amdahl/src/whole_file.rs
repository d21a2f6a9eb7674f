//! Files that appear whole under their name, or not at all: what was there stays until then.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::failure::Failure;

/// What is written to a [`WholeFile`].
pub type Out = BufWriter<Box<dyn Write>>;

/// A file that is written beside its place; dropped before [`finish`](Self::finish) it leaves nothing.
pub struct WholeFile {
    typed: PathBuf,
    /// None: a device or a pipe, into which all goes at once.
    beside: Option<(NamedTempFile, PathBuf)>,
    /// What to write to.
    pub out: Out,
}

impl WholeFile {
    /// Begins the file that is to be called `path`.
    pub fn create(path: &Path) -> Result<WholeFile, Failure> {
        let failed = |error| failed(path, "create", &error);
        let there = fs::metadata(path).ok();
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            let out: Box<dyn Write> = Box::new(File::create(path).map_err(failed)?);
            return Ok(WholeFile {
                typed: path.to_owned(),
                beside: None,
                out: BufWriter::new(out),
            });
        }
        // Through a link to what it leads to, as writing would.
        let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let folder = place
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        // As any other file: the umask decides, or who made the one that is there.
        let mode = there.map(|there| there.permissions().mode() & 0o777);
        let file = tempfile::Builder::new()
            .prefix(".amdahl-part-")
            .permissions(Permissions::from_mode(mode.unwrap_or(0o666)))
            .tempfile_in(folder)
            .map_err(failed)?;
        let out: Box<dyn Write> = Box::new(file.reopen().map_err(failed)?);
        Ok(WholeFile {
            typed: path.to_owned(),
            beside: Some((file, place)),
            out: BufWriter::new(out),
        })
    }

    /// An error of `out`, for the user.
    pub fn failed(&self, error: &io::Error) -> Failure {
        failed(&self.typed, "write", error)
    }

    /// All is written: it takes its place.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.out.flush().map_err(|error| self.failed(&error))?;
        if let Some((file, place)) = self.beside {
            file.persist(place)
                .map_err(|error| failed(&self.typed, "write", &error.error))?;
        }
        Ok(())
    }
}

/// Writes `text` to the file that is to be called `path`.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let mut file = WholeFile::create(path)?;
    file.out
        .write_all(text.as_bytes())
        .map_err(|error| file.failed(&error))?;
    file.finish()
}

fn failed(path: &Path, what: &str, error: &io::Error) -> Failure {
    Failure::result(format!(
        "cannot {what} {}: {error}; choose another file",
        path.display()
    ))
}
