//! Groups, the whole system, several at once.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use amdahl_report::locks;
use amdahl_report::locks::schema::{LockRow, LocksResult};

use super::truth::{Truth, agree, has_all, has_all_of_the_mutex, is_of, rows, seconds_of_all, sum};
use super::{BEFORE_OTHERS, built, ready, ready_for_churn, result, watch_command};
use crate::processes::Group;
use crate::tool::{Place, Running, alone, until_it_watches};
use crate::workload::{in_some_try, said, to_be_told, watched_in_a_group, watching};

/// Rounds that last long enough for a process of the whole system to be looked at while it lives.
const LONG: &str = "600";

/// `ready_for_churn`, and a control group.
fn ready_for_a_group() -> Option<(Place, PathBuf, Group)> {
    let (place, program) = ready_for_churn()?;
    Some((place, program, Group::new("locks")?))
}

#[test]
fn of_a_control_group_only_its_members_are_watched() {
    let _alone = alone();
    let Some((place, program, group)) = ready_for_a_group() else {
        return;
    };
    in_some_try(|| {
        let planted = (&*program, &["50", "2"][..]);
        let by = ["--by", "process"];
        let Some(watched) = watched_in_a_group(&place, "locks", &by, planted, &group) else {
            return Ok(());
        };
        let (pid, found) = (watched.pid, result(&watched.ran));
        assert!(Truth::of(&watched.outside).times > 0);
        let waits = |row: &&LockRow| !row.in_kernel;
        let whose: Vec<u32> = found.rows.iter().filter(waits).map(|row| row.pid).collect();
        assert!(whose.iter().all(|&of| of == pid), "{pid} of {whose:?}");
        has_all(&found, &Truth::of(&watched.inside), false)
    });
    group.is_left_empty();
}

/// Its waits were counted, and had no names once it had ended: nobody had told of its mappings.
#[test]
fn who_joins_a_control_group_while_it_is_watched_has_names() {
    let _alone = alone();
    let Some((place, program, group)) = ready_for_a_group() else {
        return;
    };
    // It works for some seconds: the group is looked at once in a second.
    let mut process = to_be_told(&place, &program, &["2", "3000"], "said");
    let mut tool = place.tool(["locks", "--json", "--quiet", "--for", "1h"]);
    tool.arg("--cgroup").arg(group.folder());
    let tool = place.start(tool);
    until_it_watches(&tool);
    if !group.takes_in(process.pid()) {
        return;
    }
    process.say("begin");
    process.ended().ends_with(0);
    tool.signal(rustix::process::Signal::INT);
    let found = result(&tool.ended().ends_with(5));
    let named = sum(&found, "pthread mutex", "want_the_room").0;
    // Of a spin lock no stack may have been taken.
    let is_nameless = |row: &LockRow| !row.in_kernel && row.site.symbol.is_empty();
    let nameless = found.rows.iter().any(is_nameless);
    assert!(named > 0 && !nameless, "{}", rows(&found));
}

/// A view of the whole system, at work.
fn watching_the_system(place: &Place) -> Running {
    let options = ["--system", "--by", "thread"].map(OsStr::new);
    watching(place, "locks", &options)
}

/// What it has of the process, once it is told to end.
fn seen_of(system: Running, pid: u32) -> LocksResult {
    system.signal(rustix::process::Signal::INT);
    let mut found = result(&system.ended().ends_with(5));
    assert!(found.partial);
    found.rows.retain(|row| row.pid == pid);
    found
}

/// What it has of a program that comes and goes meanwhile, and the program's id.
fn seen_of_a_mutex(place: &Place, system: Running, mut command: Command) -> (u32, LocksResult) {
    command.args(["mutex", LONG]);
    command.env("PLANTED_OUT", place.join("said"));
    let planted = place.start(place.here(command));
    let pid = planted.pid();
    planted.ended().ends_with(0);
    (pid, seen_of(system, pid))
}

/// Of a program that comes and goes, of which nobody told the tool.
#[test]
fn the_whole_system_is_watched() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    in_some_try(|| {
        let _ = std::fs::remove_file(place.join("said"));
        let system = watching_the_system(&place);
        let [nice, how @ ..] = BEFORE_OTHERS;
        let mut command = Command::new(nice);
        command.args(how).arg(&program);
        let (_, found) = seen_of_a_mutex(&place, system, command);
        has_all_of_the_mutex(&found, &Truth::of(&said(&place, "said")))
    });
}

#[test]
fn two_instances_do_not_disturb_each_other() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let command = [program.as_os_str(), OsStr::new("mutex"), OsStr::new(LONG)];
    in_some_try(|| {
        let other = watching_the_system(&place);
        let (line, found) = watch_command(&place, &command, &["--by", "thread"]);
        let truth = Truth::of(&line);
        let waiter = found
            .rows
            .iter()
            .find(|row| is_of(row, "pthread mutex", "want_mutex"));
        let pid = waiter.expect("a row").pid;
        let of_system = seen_of(other, pid);
        has_all_of_the_mutex(&found, &truth)?;
        has_all_of_the_mutex(&of_system, &truth).map_err(|miss| format!("the system: {miss}"))
    });
}

/// Who watches is a program with waits of its own, which are not those of what it watches.
#[test]
fn it_watches_itself() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let script = "\"$0\" locks --quiet --output inner -- \"$1\" mutex >inner.txt";
    let tool = env!("CARGO_BIN_EXE_amdahl");
    let command: Vec<&OsStr> = ["sh", "-c", script, tool]
        .into_iter()
        .map(OsStr::new)
        .chain([program.as_os_str()])
        .collect();
    in_some_try(|| {
        let _ = std::fs::remove_dir_all(place.join("inner"));
        let (line, outer) = watch_command(&place, &command, &[]);
        let truth = Truth::of(&line);
        let inner = std::fs::read(place.join("inner/result.json")).expect("the result");
        let inner = locks::parse(&inner, "inner".into()).expect("a result");
        for (who, found) in [("outer", &outer), ("inner", &inner)] {
            seconds_of_all(found, "pthread mutex", "want_mutex", &truth)
                .and_then(|seconds| agree(&truth, seconds))
                .map_err(|miss| format!("{who}: {miss}"))?;
        }
        let is_of_the_tool = |row: &LockRow| row.site.symbol.contains("drain_until_stopped");
        assert!(outer.rows.iter().any(is_of_the_tool), "{}", rows(&outer));
        assert!(!inner.rows.iter().any(is_of_the_tool), "{}", rows(&inner));
        Ok(())
    });
}

/// The process's waits for its mutex, polled, and what polls lack.
fn has_some_of_the_mutex(found: &LocksResult, pid: u32) -> Result<(), String> {
    let polled = found.sources.iter().find(|source| source.what == "waits");
    let polled = polled.expect("a source");
    assert_eq!(polled.how, "/proc");
    for said in ["4096 threads", "none of the kernel", "hundredth of a CPU"] {
        assert!(polled.missing.contains(said), "{}", polled.missing);
    }
    let is_it = |row: &&LockRow| row.pid == pid && is_of(row, "pthread mutex", "want_mutex");
    let row = found.rows.iter().find(is_it).ok_or_else(|| rows(found))?;
    assert!(row.at_least && row.total_s > 0.0, "{row:?}");
    Ok(())
}

/// A control group was refused, though polls know how to follow one.
#[test]
fn a_control_group_is_polled_without_privileges() {
    let _alone = alone();
    let place = Place::new();
    let Some(program) = built(&place, "families") else {
        return;
    };
    let Some(group) = Group::new("polled") else {
        return;
    };
    let options = ["--probe", "proc", "--by", "process"];
    in_some_try(|| {
        let planted = (&*program, &["mutex", LONG][..]);
        let Some(watched) = watched_in_a_group(&place, "locks", &options, planted, &group) else {
            return Ok(());
        };
        let found = result(&watched.ran);
        let whose = || found.rows.iter().map(|row| row.pid);
        assert!(whose().all(|pid| pid == watched.pid), "{:?}", found.rows);
        has_some_of_the_mutex(&found, watched.pid)
    });
    group.is_left_empty();
}

/// Of a process that nobody told the tool of. The system was refused.
#[test]
fn the_system_is_polled_without_privileges() {
    let _alone = alone();
    let place = Place::new();
    let Some(program) = built(&place, "families") else {
        return;
    };
    in_some_try(|| {
        let _ = std::fs::remove_file(place.join("said"));
        let options = ["--system", "--probe", "proc", "--by", "thread"].map(OsStr::new);
        let system = watching(&place, "locks", &options);
        let (pid, found) = seen_of_a_mutex(&place, system, Command::new(&program));
        has_some_of_the_mutex(&found, pid)
    });
}
