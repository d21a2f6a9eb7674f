//! Which CPUs belong together, as far as the abstract names of `OMP_PLACES` ask.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::CpuSet;
use crate::tree::Spot;

/// A kind of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Hardware threads.
    Threads,
    /// Cores.
    Cores,
    /// Last-level caches.
    LlCaches,
    /// Memory nodes.
    NumaDomains,
    /// Sockets.
    Sockets,
}

/// What a CPU belongs to: each group is named by its first CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Hardware threads that share a core.
    pub core: u32,
    /// CPUs that share a last-level cache.
    pub llc: u32,
    /// CPUs of a memory node.
    pub node: u32,
    /// CPUs of a socket.
    pub socket: u32,
}

/// The CPUs of a machine. Pure: made from sysfs, or made up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    cpus: BTreeMap<u32, Cpu>,
}

/// The memory node of a CPU, by its first one.
fn node_of(nodes: &[CpuSet], cpu: u32) -> Option<u32> {
    nodes.iter().find(|node| node.contains(cpu))?.first()
}

impl FromIterator<(u32, Cpu)> for Topology {
    fn from_iter<I: IntoIterator<Item = (u32, Cpu)>>(cpus: I) -> Self {
        Self {
            cpus: cpus.into_iter().collect(),
        }
    }
}

impl Topology {
    /// Reads what sysfs (`/sys`, or a copy of it) says of these CPUs. What it does not say is taken for the
    /// simplest: a core of its own, one cache, one node, one socket.
    pub fn read(sysfs: &Path, cpus: &CpuSet) -> Self {
        let first_of = |path: &Path| {
            let list = fs::read_to_string(path).ok()?;
            list.trim().parse::<CpuSet>().ok()?.first()
        };
        let nodes = nodes(&sysfs.join("devices/system/node"));
        let lowest = cpus.iter().next().unwrap_or(0);
        cpus.iter()
            .map(|id| {
                let folder = sysfs.join(format!("devices/system/cpu/cpu{id}"));
                let topology = |file| first_of(&folder.join("topology").join(file));
                let socket = topology("core_siblings_list").unwrap_or(lowest);
                let cpu = Cpu {
                    core: topology("thread_siblings_list").unwrap_or(id),
                    llc: llc(&folder.join("cache"))
                        .and_then(|list| first_of(&list))
                        .unwrap_or(socket),
                    node: node_of(&nodes, id).unwrap_or(lowest),
                    socket,
                };
                (id, cpu)
            })
            .collect()
    }

    /// Reads what sysfs says of caches and memory nodes of these CPUs alone, a few files for each of those; all else is taken for
    /// the simplest.
    pub fn read_near(sysfs: &Path, cpus: &CpuSet) -> Self {
        let nodes = nodes(&sysfs.join("devices/system/node"));
        let lowest = cpus.iter().next().unwrap_or(0);
        let mut topology = Self::default();
        for id in cpus.iter() {
            if topology.cpus.contains_key(&id) {
                continue;
            }
            let folder = sysfs.join(format!("devices/system/cpu/cpu{id}/cache"));
            let list = llc(&folder).and_then(|file| fs::read_to_string(file).ok());
            let shared = list.and_then(|list| list.trim().parse::<CpuSet>().ok());
            let llc = shared.as_ref().and_then(CpuSet::first).unwrap_or(lowest);
            let shared = shared.unwrap_or_else(|| [id].into_iter().collect());
            for cpu in shared.iter().filter(|&cpu| cpus.contains(cpu)) {
                let near = Cpu {
                    core: cpu,
                    llc,
                    node: node_of(&nodes, cpu).unwrap_or(lowest),
                    socket: lowest,
                };
                topology.cpus.insert(cpu, near);
            }
        }
        topology
    }

    /// What is near to a CPU. Of one that is not known: as if it were with all others that are not.
    pub fn spot(&self, cpu: u32) -> Spot {
        let near = |cpu: &Cpu| Spot {
            node: cpu.node,
            llc: cpu.llc,
        };
        self.cpus.get(&cpu).map(near).unwrap_or_default()
    }

    /// Whether all CPUs share a cache.
    pub fn is_one_cache(&self) -> bool {
        let mut spots = self.cpus.keys().map(|&cpu| self.spot(cpu));
        let first = spots.next();
        spots.all(|spot| Some(spot) == first)
    }

    /// The groups of a level, cut down to the CPUs that may be used. Neighbours on the machine are neighbours in
    /// the list: by socket, then core.
    pub fn groups(&self, level: Level, usable: &CpuSet) -> Vec<CpuSet> {
        let mut groups: BTreeMap<(u32, u32, u32), CpuSet> = BTreeMap::new();
        for id in usable.iter() {
            let cpu = self.cpus.get(&id).copied().unwrap_or(Cpu {
                core: id,
                llc: 0,
                node: 0,
                socket: 0,
            });
            let key = match level {
                Level::Threads => (cpu.socket, cpu.core, id),
                Level::Cores => (cpu.socket, cpu.core, 0),
                Level::LlCaches => (cpu.llc, 0, 0),
                Level::NumaDomains => (cpu.node, 0, 0),
                Level::Sockets => (cpu.socket, 0, 0),
            };
            groups.entry(key).or_default().insert(id);
        }
        groups.into_values().collect()
    }
}

fn nodes(folder: &Path) -> Vec<CpuSet> {
    let Ok(entries) = fs::read_dir(folder) else {
        return vec![];
    };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let number = entry
                .file_name()
                .to_str()?
                .strip_prefix("node")?
                .parse::<u32>();
            number.ok()?;
            let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
            list.trim().parse().ok()
        })
        .collect()
}

/// The list of CPUs that share the cache of the highest level.
fn llc(folder: &Path) -> Option<std::path::PathBuf> {
    let level = |path: &Path| {
        let level = fs::read_to_string(path.join("level")).ok()?;
        level.trim().parse::<u32>().ok()
    };
    fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            Some((level(&path)?, path))
        })
        .max_by_key(|(level, _)| *level)
        .map(|(_, path)| path.join("shared_cpu_list"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine whose second hardware threads are numbered behind all first ones, as firmware does.
    pub(crate) fn machine(
        sockets: u32,
        nodes: u32,
        llcs: u32,
        cores: u32,
        threads: u32,
    ) -> Topology {
        let per_llc = cores;
        let per_node = per_llc * llcs;
        let per_socket = per_node * nodes;
        let all = per_socket * sockets;
        (0..all * threads)
            .map(|id| {
                let core = id % all;
                let first = |group: u32| core / group * group;
                let cpu = Cpu {
                    core,
                    llc: first(per_llc),
                    node: first(per_node),
                    socket: first(per_socket),
                };
                (id, cpu)
            })
            .collect()
    }

    #[test]
    fn groups_of_a_machine_of_512_cpus() {
        let machine = machine(2, 4, 4, 8, 2);
        let all: CpuSet = (0..512).collect();
        for (level, groups, cpus) in [
            (Level::Threads, 512, 1),
            (Level::Cores, 256, 2),
            (Level::LlCaches, 32, 16),
            (Level::NumaDomains, 8, 64),
            (Level::Sockets, 2, 256),
        ] {
            let found = machine.groups(level, &all);
            assert_eq!(found.len(), groups, "{level:?}");
            assert!(found.iter().all(|group| group.len() == cpus), "{level:?}");
        }
        let threads = machine.groups(Level::Threads, &all);
        assert_eq!(threads[1].to_string(), "256", "siblings are neighbours");
        assert_eq!(machine.groups(Level::Cores, &all)[1].to_string(), "1,257");
    }

    #[test]
    fn what_may_not_be_used_is_left_out() {
        let machine = machine(2, 1, 1, 4, 2);
        let some = "1,5,6,9".parse().unwrap();
        let cores = machine.groups(Level::Cores, &some);
        assert_eq!(
            cores.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["1,9", "5", "6"]
        );
        assert_eq!(machine.groups(Level::Sockets, &some).len(), 2);
        // A CPU that came later than the look at the machine.
        assert_eq!(
            machine.groups(Level::Cores, &"99".parse().unwrap()).len(),
            1
        );
    }

    #[test]
    fn reads_sysfs_and_makes_do_without() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            fs::write(path, text).expect("a file");
        };
        for cpu in 0..4 {
            let core = cpu % 2;
            let at = format!("devices/system/cpu/cpu{cpu}");
            write(
                &format!("{at}/topology/thread_siblings_list"),
                &format!("{core},{}\n", core + 2),
            );
            write(&format!("{at}/topology/core_siblings_list"), "0-3\n");
            write(&format!("{at}/cache/index0/level"), "1\n");
            write(
                &format!("{at}/cache/index0/shared_cpu_list"),
                &format!("{cpu}\n"),
            );
            write(&format!("{at}/cache/index3/level"), "3\n");
            write(
                &format!("{at}/cache/index3/shared_cpu_list"),
                &format!("{core},{}\n", core + 2),
            );
        }
        write("devices/system/node/node1/cpulist", "2-3\n");
        write("devices/system/node/node0/cpulist", "0-1\n");
        write("devices/system/node/possible", "0-1\n");
        let all = "0-3,7".parse().unwrap();
        let machine = Topology::read(folder.path(), &all);
        let groups = |level| {
            let groups = machine.groups(level, &all);
            groups.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(groups(Level::Cores), ["0,2", "1,3", "7"]);
        assert_eq!(groups(Level::NumaDomains), ["0-1,7", "2-3"]);
        assert_eq!(groups(Level::LlCaches), ["0,2,7", "1,3"]);
        assert_eq!(groups(Level::Sockets), ["0-3,7"]);
        let near = Topology::read_near(folder.path(), &all);
        for cpu in all.iter() {
            assert_eq!(near.spot(cpu), machine.spot(cpu), "{cpu}");
        }
        assert!(!near.is_one_cache());
        let none = Topology::read_near(&folder.path().join("none"), &all);
        assert!(none.is_one_cache());
        let nothing = Topology::read(&folder.path().join("none"), &all);
        assert_eq!(nothing.groups(Level::Cores, &all).len(), 5);
        assert_eq!(nothing.groups(Level::Sockets, &all).len(), 1);
    }
}
