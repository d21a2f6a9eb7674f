//! Graphs of jobs, as builds have them.

use std::collections::BTreeMap;

use toml::Spanned;

use super::Result;
use super::file::GraphEntry;
use super::objects::{OBJECTS_MAX, Reader};
use crate::program::GraphSpec;
use crate::random::Dist;

/// Most dependencies of all graphs together.
const EDGES_MAX: usize = 20_000_000;

/// How large the graphs of a file are that were read so far.
#[derive(Default)]
pub(super) struct Sizes {
    jobs: i64,
    edges: usize,
}

pub(super) fn read(
    reader: &Reader,
    graph: &str,
    entry: &Spanned<GraphEntry>,
    sizes: &mut Sizes,
) -> Result<GraphSpec> {
    let rows = &entry.get_ref().jobs;
    let mut spec = GraphSpec::default();
    let mut ranges: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for row in rows {
        let (at, row) = (row.span().start, row.get_ref());
        let count = reader.number(&row.count, 1, 0, OBJECTS_MAX)? as u32;
        let first = spec.work.len() as u32;
        sizes.jobs += i64::from(count);
        if sizes.jobs > OBJECTS_MAX {
            return Err(reader.error(
                at,
                format!("with graph `{graph}` there are more than {OBJECTS_MAX} jobs"),
            ));
        }
        if ranges.insert(&row.name, (first, count)).is_some() {
            return Err(reader.error(
                at,
                format!("graph `{graph}` has two jobs called `{}`", row.name),
            ));
        }
        let work = reader.dist(&row.work, Dist::Const(0))?;
        spec.work.extend(std::iter::repeat_n(work, count as usize));
    }
    spec.successors = vec![vec![]; spec.work.len()];
    // Dependencies among the rows, to find circles whatever the counts are.
    let mut before: Vec<Vec<usize>> = vec![vec![]; rows.len()];
    for (index, row) in rows.iter().enumerate() {
        let row = row.get_ref();
        let (first, count) = ranges[row.name.as_str()];
        let all = row
            .after
            .iter()
            .map(|name| (name, false))
            .chain(row.after_each.iter().map(|name| (name, true)));
        for (name, is_each) in all {
            let Some(&(base, len)) = ranges.get(name.get_ref().as_str()) else {
                return Err(reader.error(
                    name.span().start,
                    format!("graph `{graph}` has no job `{}`", name.get_ref()),
                ));
            };
            before[index].extend(
                rows.iter()
                    .position(|row| row.get_ref().name == *name.get_ref()),
            );
            sizes.edges += count as usize * if is_each { 1 } else { len as usize };
            if sizes.edges > EDGES_MAX {
                let message = format!(
                    "with graph `{graph}` there are more than {EDGES_MAX} dependencies; put a job in between"
                );
                return Err(reader.error(name.span().start, message));
            }
            for job in 0..count {
                if is_each && len > 0 {
                    spec.successors[(base + job % len) as usize].push(first + job);
                } else if !is_each {
                    (base..base + len)
                        .for_each(|other| spec.successors[other as usize].push(first + job));
                }
            }
        }
    }
    if let Some(circle) = circle(&before) {
        let names: Vec<&str> = circle
            .iter()
            .map(|&row| rows[row].get_ref().name.as_str())
            .collect();
        let message = format!(
            "graph `{graph}` goes in a circle: {} each comes after the next",
            names.join(" -> ")
        );
        return Err(reader.error(rows[circle[0]].span().start, message));
    }
    Ok(spec)
}

/// Rows that depend on each other, the first one again at the end.
fn circle(before: &[Vec<usize>]) -> Option<Vec<usize>> {
    // 0: not seen, 1: on the path, 2: done.
    let mut state = vec![0u8; before.len()];
    for first in 0..before.len() {
        let mut path: Vec<(usize, usize)> = vec![];
        if state[first] == 0 {
            state[first] = 1;
            path.push((first, 0));
        }
        while let Some((row, next)) = path.last_mut() {
            let (row, i) = (*row, *next);
            *next += 1;
            match before[row].get(i) {
                None => {
                    state[row] = 2;
                    path.pop();
                }
                Some(&other) if state[other] == 1 => {
                    let start = path
                        .iter()
                        .position(|&(row, _)| row == other)
                        .expect("it is on the path");
                    let mut rows: Vec<usize> = path[start..].iter().map(|&(row, _)| row).collect();
                    rows.push(other);
                    return Some(rows);
                }
                Some(&other) if state[other] == 0 => {
                    state[other] = 1;
                    path.push((other, 0));
                }
                Some(_) => {}
            }
        }
    }
    None
}
