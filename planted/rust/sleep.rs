//! Each thread is polite: after every piece of work it sleeps half as long.
mod planted;
use planted::{another, begin, burn, run_crew, tell};
use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant};

const PIECES: i64 = 140;

static TAKEN: AtomicI64 = AtomicI64::new(0);

#[inline(never)]
fn be_polite_for_a_while() -> f64 {
    let since = Instant::now();
    std::thread::sleep(Duration::from_micros(1500));
    since.elapsed().as_secs_f64()
}

#[inline(never)]
fn crawl_a_page() {
    burn(3000);
}

fn main() {
    let n = begin();
    let slept = run_crew(n, |_| {
        let mut slept = 0.0;
        while another(&TAKEN, PIECES) {
            crawl_a_page();
            slept += be_polite_for_a_while();
        }
        slept
    });
    tell("sleep", slept);
}
