//! Touches memory in parallel, with progress, an error and what was done until then:
//! `cargo run --release -p amdahl-pool --example prefault [MIB]`

use std::time::{Duration, Instant};

use amdahl_pool::Pool;

fn main() {
    let mib: usize = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(512);
    let pool = Pool::new().expect("threads can be started");
    let mut memory: Vec<u8> = Vec::with_capacity(mib << 20);
    let begun = Instant::now();
    pool.par_slice(memory.spare_capacity_mut(), 2 << 20, |_, part| {
        part.iter_mut().for_each(|byte| {
            byte.write(0);
        });
    });
    println!(
        "{mib} MiB by {} threads in {:?}",
        pool.threads(),
        begun.elapsed()
    );

    let report = |done: usize, total: usize| println!("{} %", 100 * done / total);
    let bad = mib * 3 / 4;
    let outcome = pool
        .ranges(0..mib)
        .progress(Duration::from_millis(1), &report)
        .run(|part| {
            std::thread::sleep(Duration::from_micros(20));
            if part.contains(&bad) {
                Err(format!("MiB {bad} is bad"))
            } else {
                Ok(())
            }
        });
    if let Err(stopped) = outcome {
        println!("{stopped}: {:?}", stopped.done);
    }
    for waits in pool.waits().iter().filter(|waits| waits.count.times > 0) {
        println!("{:?}", waits);
    }
}
