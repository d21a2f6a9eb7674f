//! What the pool's own operations cost here. With these and the costs of `amdahl sim calibrate` the simulator knows
//! nothing of the programs that it predicts.

use std::time::{Duration, Instant};

use amdahl_des::{ByDistance, Costs, median};
use amdahl_pool::Pool;

/// Nanoseconds of the pool's operations, medians.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Primitives {
    /// A worker gives a job away.
    pub spawn: f64,
    /// A worker goes from one job to the next.
    pub switch: f64,
    /// A value into or out of a channel in which nobody waits.
    pub channel: f64,
    /// Giving a job to a pool whose workers sleep takes the giver so much longer.
    pub wake: f64,
    /// From the giver's return until a sleeping worker has begun the job, its CPU idle for a short time, and for a long one.
    pub begin: f64,
    pub begin_deep: f64,
}

const JOBS: u32 = 512;

/// Lines of a job that moves: its head, its future's state, what it captured, its stack's top.
const LINES: u64 = 4;

fn moved(line: ByDistance) -> ByDistance {
    ByDistance {
        same: 0,
        core: LINES * line.core,
        llc: LINES * line.llc,
        node: LINES * line.node,
        remote: LINES * line.remote,
    }
}

impl Primitives {
    pub fn measure() -> Primitives {
        let (spawn, switch) = spawning();
        let (given, begin) = waking(Duration::from_micros(150));
        let (_, begin_deep) = waking(Duration::from_millis(3));
        Primitives {
            spawn,
            switch,
            channel: channel(),
            wake: (given - spawn).max(0.0),
            begin,
            begin_deep: begin_deep.max(begin),
        }
    }

    /// Costs of a simulation whose tasks are jobs and whose CPUs are workers.
    pub fn of_jobs(&self, machine: &Costs) -> Costs {
        let ns = |value: f64| value.max(1.0) as u64;
        /// Longer than any job; more than a second is refused.
        const LONG: u64 = 1_000_000_000;
        Costs {
            source: format!("jobs of a pool, measured; beneath it: {}", machine.source),
            context_switch: ns(self.switch),
            spawn: ns(self.spawn),
            exit: 1,
            // A thief takes a job itself, no queue: within `switch`.
            pull: 0,
            // What queueing takes is within `spawn` and `pipe`; only a sleeper costs more.
            wake: 0,
            ipi: ns(self.wake),
            idle_exit: ns(self.begin - self.switch),
            deep_idle_exit: ns(self.begin_deep - self.switch),
            syscall: 0,
            copy_kib: 0,
            pipe: ns(self.channel),
            // A job that goes on elsewhere takes its own lines along. `calibrate` measures what a thread loses with a
            // working set, and through the kernel; these programs compute in registers.
            migration: moved(machine.line),
            // Jobs are not interrupted.
            slice: LONG,
            wakeup_granularity: LONG,
            ..machine.clone()
        }
    }

    /// Costs of a simulation whose tasks are threads that talk by the pool's channels.
    pub fn of_threads(&self, machine: &Costs) -> Costs {
        Costs {
            syscall: 0,
            copy_kib: 0,
            pipe: self.channel as u64,
            deep_idle_exit: (self.begin_deep as u64).max(machine.idle_exit),
            ..machine.clone()
        }
    }
}

/// A worker spawns empty jobs, then runs them: a spawn, and a switch.
fn spawning() -> (f64, f64) {
    let pool = Pool::builder()
        .threads_max(1)
        .build()
        .expect("threads can be started");
    let times: Vec<(f64, f64)> = (0..99)
        .map(|_| {
            let run = pool.spawn(|| {
                let begin = Instant::now();
                for _ in 0..JOBS - 1 {
                    drop(amdahl_pool::spawn(|| ()));
                }
                let last = amdahl_pool::spawn(Instant::now);
                let spawned = begin.elapsed();
                let until = Instant::now();
                last.join().expect("no panic");
                (spawned, until)
            });
            let (spawned, until) = run.join().expect("no panic");
            // Behind all of them in the queue.
            let end = pool.spawn(Instant::now).join().expect("no panic");
            let each = |time: Duration| time.as_nanos() as f64 / f64::from(JOBS);
            (each(spawned), each(end - until))
        })
        .collect();
    (
        median(times.iter().map(|t| t.0)),
        median(times.iter().map(|t| t.1)),
    )
}

fn channel() -> f64 {
    let (to, at) = amdahl_pool::channel(16);
    let times = (0..99).map(|_| {
        let begin = Instant::now();
        for n in 0..JOBS {
            to.send(n).expect("there is room");
            at.recv().expect("it was sent");
        }
        begin.elapsed().as_nanos() as f64 / f64::from(2 * JOBS)
    });
    median(times)
}

/// How long giving a job to sleeping workers takes, and how long after it the job begins.
fn waking(gap: Duration) -> (f64, f64) {
    // Without the policy's spinning they sleep as soon as they can.
    let pool = Pool::builder()
        .policy("steal=machine")
        .build()
        .expect("threads can be started");
    let times: Vec<(f64, f64)> = (0..200)
        .map(|_| {
            std::thread::sleep(gap);
            let begin = Instant::now();
            let job = pool.spawn(Instant::now);
            let given = Instant::now();
            let begun = job.join().expect("no panic");
            (
                (given - begin).as_nanos() as f64,
                begun.saturating_duration_since(given).as_nanos() as f64,
            )
        })
        .collect();
    (
        median(times.iter().map(|t| t.0)),
        median(times.iter().map(|t| t.1)),
    )
}
