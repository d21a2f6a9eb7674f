//! The files of this machine.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use object::ReadCache;

use crate::cache::Cache;
use crate::{Elf, ElfError, Files};

/// The cache of a machine with very many libraries has some MiB.
const CACHE_BYTES_MAX: u64 = 64 << 20;

/// Reads each file once.
pub struct System {
    keep: Box<dyn Fn(&str) -> bool>,
    cache: Cache,
    read: RefCell<HashMap<PathBuf, Option<Rc<Elf>>>>,
}

/// Why a program or library cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be opened.
    #[error("cannot read {}: {source}", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is something else.
    #[error("{}: {source}", path.display())]
    Elf {
        /// Which.
        path: PathBuf,
        /// Why.
        source: ElfError,
    },
}

impl System {
    /// Of symbols, the names that `keep` answers true for are read.
    pub fn new(keep: impl Fn(&str) -> bool + 'static) -> System {
        let path = Path::new("/etc/ld.so.cache");
        let is_small = fs::metadata(path).is_ok_and(|metadata| metadata.len() <= CACHE_BYTES_MAX);
        let cache = is_small
            .then(|| Cache::parse(&fs::read(path).ok()?))
            .flatten();
        System {
            keep: Box::new(keep),
            cache: cache.unwrap_or_default(),
            read: RefCell::default(),
        }
    }

    /// Reads one file, of which only headers and tables come into memory.
    ///
    /// # Errors
    /// [`ReadError`] where it cannot be opened or is no ELF file.
    pub fn read(&self, path: &Path) -> Result<Elf, ReadError> {
        let failed = |source| ReadError::Open {
            path: path.to_owned(),
            source,
        };
        // Opening a pipe would wait for its other end.
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(failed(io::Error::other("it is no regular file")));
        }
        let file = ReadCache::new(File::open(path).map_err(failed)?);
        Elf::parse(&file, &self.keep).map_err(|source| ReadError::Elf {
            path: path.to_owned(),
            source,
        })
    }
}

impl Files for System {
    fn elf(&self, path: &Path) -> Option<Rc<Elf>> {
        if let Some(known) = self.read.borrow().get(path) {
            return known.clone();
        }
        let elf = self.read(path).ok().map(Rc::new);
        self.read.borrow_mut().insert(path.to_owned(), elf.clone());
        elf
    }

    fn cached(&self, name: &str) -> Vec<PathBuf> {
        self.cache.paths(name).to_vec()
    }
}
