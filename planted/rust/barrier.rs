//! A `std::sync::Barrier` between phases of which one thread has four times its part.
mod planted;
use planted::{begin, burn, run_crew, tell};
use std::sync::Barrier;
use std::time::Instant;

const PHASES: usize = 150;
const PHASE: u64 = 4000;
const HEAVY: u64 = 4;

#[inline(never)]
fn meet_at_the_summit(summit: &Barrier) -> f64 {
    let since = Instant::now();
    // Who comes last has waited for nobody: its time is what waking the others takes.
    if summit.wait().is_leader() {
        return 0.0;
    }
    since.elapsed().as_secs_f64()
}

#[inline(never)]
fn climb_a_pitch(heavy: bool, n: usize) {
    burn(PHASE * if heavy { HEAVY } else { 1 } / (n as u64 - 1 + HEAVY));
}

fn main() {
    let n = begin();
    let summit = Barrier::new(n);
    let waited = run_crew(n, |id| {
        let mut waited = 0.0;
        for phase in 0..PHASES {
            climb_a_pitch(phase % n == id, n);
            waited += meet_at_the_summit(&summit);
        }
        waited
    });
    tell("barrier", waited);
}
