//! Where layers are opened by their paths, and what lies beside them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::Store;

/// Files of a folder that are looked at.
const FILES_MAX: usize = 4096;

/// Where an image and its bases lie: the file system ([`Files`]), or something else in which paths mean something.
///
/// A path with another last component is that of a neighbour.
pub trait Shelf {
    /// Opens what is at `path`.
    ///
    /// # Errors
    /// `NotFound` if nothing is there, and those of the shelf.
    fn open(&self, path: &Path) -> io::Result<Box<dyn Store>>;

    /// Paths of all that lies beside `path`, itself included, in any order; of some thousands at most.
    ///
    /// # Errors
    /// Those of the shelf.
    fn beside(&self, path: &Path) -> io::Result<Vec<PathBuf>>;

    /// Opening it does not wait for somebody else, as opening a pipe does.
    fn is_ready(&self, _path: &Path) -> bool {
        true
    }
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files;

impl Shelf for Files {
    fn open(&self, path: &Path) -> io::Result<Box<dyn Store>> {
        Ok(Box::new(File::open(path)?))
    }

    fn beside(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let files = fs::read_dir(folder)?.take(FILES_MAX);
        Ok(files.filter_map(|file| Some(file.ok()?.path())).collect())
    }

    fn is_ready(&self, path: &Path) -> bool {
        path.is_file()
    }
}
