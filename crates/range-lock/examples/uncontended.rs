use amdahl_range_lock::RangeLock;
use std::hint::black_box;
use std::time::Instant;
fn main() {
    let n: u64 = std::env::args()
        .nth(1)
        .map_or(5_000_000, |n| n.parse().unwrap());
    for (name, lock) in [
        ("ordered", RangeLock::new()),
        ("segmented", RangeLock::segmented(16, 16).unwrap()),
    ] {
        for (kind, write) in [("write", true), ("read", false)] {
            let t = Instant::now();
            for i in 0..n {
                let s = (i * 7) % 100;
                if write {
                    black_box(lock.write(black_box(s..s + 8)));
                } else {
                    black_box(lock.read(black_box(s..s + 8)));
                }
            }
            println!(
                "{name} {kind} {:.2} ns",
                t.elapsed().as_nanos() as f64 / n as f64
            );
        }
    }
    let l = std::sync::RwLock::new(());
    let t = Instant::now();
    for _ in 0..n {
        black_box(black_box(&l).write().unwrap());
    }
    println!(
        "RwLock write {:.2} ns",
        t.elapsed().as_nanos() as f64 / n as f64
    );
    let t = Instant::now();
    for _ in 0..n {
        black_box(black_box(&l).read().unwrap());
    }
    println!(
        "RwLock read {:.2} ns",
        t.elapsed().as_nanos() as f64 / n as f64
    );
    let l = std::sync::Mutex::new(());
    let t = Instant::now();
    for _ in 0..n {
        black_box(black_box(&l).lock().unwrap());
    }
    println!("Mutex {:.2} ns", t.elapsed().as_nanos() as f64 / n as f64);
}
