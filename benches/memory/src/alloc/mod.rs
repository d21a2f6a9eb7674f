//! `range-alloc` beside other allocators of address ranges.

mod clock;
mod crates;
mod random;
mod red_black;
mod rivals;

use std::time::Duration;

use amdahl_figures::Figure;

use crate::Effort;
use clock::{Clock, percentile};
use random::{ISSUE, Run, arena};
use rivals::*;

/// Measures; tells on standard error what it is at.
pub fn figures(_effort: &Effort) -> Vec<Figure> {
    let clock = Clock::new();
    for live in [1000, 10_000, 100_000, 1_000_000u64] {
        let mut ours = Run::new(Ours::new(arena(live)), live, &ISSUE);
        let mut kernel = Run::new(Trees::<KernelRule>::new(arena(live)), live, &ISSUE);
        let mut exact = Run::new(Trees::<ExactRule>::new(arena(live)), live, &ISSUE);
        let mut vmem = Run::new(crates::Vmem::new(arena(live)), live, &ISSUE);
        let limit = Duration::from_secs(8);
        ours.fill(limit);
        kernel.fill(limit);
        exact.fill(limit);
        vmem.fill(Duration::from_secs(2));
        let same: bool = {
            let mut a = ours.live.clone();
            let mut b = exact.live.clone();
            a.sort_unstable();
            b.sort_unstable();
            a == b
        };
        let limit = Duration::from_millis(200);
        for _ in 0..5 {
            ours.measure(&clock, 20_000, limit);
            kernel.measure(&clock, 20_000, limit);
            exact.measure(&clock, 20_000, limit);
            vmem.measure(&clock, 20_000, limit);
        }
        let show = |name: &str, a: &mut Vec<f32>, f: &mut Vec<f32>, refused: u64| {
            a.sort_unstable_by(f32::total_cmp);
            f.sort_unstable_by(f32::total_cmp);
            let p = |v: &[f32]| {
                format!(
                    "{:.0}/{:.0}/{:.0}",
                    percentile(v, 0.5),
                    percentile(v, 0.99),
                    percentile(v, 0.9999)
                )
            };
            eprintln!(
                "{live} {name}: alloc {} free {} n {} refused {refused}",
                p(a),
                p(f),
                a.len()
            );
        };
        show("ours", &mut ours.alloc_ns, &mut ours.free_ns, ours.refused);
        show(
            "kernel",
            &mut kernel.alloc_ns,
            &mut kernel.free_ns,
            kernel.refused,
        );
        show(
            "exact",
            &mut exact.alloc_ns,
            &mut exact.free_ns,
            exact.refused,
        );
        show("vmem", &mut vmem.alloc_ns, &mut vmem.free_ns, vmem.refused);
        eprintln!("same layout {same} {:?}", ours.allocator.0.stats());
    }
    Vec::new()
}
