//! Machines played back from folders that look like sysfs.

use std::fs;
use std::path::Path;

use amdahl_topology::{Cpu, Error, OnlineWatch, Topology, online_from};
use tempfile::TempDir;

/// A folder with the given files.
struct Sysfs(TempDir);

impl Sysfs {
    fn new(online: &str) -> Self {
        let sysfs = Sysfs(tempfile::tempdir().unwrap());
        sysfs.write("devices/system/cpu/online", online);
        sysfs
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.root().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn cpu(&self, cpu: u32, file: &str, text: &str) {
        self.write(&format!("devices/system/cpu/cpu{cpu}/{file}"), text);
    }

    fn core(&self, cpu: u32, package: i32, siblings: &str) {
        self.cpu(cpu, "topology/physical_package_id", &package.to_string());
        self.cpu(cpu, "topology/core_cpus_list", siblings);
    }

    /// L1d, L1i, L2 of the core, and an L3.
    fn caches(&self, cpu: u32, core: &str, l3: &str) {
        for (index, (level, kind, sharers)) in [
            ("1", "Data", core),
            ("1", "Instruction", core),
            ("2", "Unified", core),
            ("3", "Unified", l3),
        ]
        .into_iter()
        .enumerate()
        {
            self.cache(cpu, index, level, kind, sharers);
        }
    }

    fn cache(&self, cpu: u32, index: usize, level: &str, kind: &str, sharers: &str) {
        let cache = format!("cache/index{index}");
        self.cpu(cpu, &format!("{cache}/level"), level);
        self.cpu(cpu, &format!("{cache}/type"), kind);
        self.cpu(cpu, &format!("{cache}/shared_cpu_list"), sharers);
    }

    fn node(&self, node: u32, cpus: &str) {
        self.write(&format!("devices/system/node/node{node}/cpulist"), cpus);
    }

    fn read(&self) -> Topology {
        Topology::read_from(self.root()).unwrap()
    }
}

#[test]
fn this_machine() {
    let machine = Topology::read().unwrap();
    assert_eq!(machine.cpu_set(), amdahl_topology::online().unwrap());
    assert!(machine.cpus().len() as u32 >= machine.cores());
    assert!(machine.cores() >= machine.llcs());
    assert!(machine.llcs() >= machine.nodes().max(machine.packages()));
    for id in amdahl_topology::allowed().unwrap().iter() {
        assert!(machine.cpu(id).is_some());
    }
}

#[test]
fn virtual_machine_of_two_cpus() {
    let sysfs = Sysfs::new("0-1");
    for cpu in 0..2 {
        sysfs.core(cpu, 0, &cpu.to_string());
        sysfs.caches(cpu, &cpu.to_string(), "0-1");
        sysfs.cpu(cpu, "cpu_capacity", "1024");
    }
    sysfs.node(0, "0-1");
    assert_eq!(
        sysfs.read().describe(),
        "1 node x 1 llc x 2 core x 1 thread"
    );
}

#[test]
fn nothing_but_the_online_file() {
    let machine = Sysfs::new("0-3").read();
    assert_eq!(machine.describe(), "1 node x 1 llc x 4 core x 1 thread");
    assert_eq!(machine, Topology::flat(&"0-3".parse().unwrap()).unwrap());
}

#[test]
fn two_sockets_with_smt() {
    // 2 x 4 cores; the second threads are numbered behind all first ones.
    let sysfs = Sysfs::new("0-15");
    for cpu in 0..16 {
        let (core, socket) = (cpu % 8, cpu % 8 / 4);
        let siblings = format!("{core},{}", core + 8);
        sysfs.core(cpu, socket as i32, &siblings);
        let l3 = ["0-3,8-11", "4-7,12-15"][socket as usize];
        sysfs.caches(cpu, &siblings, l3);
    }
    sysfs.node(0, "0-3,8-11");
    sysfs.node(1, "4-7,12-15");
    let machine = sysfs.read();
    assert_eq!(machine.describe(), "2 node x 1 llc x 4 core x 2 thread");
    assert_eq!(
        machine,
        Topology::synthetic("2 node x 1 llc x 4 core x 2 thread").unwrap()
    );
}

#[test]
fn threads_of_a_core_side_by_side() {
    let sysfs = Sysfs::new("0-3");
    for cpu in 0..4 {
        // The name before Linux 5.3.
        let siblings = ["0-1", "2-3"][cpu as usize / 2];
        sysfs.cpu(cpu, "topology/thread_siblings_list", siblings);
    }
    let machine = sysfs.read();
    let threads: Vec<(u32, u32)> = machine.cpus().iter().map(|c| (c.core, c.thread)).collect();
    assert_eq!(threads, [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

#[test]
fn four_llcs_in_a_node() {
    // EPYC: a node of 4 core complexes of 2 cores each.
    let sysfs = Sysfs::new("0-7");
    for cpu in 0..8u32 {
        sysfs.core(cpu, 0, &cpu.to_string());
        let first = cpu / 2 * 2;
        sysfs.caches(cpu, &cpu.to_string(), &format!("{first}-{}", first + 1));
    }
    sysfs.node(0, "0-7");
    assert_eq!(
        sysfs.read().describe(),
        "1 node x 4 llc x 2 core x 1 thread"
    );
}

#[test]
fn an_llc_of_one_core() {
    // Third level: believed (EPYC 72F3). Second level: a larger one is just unknown.
    for (level, described) in [
        ("3", "1 node x 2 llc x 1 core x 1 thread"),
        ("2", "1 node x 1 llc x 2 core x 1 thread"),
    ] {
        let sysfs = Sysfs::new("0-1");
        for cpu in 0..2 {
            sysfs.core(cpu, 0, &cpu.to_string());
            sysfs.cache(cpu, 0, level, "Unified", &cpu.to_string());
        }
        assert_eq!(sysfs.read().describe(), described, "level {level}");
    }
}

#[test]
fn a_second_level_shared_by_cores() {
    let sysfs = Sysfs::new("0-3");
    for cpu in 0..4 {
        sysfs.core(cpu, 0, &cpu.to_string());
        sysfs.cache(cpu, 0, "2", "Unified", ["0-1", "2-3"][cpu as usize / 2]);
    }
    assert_eq!(
        sysfs.read().describe(),
        "1 node x 2 llc x 2 core x 1 thread"
    );
}

#[test]
fn big_little_without_caches() {
    let sysfs = Sysfs::new("0-5");
    for cpu in 0..6 {
        sysfs.core(cpu, 0, &cpu.to_string());
        let capacity = if cpu < 4 { "446" } else { "1024" };
        sysfs.cpu(cpu, "cpu_capacity", capacity);
    }
    let machine = sysfs.read();
    assert_eq!(
        machine.describe(),
        "1 node x 1 llc x (4 core@446 x 1 thread + 2 core x 1 thread)"
    );
    assert_eq!(
        machine.sweep_order(Default::default(), &machine.cpu_set()),
        [4, 5, 0, 1, 2, 3]
    );
}

#[test]
fn intel_hybrid_before_cpu_capacity() {
    let sysfs = Sysfs::new("0-3");
    sysfs.write("devices/cpu_core/cpus", "0-1");
    sysfs.write("devices/cpu_atom/cpus", "2-3");
    for cpu in 0..4 {
        sysfs.core(cpu, 0, ["0-1", "0-1", "2", "3"][cpu as usize]);
        let clock = if cpu < 2 { "5000000" } else { "4000000" };
        sysfs.cpu(cpu, "cpufreq/cpuinfo_max_freq", clock);
    }
    assert_eq!(
        sysfs.read().describe(),
        "1 node x 1 llc x (1 core x 2 thread + 2 core@819 x 1 thread)"
    );
}

#[test]
fn offline_cpus_and_holes() {
    // 8 CPUs, of which 1, 4 and 5 are offline; nodes 0 and 4, and node 2 of memory only.
    let sysfs = Sysfs::new("0,2-3,6-7");
    for cpu in [0, 2, 3, 6, 7] {
        let package = if cpu < 4 { 0 } else { 9 };
        sysfs.core(
            cpu,
            package,
            ["0", "", "2-3", "2-3", "", "", "6-7", "6-7"][cpu as usize],
        );
    }
    // What is left of an offline CPU.
    sysfs.cpu(1, "online", "0");
    sysfs.node(0, "0,2-3");
    sysfs.node(2, "");
    sysfs.node(4, "6-7");
    let machine = sysfs.read();
    assert_eq!(machine.cpu_set().to_string(), "0,2-3,6-7");
    assert_eq!(machine.cpu(1), None);
    assert_eq!(
        machine.cpu(7),
        Some(&Cpu {
            id: 7,
            core: 2,
            llc: 1,
            node: 1,
            package: 1,
            thread: 1,
            capacity: 1024
        })
    );
    assert_eq!(
        (machine.kernel_node(0), machine.kernel_node(1)),
        (Some(0), Some(4))
    );
    assert_eq!(
        machine.describe(),
        "1 node x 1 llc x (1 core x 1 thread + 1 core x 2 thread) + 1 node x 1 llc x 1 core x 2 thread"
    );
}

#[test]
fn an_llc_is_cut_at_the_node() {
    // Sub-NUMA clustering: one L3 for two nodes.
    let sysfs = Sysfs::new("0-3");
    for cpu in 0..4 {
        sysfs.core(cpu, 0, &cpu.to_string());
        sysfs.caches(cpu, &cpu.to_string(), "0-3");
    }
    sysfs.node(0, "0-1");
    sysfs.node(1, "2-3");
    let machine = sysfs.read();
    assert_eq!((machine.nodes(), machine.llcs()), (2, 2));
    assert_eq!(
        machine.describe(),
        "1 package x 2 node x 1 llc x 2 core x 1 thread"
    );
}

#[test]
fn two_packages_without_numa() {
    let sysfs = Sysfs::new("0-3");
    for cpu in 0..4 {
        sysfs.core(cpu, cpu as i32 / 2, &cpu.to_string());
    }
    let machine = sysfs.read();
    assert_eq!((machine.packages(), machine.nodes()), (2, 1));
    assert_eq!(machine.describe(), "1 node x 2 llc x 2 core x 1 thread");
}

#[test]
fn without_the_online_file_the_folders_count() {
    let sysfs = Sysfs::new("0");
    fs::remove_file(sysfs.root().join("devices/system/cpu/online")).unwrap();
    sysfs.cpu(0, "topology/core_id", "0");
    sysfs.cpu(1, "online", "0");
    sysfs.cpu(2, "online", "1");
    sysfs.write("devices/system/cpu/cpufreq/boost", "1");
    assert_eq!(online_from(sysfs.root()).unwrap().to_string(), "0,2");
}

#[test]
fn siblings_that_contradict_each_other() {
    // Firmware lies; every CPU is still somewhere, once, and stays where it was put first.
    let sysfs = Sysfs::new("0-4");
    sysfs.core(0, 0, "0-1");
    sysfs.core(1, 0, "1");
    sysfs.core(2, 0, "1-2,77");
    sysfs.core(3, 0, "3-4");
    sysfs.core(4, 1, "3-4");
    let machine = sysfs.read();
    let places: Vec<_> = machine
        .cpus()
        .iter()
        .map(|cpu| (cpu.id, cpu.package, cpu.core, cpu.thread))
        .collect();
    assert_eq!(
        places,
        [
            (0, 0, 0, 0),
            (1, 0, 0, 1),
            (2, 0, 1, 0),
            (3, 0, 2, 0),
            (4, 1, 3, 0)
        ]
    );
}

#[test]
fn capacities_out_of_range() {
    let sysfs = Sysfs::new("0-2");
    for (cpu, capacity) in [(0, "-5"), (1, "0"), (2, "99999999999")] {
        sysfs.cpu(cpu, "cpu_capacity", capacity);
    }
    let capacities: Vec<u32> = sysfs.read().cpus().iter().map(|cpu| cpu.capacity).collect();
    assert_eq!(capacities, [1, 1, 1024]);
}

#[test]
fn nodes_that_alternate_between_packages() {
    let sysfs = Sysfs::new("0-3");
    for cpu in 0..4 {
        sysfs.core(cpu, cpu as i32 % 2, &cpu.to_string());
        sysfs.node(cpu, &cpu.to_string());
    }
    let machine = sysfs.read();
    assert_eq!(
        machine.describe(),
        "2 package x 2 node x 1 llc x 1 core x 1 thread"
    );
    assert_eq!(
        machine.sweep_order(Default::default(), &machine.cpu_set()),
        [0, 2, 1, 3]
    );
}

#[test]
fn says_what_is_wrong() {
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(
        Topology::read_from(empty.path()),
        Err(Error::NoCpus { path }) if path.starts_with(empty.path())
    ));

    for (file, text) in [
        ("devices/system/cpu/online", "0-4294967295"),
        ("devices/system/cpu/cpu0/topology/core_cpus_list", "zero"),
        (
            "devices/system/cpu/cpu0/topology/physical_package_id",
            "1e3",
        ),
        ("devices/system/cpu/cpu0/cache/index0/level", "?"),
        ("devices/system/cpu/cpu0/cpu_capacity", ""),
        ("devices/system/node/node0/cpulist", "0-"),
    ] {
        let sysfs = Sysfs::new("0");
        sysfs.write(file, text);
        let error = Topology::read_from(sysfs.root()).unwrap_err();
        assert!(
            matches!(&error, Error::Malformed { path, value, .. }
                if path.ends_with(file) && value == text),
            "{error}"
        );
    }
}

#[test]
fn watches_cpus_come_and_go() {
    let sysfs = Sysfs::new("0-3");
    let mut watch = OnlineWatch::new_at(sysfs.root()).unwrap();
    assert_eq!(watch.changed().unwrap(), None);

    sysfs.write("devices/system/cpu/online", "0,2-4");
    let change = watch.changed().unwrap().unwrap();
    assert_eq!(
        (change.came.to_string(), change.left.to_string()),
        ("4".into(), "1".into())
    );
    assert_eq!(watch.changed().unwrap(), None);

    // A bad look is no change.
    sysfs.write("devices/system/cpu/online", "?");
    assert!(watch.changed().is_err());
    sysfs.write("devices/system/cpu/online", "0,2-4");
    assert_eq!(watch.changed().unwrap(), None);
    assert_eq!(watch.seen().to_string(), "0,2-4");
}

#[test]
fn thousands_of_cpus() {
    let sysfs = Sysfs::new("0-4095");
    for node in 0..4 {
        let first = node * 1024;
        let cpus = format!("{first}-{}", first + 1023);
        // One list settles all its CPUs; the others have none, which keeps the folder small.
        sysfs.cache(first, 0, "3", "Unified", &cpus);
        sysfs.node(node, &cpus);
    }
    assert_eq!(
        sysfs.read().describe(),
        "1 package x 4 node x 1 llc x 1024 core x 1 thread"
    );
}

/// A pool whose machine was read while a CPU was offline never used it: its places are asked for once.
#[test]
fn cpus_that_are_offline_have_the_place_of_their_neighbours() {
    let sysfs = Sysfs::new("0-1,4,7");
    sysfs.write("devices/system/cpu/present", "0-7");
    for (cpu, core, l3) in [
        (0, "0", "0-1"),
        (1, "1", "0-1"),
        (4, "4", "4"),
        (7, "7", "7"),
    ] {
        sysfs.core(cpu, 0, core);
        sysfs.caches(cpu, core, l3);
    }
    sysfs.node(0, "0-1");
    sysfs.node(2, "4,7");
    assert_eq!(sysfs.read().cpus().len(), 4);
    let machine = Topology::read_present_from(sysfs.root()).unwrap();
    assert_eq!(machine.cpu_set().to_string(), "0-7");
    let llc = |cpu: u32| machine.cpu(cpu).unwrap().llc;
    assert_eq!(
        (0..8).map(llc).collect::<Vec<_>>(),
        [0, 0, 0, 1, 1, 1, 2, 2]
    );
    let node = |cpu: u32| machine.kernel_node(machine.cpu(cpu).unwrap().node);
    assert_eq!((node(2), node(3)), (Some(0), Some(2)));
    assert_eq!(machine.cores(), 8, "nothing is known of their cores");
    // Without the file, and without a CPU that is offline.
    let sysfs = Sysfs::new("0-1");
    let machine = Topology::read_present_from(sysfs.root()).unwrap();
    assert_eq!(machine, sysfs.read());
}
