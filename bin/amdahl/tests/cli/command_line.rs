//! The command line, help, and where output goes.

use std::process::{Command, Stdio};

use crate::tool::{Place, alone, cpus, has, skipped};

const SCHEMA: &str = include_str!("../../../../docs/result-schema.md");

const SUBCOMMANDS: [&str; 4] = ["scale", "compare", "report", "doctor"];

#[test]
fn help_of_every_command_has_examples() {
    let place = Place::new();
    let all = place.amdahl(["--help"]).ends_with(0);
    for subcommand in SUBCOMMANDS {
        assert!(
            all.out.contains(&format!("\n  {subcommand} ")),
            "{}",
            all.out
        );
        let help = place.amdahl([subcommand, "--help"]).ends_with(0).out;
        let (_, examples) = help.split_once("\nExamples:\n").expect("examples");
        let count = examples
            .lines()
            .filter(|line| line.starts_with(&format!("  amdahl {subcommand}")))
            .count();
        assert!(count >= 2, "{help}");
    }
}

#[test]
fn help_lists_every_exit_code_that_is_documented() {
    let help = Place::new().amdahl(["--help"]).ends_with(0).out;
    let (_, listed) = help.split_once("Exit codes:\n").expect("exit codes");
    let (listed, _) = listed.split_once("\n\n").expect("their end");
    let listed = listed.lines().map(|line| line.split_whitespace().next());
    let listed: Vec<u8> = listed
        .map(|code| code.expect("a code").parse().expect("a number"))
        .collect();
    let (_, table) = SCHEMA.split_once("## Exit codes\n").expect("exit codes");
    let first_cells = table.lines().filter_map(|line| line.split('|').nth(1));
    let documented: Vec<u8> = first_cells
        .filter_map(|cell| cell.trim().parse().ok())
        .collect();
    assert_eq!(listed, documented);
    // The last one is what a second Ctrl-C ends with.
    assert_eq!(listed, [0, 1, 2, 3, 4, 5, 6, 7, 130]);
}

#[test]
fn options_shown_in_examples_exist() {
    for subcommand in SUBCOMMANDS {
        let help = Place::new().amdahl([subcommand, "--help"]).ends_with(0).out;
        let (options, examples) = help.split_once("\nExamples:\n").expect("examples");
        for line in examples
            .lines()
            .filter(|line| line.trim_start().starts_with("amdahl "))
        {
            // What comes after ` -- ` is the workload's.
            let ours = line.split(" -- ").next().expect("a part");
            for option in ours.split(' ').filter(|word| word.starts_with("--")) {
                assert!(options.contains(option), "{option} of {line:?}");
            }
        }
    }
}

#[test]
fn wrong_command_lines_are_refused_with_2_and_leave_nothing() {
    let place = Place::new();
    let too_many = (cpus() + 1).to_string();
    let huge = format!("1,{}", u32::MAX);
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["scala"], "scale"),
        (&["scale"], "<COMMAND>"),
        (&["scale", "--"], "<COMMAND>"),
        (&["scale", "true"], "true"),
        (&["scale", "--cpus", "0", "--", "true"], "begin at 1"),
        (&["scale", "--cpus", "", "--", "true"], "--cpus"),
        (&["scale", "--cpus", "1,x", "--", "true"], "--cpus"),
        (&["scale", "--cpus", "-1", "--", "true"], "--"),
        (&["scale", "--cpus", &too_many, "--", "true"], "allowed"),
        (&["scale", "--cpus", &huge, "--", "true"], "allowed"),
        (
            &["scale", "--cpus", "99999999999999999999", "--", "true"],
            "--cpus",
        ),
        (&["scale", "--runs", "0", "--", "true"], "--runs"),
        (&["scale", "--runs", "many", "--", "true"], "--runs"),
        (&["scale", "--sample-hz", "0", "--", "true"], "--sample-hz"),
        (&["scale", "--for", "soon", "--", "true"], "10s"),
        (
            &["scale", "--for", "3 fortnights", "--", "true"],
            "fortnights",
        ),
        (&["scale", "--for", "0s", "--", "true"], "10ms"),
        (&["scale", "--for", "-5s", "--", "true"], "--"),
        (&["scale", "--for", "nan", "--", "true"], "--for"),
        (&["scale", "--for", "1e300h", "--", "true"], "year"),
        (&["scale", "--probe", "magic", "--", "true"], "auto"),
        (
            &["scale", "--rate", "(", "--", "true"],
            "--rate: regex parse error",
        ),
        (&["scale", "--rate", "tps", "--", "true"], "needs a group"),
        (
            &["scale", "--rate", "(a{1000}){1000}", "--", "true"],
            "--rate",
        ),
        (&["scale", "--pid", "1", "--cpus", "1"], "--cpus"),
        (&["scale", "--pid", "1", "--runs", "2"], "--runs"),
        (&["scale", "--pid", "1", "--keep-env"], "--keep-env"),
        (&["scale", "--pid", "1", "--", "true"], "COMMAND"),
        (
            &["scale", "--no-output", "-o", "x", "--", "true"],
            "--output",
        ),
        (&["compare", "only-one"], "<AFTER>"),
        (&["report"], "<RESULT>"),
        (&["doctor", "who"], "who"),
    ];
    for (args, word) in cases {
        let ran = place.amdahl(*args).ends_with(2);
        assert!(
            ran.err.contains(word),
            "{args:?}: no {word:?} in\n{}",
            ran.err
        );
        assert!(ran.out.is_empty(), "{args:?}: {}", ran.out);
        assert_eq!(place.names(), [""; 0], "{args:?}");
    }
}

#[test]
fn too_many_cpus_are_refused_with_how_many_there_are_and_what_to_do() {
    let above = (cpus() + 1).to_string();
    let ran = Place::new()
        .amdahl(["scale", "--cpus", &above, "--", "true"])
        .ends_with(2);
    let message = ran.message();
    assert!(
        message.contains(&format!("{above} CPUs asked for")),
        "{message}"
    );
    assert!(
        message.contains(&format!("only {} are allowed", cpus())),
        "{message}"
    );
    assert!(message.contains("--oversubscribe"), "{message}");
}

/// A pipe whose reader has gone: what `| head -1` is sooner or later.
fn closed() -> Stdio {
    let (_, writer) = std::io::pipe().expect("a pipe");
    writer.into()
}

fn run(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().expect("it runs");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn a_closed_standard_output_is_no_error() {
    let _alone = alone();
    let place = Place::new();
    place
        .amdahl([
            "scale", "--cpus", "1", "--runs", "1", "-o", "r", "--", "true",
        ])
        .ends_with(0);
    let cases: &[&[&str]] = &[
        &["--help"],
        &["scale", "--help"],
        &["report", "r"],
        &["compare", "r", "r"],
        &["compare", "--json", "r", "r"],
        &["doctor"],
        &["doctor", "--json"],
        &["scale", "--cpus", "1", "--runs", "1", "--", "true"],
        &[
            "scale", "--cpus", "1", "--runs", "1", "--json", "--", "true",
        ],
    ];
    for args in cases {
        let mut command = place.tool(*args);
        command.stdout(closed()).stderr(Stdio::piped());
        let (code, err) = run(command);
        assert!(
            code == Some(0) && !err.contains("panicked"),
            "{args:?}: {code:?}\n{err}"
        );
    }
}

#[test]
fn a_closed_standard_error_changes_no_exit_code() {
    let _alone = alone();
    let place = Place::new();
    let cases: &[(i32, &[&str])] = &[
        (0, &["scale", "--cpus", "1", "--runs", "1", "--", "true"]),
        (1, &["report", "nothing-here"]),
        (2, &["scale", "--cpus", "0", "--", "true"]),
        (3, &["scale", "--", "/nonexistent"]),
    ];
    for (wanted, args) in cases {
        let mut command = place.tool(*args);
        command.stdout(Stdio::null()).stderr(closed());
        assert_eq!(run(command).0, Some(*wanted), "{args:?}");
    }
}

#[test]
fn standard_output_that_takes_nothing_is_told() {
    let place = Place::new();
    let mut command = place.tool(["doctor"]);
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full");
    command.stdout(full).stderr(Stdio::piped());
    let (code, err) = run(command);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("cannot write to standard output"), "{err}");
}

#[test]
fn pipes_and_files_get_no_escape_codes() {
    let _alone = alone();
    let place = Place::new();
    let scale = [
        "scale", "--cpus", "1", "--runs", "1", "-o", "r", "--", "true",
    ];
    let cases: [&[&str]; 6] = [
        &scale,
        &["report", "r"],
        &["compare", "r", "r"],
        &["doctor"],
        &["scale", "--help"],
        &["nonsense"],
    ];
    for args in cases {
        let ran = place.amdahl(args);
        assert!(
            !ran.out.contains('\u{1b}') && !ran.err.contains('\u{1b}'),
            "{args:?}\n{ran:?}"
        );
    }
}

#[test]
fn a_terminal_gets_colours_unless_no_color_is_set() {
    let _alone = alone();
    if !has("script") {
        return skipped("script(1), which makes a terminal, is not installed");
    }
    let place = Place::new();
    place
        .amdahl([
            "scale", "--cpus", "1", "--runs", "1", "-o", "r", "--", "true",
        ])
        .ends_with(0);
    let on_terminal = |no_color: Option<&str>, term: &str| {
        let mut command = Command::new("script");
        command.args([
            "-qec",
            &format!("{} report r", env!("CARGO_BIN_EXE_amdahl")),
            "/dev/null",
        ]);
        let mut command = place.here(command);
        command.env("TERM", term);
        if let Some(value) = no_color {
            command.env("NO_COLOR", value);
        }
        place.run(command).ends_with(0).out
    };
    assert!(
        on_terminal(None, "xterm-256color").contains("\u{1b}["),
        "the terminal is one"
    );
    assert!(
        on_terminal(Some(""), "xterm-256color").contains("\u{1b}["),
        "empty is unset"
    );
    assert!(!on_terminal(Some("1"), "xterm-256color").contains('\u{1b}'));
    assert!(!on_terminal(None, "dumb").contains('\u{1b}'));
}
