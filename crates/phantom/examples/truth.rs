//! Estimates beside the truth: loads of known size are run, and each 100 ms window is compared with what the processes' own CPU
//! clocks say. Then what looking costs, and what a reader of the page pays.
//!
//!     truth [--seconds N] [--json]      N seconds for each load, 5 if not said
//!
//! The truth of a window is the CPU time that our process had, and what nobody had, within the quota. The first is
//! its own clock; the second follows from the clock of the whole machine where there is one (the root of the `cpuacct` controller),
//! else from the clocks of the processes that were started here, so that anything else that runs spoils it.

use std::ffi::CString;
use std::fs;
use std::hint::black_box;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use amdahl_phantom::{
    Estimate, Estimator, How, Members, Sampler, Scope, Settings, monotonic_ns, thread_cpu_ns,
};
use amdahl_phantom_page::{Publisher, Reader, coarse_now_ns};

/// How long a window is.
const WINDOW: Duration = Duration::from_millis(100);
/// How far an estimate may be off, in CPUs.
const TOLERANCE: f64 = 0.25;

/// A load.
struct Load {
    name: &'static str,
    /// Busy threads of ours.
    threads: usize,
    /// The CPUs of busy processes beside us; `None` is all.
    hogs: &'static [Option<u32>],
    /// How many of them run changes at random, each so many windows.
    step_windows: Option<u32>,
    /// Of one CPU, in percent.
    quota: Option<u32>,
}

const PLAIN: Load = Load {
    name: "",
    threads: 2,
    hogs: &[],
    step_windows: None,
    quota: None,
};

const LOADS: &[Load] = &[
    Load {
        name: "alone",
        ..PLAIN
    },
    Load {
        name: "2 busy neighbours",
        hogs: &[None, None],
        ..PLAIN
    },
    Load {
        name: "4 threads, 2 busy neighbours",
        threads: 4,
        hogs: &[None, None],
        ..PLAIN
    },
    Load {
        name: "a neighbour bound to a CPU",
        hogs: &[Some(0)],
        ..PLAIN
    },
    Load {
        name: "asleep beside a neighbour",
        threads: 0,
        hogs: &[Some(0)],
        ..PLAIN
    },
    Load {
        name: "neighbours 0..2 at random, 100 ms",
        hogs: &[None, None],
        step_windows: Some(1),
        ..PLAIN
    },
    Load {
        name: "neighbours 0..2 at random, 1 s",
        hogs: &[None, None],
        step_windows: Some(10),
        ..PLAIN
    },
    Load {
        name: "quota of half a CPU",
        quota: Some(50),
        ..PLAIN
    },
    Load {
        name: "quota of 1.5 CPUs",
        quota: Some(150),
        ..PLAIN
    },
];

/// A busy process, ended on drop.
struct Busy(Child);

impl Busy {
    fn start(threads: usize, cpu: Option<u32>) -> Busy {
        let mut command = Command::new(std::env::current_exe().expect("we have a path"));
        command
            .args(["busy", &threads.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        // SAFETY: both calls are async-signal-safe and change the child alone.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if let Some(cpu) = cpu {
                    let mut set: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(cpu as usize, &mut set);
                    libc::sched_setaffinity(0, size_of_val(&set), &set);
                }
                Ok(())
            });
        }
        Busy(command.spawn().expect("we can be started again"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal to our own child, which is not reaped.
        unsafe { libc::kill(self.pid() as i32, signal) };
    }

    /// CPU time that it has had, to the nanosecond, whatever goes on.
    fn cpu_ns(&self) -> u64 {
        // The clock of another process, as clock_getcpuclockid gives it.
        let clock = !(self.pid() as libc::clockid_t) << 3 | 2;
        let mut at = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `at` is writable and of the right type.
        let failed = unsafe { libc::clock_gettime(clock, &mut at) };
        assert_eq!(failed, 0, "the child lives");
        at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `truth busy N` does: runs for ever, or sleeps with no thread to run.
fn be_busy(threads: usize) -> ! {
    for _ in 1..threads {
        std::thread::spawn(|| {
            loop {
                black_box(0);
            }
        });
    }
    loop {
        if threads == 0 {
            std::thread::park();
        }
        black_box(0);
    }
}

/// A control group with a quota, removed on drop.
struct Quota(PathBuf);

impl Quota {
    fn new(percent: u32) -> Option<Quota> {
        let name = format!("amdahl-truth-{}", std::process::id());
        let quota_us = percent * 1000;
        let folder = Path::new("/sys/fs/cgroup/cpu").join(&name);
        if fs::create_dir(&folder).is_ok() {
            let quota = Quota(folder);
            fs::write(quota.0.join("cpu.cfs_period_us"), "100000").ok()?;
            fs::write(quota.0.join("cpu.cfs_quota_us"), quota_us.to_string()).ok()?;
            return Some(quota);
        }
        let folder = Path::new("/sys/fs/cgroup").join(&name);
        fs::create_dir(&folder).ok()?;
        let quota = Quota(folder);
        fs::write(quota.0.join("cpu.max"), format!("{quota_us} 100000")).ok()?;
        Some(quota)
    }

    fn take_in(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("a process of ours");
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // The kernel keeps the group for a moment after its last process.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// CPU time of everybody, if the kernel tells it in nanoseconds.
fn everybody_ns() -> Option<u64> {
    let text = fs::read_to_string("/sys/fs/cgroup/cpuacct/cpuacct.usage").ok()?;
    text.trim().parse().ok()
}

/// One source, with what it found and cost.
struct Watcher {
    name: &'static str,
    sampler: Sampler,
    estimator: Estimator,
    cost_ns: u64,
    windows: u32,
    good: u32,
    worst: f64,
}

impl Watcher {
    fn new(name: &'static str, how: How, ours: u32) -> Result<Watcher, String> {
        let scope = Scope {
            members: Members::Processes(vec![ours]),
            group: None,
            virtual_cpus: None,
        };
        let window_ns = WINDOW.as_nanos() as u64;
        Ok(Watcher {
            name,
            sampler: Sampler::new(scope, how).map_err(|error| error.to_string())?,
            estimator: Estimator::new(Settings { window_ns }),
            cost_ns: 0,
            windows: 0,
            good: 0,
            worst: 0.0,
        })
    }

    fn tick(&mut self) -> Option<Estimate> {
        let begun = thread_cpu_ns();
        let reading = self.sampler.read().expect("/proc is there");
        let estimate = self.estimator.tick(reading);
        self.cost_ns += thread_cpu_ns() - begun;
        estimate
    }

    fn compare(&mut self, estimate: &Estimate, truth: f64) {
        let off = (estimate.runnable_cpus() - truth).abs();
        self.windows += 1;
        self.good += u32::from(off <= TOLERANCE);
        self.worst = self.worst.max(off);
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What clocks say at one time.
struct Clocks {
    at_ns: u64,
    ours_ns: u64,
    hogs_ns: u64,
    everybody_ns: Option<u64>,
}

fn clocks(ours: &Busy, hogs: &[Busy]) -> Clocks {
    Clocks {
        at_ns: monotonic_ns(),
        ours_ns: ours.cpu_ns(),
        hogs_ns: hogs.iter().map(Busy::cpu_ns).sum(),
        everybody_ns: everybody_ns(),
    }
}

fn truth(before: &Clocks, after: &Clocks, cpus: f64, quota: f64) -> f64 {
    let span = (after.at_ns - before.at_ns) as f64;
    let ours = (after.ours_ns - before.ours_ns) as f64 / span;
    let busy = match (before.everybody_ns, after.everybody_ns) {
        (Some(before), Some(after)) => (after - before) as f64 / span,
        _ => ours + (after.hogs_ns - before.hogs_ns) as f64 / span,
    };
    (ours + (cpus - busy).max(0.0)).min(quota)
}

/// Runs one load; rows of what each source made of it.
fn run(load: &Load, windows: u32) -> Result<Vec<Watcher>, String> {
    let quota = match load.quota {
        Some(percent) => Some(Quota::new(percent).ok_or("no control groups with quotas here")?),
        None => None,
    };
    let quota_cpus = load
        .quota
        .map_or(f64::INFINITY, |percent| f64::from(percent) / 100.0);
    let ours = Busy::start(load.threads, None);
    if let Some(quota) = &quota {
        quota.take_in(ours.pid());
    }
    let hogs: Vec<Busy> = load.hogs.iter().map(|&cpu| Busy::start(1, cpu)).collect();
    let ways = [
        (
            "bpf",
            How::Bpf {
                keeps_takers: false,
            },
        ),
        ("proc", How::Proc),
    ];
    let mut watchers = Vec::new();
    for (name, how) in ways {
        match Watcher::new(name, how, ours.pid()) {
            Ok(watcher) => watchers.push(watcher),
            Err(why) => eprintln!("SKIPPED {name}: {why}"),
        }
    }
    let cpus = amdahl_topology::online()
        .map_err(|error| error.to_string())?
        .len() as f64;
    let mut random = Random(7);
    let mut before = clocks(&ours, &hogs);
    let mut due = Instant::now();
    for window in 0..windows {
        if let Some(step) = load.step_windows
            && window % step == 0
        {
            let running = random.next() as usize % (hogs.len() + 1);
            for (i, hog) in hogs.iter().enumerate() {
                hog.signal(if i < running {
                    libc::SIGCONT
                } else {
                    libc::SIGSTOP
                });
            }
        }
        due += WINDOW;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let after = clocks(&ours, &hogs);
        let truth = truth(&before, &after, cpus, quota_cpus);
        before = after;
        for watcher in &mut watchers {
            let estimate = watcher.tick();
            // The first windows begin before everything does.
            if let (Some(estimate), 3..) = (estimate, window) {
                watcher.compare(&estimate, truth);
            }
        }
    }
    drop((ours, hogs, quota));
    Ok(watchers)
}

/// Has the kernel account for the time of BPF programs as long as the descriptor lives.
fn enable_bpf_stats() -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    const BPF_ENABLE_STATS: libc::c_long = 32;
    let attr = [0_u32; 2];
    // SAFETY: attr begins as the part of union bpf_attr for this command does: type 0, run time.
    let descriptor = unsafe { libc::syscall(libc::SYS_bpf, BPF_ENABLE_STATS, &raw const attr, 4) };
    // SAFETY: a fresh descriptor that nobody else owns.
    (descriptor >= 0).then(|| unsafe { std::os::fd::OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Time of the programs that this process holds.
fn bpf_ns() -> u64 {
    let files = fs::read_dir("/proc/self/fdinfo")
        .into_iter()
        .flatten()
        .flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    texts
        .filter_map(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("run_time_ns:"));
            line?.trim().parse::<u64>().ok()
        })
        .sum()
}

/// Cost of each source beside the busiest of the loads, in percent of one CPU.
fn costs(seconds: u32) -> Vec<(&'static str, f64)> {
    let ours = Busy::start(4, None);
    let _hogs = [Busy::start(1, None), Busy::start(1, None)];
    let mut rows = Vec::new();
    let stats = enable_bpf_stats();
    for (name, how, interval) in [
        (
            "bpf",
            How::Bpf {
                keeps_takers: false,
            },
            Duration::from_millis(20),
        ),
        ("proc", How::Proc, WINDOW),
    ] {
        let Ok(mut watcher) = Watcher::new(name, how, ours.pid()) else {
            continue;
        };
        let (begun, cpu, bpf) = (Instant::now(), thread_cpu_ns(), bpf_ns());
        let mut due = begun;
        while begun.elapsed() < Duration::from_secs(u64::from(seconds)) {
            due += interval;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            watcher.tick();
        }
        let ns = thread_cpu_ns() - cpu + (bpf_ns() - bpf);
        rows.push((name, ns as f64 / begun.elapsed().as_nanos() as f64 * 100.0));
    }
    drop(stats);
    rows
}

/// Nanoseconds of a reading of the page, without and with a look whether it is fresh.
fn page_ns() -> [f64; 2] {
    let mut publisher = Publisher::anonymous(amdahl_phantom_page::Source::Proc).expect("memory");
    let name = CString::new(format!("/proc/self/fd/{}", publisher.descriptor())).expect("no zero");
    publisher.publish(amdahl_phantom_page::Snapshot {
        time_ns: monotonic_ns(),
        tick_us: 10_000_000,
        window_us: 1,
        allowed: 2,
        ..Default::default()
    });
    let reader = Reader::open(&name).expect("our own page");
    const READS: u32 = 5_000_000;
    let time = |read: &dyn Fn()| {
        // The least of some rounds: nobody was in between.
        let rounds = (0..5).map(|_| {
            let begun = Instant::now();
            for _ in 0..READS / 5 {
                read();
            }
            begun.elapsed().as_nanos() as f64 / f64::from(READS / 5)
        });
        rounds.fold(f64::INFINITY, f64::min)
    };
    [
        time(&|| {
            black_box(reader.read().is_ok());
        }),
        time(&|| {
            black_box(reader.read_fresh(coarse_now_ns()).is_ok());
        }),
    ]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [what, threads] = &args[..]
        && what == "busy"
    {
        be_busy(threads.parse().expect("a number"));
    }
    let seconds = args
        .iter()
        .position(|arg| arg == "--seconds")
        .and_then(|at| args.get(at + 1)?.parse::<u32>().ok())
        .unwrap_or(5);
    let is_json = args.iter().any(|arg| arg == "--json");
    let mut out = std::io::stdout().lock();
    let mut say = |line: String| writeln!(out, "{line}").expect("somebody reads");
    let mut sums: Vec<(&str, u32, u32)> = Vec::new();
    for load in LOADS {
        let watchers = match run(load, seconds * 10) {
            Ok(watchers) => watchers,
            Err(why) => {
                eprintln!("SKIPPED {}: {why}", load.name);
                continue;
            }
        };
        for Watcher {
            name,
            windows,
            good,
            worst,
            ..
        } in watchers
        {
            let share = f64::from(good) / f64::from(windows.max(1)) * 100.0;
            let load = load.name;
            say(if is_json {
                format!(
                    r#"{{"load":"{load}","source":"{name}","windows":{windows},"good_percent":{share:.2},"worst_cpus":{worst:.3}}}"#
                )
            } else {
                format!(
                    "{load:34} {name:5} {share:6.1} % of {windows} windows within {TOLERANCE}, worst {worst:.2}"
                )
            });
            match sums.iter_mut().find(|sum| sum.0 == name) {
                Some(sum) => (sum.1, sum.2) = (sum.1 + windows, sum.2 + good),
                None => sums.push((name, windows, good)),
            }
        }
    }
    for (name, windows, good) in sums {
        let share = f64::from(good) / f64::from(windows.max(1)) * 100.0;
        say(if is_json {
            format!(
                r#"{{"load":"all","source":"{name}","windows":{windows},"good_percent":{share:.2}}}"#
            )
        } else {
            format!("{:34} {name:5} {share:6.1} % of {windows} windows", "all")
        });
    }
    for (name, percent) in costs(seconds) {
        say(if is_json {
            format!(r#"{{"cost":"{name}","percent_of_a_cpu":{percent:.4}}}"#)
        } else {
            format!("cost of {name:5} {percent:.3} % of a CPU")
        });
    }
    let [bare, fresh] = page_ns();
    say(if is_json {
        format!(r#"{{"page_read_ns":{bare:.2},"page_read_fresh_ns":{fresh:.2}}}"#)
    } else {
        format!("a read of the page {bare:.1} ns, with a look at the clock {fresh:.1} ns")
    });
}
