//! What tells of the machine: lists of CPUs, descriptions, files of sysfs and of control groups.

use std::fs;
use std::path::Path;

use amdahl_topology::{
    CpuSet, Order, Throttle, Topology, bandwidth_from, online_from, quota_from, sweep_counts,
};

/// A list such as `0-3,8`.
pub(crate) fn cpu_set(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let Ok(set) = text.parse::<CpuSet>() else {
        return;
    };
    assert!(set.last().is_none_or(|last| last <= CpuSet::MAX_PARSED));
    assert_eq!(set.iter().count(), set.len());
    assert_eq!(set.to_string().parse(), Ok(set));
}

/// A description such as `2 node x 4 core`.
pub(crate) fn topology_text(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let Ok(topology) = Topology::synthetic(text) else {
        return;
    };
    assert_consistent(&topology);
    let text = topology.describe();
    if !text.starts_with("irregular") {
        let again = Topology::synthetic(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(again, topology, "{text}");
    }
}

fn assert_consistent(topology: &Topology) {
    let cpus = topology.cpu_set();
    assert!(!cpus.is_empty());
    assert_eq!(cpus.len(), topology.cpus().len());
    assert!(topology.nodes() <= topology.llcs() && topology.llcs() <= topology.cores());
    assert!(topology.cores() as usize <= cpus.len());
    for order in [Order::Compact, Order::Spread] {
        let order: Vec<u32> = topology.sweep_order(order, &cpus);
        assert_eq!(
            order.iter().copied().collect::<CpuSet>(),
            cpus,
            "every CPU once"
        );
        assert_eq!(order.len(), cpus.len());
    }
    let counts = sweep_counts(cpus.len() as u32, topology);
    assert!(counts.is_sorted_by(|a, b| a < b));
    assert_eq!(
        (counts.first(), counts.last()),
        (Some(&1), Some(&(cpus.len() as u32)))
    );
}

/// Files below a folder that stands for `/`, zero bytes between their contents.
fn with_files(bytes: &[u8], names: &[&str], look: impl FnOnce(&Path)) {
    let root = tempfile::tempdir().expect("a temporary folder");
    for (name, content) in names.iter().zip(bytes.split(|&byte| byte == 0)) {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, content).expect("a file");
    }
    look(root.path());
}

/// The control groups of a process: which, where, and their limits.
pub(crate) fn cgroup_files(bytes: &[u8]) {
    let names = [
        "proc/self/cgroup",
        "proc/self/mountinfo",
        "proc/7/cgroup",
        "sys/fs/cgroup/a/cpu.max",
        "sys/fs/cgroup/a/cpu.stat",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us",
        "sys/fs/cgroup/cpu/a/cpu.stat",
    ];
    with_files(bytes, &names, |root| {
        if let Ok(Some(quota)) = quota_from(root) {
            assert!(quota.cpus > 0.0 && quota.cpus.is_finite(), "{quota:?}");
        }
        for bandwidth in bandwidth_from(root, 7).unwrap_or_default() {
            assert!(bandwidth.cpus > 0.0 && bandwidth.cpus.is_finite());
            assert!(bandwidth.period_us > 0);
            let _ = bandwidth.read();
        }
        if let Ok(throttle) = Throttle::open_from(root, 7) {
            let paths = throttle.paths().count();
            assert_eq!(throttle.read().is_some(), paths > 0);
        }
    });
}

/// The CPUs of a machine.
pub(crate) fn sysfs_files(bytes: &[u8]) {
    let names = [
        "devices/system/cpu/online",
        "devices/system/cpu/cpu0/topology/core_cpus_list",
        "devices/system/cpu/cpu0/topology/physical_package_id",
        "devices/system/cpu/cpu0/cache/index0/level",
        "devices/system/cpu/cpu0/cache/index0/shared_cpu_list",
        "devices/system/cpu/cpu0/cpu_capacity",
        "devices/system/node/node0/cpulist",
        "devices/system/node/node1/cpulist",
        "devices/system/cpu/cpu1/online",
        "devices/system/cpu/cpu1/topology/thread_siblings_list",
    ];
    with_files(bytes, &names, |root| {
        let online = online_from(root);
        // Every CPU costs files that are not there: thousands would only be slow.
        if online.is_ok_and(|online| online.len() > 64) {
            return;
        }
        if let Ok(topology) = Topology::read_from(root) {
            assert_consistent(&topology);
        }
    });
}
