//! A sweep as a job array of Slurm: workers are this same program with `--shard`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use amdahl_des::content_hash;

use super::points;
use crate::cli::SimSweep;
use crate::failure::Failure;

/// CPUs that this process was given, if it is of a job that was given some. Slurm need not confine it to them.
pub fn cpus_given() -> Option<usize> {
    std::env::var("SLURM_CPUS_PER_TASK").ok()?.parse().ok()
}

/// An array that Slurm has taken.
pub struct Submitted {
    /// Its number.
    pub job: String,
    /// How many tasks it has.
    pub tasks: u64,
    /// How the worst of them ended, where it was waited for.
    pub ended: ExitStatus,
}

/// Writes what is missing and the script of the array into the results' folder, and hands that to `sbatch`. `told` hears what happens.
pub fn submit(
    args: &SimSweep,
    folder: &Path,
    missing: &[u64],
    told: impl Fn(&str),
) -> Result<Submitted, Failure> {
    let folder = absolute(folder)?;
    let most = array_tasks_max();
    let wanted = u64::from(args.shards).min(missing.len() as u64).max(1);
    let tasks = wanted.min(most.unwrap_or(wanted)).max(1);
    if tasks < wanted {
        told(&format!(
            "Slurm takes arrays of at most {tasks} tasks here (MaxArraySize), so that {wanted} are {tasks}"
        ));
    }
    // Named by what is in it: tasks of an earlier array may still have to read theirs.
    let list = points::text(missing);
    let list_path = folder.join(format!("{}.points", content_hash(&[&list])));
    write(&list_path, &list)?;
    // Of 0 no array is taken at all.
    let is_array = most != Some(0);
    let script = script(args, &folder, &list_path, tasks, is_array)?;
    let path = folder.join("array.sh");
    write(&path, &script)?;
    let mut command = Command::new("sbatch");
    command.arg("--parsable").args(&args.sbatch);
    if args.wait {
        command.arg("--wait");
    }
    let cannot = |error: std::io::Error| {
        Failure::result(format!(
            "cannot run sbatch: {error}; the script is {}: submit it where Slurm is, or use --engine local",
            path.display()
        ))
    };
    let mut child = command
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(cannot)?;
    let said = child.stdout.take().expect("it is piped");
    // NUMBER, or NUMBER;CLUSTER. What plugins of the site print is no number.
    let mut job = None;
    for line in BufReader::new(said).lines() {
        let line = line.map_err(cannot)?;
        let number = line.split(';').next().unwrap_or("").trim();
        if job.is_none() && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
            told(&format!(
                "job {number} of Slurm, {tasks} tasks, {} runs to do",
                missing.len()
            ));
            job = Some(number.to_owned());
        }
    }
    let ended = child.wait().map_err(cannot)?;
    match job {
        Some(job) if ended.success() || args.wait => Ok(Submitted { job, tasks, ended }),
        _ => Err(Failure::result(format!(
            "sbatch failed ({ended}); the script is {}",
            path.display()
        ))),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| {
        Failure::result(format!("cannot tell where {} is: {error}", path.display()))
    })
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text)
        .map_err(|error| Failure::result(format!("cannot write {}: {error}", path.display())))
}

/// How many tasks an array may have, if Slurm says so: numbers are below `MaxArraySize`, and begin with 0.
fn array_tasks_max() -> Option<u64> {
    let output = Command::new("scontrol")
        .args(["show", "config"])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    array_size(&String::from_utf8_lossy(&output.stdout))
}

fn array_size(config: &str) -> Option<u64> {
    let mut pairs = config.lines().filter_map(|line| line.split_once('='));
    let (_, value) = pairs.find(|(name, _)| name.trim() == "MaxArraySize")?;
    value.trim().parse().ok()
}

/// The script, for tasks that find what they need at the same paths as here.
fn script(
    args: &SimSweep,
    folder: &Path,
    list: &Path,
    tasks: u64,
    is_array: bool,
) -> Result<String, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::result(format!("cannot tell where this program is: {error}")))?;
    let shown = folder.to_string_lossy();
    if shown.contains(['\\', '\n']) {
        // Behind a backslash it replaces nothing, so that all tasks would write to one file.
        return Err(Failure::usage(format!(
            "Slurm cannot write into a folder of such a name: {shown}; name another one with --output"
        )));
    }
    // Slurm replaces what stands behind a %.
    let shown = shown.replace('%', "%%").replace('"', "\\\"");
    let (array, output, task) = match is_array {
        true => (
            format!("#SBATCH --array=0-{}\n", tasks - 1),
            "slurm-%A_%a.out",
            "${SLURM_ARRAY_TASK_ID:?sbatch runs this}",
        ),
        false => (String::new(), "slurm-%j.out", "0"),
    };
    let word = |path: &Path| quoted(&path.to_string_lossy());
    Ok(format!(
        "#!/bin/sh\n#SBATCH --job-name=amdahl-sim\n{array}#SBATCH --cpus-per-task={}\n#SBATCH --requeue\n#SBATCH --output=\"{shown}/{output}\"\n\
         exec {} sim sweep {} --output {} --points {} --shard \"{task}/{tasks}\" --quiet\n",
        args.cpus_per_task,
        word(&program),
        word(&absolute(&args.file)?),
        word(folder),
        word(list),
    ))
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::array_size;

    #[test]
    fn the_size_of_arrays_is_read() {
        let config = "Configuration data as of 2026-11-28T00:00:00\nMaxArrayTasks = 7\n\
                      MaxArraySize            = 1001\nMaxJobCount             = 10000\n";
        assert_eq!(array_size(config), Some(1001));
        assert_eq!(array_size("MaxArraySize = many\n"), None);
        assert_eq!(
            array_size("slurm_load_ctl_conf error: Unable to contact slurm controller"),
            None
        );
    }
}
