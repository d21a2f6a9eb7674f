//! Threads in each state of a pool for a while, for tools to look at: `states SECONDS`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amdahl_pool::{Pool, channel};

fn main() {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok());
    let until = Instant::now() + Duration::from_secs_f64(seconds.unwrap_or(1.0));
    let pool = Pool::builder()
        .follows_load(false)
        .build()
        .expect("threads");
    let (to, from) = channel::<()>(1);
    std::thread::scope(|scope| {
        scope.spawn(|| wants_a_message(&from));
        // In turns: a job that somebody waits for, one on a CPU, and a range whose helper is late. Between them workers idle.
        while Instant::now() < until {
            wants_a_result(&pool);
            wants_all(&pool);
            wants_a_range(&pool);
            nap();
        }
        drop(to);
    });
}

fn nap() {
    std::thread::sleep(Duration::from_millis(5));
}

#[inline(never)]
fn wants_a_message(from: &amdahl_pool::Receiver<()>) {
    while from.recv().is_ok() {}
}

#[inline(never)]
fn wants_a_result(pool: &Pool) {
    let handle = pool.spawn(nap);
    handle.join().expect("it ends");
}

#[inline(never)]
fn wants_all(pool: &Pool) {
    drop(pool.queue_on(&pool.cpus(), nap));
    pool.flush();
}

/// Where one CPU is allowed nobody helps.
#[inline(never)]
fn wants_a_range(pool: &Pool) {
    let caller = std::thread::current().id();
    let is_helped = AtomicBool::new(pool.cpus().len() < 2);
    let begun = Instant::now();
    pool.par_range(0..100_000, 1, |_| {
        if std::thread::current().id() != caller {
            if !is_helped.swap(true, Ordering::AcqRel) {
                nap();
            }
        } else {
            // So long that somebody comes.
            while !is_helped.load(Ordering::Acquire) && begun.elapsed() < Duration::from_millis(50)
            {
                std::hint::spin_loop();
                if begun.elapsed() > Duration::from_millis(2) {
                    return;
                }
            }
        }
    });
}
