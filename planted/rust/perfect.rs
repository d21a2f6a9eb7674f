//! Scales perfectly: scoped threads that take pieces of work and meet nobody.
mod planted;
use planted::{another, begin, burn, run_crew, tell};
use std::sync::atomic::AtomicI64;

static TAKEN: AtomicI64 = AtomicI64::new(0);

#[inline(never)]
fn render_my_tiles() {
    while another(&TAKEN, 5000) {
        burn(120);
    }
}

fn main() {
    let n = begin();
    run_crew(n, |_| {
        render_my_tiles();
        0.0
    });
    tell("none", 0.0);
}
