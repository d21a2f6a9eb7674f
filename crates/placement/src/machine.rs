//! The machine as policies see it: CPUs numbered so that what is near has near numbers.

use std::ops::Range;

use amdahl_topology::{CpuSet, Topology};

/// Index of a CPU of a [`Machine`]: from 0, without holes. Not the kernel's number.
pub type CpuId = u32;

/// How far two CPUs are apart: the smallest thing that they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// They are one CPU.
    Same,
    /// Hardware threads of one core.
    Core,
    /// Cores of one last-level cache.
    Llc,
    /// Last-level caches of one NUMA node.
    Node,
    /// NUMA nodes of one machine.
    Remote,
}

/// A machine whose CPUs are numbered by node, then last-level cache (LLC), then core, then hardware thread.
///
/// Therefore the CPUs of a core, of an LLC and of a node are ranges, which a search in a mask walks through word
/// by word. The number that the kernel gave a CPU is [`kernel_cpu`](Self::kernel_cpu). Every look-up is O(1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    cpus: Box<[Place]>,
    /// First CPU of each core, and the number of CPUs; LLCs and nodes likewise.
    cores: Box<[u32]>,
    llcs: Box<[u32]>,
    nodes: Box<[u32]>,
    /// First LLC of each node, and the number of LLCs.
    node_llcs: Box<[u32]>,
    /// The CPUs of each LLC, first hardware threads first; the range of an LLC is that of its CPUs.
    scan: Box<[CpuId]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    kernel: u32,
    core: u32,
    llc: u32,
    node: u32,
    capacity: u32,
    /// Where the CPU is in `scan`.
    scan: u32,
}

impl Machine {
    /// The machine of a topology, real or synthetic. O(CPUs log CPUs).
    pub fn new(topology: &Topology) -> Self {
        let mut order: Vec<_> = topology.cpus().to_vec();
        order.sort_by_key(|cpu| (cpu.node, cpu.llc, cpu.core, cpu.thread, cpu.id));
        let (mut cores, mut llcs, mut nodes, mut node_llcs) = (vec![], vec![], vec![], vec![]);
        let mut cpus = Vec::with_capacity(order.len());
        let mut last = None;
        for (cpu, at) in order.iter().zip(0..) {
            let new = |differs: fn(&amdahl_topology::Cpu, &amdahl_topology::Cpu) -> bool| {
                last.is_none_or(|last| differs(cpu, last))
            };
            if new(|a, b| a.node != b.node) {
                nodes.push(at);
                node_llcs.push(llcs.len() as u32);
            }
            if new(|a, b| a.llc != b.llc) {
                llcs.push(at);
            }
            if new(|a, b| a.core != b.core) {
                cores.push(at);
            }
            cpus.push(Place {
                kernel: cpu.id,
                core: cores.len() as u32 - 1,
                llc: llcs.len() as u32 - 1,
                node: nodes.len() as u32 - 1,
                capacity: cpu.capacity,
                scan: 0,
            });
            last = Some(cpu);
        }
        let mut scan: Vec<CpuId> = (0..cpus.len() as u32).collect();
        let first = |cpu: CpuId| cores[cpus[cpu as usize].core as usize];
        scan.sort_by_key(|&cpu| (cpus[cpu as usize].llc, cpu - first(cpu), cpu));
        for (&cpu, at) in scan.iter().zip(0..) {
            cpus[cpu as usize].scan = at;
        }
        node_llcs.push(llcs.len() as u32);
        for bounds in [&mut cores, &mut llcs, &mut nodes] {
            bounds.push(cpus.len() as u32);
        }
        Machine {
            cpus: cpus.into(),
            cores: cores.into(),
            llcs: llcs.into(),
            nodes: nodes.into(),
            node_llcs: node_llcs.into(),
            scan: scan.into(),
        }
    }

    /// How many CPUs there are; they are numbered below it. At least 1.
    pub fn cpus(&self) -> u32 {
        self.cpus.len() as u32
    }

    /// How many cores there are.
    pub fn cores(&self) -> u32 {
        self.cores.len() as u32 - 1
    }

    /// How many last-level caches there are.
    pub fn llcs(&self) -> u32 {
        self.llcs.len() as u32 - 1
    }

    /// How many NUMA nodes there are.
    pub fn nodes(&self) -> u32 {
        self.nodes.len() as u32 - 1
    }

    /// The kernel's number of `cpu`.
    ///
    /// # Panics
    /// As all methods that take a CPU, core, LLC or node, if there is none of that number.
    pub fn kernel_cpu(&self, cpu: CpuId) -> u32 {
        self.cpus[cpu as usize].kernel
    }

    /// The CPU to which the kernel gave the number `kernel`; `None` if it is not of this machine. O(CPUs): make a
    /// table where it is asked often.
    pub fn cpu_of_kernel(&self, kernel: u32) -> Option<CpuId> {
        let at = self.cpus.iter().position(|place| place.kernel == kernel)?;
        Some(at as u32)
    }

    /// The CPUs of this machine that are in a set of the kernel's numbers, in rising order.
    pub fn cpus_of(&self, kernel: &CpuSet) -> impl Iterator<Item = CpuId> {
        (0..self.cpus()).filter(|&cpu| kernel.contains(self.kernel_cpu(cpu)))
    }

    /// The core of `cpu`.
    pub fn core(&self, cpu: CpuId) -> u32 {
        self.cpus[cpu as usize].core
    }

    /// The last-level cache of `cpu`.
    pub fn llc(&self, cpu: CpuId) -> u32 {
        self.cpus[cpu as usize].llc
    }

    /// The NUMA node of `cpu`.
    pub fn node(&self, cpu: CpuId) -> u32 {
        self.cpus[cpu as usize].node
    }

    /// The speed of `cpu`; the fastest have [`Topology::FULL_CAPACITY`].
    pub fn capacity(&self, cpu: CpuId) -> u32 {
        self.cpus[cpu as usize].capacity
    }

    /// The hardware threads of a core.
    pub fn core_cpus(&self, core: u32) -> Range<CpuId> {
        span(&self.cores, core)
    }

    /// The hardware threads that share the core of `cpu`, itself among them.
    pub fn siblings(&self, cpu: CpuId) -> Range<CpuId> {
        self.core_cpus(self.core(cpu))
    }

    /// The CPUs of a last-level cache.
    pub fn llc_cpus(&self, llc: u32) -> Range<CpuId> {
        span(&self.llcs, llc)
    }

    /// The CPUs of a node.
    pub fn node_cpus(&self, node: u32) -> Range<CpuId> {
        span(&self.nodes, node)
    }

    /// The last-level caches of a node.
    pub fn node_llcs(&self, node: u32) -> Range<u32> {
        span(&self.node_llcs, node)
    }

    /// The node of a last-level cache.
    pub fn node_of_llc(&self, llc: u32) -> u32 {
        self.node(self.llcs[llc as usize])
    }

    /// All CPUs of the LLC of `cpu` in the order in which kernels number them (the first hardware threads of
    /// all cores, then the second ones), beginning with `cpu`, around the end.
    pub fn scan_from(&self, cpu: CpuId) -> impl Iterator<Item = CpuId> + '_ {
        let range = self.llc_cpus(self.llc(cpu));
        let (behind, before) = (self.cpus[cpu as usize].scan, range.start);
        let order = (behind..range.end).chain(before..behind);
        order.map(|at| self.scan[at as usize])
    }

    /// All last-level caches, the nearest to `cpu` first: its own, those of its node, those of other nodes. Each
    /// CPU's neighbours come in another order, so that not all search at one place.
    pub fn llcs_outward(&self, cpu: CpuId) -> impl Iterator<Item = u32> + '_ {
        let (llc, node) = (self.llc(cpu), self.node(cpu));
        let own = self.node_llcs(node);
        let near = (llc..own.end).chain(own.start..llc);
        let far = (node + 1..self.nodes()).chain(0..node);
        near.chain(far.flat_map(|node| self.node_llcs(node)))
    }

    /// What two CPUs share.
    pub fn distance(&self, a: CpuId, b: CpuId) -> Distance {
        let (x, y) = (&self.cpus[a as usize], &self.cpus[b as usize]);
        if a == b {
            Distance::Same
        } else if x.core == y.core {
            Distance::Core
        } else if x.llc == y.llc {
            Distance::Llc
        } else if x.node == y.node {
            Distance::Node
        } else {
            Distance::Remote
        }
    }

    /// The CPUs that are as near to `cpu` as `within`, or nearer.
    pub fn cpus_within(&self, cpu: CpuId, within: Distance) -> Range<CpuId> {
        match within {
            Distance::Same => cpu..cpu + 1,
            Distance::Core => self.siblings(cpu),
            Distance::Llc => self.llc_cpus(self.llc(cpu)),
            Distance::Node => self.node_cpus(self.node(cpu)),
            Distance::Remote => 0..self.cpus(),
        }
    }
}

fn span(bounds: &[u32], index: u32) -> Range<u32> {
    bounds[index as usize]..bounds[index as usize + 1]
}

impl From<&Topology> for Machine {
    fn from(topology: &Topology) -> Self {
        Machine::new(topology)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(description: &str) -> Machine {
        Machine::new(&Topology::synthetic(description).unwrap())
    }

    #[test]
    fn siblings_are_neighbours_whatever_the_kernel_numbers() {
        let m = machine("2 node x 2 llc x 2 core x 2 thread");
        assert_eq!((m.cpus(), m.cores(), m.llcs(), m.nodes()), (16, 8, 4, 2));
        assert_eq!((m.kernel_cpu(0), m.kernel_cpu(1)), (0, 8));
        assert_eq!(m.cpu_of_kernel(8), Some(1));
        assert_eq!(m.siblings(5), 4..6);
        assert_eq!(m.llc_cpus(1), 4..8);
        assert_eq!(m.node_cpus(1), 8..16);
        assert_eq!(m.node_llcs(1), 2..4);
        assert_eq!(m.scan_from(7).collect::<Vec<_>>(), [7, 4, 6, 5]);
        assert_eq!(m.llcs_outward(5).collect::<Vec<_>>(), [1, 0, 2, 3]);
        let far = [0, 1, 2, 4, 8].map(|other| m.distance(0, other));
        use Distance::{Core, Llc, Node, Remote, Same};
        assert_eq!(far, [Same, Core, Llc, Node, Remote]);
        assert_eq!(
            m.cpus_of(&CpuSet::from_iter([8, 3])).collect::<Vec<_>>(),
            [1, 6]
        );
    }

    #[test]
    fn unequal_parts_and_one_cpu() {
        let m = machine("1 llc x (2 core x 2 thread + 3 core@600)");
        assert_eq!((m.cpus(), m.cores()), (7, 5));
        assert_eq!((m.capacity(3), m.capacity(4)), (1024, 600));
        assert_eq!(m.scan_from(0).collect::<Vec<_>>(), [0, 2, 4, 5, 6, 1, 3]);
        assert_eq!(machine("1 core").cpus_within(0, Distance::Remote), 0..1);
    }
}
