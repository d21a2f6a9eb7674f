//! The runner on a small suite of its own: that it believes nothing that is not so.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// File, source and what has to become of it.
const TESTS: &[(&str, &str, Option<&str>)] = &[
    ("pass.c", "int main (void) { return 0; }", None),
    (
        "abort.c",
        "/* { dg-do run } */\nint main (void) { __builtin_abort (); }",
        Some("killed by signal 6"),
    ),
    (
        "environment.c",
        "/* { dg-do run } */\n/* { dg-set-target-env-var OMP_NUM_THREADS \"3\" } */\n#include <omp.h>\n\
         int main (void) { return omp_get_max_threads () != 3; }",
        None,
    ),
    (
        "output.c",
        "#include <stdio.h>\n/* { dg-output \"a:\\[0-9\\]+(\\n|\\r\\n)\" } */\n\
         int main (void) { fputs (\"a:12\\n\", stderr); return 0; }",
        None,
    ),
    (
        "other-output.c",
        "#include <stdio.h>\n/* { dg-output \"b\" } */\nint main (void) { puts (\"a\"); return 0; }",
        Some("its output does not match"),
    ),
    (
        "has-to-fail.c",
        "/* { dg-shouldfail \"it does\" } */\nint main (void) { return 1; }",
        None,
    ),
    (
        "does-not-fail.c",
        "/* { dg-shouldfail \"it does not\" } */\nint main (void) { return 0; }",
        Some("but it has to fail"),
    ),
    (
        "broken.c",
        "int main (void) { return x; }",
        Some("it does not compile"),
    ),
];

fn runner(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_amdahl-conformance"))
        .arg("--gcc-source")
        .arg(folder.join("gcc"))
        .arg("--cache")
        .arg(folder.join("cache"))
        .args(args)
        .output()
        .expect("the runner starts")
}

fn suite(folder: &Path) {
    let tests = folder.join("gcc/libgomp/testsuite/libgomp.c");
    fs::create_dir_all(&tests).expect("made");
    fs::create_dir_all(folder.join("gcc/libgomp/testsuite/libgomp.c-c++-common")).expect("made");
    for (name, source, _) in TESTS {
        fs::write(tests.join(name), source).expect("written");
    }
    fs::write(tests.join("compiles.c"), "/* { dg-do compile } */\n").expect("written");
}

fn has_gcc() -> bool {
    let works = Command::new("gcc-12").arg("--version").output().is_ok();
    if !works {
        println!("SKIPPED: gcc-12 is not installed");
    }
    works
}

#[test]
fn tells_what_passes_and_why_the_rest_does_not() {
    if !has_gcc() {
        return;
    }
    let place = tempfile::tempdir().expect("a folder");
    suite(place.path());
    let json = place.path().join("report.json");
    let args = ["--language", "c", "--json", json.to_str().expect("text")];
    // Twice: the second time with programs that are there already.
    for _ in 0..2 {
        let output = runner(place.path(), &args);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains("SKIPPED libgomp.c/compiles.c: only has to compile"),
            "{text}"
        );
        let failing = TESTS.iter().filter(|(.., why)| why.is_some()).count();
        let last = format!(
            "{} passed, {failing} failed, 1 skipped",
            TESTS.len() - failing
        );
        assert_eq!(text.lines().last(), Some(last.as_str()), "{text}");
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(&json).expect("written")).expect("JSON");
        for (name, _, why) in TESTS {
            let outcome = &report["tests"][format!("libgomp.c/{name}")]["outcomes"]["gcc"];
            assert_eq!(outcome["passed"], why.is_none(), "{name}: {outcome}");
            let said = outcome["why"].as_str().expect("text");
            assert!(said.contains(why.unwrap_or("")), "{name}: {said}");
        }
    }
}

#[test]
fn what_does_not_end_is_ended() {
    if !has_gcc() {
        return;
    }
    let place = tempfile::tempdir().expect("a folder");
    suite(place.path());
    let test = place.path().join("gcc/libgomp/testsuite/libgomp.c/hangs.c");
    let source = "#include <unistd.h>\nint main (void) { for (;;) pause (); }";
    fs::write(test, source).expect("written");
    let args = ["--language", "c", "--only", "hangs", "--timeout", "1"];
    let output = runner(place.path(), &args);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("FAILED libgomp.c/hangs.c: no end after"),
        "{text}"
    );
}

/// GCC's library by another way, as an argument; `None`, and a word about it, if it is not where Debian has it.
fn same_again(place: &Path) -> Option<String> {
    let own = Path::new("/usr/lib/x86_64-linux-gnu/libgomp.so.1");
    let folder = place.join("runtime");
    fs::create_dir(&folder).expect("made");
    if fs::copy(own, folder.join("libgomp.so.1")).is_err() {
        println!("SKIPPED: there is no {}", own.display());
        return None;
    }
    Some(format!("ours={}", folder.display()))
}

#[test]
fn what_fails_with_the_reference_too_is_no_failure() {
    if !has_gcc() {
        return;
    }
    let place = tempfile::tempdir().expect("a folder");
    suite(place.path());
    let Some(ours) = same_again(place.path()) else {
        return;
    };
    let args = ["--only", "pass|abort", "--language", "c", "gcc=-", &ours];
    let output = runner(place.path(), &args);
    assert_eq!(output.status.code(), Some(1));
    let args: Vec<&str> = ["--reference", "gcc"].into_iter().chain(args).collect();
    let output = runner(place.path(), &args);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains("gcc (") && text.contains("0 passed, 1 failed"),
        "{text}"
    );
}

/// A lost wake-up passed: its time was up once, and the second run went well.
#[test]
fn what_ends_only_when_it_is_tried_again_is_a_failure_unless_it_is_the_same_with_the_reference() {
    if !has_gcc() {
        return;
    }
    let place = tempfile::tempdir().expect("a folder");
    suite(place.path());
    let Some(ours) = same_again(place.path()) else {
        return;
    };
    // Each run makes the file longer. Ours runs first, then the reference, and then both again alone.
    for (hanging, code) in [(1, 1), (2, 0)] {
        let name = format!("wakes-{hanging}.c");
        let runs = place.path().join(format!("runs-{hanging}"));
        let source = format!(
            "#include <stdio.h>\n#include <unistd.h>\nint main (void) {{\n  FILE *runs = fopen ({:?}, \"a\");\n  \
             fputc ('x', runs); fflush (runs);\n  if (ftell (runs) <= {hanging}) for (;;) pause ();\n  return 0; }}",
            runs.to_str().expect("text")
        );
        let test = place
            .path()
            .join("gcc/libgomp/testsuite/libgomp.c")
            .join(&name);
        fs::write(test, source).expect("written");
        let output = runner(
            place.path(),
            &[
                "--reference",
                "gcc",
                "--only",
                &name,
                "--language",
                "c",
                "--timeout",
                "1",
                "gcc=-",
                &ours,
            ],
        );
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{hanging}: {text}");
        let late = format!("LATE libgomp.c/{name} with ours");
        assert!(text.contains(&late), "{text}");
        let last = format!("0 passed, {code} failed, 0 skipped");
        assert_eq!(text.lines().last(), Some(last.as_str()), "{text}");
    }
}

#[test]
fn a_runtime_that_is_not_loaded_fails() {
    if !has_gcc() {
        return;
    }
    let place = tempfile::tempdir().expect("a folder");
    suite(place.path());
    let ours = format!("ours={}", place.path().display());
    let output = runner(place.path(), &["--language", "c", &ours]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.starts_with("FAILED conformance: ours: programs load"),
        "{text}"
    );
}
