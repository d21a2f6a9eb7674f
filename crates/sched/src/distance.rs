//! How far a migration goes.

use amdahl_topology::Topology;

use crate::event::CpuId;

/// What two CPUs share, from near to far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Distance {
    /// The physical core.
    Core,
    /// The last-level cache.
    Llc,
    /// The NUMA node.
    Node,
    /// Nothing but the machine.
    Across,
    /// One of them is not in the topology.
    Unknown,
}

/// All distances, from near to far.
pub const DISTANCES: [Distance; 5] = [
    Distance::Core,
    Distance::Llc,
    Distance::Node,
    Distance::Across,
    Distance::Unknown,
];

impl Distance {
    /// Stable word for files.
    pub fn id(self) -> &'static str {
        match self {
            Distance::Core => "core",
            Distance::Llc => "llc",
            Distance::Node => "node",
            Distance::Across => "across",
            Distance::Unknown => "unknown",
        }
    }
}

/// What two CPUs share at least. O(log CPUs).
pub fn distance(topology: &Topology, a: CpuId, b: CpuId) -> Distance {
    let (Some(a), Some(b)) = (topology.cpu(a), topology.cpu(b)) else {
        return Distance::Unknown;
    };
    if a.core == b.core {
        Distance::Core
    } else if a.llc == b.llc {
        Distance::Llc
    } else if a.node == b.node {
        Distance::Node
    } else {
        Distance::Across
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_follow_the_machine() {
        let machine = Topology::synthetic("2 node x 2 llc x 2 core x 2 thread").unwrap();
        let of = |id: u32| machine.cpu(id).unwrap();
        for (a, b) in (0..16).flat_map(|a| (0..16).map(move |b| (a, b))) {
            let expected = match (of(a), of(b)) {
                (x, y) if x.core == y.core => Distance::Core,
                (x, y) if x.llc == y.llc => Distance::Llc,
                (x, y) if x.node == y.node => Distance::Node,
                _ => Distance::Across,
            };
            assert_eq!(distance(&machine, a, b), expected);
        }
        assert_eq!(distance(&machine, 0, 99), Distance::Unknown);
    }
}
