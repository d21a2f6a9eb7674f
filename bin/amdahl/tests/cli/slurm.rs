//! Sweeps as job arrays of Slurm, which `slurm/sbatch` and `slurm/scontrol` stand in for. `tools/slurm/run.sh` does the same with Slurm itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::simulating::SWEEP;
use super::tool::{Place, Ran};

/// A folder with a sweep, and a Slurm of its own.
struct Cluster {
    place: Place,
}

impl Cluster {
    fn new() -> Cluster {
        let place = Place::new();
        fs::write(place.join("sweep.toml"), SWEEP).expect("written");
        fs::create_dir_all(place.join("path")).expect("made");
        fs::create_dir_all(place.join("slurm/queue")).expect("made");
        for (name, text) in [
            ("sbatch", include_str!("slurm/sbatch")),
            ("run-tasks", include_str!("slurm/run-tasks")),
            ("scontrol", include_str!("slurm/scontrol")),
        ] {
            let path = place.join("path").join(name);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        }
        Cluster { place }
    }

    fn with(&self, mut command: Command) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let own = self.place.join("path");
        command.env("PATH", format!("{}:{path}", own.display()));
        command.env("SLURM_HERE", self.place.join("slurm"));
        command
    }

    /// `amdahl sim sweep --engine slurm` into `there`.
    fn sweep(&self, more: &[&str]) -> Ran {
        let args = ["sim", "sweep", "sweep.toml", "--engine", "slurm"];
        let args = [&args[..], &["--output", "there"], more].concat();
        self.place.run(self.with(self.place.tool(args)))
    }

    /// Tasks of a job that nobody waits for.
    fn run_tasks(&self, job: &str, tasks: &[&str]) -> Ran {
        let mut command = Command::new(self.place.join("path/run-tasks"));
        command.arg(job).args(tasks);
        self.place.run(self.with(self.place.here(command)))
    }

    fn set(&self, name: &str, text: &str) {
        fs::write(self.place.join("slurm").join(name), text).expect("written");
    }

    /// A line for each array: number, last task, CPUs of each.
    fn taken(&self) -> String {
        self.place.read("slurm/taken")
    }

    fn results(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.place.join(folder)).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<String> = names
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".json"))
            .collect();
        names.sort();
        names
    }

    fn local(&self) -> Ran {
        let args = ["sim", "sweep", "sweep.toml", "--output", "here"];
        self.place.amdahl(args).ends_with(0)
    }
}

#[test]
fn a_job_array_of_slurm_does_the_same() {
    let cluster = Cluster::new();
    let slurm = |more: &[&str]| {
        let array = ["--shards", "3", "--wait", "--sbatch=--partition=long"];
        cluster.sweep(&[&array, more].concat()).ends_with(0)
    };
    let first = slurm(&[]);
    assert!(
        first.err.contains("job 1 of Slurm, 3 tasks, 16 runs to do"),
        "{}",
        first.err
    );
    assert_eq!(first.out, cluster.local().out);
    assert_eq!(cluster.results("there"), cluster.results("here"));
    assert_eq!(cluster.results("there").len(), 16);
    // What is lost comes again, as one task with the CPUs that it is given; then there is nothing to submit.
    let lost = cluster
        .place
        .join("there")
        .join(&cluster.results("there")[5]);
    let whole = fs::read(&lost).expect("a result");
    fs::remove_file(&lost).expect("removed");
    let again = slurm(&["--cpus-per-task", "2"]);
    assert_eq!(again.out, first.out);
    assert_eq!(fs::read(&lost).expect("a result"), whole);
    assert_eq!(slurm(&[]).out, first.out);
    assert_eq!(cluster.taken(), "1 2 1\n2 0 2\n");
    // What it does not know is said by it, and nothing else happens.
    fs::remove_file(&lost).expect("removed");
    let unknown = cluster
        .sweep(&["--wait", "--sbatch=--of-nobody"])
        .ends_with(1);
    for part in ["unrecognized option '--of-nobody'", "sbatch failed"] {
        assert!(unknown.err.contains(part), "{}", unknown.err);
    }
}

/// The results of a failed array were not shown, and what was left of one task went to one task again: points were dealt out by their
/// numbers among all, not among those that were missing.
#[test]
fn what_lost_tasks_leave_is_dealt_out_again() {
    let cluster = Cluster::new();
    cluster.set("lost", "1\n");
    let slurm = || cluster.sweep(&["--shards", "4", "--wait"]);
    let first = slurm().ends_with(4);
    assert_eq!(cluster.results("there").len(), 12);
    for part in [
        "of the 4 tasks of job 1 some failed (exit status: 137)",
        "4 runs are left; the same command continues",
    ] {
        assert!(first.err.contains(part), "{part}: {}", first.err);
    }
    assert!(first.out.contains("makespan"), "{}", first.out);
    cluster.set("lost", "");
    let second = slurm().ends_with(0);
    assert_eq!(cluster.taken(), "1 3 1\n2 3 1\n");
    assert_eq!(second.out, cluster.local().out);
    // Each had one.
    let list = |job: &str| {
        let script = cluster.place.read(&format!("slurm/queue/{job}/script"));
        let named = script.split("--points '").nth(1).expect("a list");
        let path = named.split('\'').next().expect("its name").to_owned();
        fs::read_to_string(path).expect("the list")
    };
    assert_eq!(list("1"), "0-15\n");
    assert_eq!(list("2"), "1\n5\n9\n13\n");
}

/// An array that is cancelled, or not waited for, continues while what is left of it may still run.
#[test]
fn a_cancelled_array_continues() {
    let cluster = Cluster::new();
    let submitted = cluster.sweep(&["--shards", "4"]).ends_with(0);
    assert_eq!(submitted.out, "");
    assert!(
        submitted.err.contains("job 1 of Slurm, 4 tasks"),
        "{}",
        submitted.err
    );
    cluster.run_tasks("1", &["0", "2"]).ends_with(0);
    assert_eq!(cluster.results("there").len(), 8);
    let second = cluster.sweep(&["--shards", "4", "--wait"]).ends_with(0);
    assert!(
        second.err.contains("4 tasks, 8 runs to do"),
        "{}",
        second.err
    );
    assert_eq!(second.out, cluster.local().out);
    // A task of the first that had been waiting finds its list, and nothing to do.
    cluster.run_tasks("1", &["1", "3"]).ends_with(0);
    assert_eq!(cluster.results("there"), cluster.results("here"));
    // A task that is requeued begins again.
    fs::remove_dir_all(cluster.place.join("there")).expect("removed");
    cluster.sweep(&["--shards", "2"]).ends_with(0);
    cluster.set("lost", "1\n");
    cluster.run_tasks("3", &["0", "1"]);
    cluster.set("lost", "");
    cluster.run_tasks("3", &["1"]).ends_with(0);
    assert_eq!(cluster.results("there"), cluster.results("here"));
}

/// `sbatch` refused the array.
#[test]
fn an_array_is_no_larger_than_slurm_takes() {
    let cluster = Cluster::new();
    cluster.set("limit", "3\n");
    let ran = cluster.sweep(&["--shards", "10", "--wait"]).ends_with(0);
    let told = "Slurm takes arrays of at most 3 tasks here (MaxArraySize), so that 10 are 3";
    assert!(ran.err.contains(told), "{}", ran.err);
    assert_eq!(ran.out, cluster.local().out);
    // Where nobody tells, sbatch does.
    fs::remove_dir_all(cluster.place.join("there")).expect("removed");
    cluster.set("is-away", "");
    let refused = cluster.sweep(&["--shards", "10", "--wait"]).ends_with(1);
    assert!(
        refused.err.contains("Invalid job array specification"),
        "{}",
        refused.err
    );
    cluster.sweep(&["--shards", "3", "--wait"]).ends_with(0);
    // No arrays at all: one job.
    fs::remove_file(cluster.place.join("slurm/is-away")).expect("removed");
    fs::remove_dir_all(cluster.place.join("there")).expect("removed");
    cluster.set("limit", "0\n");
    let one = cluster.sweep(&["--wait"]).ends_with(0);
    assert_eq!(one.out, ran.out);
    assert_eq!(cluster.taken(), "1 2 1\n2 2 1\n3  1\n");
}

/// Slurm's quotes are others than a shell's, and a % has a meaning in the names of outputs.
#[test]
fn folders_have_all_kinds_of_names() {
    let cluster = Cluster::new();
    let folder = "of \"me\", it's 100 %a";
    let output = ["--output", folder, "--shards", "2", "--wait"];
    let args = ["sim", "sweep", "sweep.toml", "--engine", "slurm"];
    let run = |args: &[&str]| {
        let tool = cluster.place.tool(args);
        cluster.place.run(cluster.with(tool))
    };
    run(&[&args[..], &output].concat()).ends_with(0);
    assert_eq!(cluster.results(folder).len(), 16);
    for task in 0..2 {
        let said = cluster
            .place
            .join(folder)
            .join(format!("slurm-1_{task}.out"));
        assert_eq!(fs::read_to_string(said).expect("its output"), "");
    }
    let refused = run(&[&args[..], &["--output", "back\\slash"]].concat()).ends_with(2);
    assert!(
        refused
            .err
            .contains("cannot write into a folder of such a name"),
        "{}",
        refused.err
    );
}
