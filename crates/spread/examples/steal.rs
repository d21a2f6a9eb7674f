//! Workers that look for an overloaded one when they have nothing to do, by a sparse mask:
//! `cargo run --release -p amdahl-spread --example steal`.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread;

use amdahl_spread::{Counter, MaskError, SparseMask};

const WORKERS: u32 = 4;
const TASKS: i64 = 20_000;

/// A queue for each worker; the bit of a worker is set while it has more than one task.
struct Pool {
    queues: Vec<Mutex<VecDeque<i64>>>,
    overloaded: SparseMask,
    done: Counter,
    stolen: Counter,
}

impl Pool {
    /// Takes a task of `worker`, and keeps its bit as its queue is.
    fn take(&self, worker: u32) -> Result<Option<i64>, MaskError> {
        let mut queue = self.queues[worker as usize].lock().expect("no panic");
        let task = queue.pop_front();
        if queue.len() <= 1 && self.overloaded.test(worker) {
            self.overloaded.clear(worker)?;
        }
        Ok(task)
    }

    fn work(&self, me: u32) -> Result<(), MaskError> {
        while self.done.read() < TASKS {
            let mut task = self.take(me)?;
            if task.is_none()
                && let Some(victim) = self.overloaded.first_from(me + 1)
            {
                task = self.take(victim)?;
                self.stolen.add(task.is_some().into());
            }
            match task {
                Some(rounds) => {
                    std::hint::black_box((0..rounds).fold(1_u64, |x, _| x.wrapping_mul(3)));
                    self.done.add(1);
                }
                None => thread::yield_now(),
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), MaskError> {
    let pool = Pool {
        queues: (0..WORKERS).map(|_| Mutex::default()).collect(),
        overloaded: SparseMask::new(WORKERS)?,
        done: Counter::per_llc(),
        stolen: Counter::new(),
    };
    // All work comes to the first worker.
    pool.queues[0]
        .lock()
        .expect("no panic")
        .extend((0..TASKS).map(|_| 2000));
    pool.overloaded.set(0)?;
    thread::scope(|scope| {
        for me in 0..WORKERS {
            let pool = &pool;
            scope.spawn(move || pool.work(me).expect("workers are in the mask"));
        }
    });
    println!(
        "{} of {} tasks were stolen",
        pool.stolen.read(),
        pool.done.read()
    );
    Ok(())
}
