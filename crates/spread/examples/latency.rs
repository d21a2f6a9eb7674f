//! Latencies of system calls on all CPUs: `cargo run --release -p amdahl-spread --example latency`.

use std::thread;
use std::time::{Duration, Instant};

use amdahl_spread::{Buckets, Histogram, HistogramError};

fn main() -> Result<(), HistogramError> {
    // Up to a second, with an error of 1/64.
    let yield_ns = Histogram::new(Buckets::new(6, 1_000_000_000)?);
    let until = Instant::now() + Duration::from_millis(500);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let mut before = Instant::now();
                while before < until {
                    thread::yield_now();
                    let after = Instant::now();
                    yield_ns.record((after - before).as_nanos() as u64);
                    before = after;
                }
            });
        }
    });
    let seen = yield_ns.snapshot();
    println!(
        "{} times sched_yield, mean {:.0} ns",
        seen.count(),
        seen.mean().unwrap_or(0.0)
    );
    for q in [0.5, 0.9, 0.99, 0.999, 1.0] {
        if let Some(value) = seen.quantile(q) {
            println!("  {:5.1} % took {value} ns or less", q * 100.0);
        }
    }
    Ok(())
}
