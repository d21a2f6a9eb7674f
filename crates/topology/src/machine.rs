//! The model of a machine.

use std::path::Path;

use crate::{CpuSet, Error, Result, sysfs};

/// One CPU that the kernel schedules on, and where it stands in the machine.
///
/// All indices but `id` are dense: they count from 0 without holes over the
/// whole machine, in the order of packages, nodes, LLCs and CPU numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cpu {
    /// Number that the kernel gave it.
    pub id: u32,
    /// Index of its physical core. A core lies within one LLC.
    pub core: u32,
    /// Index of its last-level cache domain. An LLC lies within one node and one package.
    pub llc: u32,
    /// Index of its NUMA node among the nodes that have CPUs; see [`Topology::kernel_node`].
    pub node: u32,
    /// Index of its package (socket).
    pub package: u32,
    /// Index among the hardware threads of its core.
    pub thread: u32,
    /// Speed relative to the fastest CPU of the machine, which has 1024.
    pub capacity: u32,
}

/// The CPUs of a machine, real or synthetic, if not said otherwise those that are online; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cpus: Vec<Cpu>,
    kernel_nodes: Vec<u32>,
    packages: u32,
    llcs: u32,
    cores: u32,
}

/// Where a CPU stands, in any numbers that tell the groups apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub id: u32,
    pub package: i64,
    pub node: u32,
    pub llc: u32,
    pub core: u32,
    pub capacity: u32,
}

impl Place {
    // A group counts as part of the group above it, so that the levels nest
    // whatever the numbers say. The kernel's scheduler does the same to an LLC
    // that spans nodes (sub-NUMA clustering): see match_llc in
    // arch/x86/kernel/smpboot.c.
    fn llc_key(&self) -> (i64, u32, u32) {
        (self.package, self.node, self.llc)
    }

    fn core_key(&self) -> ((i64, u32, u32), u32) {
        (self.llc_key(), self.core)
    }
}

impl Topology {
    /// The capacity of the fastest CPUs.
    pub const FULL_CAPACITY: u32 = 1024;

    /// This machine, from sysfs.
    ///
    /// # Errors
    /// When sysfs cannot be read, names no CPU, or holds nonsense; a file that is
    /// merely absent is no error. [`Topology::flat`] is what remains then.
    pub fn read() -> Result<Self> {
        Self::read_from(Path::new(sysfs::ROOT))
    }

    /// The machine that the sysfs tree mounted at `sysfs_root` tells of.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn read_from(sysfs_root: &Path) -> Result<Self> {
        Self::from_places(sysfs::places(sysfs_root)?).ok_or_else(|| Error::NoCpus {
            path: sysfs_root.to_owned(),
        })
    }

    /// As [`Topology::read`], with the CPUs that are there but offline: of those the kernel tells no place, so each is a
    /// core of its own, beside the CPU whose number is nearest.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn read_present() -> Result<Self> {
        Self::read_present_from(Path::new(sysfs::ROOT))
    }

    /// The same of the sysfs tree mounted at `sysfs_root`.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn read_present_from(sysfs_root: &Path) -> Result<Self> {
        let mut places = sysfs::places(sysfs_root)?;
        let online: CpuSet = places.iter().map(|place| place.id).collect();
        places.sort_unstable_by_key(|place| place.id);
        let offline = sysfs::present(sysfs_root)?.difference(&online);
        let known = places.len();
        for id in offline.iter() {
            let behind = places[..known].partition_point(|place| place.id < id);
            let neighbours = &places[behind.saturating_sub(1)..known.min(behind + 1)];
            let nearest = neighbours.iter().min_by_key(|place| place.id.abs_diff(id));
            // Online CPUs are named first of their core: none has the name of one that is offline.
            places.extend(nearest.map(|&place| Place {
                id,
                core: id,
                ..place
            }));
        }
        Self::from_places(places).ok_or_else(|| Error::NoCpus {
            path: sysfs_root.to_owned(),
        })
    }

    /// A machine of which only the CPU numbers are known: equal cores that share
    /// one LLC on one node. `None` if there is no CPU.
    pub fn flat(cpus: &CpuSet) -> Option<Self> {
        Self::from_places(
            cpus.iter()
                .map(|id| Place {
                    id,
                    package: 0,
                    node: 0,
                    llc: 0,
                    core: id,
                    capacity: Self::FULL_CAPACITY,
                })
                .collect(),
        )
    }

    /// A machine of which each CPU's place is known, e.g. from a file. Indices need not be dense; those
    /// of one level tell groups apart within the level above. `None` if there is no CPU, or one twice.
    pub fn from_cpus(cpus: &[Cpu]) -> Option<Self> {
        let mut ids: Vec<u32> = cpus.iter().map(|cpu| cpu.id).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return None;
        }
        let place = |cpu: &Cpu| Place {
            id: cpu.id,
            package: i64::from(cpu.package),
            node: cpu.node,
            llc: cpu.llc,
            core: cpu.core,
            capacity: cpu.capacity,
        };
        Self::from_places(cpus.iter().map(place).collect())
    }

    /// Gives dense indices to `places`, which name each CPU once. O(n log n).
    pub(crate) fn from_places(mut places: Vec<Place>) -> Option<Self> {
        places.sort_unstable_by_key(|place| (place.core_key(), place.id));
        let mut last = *places.first()?;
        let mut kernel_nodes: Vec<u32> = places.iter().map(|place| place.node).collect();
        kernel_nodes.sort_unstable();
        kernel_nodes.dedup();

        let (mut package, mut llc, mut core, mut thread) = (0, 0, 0, 0);
        let mut cpus: Vec<Cpu> = Vec::with_capacity(places.len());
        for place in places {
            package += u32::from(place.package != last.package);
            llc += u32::from(place.llc_key() != last.llc_key());
            if place.core_key() != last.core_key() {
                core += 1;
                thread = 0;
            }
            cpus.push(Cpu {
                id: place.id,
                core,
                llc,
                node: kernel_nodes.partition_point(|&node| node < place.node) as u32,
                package,
                thread,
                capacity: place.capacity,
            });
            thread += 1;
            last = place;
        }
        cpus.sort_unstable_by_key(|cpu| cpu.id);
        Some(Topology {
            cpus,
            kernel_nodes,
            packages: package + 1,
            llcs: llc + 1,
            cores: core + 1,
        })
    }

    /// All CPUs in rising order of `id`.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// The CPU with this kernel number. O(log CPUs).
    pub fn cpu(&self, id: u32) -> Option<&Cpu> {
        let i = self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok()?;
        Some(&self.cpus[i])
    }

    /// The kernel numbers of all CPUs.
    pub fn cpu_set(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.id).collect()
    }

    /// How many physical cores there are.
    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// How many last-level caches there are.
    pub fn llcs(&self) -> u32 {
        self.llcs
    }

    /// How many NUMA nodes have CPUs.
    pub fn nodes(&self) -> u32 {
        self.kernel_nodes.len() as u32
    }

    /// How many packages there are.
    pub fn packages(&self) -> u32 {
        self.packages
    }

    /// The kernel's number of the node with this dense index, as memory policies want it.
    pub fn kernel_node(&self, node: u32) -> Option<u32> {
        self.kernel_nodes.get(node as usize).copied()
    }
}
