//! First uses of memory.

use std::fs;

use rustix::process::Signal;

use super::{MemResult, ready_with, result, source};
use crate::tool::{alone, skipped, until, until_it_watches};
use crate::workload::to_be_told;

const SOURCE: &str = include_str!("../../mem/touches.c");

/// Each fault counted as one page, whatever it brought: huge pages as 1 instead of 512, zeros that were read as memory.
#[test]
fn first_uses_are_counted_in_pages_that_were_taken() {
    let _alone = alone();
    let Some((place, program)) = ready_with("touches", SOURCE) else {
        return;
    };
    let mut process = to_be_told(&place, &program, &[], "said");
    let mut tool = place.tool(["mem", "--json", "--quiet", "--for", "1h"]);
    tool.args(["--pid", &process.pid().to_string()]);
    let tool = place.start(tool);
    until_it_watches(&tool);
    process.say("begin");
    let said = until("the memory", || {
        let said = fs::read_to_string(place.join("said")).ok()?;
        said.strip_suffix("ready\n").map(str::to_owned)
    });
    tool.signal(Signal::INT);
    let found: MemResult = result(&tool.ended().ends_with(5));
    drop(process);
    if found.faults.lost > 0 {
        return skipped("events were lost on this busy machine");
    }
    let source = source(&found, "first uses by node");
    if !source.missing.is_empty() {
        return skipped(&source.missing);
    }
    let mut sum = 0;
    for line in said.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [address, what, pages] = words[..] else {
            panic!("{line}");
        };
        let pages: u64 = pages.parse().expect("a number");
        let mapping = found.huge.mappings.iter().find(|m| m.start == address);
        let mapping = mapping.unwrap_or_else(|| panic!("{line}: {:?}", found.huge.mappings));
        let touched: u64 = mapping.touched.values().sum();
        assert_eq!(touched, pages, "{what}: {mapping:?}");
        sum += pages;
    }
    // Where the kernel knows nodes.
    if let Some(numa) = &found.numa {
        let touched: u64 = numa.nodes.iter().map(|node| node.touched).sum();
        assert!(touched >= sum, "{touched} {sum}");
    }
}
