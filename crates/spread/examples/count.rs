//! Counts on all CPUs at once, in three ways: `cargo run --release -p amdahl-spread --example count`.

use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Instant;

use amdahl_spread::Counter;

const ADDITIONS: i64 = 20_000_000;

fn main() {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    println!("{threads} threads, {ADDITIONS} additions each, ns an addition:");

    let (per_cpu, per_llc, shared) = (Counter::new(), Counter::per_llc(), AtomicI64::new(0));
    let placement = per_cpu.placement();
    let automatic = time(threads, || (0..ADDITIONS).for_each(|_| per_cpu.add(1)));
    println!("  Counter::new() ({placement:?})  {automatic:.2}");
    let near = time(threads, || (0..ADDITIONS).for_each(|_| per_llc.add(1)));
    println!("  Counter::per_llc()          {near:.2}");
    let one_line = time(threads, || {
        for _ in 0..ADDITIONS {
            shared.fetch_add(1, Ordering::Relaxed);
        }
    });
    println!("  AtomicI64                   {one_line:.2}");

    let expected = threads as i64 * ADDITIONS;
    for sum in [per_cpu.read(), per_llc.read(), shared.into_inner()] {
        assert_eq!(sum, expected, "nothing is lost");
    }
}

fn time(threads: usize, work: impl Fn() + Sync) -> f64 {
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&work);
        }
    });
    begun.elapsed().as_nanos() as f64 / ADDITIONS as f64
}
