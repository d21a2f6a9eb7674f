//! Which parallel runtimes a program comes with, or opens as far as that is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use amdahl_loader::{Elf, Files, Machine as ElfMachine, Search, System, libraries};

use super::facts::{Beyond, Kind, Runtime};
use super::python;

/// Our runtime's file name, which programs ask for.
pub const LIBRARY: &str = "libgomp.so.1";
/// Only GCC's code calls these.
const GOMP_NAMES: [&str; 3] = ["GOMP_parallel", "GOMP_parallel_start", "GOMP_barrier"];
/// Only LLVM's and Intel's code calls it; their runtimes have GCC's names too.
const KMP_NAME: &str = "__kmpc_fork_call";
/// Code for accelerators registers itself.
const OFFLOAD_NAMES: [&str; 2] = ["GOMP_offload_register", "GOMP_offload_register_ver"];

/// What programs call of an OpenMP runtime.
pub fn is_of_libgomp(name: &str) -> bool {
    name.starts_with("GOMP_") || name.starts_with("omp_")
}

/// Our runtime, and what it has.
pub struct Own {
    pub path: PathBuf,
    pub versions: BTreeSet<String>,
    pub names: BTreeSet<String>,
}

impl Own {
    /// The first thing that a program or library wants of libgomp, in a version of it, and ours does not have. Other names
    /// are those of copies, which are loaded as well.
    fn lacks<'a>(&'a self, elf: &'a Elf) -> Option<&'a String> {
        let versions = elf.versions_wanted.get(LIBRARY);
        let names = elf.names_wanted.get(LIBRARY);
        // A version may have come with an earlier GCC than a name in it.
        let version = versions.and_then(|wanted| wanted.difference(&self.versions).next());
        version.or_else(|| names?.difference(&self.names).next())
    }
}

/// Collects the parallel runtimes that a program comes with.
pub struct Runtimes<'a> {
    search: Search,
    /// With the folder of ours before all others.
    search_with_ours: Search,
    files: System,
    own: Option<&'a Own>,
    pub found: Vec<Runtime>,
    pub beyond: Vec<Beyond>,
    pub is_looked_at_in_part: bool,
    /// Which program the next findings are of, where it is not the one that is run: `python3 in ./train.sh: `.
    pub of: String,
}

impl<'a> Runtimes<'a> {
    /// None yet. Libraries are searched as `environment` says.
    pub fn new(environment: &BTreeMap<String, String>, own: Option<&'a Own>) -> Runtimes<'a> {
        let search = Search::new(
            environment.get("LD_LIBRARY_PATH").map(String::as_str),
            environment.get("LD_PRELOAD").map(String::as_str),
        );
        let mut search_with_ours = search.clone();
        let folder = own.and_then(|own| own.path.parent()?.to_str());
        let folders = &mut search_with_ours.library_path;
        folders.splice(0..0, folder.map(str::to_owned));
        Runtimes {
            search,
            search_with_ours,
            files: System::new(|name| is_of_libgomp(name) || name == KMP_NAME),
            own,
            found: Vec::new(),
            beyond: Vec::new(),
            is_looked_at_in_part: false,
            of: String::new(),
        }
    }

    /// The program there.
    pub fn read(&self, path: &Path) -> Result<Elf, amdahl_loader::ReadError> {
        self.files.read(path)
    }

    /// Of a program, or of a library that it may open; `whose` begins the sentence that says so.
    pub fn of_program(&mut self, path: &Path, elf: &Elf, whose: &str) {
        let whole = elf;
        self.inside(path, elf, whose, true);
        self.beyond(path, elf);
        for library in libraries(path, elf, &self.search, &self.files) {
            let Some(place) = &library.path else { continue };
            let name = library.name.rsplit('/').next().unwrap_or(&library.name);
            let elf = self.files.elf(place);
            if let Some(kind) = kind(name).or_else(|| kind(library.soname.as_deref()?)) {
                let by = if library.needed_by.is_none() {
                    "links"
                } else {
                    "loads"
                };
                let is_reached = kind == Kind::Gomp && self.is_reached(path, whole);
                self.add(kind, place, is_reached, format!("{whose} {by} {name}"));
            } else if let Some(elf) = elf {
                self.inside(place, &elf, whose, false);
                self.beyond(place, &elf);
            }
        }
    }

    /// The loader gives ours to this program or library if our folder is the first one of `LD_LIBRARY_PATH`: not where a
    /// `DT_RPATH` goes before that.
    fn is_reached(&self, path: &Path, elf: &Elf) -> bool {
        let Some(own) = self.own else { return false };
        libraries(path, elf, &self.search_with_ours, &self.files)
            .iter()
            .filter_map(|library| library.path.as_ref())
            .any(|place| *place == own.path)
    }

    /// What `path` wants that ours does not have.
    fn beyond(&mut self, path: &Path, elf: &Elf) {
        let Some(own) = self.own else { return };
        let offload = OFFLOAD_NAMES
            .iter()
            .find(|&&name| elf.wanted.contains(name));
        let (what, is_needed) = match (own.lacks(elf), offload) {
            (Some(what), _) => (what.clone(), true),
            (None, Some(&name)) => (name.to_owned(), false),
            (None, None) => return,
        };
        let beyond = Beyond {
            who: path.display().to_string(),
            what,
            is_needed,
        };
        if !self.beyond.contains(&beyond) {
            self.beyond.push(beyond);
        }
    }

    /// A libgomp that is linked into `path`.
    fn inside(&mut self, path: &Path, elf: &Elf, whose: &str, is_program: bool) {
        let has = |names: &std::collections::BTreeSet<String>| {
            GOMP_NAMES.iter().any(|&name| names.contains(name))
        };
        let what = path.file_name().unwrap_or_default().to_string_lossy();
        if !is_program && elf.exported.contains(KMP_NAME) {
            self.add(
                Kind::Kmp,
                path,
                false,
                format!("{whose} loads {what}, which has LLVM's OpenMP runtime in it"),
            );
        } else if has(&elf.private) || is_program && has(&elf.exported) {
            self.add(
                Kind::GompInside,
                path,
                false,
                format!("libgomp is linked into {what}"),
            );
        } else if !is_program && has(&elf.exported) {
            // What a library offers to others, the preloaded one offers before it.
            self.add(
                Kind::GompCopy,
                path,
                false,
                format!("{whose} loads {what}, which has libgomp in it"),
            );
        }
    }

    /// What the packages of a Python interpreter bring along.
    pub fn of_python(&mut self, folders: &[PathBuf]) {
        let (paths, is_whole) = python::libraries(folders);
        self.is_looked_at_in_part |= !is_whole;
        for path in paths {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let folder = path.parent().unwrap_or(Path::new("")).display().to_string();
            if let Some(kind) = kind(&name) {
                // Opened by its path, or called so by nobody else.
                self.add(
                    kind,
                    &path,
                    false,
                    format!("Python's packages have {name} ({folder})"),
                );
                continue;
            }
            let Some(elf) = self.files.elf(&path) else {
                continue;
            };
            if elf.machine == ElfMachine::here() {
                self.of_program(&path, &elf, &format!("Python's {name}"));
            }
        }
    }

    /// What the packages of R bring along: they are linked with what the system has.
    pub fn of_r(&mut self, folders: &[PathBuf]) {
        let (paths, is_whole) = python::libraries(folders);
        self.is_looked_at_in_part |= !is_whole;
        for path in paths {
            let Some(elf) = self.files.elf(&path) else {
                continue;
            };
            if elf.machine == ElfMachine::here() {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                self.of_program(&path, &elf, &format!("R's {name}"));
            }
        }
    }

    /// A libgomp that R finds before all that `LD_LIBRARY_PATH` says, and so does what R starts.
    pub fn before_all_in_r(&mut self, path: &Path) {
        let real = path.canonicalize().ok();
        if self.own.is_some_and(|own| real.as_ref() == Some(&own.path)) {
            return;
        }
        let folder = path.parent().unwrap_or(path).display();
        let via = format!("R puts {folder} before LD_LIBRARY_PATH, where libgomp.so.1 is");
        self.add(Kind::Gomp, path, false, via);
    }

    /// A libgomp that Julia brings along.
    pub fn of_julia(&mut self, libraries: &[PathBuf]) {
        for path in libraries {
            let via = format!("Julia opens {} by its path", path.display());
            self.add(Kind::Gomp, path, false, via);
        }
    }

    fn add(&mut self, kind: Kind, path: &Path, is_reached: bool, via: String) {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let via = format!("{}{via}", self.of);
        let same = |runtime: &&mut Runtime| runtime.kind == kind && runtime.path == path;
        match self.found.iter_mut().find(same) {
            // Who is not reached decides.
            Some(runtime) if runtime.is_reached_by_path && !is_reached => {
                runtime.is_reached_by_path = false;
                runtime.via = via;
            }
            Some(_) => {}
            None => self.found.push(Runtime {
                kind,
                path,
                via,
                is_reached_by_path: is_reached,
            }),
        }
    }
}

/// Which runtime a library is, by its name.
fn kind(name: &str) -> Option<Kind> {
    let is = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if is(&["libgomp.so"]) {
        Some(Kind::Gomp)
    } else if is(&["libgomp-"]) {
        Some(Kind::GompCopy)
    } else if is(&["libomp.so", "libomp-", "libomp5", "libiomp5"]) {
        Some(Kind::Kmp)
    } else if is(&["libmkl_rt.so", "libmkl_core.so"]) {
        Some(Kind::Mkl)
    } else if is(&["libtbb.so", "libtbb-"]) {
        Some(Kind::Tbb)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_known_by_their_names() {
        for (name, wanted) in [
            ("libgomp.so.1", Some(Kind::Gomp)),
            ("libgomp-a34b3233.so.1.0.0", Some(Kind::GompCopy)),
            ("libomp.so.5", Some(Kind::Kmp)),
            ("libomp-64e42f07.so", Some(Kind::Kmp)),
            ("libiomp5.so", Some(Kind::Kmp)),
            ("libmkl_rt.so.2", Some(Kind::Mkl)),
            ("libtbb.so.12", Some(Kind::Tbb)),
            ("libgompertz.so", None),
            ("libtbbmalloc.so.2", None),
        ] {
            assert_eq!(kind(name), wanted, "{name}");
        }
    }
}
