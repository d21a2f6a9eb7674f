//! Parallel quicksort by `join`: `cargo run --release -p amdahl-pool --example sort [NUMBERS]`

use std::time::Instant;

fn sort(data: &mut [u64]) {
    if data.len() < 4096 {
        return data.sort_unstable();
    }
    let middle = data.len() / 2;
    let (left, pivot, right) = data.select_nth_unstable(middle);
    let _ = pivot;
    amdahl_pool::join(|| sort(left), || sort(right));
}

fn main() {
    let len = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(4_000_000);
    let data: Vec<u64> = (0..len as u64)
        .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect();
    let (mut alone, mut together) = (data.clone(), data);
    let begun = Instant::now();
    alone.sort_unstable();
    let serial = begun.elapsed();
    let begun = Instant::now();
    sort(&mut together);
    println!(
        "{len} numbers: {serial:?} alone, {:?} in the pool",
        begun.elapsed()
    );
    assert_eq!(alone, together);
}
