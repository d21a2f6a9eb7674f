//! Without BPF.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

use amdahl_report::mem::schema::MemResult;
use rustix::process::Signal;

use super::{SOURCE, Truth, result};
use crate::processes::Group;
use crate::tool::{Place, Running, alone, until, until_it_has};
use crate::workload::{compiled, said};

/// A shell that runs the program when it is told to, and lives on when it has waited for its end.
fn shell(place: &Place, program: &Path, how: &[&str]) -> Running {
    for name in ["said", "done"] {
        let _ = std::fs::remove_file(place.join(name));
    }
    let mut command = Command::new("sh");
    let script = "read line; \"$0\" \"$@\" </dev/null; echo >done; read line";
    command.args(["-c", script]).arg(program).args(how);
    command.env("PLANTED_OUT", place.join("said"));
    let mut command = place.here(command);
    command.stdin(Stdio::piped());
    place.start(command)
}

fn watch(place: &Place, options: &[OsString]) -> Running {
    let mut tool = place.tool(["mem", "--json", "--quiet", "--probe", "proc", "--for", "1h"]);
    tool.args(options);
    let tool = place.start(tool);
    until_it_has(&tool, "amdahl-account");
    tool
}

/// What was watched while the program ran.
fn seen(place: &Place, mut shell: Running, tool: Running) -> (Truth, MemResult) {
    shell.say("begin");
    until("the program's end", || {
        place.join("done").exists().then_some(())
    });
    tool.signal(Signal::INT);
    let found = result(&tool.ended().ends_with(5));
    shell.say("end");
    shell.ended().ends_with(0);
    (Truth::of(&said(place, "said")), found)
}

/// Only of a command there were faults at all.
#[test]
fn faults_of_what_runs_already_and_of_what_it_starts_are_counted() {
    let _alone = alone();
    let place = Place::new();
    let Some(program) = compiled(&place, "guests", SOURCE, &["-g"]) else {
        return;
    };
    let group = Group::new("mem-proc");
    for whom in ["--pid", "--system", "--cgroup"] {
        let shell = shell(&place, &program, &["processes", "50", "3"]);
        let mut options = vec![OsString::from(whom)];
        match whom {
            "--pid" => options.push(shell.pid().to_string().into()),
            "--cgroup" => {
                let Some(group) = group.as_ref().filter(|group| group.takes_in(shell.pid())) else {
                    continue;
                };
                options.push(group.folder().into());
            }
            _ => {}
        }
        let tool = watch(&place, &options);
        let (truth, found) = seen(&place, shell, tool);
        let faults = &found.faults;
        // Its children live for some milliseconds: few of them were there when it was looked.
        assert!(
            faults.count >= truth.lived,
            "{whom}: {} {faults:?}",
            truth.lived
        );
        assert_eq!(faults.accounted, Some(faults.count));
        let listed: u64 = faults.sites.iter().map(|site| site.count).sum();
        assert!(
            listed + faults.left_out >= faults.count,
            "{whom}: {faults:?}"
        );
        let source = found
            .sources
            .iter()
            .find(|source| source.what == "page faults");
        let source = source.expect("a source");
        assert!(source.how.starts_with("/proc"), "{whom}: {source:?}");
        assert!(!source.missing.is_empty() && !source.remedy.is_empty());
        if whom == "--pid" {
            // A shell and the program, and none of the rest of the machine.
            assert!(faults.count < 3 * truth.lived, "{} {faults:?}", truth.lived);
        }
    }
    if let Some(group) = group {
        group.is_left_empty();
    }
}

/// Who had typed `--system` was told to.
#[test]
fn misses_of_the_whole_system_are_counted_or_it_is_said_what_is_lacking() {
    let _alone = alone();
    let place = Place::new();
    let options = [
        "mem", "--json", "--quiet", "--probe", "proc", "--system", "--for", "100ms",
    ];
    let found = result(&place.amdahl(options.map(OsStr::new)).ends_with(0));
    let source = found
        .sources
        .iter()
        .find(|source| source.what == "TLB misses");
    let source = source.expect("a source");
    assert_eq!(
        found.tlb.is_some(),
        source.how == "perf events",
        "{source:?}"
    );
    assert!(!source.remedy.contains("--system"), "{source:?}");
}
