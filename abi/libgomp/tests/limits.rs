//! Programs that get no memory or no threads: they end as with GCC's own library, and say the same.

mod support;

use support::{Program, Runtime, text};

fn ends(test: &str, case: &str, says: impl Fn(&str) -> bool) {
    let Some(program) = Program::build(test, "limits") else {
        return;
    };
    for runtime in [Runtime::Gccs, Runtime::Ours] {
        let output = program.run_with(runtime, &[], &[case]);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(
            output.status.code(),
            Some(1),
            "{runtime:?}, {case}: {stderr}"
        );
        assert_eq!(stdout, "", "{runtime:?}, {case}");
        assert!(says(&stderr), "{runtime:?}, {case}: {stderr:?}");
    }
}

/// Rust's own end of it was an abort.
#[test]
fn without_memory_it_says_how_much_there_is_not() {
    let says = |stderr: &str| {
        let bytes = stderr
            .strip_prefix("\nlibgomp: Out of memory allocating ")
            .and_then(|rest| rest.strip_suffix(" bytes\n"));
        bytes.is_some_and(|bytes| bytes.parse::<usize>().is_ok())
    };
    for case in ["first", "larger", "tasks"] {
        ends("without_memory_it_says_how_much_there_is_not", case, says);
    }
}

#[test]
fn without_threads_it_says_why() {
    ends("without_threads_it_says_why", "threads", |stderr| {
        stderr == "\nlibgomp: Thread creation failed: Resource temporarily unavailable\n"
    });
}
