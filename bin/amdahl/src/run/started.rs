//! Programs that are there to start others (shells, `make`, `mpirun`), or that open libraries later: which these are, and
//! what their scripts and arguments name. What is named need not be run; what is run need not be named.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What becomes of OpenMP in such a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Other programs have it, which this one starts.
    Starts,
    /// Its packages have it, which this one opens. It starts others as well.
    Opens,
}

/// Shells, and interpreters of scripts that mostly start others: their first argument may be a script.
const SHELLS: [&str; 13] = [
    "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "perl", "ruby", "sh", "tclsh", "tcsh",
    "zsh",
];

/// They run what their arguments or files say.
const STARTERS: [&str; 43] = [
    "aprun",
    "bmake",
    "busybox",
    "chrt",
    "cmake",
    "ctest",
    "env",
    "flock",
    "gmake",
    "hyperfine",
    "ionice",
    "jsrun",
    "just",
    "make",
    "meson",
    "mpiexec",
    "mpiexec.hydra",
    "mpiexec.mpich",
    "mpiexec.openmpi",
    "mpirun",
    "mpirun.mpich",
    "mpirun.openmpi",
    "nice",
    "ninja",
    "nohup",
    "numactl",
    "orterun",
    "parallel",
    "perf",
    "prterun",
    "salloc",
    "sbatch",
    "script",
    "setarch",
    "setsid",
    "srun",
    "stdbuf",
    "strace",
    "taskset",
    "time",
    "timeout",
    "watch",
    "xargs",
];

/// They open packages with OpenMP in them while they run.
const OPENERS: [&str; 7] = [
    "R",
    "Rscript",
    "julia",
    "julialauncher",
    "octave",
    "octave-cli",
    "octave-gui",
];

/// The name of a program without its version: `perl5.36.0`, `octave-cli-7.3.0`.
fn name(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str());
    let is_version = |c: char| c.is_ascii_digit() || c == '.' || c == '-';
    name.unwrap_or("").trim_end_matches(is_version)
}

/// Whether the program at this path is one of them.
pub fn manner(path: &Path) -> Option<Manner> {
    let name = name(path);
    if OPENERS.contains(&name) || super::python::is_python(path) {
        Some(Manner::Opens)
    } else if is_shell(path) || STARTERS.contains(&name) {
        Some(Manner::Starts)
    } else {
        None
    }
}

/// It reads a script that names programs as words.
pub fn is_shell(path: &Path) -> bool {
    SHELLS.contains(&name(path))
}

/// What separates words in shells, `make` and Perl.
const BETWEEN: [char; 17] = [
    ' ', '\t', '\n', '\r', '\'', '"', '`', '(', ')', '{', '}', '[', ']', ';', '|', '&', ',',
];

/// The words of a script or an argument that could name programs, each once, in their order. Lines that are comments are left out.
pub fn words(text: &str) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    text.lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .flat_map(|line| line.split(BETWEEN))
        // `CC=gcc`, `>/dev/null`.
        .map(|word| word.trim_start_matches(['<', '>', '@']))
        .filter(|word| {
            let begins = word.starts_with(|c: char| c.is_alphanumeric() || "./_~".contains(c));
            begins && word.len() > 1 && !word.contains(['$', '=', '*', '?']) || *word == "R"
        })
        .filter(|word| seen.insert(word.to_owned()))
        .collect()
}

/// The program behind `R`, which is a script of the shell, and behind `Rscript`, which executes that.
pub fn behind_r(path: &Path, script: impl Fn(&Path) -> Option<String>) -> Option<PathBuf> {
    let beside = match name(path) {
        "R" => path.to_owned(),
        "Rscript" => path.with_file_name("R"),
        _ => return None,
    };
    let text = script(&beside)?;
    let home = text.lines().find_map(|line| {
        let value = line.trim().strip_prefix("R_HOME_DIR=")?;
        Some(value.trim_matches(['"', '\'']).to_owned())
    })?;
    let program = Path::new(&home).join("bin/exec/R");
    program.is_file().then_some(program)
}

/// Where the packages of the `R` at `program` (`R_HOME/bin/exec/R`) are, as far as the environment and the usual places say.
pub fn r_folders(program: &Path, variable: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for name in ["R_LIBS", "R_LIBS_USER", "R_LIBS_SITE"] {
        let list = variable(name).unwrap_or_default();
        // `%v` and its like are the version and the machine, which only R knows.
        let entries = list
            .split(':')
            .filter(|entry| !entry.is_empty() && !entry.contains('%'));
        folders.extend(entries.map(PathBuf::from));
    }
    if let Some(home) = variable("HOME") {
        folders.push(Path::new(&home).join("R"));
    }
    // bin/exec/R
    let home = program.ancestors().nth(3);
    folders.extend(
        home.iter()
            .flat_map(|home| ["library", "site-library"].map(|folder| home.join(folder))),
    );
    if program.starts_with("/usr") {
        folders.extend(
            ["/usr/local/lib/R/site-library", "/usr/lib/R/site-library"].map(PathBuf::from),
        );
    }
    let mut seen = BTreeSet::new();
    folders.retain(|folder| folder.is_dir() && seen.insert(folder.clone()));
    folders
}

/// The libgomp in a folder that the `R` at `program` has searched before all of `LD_LIBRARY_PATH`: the start script reads
/// `R_HOME/etc/ldpaths`, where Debian's has the system's folder.
pub fn before_all_in_r(
    program: &Path,
    script: impl Fn(&Path) -> Option<String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<PathBuf> {
    const NAME: &str = "R_LD_LIBRARY_PATH";
    let home = program.ancestors().nth(3)?;
    let home_text = home.to_str()?;
    let lists: Vec<String> = match variable(NAME) {
        Some(list) => vec![list],
        // `: ${R_LD_LIBRARY_PATH=${R_HOME}/lib:/usr/lib}`
        None => script(&home.join("etc/ldpaths"))?
            .lines()
            .filter_map(|line| line.trim().strip_prefix(": ${")?.strip_prefix(NAME))
            .filter_map(|value| value.trim_start_matches(':').strip_prefix('='))
            .filter_map(|value| value.strip_suffix('}'))
            .map(|value| value.replace("${R_HOME}", home_text))
            .collect(),
    };
    let folders = lists.iter().flat_map(|list| list.split(':'));
    folders
        .filter(|folder| folder.starts_with('/') && !folder.contains('$'))
        .map(|folder| Path::new(folder).join("libgomp.so.1"))
        .find(|library| library.is_file())
}

/// The libgomp that Julia brings along and opens by its path, given where its program is, links followed.
pub fn of_julia(program: &Path, variable: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = Vec::new();
    match name(program) {
        "julia" => roots.extend(program.ancestors().nth(2).map(Path::to_owned)),
        // It starts the `julia` of one of the folders beside its settings.
        "julialauncher" => {
            let depot = variable("JULIAUP_DEPOT_PATH").or_else(|| variable("JULIA_DEPOT_PATH"));
            let depot = depot.and_then(|list| Some(PathBuf::from(list.split(':').next()?)));
            let depot = depot.or_else(|| Some(Path::new(&variable("HOME")?).join(".julia")));
            let entries = depot.and_then(|depot| std::fs::read_dir(depot.join("juliaup")).ok());
            roots.extend(entries.into_iter().flatten().flatten().map(|e| e.path()));
            roots.sort();
        }
        _ => return Vec::new(),
    }
    let libraries = roots.iter().map(|root| root.join("lib/julia/libgomp.so.1"));
    libraries.filter(|library| library.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn programs_are_known_by_their_names() {
        for (path, wanted) in [
            ("/bin/sh", Some(Manner::Starts)),
            ("/usr/bin/perl5.36.0", Some(Manner::Starts)),
            ("/usr/bin/make", Some(Manner::Starts)),
            ("/usr/bin/mpirun.openmpi", Some(Manner::Starts)),
            ("/usr/bin/octave-cli-7.3.0", Some(Manner::Opens)),
            ("/usr/bin/python3.11", Some(Manner::Opens)),
            ("R", Some(Manner::Opens)),
            ("./lu.C.x", None),
            ("/usr/bin/sed", None),
            ("./makefile-of-7", None),
        ] {
            assert_eq!(manner(Path::new(path)), wanted, "{path}");
        }
    }

    #[test]
    fn scripts_name_programs() {
        let script = "#!/bin/bash\n# julia is a comment\nset -e\nOMP_PLACES=cores exec \"./solver\" --n 3 in.dat | tee log\n\
                      out=$(python3 train.py); for i in *; do R CMD x; done\n";
        let words = words(script);
        for word in ["./solver", "python3", "train.py", "R", "tee", "exec"] {
            assert!(words.contains(&word), "{word}: {words:?}");
        }
        for word in ["julia", "OMP_PLACES=cores", "--n", "-e", "*", "out="] {
            assert!(!words.contains(&word), "{word}: {words:?}");
        }
        assert_eq!(super::words("a/b a/b\n a/b"), ["a/b"]);
    }

    #[test]
    fn finds_what_r_executes_and_its_packages() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path();
        for folder in [
            "bin",
            "lib/R/bin/exec",
            "lib/R/library/x/libs",
            "home/R",
            "mine",
        ] {
            fs::create_dir_all(root.join(folder)).expect("made");
        }
        let home = root.join("lib/R");
        let script = format!(
            "#!/bin/sh\n# Shell wrapper\nR_HOME_DIR={}\nif test x; then\n:;fi\nexec ${{R_HOME}}/bin/exec${{R_ARCH}}/R\n",
            home.display()
        );
        fs::write(root.join("bin/R"), script).expect("written");
        let read = |path: &Path| fs::read_to_string(path).ok();
        assert_eq!(behind_r(&root.join("bin/R"), read), None, "it is not there");
        let program = home.join("bin/exec/R");
        fs::write(&program, "").expect("written");
        for name in ["bin/R", "bin/Rscript"] {
            assert_eq!(
                behind_r(&root.join(name), read).as_ref(),
                Some(&program),
                "{name}"
            );
        }
        assert_eq!(behind_r(&root.join("bin/octave"), read), None);
        let variable = |name: &str| {
            Some(match name {
                "HOME" => root.join("home").display().to_string(),
                "R_LIBS" => format!("{}:/there/is/none:%V", root.join("mine").display()),
                _ => return None,
            })
        };
        assert_eq!(
            r_folders(&program, variable),
            [root.join("mine"), root.join("home/R"), home.join("library")]
        );
    }

    #[test]
    fn finds_the_libgomp_that_r_puts_before_all_others() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path();
        let (home, system) = (root.join("lib/R"), root.join("system"));
        let program = home.join("bin/exec/R");
        fs::create_dir_all(&system).expect("made");
        for folder in ["lib", "etc"] {
            fs::create_dir_all(home.join(folder)).expect("made");
        }
        let (none, read) = (|_: &str| None, |path: &Path| fs::read_to_string(path).ok());
        let text = format!(
            "if test -n x; then\n: ${{R_LD_LIBRARY_PATH=${{R_HOME}}/lib:{}}}\nelse\n: ${{R_LD_LIBRARY_PATH=$X}}\nfi\n",
            system.display()
        );
        assert_eq!(before_all_in_r(&program, read, none), None, "no file");
        fs::write(home.join("etc/ldpaths"), text).expect("written");
        assert_eq!(before_all_in_r(&program, read, none), None, "none there");
        let (library, own) = (system.join("libgomp.so.1"), home.join("lib/libgomp.so.1"));
        fs::write(&library, "").expect("written");
        assert_eq!(before_all_in_r(&program, read, none), Some(library));
        let empty = |_: &Path| Some(String::new());
        assert_eq!(before_all_in_r(&program, empty, none), None);
        fs::write(&own, "").expect("written");
        assert_eq!(before_all_in_r(&program, read, none), Some(own));
        let said = |name: &str| (name == "R_LD_LIBRARY_PATH").then(|| "/there/is/none".to_owned());
        assert_eq!(before_all_in_r(&program, read, said), None);
    }

    #[test]
    fn finds_what_julia_brings_along() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path();
        let none = |_: &str| None;
        let program = root.join("julia/bin/julia");
        let installed = root.join(".julia/juliaup/julia-1.10/lib/julia/libgomp.so.1");
        let bundled = root.join("julia/lib/julia/libgomp.so.1");
        for library in [&installed, &bundled] {
            fs::create_dir_all(library.parent().expect("a folder")).expect("made");
        }
        assert!(of_julia(&program, none).is_empty());
        fs::write(&bundled, "").expect("written");
        fs::write(&installed, "").expect("written");
        assert_eq!(of_julia(&program, none), [bundled]);
        let home = |name: &str| (name == "HOME").then(|| root.display().to_string());
        let launcher = Path::new("/x/julialauncher");
        assert_eq!(of_julia(launcher, home), [installed]);
    }
}
