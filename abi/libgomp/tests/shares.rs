//! What compiled programs do with loops, sections, ordered and critical regions, and locks: the same programs pass with
//! GCC's own library.

mod support;

use support::{Program, Runtime, text};

/// Builds `tests/c/NAME.c` and expects "ok" of it with both libraries.
fn passes(test: &str, name: &str, variables: &[&[(&str, &str)]]) {
    let Some(program) = Program::build(test, name) else {
        return;
    };
    for runtime in [Runtime::Gccs, Runtime::Ours] {
        for variables in variables {
            let output = program.run(runtime, variables);
            let stderr = text(&output.stderr);
            assert_eq!(
                text(&output.stdout),
                "ok\n",
                "{runtime:?}, {variables:?}: {stderr}"
            );
            assert!(output.status.success());
            assert_eq!(stderr, "");
        }
    }
}

#[test]
fn work_is_shared_as_programs_say() {
    let schedules = [
        &[][..],
        &[("OMP_SCHEDULE", "static,4")],
        &[("OMP_SCHEDULE", "monotonic:dynamic,3")],
        &[("OMP_SCHEDULE", "nonmonotonic:dynamic")],
        &[("OMP_SCHEDULE", "guided,2")],
        &[("OMP_SCHEDULE", "auto")],
        &[("OMP_WAIT_POLICY", "passive")],
    ];
    passes("work_is_shared_as_programs_say", "shares", &schedules);
}

/// Programs that were compiled for OpenMP 2.5 have another type of nested lock, and ask for functions of an older
/// version.
#[test]
fn locks_of_old_programs_are_theirs() {
    passes("locks_of_old_programs_are_theirs", "old_locks", &[&[]]);
}
