//! Places: sets of CPUs that threads are bound to, where they come from (`OMP_PLACES`), and which thread gets which.

mod assign;
mod list;
mod spec;
mod topology;

pub use amdahl_topology::CpuSet;
pub use assign::{Assignment, Partition, Placement, assign};
pub use list::{PlaceList, Unusable};
pub use spec::{Interval, Item, Resource, Spec};
pub use topology::{Cpu, Level, Topology};

#[cfg(test)]
pub(crate) use topology::tests::machine;
