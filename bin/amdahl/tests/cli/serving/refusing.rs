//! Who is refused, and what becomes of him.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::process::Signal;

use super::vmm::{Vmm, is_possible, send, uffd};
use super::{Daemon, lines, page_sum, whole_sum, with_image};
use crate::processes::Group;
use crate::tool::{Place, skipped, until};

#[test]
fn whoever_says_something_else_is_refused_and_told_why() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = Daemon::start(&place, "vm.ami", &["--handoff-timeout", "1"]);
    let socket = place.join("pager.sock");
    let mut told = 0;
    let mut is_refused = |why: &str| {
        told += 1;
        let refused = until("a refusal", || {
            let lines = daemon.lines();
            lines
                .into_iter()
                .filter(|line| line["event"] == "refused")
                .nth(told - 1)
        });
        assert!(
            refused["why"].as_str().expect("text").contains(why),
            "{why}: {refused}"
        );
        assert_eq!(refused["pid"], std::process::id());
    };
    let fd = uffd(0).expect("a userfaultfd");
    let file = fs::File::open(place.join("vm.mem")).expect("a file");
    let good = br#"[{"base_host_virt_addr":65536,"size":4096,"offset":0,"page_size":4096}]"#;
    let beyond = br#"[{"base_host_virt_addr":65536,"size":4096,"offset":16777216}]"#;
    for (bytes, descriptors, why) in [
        (
            &good[..20],
            vec![fd.as_fd()],
            "closed the connection after 20 bytes",
        ),
        (&good[..], vec![], "no descriptor"),
        (
            good,
            vec![fd.as_fd(), fd.as_fd()],
            "more than one descriptor",
        ),
        (good, vec![file.as_fd()], "is a file and no userfaultfd"),
        (
            beyond,
            vec![fd.as_fd()],
            "is this the image of that snapshot?",
        ),
        (
            b"GET / HTTP/1.1\r\n\r\n",
            vec![],
            "not Firecracker's hand-off",
        ),
        (
            b"[{\"base_host_virt_addr\":true}]",
            vec![fd.as_fd()],
            "no list of regions",
        ),
    ] {
        let stream = UnixStream::connect(&socket).expect("connected");
        send(&stream, bytes, &descriptors);
        drop(stream);
        is_refused(why);
    }
    // Without an end: closed as soon as it is too much.
    let mut stream = UnixStream::connect(&socket).expect("connected");
    while stream.write_all(&[b'['; 4096]).is_ok() {}
    is_refused("longer than");
    // Those who say nothing, more than are let in at once, hold nobody up for long.
    let silent: Vec<UnixStream> = (0..20)
        .map(|_| UnixStream::connect(&socket).expect("connected"))
        .collect();
    let mut vmm = Vmm::whole(&place);
    vmm.does("touch 2", &whole_sum(&memory));
    for _ in &silent {
        is_refused("did not end within 1 s");
    }
    // Who only looks is not spoken of.
    drop(UnixStream::connect(&socket).expect("connected"));
    let ran = daemon.ends(0);
    let refused = lines(&ran.out)
        .iter()
        .filter(|line| line["event"] == "refused")
        .count();
    assert_eq!(refused, 28, "{}", ran.out);
}

#[test]
fn one_vm_too_many_is_stopped_and_not_left_waiting() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = Daemon::start(&place, "vm.ami", &["--max-vms", "1"]);
    let mut first = Vmm::whole(&place);
    first.does("read 6", &page_sum(&memory, 6));
    let second = Vmm::whole(&place);
    let refused = daemon.event("refused");
    assert!(
        refused["why"].as_str().expect("text").contains("--max-vms"),
        "{refused}"
    );
    if daemon.event("listening")["can_poison"] == true {
        second.dies_of("read 6", Signal::BUS);
    }
    // The place is free when all of the first is there.
    first.does("touch 1", &whole_sum(&memory));
    assert_eq!(daemon.end_of(&first)["outcome"], "complete");
    let mut third = Vmm::whole(&place);
    third.does("touch 1", &whole_sum(&memory));
    daemon.ends(0);
}

/// It was only disconnected: its userfaultfd was closed with the connection, and the VM read zeros.
#[test]
fn a_vm_for_which_there_is_no_thread_waits_for_one_or_is_stopped() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let Some(group) = Group::with("pids", "serve") else {
        return;
    };
    let most = group.folder().join("pids.max");
    if !most.exists() {
        skipped(
            "no limit of threads can be set: the control groups do not have the controller pids",
        );
        return;
    }
    let allow = |text: &str| fs::write(&most, text).expect("a limit");
    for is_late in [true, false] {
        let timeout = if is_late { "3600" } else { "1" };
        let daemon = Daemon::start(&place, "vm.ami", &["--handoff-timeout", timeout]);
        // All its threads are there.
        let mut first = Vmm::whole(&place);
        first.does("touch 1", &whole_sum(&memory));
        daemon.end_of(&first);
        if !group.takes_in(daemon.0.pid()) {
            return;
        }
        allow("1");
        let mut vmm = Vmm::whole(&place);
        let trouble = daemon.event("trouble");
        assert!(
            trouble["why"].as_str().expect("text").contains("a thread"),
            "{trouble}"
        );
        if is_late {
            allow("max");
            vmm.does("touch 2", &whole_sum(&memory));
            daemon.end_of(&vmm);
        } else {
            let refused = daemon.event("refused");
            assert_eq!(refused["pid"], vmm.0.pid());
            if daemon.event("listening")["can_poison"] == true {
                vmm.dies_of("read 6", Signal::BUS);
            }
        }
        allow("max");
        let mut third = Vmm::whole(&place);
        third.does("read 6", &page_sum(&memory, 6));
        daemon.ends(0);
    }
}
