//! Finds the control groups that a process is in.
//!
//! See cgroups(7) and proc_pid_mountinfo(5).

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use crate::{CgroupVersion, Error, Result};

/// A control group on the way from a process to the root of its hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub version: CgroupVersion,
    pub folder: PathBuf,
}

/// Where a process is in one hierarchy of control groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Which interface the hierarchy has.
    pub version: CgroupVersion,
    /// Where it is mounted: the outermost group that is visible from here.
    pub mount: PathBuf,
    /// The process's own group. After a control group namespace was entered it may be one around that.
    pub folder: PathBuf,
}

impl Membership {
    /// The groups from the process's own one to the outermost that is visible.
    pub fn way_up(&self) -> impl Iterator<Item = &Path> {
        self.folder
            .ancestors()
            .take_while(|folder| folder.starts_with(&self.mount))
    }
}

/// Where this process is in the hierarchies that can hold `controller` (such as `cpuset`): that of version 1, if it is
/// mounted there, and that of version 2. On a hybrid system these are two, only one of which has it.
///
/// # Errors
/// When `/proc` cannot be read. No control groups are no error.
pub fn memberships(controller: &str) -> Result<Vec<Membership>> {
    memberships_from(Path::new("/"), "self", controller)
}

/// As [`memberships`], of `process` (a process id or `self`), with `root` for `/` as in [`quota_from`](crate::quota_from).
///
/// # Errors
/// As [`memberships`], and when there is no such process.
pub fn memberships_from(root: &Path, process: &str, controller: &str) -> Result<Vec<Membership>> {
    let membership = root.join("proc").join(process).join("cgroup");
    let membership = match fs::read(&membership) {
        Ok(bytes) => bytes,
        // A kernel without control groups has no such file.
        Err(error) if process == "self" && error.kind() == ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(Error::read(&membership, error)),
    };
    let mounts = root.join("proc/self/mountinfo");
    let mounts = fs::read(&mounts).map_err(|error| Error::read(&mounts, error))?;
    let mounts: Vec<Mount> = lines(&mounts)
        .filter_map(|line| Mount::parse(line, controller))
        .collect();

    let own = lines(&membership).filter_map(|line| parse_membership(line, controller));
    let found = own.filter_map(|(version, path)| {
        let (mount, folder) = locate(root, &mounts, version, &path)?;
        Some(Membership {
            version,
            mount,
            folder,
        })
    });
    Ok(found.collect())
}

/// The control groups that can limit the CPU time of `process` (a process id or
/// `self`), in each hierarchy the innermost first. `root` is where the file
/// system begins that holds `proc` and all mount points.
///
/// Both hierarchies of a hybrid system are returned: the CPU controller is in
/// one of them only, and the other has no files to read.
pub(crate) fn groups(root: &Path, process: &str) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for membership in memberships_from(root, process, "cpu")? {
        groups.extend(membership.way_up().map(|folder| Group {
            version: membership.version,
            folder: folder.to_owned(),
        }));
    }
    Ok(groups)
}

/// The group of `folder` and those around it, the innermost first; empty if `folder` is none.
pub(crate) fn groups_around(root: &Path, folder: &Path) -> Result<Vec<Group>> {
    let mounts = root.join("proc/self/mountinfo");
    let mounts = fs::read(&mounts).map_err(|error| Error::read(&mounts, error))?;
    let mounts = lines(&mounts).filter_map(|line| Mount::parse(line, "cpu"));
    let mounts = mounts.filter_map(|mount| {
        let point = root.join(mount.point.strip_prefix("/").ok()?);
        folder.starts_with(&point).then_some((point, mount.version))
    });
    // Of mounts one in the other, that of the files is the innermost.
    let Some((point, version)) = mounts.max_by_key(|(point, _)| point.components().count()) else {
        return Ok(Vec::new());
    };
    let path_to_root = folder
        .ancestors()
        .take_while(|folder| folder.starts_with(&point));
    let groups = path_to_root.map(|folder| Group {
        version,
        folder: folder.to_owned(),
    });
    Ok(groups.collect())
}

/// The mount point of the hierarchy and the folder of the group `path` below it.
fn locate(
    root: &Path,
    mounts: &[Mount],
    version: CgroupVersion,
    path: &Path,
) -> Option<(PathBuf, PathBuf)> {
    // A process outside of our cgroup namespace: nothing we see is above it.
    if path.components().any(|c| c == Component::ParentDir) {
        return None;
    }
    let mut candidates: Vec<_> = mounts.iter().filter(|m| m.version == version).collect();
    // A mount that shows the group beats one that does not; the nearer to the root
    // of the hierarchy, the more of the groups around ours it shows.
    candidates.sort_by_key(|mount| {
        let shows = path.starts_with(&mount.root);
        (!shows, mount.root.components().count())
    });
    candidates.into_iter().find_map(|mount| {
        let mount_point = root.join(mount.point.strip_prefix("/").ok()?);
        let folder = match path.strip_prefix(&mount.root) {
            // `join("")` would add a slash at the end.
            Ok(below) if below.as_os_str().is_empty() => mount_point.clone(),
            Ok(below) => mount_point.join(below),
            // Mounted from a group that is not above ours by name, as after a
            // cgroup namespace was entered: what is mounted is a group around us.
            Err(_) => mount_point.clone(),
        };
        mount_point.is_dir().then_some((mount_point, folder))
    })
}

/// A line of `/proc/PID/cgroup`, if it names a hierarchy that can hold `controller`.
fn parse_membership(line: &[u8], controller: &str) -> Option<(CgroupVersion, PathBuf)> {
    let mut fields = line.splitn(3, |&b| b == b':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let version = match controllers {
        b"" if id == b"0" => CgroupVersion::V2,
        _ if has(controllers, controller) => CgroupVersion::V1,
        _ => return None,
    };
    Some((version, OsString::from_vec(path.to_vec()).into()))
}

/// A mounted hierarchy that can hold a controller.
struct Mount {
    version: CgroupVersion,
    /// The group that is mounted.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// From a line of `/proc/PID/mountinfo`; `None` for all other mounts.
    fn parse(line: &[u8], controller: &str) -> Option<Mount> {
        let mut fields = line.split(|&b| b == b' ');
        let root = fields.nth(3)?;
        let point = fields.next()?;
        // Any number of optional fields ends with a lone dash.
        fields.find(|&field| field == b"-")?;
        let (kind, _source, options) = (fields.next()?, fields.next()?, fields.next()?);
        let version = match kind {
            b"cgroup2" => CgroupVersion::V2,
            b"cgroup" if has(options, controller) => CgroupVersion::V1,
            _ => return None,
        };
        Some(Mount {
            version,
            root: unescape(root).into(),
            point: unescape(point).into(),
        })
    }
}

fn has(list: &[u8], controller: &str) -> bool {
    list.split(|&b| b == b',')
        .any(|item| item == controller.as_bytes())
}

/// Undoes the kernel's `\040` for bytes that would end a field.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = match rest {
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] => ((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'), after),
            _ => (first, after),
        };
        bytes.push(byte);
        rest = after;
    }
    OsString::from_vec(bytes)
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|&b| b == b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unescapes_octal() {
        assert_eq!(unescape(br"/a\040b\134c\011"), "/a b\\c\t");
        assert_eq!(unescape(br"\04"), r"\04");
        assert_eq!(unescape(br"\999\"), r"\999\");
        assert_eq!(unescape(br"\377").into_vec(), [0xff]);
    }

    #[test]
    fn each_controller_has_its_own_group() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/self/cgroup",
            "4:cpuset:/set\n1:cpu,cpuacct:/a/b\n0::/u\n",
        );
        let mounts = "30 1 0:26 / /cg/cpu rw - cgroup none rw,cpu,cpuacct\n\
                      31 1 0:27 / /cg/cpuset rw - cgroup none rw,cpuset\n\
                      32 1 0:28 / /cg/unified rw - cgroup2 none rw\n";
        write("proc/self/mountinfo", mounts);
        for mount in ["cpu/a/b", "cpuset/set", "unified/u"] {
            fs::create_dir_all(root.path().join("cg").join(mount)).unwrap();
        }
        let found = |controller| {
            let found = memberships_from(root.path(), "self", controller).unwrap();
            let folders = found.iter().map(|one| {
                let folder = one.folder.strip_prefix(root.path()).unwrap();
                (one.version, folder.to_str().unwrap().to_owned())
            });
            folders.collect::<Vec<_>>()
        };
        let unified = (CgroupVersion::V2, "cg/unified/u".to_owned());
        let set = (CgroupVersion::V1, "cg/cpuset/set".to_owned());
        assert_eq!(found("cpuset"), [set, unified.clone()]);
        let cpu = (CgroupVersion::V1, "cg/cpu/a/b".to_owned());
        assert_eq!(found("cpu"), [cpu, unified]);
        let up = memberships_from(root.path(), "self", "cpu").unwrap();
        assert_eq!(up[0].way_up().count(), 3);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for line in lines(&bytes) {
                let _ = parse_membership(line, "cpu");
                let _ = Mount::parse(line, "cpu");
            }
            prop_assert!(unescape(&bytes).len() <= bytes.len());
        }
    }
}
