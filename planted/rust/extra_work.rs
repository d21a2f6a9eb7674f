//! Each thread parses the whole input for itself before its share of the work. Built
//! without debug information.
mod planted;
use planted::{another, begin, burn, cpu_now, run_crew, tell};
use std::sync::atomic::AtomicI64;

const COMMON: u64 = 250_000;
const PIECES: i64 = 2000;

static TAKEN: AtomicI64 = AtomicI64::new(0);

#[inline(never)]
fn parse_everything_again() -> f64 {
    let since = cpu_now();
    burn(COMMON);
    cpu_now() - since
}

#[inline(never)]
fn search_my_part() {
    while another(&TAKEN, PIECES) {
        burn(150);
    }
}

fn main() {
    let n = begin();
    let spent = run_crew(n, |_| {
        let spent = parse_everything_again();
        search_my_part();
        spent
    });
    tell("extra-work", spent);
}
