//! Work that takes a stated time on a CPU of its own: counted rounds of arithmetic, not a look at a clock, so that
//! it takes longer when the CPU is taken away.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Rounds in 2^20 ns.
static SPEED: AtomicU64 = AtomicU64::new(1 << 20);

fn rounds(count: u64) {
    let mut x = 1u64;
    for i in 0..count {
        x = black_box(x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i);
    }
    black_box(x);
}

/// Computes for `ns` at the speed that [`learn_speed`] has found.
pub fn compute(ns: u64) {
    rounds(((u128::from(ns) * u128::from(SPEED.load(Ordering::Relaxed))) >> 20) as u64);
}

/// Finds out how fast `threads` threads compute at once: CPUs may share what makes them fast. The mean over some
/// 20 ms, for what interrupts these interrupts the programs as well.
pub fn learn_speed(threads: usize) {
    const COUNT: u64 = 1 << 24;
    let all_here = Barrier::new(threads);
    let one = || {
        all_here.wait();
        let begin = Instant::now();
        rounds(COUNT);
        begin.elapsed().as_nanos() as f64
    };
    let ns = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let times = running
            .into_iter()
            .map(|run| run.join().expect("it only counts"));
        times.sum::<f64>() / threads as f64
    });
    SPEED.store(
        (COUNT as f64 * f64::from(1 << 20) / ns) as u64,
        Ordering::Relaxed,
    );
}
