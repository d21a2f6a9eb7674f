//! One known wait a round for each kind of lock of Rust's standard library and of `parking_lot`: the twin of
//! `../rounds.h`.

#[path = "../../rust/planted.rs"]
mod planted;

mod parked;
mod standard;

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

const HOLD_UNITS: u64 = 4000; // some 3 ms

static HELD: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);

/// What holder and waiter do in a round.
struct Family {
    name: &'static str,
    hold: fn(u32),
    want: fn(u32),
}

const fn family(name: &'static str, hold: fn(u32), want: fn(u32)) -> Family {
    Family { name, hold, want }
}

/// What the holder does while it has the lock.
fn keep_it(round: u32) {
    HELD.store(round, Ordering::SeqCst);
    planted::burn(HOLD_UNITS);
}

/// Who has let go stays on the stack: the compiler does not turn the call into a jump.
#[inline(always)]
fn stay() {
    black_box(());
}

fn reaches(at: &AtomicU32, round: u32) {
    while at.load(Ordering::SeqCst) != round {
        std::thread::yield_now();
    }
}

/// Of the calling thread, until now.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("a status");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok())
        .expect("a count")
}

/// How many of its calls waited, for how long together, and the longest.
fn wait(rounds: u32, want: fn(u32)) -> (u32, f64, f64) {
    let (mut times, mut seconds, mut longest) = (0, 0.0, 0.0_f64);
    for round in 1..=rounds {
        reaches(&HELD, round);
        planted::burn(100);
        let slept = sleeps();
        let since = Instant::now();
        want(round);
        let took = since.elapsed().as_secs_f64();
        if sleeps() > slept {
            times += 1;
            seconds += took;
            longest = longest.max(took);
        }
        DONE.store(round, Ordering::SeqCst);
    }
    (times, seconds, longest)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_default();
    let mut families = standard::FAMILIES.iter().chain(&parked::FAMILIES);
    let Some(family) = families.find(|family| family.name == name) else {
        eprintln!("usage: planted-locks FAMILY [ROUNDS]");
        std::process::exit(2);
    };
    let rounds = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(40);
    let waiter = std::thread::spawn(move || wait(rounds, family.want));
    for round in 1..=rounds {
        (family.hold)(round);
        reaches(&DONE, round);
    }
    let (times, seconds, longest) = waiter.join().expect("it does not panic");
    let line = format!(
        "{{\"family\": \"{name}\", \"times\": {times}, \"seconds\": {seconds:.6}, \"longest\": {longest:.6}}}\n"
    );
    match std::env::var_os("PLANTED_OUT") {
        Some(path) => {
            let file = File::options().append(true).create(true).open(path);
            file.and_then(|mut file| file.write_all(line.as_bytes()))
                .expect("PLANTED_OUT");
        }
        None => eprint!("{line}"),
    }
}
