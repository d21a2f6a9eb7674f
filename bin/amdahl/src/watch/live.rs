//! Following a recording until somebody says that it is enough; then it may begin again.

use amdahl_probe::bpf::{Recorder, RecorderError};
use amdahl_topology::CpuSet;

use super::{Follow, Present, enter, join, take_all};
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
    let threads = enter(selection, selection.pid, recorder, follow)?;
    let present = Present::since_now(threads);
    std::thread::scope(|scope| {
        let following = take_all(scope, parts, follow, &present)?;
        while goes_on(recorder) {
            join(selection, recorder);
        }
        present.is_over();
        let counts = recorder.end();
        following.join().expect("the analysis does not panic");
        counts.map(drop).map_err(failed)
    })
}
