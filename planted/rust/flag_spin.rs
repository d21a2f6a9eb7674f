//! A spin barrier: who comes first polls the generation with `spin_loop`, while one thread
//! has three times its part.
mod planted;
use planted::{begin, burn, cpu_now, run_crew, tell};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

const PHASES: usize = 150;
const PHASE: u64 = 4000;
const HEAVY: u64 = 3;

struct SpinBarrier {
    n: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
}

impl SpinBarrier {
    #[inline(never)]
    fn poll_until_all_are_here(&self) -> f64 {
        let since = cpu_now();
        let generation = self.generation.load(Acquire);
        if self.arrived.fetch_add(1, AcqRel) + 1 == self.n {
            self.arrived.store(0, Release);
            self.generation.store(generation + 1, Release);
        } else {
            while self.generation.load(Acquire) == generation {
                std::hint::spin_loop();
            }
        }
        cpu_now() - since
    }
}

#[inline(never)]
fn row_a_stretch(heavy: bool, n: usize) {
    burn(PHASE * if heavy { HEAVY } else { 1 } / (n as u64 - 1 + HEAVY));
}

fn main() {
    let n = begin();
    let barrier = SpinBarrier {
        n,
        arrived: AtomicUsize::new(0),
        generation: AtomicUsize::new(0),
    };
    let spun = run_crew(n, |id| {
        let mut spun = 0.0;
        for phase in 0..PHASES {
            row_a_stretch(phase % n == id, n);
            spun += barrier.poll_until_all_are_here();
        }
        spun
    });
    tell("user-spin", spun);
}
