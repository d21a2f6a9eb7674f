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
