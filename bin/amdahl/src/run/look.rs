//! Finds out what is known of a program, its environment and the machine. Decides nothing about it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use amdahl_loader::{Elf, Machine as ElfMachine, System};

use super::facts::{Facts, Image, Machine, Program, Starts};
use super::plan::Choice;
use super::runtimes::{LIBRARY, Own, Runtimes, is_of_libgomp};
use super::started::{self, Manner};
use super::{NOT_EXECUTABLE, NOT_FOUND, python, script};
use crate::cli::Run;
use crate::failure::Failure;

/// Says where it is.
const LIBRARY_VARIABLE: &str = "AMDAHL_LIBGOMP";
/// Scripts that are read by scripts, `env` and stubs between them included: the kernel gives up after four.
const INTERPRETERS_MAX: usize = 8;
/// Programs that are looked at of those that scripts and arguments name.
const NAMED_MAX: usize = 64;
/// Words of a script that are looked for.
const WORDS_MAX: usize = 4096;
/// Scripts that are named by scripts.
const SCRIPTS_MAX: u32 = 4;
/// What is read of a script to see what it names.
const SCRIPT_BYTES: u64 = 256 << 10;

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
        library_path: libgomp.as_ref().ok().and_then(|own| alone(&own.path)),
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
    let (interpreters, last) = through_scripts(&path, environment);
    let mut runtimes = Runtimes::new(environment, own);
    let (image, elf) = match runtimes.read(&last) {
        Ok(elf) => (image(&elf), Some(elf)),
        Err(_) if interpreters.is_empty() && head(&last).is_some() => (
            Image::Unknown("it is neither a program nor a script".to_owned()),
            None,
        ),
        Err(error) => (Image::Unknown(error.to_string()), None),
    };
    let mut dividers = Vec::new();
    if let Some(elf) = &elf {
        runtimes.of_program(&last, elf, "it");
        let file = path.to_string_lossy();
        let arguments = arguments.iter().map(String::as_str);
        let words: Vec<&str> = [&*file].into_iter().chain(arguments).collect();
        dividers = of_packages(&mut runtimes, &last, elf, &words, environment);
    }
    let typed = typed.to_string_lossy().into_owned();
    // What is neither is read by the shell in the end.
    let is_text = elf.is_none() && interpreters.is_empty();
    let manner = started::manner(&last).or_else(|| is_text.then_some(Manner::Starts));
    let starts = manner.map(|manner| {
        let mut named = Named {
            environment,
            runtimes: &mut runtimes,
            dividers: &mut dividers,
            seen: BTreeSet::new(),
            programs: Vec::new(),
        };
        let mut is_script_to_come = started::is_shell(&last);
        if (is_text || is_script_to_come)
            && let Some(text) = script_text(&path)
        {
            named.of_text(&text, &typed, path.parent(), 0);
            is_script_to_come = false;
        }
        for argument in arguments {
            let file = Path::new(argument);
            match script_text(file).filter(|_| is_script_to_come) {
                Some(text) => {
                    named.of_text(&text, argument, file.parent(), 0);
                    is_script_to_come = false;
                }
                None => named.of_text(argument, &typed, None, 0),
            }
        }
        Starts {
            manner,
            programs: named.programs,
        }
    });
    Program {
        typed,
        privileged: privileged(&last),
        path,
        interpreters,
        image,
        runtimes: runtimes.found,
        beyond: runtimes.beyond,
        dividers,
        starts,
        is_looked_at_in_part: runtimes.is_looked_at_in_part,
    }
}

/// Through scripts to what the kernel loads in the end: the programs between, and that one.
fn through_scripts(path: &Path, environment: &BTreeMap<String, String>) -> (Vec<PathBuf>, PathBuf) {
    let mut interpreters: Vec<PathBuf> = Vec::new();
    let mut last = path.to_owned();
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
    // `R` is a script itself, `Rscript` may read one.
    let mut passed = std::iter::once(path).chain(interpreters.iter().map(PathBuf::as_path));
    let behind = passed.find_map(|path| started::behind_r(path, script_text));
    if let Some(program) = behind {
        interpreters.push(program.clone());
        last = program;
    }
    (interpreters, last)
}

/// Looks at what the packages of a Python, R or Julia have, and says what of them divides the CPUs. `words` are the command.
fn of_packages(
    runtimes: &mut Runtimes<'_>,
    program: &Path,
    elf: &Elf,
    words: &[&str],
    environment: &BTreeMap<String, String>,
) -> Vec<String> {
    if elf.machine != ElfMachine::here() {
        return Vec::new();
    }
    if python::is_python(program) {
        let folders = python::package_folders(program, environment);
        runtimes.of_python(&folders);
        return python::dividers(words, &folders);
    }
    let variable = |name: &str| environment.get(name).cloned();
    if program.ends_with("bin/exec/R") {
        runtimes.of_r(&started::r_folders(program, variable));
        if let Some(first) = started::before_all_in_r(program, script_text, variable) {
            runtimes.before_all_in_r(&first);
        }
    }
    let real = program
        .canonicalize()
        .unwrap_or_else(|_| program.to_owned());
    runtimes.of_julia(&started::of_julia(&real, variable));
    Vec::new()
}

/// The text of a script, or of what a shell would read as one.
fn script_text(path: &Path) -> Option<String> {
    let is_file = fs::metadata(path).ok()?.is_file();
    let mut bytes = Vec::new();
    let file = is_file.then(|| File::open(path))?.ok()?;
    file.take(SCRIPT_BYTES).read_to_end(&mut bytes).ok()?;
    let is_text = !bytes.contains(&0);
    is_text.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Looks at the programs that scripts and arguments name.
struct Named<'a, 'b> {
    environment: &'a BTreeMap<String, String>,
    runtimes: &'a mut Runtimes<'b>,
    dividers: &'a mut Vec<String>,
    seen: BTreeSet<PathBuf>,
    programs: Vec<PathBuf>,
}

impl Named<'_, '_> {
    /// What `text` names, which is what `whose` says. Paths may be meant from here or from `folder`.
    fn of_text(&mut self, text: &str, whose: &str, folder: Option<&Path>, depth: u32) {
        for word in started::words(text).into_iter().take(WORDS_MAX) {
            let here = [Some(Path::new("")), folder].into_iter().flatten();
            let mut files = here.map(|folder| folder.join(word));
            // A script need not be executable, if it is read by a program that is named before it.
            let is_script = |path: &PathBuf| head(path).is_some_and(|head| head.starts_with(b"#!"));
            let path =
                files.find(|path| path.is_file() && (is_executable(path) || is_script(path)));
            let path = path.or_else(|| in_path(word.as_ref()).filter(|_| !word.contains('/')));
            if let Some(path) = path {
                self.of_program(&path, word, whose, depth);
            }
        }
    }

    fn of_program(&mut self, path: &Path, word: &str, whose: &str, depth: u32) {
        let is_new = self.seen.insert(path.canonicalize().unwrap_or_default());
        if !is_new || self.programs.len() >= NAMED_MAX {
            return;
        }
        self.programs.push(path.to_owned());
        let (interpreters, last) = through_scripts(path, self.environment);
        self.runtimes.of = format!("{word} in {whose}: ");
        let elf = self.runtimes.read(&last).ok();
        // Of another machine or C library: it asks for nothing that we could change.
        if let Some(elf) = elf.filter(|elf| matches!(image(elf), Image::Dynamic | Image::Static)) {
            self.runtimes.of_program(&last, &elf, "it");
            let words = [&*path.to_string_lossy()];
            let found = of_packages(self.runtimes, &last, &elf, &words, self.environment);
            let new = found
                .into_iter()
                .filter(|name| !self.dividers.contains(name));
            let new: Vec<String> = new.collect();
            self.dividers.extend(new);
        }
        let is_script = !interpreters.is_empty() && started::is_shell(&last);
        if depth < SCRIPTS_MAX
            && is_script
            && let Some(text) = script_text(path)
        {
            self.of_text(&text, word, path.parent(), depth + 1);
        }
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

/// The folder of our library, if it can be put before all others: nothing else is in it that a program could ask for, and the loader
/// takes its name for nothing but a name.
fn alone(library: &Path) -> Option<String> {
    let folder = library.parent()?;
    let name = |name: &OsStr| name.to_string_lossy().into_owned();
    let mut others = fs::read_dir(folder).ok()?.flatten();
    let is_alone = others.all(|entry| {
        let name = name(&entry.file_name());
        let is_library = name.starts_with("lib") && name.contains(".so");
        !is_library || name == LIBRARY || name.starts_with("libamdahl")
    });
    let text = folder.to_str()?;
    let is_named = library.file_name() == Some(OsStr::new(LIBRARY));
    (is_alone && is_named && !text.contains([':', ';', '$'])).then(|| text.to_owned())
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
}
