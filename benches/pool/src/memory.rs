//! Filling and pre-faulting memory, beside threads written by hand; and what it costs a job beside it.

use std::io;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use amdahl_figures::{Figure, Target, Unit};
use amdahl_pool::{Lowering, Pool};

use amdahl_figures::median;

use crate::rounds::{Cost, cost, rounds};

const GIB: usize = 1 << 30;
const PAGE: usize = 4096;

/// Fresh anonymous memory, unmapped at the end.
struct Memory {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory; threads are given parts that do not overlap.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize) -> Self {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "no address space");
        Memory {
            base: base.cast(),
            bytes,
        }
    }

    fn zero(&self, part: Range<usize>) {
        assert!(part.end <= self.bytes);
        // SAFETY: within the mapping; parts do not overlap.
        unsafe { std::ptr::write_bytes(self.base.add(part.start), 0, part.len()) }
    }

    fn touch(&self, part: Range<usize>) {
        assert!(part.end <= self.bytes);
        for at in part.step_by(PAGE) {
            // SAFETY: as above.
            unsafe { self.base.add(at).write_volatile(1) }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, used by nobody any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// As much as is asked for: 8 GiB.
const WANTED: usize = 8 * GIB;

/// That much, or half of what is free, in whole parts of 64 MiB: one mapping is there at a time.
fn bytes() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: usize = line
        .and_then(|l| l.split_whitespace().next()?.parse().ok())
        .unwrap_or(3 << 20);
    WANTED.min(kib * 1024 / 2) / (64 << 20) * (64 << 20)
}

type Act = fn(&Memory, Range<usize>);

fn by_pool(memory: &Memory, act: Act) {
    // As the kernel's users of ktask: a chunk is worth a helper.
    let chunk = 2 << 20;
    Pool::global().par_range(0..memory.bytes / PAGE, chunk / PAGE, |part| {
        act(memory, part.start * PAGE..part.end * PAGE)
    });
}

/// A part for each thread.
fn by_hand_divided(memory: &Memory, act: Act) {
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    thread::scope(|s| {
        for t in 0..threads {
            let bound = |t: usize| memory.bytes / PAGE * t / threads * PAGE;
            s.spawn(move || act(memory, bound(t)..bound(t + 1)));
        }
    });
}

/// Chunks from a counter, for threads that do not get on equally.
fn by_hand_in_turns(memory: &Memory, act: Act) {
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let chunk = 2 << 20;
    let next = AtomicUsize::new(0);
    thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                loop {
                    let from = next.fetch_add(chunk, Ordering::Relaxed);
                    if from >= memory.bytes {
                        return;
                    }
                    act(memory, from..memory.bytes.min(from + chunk));
                }
            });
        }
    });
}

fn by_rayon(memory: &Memory, act: Act) {
    use rayon::prelude::*;
    let chunk = 2 << 20;
    (0..memory.bytes.div_ceil(chunk))
        .into_par_iter()
        .for_each(|i| act(memory, i * chunk..memory.bytes.min((i + 1) * chunk)));
}

/// On memory that was in use a moment ago: what a virtual machine has returned to its host comes back page by page, at a cost that is nobody's here.
fn once(bytes: usize, how: fn(&Memory, Act), act: Act) -> Cost {
    let before = Memory::new(bytes);
    // SAFETY: says what pages to take, huge ones, which is quicker; changes no content.
    unsafe { libc::madvise(before.base.cast(), bytes, libc::MADV_HUGEPAGE) };
    by_hand_in_turns(&before, Memory::touch);
    drop(before);
    let memory = Memory::new(bytes);
    cost(|| how(&memory, act))
}

/// How much less a thread computes per second while `work` runs.
fn slow_down(work: impl Fn()) -> f64 {
    let (count, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|s| {
        s.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for n in 0..1000u64 {
                    std::hint::black_box(n);
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let rate = |run: &dyn Fn()| {
            let (before, begun) = (count.load(Ordering::Relaxed), Instant::now());
            run();
            (count.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64()
        };
        let rest = || thread::sleep(std::time::Duration::from_millis(700));
        let before = rate(&rest);
        let beside = rate(&work);
        let after = rate(&rest);
        is_over.store(true, Ordering::Relaxed);
        1.0 - beside / ((before + after) / 2.0)
    })
}

/// How often a competitor is slowed down.
const SLOWED: usize = 5;

fn slow_down_by(how: fn(&Memory, Act), bytes: usize) -> f64 {
    slow_down(|| how(&Memory::new(bytes), Memory::zero))
}

/// In a process without `CAP_SYS_NICE`: how much slower a competitor is during the pool's fill of so many bytes, a line for each time.
pub fn measure_without_nice(bytes: usize) -> ExitCode {
    if Pool::global().state().lowering != Lowering::Not {
        eprintln!("priorities can still be raised");
        return ExitCode::FAILURE;
    }
    for _ in 0..SLOWED {
        println!("{}", slow_down_by(by_pool, bytes));
    }
    ExitCode::SUCCESS
}

/// Takes the right to raise priorities from what this process executes.
fn drop_nice() -> io::Result<()> {
    const CAP_SYS_NICE: libc::c_ulong = 23;
    // SAFETY: takes integers. Who may not take it away from itself is no root, and has it only by what the program's file says, which ours
    // does not; whoever has it nevertheless tells so.
    unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0) };
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: reads a struct of the right type. Lowering a limit is everybody's right.
    match unsafe { libc::setrlimit(libc::RLIMIT_NICE, &none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn slow_down_without_nice(bytes: usize) -> Result<f64, String> {
    let mut command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
    command.arg("--without-nice").arg(bytes.to_string());
    // SAFETY: between fork and exec: two system calls.
    unsafe { command.pre_exec(drop_nice) };
    let output = command.stdout(Stdio::piped()).output();
    let output = output.map_err(|e| e.to_string())?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("the measuring process failed: {why}"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let slow: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    match slow.len() {
        SLOWED => Ok(median(slow)),
        n => Err(format!("{n} figures of {SLOWED}")),
    }
}

pub fn figures(wanted: &dyn Fn(&str) -> bool) -> Vec<Figure> {
    const TIMES: usize = 3;
    let bytes = bytes();
    let gib = |bytes: usize| format!("{:.1} GiB", bytes as f64 / GIB as f64);
    let size = match bytes == WANTED {
        true => gib(bytes),
        false => format!(
            "{} (of {} wanted: half of what is free)",
            gib(bytes),
            gib(WANTED)
        ),
    };
    let mut figures = Vec::new();
    for (name, act) in [
        ("zero-fill", Memory::zero as Act),
        ("pre-fault", Memory::touch as Act),
    ] {
        if !wanted(name) {
            continue;
        }
        let hows = [
            by_pool as fn(&Memory, Act),
            by_hand_divided,
            by_hand_in_turns,
            by_rayon,
        ];
        let mut sides = hows.map(|how| move || once(bytes, how, act));
        let [a, b, c, d] = &mut sides;
        let costs = rounds(TIMES, &mut [a, b, c, d]);
        // The least: a host that takes a CPU away for a second makes one round, not all, as long again.
        let wall = |at: usize| {
            let all = costs[at].iter().map(|cost| cost.wall_s);
            all.fold(f64::INFINITY, f64::min)
        };
        let (divided, in_turns) = (wall(1), wall(2));
        let by_hand = format!(
            "threads by hand, the better ones of a part each ({divided:.2} s) and chunks in turn ({in_turns:.2} s)"
        );
        let best = if divided < in_turns { 1 } else { 2 };
        for (rival, how, at, target) in [
            ("threads by hand", &*by_hand, best, Target::AtMost(1.05)),
            ("rayon", "rayon", 3, Target::Stated),
        ] {
            figures.push(Figure {
                name: format!("{name} of {size}, {rival}"),
                value: Ok(wall(0) / wall(at)),
                unit: Unit::Ratio,
                target,
                versus: format!(
                    "time of the pool, {:.2} s / time of {how}, the least of {TIMES} interleaved rounds each",
                    wall(0)
                ),
            });
        }
    }
    if wanted("slow-down") {
        let sides = [
            ("pool", by_pool as fn(&Memory, Act), Target::AtMost(0.05)),
            ("rayon", by_rayon, Target::Stated),
        ];
        let mut slow = [vec![], vec![]];
        for _ in 0..SLOWED {
            for (slow, (_, how, _)) in slow.iter_mut().zip(&sides) {
                slow.push(slow_down_by(*how, bytes / 4));
            }
        }
        for (slow, (who, _, target)) in slow.into_iter().zip(sides) {
            figures.push(Figure {
                name: format!("slow-down of a competitor during zero-fill of {}, {who}", gib(bytes / 4)),
                value: Ok(median(slow)),
                unit: Unit::Difference,
                target,
                versus: format!("one busy thread: its loops per second beside the fill, against alone; median of {SLOWED}"),
            });
        }
    }
    if wanted("slow-down, unprivileged") {
        figures.push(Figure {
            name: format!(
                "slow-down of a competitor during zero-fill of {}, pool without CAP_SYS_NICE",
                gib(bytes / 4)
            ),
            value: slow_down_without_nice(bytes / 4),
            unit: Unit::Difference,
            target: Target::Stated,
            versus: format!(
                "as above, in a process that may not raise priorities, where helpers keep theirs; median of {SLOWED}"
            ),
        });
    }
    figures
}
