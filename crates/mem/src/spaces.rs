//! Which mapping an address was in, at the time: address spaces as events tell them.
//!
//! The kernel reports what is mapped and never what is unmapped, so a range keeps its last mapping;
//! that is right for the addresses of page faults, which are mapped by definition.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::mapping::Backing;

/// Mappings kept of one address space.
const REGIONS_MAX: usize = 1 << 16;
/// Address spaces kept; beyond, those of processes that ended are forgotten.
const SPACES_MAX: usize = 1 << 14;

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

type Space = BTreeMap<u64, Region>;

/// The address spaces of all processes.
#[derive(Clone, Debug, Default)]
pub struct Spaces {
    spaces: FxHashMap<u32, Arc<Space>>,
    ended: Vec<u32>,
}

impl Spaces {
    /// `pid` maps a region. Logarithmic in its mappings, plus those that it replaces.
    pub fn map(&mut self, pid: u32, region: Region) {
        if region.end <= region.start {
            return;
        }
        let space = Arc::make_mut(self.spaces.entry(pid).or_default());
        clear(space, region.start, region.end);
        if space.len() < REGIONS_MAX {
            space.insert(region.start, region);
        }
        self.forget();
    }

    /// `child` begins with the address space of `parent`. Constant time.
    pub fn fork(&mut self, parent: u32, child: u32) {
        match self.spaces.get(&parent).cloned() {
            Some(space) => self.spaces.insert(child, space),
            // Its id may have been another's.
            None => self.spaces.remove(&child),
        };
        self.forget();
    }

    /// `pid` begins with an empty one.
    pub fn exec(&mut self, pid: u32) {
        self.spaces.insert(pid, Arc::default());
    }

    /// `pid` ended: its address space may be forgotten when there are too many.
    pub fn exit(&mut self, pid: u32) {
        self.ended.push(pid);
    }

    /// The region of `address` in the address space of `pid`.
    pub fn find(&self, pid: u32, address: u64) -> Option<&Region> {
        let (_, region) = self.spaces.get(&pid)?.range(..=address).next_back()?;
        (address < region.end).then_some(region)
    }

    fn forget(&mut self) {
        if self.spaces.len() <= SPACES_MAX {
            return;
        }
        for pid in self.ended.drain(..) {
            self.spaces.remove(&pid);
        }
        // Nobody told of any end: the lowest numbers are the oldest, mostly.
        while self.spaces.len() > SPACES_MAX {
            let mut pids: Vec<u32> = self.spaces.keys().copied().collect();
            pids.sort_unstable();
            for pid in &pids[..pids.len() / 2] {
                self.spaces.remove(pid);
            }
        }
    }
}

fn clear(space: &mut Space, start: u64, end: u64) {
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
        assert!(spaces.spaces.len() <= SPACES_MAX + 1);
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
