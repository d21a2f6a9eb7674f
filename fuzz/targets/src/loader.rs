//! What the dynamic loader reads: ELF files and the cache of libraries.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use amdahl_loader::{Cache, Elf, Files, LIBRARIES_MAX, Search, libraries};

/// Every library is the same file, in every folder.
struct Everywhere(Rc<Elf>);

impl Files for Everywhere {
    fn elf(&self, _: &Path) -> Option<Rc<Elf>> {
        Some(Rc::clone(&self.0))
    }

    fn cached(&self, name: &str) -> Vec<PathBuf> {
        vec![Path::new("/cache").join(name)]
    }
}

/// The first byte says which of the two it is.
pub(crate) fn loader(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    if *kind != 0 {
        if let Some(cache) = Cache::parse(bytes) {
            assert!(cache.len() <= bytes.len());
            cache.paths("libc.so.6");
        }
        return;
    }
    let Ok(elf) = Elf::parse(bytes, &|name| !name.starts_with('_')) else {
        return;
    };
    assert!(elf.private.is_disjoint(&elf.exported));
    let files = Everywhere(Rc::new(elf.clone()));
    let search = Search::new(Some("/a:$ORIGIN/b"), Some("/one.so two.so"));
    let found = libraries(Path::new("/bin/program"), &elf, &search, &files);
    assert!(found.len() <= LIBRARIES_MAX);
    let names: BTreeSet<&str> = found.iter().map(|library| library.name.as_str()).collect();
    assert_eq!(names.len(), found.len(), "each once");
    for (number, library) in found.iter().enumerate() {
        assert!(library.needed_by.is_none_or(|by| by < number));
    }
}
