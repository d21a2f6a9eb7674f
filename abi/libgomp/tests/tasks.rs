//! Tasks of C programs: the same program passes with GCC's own library.

mod support;

use support::{Program, Runtime, text};

#[test]
fn all_forms_of_tasks_do_what_they_promise() {
    let Some(program) = Program::build("all_forms_of_tasks_do_what_they_promise", "tasks") else {
        return;
    };
    for runtime in [Runtime::Gccs, Runtime::Ours] {
        for threads in ["1", "2", "4", "9"] {
            let mut variables = vec![
                ("OMP_NUM_THREADS", threads),
                ("OMP_CANCELLATION", "true"),
                ("OMP_MAX_TASK_PRIORITY", "10"),
            ];
            if runtime == Runtime::Gccs {
                variables.push(("IS_GCCS", "1"));
            }
            let output = program.run(runtime, &variables);
            let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
            assert_eq!(stdout, "ok\n", "{runtime:?}, {threads} threads: {stderr}");
            assert!(output.status.success());
        }
    }
}

#[test]
fn no_task_of_many_is_lost_and_none_waits_for_ever() {
    let test = "no_task_of_many_is_lost_and_none_waits_for_ever";
    let Some(program) = Program::build(test, "many_tasks") else {
        return;
    };
    for seed in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        // Who spins whatever happens takes long for it with more threads than CPUs.
        for (policy, rounds) in [("active", "3"), ("passive", "20")] {
            // GCC 12's library hangs with events, and crashes with priorities.
            for (runtime, kinds, priorities) in [
                (Runtime::Gccs, "3", "0"),
                (Runtime::Ours, "3", "0"),
                (Runtime::Ours, "4", "0"),
                (Runtime::Ours, "4", "2"),
            ] {
                let variables = [
                    ("OMP_WAIT_POLICY", policy),
                    ("OMP_MAX_TASK_PRIORITY", priorities),
                ];
                let output = program.run_with(runtime, &variables, &[seed, rounds, kinds]);
                let stdout = text(&output.stdout);
                assert_eq!(
                    stdout, "ok\n",
                    "{runtime:?}, seed {seed}, {kinds} kinds, priorities {priorities}, {policy}"
                );
                assert!(output.status.success());
            }
        }
    }
}
