//! What programs call: the same program passes with GCC's own library.

mod support;

use support::{Program, Runtime, text};

#[test]
fn the_functions_do_what_they_promise() {
    let Some(program) = Program::build("the_functions_do_what_they_promise", "api") else {
        return;
    };
    for runtime in [Runtime::Gccs, Runtime::Ours] {
        let output = program.run(runtime, &[]);
        assert_eq!(
            text(&output.stdout),
            "ok\n",
            "{runtime:?}: {}",
            text(&output.stderr)
        );
        assert!(output.status.success());
        assert_eq!(text(&output.stderr), "shown 0\n");
    }
}

#[test]
fn functions_of_fortran_do_what_those_of_c_do() {
    let Some(program) = Program::build("functions_of_fortran_do_what_those_of_c_do", "fortran")
    else {
        return;
    };
    for variables in [
        &[][..],
        &[("OMP_PLACES", "{0},{1},{0,1}")],
        &[("OMP_PLACES", "{0},{1}"), ("OMP_PROC_BIND", "spread")],
    ] {
        for runtime in [Runtime::Gccs, Runtime::Ours] {
            let output = program.run(runtime, variables);
            let said = (text(&output.stdout), text(&output.stderr));
            let expected = ("ok\n".into(), "of fortran 0\n".into());
            assert_eq!(said, expected, "{runtime:?} {variables:?}");
            assert!(output.status.success());
        }
    }
}

#[test]
fn calls_that_compilers_make_seldom_do_what_they_promise() {
    let Some(program) = Program::build(
        "calls_that_compilers_make_seldom_do_what_they_promise",
        "calls",
    ) else {
        return;
    };
    for runtime in [Runtime::Gccs, Runtime::Ours] {
        let output = program.run(runtime, &[]);
        let said = (text(&output.stdout), text(&output.stderr));
        assert_eq!(said, ("ok\n".into(), String::new()), "{runtime:?}");
        assert!(output.status.success());
    }
}

#[test]
fn error_directives_say_the_same_and_end_the_program() {
    let Some(program) =
        Program::build("error_directives_say_the_same_and_end_the_program", "calls")
    else {
        return;
    };
    for argument in ["loud", "silent"] {
        let [ours, gccs] = [Runtime::Ours, Runtime::Gccs]
            .map(|runtime| program.run_with(runtime, &[], &[argument]));
        assert_eq!(text(&ours.stderr), text(&gccs.stderr), "{argument}");
        assert_eq!(ours.status.code(), Some(1), "{argument}");
        assert_eq!(gccs.status.code(), Some(1), "{argument}");
        assert_eq!(text(&ours.stdout), "");
    }
}

#[test]
fn threads_know_their_places() {
    let Some(program) = Program::build("threads_know_their_places", "places") else {
        return;
    };
    for places in ["{0},{1}", "{1},{0}", "{0:2}", "threads", "cores"] {
        let variables = [("OMP_PLACES", places)];
        let [ours, gccs] =
            [Runtime::Ours, Runtime::Gccs].map(|runtime| program.run(runtime, &variables));
        assert_eq!(text(&ours.stdout), text(&gccs.stdout), "{places}");
        assert_eq!(text(&ours.stderr), text(&gccs.stderr), "{places}");
    }
}

/// More places than this machine has CPUs: places may share them.
#[test]
fn threads_go_where_gccs_runtime_puts_them() {
    let Some(program) = Program::build("threads_go_where_gccs_runtime_puts_them", "binding") else {
        return;
    };
    let places = "{0},{0,1},{1},{0},{1},{0,1},{0}";
    for bind in [
        "true",
        "primary",
        "close",
        "spread",
        "spread,close",
        "close,spread",
    ] {
        let variables = [("OMP_PLACES", places), ("OMP_PROC_BIND", bind)];
        for arguments in [
            ["3", "2", "0"],
            ["9", "1", "0"],
            ["7", "3", "0"],
            ["1", "4", "0"],
            ["2", "9", "0"],
            ["4", "2", "2"],
            ["4", "3", "3"],
            ["3", "5", "4"],
        ] {
            let run = |runtime| program.run_with(runtime, &variables, &arguments);
            let [ours, gccs] = [Runtime::Ours, Runtime::Gccs].map(run);
            assert_eq!(
                text(&ours.stdout),
                text(&gccs.stdout),
                "{bind} {arguments:?}"
            );
            assert!(ours.status.success(), "{bind} {arguments:?}");
        }
    }
}

/// Which thread says what, in any order. One region: what GCC's runtime says of the next ones may be of those before.
#[test]
fn threads_say_where_they_are() {
    let Some(program) = Program::build("threads_say_where_they_are", "shown") else {
        return;
    };
    for (places, threads) in [
        ("", "1"),
        ("", "3"),
        ("{0},{1},{0,1}", "1"),
        ("{0},{1},{0,1}", "2"),
        ("{0},{1},{0,1}", "7"),
    ] {
        let mut variables = vec![
            ("OMP_DISPLAY_AFFINITY", "true"),
            (
                "OMP_AFFINITY_FORMAT",
                "%L %0.3n of %N, %{ancestor_tnum}, %A",
            ),
        ];
        if !places.is_empty() {
            variables.push(("OMP_PLACES", places));
        }
        let said = |runtime| {
            let output = program.run_with(runtime, &variables, &[threads]);
            let mut lines: Vec<String> = text(&output.stderr).lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(
            said(Runtime::Ours),
            said(Runtime::Gccs),
            "{places} {threads}"
        );
    }
}

#[test]
fn functions_of_gcc_13_to_15() {
    let Some(program) = Program::build("functions_of_gcc_13_to_15", "newer") else {
        return;
    };
    let said = |runtime| text(&program.run(runtime, &[]).stdout);
    assert_eq!(said(Runtime::Ours), "15\n");
    let gccs = said(Runtime::Gccs);
    assert!(
        ["none\n", "13\n", "14\n", "15\n"].contains(&&*gccs),
        "{gccs}"
    );
}

/// Since GCC 13; before, the host stood for it.
#[test]
fn who_means_omp_invalid_device_is_told_so_and_the_program_ends() {
    let Some(program) = Program::build("who_means_omp_invalid_device", "devices") else {
        return;
    };
    let said = |case: &str| {
        let output = program.run_with(Runtime::Ours, &[], &[case]);
        (text(&output.stdout), text(&output.stderr), output.status)
    };
    let (cases, told, status) = said("none");
    assert!(status.success(), "{told}");
    assert!(cases.lines().count() > 10, "{cases}");
    for case in cases.lines() {
        let (out, told, status) = said(case);
        assert_eq!(
            told, "\nlibgomp: omp_invalid_device encountered\n",
            "{case}"
        );
        assert_eq!((out.as_str(), status.code()), ("", Some(1)), "{case}");
    }
}
