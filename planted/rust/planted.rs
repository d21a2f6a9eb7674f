//! What the planted Rust programs share: work of an exactly known size, and the line
//! that says what was planted. The twin of `c/planted.h`.
#![allow(dead_code)]

use std::hint::black_box;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

const STEPS_PER_UNIT: u64 = 500;

static STARTED_AT: OnceLock<Instant> = OnceLock::new();
static CREW_SIZE: AtomicUsize = AtomicUsize::new(0);

/// Pure ALU work: no memory, no system call, nothing to share.
#[inline(always)]
pub fn burn(units: u64) {
    let mut x: u64 = 88_172_645_463_325_252;
    let mut i = units * STEPS_PER_UNIT;
    while i != 0 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        i -= 1;
    }
    black_box(x);
}

/// Reads the number of threads from the command line and starts the clock.
pub fn begin() -> usize {
    STARTED_AT.get_or_init(Instant::now);
    let threads = std::env::args()
        .nth(1)
        .and_then(|arg| arg.parse().ok())
        .unwrap_or(0);
    if !(1..=4096).contains(&threads) {
        eprintln!("usage: PROGRAM THREADS");
        std::process::exit(2);
    }
    CREW_SIZE.store(threads, Relaxed);
    threads
}

/// Says what was planted: one line of JSON, appended to $PLANTED_OUT or to standard error.
pub fn tell(cause: &str, seconds: f64) {
    let wall = STARTED_AT
        .get()
        .map_or(0.0, |at| at.elapsed().as_secs_f64());
    let cpus = CREW_SIZE.load(Relaxed);
    let line = format!(
        "{{\"cause\": \"{cause}\", \"seconds\": {seconds:.6}, \"wall\": {wall:.6}, \"cpus\": {cpus}}}\n"
    );
    match std::env::var_os("PLANTED_OUT").filter(|path| !path.is_empty()) {
        Some(path) => std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("PLANTED_OUT"),
        None => eprint!("{line}"),
    }
}

/// Takes the next of `total` pieces of work, which are common to all threads.
#[inline(always)]
pub fn another(taken: &AtomicI64, total: i64) -> bool {
    taken.fetch_add(1, Relaxed) < total
}

/// CPU time of the calling thread in seconds.
pub fn cpu_now() -> f64 {
    #[repr(C)]
    struct Timespec {
        seconds: i64,
        nanoseconds: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
    }
    const CLOCK_THREAD_CPUTIME_ID: i32 = 3;
    let mut time = Timespec {
        seconds: 0,
        nanoseconds: 0,
    };
    // SAFETY: `time` is a valid timespec of 64-bit Linux and outlives the call.
    let failed = unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "clock_gettime");
    time.seconds as f64 + time.nanoseconds as f64 * 1e-9
}

/// Runs `job(id)` on `n` threads, the calling one among them, and adds up the results.
pub fn run_crew(n: usize, job: impl Fn(usize) -> f64 + Sync) -> f64 {
    std::thread::scope(|scope| {
        let job = &job;
        let others: Vec<_> = (1..n).map(|id| scope.spawn(move || job(id))).collect();
        let mine = job(0);
        mine + others
            .into_iter()
            .map(|thread| thread.join().expect("a thread"))
            .sum::<f64>()
    })
}
