//! Programs in C and C++ that use the header, against both kinds of library.

use std::path::{Path, PathBuf};
use std::process::Command;

const I686: &str = "i686-unknown-linux-gnu";

/// The folder of the libraries. Cargo builds no library of these kinds for a test, so that it is asked to.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.ancestors().nth(2).expect("its profile's folder");
    let all = folder.parent().expect("the target folder");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "build",
        "--locked",
        "--quiet",
        "--package",
        env!("CARGO_PKG_NAME"),
    ]);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    if all.ends_with(I686) {
        let all = all.parent().expect("the target folder");
        cargo.args(["--target", I686]).arg("--target-dir").arg(all);
    } else {
        cargo.arg("--target-dir").arg(all);
    }
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

/// Whether a compiler makes programs that run: it may be missing, or what it needs for a language or a sanitizer.
fn makes(compiler: &str, is_cpp: bool, flags: &[&str]) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let (header, name) = if is_cpp {
        ("cstdio", "empty.cpp")
    } else {
        ("stdio.h", "empty.c")
    };
    let (source, program) = (folder.path().join(name), folder.path().join("empty"));
    let text = format!("#include <{header}>\nint main() {{ return 0; }}\n");
    std::fs::write(&source, text).unwrap();
    let mut cc = Command::new(compiler);
    cc.args(MACHINE).args(flags).arg(&source);
    let made = cc.arg("-o").arg(&program).output();
    made.is_ok_and(|made| made.status.success())
        && Command::new(program)
            .status()
            .is_ok_and(|ran| ran.success())
}

/// The machine's compiler, and clang where there is one.
const COMPILERS: [(&str, &str); 2] = [("cc", "c++"), ("clang", "clang++")];

/// What tells a compiler of another machine that programs are for this one.
const MACHINE: &[&str] = if cfg!(target_arch = "x86") {
    &["-m32"]
} else {
    &[]
};

/// What a program of this source says, by each compiler that there is.
fn built_with(source: &Path, library: &Path, more: &[&str]) -> Vec<String> {
    let is_cpp = source.extension().is_some_and(|end| end == "cpp");
    let compilers = COMPILERS.map(|(c, cpp)| if is_cpp { cpp } else { c });
    let made = compilers.map(|compiler| built_by(compiler, is_cpp, source, library, more));
    made.into_iter().flatten().collect()
}

fn built_by(
    compiler: &str,
    is_cpp: bool,
    source: &Path,
    library: &Path,
    more: &[&str],
) -> Option<String> {
    if !makes(compiler, is_cpp, &[]) {
        println!(
            "SKIPPED: {}: there is no {compiler}, or not all of it",
            source.display()
        );
        return None;
    }
    let standard = if is_cpp { "-std=c++11" } else { "-std=c11" };
    assert!(
        library.exists(),
        "cargo builds {} for its tests",
        library.display()
    );
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("use");
    let mut cc = Command::new(compiler);
    cc.args(MACHINE).args([
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
    let sanitizer = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    if makes(compiler, is_cpp, &sanitizer) {
        cc.args(sanitizer);
    } else {
        println!(
            "SKIPPED: {} under the address sanitizer, which {compiler} does not have",
            source.display()
        );
    }
    run(&mut cc);
    let folder = library.parent().unwrap();
    Some(run(Command::new(&program).env("LD_LIBRARY_PATH", folder)))
}

fn tested_with(source: &str, library: &str, more: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    for found in built_with(&source, &libraries().join(library), more) {
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
    for found in built_with(&source, &library, STATIC) {
        let (address, why) = found.split_once('\n').expect("two lines");
        assert_eq!(address, "0x8000");
        assert!(why.contains("inside"), "{why}");
    }
}
