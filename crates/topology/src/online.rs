//! Which CPUs are online, and how that changes.

use std::path::{Path, PathBuf};

use crate::{CpuSet, Result, sysfs};

/// The CPUs that are online now.
///
/// # Errors
/// When sysfs cannot be read or names no CPU.
pub fn online() -> Result<CpuSet> {
    online_from(Path::new(sysfs::ROOT))
}

/// The CPUs that are online according to the sysfs tree mounted at `sysfs_root`.
///
/// # Errors
/// When the tree cannot be read or names no CPU.
pub fn online_from(sysfs_root: &Path) -> Result<CpuSet> {
    sysfs::online(sysfs_root)
}

/// CPUs that came and went between two looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Online now, offline before.
    pub came: CpuSet,
    /// Offline now, online before.
    pub left: CpuSet,
}

impl Change {
    /// What makes `after` of `before`; `None` if they are equal.
    pub fn between(before: &CpuSet, after: &CpuSet) -> Option<Change> {
        (before != after).then(|| Change {
            came: after.difference(before),
            left: before.difference(after),
        })
    }
}

/// Notices CPUs that come and go. It polls: a CPU that left and came back
/// between two calls goes unseen.
#[derive(Debug)]
pub struct OnlineWatch {
    sysfs_root: PathBuf,
    seen: CpuSet,
}

impl OnlineWatch {
    /// Watches this machine from now on.
    ///
    /// # Errors
    /// As [`online`].
    pub fn new() -> Result<Self> {
        Self::new_at(Path::new(sysfs::ROOT))
    }

    /// Watches the sysfs tree mounted at `sysfs_root`.
    ///
    /// # Errors
    /// As [`online_from`].
    pub fn new_at(sysfs_root: &Path) -> Result<Self> {
        Ok(OnlineWatch {
            sysfs_root: sysfs_root.to_owned(),
            seen: online_from(sysfs_root)?,
        })
    }

    /// What changed since the last call or since the watch began. Reads one file.
    ///
    /// # Errors
    /// As [`online_from`]; the next call compares with the last good look.
    pub fn changed(&mut self) -> Result<Option<Change>> {
        let now = online_from(&self.sysfs_root)?;
        let change = Change::between(&self.seen, &now);
        self.seen = now;
        Ok(change)
    }

    /// The CPUs that were online at the last look.
    pub fn seen(&self) -> &CpuSet {
        &self.seen
    }
}
