//! What unwinding and naming cost: per stack when warm, per file when cold.
//!
//! The process looks at itself: its stack below a deep recursion is copied like a
//! probe would copy it. `AMDAHL_BENCH_ELF=PATH` adds the first touch of a large file.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use amdahl_probe::symbol::{LATEST, MapEvent, RawStack, Symbolizer};

const ROUNDS: usize = 31;
const STACKS: u32 = 1000;

fn main() {
    let file = std::env::var_os("AMDAHL_BENCH_ELF").map(PathBuf::from);
    for depth in [4, 32] {
        nest(depth);
    }
    for path in file.into_iter().chain(std::env::current_exe()) {
        first_touch(&path);
    }
}

/// Recursion with real frames.
#[inline(never)]
fn nest(depth: u32) -> u64 {
    if depth == 0 {
        warm();
        return 0;
    }
    black_box(nest(black_box(depth - 1))) + 1
}

fn warm() {
    let mut copy = vec![0_u8; 16 << 10];
    let (ip, sp, bp) = registers();
    let memory = std::fs::File::open("/proc/self/mem").expect("own memory");
    let len = std::os::unix::fs::FileExt::read_at(&memory, &mut copy, sp).expect("own stack");
    let stack = RawStack {
        pid: std::process::id(),
        ts: LATEST,
        ip,
        sp,
        bp,
        user_stack: &copy[..len],
        ..RawStack::default()
    };
    let mut symbolizer = Symbolizer::new();
    let unwound = symbolizer.unwind(&stack);
    let frames = unwound.points.len() as u32;
    let kernel = [0xffff_ffff_8100_0010_u64; 8];
    symbolizer.names(&unwound.points, &kernel);
    println!("stack of {frames} frames, {:?}", unwound.end);
    print(
        "  unwind, per stack",
        median(|| drop(black_box(symbolizer.unwind(&stack)))) / STACKS,
    );
    print(
        "  locate, per address",
        median(|| {
            drop(black_box(symbolizer.locate(
                stack.pid,
                LATEST,
                &unwound.addresses,
            )))
        }) / STACKS
            / frames,
    );
    print(
        "  names, per user address",
        median(|| drop(black_box(symbolizer.names(&unwound.points, &[])))) / STACKS / frames,
    );
    print(
        "  names, per kernel address",
        median(|| drop(black_box(symbolizer.names(&[], &kernel)))) / STACKS / 8,
    );
    let started = Instant::now();
    symbolizer.full(&unwound.points, &[]);
    print("  full, cold, per stack", started.elapsed());
    print(
        "  full, per user address",
        median(|| drop(black_box(symbolizer.full(&unwound.points, &[])))) / STACKS / frames,
    );
}

fn first_touch(path: &Path) {
    let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    println!("first touch of {} ({} MB)", path.display(), bytes >> 20);
    let mut symbolizer = Symbolizer::new();
    let pid = u32::MAX;
    symbolizer.maps_mut().exec(0, pid);
    symbolizer.maps_mut().map(&MapEvent {
        ts: 0,
        pid,
        start: 1 << 40,
        len: bytes,
        file_offset: 0,
        device: 0,
        inode: 0,
        path,
        executable: true,
    });
    let address = (1 << 40) + bytes / 2;
    let timed = |what: &str, step: &mut dyn FnMut()| {
        let started = Instant::now();
        step();
        print(what, started.elapsed());
    };
    let mut points = Vec::new();
    timed("  locate", &mut || {
        points = symbolizer.locate(pid, LATEST, &[address])
    });
    let stack = RawStack {
        pid,
        ts: LATEST,
        ip: address,
        sp: 8,
        bp: 8,
        ..RawStack::default()
    };
    timed("  unwind", &mut || drop(symbolizer.unwind(&stack)));
    timed("  names", &mut || {
        drop(black_box(symbolizer.names(&points, &[])))
    });
    timed("  full", &mut || {
        drop(black_box(symbolizer.full(&points, &[])))
    });
}

fn median(mut step: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            (0..STACKS).for_each(|_| step());
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}

fn print(what: &str, time: Duration) {
    println!("{what:<28} {:>12.3} us", time.as_nanos() as f64 / 1e3);
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn registers() -> (u64, u64, u64) {
    let (ip, sp, bp);
    // SAFETY: only reads registers.
    unsafe {
        std::arch::asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) ip, out(reg) sp, out(reg) bp)
    };
    (ip, sp, bp)
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn registers() -> (u64, u64, u64) {
    let (ip, sp, bp);
    // SAFETY: only reads registers.
    unsafe {
        std::arch::asm!("adr {}, .", "mov {}, sp", "mov {}, x29", out(reg) ip, out(reg) sp, out(reg) bp)
    };
    (ip, sp, bp)
}
