//! Where a Python interpreter has its packages: found from files, since running it would run what
//! the user's site has it run.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Files and folders that are looked at: environments have some ten thousand.
const ENTRIES_MAX: usize = 300_000;
const DEPTH_MAX: usize = 12;

/// It is a Python interpreter, by its name.
pub fn is_python(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("python") || name.starts_with("pypy")
}

/// The program behind a stub of pyenv, which is a shell script that chooses an installation.
pub fn behind_pyenv(
    stub: &Path,
    environment: &BTreeMap<String, String>,
    folder: &Path,
) -> Option<PathBuf> {
    let shims = stub.parent().filter(|folder| folder.ends_with("shims"))?;
    let root = shims
        .parent()
        .filter(|root| root.join("versions").is_dir())?;
    let chosen = match environment.get("PYENV_VERSION") {
        Some(version) if !version.is_empty() => version.clone(),
        _ => folder
            .ancestors()
            .map(|folder| folder.join(".python-version"))
            .chain([root.join("version")])
            .filter(|file| file.is_file())
            .find_map(|file| fs::read_to_string(file).ok())?,
    };
    let version = chosen
        .split([':', '\n'])
        .map(str::trim)
        .find(|version| !version.is_empty())?;
    // A name, not a way out of the folder.
    if version.contains('/') || version == ".." {
        return None;
    }
    let program = root
        .join("versions")
        .join(version)
        .join("bin")
        .join(stub.file_name()?);
    program.is_file().then_some(program)
}

/// The folders of packages of the interpreter at `python`, which is its path as it was found, links not followed.
pub fn package_folders(python: &Path, environment: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if let Some(list) = environment.get("PYTHONPATH") {
        folders.extend(
            list.split(':')
                .filter(|entry| !entry.is_empty())
                .map(PathBuf::from),
        );
    }
    let real = python.canonicalize().unwrap_or_else(|_| python.to_owned());
    let prefix = |path: &Path| path.parent().and_then(Path::parent).map(Path::to_owned);
    let own = prefix(python);
    let settings = own
        .as_ref()
        .and_then(|own| fs::read_to_string(own.join("pyvenv.cfg")).ok());
    let sees_system = settings.as_deref().is_none_or(|settings| {
        settings.lines().any(|line| {
            line.split_once('=').is_some_and(|(name, value)| {
                name.trim() == "include-system-site-packages" && value.trim() == "true"
            })
        })
    });
    folders.extend(own.into_iter().flat_map(|own| below(&own, &real)));
    if sees_system {
        if environment
            .get("PYTHONNOUSERSITE")
            .is_none_or(String::is_empty)
            && let Some(home) = environment.get("HOME")
        {
            folders.extend(below(&Path::new(home).join(".local"), &real));
        }
        folders.extend(
            prefix(&real)
                .into_iter()
                .flat_map(|prefix| below(&prefix, &real)),
        );
        if real.starts_with("/usr") {
            folders.extend(below(Path::new("/usr/local"), &real));
        }
    }
    let mut seen = std::collections::HashSet::new();
    folders.retain(|folder| folder.is_dir() && seen.insert(folder.clone()));
    folders
}

/// Those of this version below a prefix.
fn below(prefix: &Path, real: &Path) -> Vec<PathBuf> {
    let version = real
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let is_version = |name: &str| {
        // `python3` alone is a link that could not be followed: any of its versions.
        name == version
            || name == "python3"
            || (!version.contains('.') && name.starts_with("python3"))
    };
    let mut folders = Vec::new();
    for lib in ["lib", "lib64"] {
        let entries = fs::read_dir(prefix.join(lib))
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.filter(|entry| is_version(&entry.file_name().to_string_lossy()));
        for entry in names {
            folders.push(entry.path().join("site-packages"));
            folders.push(entry.path().join("dist-packages"));
        }
    }
    folders
}

/// Packages that start workers on this machine and tell each how many threads it may have, where nobody has: joblib the
/// CPUs by the number of workers (`_prepare_worker_env`), Dask one (`pre-spawn-environ`), Ray the CPUs of the task
/// (`set_omp_num_threads_if_unset`).
const DIVIDERS: [(&str, &str); 3] = [
    ("joblib", "joblib"),
    ("distributed", "Dask"),
    ("ray", "Ray"),
];

/// Commands and modules that do the same for the workers they start.
const LAUNCHERS: [(&str, &str); 5] = [
    ("torchrun", "torchrun"),
    ("torch.distributed.run", "torchrun"),
    ("torch.distributed.launch", "torchrun"),
    ("accelerate", "accelerate"),
    ("accelerate.commands.launch", "accelerate"),
];

/// What divides the CPUs among workers: the program that `words` start (the file that is run, then its arguments), or
/// a package in the folders. That a package is there does not say that the program uses it.
pub fn dividers(words: &[&str], folders: &[PathBuf]) -> Vec<String> {
    let started = words
        .first()
        .map(|path| path.rsplit('/').next().unwrap_or(path));
    let module = words.iter().skip_while(|&&word| word != "-m").nth(1);
    let launchers = LAUNCHERS
        .iter()
        .filter(|(name, _)| started == Some(*name) || module == Some(name));
    let packages = DIVIDERS
        .iter()
        .filter(|(name, _)| folders.iter().any(|folder| folder.join(name).is_dir()));
    launchers
        .chain(packages)
        .map(|&(_, name)| name.to_owned())
        .collect()
}

/// All libraries below the folders, in a fixed order, and whether all of it was looked at. No folder takes what others
/// may have: `PYTHONPATH` may name one that has everything in it.
pub fn libraries(folders: &[PathBuf]) -> (Vec<PathBuf>, bool) {
    let mut found = Vec::new();
    let mut is_whole = true;
    for folder in folders {
        let mut left = ENTRIES_MAX;
        walk(folder, 0, &mut left, &mut found);
        is_whole &= left > 0;
    }
    found.sort();
    found.dedup();
    (found, is_whole)
}

fn walk(folder: &Path, depth: usize, left: &mut usize, found: &mut Vec<PathBuf>) {
    // Links to folders are not followed, so that there are no circles.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if *left == 0 {
            return;
        }
        *left -= 1;
        let name = entry.file_name();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                if depth < DEPTH_MAX && name != OsStr::new("__pycache__") {
                    walk(&entry.path(), depth + 1, left, found);
                }
            }
            Ok(_) => {
                let name = name.to_string_lossy();
                if name.ends_with(".so") || name.contains(".so.") {
                    found.push(entry.path());
                }
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_packages_of_an_environment_and_of_the_system() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().canonicalize().expect("a path");
        let system = root.join("usr");
        let venv = root.join("venv");
        for folder in [
            "usr/bin",
            "usr/lib/python3.11/site-packages",
            "usr/lib/python3.9/site-packages",
            "usr/lib/python3/dist-packages",
            "venv/bin",
            "venv/lib/python3.11/site-packages/numpy.libs",
        ] {
            fs::create_dir_all(root.join(folder)).expect("made");
        }
        fs::write(system.join("bin/python3.11"), "").expect("written");
        std::os::unix::fs::symlink(system.join("bin/python3.11"), venv.join("bin/python"))
            .expect("linked");
        let library = venv.join("lib/python3.11/site-packages/numpy.libs/libgomp-1a2b.so.1.0.0");
        fs::write(&library, "").expect("written");

        let python = venv.join("bin/python");
        let none = BTreeMap::new();
        let settings = venv.join("pyvenv.cfg");
        fs::write(
            &settings,
            "home = x\ninclude-system-site-packages = false\n",
        )
        .expect("written");
        let alone = package_folders(&python, &none);
        assert_eq!(alone, [venv.join("lib/python3.11/site-packages")]);
        assert_eq!(libraries(&alone), (vec![library], true));

        fs::write(&settings, "include-system-site-packages = true\n").expect("written");
        let mut both = package_folders(&python, &none);
        both.sort();
        let system = [
            system.join("lib/python3.11/site-packages"),
            system.join("lib/python3/dist-packages"),
        ];
        let mut wanted: Vec<PathBuf> = system.into_iter().chain(alone).collect();
        wanted.sort();
        assert_eq!(both, wanted);
    }

    #[test]
    fn finds_what_divides_the_cpus_among_workers() {
        let place = tempfile::tempdir().expect("a folder");
        let folders = [place.path().join("none"), place.path().to_owned()];
        let none: [String; 0] = [];
        assert_eq!(dividers(&["/usr/bin/python3", "train.py"], &folders), none);
        fs::write(place.path().join("ray"), "no package").expect("written");
        fs::create_dir(place.path().join("joblib")).expect("made");
        fs::create_dir(place.path().join("joblib-1.4.2.dist-info")).expect("made");
        assert_eq!(dividers(&["python3", "train.py"], &folders), ["joblib"]);
        let module = ["python3", "-m", "torch.distributed.run", "train.py"];
        assert_eq!(dividers(&module, &folders), ["torchrun", "joblib"]);
        assert_eq!(dividers(&["/venv/bin/torchrun"], &[]), ["torchrun"]);
        assert_eq!(dividers(&["python3", "torchrun", "-m"], &[]), none);
    }

    #[test]
    fn looks_behind_pyenv() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path();
        for version in ["3.11.7", "3.12.1"] {
            fs::create_dir_all(root.join(format!("versions/{version}/bin"))).expect("made");
            fs::write(root.join(format!("versions/{version}/bin/python3")), "").expect("written");
        }
        fs::create_dir_all(root.join("shims")).expect("made");
        fs::create_dir_all(root.join("work/deep")).expect("made");
        fs::write(root.join("version"), "3.11.7\n").expect("written");
        let stub = root.join("shims/python3");
        let mut environment = BTreeMap::new();
        let of = |environment: &BTreeMap<String, String>| {
            let found = behind_pyenv(&stub, environment, &root.join("work/deep"))?;
            Some(
                found
                    .strip_prefix(root.join("versions"))
                    .expect("below")
                    .to_owned(),
            )
        };
        assert_eq!(of(&environment), Some("3.11.7/bin/python3".into()));
        fs::write(root.join("work/.python-version"), "3.12.1\n3.11.7\n").expect("written");
        assert_eq!(of(&environment), Some("3.12.1/bin/python3".into()));
        environment.insert("PYENV_VERSION".to_owned(), "3.11.7:3.12.1".to_owned());
        assert_eq!(of(&environment), Some("3.11.7/bin/python3".into()));
        environment.insert("PYENV_VERSION".to_owned(), "../../work".to_owned());
        assert_eq!(of(&environment), None);
        assert_eq!(
            behind_pyenv(&root.join("version"), &BTreeMap::new(), root),
            None
        );
    }
}
