//! A C program that uses the header, against both kinds of library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the libraries. Cargo builds no library of these kinds for a test, so that it is asked to.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.ancestors().nth(2).expect("its profile's folder");
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
        .arg(folder.parent().expect("the target folder"));
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    run(&mut cargo);
    folder.to_owned()
}

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Whether the compiler makes programs with the address sanitizer, which is a library of its own.
fn has_sanitizer(folder: &Path) -> bool {
    let source = folder.join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-fsanitize=address,undefined").arg(&source);
    cc.arg("-o").arg(folder.join("empty"));
    let made = cc.output().is_ok_and(|made| made.status.success());
    made && Command::new(folder.join("empty"))
        .status()
        .is_ok_and(|ran| ran.success())
}

/// What a program of this source says.
fn built_with(source: &Path, library: &Path, more: &[&str]) -> Option<String> {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("SKIPPED: there is no C compiler (cc)");
        return None;
    }
    assert!(
        library.exists(),
        "cargo builds {} for its tests",
        library.display()
    );
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("use");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-I"]);
    cc.arg(here.join("include")).arg(source);
    cc.arg("-o").arg(&program).arg(library).args(more);
    // Also finds what was never given back.
    if has_sanitizer(folder.path()) {
        cc.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    } else {
        println!("SKIPPED: the C program under the address sanitizer, which cc does not have");
    }
    run(&mut cc);
    let folder = library.parent().unwrap();
    Some(run(Command::new(&program).env("LD_LIBRARY_PATH", folder)))
}

fn tested_with(library: &str, more: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/use.c");
    if let Some(found) = built_with(&source, &libraries().join(library), more) {
        assert_eq!(found, "ok\n");
    }
}

const STATIC: &[&str] = &["-lpthread", "-ldl", "-lm"];

#[test]
fn a_c_program_with_the_shared_library() {
    tested_with("libamdahl_range_alloc_c.so", &["-lpthread"]);
}

#[test]
fn a_c_program_with_the_static_library() {
    tested_with("libamdahl_range_alloc_c.a", STATIC);
}

#[test]
fn the_program_of_the_readme_says_what_it_promises() {
    let readme = include_str!("../README.md");
    let (_, from) = readme.split_once("```c\n").expect("a program");
    let (program, _) = from.split_once("```").expect("its end");
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("example.c");
    std::fs::write(&source, program).unwrap();
    let library = libraries().join("libamdahl_range_alloc_c.a");
    if let Some(found) = built_with(&source, &library, STATIC) {
        let (address, why) = found.split_once('\n').expect("two lines");
        assert_eq!(address, "0x8000");
        assert!(why.contains("inside"), "{why}");
    }
}
