//! Finds out what is known of a program, its environment and the machine. Decides nothing about it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use amdahl_loader::{Elf, Files, Machine as ElfMachine, Search, System, libraries};

use super::facts::{Beyond, Facts, Image, Kind, Machine, Program, Runtime};
use super::plan::Choice;
use super::{NOT_EXECUTABLE, NOT_FOUND, python, script};
use crate::cli::Run;
use crate::failure::Failure;

/// Our runtime's file name, which programs ask for.
const LIBRARY: &str = "libgomp.so.1";
/// Says where it is.
const LIBRARY_VARIABLE: &str = "AMDAHL_LIBGOMP";
/// Scripts that are read by scripts, `env` and stubs between them included: the kernel gives up after four.
const INTERPRETERS_MAX: usize = 8;
/// Only GCC's code calls these.
const GOMP_NAMES: [&str; 3] = ["GOMP_parallel", "GOMP_parallel_start", "GOMP_barrier"];
/// Only LLVM's and Intel's code calls it; their runtimes have GCC's names too.
const KMP_NAME: &str = "__kmpc_fork_call";
/// Code for accelerators registers itself.
const OFFLOAD_NAMES: [&str; 2] = ["GOMP_offload_register", "GOMP_offload_register_ver"];

/// What programs call of an OpenMP runtime.
fn is_of_libgomp(name: &str) -> bool {
    name.starts_with("GOMP_") || name.starts_with("omp_")
}

/// Our runtime, and what it has.
struct Own {
    path: PathBuf,
    versions: BTreeSet<String>,
    names: BTreeSet<String>,
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

/// Looks at everything.
pub fn facts(args: &Run, choice: &Choice) -> Result<Facts, Failure> {
    let mut environment = BTreeMap::new();
    let mut unreadable = BTreeSet::new();
    for (name, value) in std::env::vars_os() {
        let text = |part: &OsStr| part.to_string_lossy().into_owned();
        if value.to_str().is_none() {
            unreadable.insert(text(&name));
        }
        environment.insert(text(&name), text(&value));
    }
    let typed = &args.command[0];
    let path = find(typed)?;
    let libgomp = own_library();
    let arguments: Vec<String> = args
        .command
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    Ok(Facts {
        program: program(typed, path, &arguments, &environment, libgomp.as_ref().ok()),
        arguments,
        machine: machine(),
        libgomp: libgomp.map(|own| own.path),
        asked: choice.with.clone(),
        stats: args.stats,
        environment,
        unreadable,
    })
}

/// The file that a name on the command line stands for.
pub fn find(typed: &OsStr) -> Result<PathBuf, Failure> {
    let failed = |code, why: &str| Failure {
        message: format!("{}: {why}", typed.to_string_lossy()),
        code,
    };
    if typed.to_string_lossy().contains('/') {
        let path = PathBuf::from(typed);
        return match fs::metadata(&path) {
            Err(error) => Err(failed(NOT_FOUND, &error.to_string())),
            Ok(metadata) if metadata.is_dir() => Err(failed(NOT_EXECUTABLE, "it is a folder")),
            Ok(_) if !is_executable(&path) => Err(failed(
                NOT_EXECUTABLE,
                "it may not be executed; chmod +x, or name the program that reads it",
            )),
            Ok(_) => Ok(path),
        };
    }
    in_path(typed).ok_or_else(|| match places(typed).find(|path| path.is_file()) {
        Some(path) => failed(
            NOT_EXECUTABLE,
            &format!("{} may not be executed; chmod +x", path.display()),
        ),
        None => failed(
            NOT_FOUND,
            "there is no such program in the folders of PATH; give its path",
        ),
    })
}

/// Where a program of this name could be, by `PATH`.
fn places(name: &OsStr) -> impl Iterator<Item = PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    let name = name.to_owned();
    folders.into_iter().map(move |folder| {
        let is_here = folder.as_os_str().is_empty();
        if is_here { Path::new(".") } else { &folder }.join(&name)
    })
}

fn in_path(name: &OsStr) -> Option<PathBuf> {
    places(name).find(|path| path.is_file() && is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

fn program(
    typed: &OsStr,
    path: PathBuf,
    arguments: &[String],
    environment: &BTreeMap<String, String>,
    own: Option<&Own>,
) -> Program {
    let mut interpreters: Vec<PathBuf> = Vec::new();
    let mut last = path.clone();
    // Through scripts to what the kernel loads.
    while let Some((interpreter, argument)) = head(&last).as_deref().and_then(script::interpreter) {
        if interpreters.len() >= INTERPRETERS_MAX {
            break;
        }
        let mut next = PathBuf::from(interpreter);
        if next.file_name() == Some(OsStr::new("env")) {
            let name = argument.as_deref().and_then(script::of_env);
            if let Some(found) = name.and_then(|name| in_path(name.as_ref())) {
                interpreters.push(next);
                next = found;
            }
        }
        let folder = std::env::current_dir().unwrap_or_default();
        if let Some(chosen) = python::behind_pyenv(&last, environment, &folder) {
            interpreters.push(next);
            next = chosen;
        }
        interpreters.push(next.clone());
        last = next;
    }
    let files = System::new(|name| is_of_libgomp(name) || name == KMP_NAME);
    let (image, elf) = match files.read(&last) {
        Ok(elf) => (image(&elf), Some(elf)),
        Err(_) if interpreters.is_empty() && head(&last).is_some() => (
            Image::Unknown("it is neither a program nor a script".to_owned()),
            None,
        ),
        Err(error) => (Image::Unknown(error.to_string()), None),
    };
    let search = Search::new(
        environment.get("LD_LIBRARY_PATH").map(String::as_str),
        environment.get("LD_PRELOAD").map(String::as_str),
    );
    let mut runtimes = Runtimes {
        search,
        files,
        own,
        found: Vec::new(),
        beyond: Vec::new(),
        is_looked_at_in_part: false,
    };
    let mut dividers = Vec::new();
    if let Some(elf) = &elf {
        let is_same = elf.machine == ElfMachine::here();
        runtimes.of_program(&last, elf, "it");
        if is_same && python::is_python(&last) {
            let folders = python::package_folders(&last, environment);
            runtimes.of_python(&folders);
            let file = path.to_string_lossy();
            let arguments = arguments.iter().map(String::as_str);
            let words: Vec<&str> = [&*file].into_iter().chain(arguments).collect();
            dividers = python::dividers(&words, &folders);
        }
    }
    Program {
        typed: typed.to_string_lossy().into_owned(),
        privileged: privileged(&last),
        path,
        interpreters,
        image,
        runtimes: runtimes.found,
        beyond: runtimes.beyond,
        dividers,
        is_looked_at_in_part: runtimes.is_looked_at_in_part,
    }
}

fn head(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let is_file = fs::metadata(path).ok()?.is_file();
    let file = is_file.then(|| File::open(path))?.ok()?;
    file.take(script::HEAD_BYTES as u64)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

fn image(elf: &Elf) -> Image {
    if elf.machine != ElfMachine::here() {
        return Image::OtherMachine(elf.machine.name().to_owned());
    }
    match &elf.interpreter {
        None => Image::Static,
        Some(loader) => {
            let name = loader.rsplit('/').next().unwrap_or("");
            if name.starts_with("ld-linux") || name.starts_with("ld64.so") {
                Image::Dynamic
            } else {
                Image::OtherLoader(loader.clone())
            }
        }
    }
}

/// The kernel gives the program rights that we do not have.
fn privileged(path: &Path) -> Option<String> {
    // What is not there cannot be run, which will be told then.
    let metadata = fs::metadata(path).ok()?;
    let mode = metadata.permissions().mode();
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if mode & 0o4000 != 0 && metadata.uid() != user.as_raw() {
        return Some(format!("it runs as user {} (set-uid)", metadata.uid()));
    }
    if mode & 0o2010 == 0o2010 && metadata.gid() != group.as_raw() {
        return Some(format!("it runs as group {} (set-gid)", metadata.gid()));
    }
    let mut value = [0_u8; 64];
    let has_capabilities =
        rustix::fs::getxattr(path, "security.capability", &mut value).is_ok_and(|len| len > 0);
    // Root has them anyway.
    if has_capabilities && !user.is_root() {
        return Some("it has capabilities of its own (getcap)".to_owned());
    }
    None
}

/// Collects the parallel runtimes that a program comes with.
struct Runtimes<'a> {
    search: Search,
    files: System,
    own: Option<&'a Own>,
    found: Vec<Runtime>,
    beyond: Vec<Beyond>,
    is_looked_at_in_part: bool,
}

impl Runtimes<'_> {
    /// Of a program, or of a library that it may open; `whose` begins the sentence that says so.
    fn of_program(&mut self, path: &Path, elf: &Elf, whose: &str) {
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
                self.add(kind, place, format!("{whose} {by} {name}"));
            } else if let Some(elf) = elf {
                self.inside(place, &elf, whose, false);
                self.beyond(place, &elf);
            }
        }
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
                format!("{whose} loads {what}, which has LLVM's OpenMP runtime in it"),
            );
        } else if has(&elf.private) || is_program && has(&elf.exported) {
            self.add(
                Kind::GompInside,
                path,
                format!("libgomp is linked into {what}"),
            );
        } else if !is_program && has(&elf.exported) {
            // What a library offers to others, the preloaded one offers before it.
            self.add(
                Kind::GompCopy,
                path,
                format!("{whose} loads {what}, which has libgomp in it"),
            );
        }
    }

    /// What the packages of a Python interpreter bring along.
    fn of_python(&mut self, folders: &[PathBuf]) {
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
                self.add(
                    kind,
                    &path,
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

    fn add(&mut self, kind: Kind, path: &Path, via: String) {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let is_new = |runtime: &Runtime| runtime.kind != kind || runtime.path != path;
        if self.found.iter().all(is_new) {
            self.found.push(Runtime { kind, path, via });
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

/// Our runtime: where the variable says, beside the command, in cargo's folder, or where it is installed.
fn own_library() -> Result<Own, String> {
    let mut places = Vec::new();
    // Who may put a library beside the command that is loaded into programs of whoever runs it.
    let mut owners = Vec::new();
    match std::env::var_os(LIBRARY_VARIABLE) {
        Some(path) if !path.is_empty() => places.push(PathBuf::from(path)),
        _ => {
            if let Ok(command) = std::env::current_exe()
                && let Some(folder) = command.parent()
            {
                places.push(folder.join("../lib/amdahl").join(LIBRARY));
                places.push(folder.join("openmp").join(LIBRARY));
                owners.extend([0, rustix::process::geteuid().as_raw()]);
                owners.extend(fs::metadata(&command).map(|metadata| metadata.uid()));
            }
        }
    }
    let found = places.iter().find(|path| path.is_file());
    let path = found.ok_or_else(|| {
        let places: Vec<String> = places
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        format!(
            "our {LIBRARY} is not in {}; make install puts it there, or {LIBRARY_VARIABLE} says \
             where it is",
            places.join(" nor ")
        )
    })?;
    let path = path
        .canonicalize()
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let elf = System::new(is_of_libgomp)
        .read(&path)
        .map_err(|error| error.to_string())?;
    if elf.machine != ElfMachine::here() || elf.soname.as_deref() != Some(LIBRARY) {
        return Err(format!(
            "{} is no {LIBRARY} for this machine",
            path.display()
        ));
    }
    let owner = fs::metadata(&path).map(|metadata| metadata.uid());
    if !owners.is_empty() && !owner.as_ref().is_ok_and(|owner| owners.contains(owner)) {
        return Err(format!(
            "{} belongs to somebody else than this command; {LIBRARY_VARIABLE} says which one is \
             meant",
            path.display()
        ));
    }
    Ok(Own {
        path,
        versions: elf.versions,
        names: elf.exported,
    })
}

fn machine() -> Machine {
    let count = |set: &amdahl_topology::CpuSet| u32::try_from(set.len()).unwrap_or(u32::MAX);
    let allowed = amdahl_topology::allowed().map_or(1, |set| count(&set));
    let quota = amdahl_topology::quota().ok().flatten();
    let own = amdahl_topology::cpu_pressure().ok().flatten();
    Machine {
        online: amdahl_topology::online().map_or(allowed, |set| count(&set)),
        allowed,
        quota: quota.map(|quota| (quota.cpus, quota.source.display().to_string())),
        // Of our control group; all of the machine where it does not say.
        pressure: [own, Some("/proc/pressure/cpu".into())]
            .into_iter()
            .flatten()
            .find_map(|path| pressure(&fs::read_to_string(path).ok()?)),
    }
}

/// `some avg10=1.53 avg60=...`: as a fraction.
fn pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let percent = some
        .split(' ')
        .find_map(|word| word.strip_prefix("avg10="))?;
    let percent: f64 = percent.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_pressure() {
        let text = "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=0.00 avg60=0.00\n";
        assert_eq!(pressure(text), Some(0.125));
        assert_eq!(pressure(""), None);
        assert_eq!(pressure("some avg10=nan"), None);
        assert_eq!(pressure("some avg10=1000"), None);
    }

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
