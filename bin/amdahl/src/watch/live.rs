//! Following a recording until somebody says that it is enough; then it may begin again.

use amdahl_probe::bpf::{Recorder, RecorderError, keep_up};
use amdahl_topology::CpuSet;

use super::{Follow, enter, join};
use crate::cli::Selection;
use crate::failure::Failure;

/// Records whom `selection` says, which starts no command, as long as `goes_on` returns true. It is
/// called when everybody is watched, and waits itself.
pub fn follow(
    selection: &Selection,
    cpus: &CpuSet,
    recorder: &mut Recorder,
    follow: &mut impl Follow,
    mut goes_on: impl FnMut(&Recorder) -> bool,
) -> Result<(), Failure> {
    let failed = |error: RecorderError| Failure::machine(error.to_string());
    let watched: Vec<u32> = cpus.iter().collect();
    let parts = recorder.begin(&watched).map_err(failed)?;
    enter(selection, selection.pid, recorder, follow)?;
    std::thread::scope(|scope| {
        let following = std::thread::Builder::new()
            .name("amdahl-analyse".into())
            .spawn_scoped(scope, move || {
                keep_up();
                for part in parts {
                    follow.take(part);
                }
            })
            .map_err(|error| Failure::machine(format!("cannot start a thread: {error}")))?;
        while goes_on(recorder) {
            // Whoever joins a group later was not forked by one of its members.
            if selection.cgroup.is_some() {
                join(selection, recorder);
            }
        }
        let counts = recorder.end();
        following.join().expect("the analysis does not panic");
        counts.map(drop).map_err(failed)
    })
}
