//! `amdahl doctor`: what this machine lets us measure, what not, and how to allow it.

mod hidden;
mod limits;

use amdahl_probe::bpf::{Recorder, SCALE, Settings, has_tracepoint};
use amdahl_probe::perf::{Counter, View, sampling};
use amdahl_probe::unprivileged::preload;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::cli::Doctor;
use crate::failure::Failure;
use crate::screen;
use crate::watch;
use crate::watch::preload::Lack;
use hidden::Rights;

/// One thing looked at.
#[derive(Debug, Serialize)]
pub struct Check {
    /// Stable name.
    pub name: &'static str,
    /// It works.
    pub ok: bool,
    /// What was found.
    pub found: String,
    /// What is lost without it; empty if it works.
    pub lost: String,
    /// How to get it; empty if it works.
    pub remedy: String,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn check(name: &'static str, ok: bool, found: String, lost: &str, remedy: &str) -> Check {
    let unless_ok = |text: &str| if ok { "" } else { text }.to_owned();
    Check {
        name,
        ok,
        found,
        lost: unless_ok(lost),
        remedy: unless_ok(remedy),
    }
}

/// The pair of tracepoints around each wait for a contended lock.
fn contention() -> Check {
    let has = ["contention_begin", "contention_end"].map(has_tracepoint);
    let (found, remedy) = match has {
        [None, _] | [_, None] => (
            "not known: the kernel does not tell its types",
            "see kernel type information (BTF)",
        ),
        [Some(true), Some(true)] => ("contention_begin and contention_end", ""),
        _ => ("this kernel has none", "use Linux 5.19 or newer"),
    };
    check(
        "tracepoints of kernel locks",
        has == [Some(true); 2],
        found.to_owned(),
        "who sleeps on a kernel lock in a read, a write, a page fault or a call on a file seems to wait for storage; amdahl \
         locks has futexes only",
        remedy,
    )
}

fn library() -> Check {
    let library = preload::library();
    let found = library
        .as_ref()
        .map_or("not found".to_owned(), |path| path.display().to_string());
    check(
        "preload library",
        library.is_some(),
        found,
        &format!("without BPF: {}", Lack::NotFound.missing()),
        &Lack::NotFound.remedy(),
    )
}

/// What bounds measuring without BPF.
fn unprivileged(cpus: usize) -> Vec<Check> {
    let rights = Rights::parse(&read("/proc/self/status"));
    // A recording raises the soft limit.
    let files = getrlimit(Resource::Nofile).maximum;
    let locked = getrlimit(Resource::Memlock).current;
    let number = |path: &str| read(path).parse::<i64>().unwrap_or(0);
    let per_cpu_kib = u64::try_from(number("/proc/sys/kernel/perf_event_mlock_kb")).unwrap_or(0);
    let is_exempt = rights.may_lock || number("/proc/sys/kernel/perf_event_paranoid") < 0;
    vec![
        library(),
        hidden::ptrace_scope(&read("/proc/sys/kernel/yama/ptrace_scope"), &rights),
        hidden::hidepid(&read("/proc/self/mounts"), &rights),
        limits::open_files(files, cpus),
        limits::locked_memory(locked, per_cpu_kib, cpus, is_exempt),
    ]
}

fn checks() -> Vec<Check> {
    let cpus: Vec<u32> = amdahl_topology::allowed()
        .map(|set| set.iter().collect())
        .unwrap_or_default();
    let first = cpus.first().copied().unwrap_or(0);
    let mut checks = Vec::new();
    let topology = amdahl_topology::Topology::read();
    checks.push(check(
        "topology",
        topology.is_ok(),
        topology
            .as_ref()
            .map_or_else(ToString::to_string, |topology| {
                format!("{}, {} CPUs allowed", topology.describe(), cpus.len())
            }),
        "CPUs are taken in the order of their numbers",
        "mount sysfs at /sys",
    ));
    checks.push(check(
        "several CPUs",
        cpus.len() > 1,
        format!("{} CPUs may be used", cpus.len()),
        "a sweep has a single point",
        "widen the affinity mask or the cpuset of this shell",
    ));
    let quota = amdahl_topology::quota().ok().flatten();
    checks.push(check(
        "no CPU quota",
        quota.is_none(),
        quota.as_ref().map_or("none".to_owned(), |quota| {
            format!("{:.2} CPUs' worth ({})", quota.cpus, quota.source.display())
        }),
        "runs are throttled; shown as stolen",
        "raise cpu.max (v2) or cpu.cfs_quota_us (v1) of the control group, or the container's CPU limit",
    ));
    let btf = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    checks.push(check(
        "kernel type information (BTF)",
        btf,
        if btf {
            "/sys/kernel/btf/vmlinux"
        } else {
            "missing"
        }
        .to_owned(),
        "BPF programs cannot be loaded",
        "use a kernel built with CONFIG_DEBUG_INFO_BTF=y (all large distributions since 2021)",
    ));
    let recorder = Recorder::new(&Settings {
        ring_bytes: 1 << 20,
        ..Settings::new(&SCALE, cpus.clone())
    });
    checks.push(check(
        "BPF recorder",
        recorder.is_ok(),
        recorder
            .as_ref()
            .map_or_else(ToString::to_string, |_| "loads and attaches".to_owned()),
        "waits are polled from /proc, sizes are approximate; amdahl locks polls a system or a control group the more \
         seldom the larger it is, and 4,096 threads at most",
        recorder.as_ref().err().map_or("", crate::watch::bpf_remedy),
    ));
    drop(recorder);
    checks.push(contention());
    let paranoid = read("/proc/sys/kernel/perf_event_paranoid");
    let clock = sampling(Counter::Clock, 10_000_000, first);
    checks.push(check(
        "perf events of all threads",
        clock.is_ok(),
        format!("kernel.perf_event_paranoid = {paranoid}"),
        "the BPF recorder cannot sample",
        "as root: sysctl kernel.perf_event_paranoid=-1, or CAP_PERFMON",
    ));
    let view = View::allowed();
    let (seen, lost) = match &view {
        Ok(View::Whole) => ("user and kernel code".to_owned(), ""),
        Ok(View::User) => (
            "user code only".to_owned(),
            "without BPF, locks of the kernel are not told from other kernel time, page faults \
             only by their number",
        ),
        Err(error) => (
            error.to_string(),
            "without BPF, running code is not named, spinning and extra work are not told from \
             slow work",
        ),
    };
    checks.push(check(
        "perf events of own programs",
        view.is_ok_and(|view| view == View::Whole),
        format!("{seen} (kernel.perf_event_paranoid = {paranoid})"),
        lost,
        "as root: sysctl kernel.perf_event_paranoid=1",
    ));
    let cycles = sampling(Counter::Cycles, 10_000_000, first);
    let instructions = sampling(Counter::UserInstructions, 10_000_000, first);
    checks.push(check(
        "hardware counters",
        cycles.is_ok() && instructions.is_ok(),
        match (cycles.is_ok(), instructions.is_ok()) {
            (true, true) => "cycles and instructions",
            (true, false) => "cycles only",
            (false, true) => "instructions only",
            (false, false) => "none",
        }
        .to_owned(),
        "extra-work and slow-work are told apart by the speed of loops only; sampling is blind \
         while interrupts are off",
        "on a virtual machine ask for a virtual PMU (KVM: -cpu host,pmu=on; clouds: whole-socket or \
         metal instances)",
    ));
    let names = amdahl_probe::symbol::kernel_names_are_readable();
    checks.push(check(
        "kernel symbol names",
        names,
        format!(
            "kernel.kptr_restrict = {}",
            read("/proc/sys/kernel/kptr_restrict")
        ),
        "kernel time cannot be divided into faults, locks and the rest",
        watch::SHOWN_NAMES,
    ));
    let confinement = crate::scale::confinement();
    checks.push(check(
        "cpuset control groups",
        confinement.is_some(),
        confinement.unwrap_or("not writable").to_owned(),
        "the program is confined by its affinity mask only, which it may change",
        "run as root, or inside a control group (v2) that is delegated to this user with the cpuset controller: \
         Delegate=cpuset of user@.service, then systemd-run --user --scope -p Delegate=yes amdahl ...",
    ));
    let steal = read("/proc/stat")
        .lines()
        .next()
        .is_some_and(|line| line.split_whitespace().count() > 8);
    checks.push(check(
        "steal time",
        steal,
        if steal {
            "reported in /proc/stat"
        } else {
            "not reported"
        }
        .to_owned(),
        "time taken by the hypervisor looks like slow work",
        "use a guest kernel with paravirtual time accounting",
    ));
    checks.extend(unprivileged(cpus.len()));
    checks
}

/// Looks and tells.
pub fn main(args: &Doctor) -> Result<u8, Failure> {
    let checks = checks();
    if args.json {
        let mut text = serde_json::to_string_pretty(&checks).expect("plain data");
        text.push('\n');
        return screen::print(&text);
    }
    let mut text = String::new();
    for check in &checks {
        let mark = if check.ok { "ok     " } else { "MISSING" };
        text += &format!("{mark}  {}: {}\n", check.name, check.found);
        if !check.ok {
            text += &format!(
                "         without it: {}\n         to get it:  {}\n",
                check.lost, check.remedy
            );
        }
    }
    let missing = checks.iter().filter(|check| !check.ok).count();
    text += &if missing == 0 {
        "\nEverything can be measured here.\n".to_owned()
    } else {
        format!(
            "\n{missing} of {} are missing: amdahl works without them, but for what is said to be lost.\n",
            checks.len()
        )
    };
    screen::print(&text)
}
