//! Where GCC's test suite comes from, and which tests it has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::case::Language;

/// The folder of Debian's package `gcc-12-source`.
const PACKAGE: &str = "/usr/src/gcc-12";

/// One test: a source file in one language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// `libgomp.c/barrier-1.c`; what both C and C++ have is told apart by ` (C++)`.
    pub name: String,
    /// The file.
    pub source: PathBuf,
    /// How it is compiled.
    pub language: Language,
}

/// Why there is no suite. Its text is what to do.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// The package is not installed.
    #[error(
        "there is no source of GCC 12 in {PACKAGE}; on Debian 12, as root: \
         apt-get install gcc-12-source gcc-12 g++-12 gfortran-12, or give a folder that has \
         libgomp/testsuite and include with --gcc-source"
    )]
    NoPackage,
    /// A folder does not have it.
    #[error("{0} has no libgomp/testsuite: it is not the source of GCC")]
    NoTestsuite(PathBuf),
    /// Another one does not have the other suite.
    #[error(
        "{0} has no tests/ and ompvv/: it is no checkout of the OpenMP Validation and Verification Suite"
    )]
    NoValidation(PathBuf),
    /// tar failed.
    #[error("cannot unpack {archive}: {why}; tar and xz-utils are needed, and room in {folder}")]
    Unpack {
        /// What.
        archive: PathBuf,
        /// Where to.
        folder: PathBuf,
        /// What it said.
        why: String,
    },
    /// A folder cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// The folder with `libgomp/` and `include/` of GCC: `given`, or the package's, unpacked below `cache` once.
pub fn source(given: Option<&Path>, cache: &Path) -> Result<PathBuf, SuiteError> {
    let has_tests = |folder: &Path| folder.join("libgomp/testsuite/libgomp.c").is_dir();
    if let Some(given) = given {
        if !has_tests(given) {
            return Err(SuiteError::NoTestsuite(given.to_owned()));
        }
        return Ok(given.to_owned());
    }
    let archive = fs::read_dir(PACKAGE)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("gcc-12.") && name.contains(".tar")
        })
        .ok_or(SuiteError::NoPackage)?;
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let folder = cache.join(name.split(".tar").next().unwrap_or("gcc"));
    if has_tests(&folder) {
        return Ok(folder);
    }
    let failed = |why: String| SuiteError::Unpack {
        archive: archive.clone(),
        folder: cache.to_owned(),
        why,
    };
    // Under another name until it is whole: it may be interrupted.
    let part = cache.join(format!("unpacking.{}", std::process::id()));
    fs::create_dir_all(&part).map_err(|error| failed(error.to_string()))?;
    let done = Command::new("tar")
        .arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(&part)
        .args(["--strip-components=1", "--wildcards"])
        .args(["*/libgomp/testsuite", "*/libgomp/*.h", "*/include"])
        .output()
        .map_err(|error| failed(format!("tar: {error}")))?;
    if !done.status.success() || !has_tests(&part) {
        let _ = fs::remove_dir_all(&part);
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(failed(
            said.lines().last().unwrap_or("no tests in it").to_owned(),
        ));
    }
    if let Err(error) = fs::rename(&part, &folder) {
        // Another run was faster.
        let _ = fs::remove_dir_all(&part);
        if !has_tests(&folder) {
            return Err(failed(error.to_string()));
        }
    }
    Ok(folder)
}

/// All tests of a language below the source of GCC, by name.
pub fn tests(source: &Path, language: Language) -> Result<Vec<Test>, SuiteError> {
    let suite = source.join("libgomp/testsuite");
    let mut tests = Vec::new();
    let folders: &[&str] = match language {
        Language::C => &["libgomp.c", "libgomp.c-c++-common"],
        Language::Cxx => &["libgomp.c++", "libgomp.c-c++-common"],
        Language::Fortran => &["libgomp.fortran"],
    };
    for folder in folders {
        let mut files = Vec::new();
        files_below(&suite.join(folder), &mut files)?;
        for file in files.into_iter().filter(|file| is_test(file, folder)) {
            let path = file.strip_prefix(&suite).expect("below it");
            let mut name = path.to_string_lossy().into_owned();
            if language == Language::Cxx && *folder == "libgomp.c-c++-common" {
                name.push_str(" (C++)");
            }
            tests.push(Test {
                name,
                source: file,
                language,
            });
        }
    }
    tests.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tests)
}

fn is_test(file: &Path, folder: &str) -> bool {
    let ending = file.extension().unwrap_or_default().to_string_lossy();
    match folder {
        "libgomp.c++" => ending == "C",
        "libgomp.fortran" => matches!(
            ending.as_ref(),
            "f" | "F" | "f90" | "F90" | "f95" | "F95" | "f03" | "F03" | "f08" | "F08"
        ),
        _ => ending == "c",
    }
}

/// All files below `folder`.
pub fn files_below(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), SuiteError> {
    let failed = |source| SuiteError::Read {
        path: folder.to_owned(),
        source,
    };
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            files_below(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}
