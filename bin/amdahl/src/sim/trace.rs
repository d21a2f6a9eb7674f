//! A simulated run for Perfetto.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use amdahl_des::Outcome;
use amdahl_des::program::Workload;
use amdahl_placement::Machine;
use amdahl_report::schema::Slice;
use amdahl_report::trace::{self, Names};
use tempfile::NamedTempFile;

use crate::failure::Failure;

/// Stretches that a trace is written with.
pub const SLICES_MAX: usize = 1_000_000;

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::result(format!(
        "cannot write the trace {}: {error}",
        path.display()
    ))
}

/// A file beside the place of the trace, which it will become when it is whole.
pub fn create(path: &Path) -> Result<NamedTempFile, Failure> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    tempfile::Builder::new()
        // As any other file: the umask decides.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(|error| failed(path, &error))
}

/// Writes the stretches of a run. A kind of tasks is a process of the trace, a task a thread.
pub fn write(
    path: &Path,
    file: NamedTempFile,
    outcome: &Outcome,
    workload: &Workload,
    machine: &Machine,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| failed(path, &error);
    let mut names = Names::default();
    for (template, pid) in workload.templates.iter().zip(1..) {
        names.processes.insert(pid, template.name.clone());
    }
    let slices: Vec<Slice> = outcome
        .slices
        .iter()
        .map(|slice| {
            let (pid, tid) = (slice.template + 1, slice.task + 1);
            let name = &workload.templates[slice.template as usize].name;
            let label = format!("{name} {}", slice.task);
            names
                .threads
                .entry((pid, tid))
                .or_insert_with(|| label.clone());
            Slice {
                cpu: Some(machine.kernel_cpu(slice.cpu)),
                pid,
                tid,
                start_ns: slice.start,
                len_ns: slice.end - slice.start,
                label,
            }
        })
        .collect();
    let mut file = trace::write(slices, &names, file).map_err(failed)?;
    file.flush().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}
