//! The library as programs load it, programs in three languages, and GCC's own library beside it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

/// The folder with `libgomp.so.1`, linked once for each test program. Cargo builds no static library for a test,
/// so that it is asked to.
pub fn library() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let test = std::env::current_exe().expect("the path of the test");
            let profile = test.ancestors().nth(2).expect("its profile's folder");
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args([
                "build",
                "--locked",
                "--quiet",
                "--package",
                env!("CARGO_PKG_NAME"),
            ]);
            cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
            cargo
                .arg("--target-dir")
                .arg(profile.parent().expect("the target folder"));
            if profile.ends_with("release") {
                cargo.arg("--release");
            }
            succeeds(&mut cargo);
            let folder = tempfile::tempdir().expect("a folder");
            let mut link = Command::new(source("link.sh"));
            link.arg(profile.join("libamdahl_libgomp.a"));
            link.arg(folder.path().join("libgomp.so.1"));
            succeeds(&mut link);
            folder
        })
        .path()
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn succeeds(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// A program with OpenMP, and the libraries that it may run with.
pub struct Program {
    folder: TempDir,
}

/// What compiles a program, or another one the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    C,
    /// Of the sources in C those that are C++ as well, or of C++ alone.
    Cxx,
    Fortran,
}

impl Language {
    /// The compiler that is here, and a program to try it with.
    fn compiler(self) -> (Option<&'static str>, &'static str) {
        let (names, empty): (&[&str], _) = match self {
            Language::C => (&["gcc"], "int main(void) { return 0; }\n"),
            Language::Cxx => (&["g++"], "int main() { return 0; }\n"),
            // Debian has the one with a number without the other.
            Language::Fortran => (
                &["gfortran", "gfortran-14", "gfortran-13", "gfortran-12"],
                "end\n",
            ),
        };
        let is_there = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
        (names.iter().find(is_there).copied(), empty)
    }

    fn suffix(self) -> &'static str {
        match self {
            Language::C => "c",
            Language::Cxx => "cpp",
            Language::Fortran => "f90",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Language::C => &["-std=gnu11", "-Wextra", "-Wno-unknown-pragmas"],
            Language::Cxx => &["-std=gnu++17", "-Wextra", "-Wno-unknown-pragmas", "-xc++"],
            Language::Fortran => &[],
        }
    }

    /// Where `NAME` is.
    fn source(self, name: &str) -> PathBuf {
        let own = source(&format!("tests/{}/{name}.{}", self.suffix(), self.suffix()));
        match self {
            Language::Cxx if !own.exists() => Language::C.source(name),
            _ => own,
        }
    }
}

/// Whose library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    Ours,
    Gccs,
}

impl Program {
    /// Builds `tests/c/NAME.c`. `None`, and a word about it, where there is no gcc with OpenMP.
    pub fn build(test: &str, name: &str) -> Option<Program> {
        Program::build_as(test, name, Language::C)
    }

    /// The same in another language, of `tests/cpp/NAME.cpp` or `tests/f90/NAME.f90`.
    pub fn build_as(test: &str, name: &str, language: Language) -> Option<Program> {
        let folder = tempfile::tempdir().expect("a folder");
        let (compiler, text) = language.compiler();
        let empty = folder
            .path()
            .join("empty")
            .with_extension(language.suffix());
        std::fs::write(&empty, text).expect("a file");
        let tried = compiler.filter(|name| {
            let mut compiler = Command::new(name);
            compiler.arg("-fopenmp").arg(&empty);
            compiler.arg("-o").arg(folder.path().join("empty"));
            compiler.output().is_ok_and(|built| built.status.success())
        });
        let Some(compiler) = tried else {
            let missing = match language {
                Language::C => "gcc",
                Language::Cxx => "g++",
                Language::Fortran => "gfortran",
            };
            println!("SKIPPED {test}: there is no {missing} that makes programs with OpenMP");
            return None;
        };
        let mut compiler = Command::new(compiler);
        compiler.args(language.flags());
        compiler.args(["-Wall", "-Werror", "-O1", "-g", "-fopenmp"]);
        // Modules of Fortran are written to where it runs.
        compiler.current_dir(folder.path());
        compiler.arg(language.source(name));
        compiler.arg("-o").arg(folder.path().join("program"));
        succeeds(&mut compiler);
        Some(Program { folder })
    }

    /// Its file.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// Runs it with no variables of OpenMP but these.
    pub fn run(&self, runtime: Runtime, variables: &[(&str, &str)]) -> Output {
        self.run_with(runtime, variables, &[])
    }

    /// The same with arguments.
    pub fn run_with(
        &self,
        runtime: Runtime,
        variables: &[(&str, &str)],
        arguments: &[&str],
    ) -> Output {
        let mut program = Command::new(self.path());
        program.env_clear().args(arguments);
        if runtime == Runtime::Ours {
            program.env("LD_LIBRARY_PATH", library());
        }
        program.envs(variables.iter().copied());
        program
            .output()
            .unwrap_or_else(|error| panic!("{program:?}: {error}"))
    }
}

/// The text of a stream of a program.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
