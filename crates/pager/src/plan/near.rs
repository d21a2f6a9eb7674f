//! Near whom a reader should run: at the last-level cache, or the node, of most of the threads that faulted lately.
//!
//! Votes are kept one by one, so nothing here grows with the machine; what a decision costs does, a vote does not but for finding its CPU.

use amdahl_topology::{CpuSet, Topology};

/// Votes that are remembered.
pub(crate) const VOTES: usize = 64;
/// So many are enough to decide.
const ENOUGH: usize = 16;

/// Where a reader is bound. Numbers are those of [`Topology`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    #[default]
    Everywhere,
    Node(u32),
    Llc(u32),
}

/// Where a faulting thread ran.
#[derive(Clone, Copy, Debug)]
struct Spot {
    llc: u32,
    node: u32,
}

impl Place {
    /// Who is not known to be anywhere is in no smaller place.
    fn has(self, spot: Option<Spot>) -> bool {
        match self {
            Place::Everywhere => true,
            Place::Node(node) => spot.is_some_and(|spot| spot.node == node),
            Place::Llc(llc) => spot.is_some_and(|spot| spot.llc == llc),
        }
    }
}

/// The votes on one reader, and where it is.
#[derive(Debug)]
pub(crate) struct Near {
    /// A ring of the last ones.
    votes: [Option<Spot>; VOTES],
    len: usize,
    next: usize,
    place: Place,
    /// The CPUs it was bound to, if it ever was.
    cpus: Option<CpuSet>,
    decided_ns: Option<u64>,
}

impl Default for Near {
    fn default() -> Near {
        Near {
            votes: [None; VOTES],
            len: 0,
            next: 0,
            place: Place::Everywhere,
            cpus: None,
            decided_ns: None,
        }
    }
}

impl Near {
    pub fn place(&self) -> Place {
        self.place
    }

    /// A thread faulted that ran on this CPU last, if that is known. O(log CPUs).
    pub fn vote(&mut self, topology: &Topology, cpu: Option<u32>) {
        let cpu = cpu.and_then(|cpu| topology.cpu(cpu));
        self.votes[self.next] = cpu.map(|cpu| Spot {
            llc: cpu.llc,
            node: cpu.node,
        });
        self.next = (self.next + 1) % VOTES;
        self.len = (self.len + 1).min(VOTES);
    }

    fn votes(&self) -> &[Option<Spot>] {
        &self.votes[..self.len]
    }

    /// Of all that are remembered nobody's CPU was known.
    pub fn is_blind(&self) -> bool {
        self.len == VOTES && self.votes().iter().all(Option::is_none)
    }

    /// Whether there is something to decide by, and the last decision is `gap_ns` ago.
    pub fn is_due(&self, now_ns: u64, gap_ns: u64) -> bool {
        let is_late = |decided_ns: u64| now_ns.saturating_sub(decided_ns) >= gap_ns;
        self.len >= ENOUGH && self.decided_ns.is_none_or(is_late)
    }

    /// Where to bind the reader from now on, and to which CPUs, unless it stays as it is: a part of `allowed`, of `least` CPUs or more, or all of
    /// `allowed`. They are others for the same place when `allowed` has changed. O(CPUs).
    pub fn decide(
        &mut self,
        topology: &Topology,
        allowed: &CpuSet,
        least: usize,
        now_ns: u64,
    ) -> Option<(Place, CpuSet)> {
        self.decided_ns = Some(now_ns);
        let (place, cpus) = fit(topology, self.wish(), allowed, least);
        // Who was never bound gets what is allowed without us.
        let has_all = self.cpus.is_none() && place == Place::Everywhere;
        let is_same = place == self.place && (has_all || self.cpus.as_ref() == Some(&cpus));
        (!is_same).then_some((place, cpus))
    }

    /// It is bound as was decided.
    pub fn moved(&mut self, place: Place, cpus: CpuSet) {
        if place != self.place {
            // What was seen from there decides nothing here: threads follow who wakes them.
            (self.len, self.next) = (0, 0);
        }
        self.place = place;
        self.cpus = Some(cpus);
    }

    /// Where the votes want it: a smaller place has three quarters of them; one that it is in is left for a larger one when less than half want it, and for
    /// all CPUs when a quarter at most does.
    fn wish(&self) -> Place {
        let votes = self.votes();
        let is_clear = |count: usize| count * 4 >= votes.len() * 3;
        let here = votes.iter().filter(|vote| self.place.has(**vote)).count();
        let known = votes.iter().flatten();
        match (
            majority(known.clone().map(|spot| spot.llc)),
            majority(known.map(|spot| spot.node)),
        ) {
            (Some((llc, count)), _) if is_clear(count) => Place::Llc(llc),
            (_, Some((node, count))) if is_clear(count) => match self.place {
                // Then it is one of that node.
                Place::Llc(_) if here * 2 >= votes.len() => self.place,
                _ => Place::Node(node),
            },
            _ if here * 4 > votes.len() => self.place,
            _ => Place::Everywhere,
        }
    }
}

/// The only value that more than half can have (Boyer and Moore's majority vote), and how many have it.
fn majority(values: impl Iterator<Item = u32> + Clone) -> Option<(u32, usize)> {
    let mut candidate = (0, 0);
    for value in values.clone() {
        candidate = match candidate {
            (_, 0) => (value, 1),
            (best, lead) if best == value => (best, lead + 1),
            (best, lead) => (best, lead - 1),
        };
    }
    let count = values.filter(|&value| value == candidate.0).count();
    (count > 0).then_some((candidate.0, count))
}

/// The smallest place around `wish` of which at least so many CPUs are allowed, and those. One that has all of them is everywhere.
fn fit(topology: &Topology, wish: Place, allowed: &CpuSet, least: usize) -> (Place, CpuSet) {
    let cpus = topology.cpus().iter();
    let node = match wish {
        Place::Everywhere => None,
        Place::Node(node) => Some(node),
        Place::Llc(llc) => cpus.clone().find(|cpu| cpu.llc == llc).map(|cpu| cpu.node),
    };
    for place in [Some(wish), node.map(Place::Node)].into_iter().flatten() {
        let is_in = |llc, node| place.has(Some(Spot { llc, node }));
        let set: CpuSet = cpus
            .clone()
            .filter(|cpu| is_in(cpu.llc, cpu.node) && allowed.contains(cpu.id))
            .map(|cpu| cpu.id)
            .collect();
        if set.len() >= least.max(1) && set.len() < allowed.len() {
            return (place, set);
        }
    }
    (Place::Everywhere, allowed.clone())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const GAP_NS: u64 = 1000;

    fn machine(text: &str) -> Topology {
        Topology::synthetic(text).unwrap()
    }

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    /// A reader of a machine of which these CPUs are allowed.
    struct Reader {
        topology: Topology,
        allowed: CpuSet,
        near: Near,
        now_ns: u64,
    }

    impl Reader {
        fn new(text: &str) -> Reader {
            Reader::on(machine(text))
        }

        fn on(topology: Topology) -> Reader {
            Reader {
                allowed: topology.cpu_set(),
                topology,
                near: Near::default(),
                now_ns: 0,
            }
        }

        fn vote(&mut self, cpus: impl IntoIterator<Item = u32>) {
            for cpu in cpus {
                self.near.vote(&self.topology, Some(cpu));
            }
        }

        /// What is decided when enough time has passed, and carried out.
        fn decide(&mut self) -> Option<(Place, String)> {
            self.now_ns += GAP_NS;
            if !self.near.is_due(self.now_ns, GAP_NS) {
                return None;
            }
            let (place, cpus) = self
                .near
                .decide(&self.topology, &self.allowed, 2, self.now_ns)?;
            let text = cpus.to_string();
            self.near.moved(place, cpus);
            Some((place, text))
        }
    }

    fn to(place: Place, cpus: &str) -> Option<(Place, String)> {
        Some((place, cpus.to_owned()))
    }

    /// So many of each, in turn.
    fn mixed(parts: &[(u32, usize)]) -> Vec<u32> {
        let most = parts.iter().map(|part| part.1).max().unwrap_or(0);
        let round = |nth| parts.iter().filter(move |part| nth < part.1);
        (0..most).flat_map(round).map(|part| part.0).collect()
    }

    #[test]
    fn a_reader_follows_the_cache_of_those_who_fault() {
        let mut reader = Reader::new("2 llc x 4 core");
        reader.vote([5; ENOUGH - 1]);
        assert_eq!(reader.decide(), None, "too few");
        reader.vote([6]);
        assert_eq!(reader.decide(), to(Place::Llc(1), "4-7"));
        reader.vote([4; VOTES]);
        assert_eq!(reader.decide(), None, "it is there");
        // A quarter and a half elsewhere are no reason to go.
        reader.vote(mixed(&[(4, 48), (0, 16)]));
        assert_eq!(reader.decide(), None);
        reader.vote(mixed(&[(4, 32), (0, 32)]));
        assert_eq!(reader.decide(), None);
        reader.vote(mixed(&[(4, 16), (0, 48)]));
        assert_eq!(reader.decide(), to(Place::Llc(0), "0-3"));
        // One node has all CPUs: that is everywhere.
        reader.vote(mixed(&[(4, 40), (0, 24)]));
        assert_eq!(reader.decide(), to(Place::Everywhere, "0-7"));
    }

    #[test]
    fn threads_that_span_caches_have_the_node() {
        let mut reader = Reader::new("2 node x 2 llc x 4 core");
        reader.vote(mixed(&[(8, 30), (12, 30), (0, 4)]));
        assert_eq!(reader.decide(), to(Place::Node(1), "8-15"));
        reader.vote(mixed(&[(8, 48), (12, 16)]));
        assert_eq!(reader.decide(), to(Place::Llc(2), "8-11"));
        reader.vote(mixed(&[(8, 32), (12, 32)]));
        assert_eq!(reader.decide(), None, "half of them are here");
        reader.vote(mixed(&[(8, 31), (12, 33)]));
        assert_eq!(reader.decide(), to(Place::Node(1), "8-15"));
        // The other node, as far as there is a clear majority.
        reader.vote(mixed(&[(0, 20), (4, 20), (8, 24)]));
        assert_eq!(reader.decide(), None);
        reader.vote(mixed(&[(0, 24), (4, 24), (8, 16)]));
        assert_eq!(reader.decide(), to(Place::Node(0), "0-7"));
        // All over the machine.
        reader.vote(mixed(&[(0, 8), (4, 8), (8, 24), (12, 22)]));
        assert_eq!(reader.decide(), None);
        let all = Reader::new("3 node x 2 core");
        let mut reader = all;
        reader.vote([0; VOTES]);
        assert_eq!(reader.decide(), to(Place::Llc(0), "0-1"));
        reader.vote(mixed(&[(0, 16), (2, 24), (4, 24)]));
        assert_eq!(reader.decide(), to(Place::Everywhere, "0-5"));
    }

    #[test]
    fn machines_of_512_cpus_with_holes_in_their_numbers() {
        let mut cpus = machine("8 node x 8 llc x 8 core").cpus().to_vec();
        for cpu in &mut cpus {
            cpu.id *= 5;
        }
        let mut reader = Reader::on(Topology::from_cpus(&cpus).unwrap());
        reader.vote((0..64).map(|nth| (500 + nth % 4) * 5));
        assert_eq!(
            reader.decide(),
            to(Place::Llc(62), "2480,2485,2490,2495,2500,2505,2510,2515")
        );
        reader.vote((0..64).map(|nth| (448 + nth) * 5));
        let (place, cpus) = reader.decide().unwrap();
        assert_eq!(place, Place::Node(7));
        assert_eq!(set(&cpus).len(), 64);
    }

    #[test]
    fn what_is_not_allowed_is_left_out_and_a_single_cpu_is_no_place() {
        let mut reader = Reader::new("2 node x 2 llc x 4 core");
        // One LLC is forbidden: its node remains.
        reader.allowed = set("0-7,12-15");
        reader.vote([8; VOTES]);
        assert_eq!(reader.decide(), to(Place::Node(1), "12-15"));
        // Three CPUs of another are offline.
        reader.allowed = set("0,4-15");
        reader.vote([0; VOTES]);
        assert_eq!(reader.decide(), to(Place::Node(0), "0,4-7"));
        // The set of a place follows what is allowed, without a move.
        reader.allowed = set("0-15");
        reader.vote(mixed(&[(0, 32), (4, 32)]));
        assert_eq!(reader.decide(), to(Place::Node(0), "0-7"));
        assert_eq!(reader.near.len, VOTES, "its votes hold for it still");
        // Nothing of the node is allowed any more, or one CPU.
        reader.allowed = set("3,8-15");
        assert_eq!(reader.decide(), to(Place::Everywhere, "3,8-15"));
        reader.vote([1; VOTES]);
        assert_eq!(reader.decide(), None);
        // All that is allowed is one cache, or one CPU: it is not less than that, and not what was allowed before.
        for all in ["0-3", "2", "2,8"] {
            reader.allowed = set(all);
            assert_eq!(reader.decide(), to(Place::Everywhere, all));
            assert_eq!(reader.decide(), None);
        }
        // Who was never bound has it without that.
        reader.near = Near::default();
        reader.vote([1; VOTES]);
        for all in ["0-3", "2"] {
            reader.allowed = set(all);
            assert_eq!(reader.decide(), None);
        }
    }

    #[test]
    fn one_cache_is_everywhere() {
        let mut reader = Reader::new("8 core x 2 thread");
        reader.vote([3; VOTES]);
        assert_eq!(reader.decide(), None);
    }

    #[test]
    fn a_decision_that_was_not_carried_out_is_made_again() {
        let mut reader = Reader::new("2 llc x 4 core");
        reader.vote([5; VOTES]);
        for turn in 1..3 {
            let now = turn * GAP_NS;
            assert!(reader.near.is_due(now, GAP_NS));
            let decided = reader
                .near
                .decide(&reader.topology, &reader.allowed, 2, now);
            assert_eq!(decided, Some((Place::Llc(1), set("4-7"))));
            assert!(!reader.near.is_due(now + GAP_NS - 1, GAP_NS));
        }
        assert_eq!(reader.near.place(), Place::Everywhere);
    }

    #[test]
    fn threads_that_nobody_knows_of_leave_the_reader_free() {
        let mut reader = Reader::new("2 llc x 4 core");
        reader.vote([5; VOTES]);
        assert_eq!(reader.decide(), to(Place::Llc(1), "4-7"));
        for nth in 0..VOTES {
            assert!(!reader.near.is_blind(), "{nth}");
            // No CPU, or one that came since.
            let cpu = (nth % 2 == 0).then_some(700);
            reader.near.vote(&reader.topology, cpu);
        }
        assert!(reader.near.is_blind());
        assert_eq!(reader.decide(), to(Place::Everywhere, "0-7"));
    }

    fn any_machine() -> impl Strategy<Value = Topology> {
        prop::sample::select(vec![
            "2 core",
            "2 llc x 4 core",
            "2 llc x 1 core",
            "2 node x 2 llc x 2 core x 2 thread",
            "3 node x (1 llc x 3 core + 2 llc x 1 core)",
            "8 node x 8 llc x 8 core",
        ])
        .prop_map(machine)
    }

    proptest! {
        #[test]
        fn decisions_are_allowed_and_of_a_clear_majority(
            topology in any_machine(),
            rounds in prop::collection::vec((prop::collection::vec((0u32..8, any::<prop::sample::Index>()), 0..100), any::<u64>(), 0usize..4), 1..12),
        ) {
            let count = topology.cpus().len();
            let mut near = Near::default();
            let mut last: Vec<Option<u32>> = Vec::new();
            for (nth, (votes, mask, least)) in rounds.into_iter().enumerate() {
                for (skew, cpu) in votes {
                    // Mostly of one part, now and then of any, or of none.
                    let cpu = match skew {
                        0 => None,
                        1 => Some(cpu.index(count) as u32),
                        _ => Some(((nth * 7 + cpu.index(3)) % count) as u32),
                    };
                    near.vote(&topology, cpu);
                    last.push(cpu);
                }
                let allowed: CpuSet = topology.cpu_set().iter()
                    .filter(|cpu| mask.rotate_right(cpu % 61) & 1 != 0).collect();
                if allowed.is_empty() {
                    continue;
                }
                let seen = &last[last.len().saturating_sub(VOTES)..];
                let of = |place: Place| seen.iter().flatten().filter(|cpu| {
                    let cpu = topology.cpu(**cpu).unwrap();
                    place.has(Some(Spot { llc: cpu.llc, node: cpu.node }))
                }).count();
                let before = near.place();
                prop_assert_eq!(near.is_due(nth as u64, 0), seen.len() >= ENOUGH);
                if seen.len() < ENOUGH {
                    continue;
                }
                // By a naive count.
                let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
                for cpu in seen.iter().flatten() {
                    *counts.entry(topology.cpu(*cpu).unwrap().llc).or_default() += 1;
                }
                let clear = counts.iter().find(|count| count.1 * 4 >= seen.len() * 3);
                prop_assert_eq!(
                    match near.wish() { Place::Llc(llc) if Place::Llc(llc) != before => Some(llc), _ => None },
                    clear.map(|count| *count.0).filter(|llc| Place::Llc(*llc) != before)
                );
                let wish = near.wish();
                if wish != before {
                    match wish {
                        Place::Everywhere => prop_assert!(of(before) * 4 <= seen.len()),
                        place => prop_assert!(of(place) * 4 >= seen.len() * 3),
                    }
                }
                let Some((place, cpus)) = near.decide(&topology, &allowed, least, nth as u64) else {
                    continue;
                };
                prop_assert!(cpus.difference(&allowed).is_empty());
                prop_assert!(cpus == allowed || cpus.len() >= least.max(1));
                prop_assert_eq!(cpus == allowed, place == Place::Everywhere);
                let (votes, len, next) = (near.votes, near.len, near.next);
                near.moved(place, cpus);
                if place != before {
                    last.clear();
                    prop_assert_eq!(near.len, 0);
                }
                // The same votes want the same again.
                let still = Near { votes, len, next, place, cpus: near.cpus.clone(), decided_ns: None }
                    .decide(&topology, &allowed, least, 0);
                prop_assert_eq!(still, None);
            }
        }
    }
}
