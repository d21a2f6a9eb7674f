//! The environment's variables, beside GCC's own library: a program sees the same, and is told the same.

mod support;

use support::{Program, Runtime, text};

/// What is said, without what differs between versions of GCC: tags of scopes (since GCC 13), a spelling, what
/// newer ones add behind a name, empty lines.
fn said(stderr: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = text(stderr)
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| {
            let line = line.replace("enviroment", "environment");
            let line = match line.split_once("Invalid value for environment variable ") {
                Some((before, behind)) => {
                    let end = behind.find([' ', ':', '=']).unwrap_or(behind.len());
                    format!(
                        "{before}Invalid value for environment variable {}",
                        &behind[..end]
                    )
                }
                None => line,
            };
            match line.strip_prefix("  [") {
                Some(tagged) => format!(
                    "  {}",
                    tagged.split_once("] ").map_or(tagged, |(_, rest)| rest)
                ),
                None => line,
            }
        })
        .collect();
    lines.sort();
    lines
}

/// What a program sees and is told, line by line.
fn observed(
    program: &Program,
    runtime: Runtime,
    variables: &[(&str, &str)],
) -> (Vec<String>, Vec<String>) {
    let output = program.run(runtime, variables);
    assert!(
        output.status.success(),
        "{runtime:?} {variables:?}: {}",
        output.status
    );
    let mut told = said(&output.stderr);
    told.retain(|line| !line.starts_with("  AMDAHL_"));
    (
        text(&output.stdout).lines().map(str::to_owned).collect(),
        told,
    )
}

/// The lines that differ with the two libraries.
fn differences(program: &Program, variables: &[(&str, &str)]) -> String {
    let ours = observed(program, Runtime::Ours, variables);
    let gccs = observed(program, Runtime::Gccs, variables);
    if ours == gccs {
        return String::new();
    }
    let only = |some: &(Vec<String>, Vec<String>), others: &(Vec<String>, Vec<String>)| {
        let others = [&others.0[..], &others.1[..]].concat();
        let mut some = [&some.0[..], &some.1[..]].concat();
        some.retain(|line| !others.contains(line));
        some
    };
    let (only_ours, only_gccs) = (only(&ours, &gccs), only(&gccs, &ours));
    format!("{variables:?}:\n  ours {only_ours:?}\n  GCC's {only_gccs:?}\n")
}

/// Values that are meant, values that are odd and taken, and values that nobody should write.
const VALUES: &[(&str, &[&str])] = &[
    (
        "OMP_SCHEDULE",
        &[
            "static",
            "STATIC,4",
            " dynamic , 7 ",
            "guided,1",
            "auto",
            "auto,3",
            "monotonic:dynamic",
            "nonmonotonic:static,2",
            "monotonic : guided,5",
            "nonmonotonic:",
            "dynamic,0",
            "static,0",
            "dynamic,2147483647",
            "dynamic,2147483648",
            "runtime",
            "",
            " ",
            "stati",
            "monotonic",
            "dynamic,+3",
            "dynamic,0x10",
            "dynamic,99999999999999999999",
        ],
    ),
    (
        "OMP_NUM_THREADS",
        &[
            "1",
            "7",
            " 4 , 3 , 2 ",
            "4,",
            ",4",
            "0",
            "-1",
            "4,0",
            "x",
            "",
            "+5",
            "007",
            "4 3",
            "2147483647",
            "4;3",
            "99999999999999999999",
            "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
        ],
    ),
    ("OMP_DYNAMIC", &["true", "FALSE", " True ", "1", "yes", ""]),
    ("OMP_NESTED", &["true", "false", "maybe", ""]),
    ("OMP_CANCELLATION", &["true", "false", "t", ""]),
    ("OMP_DISPLAY_AFFINITY", &["true", "false", "0"]),
    (
        "OMP_PROC_BIND",
        &[
            "true",
            "false",
            "TRUE ",
            "master",
            "primary",
            "close",
            "spread",
            "spread,close",
            "close , master,spread",
            "false,close",
            "close,false",
            "close,",
            "",
            "closest",
            "spread close",
        ],
    ),
    (
        "OMP_MAX_ACTIVE_LEVELS",
        &["0", "1", "5", "255", "256", "99999999999", "-1", "x", ""],
    ),
    (
        "OMP_THREAD_LIMIT",
        &[
            "1",
            "2147483647",
            "2147483648",
            "4294967295",
            "0",
            "-1",
            "x",
        ],
    ),
    (
        "OMP_MAX_TASK_PRIORITY",
        &["0", "9", "2147483648", "-3", "x"],
    ),
    ("OMP_DEFAULT_DEVICE", &["0", "3", "-1", "2147483648", ""]),
    ("OMP_NUM_TEAMS", &["1", "6", "0", "-1", "2147483648"]),
    (
        "OMP_TEAMS_THREAD_LIMIT",
        &["1", "6", "0", "-1", "2147483648"],
    ),
    (
        "OMP_STACKSIZE",
        &[
            "64",
            "64k",
            "1M",
            " 2 m ",
            "100000B",
            "1g",
            "1T",
            "16",
            "1B",
            "x",
            "",
            "64kB",
            "18014398509481984",
            "17179869183g",
        ],
    ),
    ("GOMP_STACKSIZE", &["64", "x"]),
    (
        "OMP_WAIT_POLICY",
        &["active", "PASSIVE", " active ", "Active1", ""],
    ),
    (
        "GOMP_SPINCOUNT",
        &[
            "0",
            "5",
            "5k",
            "5 M",
            "2g",
            "1t",
            "infinite",
            "INFINITY ",
            "99999999999t",
            "5x",
            "-1",
            "x",
            "",
            "infinit",
        ],
    ),
    (
        "OMP_ALLOCATOR",
        &[
            "omp_default_mem_alloc",
            "OMP_LARGE_CAP_MEM_ALLOC ",
            "omp_thread_mem_alloc",
            "omp_no_alloc",
            "",
        ],
    ),
    (
        "OMP_TARGET_OFFLOAD",
        &["default", "DISABLED", "Mandatory", "enabled", ""],
    ),
    (
        "OMP_AFFINITY_FORMAT",
        &["", "%n of %N", "%", "%x", "  %{host}  "],
    ),
    (
        "OMP_PLACES",
        &[
            "threads",
            "cores",
            "sockets",
            "ll_caches",
            "numa_domains",
            "threads(1)",
            "Threads ( 1 )",
            "cores(99)",
            "threads(0)",
            "threads()",
            "threads(x)",
            "threads 1",
            "core",
            "{0}",
            "{0,1}",
            "{0:2}",
            "{0:1},{1}",
            "0,1",
            "1,0",
            "{0}:2",
            "{0}:2:1",
            "{1}:2:-1",
            "{1}:3:-1",
            "{0:2,!1}",
            "{!0,0:2}",
            "{0:2},!{0:2}",
            "{0},!{1}",
            "{0},{1},!{0}",
            "{0}:2,!{1}",
            "{64}",
            "{0,64}",
            "{0,99999}",
            "{0",
            "{}",
            "{0}{1}",
            "{0},",
            ",{0}",
            "{0:0}",
            "{0}:0",
            "{0}:70000",
            "{x}",
            "",
            " ",
            "{0:2:-1}",
            "{1:2:-1}",
            "{0,5}",
            "{5},{0}",
            "!{0}",
            "{0:18446744073709551615}",
            "{0:1:9223372036854775808}",
            "{ 0 : 2 : 1 } : 1 : 1",
            "{0}:1:x",
            "!{0}:2",
            "{!0:2,0,1}",
        ],
    ),
    (
        "GOMP_CPU_AFFINITY",
        &[
            "0", "0 1", "1,0", "0-1", "0-1:1", "0x0-0x1", "1-0", "0-", "x", "0-1:0", "0,,1",
            "70000", "00-01",
        ],
    ),
    (
        "OMP_DISPLAY_ENV",
        &["true", "VERBOSE", "false", " verbose ", "1", ""],
    ),
];

#[test]
fn each_value_of_each_variable() {
    let test = "each_value_of_each_variable";
    let Some(program) = Program::build(test, "variables") else {
        return;
    };
    let mut found = String::new();
    for (name, values) in VALUES {
        for value in *values {
            let mut variables = vec![("OMP_DISPLAY_ENV", "verbose"), (*name, *value)];
            if *name == "OMP_DISPLAY_ENV" {
                variables = vec![(name, value)];
            }
            found += &differences(&program, &variables);
        }
    }
    assert!(found.is_empty(), "{found}");
}

/// GCC's runtime keeps what it read before it met the mistake. Here a value that is refused changes nothing; what is
/// said is the same.
#[test]
fn half_a_value_is_none() {
    let Some(program) = Program::build("half_a_value_is_none", "variables") else {
        return;
    };
    let (default, _) = observed(&program, Runtime::Ours, &[]);
    for (name, value) in [
        ("OMP_SCHEDULE", "static,"),
        ("OMP_SCHEDULE", "static,x"),
        ("OMP_SCHEDULE", "static 4"),
        ("OMP_DYNAMIC", "truefalse"),
        ("OMP_DYNAMIC", "true false"),
        ("OMP_CANCELLATION", "true,"),
    ] {
        let (seen, told) = observed(&program, Runtime::Ours, &[(name, value)]);
        assert_eq!(seen, default, "{name}={value}");
        assert_eq!(
            told,
            observed(&program, Runtime::Gccs, &[(name, value)]).1,
            "{name}={value}"
        );
    }
    // This one GCC's takes, with a negative chunk.
    let (seen, told) = observed(&program, Runtime::Ours, &[("OMP_SCHEDULE", "dynamic,-5")]);
    assert_eq!((seen, told.len()), (default, 1));
}

/// Variables that depend on each other.
#[test]
fn variables_together() {
    let Some(program) = Program::build("variables_together", "variables") else {
        return;
    };
    let mut found = String::new();
    for variables in [
        &[("OMP_PROC_BIND", "false"), ("OMP_PLACES", "threads")][..],
        &[("OMP_PROC_BIND", "false"), ("OMP_PLACES", "nonsense")],
        &[("OMP_PROC_BIND", "spread"), ("OMP_PLACES", "{1},{0}")],
        &[
            ("OMP_PROC_BIND", "spread"),
            ("OMP_PLACES", "{1},{0}"),
            ("GOMP_CPU_AFFINITY", "0"),
        ],
        &[("OMP_PLACES", "{9}"), ("GOMP_CPU_AFFINITY", "0")],
        &[("OMP_PLACES", "{0}"), ("GOMP_CPU_AFFINITY", "x")],
        &[("OMP_NESTED", "true"), ("OMP_MAX_ACTIVE_LEVELS", "1")],
        &[("OMP_NESTED", "false"), ("OMP_NUM_THREADS", "2,2")],
        &[("OMP_NESTED", "nonsense"), ("OMP_NUM_THREADS", "2,2")],
        &[("OMP_NESTED", "nonsense"), ("OMP_MAX_ACTIVE_LEVELS", "3")],
        &[("OMP_PROC_BIND", "close,spread"), ("OMP_NUM_THREADS", "2")],
        &[("OMP_STACKSIZE", "x"), ("GOMP_STACKSIZE", "64")],
        &[("OMP_STACKSIZE", "64"), ("GOMP_STACKSIZE", "x")],
        &[("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "7")],
        &[
            ("OMP_WAIT_POLICY", "active"),
            ("OMP_THREAD_LIMIT", "3"),
            ("OMP_NUM_THREADS", "5"),
        ],
        &[
            ("OMP_TARGET_OFFLOAD", "mandatory"),
            ("OMP_DEFAULT_DEVICE", "2"),
        ],
    ] {
        let mut variables = variables.to_vec();
        variables.push(("OMP_DISPLAY_ENV", "verbose"));
        found += &differences(&program, &variables);
    }
    assert!(found.is_empty(), "{found}");
}

/// It was asked where the thread may run that used OpenMP first: the process then had one thread for good.
#[test]
fn a_thread_that_is_confined_does_not_confine_the_process() {
    let Some(program) = Program::build("a_thread_that_is_confined", "confined") else {
        return;
    };
    let library = support::library().join("libgomp.so.1");
    let preloaded = [("LD_PRELOAD", library.to_str().expect("text"))];
    for (runtime, variables) in [(Runtime::Ours, &[][..]), (Runtime::Gccs, &preloaded)] {
        let (seen, _) = observed(&program, runtime, variables);
        let (threads, cpus) = seen[0].split_once(" of ").expect("two numbers");
        assert_eq!(threads, cpus, "{variables:?}");
    }
}

/// A preloaded library is in shells too, and what they start inherits where they may run: a program in a script once
/// found itself confined to the first place, before it had begun.
#[test]
fn programs_without_openmp_are_left_alone_where_the_library_is_preloaded() {
    let status = |is_preloaded: bool| {
        let mut cat = std::process::Command::new("cat");
        cat.arg("/proc/self/status").envs([
            ("OMP_PROC_BIND", "true"),
            ("OMP_PLACES", "threads"),
            ("OMP_DISPLAY_ENV", "true"),
        ]);
        if is_preloaded {
            cat.env("LD_PRELOAD", support::library().join("libgomp.so.1"));
        }
        let output = cat.output().expect("cat");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "");
        let status = text(&output.stdout);
        let line = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list"));
        line.expect("a line").to_owned()
    };
    let allowed = status(false);
    assert_eq!(status(true), allowed);

    // A program that uses it is bound as ever, and told what it asked for.
    let Some(program) = Program::build("programs_without_openmp_are_left_alone", "variables")
    else {
        return;
    };
    let library = support::library().join("libgomp.so.1");
    let variables = [
        ("OMP_PLACES", "{0}"),
        ("OMP_DISPLAY_ENV", "true"),
        ("LD_PRELOAD", library.to_str().expect("text")),
    ];
    let (seen, told) = observed(&program, Runtime::Gccs, &variables);
    assert!(
        seen.contains(&"place 0 of 1, partition of 1".to_owned()),
        "{seen:?}"
    );
    assert!(
        told.contains(&"  OMP_PLACES = '{0}'".to_owned()),
        "{told:?}"
    );
}

/// What a program has shown by calls, in C and in Fortran's forms, is the same.
#[test]
fn a_program_shows_the_environment_by_a_call() {
    let test = "a_program_shows_the_environment_by_a_call";
    let Some(program) = Program::build(test, "fortran") else {
        return;
    };
    for variables in [
        &[][..],
        &[
            ("OMP_NUM_THREADS", "4,2"),
            ("OMP_SCHEDULE", "guided,3"),
            ("OMP_PLACES", "{0},{1}"),
        ],
    ] {
        let shown = |runtime| {
            let output = program.run_with(runtime, variables, &["env"]);
            assert!(output.status.success(), "{runtime:?}: {}", output.status);
            let mut lines = said(&output.stderr);
            lines.retain(|line| !line.starts_with("  AMDAHL_"));
            lines
        };
        let (ours, gccs) = (shown(Runtime::Ours), shown(Runtime::Gccs));
        assert_eq!(ours, gccs, "{variables:?}");
        assert!(ours.iter().any(|line| line.contains("OMP_NUM_THREADS")));
    }
}
