//! A daemon that may have no more descriptors: VMs that it has go on, others are served or refused with a reason.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;

use super::vmm::{Vmm, is_possible};
use super::{Daemon, PAGES, page_sum, whole_sum, with_image};
use crate::tool::{Place, until};

/// The descriptors that a daemon has.
fn open(daemon: &Daemon) -> Vec<u64> {
    let pid = daemon.0.pid();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process");
    open.map(|entry| entry.expect("readable").file_name())
        .map(|name| name.to_str().expect("a number").parse().expect("a number"))
        .collect()
}

/// Has a daemon have so many descriptors more than it has, at most; what it may have otherwise.
fn allow(daemon: &Daemon, more: u64) -> Rlimit {
    let pid = daemon.0.pid();
    let open = open(daemon);
    let holes = |below: u64| below - open.iter().filter(|fd| **fd < below).count() as u64;
    let limit = (0..).find(|limit| holes(*limit) >= more).expect("a limit");
    let pid = Pid::from_raw(pid as i32);
    let few = Rlimit {
        current: Some(limit),
        // Inherited from us.
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    prlimit(pid, Resource::Nofile, few).expect("it is ours")
}

fn is_about(line: &Value, pid: u32) -> bool {
    line["pid"] == pid && (line["event"] == "begin" || line["event"] == "refused")
}

#[test]
fn a_daemon_without_descriptors_serves_what_it_has_and_says_who_is_refused() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = Daemon::start(&place, "vm.ami", &[]);
    let mut old = Vmm::whole(&place);
    old.does("read 5", &page_sum(&memory, 5));
    let (mut served, mut refused) = (0, 0);
    let usual = until("it to be at rest", || {
        let usual = open(&daemon).len();
        daemon
            .lines()
            .iter()
            .any(|line| is_about(line, old.0.pid()))
            .then_some(usual)
    });
    for more in 0..12 {
        // Those of the last VM would make room for the next one.
        until("what was open to be closed", || {
            (open(&daemon).len() <= usual).then_some(())
        });
        let before = troubles(&daemon);
        let was = allow(&daemon, more);
        // It hands over at once, whether somebody accepts it or not.
        let mut vmm = Vmm::whole(&place);
        let pid = vmm.0.pid();
        old.does(
            &format!("read {}", 100 + more),
            &page_sum(&memory, 100 + more as usize),
        );
        // Nobody can be accepted, or somebody was told something.
        until("an answer", || {
            let is_told = daemon.lines().iter().any(|line| is_about(line, pid));
            (is_told || troubles(&daemon) > before).then_some(())
        });
        let pid_of_daemon = Pid::from_raw(daemon.0.pid() as i32);
        prlimit(pid_of_daemon, Resource::Nofile, was).expect("it is ours");
        let answer = daemon_line(&daemon, pid);
        if answer["event"] == "begin" {
            served += 1;
            vmm.does("touch 2", &whole_sum(&memory));
        } else {
            refused += 1;
            let why = answer["why"].as_str().expect("text");
            assert!(
                why.contains("RLIMIT_NOFILE") || why.contains("Too many open files"),
                "{why}"
            );
        }
        drop(vmm);
    }
    // With none it waits to be accepted, with enough it is served; in between it is refused.
    assert!(served >= 2 && refused >= 1, "{served} {refused}");
    old.does("touch 2", &whole_sum(&memory));
    assert_eq!(daemon.end_of(&old)["pages"], PAGES);
    daemon.ends(0);
}

/// How often nobody could be accepted.
fn troubles(daemon: &Daemon) -> usize {
    let is_one = |line: &&Value| {
        let why = line["why"].as_str().unwrap_or_default();
        line["event"] == "trouble" && why.contains("Too many open files")
    };
    daemon.lines().iter().filter(is_one).count()
}

/// What it was told of a VM in the end.
fn daemon_line(daemon: &Daemon, pid: u32) -> Value {
    until("what becomes of it", || {
        daemon.lines().into_iter().find(|line| is_about(line, pid))
    })
}
