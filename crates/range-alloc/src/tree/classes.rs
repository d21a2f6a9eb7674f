//! Classes of alignment: a class is added when the first request comes for it.

use super::change::leaf_maxima;
use super::node::{GROUPS, Group, short};
use super::{Class, Tree};
use crate::error::OutOfMemory;
use crate::isa::{Grid, LANES, Lanes};

impl Tree {
    /// The class of a grid. O(1) without a phase, otherwise up to 64 comparisons.
    #[inline(always)]
    pub(crate) fn class(&self, grid: Grid) -> Option<Class> {
        if grid.phase == 0 {
            return self.plain[grid.mask.count_ones() as usize % self.plain.len()];
        }
        self.phased(grid)
    }

    fn phased(&self, grid: Grid) -> Option<Class> {
        self.groups.iter().enumerate().find_map(|(number, group)| {
            let lane = group.lane_of(grid)?;
            Some(class_of(number, lane))
        })
    }

    /// Adds a class, or answers with the closest one that has all of its starts when there are 64.
    /// O(n).
    #[cold]
    pub(crate) fn add_class(&mut self, grid: Grid) -> Result<Class, OutOfMemory> {
        if let Some(class) = self.class(grid) {
            return Ok(class);
        }
        let full = self.groups.iter().all(|group| group.used == LANES);
        if full && self.groups.len() == GROUPS {
            return Ok(self.closest(grid));
        }
        if full {
            let mut group = Group::new(grid);
            group.leaf.ensure(self.leaf_ids.limit() as usize)?;
            group.inner.ensure(self.inner_ids.limit() as usize)?;
            group.rows.ensure(self.inner_ids.limit() as usize)?;
            self.groups.push(group);
        } else {
            let group = self.groups.last_mut().expect("one for every start");
            group.masks[group.used] = grid.mask;
            group.phases[group.used] = grid.phase;
            group.active[group.used] = u64::MAX;
            group.used += 1;
        }
        let number = self.groups.len() - 1;
        let class = class_of(number, self.groups[number].used - 1);
        if grid.phase == 0 {
            self.plain[grid.mask.count_ones() as usize] = Some(class);
        }
        self.summarise();
        Ok(class)
    }

    /// The coarsest class whose starts include all of the grid's.
    fn closest(&self, grid: Grid) -> Class {
        let classes = self.groups.iter().enumerate().flat_map(|(number, group)| {
            (0..group.used).filter_map(move |lane| {
                let (mask, phase) = (group.masks[lane], group.phases[lane]);
                let includes = mask <= grid.mask && grid.phase & mask == phase;
                includes.then_some((mask, class_of(number, lane)))
            })
        });
        let closest = classes.max_by_key(|(mask, _)| *mask);
        closest.expect("the class of every start").1
    }

    /// Computes all maxima of the last group anew.
    pub(super) fn summarise(&mut self) {
        self.summarise_node(self.root, 0);
    }

    fn summarise_node(&mut self, node: u32, level: usize) -> Lanes {
        let number = self.groups.len() - 1;
        if level == self.depth {
            let group = &mut self.groups[number];
            let now = leaf_maxima(self.leaves.get(node), group);
            group.leaf.get_mut(node).0 = now;
            return now;
        }
        let mut most = [0; LANES];
        for pos in 0..self.inners.get(node).len as usize {
            let child = self.inners.get(node).children[pos];
            let now = self.summarise_node(child, level + 1);
            let rows = &mut self.groups[number].rows.get_mut(node).0;
            for lane in 0..LANES {
                rows[lane][pos] = short(now[lane]);
                most[lane] = most[lane].max(now[lane]);
            }
        }
        self.groups[number].inner.get_mut(node).0 = most;
        most
    }
}

fn class_of(group: usize, lane: usize) -> Class {
    Class {
        group: group as u8,
        lane: lane as u8,
    }
}
