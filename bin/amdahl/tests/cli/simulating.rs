//! `amdahl sim`.

use std::fs;
use std::time::Duration;

use amdahl_report::sched::EVENTS_FOLDER;
use amdahl_sched::event::{Event, Off, Waker};
use amdahl_sched::recording::{FolderWriter, Meta};
use amdahl_topology::Topology;

use super::tool::Place;
use crate::chrome_trace;

const MACHINE: &str = "2 llc x 2 core x 2 thread";

#[test]
fn policies_are_compared_and_json_is_reproducible() {
    let place = Place::new();
    let args = [
        "sim",
        "run",
        "ping-pong",
        "--machine",
        MACHINE,
        "--policy",
        "linux,steal",
        "--set",
        "rounds=100",
        "--runs",
        "2",
    ];
    let text = place.amdahl(args).ends_with(0).out;
    for part in [
        "medians of 2 runs",
        "linux",
        "steal",
        "wake-up p50",
        "million events/s",
        "rounds: 100",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let json = || {
        place
            .amdahl(args.into_iter().chain(["--json"]))
            .ends_with(0)
            .json()
    };
    let (first, second) = (json(), json());
    assert_eq!(first["schema"], "amdahl.sim/1");
    assert_eq!(first["runs"], second["runs"]);
    let seeds: Vec<_> = first["runs"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|run| (run["policy"].clone(), run["seed"].clone()))
        .collect();
    assert_eq!(
        seeds,
        [
            ("linux".into(), 1.into()),
            ("linux".into(), 2.into()),
            ("steal".into(), 1.into()),
            ("steal".into(), 2.into())
        ]
    );
}

/// As importers read it: who ran where, and which run it was.
#[test]
fn a_trace_shows_the_run() {
    let place = Place::new();
    // More tasks than CPUs, of two kinds, which sleep, spin and are preempted.
    fs::write(
        place.join("mixed.toml"),
        "name = 'mixed'
        locks.l.kind = 'ticket'
        [[tasks]]
        name = 'long'
        count = 9
        program = 'loop 3 { compute 5ms; lock l; compute 10us; unlock l }'
        [[tasks]]
        name = 'short'
        count = 4
        program = 'loop 20 { sleep 300us; compute exp(100us) }'",
    )
    .expect("written");
    let args = ["sim", "run", "mixed.toml", "--machine", MACHINE, "--json"];
    let more = ["--seed", "7", "--policy", "linux", "--trace", "t.json.gz"];
    let run = place.amdahl([&args[..], &more].concat()).ends_with(0);
    let run = &run.json()["runs"][0];
    let file = fs::read(place.join("t.json.gz")).expect("a trace");
    let trace = chrome_trace::read(&file).unwrap_or_else(|what| panic!("{what}"));

    let of_cpus = trace
        .processes
        .iter()
        .find(|(_, name)| name.starts_with("CPUs"));
    let (&of_cpus, name) = of_cpus.expect("a process of the CPUs");
    assert_eq!(name, "CPUs, linux, seed 7");
    let makespan = run["makespan_ns"].as_u64().expect("a number");
    let slices = trace.tracks.values().flatten();
    assert!(slices.clone().all(|slice| slice.end <= makespan));
    let sum = |pid: u64| -> u64 {
        let tracks = trace.tracks.iter().filter(|((of, _), _)| *of == pid);
        let slices = tracks.flat_map(|(_, slices)| slices);
        slices.map(|slice| slice.end - slice.start).sum()
    };
    let ran = |task: &serde_json::Value| task["ran_ns"].as_u64().expect("a number");
    let tasks = run["tasks"].as_array().expect("a list");
    assert_eq!(tasks.len(), 2);
    // A kind of tasks is a process.
    for (pid, task) in (1..).zip(tasks) {
        assert_eq!(trace.processes[&pid], task["name"]);
        assert_eq!(sum(pid), ran(task), "{task}");
    }
    assert_eq!(sum(of_cpus), tasks.iter().map(ran).sum::<u64>());
    // All CPUs had something to run; that none ran two tasks at once is checked by the reader, of the order in the file.
    let of_cpus: Vec<_> = trace
        .tracks
        .iter()
        .filter(|((pid, _), _)| *pid == of_cpus)
        .collect();
    assert_eq!(of_cpus.len(), 8);
    let switches: usize = of_cpus.iter().map(|(_, slices)| slices.len()).sum();
    assert!(switches > 9 + 4 * 20, "{switches}");
}

#[test]
fn what_is_wrong_is_told() {
    let place = Place::new();
    fs::write(
        place.join("bad.toml"),
        "name = 'x'\n[[tasks]]\nname = 'one'\nprogram = 'loc a'\n",
    )
    .expect("written");
    fs::write(place.join("stuck.toml"), "name = 'x'\n[locks.m]\nkind = 'mutex'\n[[tasks]]\nname = 'one'\nprogram = 'lock m; lock m'\n").expect("written");
    let cases: [(&[&str], i32, &str); 8] = [
        (
            &["sim", "run", "bad.toml"],
            2,
            "bad.toml: line 4: there is no statement `loc`",
        ),
        (&["sim", "run", "nothing"], 2, "or one of barrier, build"),
        (
            &["sim", "run", "barrier", "--policy", "magic"],
            2,
            "there is no policy `magic`",
        ),
        (
            &["sim", "run", "barrier", "--machine", "2 cars"],
            2,
            "the machine `2 cars`",
        ),
        (
            &["sim", "run", "barrier", "--set", "x=1"],
            2,
            "it has loops",
        ),
        (
            &["sim", "run", "barrier", "--costs", "gold"],
            2,
            "broadwell-ep",
        ),
        (
            &["sim", "run", "stuck.toml", "--machine", "1 core"],
            3,
            "waits for lock `m`, held by one",
        ),
        (&["sim", "sweep", "bad.toml"], 2, "line "),
    ];
    for (args, code, part) in cases {
        let ran = place.amdahl(args).ends_with(code);
        let said = format!("{}{}", ran.out, ran.err);
        assert!(said.contains(part), "{args:?}: {said}");
    }
    let policies = place
        .amdahl(["sim", "policies", "--json"])
        .ends_with(0)
        .json();
    assert!(
        policies
            .as_array()
            .expect("a list")
            .iter()
            .any(|row| row["name"] == "steal" && row["source"] != "")
    );
}

/// 16 points, of which those with the first value of `loops` come first.
pub const SWEEP: &str = "workload = 'barrier'\nmachines = ['4 core', '2 core x 2 thread']\npolicies = ['steal', 'linux']\nseeds = 2\n[set]\nloops = [2, 3]\nthreads = 4\n";

#[test]
fn a_sweep_continues_where_it_was() {
    let place = Place::new();
    fs::write(place.join("sweep.toml"), SWEEP).expect("written");
    let first = place.amdahl(["sim", "sweep", "sweep.toml"]).ends_with(0);
    assert!(
        first.err.contains("16 runs, 16 of them to do"),
        "{}",
        first.err
    );
    let results = || {
        let mut names: Vec<_> = fs::read_dir(place.join("sweep"))
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        names.sort();
        names
    };
    let all = results();
    assert_eq!(all.len(), 16);
    // One is lost, one is damaged: both come again, the same.
    let whole = fs::read(&all[1]).expect("a result");
    fs::remove_file(&all[0]).expect("removed");
    fs::write(&all[1], &whole[..whole.len() / 2]).expect("damaged");
    let second = place.amdahl(["sim", "sweep", "sweep.toml"]).ends_with(0);
    assert!(
        second.err.contains("16 runs, 2 of them to do"),
        "{}",
        second.err
    );
    assert_eq!(
        (results(), fs::read(&all[1]).expect("a result")),
        (all, whole)
    );
    assert_eq!(first.out, second.out);
}

/// Whatever is done when the tool is killed is not done again, and nothing half is taken for a result.
#[test]
fn a_killed_sweep_continues_where_it_was() {
    let place = Place::new();
    let sweep = SWEEP.replace("loops = [2, 3]", "loops = [2000, 3000]");
    fs::write(place.join("sweep.toml"), sweep).expect("written");
    let names = |folder: &str, ending: &str| {
        let entries = fs::read_dir(place.join(folder)).into_iter().flatten();
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names
            .filter(|name| name.to_string_lossy().ends_with(ending))
            .count()
    };
    let mut child = place
        .tool(["sim", "sweep", "sweep.toml", "--quiet"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("started");
    loop {
        // Asked first: one that has ended since is done with all of them.
        let ended = child.try_wait().expect("a child");
        if names("sweep", ".json") >= 2 {
            break;
        }
        assert_eq!(ended, None, "it has ended");
        std::thread::yield_now();
    }
    child.kill().expect("killed");
    child.wait().expect("waited for");
    let done = names("sweep", ".json");
    let second = place.amdahl(["sim", "sweep", "sweep.toml"]).ends_with(0);
    let left = format!("16 runs, {} of them to do", 16 - done);
    assert!(second.err.contains(&left), "{left}: {}", second.err);
    assert_eq!(names("sweep", ".json"), 16);
    // The killed may have left parts.
    let left = place.join("sweep/.left.1-0.part");
    fs::write(&left, "{").expect("written");
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    let file = fs::File::options().write(true).open(&left);
    file.and_then(|file| file.set_modified(long_ago))
        .expect("old now");
    place.amdahl(["sim", "sweep", "sweep.toml"]).ends_with(0);
    assert!(!left.exists());
    let fresh = place
        .amdahl(["sim", "sweep", "sweep.toml", "--output", "fresh"])
        .ends_with(0);
    assert_eq!(second.out, fresh.out);
}

/// A folder of a built-in workload's name is not meant, unless it is a recording.
#[test]
fn folders_do_not_hide_what_is_built_in() {
    let place = Place::new();
    fs::create_dir(place.join("ping-pong")).expect("made");
    let run = ["sim", "run", "ping-pong", "--set", "rounds=10"];
    place
        .amdahl(run.into_iter().chain(["--machine", "2 core"]))
        .ends_with(0);
    // The sweep makes a folder of its own name.
    let sweep = "workload = 'ping-pong'\nmachines = ['2 core']\npolicies = ['steal']\n[set]\n";
    let file = place.join("ping-pong.toml");
    fs::write(&file, format!("{sweep}rounds = [10, 20]\n")).expect("written");
    for _ in 0..2 {
        place
            .amdahl(["sim", "sweep", "ping-pong.toml"])
            .ends_with(0);
    }
    fs::write(&file, format!("{sweep}rounds = []\n")).expect("written");
    let empty = place
        .amdahl(["sim", "sweep", "ping-pong.toml"])
        .ends_with(2);
    assert!(
        empty.err.contains("`rounds` in [set] has no values"),
        "{}",
        empty.err
    );
}

/// A worker compiled the workload with all parameters, and hashed all points, though it does a few.
#[test]
fn a_shard_compiles_what_it_runs() {
    let place = Place::new();
    let sweep = SWEEP.replace("loops = [2, 3]", "loops = [2, 'many']");
    fs::write(place.join("sweep.toml"), sweep).expect("written");
    let whole = place.amdahl(["sim", "sweep", "sweep.toml"]).ends_with(2);
    assert!(whole.err.contains("many"), "{}", whole.err);
    let shard = |points: &str, shard| {
        fs::write(place.join("list"), points).expect("written");
        let args = ["sim", "sweep", "sweep.toml", "--points", "list", "--shard"];
        place.amdahl(args.into_iter().chain([shard]))
    };
    let ran = shard("0-3\n6\n", "1/2").ends_with(0);
    assert!(ran.err.contains("2 runs, 2 of them to do"), "{}", ran.err);
    let of_the_other = shard("0-3\n8\n", "0/1").ends_with(2);
    assert!(of_the_other.err.contains("many"), "{}", of_the_other.err);
    let beyond = shard("0-16\n", "0/1").ends_with(2);
    assert!(
        beyond.err.contains("not a list of points of this sweep"),
        "{}",
        beyond.err
    );
    let refused = place
        .amdahl(["sim", "sweep", "sweep.toml", "--shard", "3/3"])
        .ends_with(2);
    assert!(refused.err.contains("expected I/N"), "{}", refused.err);
}

#[test]
fn costs_are_measured_and_used() {
    let place = Place::new();
    place
        .amdahl([
            "sim",
            "calibrate",
            "--for",
            "10ms",
            "-o",
            "costs.json",
            "--quiet",
        ])
        .ends_with(0);
    let costs: serde_json::Value = serde_json::from_str(&place.read("costs.json")).expect("JSON");
    let source = costs["source"].as_str().expect("a text");
    assert!(source.starts_with("measured on"), "{source}");
    // What it measured is what the list says.
    let list = place.amdahl(["sim", "costs", "--json"]).ends_with(0).json();
    let measured = source
        .rsplit_once(": ")
        .and_then(|(_, parts)| parts.strip_suffix("; the rest is assumed"));
    for name in measured.expect("a list").split([',', '+']).map(str::trim) {
        let rows = list["costs"].as_array().expect("a list");
        let row = rows.iter().find(|row| row["name"] == name);
        let row = row.unwrap_or_else(|| panic!("no cost `{name}`"));
        assert_eq!(row["is_measured"], true, "{name}");
    }
    assert!(costs["syscall"].as_u64().expect("a number") > 0);
    let run = place
        .amdahl([
            "sim",
            "run",
            "ping-pong",
            "--machine",
            "2 core",
            "--set",
            "rounds=10",
            "--costs",
            "costs.json",
            "--json",
        ])
        .ends_with(0)
        .json();
    assert_eq!(run["runs"][0]["costs"], costs["source"]);
}

#[test]
fn costs_are_listed_with_their_sources() {
    let place = Place::new();
    let list = place.amdahl(["sim", "costs", "--json"]).ends_with(0).json();
    let sets = list["published"].as_array().expect("a list");
    let text = place.amdahl(["sim", "costs"]).ends_with(0).out;
    assert!(!sets.is_empty());
    for set in sets {
        let (name, source) = (set["name"].as_str(), set["source"].as_str());
        let (name, source) = (name.expect("a name"), source.expect("a text"));
        assert!(
            text.contains(&format!("  {name}\n    {source}\n")),
            "{text}"
        );
        // And can be used by their names.
        let run = ["sim", "run", "ping-pong", "--machine", "2 core"];
        let more = ["--set", "rounds=10", "--json", "--costs", name];
        let run = place.amdahl([&run[..], &more].concat()).ends_with(0);
        assert_eq!(run.json()["runs"][0]["costs"], source);
    }
    // A word each of what is measured, of sums, and of what is not.
    let words = |name: &str| -> Vec<&str> {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no `{name}`: {text}"));
        line.split_whitespace().skip(2).collect()
    };
    assert_eq!(words("syscall"), ["yes"]);
    assert_eq!(words("fork"), ["its", "sum", "with", "exec"]);
    assert_eq!(words("queue_hold"), ["no"]);
}

/// A thread that makes another one, waits for it, and then for a timer; a third one belongs to somebody else.
fn recording() -> Vec<Event> {
    const MS: u64 = 1_000_000;
    let (maker, made, other) = (10, 11, 20);
    let switch = |ms: u64, cpu, prev, off, next| Event::Switch {
        ts: ms * MS,
        cpu,
        prev,
        off,
        next,
    };
    let thread = |ms: u64, tid, name: &str| Event::Thread {
        ts: ms * MS,
        tid,
        pid: maker,
        is_kernel: false,
        name: name.into(),
    };
    let woken = |ms: u64, waker| Event::Waking {
        ts: ms * MS,
        tid: maker,
        waker,
        cpu: 1,
        last_cpu: 0,
    };
    let blocked = Off::Blocked {
        in_iowait: false,
        uninterruptible: false,
    };
    vec![
        thread(1, maker, "maker"),
        switch(1, 0, 0, Off::Preempted, maker),
        Event::Fork {
            ts: 3 * MS,
            parent: maker,
            child: made,
            pid: maker,
            cpu: 1,
        },
        thread(3, made, "made"),
        switch(3, 1, 0, Off::Preempted, made),
        switch(4, 0, maker, blocked, other),
        woken(8, Waker::Thread(made)),
        switch(8, 0, other, Off::Preempted, maker),
        switch(9, 1, made, Off::Exited, 0),
        switch(10, 0, maker, blocked, other),
        woken(12, Waker::Timer),
        switch(12, 0, other, blocked, maker),
        switch(15, 0, maker, Off::Exited, 0),
    ]
}

/// Writes `events` as `amdahl sched record` does.
fn write_recording(place: &Place, name: &str, events: Vec<Event>) {
    let folder = place.join(name).join(EVENTS_FOLDER);
    fs::create_dir_all(&folder).expect("made");
    let meta = Meta {
        topology: Topology::synthetic("2 core").expect("a machine"),
        tick_ns: 4_000_000,
        begin: 0,
        is_everyone: false,
    };
    let mut writer = FolderWriter::new(&folder, meta, u64::MAX);
    for event in events {
        writer.add(event).expect("added");
    }
    writer.finish().expect("written");
}

#[test]
fn a_recording_is_replayed() {
    let place = Place::new();
    let free = serde_json::to_string(&amdahl_des::Costs::free()).expect("JSON");
    fs::write(place.join("free.json"), free).expect("written");
    write_recording(&place, "recorded", recording());
    let run = |name: &str, machine: &str| {
        let args = ["sim", "run", name, "--machine", machine];
        let ran = place.amdahl([&args[..], &["--costs", "free.json", "--json"]].concat());
        ran.ends_with(0)
    };
    let ran = run("recorded", "2 core");
    assert_eq!(ran.err, "");
    let result = &ran.json()["runs"][0];
    assert_eq!(result["end"], "done");
    assert_eq!(result["workload"], "recorded");
    // From the first event to the last exit, as recorded: nothing costs anything, and there is a CPU for each.
    assert_eq!(result["makespan_ns"], 14_000_000);
    let tasks: Vec<_> = result["tasks"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|task| (task["name"].clone(), task["ran_ns"].clone()))
        .collect();
    let ran_ms = |name: &str, ms: u64| (name.into(), (ms * 1_000_000).into());
    assert_eq!(tasks, [ran_ms("maker", 8), ran_ms("made", 6)]);
    // On one CPU the two take turns: 14 ms of work, and what of the sleep of 2 ms nobody uses.
    let one = run("recorded", "1 core").json();
    let makespan = one["runs"][0]["makespan_ns"].as_u64().expect("a number");
    assert!((15_000_000..=16_000_000).contains(&makespan), "{makespan}");

    let mut events = recording();
    let ts = events[events.len() - 1].ts();
    let count = 3;
    events.push(Event::Lost { ts, cpu: 0, count });
    write_recording(&place, "lossy", events);
    let lossy = run("lossy", "2 core");
    assert!(lossy.err.contains("3 events lost"), "{}", lossy.err);
    assert_eq!(lossy.json()["runs"][0]["makespan_ns"], 14_000_000);
    let set = ["sim", "run", "recorded", "--set", "x=1"];
    let refused = place.amdahl(set).ends_with(2);
    let part = "a recording has no parameter `x`";
    assert!(refused.err.contains(part), "{}", refused.err);
}
