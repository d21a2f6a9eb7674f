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

/// The control groups that can limit the CPU time of `process` (a process id or
/// `self`), in each hierarchy the innermost first. `root` is where the file
/// system begins that holds `proc` and all mount points.
///
/// Both hierarchies of a hybrid system are returned: the CPU controller is in
/// one of them only, and the other has no files to read.
pub(crate) fn groups(root: &Path, process: &str) -> Result<Vec<Group>> {
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
    let mounts: Vec<Mount> = lines(&mounts).filter_map(Mount::parse).collect();

    let mut groups = Vec::new();
    for (version, path) in lines(&membership).filter_map(parse_membership) {
        let Some((mount_point, folder)) = locate(root, &mounts, version, &path) else {
            continue;
        };
        let path_to_root = folder
            .ancestors()
            .take_while(|folder| folder.starts_with(&mount_point));
        groups.extend(path_to_root.map(|folder| Group {
            version,
            folder: folder.to_owned(),
        }));
    }
    Ok(groups)
}

/// The group of `folder` and those around it, the innermost first; empty if `folder` is none.
pub(crate) fn groups_around(root: &Path, folder: &Path) -> Result<Vec<Group>> {
    let mounts = root.join("proc/self/mountinfo");
    let mounts = fs::read(&mounts).map_err(|error| Error::read(&mounts, error))?;
    let mounts = lines(&mounts).filter_map(Mount::parse).filter_map(|mount| {
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

/// A line of `/proc/PID/cgroup`, if it names a hierarchy that can hold the CPU controller.
fn parse_membership(line: &[u8]) -> Option<(CgroupVersion, PathBuf)> {
    let mut fields = line.splitn(3, |&b| b == b':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let version = match controllers {
        b"" if id == b"0" => CgroupVersion::V2,
        _ if has_cpu(controllers) => CgroupVersion::V1,
        _ => return None,
    };
    Some((version, OsString::from_vec(path.to_vec()).into()))
}

/// A mounted hierarchy that can hold the CPU controller.
struct Mount {
    version: CgroupVersion,
    /// The group that is mounted.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// From a line of `/proc/PID/mountinfo`; `None` for all other mounts.
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut fields = line.split(|&b| b == b' ');
        let root = fields.nth(3)?;
        let point = fields.next()?;
        // Any number of optional fields ends with a lone dash.
        fields.find(|&field| field == b"-")?;
        let (kind, _source, options) = (fields.next()?, fields.next()?, fields.next()?);
        let version = match kind {
            b"cgroup2" => CgroupVersion::V2,
            b"cgroup" if has_cpu(options) => CgroupVersion::V1,
            _ => return None,
        };
        Some(Mount {
            version,
            root: unescape(root).into(),
            point: unescape(point).into(),
        })
    }
}

fn has_cpu(list: &[u8]) -> bool {
    list.split(|&b| b == b',').any(|item| item == b"cpu")
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

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for line in lines(&bytes) {
                let _ = parse_membership(line);
                let _ = Mount::parse(line);
            }
            prop_assert!(unescape(&bytes).len() <= bytes.len());
        }
    }
}
