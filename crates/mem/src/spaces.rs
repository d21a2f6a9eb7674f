//! Which mapping an address was in, at the time: address spaces as events tell them.
//!
//! The kernel reports what is mapped and never what is unmapped, so a range keeps its last mapping;
//! that is right for the addresses of page faults, which are mapped by definition.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::mapping::Backing;

/// Mappings kept of one address space.
const REGIONS_MAX: usize = 1 << 16;
/// Address spaces kept.
const SPACES_MAX: usize = 1 << 14;
/// Of these, those of processes whose first thread ended: others of its threads may live on.
const ENDED_MAX: usize = 1 << 11;

/// A range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// What is behind it.
    pub backing: Backing,
    /// `MAP_SHARED`.
    pub is_shared: bool,
    /// File or name in brackets.
    pub name: Arc<str>,
}

type Regions = BTreeMap<u64, Region>;

#[derive(Clone, Debug, Default)]
struct Space {
    /// Shared with children until either changes it.
    regions: Arc<Regions>,
    has_ended: bool,
}

/// The address spaces of all processes.
#[derive(Clone, Debug, Default)]
pub struct Spaces {
    spaces: FxHashMap<u32, Space>,
    /// In the order in which their first threads ended.
    ended: VecDeque<u32>,
}

impl Spaces {
    /// `pid` maps a region. Logarithmic in its mappings, plus those that it replaces.
    pub fn map(&mut self, pid: u32, region: Region) {
        if region.end <= region.start {
            return;
        }
        let space = self.spaces.entry(pid).or_default();
        space.has_ended = false;
        let space = Arc::make_mut(&mut space.regions);
        clear(space, region.start, region.end);
        if space.len() < REGIONS_MAX {
            space.insert(region.start, region);
        }
        self.forget();
    }

    /// `child` begins with the address space of `parent`. Constant time.
    pub fn fork(&mut self, parent: u32, child: u32) {
        match self.spaces.get(&parent) {
            Some(space) => {
                let regions = Arc::clone(&space.regions);
                let has_ended = false;
                self.spaces.insert(child, Space { regions, has_ended });
            }
            // Its id may have been another's.
            None => {
                self.spaces.remove(&child);
            }
        }
        self.forget();
    }

    /// `pid` begins with an empty one.
    pub fn exec(&mut self, pid: u32) {
        self.spaces.insert(pid, Space::default());
        self.forget();
    }

    /// The first thread of `pid` ended: its address space is forgotten when that of many more have, unless something is mapped
    /// there meanwhile.
    pub fn exit(&mut self, pid: u32) {
        let Some(space) = self.spaces.get_mut(&pid) else {
            return;
        };
        space.has_ended = true;
        self.ended.push_back(pid);
        if self.ended.len() > ENDED_MAX
            && let Some(oldest) = self.ended.pop_front()
            // Its id may be another's meanwhile.
            && self.spaces.get(&oldest).is_some_and(|space| space.has_ended)
        {
            self.spaces.remove(&oldest);
        }
    }

    /// The region of `address` in the address space of `pid`.
    pub fn find(&self, pid: u32, address: u64) -> Option<&Region> {
        let regions = &self.spaces.get(&pid)?.regions;
        let (_, region) = regions.range(..=address).next_back()?;
        (address < region.end).then_some(region)
    }

    /// Nobody told of any end: the lowest numbers are the oldest, mostly.
    fn forget(&mut self) {
        if self.spaces.len() > SPACES_MAX {
            let mut pids: Vec<u32> = self.spaces.keys().copied().collect();
            pids.sort_unstable();
            for pid in &pids[..pids.len() / 2] {
                self.spaces.remove(pid);
            }
        }
    }
}

fn clear(space: &mut Regions, start: u64, end: u64) {
    let before = space.range(..start).next_back();
    if let Some(region) = before.map(|(_, region)| region).filter(|r| r.end > start) {
        let mut head = region.clone();
        let tail = (head.end > end).then(|| Region {
            start: end,
            ..head.clone()
        });
        head.end = start;
        space.insert(head.start, head);
        if let Some(tail) = tail {
            space.insert(tail.start, tail);
        }
    }
    while let Some((&at, region)) = space.range(start..end).next() {
        let tail = (region.end > end).then(|| Region {
            start: end,
            ..region.clone()
        });
        space.remove(&at);
        if let Some(tail) = tail {
            space.insert(tail.start, tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region(start: u64, end: u64, name: &str) -> Region {
        Region {
            start,
            end,
            backing: Backing::File,
            is_shared: false,
            name: name.into(),
        }
    }

    #[test]
    fn children_go_their_own_way() {
        let mut spaces = Spaces::default();
        spaces.map(1, region(0, 100, "old"));
        spaces.fork(1, 2);
        spaces.map(2, region(10, 20, "new"));
        let name = |spaces: &Spaces, pid, at| spaces.find(pid, at).map(|r| r.name.to_string());
        assert_eq!(name(&spaces, 1, 15).as_deref(), Some("old"));
        assert_eq!(name(&spaces, 2, 15).as_deref(), Some("new"));
        assert_eq!(name(&spaces, 2, 25).as_deref(), Some("old"));
        spaces.exec(2);
        assert_eq!((name(&spaces, 2, 15), name(&spaces, 3, 15)), (None, None));
    }

    /// Nobody told of ends: the first process was forgotten with the oldest half of its children.
    #[test]
    fn who_lives_is_not_forgotten_for_those_that_ended() {
        let mut spaces = Spaces::default();
        spaces.map(1, region(0, 1, "x"));
        for pid in 2..3 * SPACES_MAX as u32 {
            spaces.fork(1, pid);
            assert!(spaces.find(pid, 0).is_some(), "{pid}");
            spaces.exit(pid);
        }
        assert!(spaces.find(1, 0).is_some());
        assert!(spaces.spaces.len() <= ENDED_MAX + 2);
    }

    #[test]
    fn an_id_that_is_used_again_is_not_forgotten_for_who_had_it_before() {
        let mut spaces = Spaces::default();
        spaces.map(1, region(0, 1, "parent"));
        for (pid, lives_on) in [(2, false), (3, true), (4, false)] {
            spaces.map(pid, region(0, 1, "old"));
            spaces.exit(pid);
            if lives_on {
                spaces.map(pid, region(10, 20, "of another thread"));
            }
        }
        spaces.fork(1, 2);
        for pid in 10..20 + ENDED_MAX as u32 {
            spaces.fork(1, pid);
            spaces.exit(pid);
        }
        assert!(spaces.find(2, 0).is_some(), "used again");
        assert!(spaces.find(3, 15).is_some(), "its first thread ended");
        assert_eq!(spaces.find(4, 0), None);
        assert!(spaces.ended.len() <= ENDED_MAX);
    }

    /// An id that is used again once kept the mappings of who had it before.
    #[test]
    fn the_child_of_somebody_unknown_begins_without_mappings() {
        let mut spaces = Spaces::default();
        spaces.map(2, region(0, 100, "old"));
        spaces.fork(1, 2);
        assert_eq!(spaces.find(2, 15), None);
    }

    #[test]
    fn the_number_of_address_spaces_is_bounded() {
        let mut spaces = Spaces::default();
        for pid in 0..3 * SPACES_MAX as u32 {
            spaces.map(pid, region(0, 1, "x"));
            spaces.exit(pid);
        }
        assert!(spaces.spaces.len() <= SPACES_MAX + 1);
        assert!(
            spaces.find(3 * SPACES_MAX as u32 - 1, 0).is_some(),
            "the newest is kept"
        );
    }

    proptest! {
        #[test]
        fn the_last_mapping_wins(maps in proptest::collection::vec((0u64..60, 0u64..60), 0..40)) {
            let mut spaces = Spaces::default();
            let mut model: [Option<String>; 64] = [const { None }; 64];
            for (i, &(start, end)) in maps.iter().enumerate() {
                let name = i.to_string();
                spaces.map(1, region(start, end, &name));
                if start < end {
                    for at in &mut model[start as usize..end as usize] {
                        *at = Some(name.clone());
                    }
                }
            }
            for (at, expected) in model.iter().enumerate() {
                let found = spaces.find(1, at as u64).map(|region| region.name.to_string());
                prop_assert_eq!(&found, expected);
            }
        }
    }
}
