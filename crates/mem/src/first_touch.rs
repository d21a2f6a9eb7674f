//! Where memory is, where it was first used, and where the program runs.
//!
//! Memory is placed on the node of the CPU that uses it first, unless a policy says otherwise. One
//! thread that fills all data places all of it on one node; the threads of the other nodes then
//! reach across for it.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::numa_maps::Placement;

/// Mappings whose first uses are told apart. Beyond, the half with the fewest is forgotten: most of them are of processes that ended.
const REGIONS_MAX: usize = 1 << 15;

/// First uses of memory in small pages, by mapping and node.
#[derive(Clone, Debug, Default)]
pub struct Touches {
    by_region: FxHashMap<(u32, u64), BTreeMap<u32, u64>>,
    by_node: BTreeMap<u32, u64>,
}

impl Touches {
    /// `pages` of the mapping of `pid` that begins at `start` were used first on `node`.
    pub fn add(&mut self, pid: u32, start: u64, node: u32, pages: u64) {
        *self.by_node.entry(node).or_default() += pages;
        let key = (pid, start);
        if self.by_region.len() >= REGIONS_MAX && !self.by_region.contains_key(&key) {
            self.forget();
        }
        let of_region = self.by_region.entry(key).or_default();
        *of_region.entry(node).or_default() += pages;
    }

    fn forget(&mut self) {
        let pages = |of_region: &BTreeMap<u32, u64>| of_region.values().sum::<u64>();
        let mut all: Vec<_> = self
            .by_region
            .iter()
            .map(|(&key, of)| (pages(of), key))
            .collect();
        let half = all.len() / 2;
        all.select_nth_unstable(half);
        for (_, key) in &all[..half] {
            self.by_region.remove(key);
        }
    }

    /// First uses by node, of all mappings.
    pub fn by_node(&self) -> &BTreeMap<u32, u64> {
        &self.by_node
    }

    /// First uses by node, of the mappings of `pid` that begin in `range`.
    pub fn within(&self, pid: u32, range: std::ops::Range<u64>) -> BTreeMap<u32, u64> {
        let mut nodes = BTreeMap::new();
        let of = self.by_region.iter();
        for (_, touched) in of.filter(|((p, start), _)| *p == pid && range.contains(start)) {
            for (&node, &count) in touched {
                *nodes.entry(node).or_default() += count;
            }
        }
        nodes
    }
}

/// How the memory of a process lies against where it runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Locality {
    /// Bytes by node.
    pub bytes: BTreeMap<u32, u64>,
    /// Share of the accesses that go to another node, if all threads use all memory alike.
    pub remote: Option<f64>,
    /// Share of the memory on the node that has most.
    pub concentration: f64,
}

/// Adds up `placements`. `ran` is time (in any unit) by node on which the process ran.
pub fn locality<'a>(
    placements: impl IntoIterator<Item = &'a Placement>,
    ran: &BTreeMap<u32, f64>,
) -> Locality {
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for placement in placements {
        for (&node, &more) in &placement.bytes {
            let sum = bytes.entry(node).or_default();
            *sum = sum.saturating_add(more);
        }
    }
    let total: f64 = bytes.values().map(|&bytes| bytes as f64).sum();
    let all: f64 = ran.values().sum();
    let share = |node: &u32| bytes.get(node).map_or(0.0, |&bytes| bytes as f64 / total);
    let remote = (total > 0.0 && all > 0.0).then(|| {
        let local: f64 = ran
            .iter()
            .map(|(node, time)| time / all * share(node))
            .sum();
        (1.0 - local).clamp(0.0, 1.0)
    });
    let most = bytes.values().copied().max().unwrap_or(0) as f64;
    Locality {
        concentration: if total > 0.0 { most / total } else { 0.0 },
        bytes,
        remote,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(bytes: &[(u32, u64)]) -> Placement {
        Placement {
            bytes: bytes.iter().copied().collect(),
            ..Placement::default()
        }
    }

    #[test]
    fn memory_of_one_node_is_remote_for_half_of_two() {
        let placements = [placement(&[(0, 300)]), placement(&[(0, 100)])];
        let both = BTreeMap::from([(0, 5.0), (1, 5.0)]);
        let found = locality(&placements, &both);
        assert_eq!((found.remote, found.concentration), (Some(0.5), 1.0));
        let spread = [placement(&[(0, 100), (1, 100)])];
        assert_eq!(
            locality(&spread, &BTreeMap::from([(0, 1.0)])).remote,
            Some(0.5)
        );
        assert_eq!(locality(&placements, &BTreeMap::new()).remote, None);
        assert_eq!(locality([], &both).remote, None);
    }

    #[test]
    fn processes_that_begin_late_are_told_of_too() {
        let mut touches = Touches::default();
        for pid in 0..2 * REGIONS_MAX as u32 {
            touches.add(pid, 0, 0, 2);
        }
        let late = u32::MAX;
        for _ in 0..3 {
            touches.add(late, 0, 0, 1);
        }
        for pid in 0..2 * REGIONS_MAX as u32 {
            touches.add(pid, 1, 0, 1);
        }
        assert_eq!(touches.within(late, 0..1), BTreeMap::from([(0, 3)]));
        assert!(touches.by_region.len() <= REGIONS_MAX);
        assert_eq!(touches.by_node()[&0], 6 * REGIONS_MAX as u64 + 3);
    }

    #[test]
    fn first_uses_are_counted_by_mapping() {
        let mut touches = Touches::default();
        for (pid, start, node, pages) in [
            (1, 0x1000, 0, 1),
            (1, 0x1000, 1, 512),
            (1, 0x9000, 1, 1),
            (2, 0x1000, 0, 1),
        ] {
            touches.add(pid, start, node, pages);
        }
        assert_eq!(
            touches.within(1, 0..0x2000),
            BTreeMap::from([(0, 1), (1, 512)])
        );
        assert_eq!(touches.by_node(), &BTreeMap::from([(0, 2), (1, 513)]));
    }
}
