//! Threads that allocate and free at once, and how far the addresses drift.

use std::time::Instant;

use amdahl_range_alloc::{Request, SharedRangeAlloc};

const TURNS: usize = 200_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arena = SharedRangeAlloc::new(0..1 << 32)?;
    let begun = Instant::now();
    let highest = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arena.slots())
            .map(|_| scope.spawn(|| churn(&arena)))
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .max()
    });
    let turns = TURNS * arena.slots();
    println!(
        "{:.0} ns a turn",
        begun.elapsed().as_nanos() as f64 / turns as f64
    );
    println!(
        "highest address {:#x}; {:#?}",
        highest.unwrap_or(0),
        arena.stats()
    );
    Ok(())
}

/// Keeps a hundred ranges; answers with the highest address it saw.
fn churn(arena: &SharedRangeAlloc) -> u64 {
    let (mut live, mut highest) = (Vec::new(), 0);
    for turn in 0..TURNS {
        let request = Request::new(1 + turn as u64 % 64).align(1 << (turn % 9));
        let start = arena.alloc(&request).expect("there is space");
        highest = highest.max(start);
        live.push(start);
        if live.len() > 100 {
            let start = live.swap_remove(turn * 31 % live.len());
            arena.free(start).expect("it is allocated");
        }
    }
    for start in live {
        arena.free(start).expect("it is allocated");
    }
    highest
}
