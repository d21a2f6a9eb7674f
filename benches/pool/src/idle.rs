//! What pools cost that have nothing to do.

use std::thread;
use std::time::Duration;

use amdahl_figures::{Figure, Target, Unit};
use amdahl_pool::Pool;

use crate::rounds::cost;

pub fn figures(wanted: &dyn Fn(&str) -> bool) -> Vec<Figure> {
    if !wanted("idle") {
        return Vec::new();
    }
    let idle = || {
        // The watch stops a second after the last work.
        thread::sleep(Duration::from_millis(1500));
        let cost = cost(|| thread::sleep(Duration::from_secs(3)));
        cost.cpu_s / cost.wall_s
    };
    let pool = Pool::global();
    pool.par_range(0..1000, 1, |part| {
        std::hint::black_box(part);
    });
    vec![Figure {
        name: "idle CPU use".to_owned(),
        value: Ok(idle()),
        unit: Unit::OneCpu,
        target: Target::AtMost(0.0005),
        versus: "CPU time of the process / 3 s, after work".to_owned(),
    }]
}
