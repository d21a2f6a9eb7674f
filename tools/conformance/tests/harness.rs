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

/// A tree of the shape of the OpenMP Validation and Verification Suite.
#[test]
fn a_checkout_of_the_validation_suite_is_run_and_differences_are_told() {
    if !has_gcc() {
        return;
    }
    let place = tempfile::tempdir().expect("a folder");
    let Some(ours) = same_again(place.path()) else {
        return;
    };
    let suite = place.path().join("suite");
    let header = "#include <stdlib.h>\n#include <string.h>\n#define OMPVV_WAY 1\n";
    let by_variable = "#include \"ompvv.h\"\n#include <omp.h>\n\
        int main () { const char *said = getenv (\"OMP_PLACES\"); return !said || strcmp (said, \"threads\"); }";
    // What only one of both fails: it sees how its library is chosen.
    let of_ours =
        "#include \"ompvv.h\"\nint main () { return getenv (\"LD_LIBRARY_PATH\") ? 1 : 0; }";
    let fortran = "#define WAY 1\n#include \"ompvv.F90\"\nprogram test\n  use omp_lib\n  use way\n  if (omp_get_max_threads() /= is_four) stop 1\nend program\n";
    for (path, text) in [
        ("ompvv/ompvv.h", header),
        ("ompvv/libompvv.h", "int offload_test(void);\n"),
        ("ompvv/libompvv.c", "int offload_test(void) { return 1; }\n"),
        (
            "ompvv/ompvv.F90",
            "module way\n  integer :: is_four = 4\nend module\n",
        ),
        ("tests/4.5/test_omp_places_env_threads.c", by_variable),
        (
            "tests/4.5/target/test_static.c",
            "#include \"libompvv.h\"\nint main (void) { return !offload_test (); }",
        ),
        ("tests/5.0/task/test_of_ours.cpp", of_ours),
        (
            "tests/5.0/task/test_of_none.c",
            "int main (void) { return 1; }",
        ),
        ("tests/5.0/task/test_fortran.F90", fortran),
        (
            "tests/6.0/test_not_yet.c",
            "int main (void) { return from_the_future; }",
        ),
        ("tests/6.0/test_not_yet_either.c", "from the future"),
        ("tests/6.0/notes.txt", "no test"),
    ] {
        let path = suite.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }
    let validation = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_amdahl-conformance"))
            .arg("--validation")
            .arg(&suite)
            .arg("--cache")
            .arg(place.path().join("cache"))
            .args(args)
            .output()
            .expect("the runner starts");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (code, text) = validation(&["--language", "c,c++", "gcc=-", &ours]);
    assert_eq!(code, Some(1), "{text}");
    for line in [
        "SKIPPED 6.0/test_not_yet.c and 1 more: gcc-12 does not compile it",
        "DIFFERENT 5.0/task/test_of_ours.cpp: passes with gcc, fails with ours",
        "5 passed, 3 failed, 2 skipped",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    assert!(
        !text.contains("DIFFERENT 5.0/task/test_of_none.c"),
        "{text}"
    );
    // What fails with both is nobody's fault; what the reference alone fails is told.
    for (reference, code) in [("gcc", 1), ("ours", 0)] {
        let (ended, text) = validation(&[
            "--only",
            "^5[.]0/.*_of_",
            "--reference",
            reference,
            "gcc=-",
            &ours,
        ]);
        assert_eq!(ended, Some(code), "{text}");
        assert!(
            text.contains("DIFFERENT 5.0/task/test_of_ours.cpp"),
            "{text}"
        );
    }
    if Command::new("gfortran-12")
        .arg("--version")
        .output()
        .is_ok()
    {
        let (code, text) = validation(&["--language", "fortran", "gcc=-", &ours]);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("2 passed, 0 failed, 0 skipped"), "{text}");
    } else {
        println!("SKIPPED the Fortran of a validation suite: gfortran-12 is not installed");
    }
    let empty = place.path().join("cache").display().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_amdahl-conformance"))
        .args(["--validation", &empty, "--cache", &empty])
        .output()
        .expect("the runner starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("it is no checkout of the OpenMP Validation"),
        "{text}"
    );
}
