// Blocks in read() below generic and inlined functions.
use std::hint::black_box;
use std::io::Read;

#[inline(never)]
fn inner() -> u8 {
    let mut byte = [0; 1];
    let count = std::io::stdin().read(&mut byte).unwrap_or(0);
    black_box(count as u8)
}

#[inline(always)]
fn wrapped<T: Into<u64>>(value: T) -> u64 {
    value.into() + u64::from(inner())
}

#[inline(never)]
fn outer(value: u32) -> u64 {
    black_box(wrapped(black_box(value))) + 1
}

fn main() {
    black_box(outer(1));
}
