//! Programs in C and C++ that use the header, against both kinds of library.

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
    let (compiler, standard) = match source.extension().is_some_and(|end| end == "cpp") {
        true => ("c++", "-std=c++11"),
        false => ("cc", "-std=c11"),
    };
    if Command::new(compiler).arg("--version").output().is_err() {
        println!("SKIPPED: {}: there is no {compiler}", source.display());
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
    let mut cc = Command::new(compiler);
    cc.args([
        standard,
        "-pedantic",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-g",
        "-I",
    ]);
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

fn tested_with(source: &str, library: &str, more: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    if let Some(found) = built_with(&source, &libraries().join(library), more) {
        assert_eq!(found, "ok\n");
    }
}

const STATIC: &[&str] = &["-lpthread", "-ldl", "-lm"];

#[test]
fn a_c_program_with_the_shared_library() {
    tested_with(
        "tests/c/use.c",
        "libamdahl_range_alloc_c.so",
        &["-lpthread"],
    );
}

#[test]
fn a_c_program_with_the_static_library() {
    tested_with("tests/c/use.c", "libamdahl_range_alloc_c.a", STATIC);
}

#[test]
fn a_cpp_program() {
    tested_with("tests/cpp/use.cpp", "libamdahl_range_alloc_c.a", STATIC);
}

/// Functions of the header that no program of the tests calls.
#[test]
fn every_function_of_the_header_is_there_and_tested() {
    let header = include_str!("../include/amdahl_range_alloc.h");
    let sources = [
        include_str!("../src/plain.rs"),
        include_str!("../src/shared.rs"),
        include_str!("../src/lib.rs"),
    ];
    let (tests, readme) = (include_str!("c/use.c"), include_str!("../README.md"));
    let declared = header
        .lines()
        .filter(|line| line.contains('(') && !line.starts_with("typedef"));
    let names = declared.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("ara_").then_some(name)
    });
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 30, "{names:?}");
    for name in &names {
        let defined = format!(r#"extern "C" fn {name}("#);
        assert!(
            sources.iter().any(|source| source.contains(&defined)),
            "{name} is missing"
        );
        assert!(tests.contains(&format!("{name}(")), "{name} is not tested");
        assert!(
            readme.contains(&format!("`{name}`")),
            "{name} is not in the table of README.md"
        );
    }
    for source in sources {
        for (_, after) in source
            .split(r#"extern "C" fn "#)
            .skip(1)
            .map(|rest| ((), rest))
        {
            let (name, _) = after.split_once('(').expect("a function");
            assert!(names.contains(&name), "{name} is not in the header");
        }
    }
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
