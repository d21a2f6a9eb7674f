//! Guests and their phantom time.

use std::process::Command;

use amdahl_report::sched::schema::{GuestEntry, SchedResult};
use amdahl_sched::vmm::{guest_ticks, kvm_run};

use super::{TWO, can_record, record, result, watched_two};
use crate::processes::is_alive;
use crate::tool::{Place, Running, alone, skipped, until};
use crate::workload::{compiled, in_some_try};

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

/// A monitor of its own kind with three virtual CPUs, in threads of other names: the first goes round in a loop, the others
/// halt. With an argument all of them are on one CPU, beside a thread that goes round in a loop of its own, and are called as
/// those of QEMU. Ends with 77 where that cannot be.
const MONITOR: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#define HALT 0x1000
#define LOOP 0x1010
static int vm, size, is_shared;
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
    char name[16];
    snprintf(name, sizeof name, "CPU %d/KVM", number);
    pthread_setname_np(pthread_self(), is_shared ? name : number ? "idler" : "worker");
    for (;;) {
        long ran = ioctl(cpu, KVM_RUN, 0);
        if (ran < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        must("run", ran);
        fprintf(stderr, "exit %u\n", told->exit_reason);
        exit(77);
    }
}
int main(int argc, char **argv) {
    pthread_t thread;
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all)) { CPU_SET(cpu, &one); break; }
    is_shared = argc > 1;
    if (is_shared) must("affinity", sched_setaffinity(0, sizeof one, &one));
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
    while (is_shared)
        ;
    for (;;) pause();
}
"#;

/// [`MONITOR`], when its guest does what it should; `None` with SKIPPED where it does not.
fn monitor(place: &Place, how: &[&str]) -> Option<Running> {
    if cfg!(not(target_arch = "x86_64")) {
        skipped("the guest is one of x86_64");
        return None;
    }
    let program = compiled(place, "my-vmm", MONITOR, &[])?;
    let mut command = Command::new(program);
    command.args(how);
    let monitor = place.start(place.here(command));
    let pid = monitor.pid();
    let run_ns = |schedstat: &String| schedstat.split(' ').next()?.parse::<u64>().ok();
    let runs = until("two CPUs to halt, and one to go round", || {
        let halted = of_threads(pid, "syscall")
            .iter()
            .filter_map(|text| kvm_run(text))
            .count();
        let run = of_threads(pid, "schedstat").iter().filter_map(run_ns).max();
        let is_ready = halted == 2 && run > Some(200_000_000);
        (is_ready || !is_alive(pid)).then_some(is_ready)
    });
    if !runs {
        skipped(format_args!("no guest of KVM: {}", monitor.ended().err));
        return None;
    }
    Some(monitor)
}

/// What `/proc` tells of each thread of a process.
fn of_threads(pid: u32, file: &str) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let threads = threads.flatten().flatten();
    let texts = threads.map(|thread| std::fs::read_to_string(thread.path().join(file)));
    texts.flatten().collect()
}

/// Guest CPUs and what runs them.
fn found(result: &SchedResult) -> Vec<(String, Option<u32>)> {
    let guests = result.guests.iter();
    let found = guests.map(|guest| (guest.vmm.clone(), guest.guest_cpu));
    found.collect()
}

/// Only monitors were seen whose threads have one of the names in a list.
#[test]
fn guests_are_found_whatever_their_threads_are_called() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let Some(monitor) = monitor(&place, &[]) else {
        return;
    };
    let pid = monitor.pid();
    let mut ticks = of_threads(pid, "stat")
        .into_iter()
        .filter_map(|text| guest_ticks(&text));
    let is_told = ticks.any(|ticks| ticks > 0);
    let pid = pid.to_string();
    let record = [
        "sched", "record", "--json", "--quiet", "--pid", &pid, "--for", "1s",
    ];
    let ran = result(&place.amdahl(record).ends_with(0));
    if !is_told {
        skipped(
            "a guest that never halts: KVM interprets guests here, and counts no time of theirs",
        );
    }
    let expected = if is_told { 0..3 } else { 1..3 };
    let expected: Vec<_> = expected
        .map(|cpu| ("my-vmm".to_owned(), Some(cpu)))
        .collect();
    assert_eq!(found(&ran), expected);
    let live = [
        "top", "--json", "--tab", "sched", "--by", "guest", "--batch", "2", "--for", "2s", "--pid",
        &pid,
    ];
    let live = place.amdahl(live).ends_with(0).out;
    let last = live.lines().last().expect("a result");
    let last: SchedResult = serde_json::from_str(last).expect("a result");
    assert_eq!(found(&last), expected);
    let args = ["phantom", "--vm", &pid, "--for", "100ms", "--json"];
    let looked = place.amdahl(args).ends_with(0).json();
    assert_eq!(looked["target"], format!("virtual machine {pid}"));
}

/// The part of its time in which a guest's CPU had none of the host.
fn phantom_share(guest: &GuestEntry) -> f64 {
    guest.phantom_s / (guest.phantom_s + guest.run_s)
}

/// Half of it for each of two, and less where others want the CPU, too.
const SHARE_MIN: f64 = 0.4;

#[test]
fn a_guest_that_shares_its_cpu_is_a_phantom_half_of_the_time() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let Some(two) = compiled(&place, "two", TWO, &[]) else {
        return;
    };
    in_some_try(|| {
        let ([planted, _], ran) = watched_two(&place, &two, &["pinned", "guest"]);
        let [guest] = &ran.guests[..] else {
            panic!("{:?}", ran.guests);
        };
        assert_eq!((&*guest.vmm, guest.guest_cpu), ("QEMU", Some(0)));
        assert!(guest.phantom_max_s <= guest.phantom_s, "{guest:?}");
        let is_told = (guest.phantom_s - planted).abs() <= 0.1 * planted;
        let share = phantom_share(guest);
        if is_told && share >= SHARE_MIN {
            return Ok(());
        }
        Err(format!("{share} of its time; {planted} s: {guest:?}"))
    });
}

/// How long a thread ran and waited for a CPU, as the kernel tells.
fn sums(pid: u32, name: &str) -> [f64; 2] {
    let names = of_threads(pid, "comm").into_iter();
    let mut threads = names.zip(of_threads(pid, "schedstat"));
    let (_, text) = threads.find(|(of, _)| of == name).expect("the thread");
    let mut sums = text.split(' ').map_while(|sum| sum.parse().ok());
    [(); 2].map(|()| sums.next().expect("a sum"))
}

#[test]
fn a_guest_of_kvm_that_shares_its_cpu_is_a_phantom_half_of_the_time() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let Some(monitor) = monitor(&place, &["shared"]) else {
        return;
    };
    let pid = monitor.pid();
    in_some_try(|| {
        let selected = pid.to_string();
        let record = [
            "sched", "record", "--json", "--quiet", "--pid", &selected, "--for", "1s",
        ];
        let before = sums(pid, "CPU 0/KVM\n");
        let ran = result(&place.amdahl(record).ends_with(0));
        let mut guests = ran.guests.iter();
        let guest = guests.find(|guest| guest.guest_cpu == Some(0));
        let guest = guest.ok_or_else(|| format!("{:?}", ran.guests))?;
        let after = sums(pid, "CPU 0/KVM\n");
        let planted = (after[1] - before[1]) / (after[0] - before[0]);
        let (seen, share) = (guest.phantom_s / guest.run_s, phantom_share(guest));
        let of_wall = guest.phantom_s / ran.wall_s;
        let is_told = (seen - planted).abs() <= 0.2 * planted;
        if is_told && share >= SHARE_MIN && of_wall >= 0.75 * share {
            return Ok(());
        }
        Err(format!(
            "{seen} of {planted}, {of_wall} of the wall: {guest:?}"
        ))
    });
}
