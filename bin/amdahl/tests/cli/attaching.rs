//! `--pid`: a process that runs already is watched and left as it was.

use std::collections::HashSet;
use std::process::Command;

use amdahl_report::schema::ScaleResult;
use rustix::process::Signal;

use crate::processes::{is_alive, kill, pid_in, until_catches};
use crate::tool::{Place, Ran, Running, alone, bpf, is_root, notice, skipped, until};
use crate::workload::{compiled, in_some_try};

/// Runs a command in a control group that may use so many CPUs; ends with 77 where there can be none.
pub const IN_QUOTA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../planted/in-quota.sh");

/// A process that waits until the test ends.
fn sleeper(place: &Place) -> Running {
    let mut command = Command::new("sleep");
    command.arg("1000");
    place.start(place.here(command))
}

/// A process that computes until the test ends.
fn busy(place: &Place) -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]);
    place.start(place.here(command))
}

/// Ways to look; SKIPPED says which are not there.
fn probes() -> Vec<&'static str> {
    match bpf() {
        Ok(()) => vec!["bpf", "proc"],
        Err(reason) => {
            skipped(reason);
            vec!["proc"]
        }
    }
}

fn watched(place: &Place, probe: &str, pid: u32, time: &str) -> Ran {
    let pid = pid.to_string();
    let args = [
        "scale", "--probe", probe, "--pid", &pid, "--for", time, "--json",
    ];
    place.amdahl(args)
}

#[track_caller]
fn assert_is_one_look(result: &ScaleResult) {
    assert_eq!(result.points.len(), 1);
    let sum: f64 = result.points[0].stack.values().sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    let settings = &result.settings;
    assert_eq!((settings.runs, settings.bare_runs), (1, 0));
    assert!(
        settings.confinement.contains("not confined"),
        "{settings:?}"
    );
    assert!(settings.env.is_empty(), "{settings:?}");
    assert_eq!(settings.speedup_of, "none");
    assert_eq!(result.points[0].wall_s.runs.len(), 1);
}

#[test]
fn a_running_process_is_watched_for_a_time_and_left_alone() {
    let _alone = alone();
    let place = Place::new();
    let process = sleeper(&place);
    for probe in probes() {
        let result = watched(&place, probe, process.pid(), "100ms")
            .ends_with(0)
            .result();
        assert_is_one_look(&result);
        assert!(result.points[0].wall_s.median >= 0.1);
        assert!(!result.partial);
        assert!(is_alive(process.pid()));
        if probe == "bpf" {
            // It began to before anybody looked.
            let most = result.causes.first().expect("it waits");
            assert_eq!(most.id, "sleep", "{:?}", result.causes);
        }
    }
}

/// What a busy process used is told by its stack and by the kernel's account of its CPU time.
#[test]
fn the_time_of_a_busy_process_is_work() {
    let _alone = alone();
    let place = Place::new();
    let process = busy(&place);
    for probe in probes() {
        in_some_try(|| {
            let ran = watched(&place, probe, process.pid(), "500ms").ends_with(0);
            let result = ran.result();
            assert_is_one_look(&result);
            let point = &result.points[0];
            let used_s = point.user_s + point.system_s;
            assert!(used_s > 0.0, "{probe}: {point:?}");
            let work_s = point.stack["work"] * point.capacity_s;
            // Two accounts of the same time, of which one counts clock ticks.
            if (work_s - used_s).abs() <= 0.1 * used_s {
                Ok(())
            } else {
                Err(format!(
                    "{probe}: {work_s} s of work, {used_s} s used: {point:?}"
                ))
            }
        });
    }
}

/// Two threads that compute until the test ends.
const ENDLESS: &str = r#"
#include <pthread.h>
static volatile unsigned long result;
__attribute__((noinline)) static void *churn(void *arg) {
    unsigned long x = (unsigned long)arg;
    for (;;) {
        for (int i = 0; i < 1000; i++)
            x = x * 6364136223846793005UL + 1442695040888963407UL;
        result = x;
    }
}
int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, churn, 0)) return 3;
    churn(&thread);
}
"#;

/// Samples are taken of threads that were there before, by their own events where there is no BPF.
#[test]
fn the_code_of_running_threads_is_named() {
    let _alone = alone();
    let place = Place::new();
    let Some(program) = compiled(&place, "endless", ENDLESS, &["-g"]) else {
        return;
    };
    let process = place.start(place.here(Command::new(program)));
    let pid = process.pid().to_string();
    for probe in probes() {
        let args = [
            "scale", "--probe", probe, "--pid", &pid, "--for", "1s", "-o", probe,
        ];
        place.amdahl(args).ends_with(0);
        let result = amdahl_report::load::load(&place.join(probe)).expect("a result");
        let mut sources = result.sources.iter();
        let stacks = sources.find(|source| source.what.ends_with("stacks"));
        if stacks.is_none_or(|source| source.how == "missing") {
            skipped(format!("{probe}: no samples: {stacks:?}"));
            continue;
        }
        let file = place.join(probe).join("samples.parquet");
        let rows = amdahl_report::samples::read(&file).expect("rows");
        let of_code = rows.iter().filter(|row| row.symbol == "churn");
        let threads: HashSet<u32> = of_code.map(|row| row.tid).collect();
        assert_eq!(threads.len(), 2, "{probe}: {rows:#?}");
    }
}

/// Children that have ended are told by whoever waited for them.
#[test]
fn the_time_of_children_counts() {
    let _alone = alone();
    let place = Place::new();
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "while :; do sh -c 'for i in 1 2 3 4 5 6 7 8 9; do :; done'; done",
    ]);
    let process = place.start(place.here(command));
    for probe in probes() {
        let result = watched(&place, probe, process.pid(), "500ms")
            .ends_with(0)
            .result();
        assert_is_one_look(&result);
        let point = &result.points[0];
        assert!(point.user_s + point.system_s > 0.0, "{probe}: {point:?}");
    }
}

#[test]
fn watching_ends_with_the_process() {
    let _alone = alone();
    let place = Place::new();
    for probe in probes() {
        let process = sleeper(&place);
        let pid = process.pid().to_string();
        // The time is beyond that of the test.
        let args = [
            "scale", "--probe", probe, "--pid", &pid, "--for", "1h", "--json",
        ];
        let tool = place.start(place.tool(args));
        until_catches(tool.pid(), Signal::INT);
        drop(process);
        let ran = tool.ended();
        // It may have gone before the tool came to look at it.
        assert!(matches!(ran.status.code(), Some(0 | 3)), "{ran:?}");
    }
}

#[test]
fn ctrl_c_ends_watching_and_not_the_process() {
    let _alone = alone();
    let place = Place::new();
    let process = sleeper(&place);
    let pid = process.pid().to_string();
    for probe in probes() {
        let args = [
            "scale", "--probe", probe, "--pid", &pid, "--for", "1h", "--json",
        ];
        let tool = place.start(place.tool(args));
        until_catches(tool.pid(), Signal::INT);
        tool.signal(Signal::INT);
        let ran = tool.ended();
        assert!(is_alive(process.pid()));
        assert!(ran.ends_with(5).result().partial);
    }
}

#[test]
fn what_is_no_process_is_refused() {
    let _alone = alone();
    let place = Place::new();
    for probe in probes() {
        // Numbers of processes end below 2^22. 0 is nobody: to the kernel it is the caller.
        for pid in ["4194304", "4294967295", "0", "-1", "4294967296", "init"] {
            let ran = place.amdahl(["scale", "--probe", probe, "--pid", pid, "--for", "50ms"]);
            let code = ran.status.code();
            assert!(
                matches!(code, Some(2 | 3)) && !ran.err.contains("panicked"),
                "{ran:?}"
            );
            assert!(ran.err.contains(pid), "{}", ran.err);
        }
    }
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn a_process_of_somebody_else_is_watched_as_far_as_it_may_be() {
    let _alone = alone();
    let place = Place::new();
    let process = busy(&place);
    let pid = process.pid().to_string();
    let args = ["scale", "--pid", &pid, "--for", "500ms", "--json"];
    let Some(ran) = place.amdahl_as_ordinary_user(&args) else {
        return;
    };
    let result = ran.ends_with(0).result();
    assert_is_one_look(&result);
    let point = &result.points[0];
    assert!(point.user_s + point.system_s > 0.0, "{point:?}");
    if !is_root() {
        return skipped("the process belongs to who runs the tests");
    }
    let missing: Vec<&str> = result
        .sources
        .iter()
        .filter(|source| !source.missing.is_empty())
        .map(|source| {
            assert!(!source.remedy.is_empty(), "{source:?}");
            source.what.as_str()
        })
        .collect();
    for what in ["scheduling", "user and kernel stacks", "pthread waits"] {
        assert!(missing.contains(&what), "{what}: {:?}", result.sources);
    }

    // A thread that waits has something to hide.
    let process = sleeper(&place);
    let pid = process.pid().to_string();
    let args = ["scale", "--pid", &pid, "--for", "100ms", "--json"];
    let ran = place.amdahl_as_ordinary_user(&args).expect("as before");
    let result = ran.ends_with(0).result();
    let hidden = result
        .warnings
        .iter()
        .find(|warning| warning.code == "hidden");
    assert!(
        hidden.is_some_and(|warning| warning.text.contains("ptrace_scope")),
        "{:?}",
        result.warnings
    );

    let args = ["scale", "--probe", "bpf", "--pid", &pid, "--no-output"];
    let ran = place.amdahl_as_ordinary_user(&args).expect("as before");
    assert!(ran.ends_with(6).message().contains("amdahl doctor"));
}

/// A busy process in a control group that may use a third of a CPU. The group goes with it.
struct Limited {
    script: Option<Running>,
    pid: u32,
}

impl Limited {
    /// `None` with SKIPPED where there can be no such group.
    fn start(place: &Place) -> Option<Limited> {
        let mut command = Command::new("sh");
        let script = "echo $$ >pid; while :; do :; done";
        command.args([IN_QUOTA, "0.33", "sh", "-c", script]);
        let script = place.start(place.here(command));
        let has_begun = until("a process in a group, or a refusal", || {
            let has_begun = place.read("pid").ends_with('\n');
            (has_begun || !is_alive(script.pid())).then_some(has_begun)
        });
        if !has_begun {
            skipped(format!(
                "no control group with a quota: {:?}",
                script.ended().err
            ));
            return None;
        }
        Some(Limited {
            script: Some(script),
            pid: pid_in(place, "pid"),
        })
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        kill(self.pid);
        // It removes the group.
        self.script.take().map(Running::ended);
    }
}

#[test]
fn what_a_quota_takes_is_stolen() {
    let _alone = alone();
    if let Err(reason) = bpf() {
        return skipped(reason);
    }
    assert_what_a_quota_takes_is_stolen("bpf");
}

#[test]
fn what_a_quota_takes_is_stolen_without_privileges_too() {
    let _alone = alone();
    assert_what_a_quota_takes_is_stolen("proc");
}

fn assert_what_a_quota_takes_is_stolen(probe: &str) {
    let place = Place::new();
    let Some(process) = Limited::start(&place) else {
        return;
    };
    let result = watched(&place, probe, process.pid, "500ms")
        .ends_with(0)
        .result();
    assert_is_one_look(&result);
    assert!(notice(&result, "quota").contains("0.33 CPUs"));
    let quota = result.machine.quota_cpus.expect("its own quota, not ours");
    assert!((quota - 0.33).abs() < 0.01, "{quota}");
    let stolen = result.causes.iter().find(|cause| cause.id == "stolen");
    let sites = &stolen.expect("something is taken away").sites;
    assert!(
        sites.iter().any(|site| site.object == "CPU quota"),
        "{sites:?}"
    );
}
