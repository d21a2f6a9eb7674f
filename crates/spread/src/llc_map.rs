//! Which last-level cache each CPU belongs to, as a table that is looked up on every addition.

use std::fs;
use std::sync::{Arc, OnceLock};

use amdahl_topology::{CpuSet, Topology};

/// For each CPU that this machine can ever have, the last-level cache (LLC) that it shares.
///
/// CPUs that are not online when the map is made belong to some LLC or other: what is stored by
/// this map stays exact, it is only a little slower from there.
#[derive(Debug, PartialEq, Eq)]
pub struct LlcMap {
    llc_of: Box<[u32]>,
    llcs: u32,
}

impl LlcMap {
    /// This machine's; read from sysfs once in the life of the process. Where that fails, all CPUs share one LLC.
    pub fn of_this_machine() -> Arc<LlcMap> {
        static MACHINE: OnceLock<Arc<LlcMap>> = OnceLock::new();
        let read = || Arc::new(LlcMap::new(&this_machine(), possible_cpus()));
        Arc::clone(MACHINE.get_or_init(read))
    }

    /// The map of a machine that has the CPUs of `topology` now and can have those below `possible`. It takes 4 bytes for each
    /// of them, and ends the process, as vectors do, if there is no memory for it.
    pub fn new(topology: &Topology, possible: u32) -> LlcMap {
        let llcs = topology.llcs();
        let known = topology.cpus().last().map_or(0, |cpu| cpu.id + 1);
        let mut llc_of: Box<[u32]> = (0..possible.max(known)).map(|cpu| cpu % llcs).collect();
        for cpu in topology.cpus() {
            llc_of[cpu.id as usize] = cpu.llc;
        }
        LlcMap { llc_of, llcs }
    }

    /// The bound of CPU numbers: those that can ever be are below it.
    pub fn cpus(&self) -> u32 {
        self.llc_of.len() as u32
    }

    /// How many LLCs there are.
    pub fn llcs(&self) -> u32 {
        self.llcs
    }

    /// The LLC of `cpu`, from 0; some LLC for a CPU beyond the bound.
    #[inline]
    pub fn llc(&self, cpu: u32) -> u32 {
        match self.llc_of.get(cpu as usize) {
            Some(&llc) => llc,
            None => cpu % self.llcs,
        }
    }
}

fn this_machine() -> Topology {
    Topology::read().unwrap_or_else(|_| {
        let one = CpuSet::from_iter([0]);
        Topology::flat(&one).expect("there is a CPU")
    })
}

/// The bound of CPU numbers, hot-plugged CPUs included: Documentation/admin-guide/cputopology.rst.
fn possible_cpus() -> u32 {
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").ok();
    let cpus = possible.and_then(|text| text.trim().parse::<CpuSet>().ok());
    cpus.and_then(|cpus| cpus.last()).map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_with_holes_and_without_an_llc_have_one() {
        let cpus = CpuSet::from_iter([1, 5]);
        let map = LlcMap::new(&Topology::flat(&cpus).unwrap(), 4);
        assert_eq!((map.cpus(), map.llcs()), (6, 1));
        let map = LlcMap::new(&Topology::synthetic("4 llc x 2 core").unwrap(), 16);
        assert_eq!((map.cpus(), map.llcs()), (16, 4));
        assert_eq!([0, 1, 2, 7].map(|cpu| map.llc(cpu)), [0, 0, 1, 3]);
        for cpu in [8, 15, 16, u32::MAX] {
            assert!(map.llc(cpu) < 4);
        }
    }

    #[test]
    fn this_machine_is_read() {
        let map = LlcMap::of_this_machine();
        assert!(map.llcs() >= 1 && map.cpus() >= map.llcs());
    }
}
