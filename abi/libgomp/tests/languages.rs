//! The same in C++, what only C++ has, and Fortran: the same programs pass with GCC's own library.

mod support;

use support::{Language, Program, Runtime, text};

/// Expects "ok" with both libraries, and nothing but `stderr` on standard error.
fn passes(test: &str, name: &str, language: Language, variables: &[&[(&str, &str)]], stderr: &str) {
    let Some(program) = Program::build_as(test, name, language) else {
        return;
    };
    for runtime in [Runtime::Gccs, Runtime::Ours] {
        for variables in variables {
            // What GCC's library does not do is left out, see `tasks.c`.
            let mut variables = variables.to_vec();
            if runtime == Runtime::Gccs {
                variables.push(("IS_GCCS", "1"));
            }
            let output = program.run(runtime, &variables);
            let said = (text(&output.stdout), text(&output.stderr));
            let expected = ("ok\n".to_owned(), stderr.to_owned());
            assert_eq!(said, expected, "{name}, {runtime:?}, {variables:?}");
            assert!(output.status.success(), "{name}: {}", output.status);
        }
    }
}

const WAITS: &[&[(&str, &str)]] = &[&[], &[("OMP_WAIT_POLICY", "passive")]];

#[test]
fn what_passes_in_c_passes_in_cxx() {
    let test = "what_passes_in_c_passes_in_cxx";
    let tasks: &[&[(&str, &str)]] = &[&[
        ("OMP_NUM_THREADS", "4"),
        ("OMP_CANCELLATION", "true"),
        ("OMP_MAX_TASK_PRIORITY", "10"),
    ]];
    passes(test, "api", Language::Cxx, &[&[]], "shown 0\n");
    passes(test, "calls", Language::Cxx, &[&[]], "");
    passes(test, "fortran", Language::Cxx, &[&[]], "of fortran 0\n");
    passes(test, "shares", Language::Cxx, WAITS, "");
    passes(test, "tasks", Language::Cxx, tasks, "");
}

#[test]
fn what_is_seen_in_cxx_is_the_same() {
    let test = "what_is_seen_in_cxx_is_the_same";
    for (name, arguments) in [
        ("places", &[][..]),
        ("variables", &[]),
        ("binding", &["4", "2", "2"]),
    ] {
        let Some(program) = Program::build_as(test, name, Language::Cxx) else {
            return;
        };
        let variables = [("OMP_PLACES", "{0},{1},{0,1}"), ("OMP_PROC_BIND", "close")];
        let run = |runtime| program.run_with(runtime, &variables, arguments);
        let [ours, gccs] = [Runtime::Ours, Runtime::Gccs].map(run);
        assert_eq!(text(&ours.stdout), text(&gccs.stdout), "{name}");
        assert!(ours.status.success() && !ours.stdout.is_empty(), "{name}");
    }
}

#[test]
fn processes_in_cxx_fork_and_end() {
    let test = "processes_in_cxx_fork_and_end";
    let Some(program) = Program::build_as(test, "process", Language::Cxx) else {
        return;
    };
    for case in ["forks", "owners", "threadprivates", "last-one", "nested"] {
        let output = program.run_with(Runtime::Ours, &[], &[case]);
        let said = (text(&output.stdout), text(&output.stderr));
        assert_eq!(said, ("ok\n".into(), String::new()), "{case}");
    }
}

#[test]
fn objects_are_copied_and_exceptions_caught() {
    let test = "objects_are_copied_and_exceptions_caught";
    passes(test, "objects", Language::Cxx, WAITS, "");
}

#[test]
fn fortran_shares_work() {
    let test = "fortran_shares_work";
    passes(test, "shares", Language::Fortran, WAITS, "");
}
