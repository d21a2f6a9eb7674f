//! The OpenMP runtimes under test, and the proof that a program really loads them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process;

/// `NAME=FOLDER` as typed; `-` for the one that this machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// How it is called in the report.
    pub name: String,
    /// The folder with its `libgomp.so.1`; `None` for the machine's own.
    pub folder: Option<PathBuf>,
}

impl std::str::FromStr for Given {
    type Err = String;

    fn from_str(text: &str) -> Result<Given, String> {
        let (name, folder) = text
            .split_once('=')
            .filter(|(name, folder)| !name.is_empty() && !folder.is_empty())
            .ok_or("expected NAME=FOLDER, or NAME=- for the library of this machine")?;
        Ok(Given {
            name: name.to_owned(),
            folder: (folder != "-").then(|| folder.into()),
        })
    }
}

/// A runtime that programs load.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// As typed.
    pub name: String,
    /// For `LD_LIBRARY_PATH`.
    pub folder: Option<PathBuf>,
    /// The library that is loaded.
    pub library: PathBuf,
}

const WHICH: &str = "\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
int main (void)
{
  Dl_info info;
  int threads = 0;
  #pragma omp parallel num_threads (2) reduction (+: threads)
  threads += 1;
  if (threads < 1 || !dladdr (dlsym (RTLD_DEFAULT, \"omp_get_max_threads\"), &info))
    return 1;
  puts (info.dli_fname);
  return 0;
}
";

/// Finds out which library a program loads with each runtime.
///
/// # Errors
/// A text for the user where one of them is not what is loaded.
pub fn check(given: &[Given], cache: &Path) -> Result<Vec<Runtime>, String> {
    let folder = tempfile::tempdir_in(cache).map_err(|error| error.to_string())?;
    let source = folder.path().join("which.c");
    let program = folder.path().join("which");
    fs::write(&source, WHICH).map_err(|error| format!("{}: {error}", source.display()))?;
    let built = process::run(
        Command::new("gcc-12")
            .args(["-fopenmp", "-O1", "-o"])
            .arg(&program)
            .arg(&source)
            .arg("-ldl"),
        Duration::from_secs(120),
    )
    .map_err(|error| format!("gcc-12 does not start: {error}; apt-get install gcc-12"))?;
    if !built.is_success() {
        return Err(format!(
            "gcc-12 cannot build OpenMP programs: {}",
            built.output
        ));
    }
    given.iter().map(|given| which(given, &program)).collect()
}

fn which(given: &Given, program: &Path) -> Result<Runtime, String> {
    let name = &given.name;
    let folder = match &given.folder {
        Some(folder) => Some(folder.canonicalize().map_err(|error| {
            format!(
                "{name}: {}: {error}; build the runtime first",
                folder.display()
            )
        })?),
        None => None,
    };
    let mut command = Command::new(program);
    environment(&mut command, folder.as_deref());
    let ended = process::run(&mut command, Duration::from_secs(60))
        .map_err(|error| format!("{name}: {error}"))?;
    let said = ended.output.trim();
    if !ended.is_success() {
        return Err(format!(
            "{name}: a program of one parallel region does not run with it: {} {said}",
            ended.how()
        ));
    }
    let library = PathBuf::from(said);
    // A library that is not in the folder, or of another name there: the machine's own is found instead.
    if let Some(folder) = &folder
        && library.parent() != Some(folder)
    {
        return Err(format!(
            "{name}: programs load {said} instead of one in {}: is there a libgomp.so.1?",
            folder.display()
        ));
    }
    Ok(Runtime {
        name: name.clone(),
        folder,
        library,
    })
}

/// The environment of a test: nothing that steers a runtime, and where its library is.
pub fn environment(command: &mut Command, folder: Option<&Path>) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let steers = [
            "OMP_",
            "GOMP_",
            "KMP_",
            "LIBOMP_",
            "AMDAHL_",
            "ACC_",
            "LD_PRELOAD",
        ];
        if steers.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.env("LC_ALL", "C").env("LANG", "C");
    match folder {
        Some(folder) => command.env("LD_LIBRARY_PATH", folder),
        None => command.env_remove("LD_LIBRARY_PATH"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_typed() {
        let given: Given = "ours=/x=y".parse().expect("a runtime");
        assert_eq!(
            (given.name.as_str(), given.folder),
            ("ours", Some("/x=y".into()))
        );
        let given: Given = "gcc=-".parse().expect("a runtime");
        assert_eq!(given.folder, None);
        assert!("gcc".parse::<Given>().is_err());
        assert!("=x".parse::<Given>().is_err());
    }
}
