//! Runs a command on given CPUs as an ordinary user and says where its CPU time went.
//!
//! ```text
//! unprivileged [--no-preload] [--no-stacks] [--alone] CPUS COMMAND [ARG...]
//! unprivileged 0,1 ./program
//! ```
//!
//! `--alone` divides as if nobody else ran: for a high priority on a busy machine.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use amdahl_probe::symbol::Symbolizer;
use amdahl_probe::unprivileged::{Poller, Scope, preload};
use amdahl_speedup::cause::Cause;
use amdahl_speedup::event::{CallStack, StackId, StackTable};
use amdahl_speedup::partition::RunPartition;
use amdahl_speedup::snapshot::{Charger, CpuUsage, Snapshot};

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut take = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag);
        at.map(|at| args.remove(at)).is_some()
    };
    let (without_preload, without_stacks) = (take("--no-preload"), take("--no-stacks"));
    let is_alone = take("--alone");
    if args.len() < 2 {
        eprintln!(
            "usage: unprivileged [--no-preload] [--no-stacks] [--alone] CPUS COMMAND [ARG...]"
        );
        return ExitCode::from(2);
    }
    let cpus: Vec<u32> = args[0]
        .split(',')
        .filter_map(|cpu| cpu.parse().ok())
        .collect();
    let records = tempfile::tempdir().expect("a folder for the records");
    let mut command = Command::new(&args[1]);
    command.args(&args[2..]);
    let library = preload::library().filter(|_| !without_preload);
    if let Some(value) = library
        .as_deref()
        .and_then(|path| preload::ld_preload(path, None))
    {
        command
            .env("LD_PRELOAD", value)
            .env(preload::DIR_VARIABLE, records.path());
    }
    confine(&mut command, &cpus);
    // SAFETY: prctl with these arguments touches no memory.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };

    let mut symbolizer = Symbolizer::new();
    let from = now();
    let mut child = command.spawn().expect("the command starts");
    let scope = Scope {
        root: Some(child.id()),
        adopter: Some(std::process::id()),
        cgroup: None,
    };
    let mut poller = Poller::new(scope).expect("the command runs");
    if !without_stacks {
        poller = poller.copy_stacks(1);
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let watched = is_over.clone();
    let watcher = thread::spawn(move || {
        let mut snapshots = Vec::new();
        let mut stacks = Vec::new();
        while !watched.load(Ordering::Relaxed) {
            snapshots.push(poller.poll());
            for stack in poller.take_stacks() {
                let maps = symbolizer.maps_mut();
                if !maps.is_complete(stack.pid) {
                    // A process that is gone again has no names: that is no failure.
                    let _ = maps.snapshot(stack.pid);
                }
                stacks.push(stack);
            }
            thread::park_timeout(poller.pause());
        }
        snapshots.push(poller.poll_with_cpus());
        (poller, snapshots, stacks, symbolizer)
    });
    let status = child.wait().expect("the command ends");
    let to = now();
    is_over.store(true, Ordering::Relaxed);
    watcher.thread().unpark();
    let (poller, mut snapshots, copies, mut symbolizer) = watcher.join().expect("the poller ends");

    let mut table: StackTable = vec![Arc::new(CallStack::default())];
    table.extend(
        copies
            .iter()
            .map(|copy| Arc::new(symbolizer.resolve_copy(copy))),
    );
    if is_alone {
        snapshots
            .iter_mut()
            .for_each(|snapshot| snapshot.cpus.clear());
    }
    let waits = preload::read_dir(records.path()).expect("the folder is there");
    let usage = usage();
    let run = charge(
        &cpus,
        from,
        to,
        &snapshots,
        &mut table,
        usage,
        &waits,
        &mut symbolizer,
    );
    println!(
        "{status}; {:.3} s; preload {}; {:?}",
        (to - from) as f64 / 1e9,
        library.map_or("absent".to_owned(), |path| path.display().to_string()),
        poller.blindness(),
    );
    show(&run, &table);
    ExitCode::SUCCESS
}

#[expect(
    clippy::too_many_arguments,
    reason = "an example shows all that goes in"
)]
fn charge(
    cpus: &[u32],
    from: u64,
    to: u64,
    snapshots: &[Snapshot],
    table: &mut StackTable,
    usage: CpuUsage,
    waits: &preload::Records,
    symbolizer: &mut Symbolizer,
) -> RunPartition {
    let mut charger = Charger::new(cpus, from);
    for snapshot in snapshots {
        charger.feed(snapshot, table);
    }
    let mut sites = Vec::new();
    let next = table.len() as u32;
    let site = |pid, caller| {
        sites.push(symbolizer.resolve_names(pid, &[caller], &[]));
        Some(StackId(next + sites.len() as u32 - 1))
    };
    let run = charger.finish(to, Some(usage), &waits.processes, site, StackId(0));
    table.extend(sites.into_iter().map(Arc::new));
    run
}

fn show(run: &RunPartition, table: &StackTable) {
    let capacity = run.capacity_ns();
    println!("on CPU {:6.2} %", 100.0 * run.on_cpu_ns / capacity);
    for (&(activity, ..), charge) in &run.on {
        if charge.ns > 0.02 * capacity {
            println!("    {:6.2} % {activity:?}", 100.0 * charge.ns / capacity);
        }
    }
    for cause in Cause::ALL {
        let mut sites: Vec<_> = run
            .off
            .iter()
            .filter(|(key, _)| key.cause == cause)
            .collect();
        let all: f64 = sites.iter().map(|(_, charge)| charge.ns).sum();
        if all < 0.002 * capacity {
            continue;
        }
        println!("{cause:12} {:6.2} %", 100.0 * all / capacity);
        sites.sort_by(|a, b| b.1.ns.total_cmp(&a.1.ns));
        for (key, charge) in sites.into_iter().take(3) {
            let stack = key.stack.and_then(|id| table.get(id.0 as usize));
            let frames: Vec<&str> = stack
                .map(|stack| {
                    stack
                        .user
                        .iter()
                        .take(4)
                        .map(|frame| frame.symbol.as_str())
                        .collect()
                })
                .unwrap_or_default();
            println!(
                "    {:6.2} % tid {} object {:#x} {}",
                100.0 * charge.ns / capacity,
                key.tid,
                key.object,
                frames.join(" < ")
            );
        }
    }
}

fn usage() -> CpuUsage {
    // SAFETY: an rusage of this ABI for the call to fill in.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    CpuUsage {
        user_ns: ns(usage.ru_utime),
        system_ns: ns(usage.ru_stime),
        faults_ns: None,
    }
}

fn confine(command: &mut Command, cpus: &[u32]) {
    let cpus = cpus.to_vec();
    // SAFETY: only sched_setaffinity is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            let mut set = std::mem::zeroed::<libc::cpu_set_t>();
            for &cpu in &cpus {
                libc::CPU_SET(cpu as usize, &mut set);
            }
            match libc::sched_setaffinity(0, size_of_val(&set), &set) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

fn now() -> u64 {
    let at = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64
}
