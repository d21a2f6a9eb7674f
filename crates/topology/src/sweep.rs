//! Which CPUs a sweep uses, and how many.

use std::cmp::Reverse;

use crate::{Cpu, CpuSet, Topology};

/// In which order a sweep takes CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Near CPUs first: the cores of one LLC, then the next LLC, then the next node.
    #[default]
    Compact,
    /// Far CPUs first: round-robin over packages, in them over nodes, LLCs, cores.
    Spread,
}

impl Topology {
    /// The CPUs of `allowed` in the order in which a sweep takes them.
    ///
    /// In both orders a second hardware thread of a core comes after every core
    /// has its first (first among `allowed`), and among these big cores come
    /// before little ones. Within cores of one capacity, `Compact` finishes an
    /// LLC before it enters the next, and a node before the next; `Spread` keeps
    /// the number of CPUs taken from any two packages, any two nodes of a
    /// package, and any two LLCs of a node within one of each other until one
    /// has no more to give. CPUs that this topology does not know come last, by
    /// number.
    ///
    /// O(CPUs log CPUs).
    pub fn sweep_order(&self, order: Order, allowed: &CpuSet) -> Vec<u32> {
        let mut taken_of_core = vec![0u32; self.cores() as usize];
        let mut ranked: Vec<(u32, &Cpu)> = self
            .cpus()
            .iter()
            .filter(|cpu| allowed.contains(cpu.id))
            .map(|cpu| (next(&mut taken_of_core, cpu.core), cpu))
            .collect();
        // Core indices follow packages, nodes and LLCs.
        ranked.sort_by_key(|&(rank, cpu)| (rank, Reverse(cpu.capacity), cpu.core));
        let mut cpus: Vec<&Cpu> = ranked.iter().map(|&(_, cpu)| cpu).collect();
        if order == Order::Spread {
            let groups = ranked
                .chunk_by(|(rank_a, a), (rank_b, b)| (rank_a, a.capacity) == (rank_b, b.capacity));
            let mut rest = cpus.as_mut_slice();
            for group in groups {
                let (cpus, after) = rest.split_at_mut(group.len());
                self.deal(cpus, self.llcs(), |cpu| cpu.llc);
                self.deal(cpus, self.nodes(), |cpu| cpu.node);
                self.deal(cpus, self.packages(), |cpu| cpu.package);
                rest = after;
            }
        }
        let unknown = allowed.difference(&self.cpu_set());
        cpus.iter()
            .map(|cpu| cpu.id)
            .chain(unknown.iter())
            .collect()
    }

    /// Reorders `cpus` round-robin over the `groups`, each in its present order.
    fn deal(&self, cpus: &mut [&Cpu], groups: u32, group_of: fn(&Cpu) -> u32) {
        let mut dealt = vec![0u32; groups as usize];
        let mut turns: Vec<(u32, u32, &Cpu)> = cpus
            .iter()
            .map(|cpu| (next(&mut dealt, group_of(cpu)), group_of(cpu), *cpu))
            .collect();
        turns.sort_by_key(|&(turn, group, _)| (turn, group));
        for (slot, (_, _, cpu)) in cpus.iter_mut().zip(turns) {
            *slot = cpu;
        }
    }
}

/// How often `index` was counted before.
fn next(counters: &mut [u32], index: u32) -> u32 {
    let counter = &mut counters[index as usize];
    *counter += 1;
    *counter - 1
}

/// The most CPU counts that [`sweep_counts`] proposes.
const COUNTS_MAX: usize = 9;

/// CPU counts worth measuring on at most `max` CPUs of `topology`, rising, at most nine.
///
/// Always 1 and `max`; where compact order leaves the first LLC, the first node,
/// the big cores, and the first hardware threads, since speedup curves bend there;
/// and powers of two between, the most crowded left out first. None for `max` = 0.
///
/// O(CPUs log CPUs).
pub fn sweep_counts(max: u32, topology: &Topology) -> Vec<u32> {
    if max == 0 {
        return Vec::new();
    }
    let mut fixed = boundaries(topology);
    fixed.retain(|&count| count < max);
    fixed.extend([1, max]);

    let mut counts: Vec<u32> = (0..32).map(|i| 1 << i).take_while(|&n| n < max).collect();
    counts.extend(&fixed);
    counts.sort_unstable();
    counts.dedup();
    while counts.len() > COUNTS_MAX {
        // The point whose neighbours are nearest to each other tells least.
        let crowded = (1..counts.len() - 1)
            .filter(|&i| !fixed.contains(&counts[i]))
            .min_by(|&i, &j| gap(&counts, i).total_cmp(&gap(&counts, j)));
        match crowded {
            Some(i) => counts.remove(i),
            None => break,
        };
    }
    counts
}

fn gap(counts: &[u32], i: usize) -> f64 {
    f64::from(counts[i + 1]) / f64::from(counts[i - 1])
}

/// How many CPUs compact order takes before it leaves its first LLC, node,
/// capacity, and hardware threads; at most four counts.
fn boundaries(topology: &Topology) -> Vec<u32> {
    let order = topology.sweep_order(Order::Compact, &topology.cpu_set());
    let cpus: Vec<&Cpu> = order.iter().filter_map(|&id| topology.cpu(id)).collect();
    let leaves = |group_of: fn(&Cpu) -> u32| {
        let differs = |cpu: &&Cpu| group_of(cpu) != group_of(cpus[0]);
        cpus.iter().position(differs).map(|i| i as u32)
    };
    [
        leaves(|cpu| cpu.llc),
        leaves(|cpu| cpu.node),
        leaves(|cpu| cpu.capacity),
        leaves(|cpu| cpu.thread),
    ]
    .into_iter()
    .flatten()
    .collect()
}
