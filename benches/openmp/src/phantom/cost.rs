//! What looking costs, and what a reader of the page pays.

use std::ffi::CString;
use std::fs;
use std::hint::black_box;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use amdahl_phantom::{Pace, monotonic_ns, thread_cpu_ns};
use amdahl_phantom_page::{Publisher, Reader, Snapshot, Source as PageSource, coarse_now_ns};

use super::busy::Busy;
use super::truth::{Source, Watcher};
use crate::stage::{RunError, Stage};

/// Between two looks at what changes seldom.
const REFRESH: Duration = Duration::from_secs(1);

/// CPU time of looking as `amdahl phantom --serve` does, beside the busiest of the loads, as a share of one CPU: of the thread
/// that looks, and of the programs in the kernel.
///
/// # Errors
/// The source may not be used here, or the user wants to stop.
pub fn of_looking(stage: &Stage, source: Source, length: Duration) -> Result<f64, RunError> {
    let ours = Busy::start(stage, 4, None, None)?;
    let _hogs = [
        Busy::start(stage, 1, None, None)?,
        Busy::start(stage, 1, None, None)?,
    ];
    let stats = match source {
        Source::Bpf => Some(enable_bpf_stats().ok_or_else(|| {
            RunError::Failed("the kernel does not tell the time of BPF programs".to_owned())
        })?),
        Source::Proc => None,
    };
    let mut watcher =
        Watcher::new(source, ours.pid()).map_err(|error| RunError::Failed(error.to_string()))?;
    let mut publisher = Publisher::anonymous(PageSource::Proc)
        .map_err(|error| RunError::Failed(error.to_string()))?;
    let mut pace = Pace::new(source.interval());
    let bpf_ns_before = bpf_ns();
    let (begun, cpu_ns) = (Instant::now(), thread_cpu_ns());
    let (mut due, mut ticks, mut refresh_due) = (begun, 0, begun + REFRESH);
    while begun.elapsed() < length {
        if stage.is_asked_to_stop() {
            return Err(RunError::Interrupted);
        }
        due = (due + pace.interval()).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let before_ns = thread_cpu_ns();
        if let Some(snapshot) = watcher.snapshot(ticks, pace.interval()) {
            publisher.publish(snapshot);
        }
        if Instant::now() >= refresh_due {
            watcher
                .refresh()
                .map_err(|error| RunError::Failed(error.to_string()))?;
            refresh_due = Instant::now() + REFRESH;
        }
        ticks += 1;
        pace.spent(Duration::from_nanos(thread_cpu_ns() - before_ns));
    }
    let ns = thread_cpu_ns() - cpu_ns + bpf_ns().saturating_sub(bpf_ns_before);
    let share = ns as f64 / begun.elapsed().as_nanos() as f64;
    drop(stats);
    Ok(share)
}

/// Has the kernel account for the time of BPF programs as long as the descriptor lives.
fn enable_bpf_stats() -> Option<OwnedFd> {
    const BPF_ENABLE_STATS: libc::c_long = 32;
    let attr = [0_u32; 2];
    // SAFETY: attr begins as the part of union bpf_attr for this command does: type 0, run time.
    let descriptor = unsafe { libc::syscall(libc::SYS_bpf, BPF_ENABLE_STATS, &raw const attr, 4) };
    // SAFETY: a fresh descriptor that nobody else owns.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Time of the programs that this process holds.
fn bpf_ns() -> u64 {
    let files = fs::read_dir("/proc/self/fdinfo")
        .into_iter()
        .flatten()
        .flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    let of_program = |text: String| {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix("run_time_ns:"))?;
        line.trim().parse::<u64>().ok()
    };
    texts.filter_map(of_program).sum()
}

/// Nanoseconds of a reading of the page, without and with a look whether it is fresh.
///
/// # Errors
/// There can be no page.
pub fn of_reading(reads: u32) -> Result<[f64; 2], String> {
    let mut publisher =
        Publisher::anonymous(PageSource::Proc).map_err(|error| error.to_string())?;
    let name = CString::new(format!("/proc/self/fd/{}", publisher.descriptor())).expect("no zero");
    publisher.publish(Snapshot {
        time_ns: monotonic_ns(),
        tick_us: 10_000_000,
        window_us: 1,
        allowed: 2,
        ..Default::default()
    });
    let reader = Reader::open(&name).map_err(|error| error.to_string())?;
    let time = |read: &dyn Fn()| {
        // The least of some rounds: nobody was in between.
        let rounds = (0..5).map(|_| {
            let begun = Instant::now();
            for _ in 0..reads {
                read();
            }
            begun.elapsed().as_nanos() as f64 / f64::from(reads)
        });
        rounds.fold(f64::INFINITY, f64::min)
    };
    Ok([
        time(&|| {
            black_box(reader.read().is_ok());
        }),
        time(&|| {
            black_box(reader.read_fresh(coarse_now_ns()).is_ok());
        }),
    ])
}
