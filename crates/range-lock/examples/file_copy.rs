//! Threads copy blocks within a buffer: each locks what it reads and what it writes, in the order of the addresses, so
//! that nobody waits in a circle. At the end all of it is locked to compute a checksum.
//!
//!     cargo run -p amdahl-range-lock --example file_copy

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::thread;

use amdahl_range_lock::RangeLock;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

fn copy(lock: &RangeLock, data: &[AtomicU8], from: u64, to: u64) {
    let range = |block: u64| block * BLOCK..(block + 1) * BLOCK;
    let slice = |block: u64| &data[range(block).start as usize..range(block).end as usize];
    // The lower range first, whichever it is.
    let (reads, writes);
    if from < to {
        reads = lock.read(range(from));
        writes = lock.write(range(to));
    } else {
        writes = lock.write(range(to));
        reads = lock.read(range(from));
    }
    for (source, target) in slice(from).iter().zip(slice(to)) {
        target.store(source.load(Relaxed), Relaxed);
    }
    drop((reads, writes));
}

fn main() {
    let lock = RangeLock::new();
    let data: Vec<AtomicU8> = (0..BLOCKS * BLOCK)
        .map(|at| AtomicU8::new((at / BLOCK) as u8))
        .collect();
    thread::scope(|scope| {
        for thread in 0..8 {
            let (lock, data) = (&lock, &data);
            scope.spawn(move || {
                for step in 0..500 {
                    let from = (thread * 31 + step * 7) % BLOCKS;
                    let to = (from + 1 + step % (BLOCKS - 1)) % BLOCKS;
                    copy(lock, data, from, to);
                }
            });
        }
    });
    let _all = lock.read(..);
    let whole = data.chunks(BLOCK as usize).all(|block| {
        block
            .iter()
            .all(|byte| byte.load(Relaxed) == block[0].load(Relaxed))
    });
    assert!(whole, "a block is torn");
    println!("{BLOCKS} blocks, none of them torn");
}
