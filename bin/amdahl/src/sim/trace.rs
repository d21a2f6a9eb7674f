//! A simulated run for Perfetto.

use amdahl_des::Outcome;
use amdahl_des::program::Workload;
use amdahl_placement::Machine;
use amdahl_report::schema::Slice;
use amdahl_report::trace::{self, Names};

use crate::failure::Failure;
use crate::whole_file::WholeFile;

/// Stretches that a trace is written with.
pub const SLICES_MAX: usize = 1_000_000;

/// Writes the stretches of a run. A kind of tasks is a process of the trace, a task a thread; the process of the CPUs says
/// by its name which run that was.
pub fn write(
    mut file: WholeFile,
    outcome: &Outcome,
    workload: &Workload,
    machine: &Machine,
) -> Result<(), Failure> {
    let run = &outcome.result;
    let mut names = Names {
        cpus: format!("CPUs, {}, seed {}", run.policy, run.seed),
        ..Names::default()
    };
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
    trace::write(slices, &names, &mut file.out)
        .map(|_| ())
        .map_err(|error| file.failed(&error))?;
    file.finish()
}
