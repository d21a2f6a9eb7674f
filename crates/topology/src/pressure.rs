//! Where the kernel tells how long threads wait for CPUs (pressure stall information).

use std::path::{Path, PathBuf};

use crate::cgroup;
use crate::{CgroupVersion, Result};

/// The `cpu.pressure` of the control group of version 2 that this process is in; `None` where there is none.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn cpu_pressure() -> Result<Option<PathBuf>> {
    cpu_pressure_from(Path::new("/"))
}

/// As [`cpu_pressure`], with `root` for `/` as in [`quota_from`](crate::quota_from).
///
/// # Errors
/// As [`cpu_pressure`].
pub fn cpu_pressure_from(root: &Path) -> Result<Option<PathBuf>> {
    let groups = cgroup::groups(root, "self")?;
    // The innermost comes first.
    let own = groups
        .into_iter()
        .find(|group| group.version == CgroupVersion::V2);
    let file = own.map(|group| group.folder.join("cpu.pressure"));
    Ok(file.filter(|file| file.is_file()))
}
