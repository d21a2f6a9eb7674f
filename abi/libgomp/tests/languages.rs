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

#[test]
fn fortran_loops_scan_and_reduce() {
    let schedules: &[&[_]] = &[
        &[],
        &[("OMP_SCHEDULE", "static,3")],
        &[("OMP_SCHEDULE", "guided")],
        &[("OMP_WAIT_POLICY", "passive")],
    ];
    let test = "fortran_loops_scan_and_reduce";
    passes(test, "loops", Language::Fortran, schedules, "");
}

#[test]
fn fortran_tasks_depend_and_are_cancelled() {
    let set = [("OMP_CANCELLATION", "true"), ("OMP_MAX_TASK_PRIORITY", "5")];
    let passive = [set[0], set[1], ("OMP_WAIT_POLICY", "passive")];
    let test = "fortran_tasks_depend_and_are_cancelled";
    passes(test, "tasks", Language::Fortran, &[&set, &passive], "");
}

#[test]
fn fortran_asks_the_library() {
    let places: &[&[_]] = &[&[], &[("OMP_PLACES", "{0},{0}")]];
    let test = "fortran_asks_the_library";
    passes(test, "library", Language::Fortran, places, "");
}

#[test]
fn what_fortran_shows_is_the_same() {
    let test = "what_fortran_shows_is_the_same";
    let Some(program) = Program::build_as(test, "library", Language::Fortran) else {
        return;
    };
    let variables = [("OMP_SCHEDULE", "guided,7"), ("OMP_NUM_THREADS", "3,2")];
    let shown = |what| {
        let run = |runtime| program.run_with(runtime, &variables, &[what]);
        [Runtime::Ours, Runtime::Gccs].map(run)
    };
    let [ours, gccs] = shown("affinity").map(|output| text(&output.stdout) + &text(&output.stderr));
    assert_eq!(ours, gccs);
    assert!(ours.contains("1 of 3 in team"), "{ours}");
    // Since GCC 13 it says for which devices a variable is, as ours does; ours has some of its own.
    let lines = |output: &std::process::Output| -> Vec<String> {
        let said = text(&output.stderr);
        let lines = said.lines().map(|line| {
            let line = line.trim_start();
            let line = line.strip_prefix("[host] ").unwrap_or(line);
            line.strip_prefix("[all] ").unwrap_or(line).to_owned()
        });
        lines.filter(|line| !line.starts_with("AMDAHL_")).collect()
    };
    let [ours, gccs] = shown("env").map(|output| lines(&output));
    assert_eq!(ours, gccs);
    assert!(ours.iter().any(|line| line == "OMP_NUM_THREADS = '3,2'"));
}
