//! How constructs are left other than at their end: by an exception, by a thread that ends, by one that is cancelled. The same
//! programs with GCC's own library.

mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use support::{Language, Program, Runtime, text};

const SIGABRT: i32 = 6;

/// Output, errors, exit code, signal.
type Ended = (String, String, Option<i32>, Option<i32>);

fn ended(output: &Output) -> Ended {
    (
        text(&output.stdout),
        text(&output.stderr),
        output.status.code(),
        output.status.signal(),
    )
}

/// The cases that a program has.
fn cases(program: &Program) -> Vec<String> {
    let listed = text(&program.run(Runtime::Gccs, &[]).stdout);
    let cases: Vec<String> = listed.lines().map(str::to_owned).collect();
    assert!(!cases.is_empty());
    cases
}

#[test]
fn an_exception_that_leaves_a_construct_ends_the_program() {
    let test = "an_exception_that_leaves_a_construct_ends_the_program";
    let Some(program) = Program::build_as(test, "escapes", Language::Cxx) else {
        return;
    };
    let terminated =
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  escaped\n";
    for case in cases(&program) {
        for variables in [&[][..], &[("OMP_WAIT_POLICY", "passive")]] {
            let run = |runtime| ended(&program.run_with(runtime, variables, &[&case]));
            let [ours, gccs] = [Runtime::Ours, Runtime::Gccs].map(run);
            assert_eq!(ours, gccs, "{case}");
            // A taskgroup is no function of its own, so that it is left.
            if !case.starts_with("taskgroup") {
                let expected = (String::new(), terminated.into(), None, Some(SIGABRT));
                assert_eq!(ours, expected, "{case}");
            }
        }
    }
}

#[test]
fn exceptions_are_caught_within_constructs() {
    let test = "exceptions_are_caught_within_constructs";
    let Some(program) = Program::build_as(test, "caught", Language::Cxx) else {
        return;
    };
    for runtime in [Runtime::Gccs, Runtime::Ours] {
        for wait in ["active", "passive"] {
            let variables = [("OMP_WAIT_POLICY", wait), ("OMP_CANCELLATION", "true")];
            let output = program.run(runtime, &variables);
            let expected = ("ok\n".into(), String::new(), Some(0), None);
            assert_eq!(ended(&output), expected, "{runtime:?}, {wait}");
        }
    }
}

/// Threads ended within the runtime, where it looked at files: half way through, and GCC's has no such place.
#[test]
fn threads_end_where_they_do_with_gccs_library() {
    let test = "threads_end_where_they_do_with_gccs_library";
    // Out of a region of one thread GCC's library frees what it has not allocated.
    let is_fatal_there = |case: &str| {
        [
            "exits-in-a-region-of-one",
            "exits-in-a-loop",
            "cancelled-in-a-region-of-one",
        ]
        .contains(&case)
    };
    for language in [Language::C, Language::Cxx] {
        let Some(program) = Program::build_as(test, "leaves", language) else {
            return;
        };
        for case in cases(&program) {
            for variables in [&[][..], &[("OMP_WAIT_POLICY", "passive")]] {
                let run = |runtime| ended(&program.run_with(runtime, variables, &[&case]));
                let ours = run(Runtime::Ours);
                if language == Language::Cxx || !is_fatal_there(&case) {
                    assert_eq!(ours, run(Runtime::Gccs), "{case}, {language:?}");
                    continue;
                }
                let (how, cleaned) = match case.as_str() {
                    "exits-in-a-region-of-one" => ("by itself", 2),
                    "exits-in-a-loop" => ("by itself", 1),
                    _ => ("cancelled", 1),
                };
                let said = format!("{how}, cleaned {cleaned}, reached 0\n").repeat(2);
                assert_eq!(ours, (said, String::new(), Some(0), None), "{case}");
            }
        }
    }
}
