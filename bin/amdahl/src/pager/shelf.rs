//! Where images are: files by their paths, objects of a store by their names.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use amdahl_image::{Files, Shelf, Store};
use amdahl_object::{Limits, Object, Objects, is_object};

/// Files and objects. What is needed for objects is there when the first one is asked for.
#[derive(Default)]
pub struct Anywhere {
    limits: Limits,
    objects: OnceLock<amdahl_object::Result<Objects>>,
}

impl Anywhere {
    /// Objects are asked for within these limits.
    pub fn within(limits: Limits) -> Anywhere {
        Anywhere {
            limits,
            objects: OnceLock::new(),
        }
    }

    fn objects(&self) -> io::Result<&Objects> {
        let objects = self.objects.get_or_init(|| Objects::new(self.limits));
        objects.as_ref().map_err(|error| error.clone().into())
    }

    /// Opens an object.
    pub fn object(&self, path: &Path) -> io::Result<Object> {
        Ok(self.objects()?.object(&path.to_string_lossy())?)
    }
}

impl Shelf for Anywhere {
    fn open(&self, path: &Path) -> io::Result<Box<dyn Store>> {
        match is_object(path) {
            true => self.objects()?.open(path),
            false => Files.open(path),
        }
    }

    fn beside(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        match is_object(path) {
            true => self.objects()?.beside(path),
            false => Files.beside(path),
        }
    }

    fn is_ready(&self, path: &Path) -> bool {
        is_object(path) || Files.is_ready(path)
    }
}
