//! Where a control group for runs can be made so that the limits on whoever calls us go on to hold.
//!
//! Below the caller's own group they always do. In version 1 nothing stands in the way. In version 2 a group with
//! processes of its own, such as the caller's, hands no controller on, but for those that also work with
//! threads: `cpuset` is one, to groups that are *threaded*, which leave memory and the like to the group above. Where that
//! does not work either, a group without any controller still holds the processes together.
//! See cgroups(7), and "Threads" in the kernel's admin-guide/cgroup-v2.rst.
//!
//! Beside the caller's group, with its limits copied, as `systemd-run --scope` makes them, they would hold twice: for
//! the caller and for the runs. At the root of the hierarchy, where `runc` and `docker` begin, they do not hold at all.

use std::fs;
use std::path::{Path, PathBuf};

use amdahl_topology::{CgroupVersion, Membership};

/// A place for groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The group in which they are made.
    pub parent: PathBuf,
    /// Which interface they have.
    pub version: CgroupVersion,
    /// What they can do.
    pub kind: Kind,
}

/// What a group can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It has CPU sets as soon as it is made.
    WithCpus,
    /// It has them when it has become threaded and its parent hands them on.
    Threaded,
    /// It has none, because of this.
    WithoutCpus(String),
}

/// Where the process `me` can have groups, the best place first. Whether it is permitted is found out by trying.
pub fn places(memberships: &[Membership], me: u32) -> Vec<Place> {
    let mut found: Vec<Place> = memberships
        .iter()
        .filter(|membership| is_in(&membership.folder, me))
        .flat_map(|membership| match membership.version {
            CgroupVersion::V1 => vec![place(&membership.folder, membership, Kind::WithCpus)],
            CgroupVersion::V2 => unified(membership),
        })
        .collect();
    // Of two hierarchies one at most has CPU sets.
    found.sort_by_key(|place| matches!(place.kind, Kind::WithoutCpus(_)));
    found
}

fn place(parent: &Path, membership: &Membership, kind: Kind) -> Place {
    Place {
        parent: parent.to_owned(),
        version: membership.version,
        kind,
    }
}

/// Places in a hierarchy of version 2.
fn unified(membership: &Membership) -> Vec<Place> {
    let own = membership.folder.as_path();
    let mut found = Vec::new();
    let root = membership.mount.as_path();
    let limit = membership
        .way_up()
        .filter(|group| !is_root(group))
        .find_map(limit);
    if is_root(own) {
        if hands_on_cpusets(own) {
            found.push(place(own, membership, Kind::WithCpus));
        }
    } else {
        if lists_cpuset(own, "cgroup.controllers") {
            found.push(place(own, membership, Kind::Threaded));
        }
        if limit.is_none() && is_root(root) && hands_on_cpusets(root) {
            found.push(place(root, membership, Kind::WithCpus));
        }
    }
    let why = match limit {
        Some(limit) => format!(
            "the cpuset controller cannot be used in {}, and {} is to go on to hold",
            own.display(),
            limit.display()
        ),
        None => format!("the cpuset controller cannot be used in {}", own.display()),
    };
    found.push(place(own, membership, Kind::WithoutCpus(why)));
    found
}

/// After a control group namespace was entered, the group that we see as ours may be another.
fn is_in(group: &Path, me: u32) -> bool {
    // Threaded groups have no list of processes.
    ["cgroup.procs", "cgroup.threads"].iter().any(|list| {
        let list = fs::read_to_string(group.join(list)).unwrap_or_default();
        list.lines().any(|pid| pid.parse() == Ok(me))
    })
}

/// The root of a hierarchy of version 2, which alone may have processes and hand on controllers.
fn is_root(group: &Path) -> bool {
    !group.join("cgroup.type").exists()
}

fn hands_on_cpusets(group: &Path) -> bool {
    lists_cpuset(group, "cgroup.subtree_control")
}

fn lists_cpuset(group: &Path, file: &str) -> bool {
    let list = fs::read_to_string(group.join(file)).unwrap_or_default();
    list.split_whitespace().any(|word| word == "cpuset")
}

/// A file that limits a group of version 2, or gives it another share than its siblings have by default.
fn limit(group: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(group).ok()?.flatten();
    let mut files: Vec<PathBuf> = entries
        .filter(|entry| {
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            is_file && entry.file_name().to_str().is_some_and(can_limit)
        })
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files.into_iter().find(|file| {
        let name = file.file_name().and_then(|name| name.to_str());
        let text = fs::read_to_string(file);
        name.zip(text.ok())
            .is_some_and(|(name, text)| limits(name, text.trim()))
    })
}

const SHARES: [(&str, &str); 3] = [
    ("cpu.weight", "100"),
    ("cpu.idle", "0"),
    ("io.weight", "default 100"),
];
const SETS: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

fn can_limit(file: &str) -> bool {
    file.ends_with(".max")
        || file.ends_with(".high")
        || SETS.contains(&file)
        || SHARES.iter().any(|(share, _)| *share == file)
}

fn limits(file: &str, text: &str) -> bool {
    if let Some((_, usual)) = SHARES.iter().find(|(share, _)| *share == file) {
        return text != *usual;
    }
    if SETS.contains(&file) {
        return !text.is_empty();
    }
    if file == "cpu.max" {
        // A quota and a period.
        return !text.starts_with("max");
    }
    // A single value, or lines of a device or resource and its values.
    text.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let values = if words.len() > 1 { &words[1..] } else { &words };
        values.iter().any(|value| !value.ends_with("max"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use amdahl_topology::memberships_from;

    const ME: u32 = 77;

    /// A machine as a folder: files, and what is mounted.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(groups: &str, mounts: &[&str], files: &[(&str, &str)]) -> Tree {
            let tree = Tree(tempfile::tempdir().expect("a folder"));
            tree.write("proc/self/cgroup", groups);
            let mounts: Vec<String> = mounts
                .iter()
                .map(|mount| format!("30 1 0:26 / {mount}\n"))
                .collect();
            tree.write("proc/self/mountinfo", &mounts.concat());
            for (name, text) in files {
                tree.write(name, text);
            }
            tree
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }

        /// Each place without the folder of the test, and how it is.
        fn places(&self) -> Vec<(String, &'static str)> {
            let found = memberships_from(self.0.path(), "self", "cpuset").expect("readable");
            let short = |path: &Path| {
                let path = path.strip_prefix(self.0.path()).expect("in the tree");
                path.to_str().expect("UTF-8").to_owned()
            };
            places(&found, ME)
                .into_iter()
                .map(|place| {
                    let kind = match place.kind {
                        Kind::WithCpus => "with",
                        Kind::Threaded => "threaded",
                        Kind::WithoutCpus(_) => "without",
                    };
                    (short(&place.parent), kind)
                })
                .collect()
        }
    }

    const V1: &str = "/cg/cpuset rw - cgroup none rw,cpuset";
    const V2: &str = "/cg rw - cgroup2 none rw";

    fn found(places: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
        places
            .iter()
            .map(|&(at, kind)| (at.to_owned(), kind))
            .collect()
    }

    #[test]
    fn version_1_is_below_our_own_group() {
        let tree = Tree::new(
            "3:cpuset:/jobs/ours\n2:cpu:/limited\n",
            &[V1],
            &[("cg/cpuset/jobs/ours/cgroup.procs", "3\n77\n")],
        );
        assert_eq!(tree.places(), found(&[("cg/cpuset/jobs/ours", "with")]));
    }

    #[test]
    fn controllers_that_are_mounted_together_stay_together() {
        let tree = Tree::new(
            "3:cpu,cpuset:/limited\n",
            &["/cg/both rw - cgroup none rw,cpu,cpuset"],
            &[("cg/both/limited/cgroup.procs", "77\n")],
        );
        assert_eq!(tree.places(), found(&[("cg/both/limited", "with")]));
    }

    #[test]
    fn on_a_hybrid_system_the_hierarchy_with_the_controller_is_first() {
        let tree = Tree::new(
            "0::/user\n3:cpuset:/\n",
            &["/cg/unified rw - cgroup2 none rw", V1],
            &[
                ("cg/cpuset/cgroup.procs", "77\n"),
                ("cg/unified/user/cgroup.procs", "77\n"),
                ("cg/unified/user/cgroup.type", "domain\n"),
                ("cg/unified/user/cgroup.controllers", "hugetlb\n"),
            ],
        );
        let expected = [("cg/cpuset", "with"), ("cg/unified/user", "without")];
        assert_eq!(tree.places(), found(&expected));
    }

    #[test]
    fn at_the_root_of_version_2_groups_are_where_they_always_were() {
        let tree = Tree::new(
            "0::/\n",
            &[V2],
            &[
                ("cg/cgroup.procs", "77\n"),
                ("cg/cgroup.subtree_control", "cpuset cpu memory\n"),
            ],
        );
        let expected = [("cg", "with"), ("cg", "without")];
        assert_eq!(tree.places(), found(&expected));
        tree.write("cg/cgroup.subtree_control", "cpu memory\n");
        assert_eq!(tree.places(), found(&[("cg", "without")]));
    }

    /// As systemd has them.
    fn session(controllers: &str, more: &[(&str, &str)]) -> Tree {
        let tree = Tree::new(
            "0::/user.slice/session-1.scope\n",
            &[V2],
            &[
                ("cg/cgroup.subtree_control", "cpuset cpu memory pids\n"),
                ("cg/user.slice/cgroup.type", "domain\n"),
                ("cg/user.slice/cpu.weight", "100\n"),
                ("cg/user.slice/memory.max", "max\n"),
                ("cg/user.slice/session-1.scope/cgroup.type", "domain\n"),
                ("cg/user.slice/session-1.scope/cgroup.procs", "77\n"),
                ("cg/user.slice/session-1.scope/cpu.max", "max 100000\n"),
                ("cg/user.slice/session-1.scope/io.max", "\n"),
            ],
        );
        tree.write(
            "cg/user.slice/session-1.scope/cgroup.controllers",
            controllers,
        );
        for (name, text) in more {
            tree.write(name, text);
        }
        tree
    }

    const SESSION: &str = "cg/user.slice/session-1.scope";

    #[test]
    fn a_group_that_has_the_controller_has_threaded_groups() {
        let places = session("cpuset cpu memory\n", &[]).places();
        let expected = [(SESSION, "threaded"), ("cg", "with"), (SESSION, "without")];
        assert_eq!(places, found(&expected));
    }

    #[test]
    fn the_root_is_a_place_only_where_nothing_on_the_way_limits() {
        let places = session("cpu memory\n", &[]).places();
        assert_eq!(places, found(&[("cg", "with"), (SESSION, "without")]));
        for (file, text) in [
            ("cg/user.slice/session-1.scope/cpu.max", "150000 100000\n"),
            ("cg/user.slice/memory.max", "1073741824\n"),
            ("cg/user.slice/memory.high", "1073741824\n"),
            ("cg/user.slice/cpu.weight", "20\n"),
            (
                "cg/user.slice/session-1.scope/cpuset.cpus.effective",
                "0-1\n",
            ),
            ("cg/user.slice/session-1.scope/cpuset.mems", "0\n"),
            (
                "cg/user.slice/session-1.scope/io.max",
                "8:16 rbps=2097152 wbps=max\n",
            ),
        ] {
            let places = session("cpu memory\n", &[(file, text)]).places();
            let is_limit = !file.ends_with("effective");
            let at_the_root = places.contains(&("cg".to_owned(), "with"));
            assert_eq!(at_the_root, !is_limit, "{file}");
            assert_eq!(places.last(), Some(&(SESSION.to_owned(), "without")));
        }
    }

    #[test]
    fn the_root_of_a_namespace_is_a_group_like_others() {
        let tree = Tree::new(
            "0::/\n",
            &[V2],
            &[
                ("cg/cgroup.type", "domain\n"),
                ("cg/cgroup.procs", "1\n77\n"),
                ("cg/cgroup.controllers", "cpuset cpu\n"),
                ("cg/cgroup.subtree_control", "\n"),
                ("cg/cpu.max", "50000 100000\n"),
            ],
        );
        let expected = [("cg", "threaded"), ("cg", "without")];
        assert_eq!(tree.places(), found(&expected));
    }

    #[test]
    fn a_group_that_is_not_ours_is_no_place() {
        let tree = Tree::new(
            "0::/other\n",
            &[V2],
            &[
                ("cg/other/cgroup.procs", "1\n2\n"),
                ("cg/other/cgroup.controllers", "cpuset\n"),
            ],
        );
        assert_eq!(tree.places(), []);
    }

    #[test]
    fn a_threaded_group_lists_threads() {
        let tree = Tree::new(
            "0::/ours\n",
            &[V2],
            &[
                ("cg/ours/cgroup.threads", "77\n78\n"),
                ("cg/ours/cgroup.type", "threaded\n"),
                ("cg/ours/cgroup.controllers", "cpuset\n"),
            ],
        );
        assert_eq!(tree.places()[0], ("cg/ours".to_owned(), "threaded"));
    }

    #[test]
    fn what_limits_and_what_does_not() {
        for (file, text) in [
            ("cpu.max", "max 100000"),
            ("memory.high", "max"),
            ("io.max", ""),
            ("misc.max", "res_a max\nres_b max"),
            ("rdma.max", "mlx4_0 hca_handle=max hca_object=max"),
            ("cpu.weight", "100"),
            ("io.weight", "default 100"),
            ("cpuset.cpus", ""),
        ] {
            assert!(can_limit(file) && !limits(file, text), "{file} {text}");
        }
        for (file, text) in [
            ("cpu.max", "100000 100000"),
            ("pids.max", "500"),
            ("hugetlb.2MB.max", "0"),
            ("misc.max", "res_a max\nres_b 3"),
            ("rdma.max", "mlx4_0 hca_handle=2 hca_object=max"),
            ("cpu.idle", "1"),
            ("cpuset.mems", "0"),
        ] {
            assert!(can_limit(file) && limits(file, text), "{file} {text}");
        }
        for file in ["cgroup.max.depth", "memory.current", "cpu.stat"] {
            assert!(!can_limit(file));
        }
    }
}
