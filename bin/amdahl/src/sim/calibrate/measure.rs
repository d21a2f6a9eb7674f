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
