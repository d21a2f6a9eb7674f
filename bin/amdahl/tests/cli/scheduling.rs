//! `amdahl sched`: what is recorded, what survives, what is told apart.

use std::collections::BTreeSet;

use amdahl_report::sched::schema::SchedResult;
use amdahl_sched::event::{Event, Off};
use amdahl_sched::recording::{Meta, PartWriter};
use amdahl_sched::vmm::{guest_ticks, kvm_run};
use amdahl_topology::Topology;
use rustix::process::Signal;

use crate::processes::{is_alive, until_catches};
use crate::tool::{Place, Ran, alone, bpf, cpus, names, skipped, until};
use crate::workload::compiled;

/// Two threads that compute for as long; with an argument both on the first CPU that is allowed.
const TWO: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <time.h>
static void *churn(void *arg) {
    struct timespec at;
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    while (at.tv_nsec < 300000000 && !at.tv_sec);
    return arg;
}
int main(int argc, char **argv) {
    cpu_set_t all, one;
    pthread_t thread[2];
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all)) { CPU_SET(cpu, &one); break; }
    if (argc > 1) sched_setaffinity(0, sizeof one, &one);
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], 0, churn, argv);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], 0);
    return 0;
}
"#;

fn can_record() -> bool {
    bpf().map_err(skipped).is_ok()
}

#[track_caller]
fn result(ran: &Ran) -> SchedResult {
    amdahl_report::sched::load::parse(ran.out.as_bytes(), "standard output".into())
        .unwrap_or_else(|error| panic!("{}\n{error}\n{}", ran.what, ran.out))
}

fn record(place: &Place, command: &[&str]) -> SchedResult {
    let mut args = vec!["sched", "record", "--json", "--quiet", "--"];
    args.extend(command);
    result(&place.amdahl(args).ends_with(0))
}

#[test]
fn idle_while_overloaded_is_seen_and_blamed_on_the_affinity() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    if cpus() < 2 {
        return skipped("there is one CPU only");
    }
    let place = Place::new();
    let Some(two) = compiled(&place, "two", TWO, &[]) else {
        return;
    };
    let two = two.to_str().expect("a path");
    let pinned = record(&place, &[two, "pinned"]);
    let wasted = &pinned.wasted;
    let idle: f64 = pinned.cpus.iter().map(|cpu| cpu.idle_s).sum();
    if idle < 0.1 * pinned.wall_s {
        return skipped("somebody else keeps the other CPUs busy");
    }
    assert!(wasted.affinity_s > 0.0, "{wasted:?}");
    // Until the program has bound itself anything may happen to it.
    let rest = wasted.placement_s + wasted.balancing_s + wasted.transient_s;
    assert!(rest < wasted.affinity_s, "{wasted:?}");
    assert!(wasted.total_s() <= idle, "{wasted:?} {idle}");
    let busy: BTreeSet<u32> = wasted
        .pairs
        .iter()
        .filter(|pair| pair.reason == "affinity")
        .map(|pair| pair.busy_cpu)
        .collect();
    assert_eq!(busy.len(), 1, "{wasted:?}");
    let waiting: f64 = pinned.threads.iter().map(|thread| thread.wait_s).sum();
    assert!(
        wasted.total_s() <= waiting,
        "{} {waiting}",
        wasted.total_s()
    );
    assert!(pinned.preempt_latency.count > 0);

    let free = record(&place, &[two]);
    assert_eq!(free.wasted.affinity_s, 0.0, "{:?}", free.wasted);
}

#[test]
fn every_thread_of_a_fork_heavy_program_is_counted() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let ran = record(
        &place,
        &[
            "sh",
            "-c",
            "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done",
        ],
    );
    let totals = &ran.totals;
    if totals.events_lost > 0 {
        return skipped("events were lost");
    }
    // The shell was there before.
    assert_eq!((totals.forks, totals.exits), (200, 201), "{totals:?}");
    let threads: u64 = ran.threads.iter().map(|row| row.threads).sum();
    assert_eq!(threads, 201);
    assert!(
        ran.threads.iter().any(|row| row.name == "true"),
        "{:?}",
        ran.threads
    );
}

#[test]
fn a_recording_is_read_again_alike() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    place
        .amdahl([
            "sched",
            "record",
            "--quiet",
            "--",
            "sh",
            "-c",
            "/bin/true; /bin/true",
        ])
        .ends_with(0);
    let files: Vec<String> = names(&place.join("amdahl-sched"));
    let expected = [
        "events",
        "report.html",
        "result.json",
        "threads-on-cpus.svg",
        "threads-over-time.svg",
        "trace.json.gz",
    ];
    assert_eq!(files, expected);
    let saved = result(
        &place
            .amdahl(["sched", "show", "--json", "amdahl-sched"])
            .ends_with(0),
    );
    let again = result(
        &place
            .amdahl(["sched", "show", "--json", "amdahl-sched/events"])
            .ends_with(0),
    );
    assert_eq!(saved.totals.switches, again.totals.switches);
    assert_eq!(saved.wake_latency, again.wake_latency);
    assert_eq!(saved.wasted, again.wasted);
    assert_eq!(
        saved.recording.as_ref().map(|kept| kept.events),
        Some(saved.totals.events)
    );
    place
        .amdahl(["report", "amdahl-sched"])
        .ends_with(0)
        .says("Run queue latency");
    place
        .amdahl(["sched", "show", "--svg", "a.svg", "amdahl-sched"])
        .ends_with(0);
    place
        .amdahl([
            "sched",
            "show",
            "--trace",
            "a.json.gz",
            "amdahl-sched/events",
        ])
        .ends_with(0);
    assert!(place.read("a.svg").starts_with("<svg") && place.join("a.json.gz").exists());
    let drawn = saved.timelines.expect("timelines");
    assert!(
        drawn.threads.iter().any(|thread| thread.name == "sh"),
        "{drawn:?}"
    );
    place
        .amdahl(["sched", "show", "--timelines", "b.svg", "amdahl-sched"])
        .ends_with(0);
    let written = place.read("amdahl-sched/threads-over-time.svg");
    assert!(written.starts_with("<svg") && written == place.read("b.svg"));
}

/// `sched show` took every Parquet file for a part, `report` those that are named as one, and `record` removed all of them.
#[test]
fn files_beside_the_parts_are_nobodys_parts() {
    let place = Place::new();
    let mut writer = PartWriter::new(Meta {
        topology: Topology::synthetic("2 core").expect("a machine"),
        tick_ns: 4_000_000,
        begin: 0,
        is_everyone: true,
    });
    writer.add(Event::Switch {
        ts: 1_000_000,
        cpu: 0,
        prev: 7,
        off: Off::Preempted,
        next: 8,
    });
    let part = writer.write(Vec::new()).expect("a part");
    for (file, bytes) in [
        ("mixed/000001.parquet", &part[..]),
        ("mixed/mine.parquet", b"PAR1 nonsense PAR1"),
        ("mine/mine.parquet", &part),
    ] {
        let file = place.join(file);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(file, bytes).expect("a file");
    }
    for (path, is_recording) in [
        ("mixed", true),
        ("mixed/000001.parquet", true),
        ("mixed/mine.parquet", false),
        ("mine", false),
        ("mine/mine.parquet", false),
    ] {
        let shown = place.amdahl(["sched", "show", path]);
        let reported = place.amdahl(["report", path]);
        assert_eq!(shown.status, reported.status, "{shown:?} {reported:?}");
        assert_eq!(shown.out, reported.out);
        assert_eq!(shown.status.success(), is_recording, "{shown:?}");
    }
    std::fs::create_dir_all(place.join("amdahl-sched/events")).expect("a folder");
    for name in ["000007.parquet", "mine.parquet"] {
        std::fs::write(place.join("amdahl-sched/events").join(name), b"x").expect("a file");
    }
    let record = [
        "sched", "record", "--quiet", "--probe", "proc", "--", "true",
    ];
    place.amdahl(record).ends_with(0);
    assert_eq!(names(&place.join("amdahl-sched/events")), ["mine.parquet"]);
}

/// Two threads that are called as the CPUs of a guest: one is blocked until a child ends, one sleeps for as long.
const BLOCKED: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static void *blocked(void *unused) {
    pthread_setname_np(pthread_self(), "CPU 0/TCG");
    for (int i = 0; i < 3; i++) {
        pid_t child = vfork();
        if (!child) {
            usleep(100000);
            _exit(0);
        }
        waitpid(child, 0, 0);
    }
    return unused;
}
static void *halted(void *unused) {
    pthread_setname_np(pthread_self(), "CPU 1/TCG");
    usleep(300000);
    return unused;
}
int main(void) {
    pthread_t thread[2];
    pthread_create(&thread[0], 0, blocked, 0);
    pthread_create(&thread[1], 0, halted, 0);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], 0);
    return 0;
}
"#;

/// A CPU of a guest that waited for the host was taken for one that the guest had halted.
#[test]
fn a_guest_that_is_blocked_in_the_host_is_told_from_one_that_halts() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let Some(program) = compiled(&place, "blocked", BLOCKED, &[]) else {
        return;
    };
    let ran = record(&place, &[program.to_str().expect("a path")]);
    // The children have the name of who made them.
    let guests: Vec<_> = ran
        .guests
        .iter()
        .filter(|guest| guest.tid != guest.pid)
        .collect();
    let [blocked, halted] = guests[..] else {
        panic!("{:?}", ran.guests);
    };
    assert_eq!((blocked.guest_cpu, halted.guest_cpu), (Some(0), Some(1)));
    assert!(blocked.blocked_s > halted.blocked_s, "{:?}", ran.guests);
    assert!(blocked.blocked_max_s <= blocked.blocked_s);
    let row = |tid| {
        let mut rows = ran.threads.iter();
        rows.find(|row| row.tid == tid).expect("a row")
    };
    assert_eq!(row(blocked.tid).uninterruptible_s, blocked.blocked_s);
    assert!(row(blocked.tid).sleep_s >= blocked.blocked_s);
    // What it did most is what its timeline shows most.
    let lines = ran.timelines.expect("timelines");
    let shown = |tid: u32, part: usize| {
        let line = lines.threads.iter().find(|line| line.tid == tid);
        let runs = line.expect("a line").runs.iter();
        runs.map(|run| u64::from(run[0]) * u64::from(run[part]))
            .sum::<u64>()
    };
    let asleep = shown(blocked.tid, 4);
    assert!(shown(blocked.tid, 3) > asleep, "{lines:?}");
    assert!(shown(halted.tid, 4) > shown(halted.tid, 3), "{lines:?}");
}

/// They sleep as those do whom no signal ends, so that the kernel does not count them as load only by another bit of their state.
#[test]
fn idle_threads_of_the_kernel_are_not_blocked() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let args = [
        "sched", "record", "--json", "--quiet", "--system", "--for", "1s",
    ];
    let ran = result(&place.amdahl(args).ends_with(0));
    let workers = ran.threads.iter();
    let workers = workers.filter(|row| row.is_kernel && row.name.starts_with("kworker"));
    let (asleep, blocked) = workers.fold((0.0, 0.0), |(asleep, blocked), row| {
        (asleep + row.sleep_s, blocked + row.uninterruptible_s)
    });
    if asleep == 0.0 {
        return skipped("no kworker had anything to do");
    }
    assert!(blocked < asleep / 2.0, "{blocked} of {asleep}");
}

/// A monitor of its own kind with three virtual CPUs, in threads of other names: the first goes round in a loop, the others
/// halt. Ends with 77 where that cannot be.
const MONITOR: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#define HALT 0x1000
#define LOOP 0x1010
static int vm, size;
static long must(const char *what, long result) {
    if (result < 0) {
        perror(what);
        exit(77);
    }
    return result;
}
static void *run(void *arg) {
    int number = (int)(long)arg, cpu = must("create", ioctl(vm, KVM_CREATE_VCPU, number));
    struct kvm_run *told = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, cpu, 0);
    struct kvm_sregs special;
    struct kvm_regs registers = {.rip = number ? HALT : LOOP, .rflags = 2};
    struct kvm_mp_state state = {KVM_MP_STATE_RUNNABLE};
    must("special registers", ioctl(cpu, KVM_GET_SREGS, &special));
    special.cs.base = special.cs.selector = 0;
    must("special registers", ioctl(cpu, KVM_SET_SREGS, &special));
    must("registers", ioctl(cpu, KVM_SET_REGS, &registers));
    must("state", ioctl(cpu, KVM_SET_MP_STATE, &state));
    pthread_setname_np(pthread_self(), number ? "idler" : "worker");
    for (;;) {
        long ran = ioctl(cpu, KVM_RUN, 0);
        if (ran < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        must("run", ran);
        fprintf(stderr, "exit %u\n", told->exit_reason);
        exit(77);
    }
}
int main(void) {
    pthread_t thread;
    int kvm = must("/dev/kvm", open("/dev/kvm", O_RDWR | O_CLOEXEC));
    vm = must("machine", ioctl(kvm, KVM_CREATE_VM, 0));
    must("interrupts", ioctl(vm, KVM_CREATE_IRQCHIP, 0));
    size = must("size", ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0));
    char *memory = mmap(0, 0x10000, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memcpy(memory + HALT, "\xf4\xeb\xfd", 3);
    memcpy(memory + LOOP, "\xeb\xfe", 2);
    struct kvm_userspace_memory_region region = {
        .memory_size = 0x10000, .userspace_addr = (unsigned long)memory};
    must("memory", ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region));
    for (long number = 0; number < 3; number++) pthread_create(&thread, 0, run, (void *)number);
    for (;;) pause();
}
"#;

/// Only monitors were seen whose threads have one of the names in a list.
#[test]
fn guests_are_found_whatever_their_threads_are_called() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    if cfg!(not(target_arch = "x86_64")) {
        return skipped("the guest is one of x86_64");
    }
    let place = Place::new();
    let Some(program) = compiled(&place, "my-vmm", MONITOR, &[]) else {
        return;
    };
    let monitor = place.start(place.here(std::process::Command::new(program)));
    let pid = monitor.pid();
    let of_threads = |file: &str| -> Vec<String> {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
        let threads = threads.flatten().flatten();
        let texts = threads.map(|thread| std::fs::read_to_string(thread.path().join(file)));
        texts.flatten().collect()
    };
    let run_ns = |schedstat: &String| schedstat.split(' ').next()?.parse::<u64>().ok();
    let runs = until("two CPUs to halt, and one to go round", || {
        let halted = of_threads("syscall")
            .iter()
            .filter_map(|text| kvm_run(text))
            .count();
        let run = of_threads("schedstat").iter().filter_map(run_ns).max();
        let is_ready = halted == 2 && run > Some(200_000_000);
        (is_ready || !is_alive(pid)).then_some(is_ready)
    });
    if !runs {
        return skipped(format_args!("no guest of KVM: {}", monitor.ended().err));
    }
    let mut ticks = of_threads("stat")
        .into_iter()
        .filter_map(|text| guest_ticks(&text));
    let is_told = ticks.any(|ticks| ticks > 0);
    let pid = pid.to_string();
    let record = [
        "sched", "record", "--json", "--quiet", "--pid", &pid, "--for", "1s",
    ];
    let ran = result(&place.amdahl(record).ends_with(0));
    let guests = ran.guests.iter();
    let found: Vec<_> = guests.map(|guest| (&*guest.vmm, guest.guest_cpu)).collect();
    if is_told {
        assert_eq!(found, [0, 1, 2].map(|cpu| ("my-vmm", Some(cpu))));
    } else {
        skipped(
            "a guest that never halts: KVM interprets guests here, and counts no time of theirs",
        );
        assert_eq!(found, [1, 2].map(|cpu| ("my-vmm", Some(cpu))));
    }
    let args = ["phantom", "--vm", &pid, "--for", "100ms", "--json"];
    let looked = place.amdahl(args).ends_with(0).json();
    assert_eq!(looked["target"], format!("virtual machine {pid}"));
}

#[test]
fn what_was_on_disk_survives_a_kill() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    // The result of an earlier recording was once shown for the one that was killed.
    place
        .amdahl(["sched", "record", "--quiet", "--", "true"])
        .ends_with(0);
    let tool = place.start(place.tool(["sched", "record", "--system", "--for", "1h", "--quiet"]));
    until("the first part", || {
        let is_new = !place.join("amdahl-sched/result.json").exists();
        let first = place.join("amdahl-sched/events/000001.parquet");
        (is_new && first.exists()).then_some(())
    });
    tool.signal(Signal::KILL);
    drop(tool);
    let shown = result(
        &place
            .amdahl(["sched", "show", "--json", "amdahl-sched"])
            .ends_with(0),
    );
    assert!(shown.totals.switches > 0 && shown.wall_s > 0.0);
    // It was once refused here, for want of a `result.json`.
    for path in ["amdahl-sched", "amdahl-sched/events"] {
        place
            .amdahl(["report", path])
            .ends_with(0)
            .says("Run queue latency")
            .says("events-alone");
    }
    // The next recording goes to the same place.
    place
        .amdahl(["sched", "record", "--quiet", "--", "true"])
        .ends_with(0);
    assert!(
        !place.names().iter().any(|name| name.starts_with('.')),
        "{:?}",
        place.names()
    );
}

#[test]
fn two_record_at_once_but_not_into_one_folder() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let args = [
        "sched", "record", "--system", "--for", "1h", "--quiet", "-o", "a",
    ];
    let first = place.start(place.tool(args));
    until_catches(first.pid(), Signal::INT);
    let refused = place.amdahl(["sched", "record", "-o", "a", "--", "true"]);
    assert!(refused.message().contains("already"), "{}", refused.err);
    let second = record(&place, &["sh", "-c", "/bin/true"]);
    assert_eq!(second.totals.forks + 1, second.totals.exits);
    first.signal(Signal::INT);
    first.ended().ends_with(5).says("Who wakes whom");
}

#[test]
fn recording_ends_with_the_process() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let mut sleep = std::process::Command::new("sleep");
    sleep.arg("1000");
    let process = place.start(place.here(sleep));
    let pid = process.pid().to_string();
    let tool = place.start(place.tool(["sched", "record", "--json", "--pid", &pid, "--for", "1h"]));
    until_catches(tool.pid(), Signal::INT);
    drop(process);
    let ended = result(&tool.ended().ends_with(0));
    assert!(ended.totals.exits <= 1);
}

#[test]
fn without_bpf_there_are_sums_and_what_is_missing() {
    let _alone = alone();
    let place = Place::new();
    let args = [
        "sched",
        "record",
        "--json",
        "--quiet",
        "--probe",
        "proc",
        "--",
        "sh",
        "-c",
        "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done",
    ];
    let ran = result(&place.amdahl(args).ends_with(0));
    assert!(
        ran.threads
            .iter()
            .any(|row| row.name == "sh" && row.run_s > 0.0),
        "{:?}",
        ran.threads
    );
    assert!(!ran.sources[0].missing.is_empty() && ran.picture.is_none());
}

#[test]
fn what_is_no_recording_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.join("empty")).expect("a folder");
    std::fs::write(place.join("000001.parquet"), b"PAR1 nonsense PAR1").expect("a file");
    std::fs::write(
        place.join("result.json"),
        b"{\"schema\":\"amdahl.sched/1\",\"wall_s\":-1}",
    )
    .expect("a file");
    for path in ["nothing", "empty", "000001.parquet", "result.json"] {
        let ran = place.amdahl(["sched", "show", path]);
        assert!(matches!(ran.status.code(), Some(1..=9)), "{ran:?}");
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
    }
}

#[test]
fn parts_are_parquet_to_others() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let libraries = crate::parquet::libraries(&place);
    if libraries.is_empty() {
        return;
    }
    place
        .amdahl(["sched", "record", "--quiet", "--", "true"])
        .ends_with(0);
    for library in libraries {
        let rows = crate::parquet::rows(&place, library, "amdahl-sched/events");
        assert!(!rows.is_empty(), "{library}");
    }
}
