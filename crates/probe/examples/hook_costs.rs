//! What each BPF program takes by the kernel's own account while a command runs, as root:
//! `hook_costs scale|sched|locks|mem COMMAND...`, and how many instructions the verifier looked at.
//! `sched` records the whole system, the others the command.
//!
//! The account itself costs two readings of the clock a call, which are not in the figures.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::process::Command;
use std::time::Duration;

use amdahl_probe::bpf::{LOCKS, MEM, Mappings, Recorder, SCALE, SCHED, Settings, lock_constants};
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use rustix::thread::{CpuSet, sched_getaffinity};

/// Of programs of one name: the kernel cuts names after 15 characters.
#[derive(Default)]
struct Account {
    calls: u64,
    time: Duration,
    /// Instructions that the verifier looked at: most of what loading takes.
    verified: u64,
}

/// Programs that this process holds: others may record at the same time.
fn ours() -> HashSet<u32> {
    let files = fs::read_dir("/proc/self/fdinfo").expect("/proc is mounted");
    let texts = files.flatten().map(|file| fs::read_to_string(file.path()));
    let ids = texts.flatten().filter_map(|text| {
        let id = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
        id?.trim().parse().ok()
    });
    ids.collect()
}

fn accounts() -> BTreeMap<String, Account> {
    let ours = ours();
    let mut accounts = BTreeMap::<String, Account>::new();
    for info in loaded_programs().flatten() {
        if ours.contains(&info.id()) {
            let name = info.name_as_str().unwrap_or("?").to_owned();
            let account = accounts.entry(name).or_default();
            account.calls += info.run_count();
            account.time += info.run_time();
            account.verified += u64::from(info.verified_instruction_count().unwrap_or(0));
        }
    }
    accounts
}

/// CPU time of all children that have ended.
fn cpu_time() -> Duration {
    // SAFETY: an rusage is plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is writable and of the right type.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    assert_eq!(failed, 0);
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let allowed = sched_getaffinity(None).expect("the CPUs of this process");
    let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let cpus: Vec<u32> = cpus.map(|cpu| cpu as u32).collect();
    let usual = |programs| Settings::new(programs, cpus.clone());
    let settings = match args.first().map(String::as_str) {
        Some("scale") => usual(&SCALE),
        Some("sched") => Settings {
            everyone: true,
            ..usual(&SCHED)
        },
        Some("locks") => Settings {
            constants: lock_constants(),
            ..usual(&LOCKS)
        },
        Some("mem") => Settings {
            mappings: Mappings::All,
            ..usual(&MEM)
        },
        _ => panic!("usage: hook_costs scale|sched|locks|mem COMMAND..."),
    };
    let mut recorder = Recorder::new(&settings).unwrap_or_else(|error| panic!("{error}"));
    let _account = enable_stats(Stats::RunTime).expect("the account of the kernel");
    let parts = recorder.begin(&cpus).expect("a recording");
    let me = std::process::id();
    recorder.add(me, me).expect("room for a thread");
    let status = Command::new(&args[1]).args(&args[2..]).status();
    let accounts = accounts();
    let counts = recorder.end().expect("the end of the recording");
    let cpu = cpu_time();
    let stacks: usize = parts.try_iter().map(|part| part.stacks.len()).sum();
    eprintln!("{status:?}, {stacks} stacks, lost {:?}", counts.lost);
    println!(
        "{:<24}{:>10}{:>10}{:>10}  of {cpu:.2?} CPU time",
        "", "verified", "calls", "mean"
    );
    let mut all = Duration::ZERO;
    let mut all_verified = 0;
    for (name, account) in &accounts {
        let Account {
            calls,
            time,
            verified,
        } = account;
        all += *time;
        all_verified += verified;
        let share = 100.0 * time.as_secs_f64() / cpu.as_secs_f64();
        let mean = time.as_nanos() / u128::from(*calls).max(1);
        println!("{name:<24}{verified:>10}{calls:>10}{mean:>7} ns{share:>7.2} %");
    }
    let share = 100.0 * all.as_secs_f64() / cpu.as_secs_f64();
    println!(
        "{:<24}{all_verified:>10}{:>10}{:>10}{share:>7.2} %",
        "all", "", ""
    );
}
