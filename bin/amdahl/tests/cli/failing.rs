//! Programs that cannot be started, fail, or hardly begin.

use std::process::Command;

use crate::tool::{Place, alone, bpf, cpus, has, has_notice, is_root, notice, skipped};
use crate::workload::{BUSY, SPINNING, compiled, runs_of};

#[test]
fn a_program_that_cannot_be_started_is_named_with_the_reason() {
    let _alone = alone();
    let place = Place::new();
    std::fs::write(place.join("data"), "no program").expect("a file");
    let cases = [
        ("/nonexistent/program", "No such file"),
        ("no-such-program-anywhere", "No such file"),
        ("", "No such file"),
        ("/", "Permission denied"),
        ("./data", "Permission denied"),
    ];
    for (program, reason) in cases {
        for probe in ["auto", "proc"] {
            let ran = place
                .amdahl(["scale", "--probe", probe, "--", program, "x"])
                .ends_with(3);
            let message = ran.message();
            assert!(
                message.contains(&format!("cannot run {program:?}: ")),
                "{message}"
            );
            assert!(message.contains(reason), "{message}");
            assert!(ran.out.is_empty());
            assert_eq!(place.names(), ["data"], "nothing is left of {program:?}");
        }
    }
}

#[test]
fn a_program_that_cannot_be_started_without_warm_up_is_told_too() {
    let _alone = alone();
    let place = Place::new();
    let args = [
        "scale",
        "--no-warmup",
        "--cpus",
        "1",
        "--runs",
        "1",
        "--",
        "/nonexistent",
    ];
    let ran = place.amdahl(args).ends_with(3);
    assert!(
        ran.message().contains("cannot run \"/nonexistent\""),
        "{}",
        ran.err
    );
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn a_failure_at_one_cpu_count_is_named_and_the_rest_is_kept() {
    let _alone = alone();
    if cpus() < 2 {
        return skipped("only one CPU may be used");
    }
    let place = Place::new();
    let script = "if test {cpus} = 2; then echo bad luck >&2; exit 7; fi";
    let args = [
        "scale", "--cpus", "1,2", "--runs", "2", "--", "sh", "-c", script,
    ];
    let ran = place
        .amdahl(args)
        .ends_with(4)
        .says("2 CPUs: exit code 7: bad luck");
    assert!(ran.out.contains("Written to amdahl-sh/"), "{}", ran.out);

    let result = amdahl_report::load::load(&place.join("amdahl-sh")).expect("a result");
    assert_eq!(
        result
            .points
            .iter()
            .map(|point| point.cpus)
            .collect::<Vec<_>>(),
        [1]
    );
    assert_eq!(result.points[0].wall_s.runs.len(), 2);
    assert_eq!(
        result.failures.len(),
        4,
        "two runs with and two without the probe"
    );
    for failure in &result.failures {
        assert_eq!(
            (failure.cpus, failure.what.as_str()),
            (2, "exit code 7: bad luck")
        );
        assert!((1..=2).contains(&failure.run));
    }
    assert!(!result.partial);
}

#[test]
fn a_failure_in_some_runs_costs_only_those() {
    let _alone = alone();
    let place = Place::new();
    // Every third run fails, by a signal.
    let script = "echo x >> runs; test $(($(wc -l < runs) % 3)) != 0 || kill -SEGV $$";
    let ran = place.amdahl(runs_of("1", "3", &[], script)).ends_with(4);
    let result = ran.result();
    assert_eq!(result.failures.len(), 2);
    assert!(
        result
            .failures
            .iter()
            .all(|failure| failure.what == "killed by signal 11")
    );
    let point = &result.points[0];
    assert_eq!(point.wall_s.runs.len() + point.probed_wall_s.runs.len(), 4);
}

/// Writes a program of a shell.
fn script(place: &Place, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = place.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("a mode");
}

/// The warm-up, which is made on the most CPUs, ended everything.
#[test]
fn a_program_that_is_missing_for_one_cpu_count_costs_only_that() {
    let _alone = alone();
    if cpus() < 2 {
        return skipped("only one CPU may be used");
    }
    for probe in ["auto", "proc"] {
        let place = Place::new();
        script(&place, "prog-1", "exit 0");
        let args = [
            "scale",
            "--probe",
            probe,
            "--cpus",
            "1,2",
            "--runs",
            "2",
            "--json",
            "--no-output",
            "--",
            "./prog-{cpus}",
        ];
        let result = place.amdahl(args).ends_with(4).result();
        let [point] = &result.points[..] else {
            panic!("{:?}", result.points);
        };
        assert_eq!((point.cpus, point.wall_s.runs.len()), (1, 2));
        let [failure] = &result.failures[..] else {
            panic!("it is not tried again: {:?}", result.failures);
        };
        assert_eq!(failure.cpus, 2);
        assert!(
            failure
                .what
                .contains("cannot run \"./prog-2\": No such file"),
            "{failure:?}"
        );
    }
}

#[test]
fn a_program_that_is_missing_for_every_cpu_count_is_one_message() {
    let _alone = alone();
    let place = Place::new();
    let args = ["scale", "--runs", "1000", "--", "./prog-{cpus}"];
    let ran = place.amdahl(args).ends_with(3);
    let message = ran.message();
    assert!(
        message.contains("cannot run \"./prog-1\": No such file"),
        "{message}"
    );
    assert!(ran.out.is_empty());
    assert_eq!(place.names(), [""; 0]);
}

/// Everything that was measured before was thrown away.
#[test]
fn a_program_that_disappears_keeps_its_runs() {
    let _alone = alone();
    let place = Place::new();
    script(
        &place,
        "prog",
        "echo x >> runs; test $(wc -l < runs) -lt 3 || rm prog",
    );
    let args = [
        "scale",
        "--cpus",
        "1",
        "--runs",
        "3",
        "--no-warmup",
        "--json",
        "--no-output",
        "--",
        "./prog",
    ];
    let result = place.amdahl(args).ends_with(4).result();
    let point = &result.points[0];
    assert_eq!(point.wall_s.runs.len() + point.probed_wall_s.runs.len(), 3);
    assert_eq!(result.failures.len(), 3);
    for failure in &result.failures {
        assert!(
            failure.what.contains("cannot run \"./prog\""),
            "{failure:?}"
        );
    }
}

/// It is our failure, not the program's, and ended everything as well.
#[test]
fn runs_for_which_there_is_no_process_are_failures_among_others() {
    let _alone = alone();
    if !has("prlimit") {
        return skipped("prlimit (util-linux) is not installed");
    }
    let place = Place::new();
    let home = place.folder_of_ordinary_user("home");
    // In the third run the tool, whose user has other processes, is allowed a single one.
    let script = "cd home; echo x >> runs; if test $(wc -l < runs) = 3; then \
                  read -r _ _ _ tool _ < /proc/$PPID/stat; prlimit --nproc=1: --pid $tool; fi";
    let args = runs_of("1", "3", &[], script);
    let Some(ran) = place.amdahl_as_ordinary_user(&args) else {
        return;
    };
    if is_root() {
        let result = ran.ends_with(4).result();
        let point = &result.points[0];
        assert_eq!(point.wall_s.runs.len() + point.probed_wall_s.runs.len(), 3);
        assert_eq!(result.failures.len(), 3);
        for failure in &result.failures {
            assert!(
                failure.what.contains("Resource temporarily unavailable"),
                "{failure:?}"
            );
        }
    } else {
        skipped("who runs the tests may have the right to more processes");
    }
    assert!(home.join("runs").exists());
}

/// The recorder takes descriptors in each run, for what it attaches: without them it cannot begin, and what it
/// had attached by then is given back.
#[test]
fn runs_for_which_the_recorder_cannot_begin_cost_only_themselves() {
    let _alone = alone();
    if !has("prlimit") {
        return skipped("prlimit (util-linux) is not installed");
    }
    if let Err(why) = bpf() {
        return skipped(why);
    }
    let place = Place::new();
    // In the first run, which is recorded, all descriptors that the tool has are needed; a few less are allowed
    // until the fourth run that is made.
    let script = "echo x >> runs; read -r _ _ _ tool _ < /proc/$PPID/stat; \
                  case $(wc -l < runs) in \
                  1) prlimit --nofile=$(($(ls /proc/$tool/fd | wc -l) - 2)): --pid $tool;; \
                  4) prlimit --nofile=1024: --pid $tool;; esac";
    let args = runs_of("1", "5", &["--bare-runs", "5", "--probe", "bpf"], script);
    let result = place.amdahl(args).ends_with(4).result();
    let failed: Vec<u32> = result.failures.iter().map(|failure| failure.run).collect();
    assert_eq!(failed, [2, 3], "{:?}", result.failures);
    for failure in &result.failures {
        assert!(failure.what.contains("Too many open files"), "{failure:?}");
    }
    let point = &result.points[0];
    assert_eq!(
        (point.probed_wall_s.runs.len(), point.wall_s.runs.len()),
        (3, 5)
    );
    assert_eq!(point.events_lost, 0);
}

/// Polls need descriptors while the program runs: what cannot be read meanwhile has not ended.
#[test]
fn polls_without_descriptors_are_told() {
    let _alone = alone();
    if !has("prlimit") {
        return skipped("prlimit (util-linux) is not installed");
    }
    let place = Place::new();
    let script = "read -r _ _ _ tool _ < /proc/$PPID/stat; prlimit --nofile=4: --pid $tool; \
                  i=0; while test $i -lt 300000; do i=$((i + 1)); done; \
                  prlimit --nofile=1024: --pid $tool";
    let args = runs_of("1", "1", &["--probe", "proc"], script);
    let result = place.amdahl(args).ends_with(0).result();
    let text = notice(&result, "unread");
    assert!(text.contains("Too many open files"), "{text}");
    assert!(text.contains("ulimit -n"), "{text}");
    assert!(result.points[0].stack["unexplained"] < 0.05, "{result:?}");
}

#[test]
fn cpus_that_are_taken_away_cost_the_runs_on_them() {
    let _alone = alone();
    if cpus() < 2 {
        return skipped("only one CPU may be used");
    }
    if !has("taskset") {
        return skipped("taskset (util-linux) is not installed");
    }
    let place = Place::new();
    // In the third run, which is on two CPUs, the tool is left with the one of the first run.
    let script = "echo x >> runs; case $(wc -l < runs) in 1) taskset -cp $$ > first;; \
                  3) read -r _ _ _ tool _ < /proc/$PPID/stat; \
                  taskset -cp $(sed 's/.*: //' first) $tool > second;; esac";
    let args = runs_of("1,2", "2", &[], script);
    let result = place.amdahl(args).ends_with(4).result();
    let [point] = &result.points[..] else {
        panic!("{:?}", result.points);
    };
    assert_eq!(point.cpus, 1);
    assert_eq!(
        (point.wall_s.runs.len(), point.probed_wall_s.runs.len()),
        (2, 2)
    );
    let text = notice(&result, "cpus-changed");
    assert!(text.contains("may no longer be used"), "{text}");
    let whats: Vec<(u32, &str)> = result
        .failures
        .iter()
        .map(|failure| {
            (
                failure.cpus,
                failure.what.split(':').next().expect("a word"),
            )
        })
        .collect();
    assert_eq!(whats, [(2, "during the run"), (2, "not run")]);
    assert_eq!(
        place.read("runs").lines().count(),
        5,
        "two runs on one CPU came after that"
    );
}

#[test]
fn a_failure_in_every_run_is_one_message() {
    let _alone = alone();
    let place = Place::new();
    let args = [
        "scale",
        "--cpus",
        "1",
        "--runs",
        "2",
        "--",
        "sh",
        "-c",
        "echo broken >&2; exit 9",
    ];
    let ran = place.amdahl(args).ends_with(3);
    let message = ran.message();
    assert!(message.contains("sh: it failed in every run"), "{message}");
    assert!(
        message.contains("on 1 CPU: exit code 9: broken"),
        "{message}"
    );
    assert!(!message.contains('\n'), "{message}");
    assert!(ran.out.is_empty());
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn what_a_failed_program_said_is_harmless_on_a_terminal() {
    let _alone = alone();
    if !has("script") {
        return skipped("script(1), which makes a terminal, is not installed");
    }
    let place = Place::new();
    let script = "printf '\\033]0;owned\\007\\033[2Jgone\\n' >&2; exit 1";
    std::fs::write(place.join("evil"), script).expect("a script");
    let mut command = Command::new("script");
    let tool = env!("CARGO_BIN_EXE_amdahl");
    let typed = format!("{tool} scale -q --cpus 1 --runs 1 --no-output -- sh evil");
    command.args(["-qec", &typed, "/dev/null"]);
    let ran = place.run(place.here(command)).ends_with(3);
    assert!(ran.out.contains("gone"), "{:?}", ran.out);
    assert!(!ran.out.contains(['\u{1b}', '\u{7}']), "{:?}", ran.out);
}

#[test]
fn a_program_that_ends_at_once_is_measured_and_called_short() {
    let _alone = alone();
    let place = Place::new();
    for probe in ["auto", "proc"] {
        let args = [
            "scale", "--probe", probe, "--runs", "2", "--json", "--", "true",
        ];
        let result = place.amdahl(args).ends_with(0).result();
        assert!(!result.points.is_empty());
        let text = notice(&result, "short");
        assert!(text.contains("more work"), "{text}");
    }
}

#[test]
fn a_command_without_the_placeholder_is_told_how_the_count_is_set() {
    let _alone = alone();
    let place = Place::new();
    let scale = |more: &[&str]| {
        let args = ["scale", "--cpus", "1", "--runs", "1", "--json"];
        place.amdahl(args.iter().chain(more)).ends_with(0).result()
    };
    let result = scale(&["--", "true"]);
    let text = notice(&result, "no-placeholder");
    assert!(
        text.contains("OMP_NUM_THREADS") && text.contains("put {cpus} there"),
        "{text}"
    );
    let result = scale(&["--keep-env", "--", "true"]);
    let text = notice(&result, "no-placeholder");
    assert!(
        text.contains("--keep-env") && text.contains("confined"),
        "{text}"
    );
    assert_eq!(
        has_notice(&scale(&["--", "true", "-j{cpus}"]), "no-placeholder"),
        None
    );
}

/// Without symbols there are no names, but all figures.
#[test]
fn a_stripped_program_is_divided_like_any_other() {
    let _alone = alone();
    let place = Place::new();
    let Some(program) = compiled(
        &place,
        "busy",
        BUSY,
        &["-s", "-fno-asynchronous-unwind-tables"],
    ) else {
        return;
    };
    let program = program.to_str().expect("UTF-8");
    let args = ["scale", "--runs", "1", "--json", "--", program, "{cpus}"];
    let result = place.amdahl(args).ends_with(0).result();
    for point in &result.points {
        assert!(point.user_s > 0.0, "{point:?}");
        let sum: f64 = point.stack.values().sum();
        assert!(point.stack.is_empty() || (sum - 1.0).abs() < 1e-6, "{sum}");
    }
    let sites = result.causes.iter().flat_map(|cause| &cause.sites);
    for site in sites {
        assert!(
            !site.symbol.contains("churn"),
            "a stripped program has no names: {site:?}"
        );
    }
}

#[test]
fn code_that_cannot_be_named_is_told_with_the_remedy() {
    let _alone = alone();
    let cases: [(&str, Option<&str>); 3] = [
        ("-s", Some("stripped")),
        ("-g0", Some("no-debug-info")),
        ("-g", None),
    ];
    for (flag, code) in cases {
        let place = Place::new();
        let Some(program) = compiled(&place, "spinning", SPINNING, &[flag]) else {
            return;
        };
        let program = program.to_str().expect("UTF-8");
        let args = ["scale", "--runs", "1", "--json", "--", program];
        let result = place.amdahl(args).ends_with(0).result();
        let sites = result.causes.iter().flat_map(|cause| &cause.sites);
        let ours = sites.filter(|site| site.module == program);
        assert!(ours.count() > 0, "{flag}: {:?}", result.causes);
        // Libraries may be told of as well.
        let told = result.warnings.iter();
        let told = told.filter(|notice| notice.text.contains(program));
        let told: Vec<&str> = told.map(|notice| &*notice.code).collect();
        assert_eq!(told, code.as_slice(), "{flag}");
        if let Some(code) = code {
            let text = notice(&result, code);
            assert!(text.contains("-dbgsym"), "{text}");
        }
    }
}

/// It came after the progress of the run: `warm-upamdahl: cannot run`.
#[test]
fn a_message_has_a_line_of_its_own() {
    let _alone = alone();
    let place = Place::new();
    let ran = place.amdahl(["scale", "--", "/nonexistent"]).ends_with(3);
    assert!(
        ran.err
            .lines()
            .any(|line| line.starts_with("amdahl: cannot run")),
        "{}",
        ran.err
    );
}

#[test]
fn thread_counts_that_no_machine_has_are_refused() {
    let _alone = alone();
    let place = Place::new();
    for factors in ["4000000000", "2,4294967295"] {
        let args = [
            "scale",
            "--cpus",
            "1",
            "--runs",
            "1",
            "--oversubscribe",
            factors,
            "--",
            "true",
        ];
        place.amdahl(args).ends_with(2);
    }
    let args = [
        "scale",
        "--cpus",
        "1",
        "--runs",
        "1",
        "--bare-runs",
        "4294967295",
        "--",
        "false",
    ];
    place.amdahl(args).ends_with(2);
}

/// The deep views, each with as little as it takes.
const VIEWS: [&[&str]; 4] = [
    &["locks", "--quiet"],
    &["sched", "record", "--quiet", "--output", "found"],
    &["mem", "--quiet"],
    &["top", "--batch", "1"],
];

#[test]
fn the_views_say_how_the_program_ended() {
    let _alone = alone();
    for (view, probe) in VIEWS
        .iter()
        .flat_map(|view| [(view, "auto"), (view, "proc")])
    {
        let place = Place::new();
        let with = |words: &[&str]| {
            let mut tool = place.tool(*view);
            tool.args(["--probe", probe]).args(words);
            place.run(tool)
        };
        let ran = with(&["--", "sh", "-c", "exit 7"]).ends_with(3);
        let message = ran.message();
        assert!(message.starts_with("sh: "), "{view:?}: {message}");
        assert!(message.contains('7'), "{view:?}: {message}");
        assert!(!ran.out.is_empty(), "{view:?}: what was seen is shown");
        let ran = with(&["--", "./nothing"]).ends_with(3);
        assert!(ran.message().contains("cannot run"), "{}", ran.err);
        // No process has the largest number that there can be.
        let ran = with(&["--pid", "4194305"]).ends_with(3);
        assert!(ran.message().contains("no such process"), "{}", ran.err);
        with(&["--", "true"]).ends_with(0);
    }
}
