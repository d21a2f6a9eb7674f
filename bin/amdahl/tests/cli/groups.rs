//! Control groups of runs lie where the limits on the tool hold for them too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use amdahl_topology::{CgroupVersion, CpuSet, memberships};

use crate::tool::{Place, alone, bpf, is_root, skipped};

/// A control group with CPU sets of the test's own, below that of the test.
struct Limited(PathBuf);

impl Limited {
    fn new(cpus: &CpuSet) -> Result<Limited, String> {
        let found = memberships("cpuset").map_err(|error| error.to_string())?;
        for own in &found {
            let group = own.folder.join(format!("test-{}", std::process::id()));
            let failed = |error: std::io::Error| format!("{}: {error}", group.display());
            fs::create_dir(&group).map_err(failed)?;
            let limited = Limited(group.clone());
            if fs::write(group.join("cpuset.cpus"), cpus.to_string()).is_err() {
                continue;
            }
            if own.version == CgroupVersion::V1 {
                let mems = fs::read_to_string(own.folder.join("cpuset.mems")).map_err(failed)?;
                fs::write(group.join("cpuset.mems"), mems).map_err(failed)?;
            }
            return Ok(limited);
        }
        Err("no control group with a CPU set".to_owned())
    }

    /// The tool, started by a shell that has entered the group.
    fn around(&self, place: &Place, tool: &Command) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(self.0.join("cgroup.procs"));
        command.arg(tool.get_program()).args(tool.get_args());
        place.here(command)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Only if nothing is left in it.
        let _ = fs::remove_dir(&self.0);
    }
}

/// They lay at the root of the hierarchy, where what the caller's group is denied is allowed.
#[test]
fn a_run_stays_in_the_control_group_of_who_called() {
    let _alone = alone();
    if !is_root() {
        return skipped("control groups are made by root");
    }
    let cpus: CpuSet = amdahl_topology::allowed()
        .expect("a mask")
        .first()
        .into_iter()
        .collect();
    let limited = match Limited::new(&cpus) {
        Ok(limited) => limited,
        Err(why) => return skipped(why),
    };
    for probe in ["auto", "proc"] {
        if let (Err(reason), "auto") = (bpf(), probe) {
            skipped(reason);
            continue;
        }
        let place = Place::new();
        let tool = place.tool([
            "scale",
            "--probe",
            probe,
            "--runs",
            "1",
            "--json",
            "--no-output",
            "--",
            "sh",
            "-c",
            "cat /proc/self/cgroup >> seen",
        ]);
        let result = place
            .run(limited.around(&place, &tool))
            .ends_with(0)
            .result();
        assert!(
            result.settings.confinement.contains("cpuset"),
            "{}",
            result.settings.confinement
        );
        assert_eq!(result.machine.cpus_allowed, 1);
        let name = limited
            .0
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        let inside = format!("/{name}/amdahl-");
        let seen = place.read("seen");
        let runs = seen.lines().filter(|line| line.contains(&inside)).count();
        assert_eq!(runs, 3, "warm-up, with and without the probe: {seen}");
        assert_eq!(groups_in(&limited.0), [""; 0], "nothing is left");
    }
}

fn groups_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a group").flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
