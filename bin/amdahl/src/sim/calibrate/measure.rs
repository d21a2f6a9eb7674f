//! The measurements. Each is repeated for a stated time; the median of its batches is told.

use std::hint::black_box;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_des::median;
use amdahl_topology::{CpuSet, set_allowed};
use rustix::io::{read, write};
use rustix::pipe::pipe;

/// Runs measurements for a given time each.
pub struct Bench {
    time: Duration,
}

/// The thread that calls runs on one CPU from now on.
fn pin(cpu: u32) -> io::Result<()> {
    let cpus: CpuSet = std::iter::once(cpu).collect();
    set_allowed(
        rustix::thread::gettid().as_raw_nonzero().get() as u32,
        &cpus,
    )
    .map_err(io::Error::other)
}

/// Does `body` in a thread of its own on `cpu`, so that nobody else's affinity changes.
fn on<T: Send>(cpu: u32, body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let run = scope.spawn(|| {
            pin(cpu)?;
            body()
        });
        run.join().expect("measurements do not panic")
    })
}

/// The kernel's own: its coarse clock moves with it.
fn tick_period() -> u64 {
    let coarse = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    coarse.tv_nsec.max(0) as u64
}

/// The middle one of the longest `times` gaps: so often something is known to have come in between.
fn typical(mut gaps: Vec<u64>, times: u64) -> u64 {
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    gaps.truncate(times as usize);
    gaps.get(gaps.len() / 2).copied().unwrap_or(0)
}

fn byte_to(fd: &OwnedFd) -> io::Result<()> {
    write(fd, &[1])?;
    Ok(())
}

fn byte_from(fd: &OwnedFd) -> io::Result<usize> {
    Ok(read(fd, &mut [0u8; 1])?)
}

impl Bench {
    pub fn new(time: Duration) -> Bench {
        Bench { time }
    }

    /// Nanoseconds of one `body`: the median over batches.
    fn each(&self, mut body: impl FnMut() -> io::Result<()>) -> io::Result<u64> {
        let (begin, mut batches, mut size) = (Instant::now(), vec![], 1u32);
        while begin.elapsed() < self.time || batches.len() < 3 {
            let batch = Instant::now();
            for _ in 0..size {
                body()?;
            }
            let took = batch.elapsed();
            if took < Duration::from_micros(50) && size < 1 << 20 {
                size *= 2;
                continue;
            }
            batches.push(took.as_nanos() as f64 / f64::from(size));
        }
        Ok(median(batches).round() as u64)
    }

    pub fn syscall(&self, cpu: u32) -> io::Result<u64> {
        on(cpu, || {
            self.each(|| {
                black_box(rustix::process::getppid());
                Ok(())
            })
        })
    }

    /// Bytes written to a pipe and read again by the same thread.
    pub fn pipe_round(&self, cpu: u32, bytes: usize) -> io::Result<u64> {
        on(cpu, || {
            let (from, to) = pipe()?;
            let mut buffer = vec![0u8; bytes];
            self.each(|| {
                write(&to, &buffer)?;
                read(&from, &mut buffer[..])?;
                Ok(())
            })
        })
    }

    /// A round of a byte between two threads of one CPU.
    pub fn ping_pong(&self, cpu: u32) -> io::Result<u64> {
        let ((there_from, there_to), (back_from, back_to)) = (pipe()?, pipe()?);
        thread::scope(|scope| {
            // Ends when the other side closes its pipe.
            let echo = scope.spawn(move || -> io::Result<()> {
                pin(cpu)?;
                while byte_from(&there_from)? == 1 {
                    byte_to(&back_to)?;
                }
                Ok(())
            });
            let took = on(cpu, move || {
                self.each(|| {
                    byte_to(&there_to)?;
                    byte_from(&back_from)?;
                    Ok(())
                })
            });
            echo.join().expect("measurements do not panic")?;
            took
        })
    }

    /// CPU `a` writes to a reader that has slept on `b` for `gap`: how long its write takes, and how long after the
    /// write's end the reader has its byte.
    pub fn wake_up(&self, a: u32, b: u32, gap: Duration) -> io::Result<(u64, u64)> {
        let (from, to) = pipe()?;
        let base = Instant::now();
        let now = move || base.elapsed().as_nanos() as u64;
        thread::scope(|scope| {
            let sleeper = scope.spawn(move || -> io::Result<Vec<u64>> {
                pin(b)?;
                let mut times = vec![];
                while byte_from(&from)? == 1 {
                    times.push(now());
                }
                Ok(times)
            });
            let sent = on(a, move || {
                let (begin, mut times) = (Instant::now(), vec![]);
                while begin.elapsed() < self.time || times.len() < 3 {
                    let until = Instant::now() + gap;
                    while Instant::now() < until {}
                    let start = now();
                    byte_to(&to)?;
                    times.push((start, now()));
                }
                Ok(times)
            });
            let arrived = sleeper.join().expect("measurements do not panic")?;
            let sent = sent?;
            let wrote = sent.iter().map(|&(start, end)| (end - start) as f64);
            // The reader may have it before the writer has returned.
            let late = sent
                .iter()
                .zip(arrived)
                .map(|(&(_, end), at)| at.saturating_sub(end) as f64);
            Ok((median(wrote) as u64, median(late) as u64))
        })
    }

    /// A line that two CPUs write to in turn: one way.
    pub fn line(&self, a: u32, b: u32) -> io::Result<u64> {
        let (line, stop, ready) = (AtomicU64::new(0), AtomicBool::new(false), Barrier::new(2));
        thread::scope(|scope| {
            let other = scope.spawn(|| -> io::Result<()> {
                let pinned = pin(b);
                ready.wait();
                pinned?;
                let mut next = 1;
                while !stop.load(Ordering::Relaxed) {
                    if line.load(Ordering::Acquire) == next {
                        line.store(next + 1, Ordering::Release);
                        next += 2;
                    }
                }
                Ok(())
            });
            let took = on(a, || {
                ready.wait();
                let mut turn = 0;
                self.each(|| {
                    line.store(turn + 1, Ordering::Release);
                    turn += 2;
                    let begin = Instant::now();
                    let mut looks = 0u32;
                    while line.load(Ordering::Acquire) != turn {
                        looks += 1;
                        // The other one may have lost its CPU, or never had it.
                        if looks.is_multiple_of(1 << 16) && begin.elapsed() > Duration::from_secs(2)
                        {
                            return Err(io::Error::other("the other CPU does not answer"));
                        }
                    }
                    Ok(())
                })
            });
            stop.store(true, Ordering::Relaxed);
            other.join().expect("measurements do not panic")?;
            took.map(|round| (round / 2).max(1))
        })
    }

    pub fn atomic(&self, cpu: u32) -> io::Result<u64> {
        let word = AtomicU64::new(0);
        let took = on(cpu, || {
            self.each(|| {
                for _ in 0..16 {
                    black_box(word.fetch_add(1, Ordering::AcqRel));
                }
                Ok(())
            })
        })?;
        Ok((took / 16).max(1))
    }

    /// How much longer walking through what a task uses takes right after a move.
    pub fn migration(&self, a: u32, b: u32) -> io::Result<u64> {
        const BYTES: usize = 64 << 10;
        on(a, || {
            let mut data = vec![1u8; BYTES];
            let mut walk = || {
                let begin = Instant::now();
                data.iter_mut()
                    .step_by(64)
                    .for_each(|byte| *byte = byte.wrapping_add(1));
                black_box(&mut data);
                begin.elapsed().as_nanos() as f64
            };
            let (begin, mut warm, mut cold) = (Instant::now(), vec![], vec![]);
            for cpu in [b, a].into_iter().cycle() {
                if begin.elapsed() > self.time {
                    break;
                }
                walk();
                warm.push(walk());
                pin(cpu)?;
                cold.push(walk());
            }
            Ok((median(cold) - median(warm)).max(0.0) as u64)
        })
    }

    /// What a hardware thread keeps of its speed while its sibling computes, in thousandths.
    pub fn smt(&self, a: u32, b: u32) -> io::Result<u32> {
        let work = || {
            let mut x = 1u64;
            (0..64u64).for_each(|i| x = black_box(x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i));
            black_box(x);
        };
        let alone = on(a, || {
            self.each(|| {
                work();
                Ok(())
            })
        })?;
        let (stop, ready) = (AtomicBool::new(false), Barrier::new(2));
        let beside = thread::scope(|scope| {
            let other = scope.spawn(|| -> io::Result<()> {
                let pinned = pin(b);
                ready.wait();
                pinned?;
                while !stop.load(Ordering::Relaxed) {
                    work();
                }
                Ok(())
            });
            let took = on(a, || {
                ready.wait();
                self.each(|| {
                    work();
                    Ok(())
                })
            });
            stop.store(true, Ordering::Relaxed);
            other.join().expect("measurements do not panic")?;
            took
        })?;
        Ok((alone * 1000 / beside.max(1)).clamp(1, 1000) as u32)
    }

    pub fn spawn(&self, cpu: u32) -> io::Result<u64> {
        on(cpu, || {
            let (begin, mut times) = (Instant::now(), vec![]);
            while begin.elapsed() < self.time {
                let start = Instant::now();
                let thread = thread::Builder::new().stack_size(64 << 10).spawn(|| {})?;
                times.push(start.elapsed().as_nanos() as f64);
                let _ = thread.join();
            }
            Ok(median(times) as u64)
        })
    }

    /// A thread that is made, ends at once and is waited for, its stack given back.
    pub fn thread_round(&self, cpu: u32) -> io::Result<u64> {
        on(cpu, || {
            self.each(|| {
                let thread = thread::Builder::new().stack_size(64 << 10).spawn(|| {})?;
                thread.join().expect("it does nothing");
                Ok(())
            })
        })
    }

    /// The scheduler's tick: its period, and for how long it interrupts who computes.
    pub fn tick(&self, cpu: u32) -> io::Result<(u64, u64)> {
        let period = tick_period();
        let (gaps, took) = on(cpu, || Ok(self.gaps()))?;
        Ok((period, typical(gaps, took / period.max(1))))
    }

    /// For how long who computes is interrupted by a timer that wakes a thread on the same CPU, which sleeps again at once.
    pub fn timer(&self, cpu: u32) -> io::Result<u64> {
        const SLEEP: Duration = Duration::from_micros(200);
        let (stop, slept, ready) = (AtomicBool::new(false), AtomicU64::new(0), Barrier::new(2));
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| -> io::Result<()> {
                let pinned = pin(cpu);
                ready.wait();
                pinned?;
                while !stop.load(Ordering::Relaxed) {
                    thread::sleep(SLEEP);
                    slept.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
            let found = on(cpu, || {
                ready.wait();
                let before = slept.load(Ordering::Relaxed);
                let (gaps, _) = self.gaps();
                Ok((gaps, slept.load(Ordering::Relaxed) - before))
            });
            stop.store(true, Ordering::Relaxed);
            sleeper.join().expect("measurements do not panic")?;
            found.map(|(gaps, times)| typical(gaps, times))
        })
    }

    /// Reads the clock over and over: by how much longer than usual two looks were apart, where they were, and how long all of it took.
    fn gaps(&self) -> (Vec<u64>, u64) {
        const LOOKS: usize = 1024;
        /// No interrupt is shorter.
        const LEAST: u64 = 200;
        let (begin, mut last) = (Instant::now(), 0);
        let mut gap = || {
            let now = begin.elapsed().as_nanos() as u64;
            (now - std::mem::replace(&mut last, now), now)
        };
        let mut looks: Vec<u64> = (0..LOOKS).map(|_| gap().0).collect();
        looks.sort_unstable();
        let usual = looks[LOOKS / 2];
        let mut gaps = vec![];
        loop {
            let (gap, now) = gap();
            if gap >= usual + LEAST {
                gaps.push(gap - usual);
            }
            if now >= self.time.as_nanos() as u64 {
                return (gaps, now);
            }
        }
    }

    /// A process that is made, replaced by a small program, and reaped.
    pub fn process(&self, cpu: u32) -> io::Result<u64> {
        on(cpu, || {
            let (begin, mut times) = (Instant::now(), vec![]);
            while begin.elapsed() < self.time {
                let start = Instant::now();
                Command::new("/bin/true")
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .status()?;
                times.push(start.elapsed().as_nanos() as f64);
            }
            Ok(median(times) as u64)
        })
    }

    /// First touch of a page of fresh memory, without huge pages.
    pub fn fault(&self, cpu: u32) -> io::Result<u64> {
        const PAGES: usize = 1024;
        on(cpu, || {
            let page = rustix::param::page_size();
            let (begin, mut times) = (Instant::now(), vec![]);
            while begin.elapsed() < self.time {
                let flags = rustix::mm::MapFlags::PRIVATE;
                let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
                // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
                let start = unsafe {
                    rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGES * page, access, flags)
                }?;
                // SAFETY: the range is the mapping just made.
                let _ = unsafe {
                    rustix::mm::madvise(start, PAGES * page, rustix::mm::Advice::LinuxNoHugepage)
                };
                let clock = Instant::now();
                for index in 0..PAGES {
                    // SAFETY: within the mapping, which is writable.
                    unsafe { start.cast::<u8>().add(index * page).write_volatile(1) };
                }
                times.push(clock.elapsed().as_nanos() as f64 / PAGES as f64);
                // SAFETY: nobody else knows of the mapping.
                unsafe { rustix::mm::munmap(start, PAGES * page) }?;
            }
            Ok(median(times) as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_so_often_is_told_by_the_longest_gaps() {
        // Five interrupts, one of them beside something longer, among what is none.
        let gaps = vec![300, 2_000, 250, 2_100, 90_000, 1_900, 300, 2_050];
        assert_eq!(typical(gaps.clone(), 5), 2_050);
        assert_eq!(typical(gaps, 0), 0);
        assert_eq!(typical(vec![700], 9), 700);
    }
}
