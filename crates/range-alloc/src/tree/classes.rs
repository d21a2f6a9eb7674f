//! Classes of alignment: a class is added when the first request comes for it.

use super::node::{AlignedRow, GROUPS, Group, short};
use super::{Class, Tree};
use crate::error::{AllocError, OutOfMemory};
use crate::isa::{FAN, Grid, LANES, Lanes, Portable};
use crate::word::Word;

impl<W: Word> Tree<W> {
    /// The class of a grid, if there is one. O(1) without a phase, otherwise up to 64 comparisons.
    #[inline(always)]
    pub(crate) fn class(&self, grid: Grid) -> Option<Class> {
        if grid.phase == 0 {
            return self.plain[grid.mask.count_ones() as usize % self.plain.len()];
        }
        self.phased(self.scale.grid(grid)?)
    }

    fn phased(&self, grid: Grid<W>) -> Option<Class> {
        self.groups.iter().enumerate().find_map(|(number, group)| {
            let lane = group.lane_of(grid)?;
            Some(class_of(number, lane))
        })
    }

    /// Adds the class of a grid, unless there is one or no start is in reach.
    pub(crate) fn prepare(&mut self, grid: Grid) -> Result<(), AllocError> {
        let class = match (self.class(grid), self.scale.grid(grid)) {
            (None, Some(words)) => Some(self.add_class(grid, words)?),
            (class, _) => class,
        };
        self.prepared |= class.map_or(0, Class::bit);
        Ok(())
    }

    /// Adds a class, which is `words` in the tree, or answers with the closest one that has all of
    /// its starts when there are 64. O(n).
    #[cold]
    pub(crate) fn add_class(&mut self, grid: Grid, words: Grid<W>) -> Result<Class, OutOfMemory> {
        let class = match self.phased(words) {
            Some(class) => class,
            None => {
                let full = self.groups.iter().all(|group| group.classes.used == LANES);
                if full && self.groups.len() == GROUPS {
                    return Ok(self.closest(words));
                }
                if full {
                    let mut group = Group::new(words);
                    group.sums.leaf.ensure(self.leaf_ids.limit() as usize)?;
                    group.sums.inner.ensure(self.inner_ids.limit() as usize)?;
                    group.sums.rows.ensure(self.inner_ids.limit() as usize)?;
                    self.groups.push(group)?;
                } else {
                    let group = self.groups.last_mut();
                    group.sums.rows.widen(group.classes.used + 1)?;
                    group.classes.add(words);
                }
                let number = self.groups.len() - 1;
                self.summarise(number);
                class_of(number, self.groups.last_mut().classes.used - 1)
            }
        };
        if grid.phase == 0 {
            self.plain[grid.mask.count_ones() as usize] = Some(class);
        }
        Ok(class)
    }

    /// The coarsest class whose starts include all of the grid's.
    fn closest(&self, grid: Grid<W>) -> Class {
        let classes = self.groups.iter().enumerate().flat_map(|(number, group)| {
            (0..group.classes.used).filter_map(move |lane| {
                let Grid { mask, phase } = group.classes.grid(lane);
                let includes = mask <= grid.mask && grid.phase.and(mask) == phase;
                includes.then_some((mask, class_of(number, lane)))
            })
        });
        let closest = classes.max_by_key(|(mask, _)| *mask);
        closest.expect("the class of every start").1
    }

    /// Computes all maxima of a group anew.
    pub(super) fn summarise(&mut self, group: usize) {
        self.summarise_node(group, self.root, 0);
    }

    fn summarise_node(&mut self, number: usize, node: u32, level: usize) -> Lanes<W> {
        let group = self.groups.get_mut(number);
        if level == self.depth {
            let now = self.leaves.get(node).maxima::<Portable>(&group.classes);
            group.sums.leaf.get_mut(node).0 = now;
            return now;
        }
        let mut most = [W::ZERO; LANES];
        for row in self.rows(number, node) {
            row.0 = [0; FAN];
        }
        for pos in 0..self.inners.get(node).len as usize {
            let child = self.inners.get(node).children[pos];
            let now = self.summarise_node(number, child, level + 1);
            for (row, now) in self.rows(number, node).iter_mut().zip(now) {
                row.0[pos] = short(now);
            }
            for (most, now) in most.iter_mut().zip(now) {
                *most = (*most).max(now);
            }
        }
        self.groups.get_mut(number).sums.inner.get_mut(node).0 = most;
        most
    }
}

impl<W: Word> Tree<W> {
    /// The rows of a group in a node, those in use.
    fn rows(&mut self, group: usize, node: u32) -> &mut [AlignedRow] {
        let group = self.groups.get_mut(group);
        &mut group.sums.rows.of_mut(node)[..group.classes.used]
    }
}

fn class_of(group: usize, lane: usize) -> Class {
    Class {
        group: group as u8,
        lane: lane as u8,
    }
}
