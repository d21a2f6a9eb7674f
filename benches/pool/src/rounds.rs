//! Two or more sides, measured in turns, so that what disturbs one disturbs the others.

use std::time::{Duration, Instant};

use amdahl_figures::{Random, median};

/// Wall time and CPU time of the process.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub wall_s: f64,
    pub cpu_s: f64,
}

/// CPU time of this process so far, all threads.
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What `work` costs.
pub fn cost(work: impl FnOnce()) -> Cost {
    let (wall, cpu) = (Instant::now(), cpu_time());
    work();
    Cost {
        wall_s: wall.elapsed().as_secs_f64(),
        cpu_s: (cpu_time() - cpu).as_secs_f64(),
    }
}

/// Until the threads of the side before sleep, which may look out for a while: neither their CPU time nor their places are the next side's.
fn settle() {
    // Time of a thread that runs elsewhere is counted at ticks, up to 10 ms apart.
    const LOOK: Duration = Duration::from_millis(12);
    for _ in 0..50 {
        let before = cpu_time();
        std::thread::sleep(LOOK);
        if cpu_time() - before < LOOK / 10 {
            return;
        }
    }
}

/// Runs all sides once unmeasured, then `rounds` times, in another random order each time; what each side measured.
pub fn rounds<T: Clone>(rounds: usize, sides: &mut [&mut dyn FnMut() -> T]) -> Vec<Vec<T>> {
    let mut costs = vec![Vec::with_capacity(rounds); sides.len()];
    for side in sides.iter_mut() {
        side();
    }
    let mut random = Random(1);
    for _ in 0..rounds {
        let mut order: Vec<usize> = (0..sides.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        for at in order {
            settle();
            costs[at].push(sides[at]());
        }
    }
    costs
}

/// The median over the rounds of `a` in relation to `b`.
pub fn ratio<T>(a: &[T], b: &[T], of: impl Fn(&T) -> f64) -> f64 {
    median(a.iter().zip(b).map(|(a, b)| of(a) / of(b)).collect())
}
