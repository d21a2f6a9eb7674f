//! `amdahl sim`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::tool::Place;

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
    let trace = place.join("trace.json.gz");
    place
        .amdahl([
            "sim",
            "run",
            "barrier",
            "--machine",
            MACHINE,
            "--set",
            "loops=3",
            "--trace",
            trace.to_str().expect("UTF-8"),
        ])
        .ends_with(0);
    assert_eq!(fs::read(trace).expect("a trace")[..2], [0x1f, 0x8b]);
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

const SWEEP: &str = "workload = 'barrier'\nmachines = ['4 core', '2 core x 2 thread']\npolicies = ['steal', 'linux']\nseeds = 2\n[set]\nloops = [2, 3]\nthreads = 4\n";

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

#[test]
fn a_job_array_of_slurm_does_the_same() {
    let place = Place::new();
    fs::write(place.join("sweep.toml"), SWEEP).expect("written");
    // Runs each task of the array, as Slurm would on its machines.
    let sbatch = "#!/bin/sh\n[ \"$1\" = --partition=long ] && [ \"$2\" = --wait ] || exit 9\nlast=$(sed -n 's/^#SBATCH --array=0-//p' \"$3\")\nfor i in $(seq 0 \"$last\"); do SLURM_ARRAY_TASK_ID=$i sh \"$3\" || exit 1; done\n";
    fs::create_dir(place.join("path")).expect("created");
    fs::write(place.join("path/sbatch"), sbatch).expect("written");
    fs::set_permissions(place.join("path/sbatch"), fs::Permissions::from_mode(0o755))
        .expect("executable");
    let mut command = place.tool([
        "sim",
        "sweep",
        "sweep.toml",
        "--engine",
        "slurm",
        "--shards",
        "3",
        "--wait",
        "--sbatch=--partition=long",
        "--output",
        "there",
    ]);
    let path = format!(
        "{}:{}",
        place.join("path").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    command.env("PATH", path);
    let slurm = place.run(command).ends_with(0);
    let local = place
        .amdahl(["sim", "sweep", "sweep.toml", "--output", "here"])
        .ends_with(0);
    assert_eq!(slurm.out, local.out);
    let names = |folder: &str| {
        let mut names: Vec<_> = fs::read_dir(place.join(folder))
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name())
            .filter(|name| name.to_string_lossy().ends_with(".json"))
            .collect();
        names.sort();
        names
    };
    assert_eq!((names("there").len(), names("there")), (16, names("here")));
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
    assert!(
        costs["source"]
            .as_str()
            .expect("a text")
            .starts_with("measured on")
    );
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
