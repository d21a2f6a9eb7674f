//! Many runs on all CPUs of this machine, or on those that a job of Slurm was given.

use std::io::{IsTerminal, Write};
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::slurm;
use crate::interrupt::Interrupt;

/// Nobody needs to be told of what is over sooner.
const QUIET_FOR: Duration = Duration::from_secs(2);
/// Between two lines of progress where nobody looks at a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(30);

/// Does pieces 0 to `count` in any order, each once, and tells how far it is. What was not begun when the user
/// interrupted is missing in the result.
pub fn all<T: Send>(
    count: usize,
    quiet: bool,
    interrupt: &Interrupt,
    piece: impl Fn(usize) -> T + Sync,
) -> Vec<Option<T>> {
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = threads(count, cpus, slurm::cpus_given());
    let next = AtomicUsize::new(0);
    let done: Mutex<(usize, Vec<Option<T>>)> = Mutex::new((0, (0..count).map(|_| None).collect()));
    let progress = Mutex::new(Progress {
        begun: Instant::now(),
        told: None,
        live: std::io::stderr().is_terminal(),
        quiet,
    });
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !interrupt.asked() {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        break;
                    }
                    let made = piece(at);
                    let mut done = done.lock().expect("nobody panics with it");
                    done.0 += 1;
                    done.1[at] = Some(made);
                    let so_far = done.0;
                    drop(done);
                    progress
                        .lock()
                        .expect("nobody panics with it")
                        .tell(so_far, count);
                }
            });
        }
    });
    progress
        .into_inner()
        .expect("nobody panics with it")
        .clear();
    done.into_inner().expect("nobody panics with it").1
}

/// No more than there are pieces, nor than the CPUs, of which a job may have been given some.
fn threads(pieces: usize, cpus: usize, given: Option<usize>) -> usize {
    cpus.min(given.unwrap_or(cpus)).min(pieces).max(1)
}

struct Progress {
    begun: Instant,
    told: Option<Instant>,
    live: bool,
    quiet: bool,
}

impl Progress {
    fn tell(&mut self, done: usize, count: usize) {
        let passed = self.begun.elapsed();
        let is_due = self.told.is_none_or(|told| {
            self.live && told.elapsed() > Duration::from_millis(200) || told.elapsed() > PLAIN_EVERY
        });
        if self.quiet || passed < QUIET_FOR || !is_due {
            return;
        }
        self.told = Some(Instant::now());
        let left = passed.as_secs_f64() / done as f64 * (count - done) as f64;
        let line = format!("{done} of {count} runs, about {left:.0} s left");
        // Nobody may be reading.
        let _ = match self.live {
            true => write!(anstream::stderr(), "\r\x1b[K{line}"),
            false => writeln!(anstream::stderr(), "{line}"),
        };
    }

    fn clear(&self) {
        if self.live && self.told.is_some() {
            let _ = write!(anstream::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::threads;

    #[test]
    fn a_job_uses_what_it_was_given() {
        assert_eq!(threads(100, 64, None), 64);
        assert_eq!(threads(100, 64, Some(2)), 2);
        assert_eq!(threads(100, 4, Some(8)), 4);
        assert_eq!(threads(3, 64, Some(8)), 3);
        assert_eq!(threads(0, 64, Some(0)), 1);
    }
}
