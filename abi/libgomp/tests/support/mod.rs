//! The library as programs load it, C programs, and GCC's own library beside it.

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

/// A C program with OpenMP, and the libraries that it may run with.
pub struct Program {
    folder: TempDir,
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
        let folder = tempfile::tempdir().expect("a folder");
        let empty = folder.path().join("empty.c");
        std::fs::write(&empty, "int main(void) { return 0; }").expect("a file");
        let mut gcc = Command::new("gcc");
        gcc.arg("-fopenmp")
            .arg(&empty)
            .arg("-o")
            .arg(folder.path().join("empty"));
        if !gcc.output().is_ok_and(|built| built.status.success()) {
            println!("SKIPPED {test}: there is no gcc that makes programs with OpenMP");
            return None;
        }
        let mut gcc = Command::new("gcc");
        gcc.args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unknown-pragmas",
            "-O1",
            "-g",
            "-fopenmp",
        ]);
        gcc.arg(source("tests/c").join(name).with_extension("c"));
        gcc.arg("-o").arg(folder.path().join("program"));
        succeeds(&mut gcc);
        Some(Program { folder })
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
        let mut program = Command::new(self.folder.path().join("program"));
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
