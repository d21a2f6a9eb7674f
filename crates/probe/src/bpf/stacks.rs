//! Recorded stacks to places in code.

use std::path::Path;

use rustc_hash::FxHashSet;

use super::drain::Part;
use super::wire::Stack;
use crate::perf::SideBand;
use crate::symbol::{CodePoint, MapEvent, RawStack, StackEnd, Symbolizer};

/// Tells `symbols` what was mapped, in the order of time.
pub(super) fn learn_maps(symbols: &mut Symbolizer, side_band: &mut [SideBand]) {
    side_band.sort_by_key(SideBand::ts);
    let maps = symbols.maps_mut();
    for event in side_band {
        match event {
            SideBand::Map {
                ts,
                pid,
                start,
                len,
                file_offset,
                device,
                inode,
                path,
                executable,
                ..
            } => maps.map(&MapEvent {
                ts: *ts,
                pid: *pid,
                start: *start,
                len: *len,
                file_offset: *file_offset,
                device: *device,
                inode: *inode,
                path: Path::new(path),
                executable: *executable,
            }),
            SideBand::Exec { ts, pid } => maps.exec(*ts, *pid),
            SideBand::Fork { ts, parent, pid } => maps.fork(*ts, *parent, *pid),
            SideBand::Exit { ts, pid } => maps.first_thread_ended(*ts, *pid),
            SideBand::Lost(_) => {}
        }
    }
}

/// Takes from a part what can be learned only while its processes live: what is mapped, and the files that are. Returns
/// those of its processes that were there before and were not told of, whose mappings are still unknown.
pub(super) fn look(symbols: &mut Symbolizer, part: &mut Part) -> Vec<u32> {
    learn_maps(symbols, &mut part.side_band);
    let pids: FxHashSet<u32> = part.stacks.iter().map(|stack| stack.pid).collect();
    let mut pids: Vec<u32> = pids.into_iter().collect();
    pids.retain(|&pid| {
        let is_known = symbols.maps_mut().is_complete(pid);
        if is_known {
            symbols.touch(pid);
        }
        !is_known
    });
    pids
}

/// Where the frames of a recorded stack are: unwound from its copy, and beyond that by the frame
/// pointers that the kernel followed.
pub(super) fn locate(symbols: &mut Symbolizer, raw: &Stack) -> Box<[CodePoint]> {
    let unwound = symbols.unwind(&RawStack {
        pid: raw.pid,
        ts: raw.ts,
        ip: raw.ip,
        sp: raw.sp,
        bp: raw.bp,
        lr: raw.lr,
        user_stack: &raw.bytes,
        user_mode: raw.user_mode,
    });
    let lost = unwound.end == StackEnd::Lost;
    match led_on(&unwound.addresses, &raw.user, lost) {
        Some(addresses) => symbols.locate(raw.pid, raw.ts, &addresses).into(),
        None => unwound.points.into(),
    }
}

/// The whole stack where frame pointers lead further than unwinding, because the copy ends or the
/// stack changes. The frame that changes it (Go's `systemstack`) may lead one astray on arm64: to
/// what lies at the bottom of the other stack.
fn led_on(unwound: &[u64], by_pointers: &[u64], lost: bool) -> Option<Vec<u64>> {
    let last = unwound.len().checked_sub(1)?;
    let met = [last, last.saturating_sub(1).max(1)]
        .into_iter()
        .find_map(|at| {
            let address = unwound.get(at)?;
            let by = by_pointers.iter().position(|other| other == address)?;
            Some((at, by))
        });
    match met {
        Some((at, by)) => (by_pointers.len() - by > unwound.len() - at)
            .then(|| [&unwound[..at], &by_pointers[by..]].concat()),
        None => (lost && by_pointers.len() > unwound.len()).then(|| by_pointers.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbol::ModuleId;

    /// Ends were ignored: what every process had mapped stayed for ever.
    #[test]
    fn what_the_ended_had_mapped_is_forgotten() {
        // Ids that no process has.
        let pids = (1 << 30)..(1 << 30) + (1 << 15);
        let mut side_band: Vec<SideBand> = pids
            .clone()
            .flat_map(|pid| {
                let ts = u64::from(pid);
                let map = SideBand::Map {
                    ts,
                    pid,
                    start: 0x1000,
                    len: 0x1000,
                    file_offset: 0,
                    device: 0,
                    inode: 1,
                    path: "/bin/x".to_owned(),
                    executable: true,
                    shared: false,
                };
                [map, SideBand::Exit { ts, pid }]
            })
            .collect();
        let mut symbols = Symbolizer::new();
        learn_maps(&mut symbols, &mut side_band);
        let [first, last] = [pids.start, pids.end - 1]
            .map(|pid| symbols.locate(pid, u64::MAX, &[0x1800])[0].module);
        assert_eq!(first, ModuleId::UNKNOWN);
        assert_ne!(last, ModuleId::UNKNOWN, "its stacks may come late");
    }

    #[test]
    fn frame_pointers_lead_on_across_stacks() {
        // The copy ended at 3; frame pointers skip 2, which has none.
        assert_eq!(
            led_on(&[1, 2, 3], &[1, 3, 4, 5], false),
            Some(vec![1, 2, 3, 4, 5])
        );
        // 9 is what lies at the bottom of the stack that 3 changed to.
        assert_eq!(
            led_on(&[1, 2, 3, 9], &[1, 3, 4, 5], false),
            Some(vec![1, 2, 3, 4, 5])
        );
        // Unwinding knows better.
        assert_eq!(led_on(&[1, 2, 3, 4], &[1, 3, 7], false), None);
        assert_eq!(led_on(&[1, 2], &[1, 7, 8], false), None);
        assert_eq!(led_on(&[1, 2], &[1, 7, 8], true), Some(vec![1, 7, 8]));
        assert_eq!(led_on(&[1], &[1, 7], false), Some(vec![1, 7]));
        assert_eq!(led_on(&[], &[], true), None);
    }
}
