//! `amdahl-bench replay`: hours of a large machine, made up, through what a view does with them, in less time than they
//! would last.

mod locks;
mod mem;
mod sched;

use std::path::PathBuf;

/// Flags of `amdahl-bench replay`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Which view
    view: View,
    /// How long the made-up recording is
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    seconds: u64,
    /// Events in each second
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    rate: u64,
    /// Bound of the events on disk
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    max_disk: u64,
    /// Folder for the events of sched; the others write none
    #[arg(long, value_name = "FOLDER")]
    folder: PathBuf,
    /// File that gets the number of events
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

/// A view.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum View {
    Sched,
    Locks,
    Mem,
}

/// CPUs of the machine.
const CPUS: u32 = 64;
/// Threads that live at any time, and how many of them end and begin in a second.
const THREADS: u32 = 4_000;
const CHURN: u64 = 200;
const SECOND: u64 = 1_000_000_000;

/// How long and how dense.
#[derive(Clone, Copy)]
struct Length {
    seconds: u64,
    rate: u64,
}

impl Length {
    /// Times of steps with `events` events each, and whether somebody ends and another begins there, `churn` times a second.
    fn steps(self, events: u64, churn: u64) -> impl Iterator<Item = (u64, bool)> {
        let steps = (self.rate / events).max(1);
        let every = (steps / churn).max(1);
        (0..self.seconds).flat_map(move |second| {
            (0..steps).map(move |step| {
                let ts = second * SECOND + step * (SECOND / steps);
                (ts, step % every == 0)
            })
        })
    }
}

/// The same numbers each time: xorshift.
struct Random(u64);

impl Default for Random {
    fn default() -> Random {
        Random(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// A time, of any order of magnitude up to `2^(bits + 3)` nanoseconds.
    fn length(&mut self, bits: u64) -> u64 {
        let limit = 1 << (4 + self.below(bits));
        self.below(limit)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Makes up and analyses; tells how many events there were.
pub fn main(arguments: &Arguments) -> Result<u8, String> {
    let length = Length {
        seconds: arguments.seconds,
        rate: arguments.rate,
    };
    let count = match arguments.view {
        View::Sched => sched::replay(length, &arguments.folder, arguments.max_disk << 20)?,
        View::Locks => locks::replay(length),
        View::Mem => mem::replay(length),
    };
    std::fs::write(&arguments.to, count.to_string()).map_err(|error| error.to_string())?;
    Ok(0)
}
