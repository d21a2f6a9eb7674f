//! A sweep as a job array of Slurm: workers are this same program with `--shard`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cli::SimSweep;
use crate::failure::Failure;

/// CPUs that this process was given, if it is of a job that was given some. Slurm need not confine it to them.
pub fn cpus_given() -> Option<usize> {
    std::env::var("SLURM_CPUS_PER_TASK").ok()?.parse().ok()
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Writes the script of the array into the results' folder and hands it to `sbatch`.
pub fn submit(args: &SimSweep, folder: &Path, missing: usize) -> Result<(), Failure> {
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|error| {
            Failure::result(format!("cannot tell where {} is: {error}", path.display()))
        })
    };
    let folder = absolute(folder)?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::result(format!("cannot tell where this program is: {error}")))?;
    let shards = u64::from(args.shards).min(missing as u64).max(1);
    let word = |path: &Path| quoted(&path.to_string_lossy());
    let script = format!(
        "#!/bin/sh\n#SBATCH --job-name=amdahl-sim\n#SBATCH --array=0-{}\n#SBATCH --cpus-per-task={}\n#SBATCH --output=\"{}/slurm-%A_%a.out\"\nexec {} sim sweep {} --output {} --shard \"$SLURM_ARRAY_TASK_ID/{shards}\" --quiet\n",
        shards - 1,
        args.cpus_per_task,
        // Slurm replaces what stands behind a %.
        folder.display().to_string().replace('%', "%%"),
        word(&program),
        word(&absolute(&args.file)?),
        word(&folder),
    );
    let path = folder.join("array.sh");
    fs::write(&path, script)
        .map_err(|error| Failure::result(format!("cannot write {}: {error}", path.display())))?;
    let mut command = Command::new("sbatch");
    command.args(&args.sbatch);
    if args.wait {
        command.arg("--wait");
    }
    let status = command.arg(&path).stdout(std::io::stderr()).status().map_err(|error| {
        Failure::result(format!("cannot run sbatch: {error}; the script is {}: submit it where Slurm is, or use --engine local", path.display()))
    })?;
    if !status.success() {
        return Err(Failure::result(format!(
            "sbatch failed ({status}); the script is {}",
            path.display()
        )));
    }
    Ok(())
}
