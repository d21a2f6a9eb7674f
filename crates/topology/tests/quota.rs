//! Quotas of control groups, played back from folders and on this machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use amdahl_topology::{
    CgroupVersion, Error, Quota, Throttle, cpu_pressure_from, quota, quota_from, quota_of,
};
use tempfile::TempDir;

/// A folder that stands for `/`.
struct Root(TempDir);

impl Root {
    fn new(cgroup: &str, mountinfo: &str) -> Self {
        let root = Root(tempfile::tempdir().unwrap());
        root.write("proc/self/cgroup", cgroup);
        root.write("proc/self/mountinfo", mountinfo);
        root
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn path(&self, file: &str) -> std::path::PathBuf {
        self.0.path().join(file)
    }

    fn quota(&self) -> Option<Quota> {
        quota_from(self.0.path()).unwrap()
    }

    /// What quota was found, by which file.
    fn found(&self) -> Option<(f64, String)> {
        self.quota().map(|quota| {
            let source = quota.source.strip_prefix(self.0.path()).unwrap();
            (quota.cpus, source.to_str().unwrap().to_owned())
        })
    }
}

const V2: &str = "\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:9 - cgroup2 cgroup2 rw,nsdelegate
";

#[test]
fn none_without_limits() {
    let root = Root::new("0::/user.slice/a\n", V2);
    root.write("sys/fs/cgroup/user.slice/a/cpu.max", "max 100000\n");
    assert_eq!(root.quota(), None);
}

#[test]
fn pressure_is_that_of_the_own_group() {
    let root = Root::new("0::/user.slice/a\n", V2);
    let pressure = || cpu_pressure_from(root.0.path()).unwrap();
    // Of a group around it there may be one; it tells of others too.
    root.write("sys/fs/cgroup/user.slice/cpu.pressure", "some avg10=9.00\n");
    assert_eq!(pressure(), None);
    let own = "sys/fs/cgroup/user.slice/a/cpu.pressure";
    root.write(own, "some avg10=0.00\n");
    assert_eq!(pressure(), Some(root.path(own)));
}

#[test]
fn the_tightest_group_on_the_path_counts() {
    let root = Root::new("0::/user.slice/a/b\n", V2);
    root.write("sys/fs/cgroup/user.slice/a/b/cpu.max", "400000 100000\n");
    root.write("sys/fs/cgroup/user.slice/a/cpu.max", "150000 100000\n");
    root.write("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
    // Not on the path.
    root.write("sys/fs/cgroup/user.slice/c/cpu.max", "1000 100000\n");
    root.write("sys/fs/cpu.max", "1000 100000\n");
    assert_eq!(
        root.found(),
        Some((1.5, "sys/fs/cgroup/user.slice/a/cpu.max".into()))
    );
    assert_eq!(root.quota().unwrap().version, CgroupVersion::V2);
}

#[test]
fn inside_a_cgroup_namespace() {
    // A container sees its own group as the root, with a limit on it.
    let root = Root::new("0::/\n", V2);
    root.write("sys/fs/cgroup/cpu.max", "50000 100000\n");
    assert_eq!(root.found(), Some((0.5, "sys/fs/cgroup/cpu.max".into())));
}

#[test]
fn version_1_of_a_container_without_namespace() {
    // The group's path is the host's; only the group itself is mounted.
    let root = Root::new(
        "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
        "33 32 0:29 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
         34 32 0:30 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n",
    );
    root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
    root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    let quota = root.quota().unwrap();
    assert_eq!((quota.cpus, quota.version), (2.5, CgroupVersion::V1));
}

#[test]
fn hybrid_with_the_controller_in_version_1() {
    let root = Root::new(
        "2:cpuacct:/other\n1:cpu:/job\n0::/\n",
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
         33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    );
    root.write("sys/fs/cgroup/unified/cgroup.controllers", "\n");
    root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    root.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
    root.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "50000\n");
    assert_eq!(
        root.found(),
        Some((2.0, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us".into()))
    );
}

#[test]
fn names_with_blanks_colons_and_backslashes() {
    let root = Root::new(
        "0::/a b:c\\d\n",
        "30 22 0:26 / /my\\040groups rw - cgroup2 none rw\n",
    );
    root.write("my groups/a b:c\\d/cpu.max", "10000 100000\n");
    assert_eq!(root.quota().unwrap().cpus, 0.1);
}

#[test]
fn of_several_mounts_the_one_that_shows_the_group() {
    let root = Root::new(
        "0::/pod/job\n",
        "30 22 0:26 /other /mnt/other rw - cgroup2 none rw\n\
         31 22 0:26 / /mnt/absent rw - cgroup2 none rw\n\
         32 22 0:26 /pod /mnt/pod rw - cgroup2 none rw\n",
    );
    root.write("mnt/other/cpu.max", "10000 100000\n");
    root.write("mnt/pod/job/cpu.max", "30000 100000\n");
    assert_eq!(root.found(), Some((0.3, "mnt/pod/job/cpu.max".into())));
}

#[test]
fn of_several_mounts_the_one_that_shows_most() {
    let root = Root::new(
        "0::/pod/job\n",
        "32 22 0:26 /pod /mnt/pod rw - cgroup2 none rw\n\
         33 22 0:26 / /mnt/all rw - cgroup2 none rw\n",
    );
    root.write("mnt/pod/job/cpu.max", "max 100000\n");
    root.write("mnt/all/pod/job/cpu.max", "max 100000\n");
    root.write("mnt/all/cpu.max", "60000 100000\n");
    assert_eq!(root.found(), Some((0.6, "mnt/all/cpu.max".into())));
}

#[test]
fn a_mount_from_around_the_namespace() {
    // mountinfo shows a root above our namespace as `/..`; which folder of it is
    // ours has no name here, but the mounted group is around us.
    let root = Root::new("0::/\n", "30 22 0:26 /.. /mnt rw - cgroup2 none rw\n");
    root.write("mnt/cpu.max", "70000 100000\n");
    root.write("mnt/sibling/cpu.max", "10000 100000\n");
    assert_eq!(root.found(), Some((0.7, "mnt/cpu.max".into())));
}

#[test]
fn a_group_outside_of_the_namespace_is_not_ours() {
    let root = Root::new("0::/../elsewhere\n", V2);
    root.write("sys/fs/cgroup/cpu.max", "10000 100000\n");
    root.write("sys/fs/elsewhere/cpu.max", "10000 100000\n");
    assert_eq!(root.quota(), None);
}

#[test]
fn lines_of_other_things_are_skipped() {
    let root = Root::new(
        "\n:::\nx\n0::/a\n",
        &format!("\ngarbage\n1 2 3 4\n5 6 7 / /x rw shared:1\n{V2}"),
    );
    root.write("sys/fs/cgroup/a/cpu.max", "90000 100000\n");
    assert_eq!(root.quota().unwrap().cpus, 0.9);
}

#[test]
fn kernel_without_control_groups() {
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(quota_from(empty.path()).unwrap(), None);
    assert!(matches!(
        Throttle::open_from(empty.path(), 1),
        Err(Error::Read { .. })
    ));
}

#[test]
fn nonsense_is_an_error() {
    for limit in ["", "max", "0 100000", "100000 0", "100000", "lots 100000"] {
        let root = Root::new("0::/\n", V2);
        root.write("sys/fs/cgroup/cpu.max", limit);
        let error = quota_from(root.0.path()).unwrap_err();
        assert!(
            matches!(&error, Error::Malformed { path, .. } if path.ends_with("cpu.max")),
            "{error}"
        );
    }
}

#[test]
fn throttling_is_summed_over_the_groups_around() {
    let root = Root::new("", V2);
    root.write("proc/77/cgroup", "0::/a/b\n");
    let stat = |group: &str, ns: u32| {
        root.write(
            &format!("sys/fs/cgroup/{group}cpu.stat"),
            &format!("usage_usec 1\nnr_periods 10\nnr_throttled 2\nthrottled_usec {ns}\n"),
        );
    };
    stat("a/b/", 5);
    stat("a/", 7);
    // The root group counts usage only.
    root.write("sys/fs/cgroup/cpu.stat", "usage_usec 1\n");
    let throttle = Throttle::open_from(root.0.path(), 77).unwrap();
    let paths: Vec<&Path> = throttle.paths().collect();
    assert_eq!(
        paths,
        [
            root.path("sys/fs/cgroup/a/b/cpu.stat"),
            root.path("sys/fs/cgroup/a/cpu.stat")
        ]
    );
    let first = throttle.read().unwrap();
    assert_eq!(
        (first.periods, first.throttled_periods, first.throttled_ns),
        (20, 4, 12_000)
    );
    // The files stay open and tell what is new.
    stat("a/", 9);
    assert_eq!(throttle.read().unwrap().throttled_ns, 14_000);
}

#[test]
fn nothing_counts_throttling() {
    let root = Root::new("", V2);
    root.write("proc/77/cgroup", "0::/a\n");
    root.write("sys/fs/cgroup/a/cpu.stat", "usage_usec 1\n");
    let throttle = Throttle::open_from(root.0.path(), 77).unwrap();
    assert_eq!(throttle.read(), None);
}

/// A control group of this machine's CPU controller, removed on drop.
struct Group(std::path::PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Makes a group that grants a tenth of a CPU; the reason if that is not possible here.
fn group_with_quota() -> Result<Group, String> {
    let name = format!("amdahl-topology-test-{}", std::process::id());
    let settings: [(&str, &[(&str, &str)]); 2] = [
        (
            "/sys/fs/cgroup/cpu",
            &[("cpu.cfs_period_us", "10000"), ("cpu.cfs_quota_us", "1000")],
        ),
        ("/sys/fs/cgroup", &[("cpu.max", "1000 10000")]),
    ];
    let mut reasons = Vec::new();
    for (hierarchy, files) in settings {
        let group = Group(Path::new(hierarchy).join(&name));
        let made = fs::create_dir(&group.0).and_then(|()| {
            files
                .iter()
                .try_for_each(|(file, text)| fs::write(group.0.join(file), text))
        });
        match made {
            Ok(()) => return Ok(group),
            Err(error) => reasons.push(format!("{hierarchy}: {error}")),
        }
    }
    Err(reasons.join("; "))
}

#[test]
fn a_real_quota() {
    let group = match group_with_quota() {
        Ok(group) => group,
        Err(reason) => return eprintln!("SKIPPED a_real_quota: no control group ({reason})"),
    };
    // The child enters the group, says so, waits for us, and burns CPU time.
    let mut child = Command::new("sh")
        .arg("-c")
        .arg("echo $$ > \"$1/cgroup.procs\" && echo in && read go && while [ ${i:=0} -lt 100000 ]; do i=$((i+1)); done")
        .arg("sh")
        .arg(&group.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.take().unwrap()),
        &mut said,
    )
    .unwrap();
    assert_eq!(said, "in\n");

    let throttle = Throttle::open_for(child.id()).unwrap();
    let inner = throttle.paths().next().unwrap();
    assert_eq!(inner, group.0.join("cpu.stat"));
    let before = throttle.read().unwrap();

    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"go\n").unwrap();
    assert!(child.wait().unwrap().success());
    let after = throttle.read().unwrap();
    assert!(after.throttled_periods > before.throttled_periods);
    assert!(after.throttled_ns > before.throttled_ns);
}

#[test]
fn this_process() {
    if let Some(quota) = quota().unwrap() {
        assert!(quota.cpus > 0.0);
        assert!(quota.source.is_file());
    }
    Throttle::open_for(std::process::id()).unwrap();
}

#[test]
fn a_process_has_the_quota_that_it_finds_itself() {
    assert_eq!(quota_of(std::process::id()).unwrap(), quota().unwrap());
    // Numbers of processes end below 2^22.
    assert!(quota_of(1 << 22).is_err());
}
