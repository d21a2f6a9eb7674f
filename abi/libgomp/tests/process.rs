//! Teams in processes that fork, end, load and unload, are interrupted.

mod support;

use std::process::Command;

use support::{Program, Runtime, library, text};

fn passes(test: &str, case: &str) {
    let Some(program) = Program::build(test, "process") else {
        return;
    };
    // Waits that spin and waits that sleep find different faults, and so do threads that are not told of disturbances, as by a C
    // library before 2.35.
    let no_rseq = ("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    for variables in [&[][..], &[("OMP_WAIT_POLICY", "passive")], &[no_rseq]] {
        let output = program.run_with(Runtime::Ours, variables, &[case]);
        let said = (text(&output.stdout), text(&output.stderr));
        assert_eq!(said, ("ok\n".into(), String::new()), "{variables:?}");
        assert!(output.status.success(), "{}", output.status);
    }
}

#[test]
fn a_child_of_fork_has_teams_of_its_own() {
    passes("a_child_of_fork_has_teams_of_its_own", "forks");
}

#[test]
fn a_child_of_fork_within_a_region_may_end() {
    passes("a_child_of_fork_within_a_region_may_end", "forks-inside");
}

#[test]
fn teams_of_1_to_1024_threads() {
    passes("teams_of_1_to_1024_threads", "sizes");
}

#[test]
fn threads_of_the_program_come_and_go() {
    passes("threads_of_the_program_come_and_go", "owners");
}

#[test]
fn memory_of_workers_that_have_ended_serves_others() {
    passes(
        "memory_of_workers_that_have_ended_serves_others",
        "requests",
    );
}

/// llama.cpp under a quota: slow, and nobody said why.
#[test]
fn regions_of_more_threads_than_can_run_are_told_with_what_to_set() {
    let Some(program) = Program::build("regions_of_more_threads", "asked") else {
        return;
    };
    let run = |case: &str, variables: &[(&str, &str)]| {
        let output = program.run_with(Runtime::Ours, variables, &[case]);
        let told = text(&output.stderr);
        let told = told.lines().find(|line| line.contains("asked for up to"));
        (text(&output.stdout), told.unwrap_or("").to_owned())
    };
    let stats = ("AMDAHL_OMP_STATS", "true");
    let (had, told) = run("clause", &[stats]);
    assert_eq!(had, "many\n");
    assert!(told.contains(": 2 regions asked"), "{told}");
    assert!(told.contains(" 2 of them by num_threads: "), "{told}");
    assert!(told.contains("AMDAHL_OMP_DYNAMIC=true"), "{told}");
    // What it says helps.
    let may_shrink = ("AMDAHL_OMP_DYNAMIC", "true");
    assert_eq!(
        run("clause", &[stats, may_shrink]),
        ("few\n".into(), String::new())
    );
    let (had, told) = run("set", &[stats]);
    assert_eq!(had, "many\n");
    assert!(
        told.contains(" 0 of them by num_threads: OMP_NUM_THREADS="),
        "{told}"
    );
    // Who has forbidden it is told no more than how many there were.
    let (_, told) = run("clause", &[stats, ("AMDAHL_OMP_DYNAMIC", "false")]);
    assert!(told.ends_with("by num_threads"), "{told}");
    assert_eq!(run("few", &[stats]).1, "");
    // And nobody is told who did not ask.
    let silent = program.run_with(Runtime::Ours, &[], &["clause"]);
    assert_eq!(text(&silent.stderr), "");
}

/// Joblib's workers set OMP_NUM_THREADS, or call omp_set_num_threads: a number that is for all others must not be theirs.
#[test]
fn our_own_number_of_threads_is_for_programs_that_nobody_told() {
    let Some(program) = Program::build("our_own_number_of_threads", "confined") else {
        return;
    };
    if !has_two_cpus() {
        return;
    }
    let own = ("AMDAHL_OMP_THREADS", "1");
    let threads = |variables: &[_], arguments: &[&str]| {
        let output = program.run_with(Runtime::Ours, variables, arguments);
        assert_eq!(text(&output.stderr), "");
        let said = text(&output.stdout);
        said.split(' ').next().map(str::to_owned)
    };
    assert_ne!(threads(&[], &[]), Some("1".into()));
    assert_eq!(threads(&[own], &[]), Some("1".into()));
    assert_eq!(
        threads(&[own, ("OMP_NUM_THREADS", "3")], &[]),
        Some("3".into())
    );
    assert_eq!(threads(&[own], &["5"]), Some("5".into()));
}

fn has_two_cpus() -> bool {
    let has = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
    if !has {
        println!("SKIPPED: threads on CPUs of their own: this machine has one CPU for us");
    }
    has
}

/// Idle workers kept the CPUs of who had started them: a thread that was kept on one CPU had its regions on another one's.
#[test]
fn workers_run_where_the_thread_may_that_begins_the_region() {
    if has_two_cpus() {
        passes(
            "workers_run_where_the_thread_may_that_begins_the_region",
            "cpus-of-others",
        );
    }
}

#[test]
fn threads_stay_where_the_program_has_put_them() {
    if has_two_cpus() {
        passes(
            "threads_stay_where_the_program_has_put_them",
            "cpus-of-the-program",
        );
    }
}

/// A region of one thread gave the workers of the others away, and they came back under other numbers.
#[test]
fn threads_keep_their_numbers() {
    passes("threads_keep_their_numbers", "threadprivates");
}

/// Docks are opened one after the other: who was let go but not told yet could take a task of the next region.
#[test]
fn teams_become_smaller_and_nobody_else_runs_their_tasks() {
    passes(
        "teams_become_smaller_and_nobody_else_runs_their_tasks",
        "shrinking",
    );
}

/// Workers that nobody needs any more kept the process.
#[test]
fn a_process_ends_with_the_last_thread_of_the_program() {
    passes(
        "a_process_ends_with_the_last_thread_of_the_program",
        "last-one",
    );
}

/// Who left a target region by `longjmp` went on with variables in a frame of the stack that was gone.
#[test]
fn who_leaves_a_region_by_longjmp_goes_on() {
    let test = "who_leaves_a_region_by_longjmp_goes_on";
    passes(test, "jumps");
    // GCC's runtime bears it too.
    if let Some(program) = Program::build(test, "process") {
        let gccs = program.run_with(Runtime::Gccs, &[], &["jumps"]);
        assert_eq!(text(&gccs.stdout), "ok\n");
    }
}

#[test]
fn signals_do_no_harm() {
    passes("signals_do_no_harm", "signals");
}

#[test]
fn regions_in_regions() {
    passes("regions_in_regions", "nested");
}

#[test]
fn the_process_may_end_in_a_region() {
    let test = "the_process_may_end_in_a_region";
    let Some(program) = Program::build(test, "process") else {
        return;
    };
    for _ in 0..20 {
        let output = program.run_with(Runtime::Ours, &[], &["exits"]);
        assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    }
}

#[test]
fn a_plugin_may_bring_the_runtime_along() {
    let test = "a_plugin_may_bring_the_runtime_along";
    let Some(program) = Program::build(test, "process") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("plugin.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/plugin.c");
    let built = Command::new("gcc")
        .args(["-fopenmp", "-shared", "-fPIC", "-O1", source, "-o"])
        .arg(&plugin)
        .status()
        .unwrap();
    assert!(built.success());
    let plugin = plugin.to_str().unwrap();
    let output = program.run_with(Runtime::Ours, &[], &["plugins", plugin]);
    assert_eq!(text(&output.stdout), "ok\n", "{}", text(&output.stderr));

    // The same in a program that knows nothing of OpenMP.
    let host = folder.path().join("host");
    let text_of_host = r#"
        #include <dlfcn.h>
        int main(int argc, char **argv) {
            for (int round = 0; round < 10; round++) {
                void *library = dlopen(argv[argc - 1], RTLD_NOW);
                int (*count)(int);
                if (!library) return 1;
                *(void **)&count = dlsym(library, "count_threads");
                if (!count || count(4) != 4) return 2;
                dlclose(library);
            }
            return 0;
        }"#;
    let source = folder.path().join("host.c");
    std::fs::write(&source, text_of_host).unwrap();
    let built = Command::new("gcc")
        .arg(&source)
        .arg("-o")
        .arg(&host)
        .status()
        .unwrap();
    assert!(built.success());
    let ran = Command::new(&host)
        .arg(plugin)
        .env("LD_LIBRARY_PATH", library())
        .status()
        .unwrap();
    assert!(ran.success(), "{ran}");
}
