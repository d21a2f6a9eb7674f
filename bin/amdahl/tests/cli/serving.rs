//! `amdahl pager serve`, met by a VMM that does what Firecracker's documentation says, and by others.

mod descriptors;
mod following;
mod guests;
mod inheriting;
mod objects;
mod qemu;
mod refusing;
mod seeds;
mod sharing;
mod vmm;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::tool::{Place, Ran, Running, skipped, until};
use vmm::{Vmm, is_possible, sum};

const PAGE: usize = 4096;
/// Of the memory that VMs begin with: 16 MiB.
const PAGES: usize = 4096;

// ---- The daemon ----

/// 16 MiB: a third zeros, the rest different in each page, but some that are equal.
fn memory() -> Vec<u8> {
    let mut memory = vec![0; PAGES * PAGE];
    for (number, page) in memory.chunks_exact_mut(PAGE).enumerate() {
        if number / 5 % 3 == 1 {
            continue;
        }
        let mut state = (number % 3000) as u64 + 1;
        for word in page.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&(state & 0xffff_ffff).to_ne_bytes());
        }
    }
    memory
}

fn whole_sum(memory: &[u8]) -> String {
    let pages = memory.chunks_exact(PAGE).enumerate();
    let sum = pages.fold(0, |all: u64, (number, page)| {
        all.wrapping_add(sum(number, page))
    });
    format!("touched {sum:x}")
}

fn page_sum(memory: &[u8], number: usize) -> String {
    format!("page {:x}", sum(number, &memory[number * PAGE..][..PAGE]))
}

fn zero_sum(number: usize) -> String {
    format!("page {:x}", sum(number, &[0; PAGE]))
}

/// Memory, raw and packed.
fn with_image(place: &Place) -> Vec<u8> {
    let memory = memory();
    fs::write(place.join("vm.mem"), &memory).expect("written");
    place
        .amdahl(["pager", "pack", "vm.mem", "-o", "vm.ami", "-q"])
        .ends_with(0);
    memory
}

struct Daemon(Running);

impl Daemon {
    fn start(place: &Place, image: &str, more: &[&str]) -> Daemon {
        Daemon::listens(place, image, "unix:pager.sock", more)
    }

    fn listens(place: &Place, image: &str, at: &str, more: &[&str]) -> Daemon {
        let args = ["pager", "serve", "--image", image, "--listen", at, "--json"];
        let daemon = Daemon(place.start(place.tool(args.iter().chain(more))));
        daemon.event("listening");
        daemon
    }

    fn lines(&self) -> Vec<Value> {
        lines(&self.0.out_so_far())
    }

    /// The first line of this kind.
    fn event(&self, event: &str) -> Value {
        self.line(event, |_| true)
    }

    fn line(&self, event: &str, is_meant: impl Fn(&Value) -> bool) -> Value {
        until(event, || {
            let mut lines = self.lines().into_iter();
            lines.find(|line| line["event"] == event && is_meant(line))
        })
    }

    fn end_of(&self, vmm: &Vmm) -> Value {
        let pid = vmm.0.pid();
        self.line("end", |line| line["pid"] == pid)
    }

    #[track_caller]
    fn ends(self, code: i32) -> Ran {
        self.0.signal(Signal::TERM);
        self.0.ended().ends_with(code)
    }
}

fn lines(text: &str) -> Vec<Value> {
    let whole = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    whole
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[test]
fn several_vms_at_once_have_their_memory() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let expected = whole_sum(&memory);
    for (image, more) in [
        ("vm.ami", &["--fill"][..]),
        ("vm.mem", &[]),
        ("vm.ami", &["--fill=64M"]),
    ] {
        let daemon = Daemon::start(&place, image, more);
        let mut vmms: Vec<Vmm> = (0..4).map(|_| Vmm::whole(&place)).collect();
        for (nth, vmm) in vmms.iter_mut().enumerate() {
            vmm.0.say(&format!("touch {}", 1 + nth));
        }
        for vmm in &mut vmms {
            vmm.answers(&expected);
        }
        for vmm in &mut vmms {
            let end = daemon.end_of(vmm);
            assert_eq!(end["outcome"], "complete", "{end}");
            assert_eq!(
                (&end["pages"], &end["pages_missing"]),
                (&json!(PAGES), &json!(0))
            );
            let zeros = end["pages_zero"].as_u64().expect("a number");
            assert_eq!(
                zeros + end["pages_read"].as_u64().expect("a number"),
                PAGES as u64,
                "{end}"
            );
            // The raw file has no holes: its zeros are seen.
            assert!(zeros >= PAGES as u64 / 4, "{end}");
            // Ordinary memory from now on, which nobody has to be asked for.
            vmm.does("balloon 7 3", "given up");
            vmm.does("read 8", &zero_sum(8));
            vmm.does("read 10", &page_sum(&memory, 10));
        }
        daemon.ends(0);
        assert!(!place.join("pager.sock").exists());
        for vmm in &mut vmms {
            vmm.does("read 11", &page_sum(&memory, 11));
        }
    }
}

/// Certificates as options.
fn tls_options(place: &Place) -> [String; 6] {
    let files = amdahl_test_certificates::make(place.path(), "host").expect("certificates");
    let name = |path: std::path::PathBuf| path.into_os_string().into_string().expect("UTF-8");
    [
        "--tls-certificate".into(),
        name(files.certificate),
        "--tls-key".into(),
        name(files.key),
        "--tls-authorities".into(),
        name(files.authority),
    ]
}

#[test]
fn the_memory_may_be_another_hosts() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let tls = tls_options(&place);
    let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
    for (image, options) in [("vm.ami", &tls[..]), ("vm.mem", &[])] {
        let there = Daemon::listens(&place, image, "tcp:127.0.0.1:0", options);
        let address = there.event("listening")["listen"]
            .as_str()
            .expect("text")
            .to_owned();
        let here = Daemon::start(&place, &address, &[options, &["--fill"]].concat());
        assert_eq!(here.event("listening")["kind"], "memory of another host");
        let mut vmm = Vmm::whole(&place);
        vmm.0.say("touch 3");
        vmm.answers(&whole_sum(&memory));
        assert_eq!(here.end_of(&vmm)["outcome"], "complete");
        here.ends(0);
        there.0.signal(Signal::TERM);
        let end = there.line("end", |_| true);
        assert!(end["requests"].as_u64().expect("a number") > 0, "{end}");
        assert_eq!(
            (&end["refused"], &end["failed"]),
            (&json!(0), &json!(0)),
            "{end}"
        );
        // A third of the memory is zeros, of which the raw file has no holes.
        let sent = end["sent_bytes"].as_u64().expect("a number");
        assert!(sent < (PAGES * PAGE) as u64 * 3 / 4, "{end}");
        there.0.ended().ends_with(0);
        // All is there, so nobody is needed any more.
        vmm.does("read 8", &page_sum(&memory, 8));
    }
}

#[test]
fn what_a_balloon_has_taken_reads_as_zeros() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = Daemon::start(&place, "vm.ami", &[]);
    // A VMM that closes its socket after the hand-off is served all the same.
    for told in [json!({}), json!({ "keeps_socket": false })] {
        let mut vmm = Vmm::start(&place, told);
        vmm.does("read 1000", &page_sum(&memory, 1000));
        // One page that is there, others that are missing.
        vmm.does("balloon 1000 50", "given up");
        for page in [1000, 1001, 1048] {
            vmm.does(&format!("read {page}"), &zero_sum(page));
        }
        vmm.does("read 999", &page_sum(&memory, 999));
        vmm.does("read 1050", &page_sum(&memory, 1050));
        vmm.does("balloon 0 4096", "given up");
        vmm.does("read 2", &zero_sum(2));
        let begin = daemon.line("begin", |line| line["pid"] == vmm.0.pid());
        assert_eq!(begin["balloon_told"], true, "{begin}");
    }
    daemon.ends(0);
}

#[test]
fn a_vmm_that_is_killed_harms_no_other() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = Daemon::start(&place, "vm.ami", &[]);
    let mut other = Vmm::whole(&place);
    other.does("read 77", &page_sum(&memory, 77));
    for nth in 0..6 {
        let mut vmm = Vmm::whole(&place);
        match nth % 3 {
            0 => {}
            1 => vmm.does("read 5", &page_sum(&memory, 5)),
            // In the middle of it.
            _ => vmm.0.say("touch 4"),
        }
        let pid = vmm.0.pid();
        vmm.0.signal(Signal::KILL);
        let end = daemon.line("end", |line| line["pid"] == pid);
        let done = end["outcome"] == "gone" || (nth % 3 == 2 && end["outcome"] == "complete");
        assert!(done, "{end}");
    }
    other.does("touch 3", &whole_sum(&memory));
    let ran = daemon.ends(0);
    assert!(
        !lines(&ran.out).iter().any(|line| line["event"] == "lost"),
        "{}",
        ran.out
    );
}

#[test]
fn a_daemon_that_is_told_to_end_brings_the_rest_first() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = Daemon::start(&place, "vm.ami", &[]);
    let mut vmms = [Vmm::whole(&place), Vmm::start(&place, json!({}))];
    vmms[0].does("read 3000", &page_sum(&memory, 3000));
    let ran = daemon.ends(0);
    let ends: Vec<Value> = lines(&ran.out)
        .into_iter()
        .filter(|line| line["event"] == "end")
        .collect();
    assert!(
        ends.len() == 2 && ends.iter().all(|end| end["outcome"] == "complete"),
        "{}",
        ran.out
    );
    for vmm in &mut vmms {
        vmm.does("touch 2", &whole_sum(&memory));
        vmm.does("balloon 100 100", "given up");
        vmm.does("read 150", &zero_sum(150));
    }
}

#[test]
fn a_second_signal_abandons_vms_which_read_no_zeros() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = Daemon::start(&place, "vm.ami", &[]);
    let can_poison = daemon.event("listening")["can_poison"] == true;
    let mut vmm = Vmm::whole(&place);
    vmm.does("read 3000", &page_sum(&memory, 3000));
    // Both before it runs again.
    daemon.0.signal(Signal::STOP);
    daemon.0.signal(Signal::TERM);
    daemon.0.signal(Signal::INT);
    daemon.0.signal(Signal::CONT);
    let ran = daemon.0.ended().ends_with(130);
    let all = lines(&ran.out);
    let end = all.iter().find(|line| line["event"] == "end");
    let end = end.expect("the VM's end");
    assert_eq!(end["outcome"], "abandoned", "{}", ran.out);
    vmm.does("read 3000", &page_sum(&memory, 3000));
    if can_poison {
        vmm.does("balloon 3000 1", "given up");
        vmm.dies_of("read 10", Signal::BUS);
    }
}

#[test]
fn damage_is_told_and_stops_who_touches_it_alone() {
    if !is_possible() {
        return;
    }
    for (how, signal) in [("sigbus", Signal::BUS), ("kill", Signal::KILL)] {
        let place = Place::new();
        let memory = with_image(&place);
        let mut file = fs::read(place.join("vm.ami")).expect("an image");
        // Of the first clusters, which are behind the header.
        file[4096 + 500] ^= 1;
        fs::write(place.join("vm.ami"), file).expect("written");
        let daemon = Daemon::start(&place, "vm.ami", &["--on-loss", how]);
        if daemon.event("listening")["can_poison"] != true {
            return skipped("this kernel cannot poison pages");
        }
        let mut good = Vmm::whole(&place);
        good.does("read 4000", &page_sum(&memory, 4000));
        // One that does not die of the signal is killed.
        let regions = json!([[PAGES - 1000, 1000], [1000, 0]]);
        let told = json!({ "regions": regions, "outlives_sigbus": how == "kill" });
        let bad = Vmm::start(&place, told);
        let pid = bad.0.pid();
        bad.dies_of("read 0", signal);
        let lost = daemon.event("lost");
        assert_eq!(
            (&lost["pid"], &lost["first_page"]),
            (&json!(pid), &json!(0)),
            "{lost}"
        );
        let what = lost["what"].as_str().expect("text");
        assert!(
            what.contains("vm.ami: damaged") && what.contains("at byte"),
            "{what}"
        );
        assert_eq!(
            daemon.line("end", |line| line["pid"] == pid)["outcome"],
            "gone"
        );
        good.does("read 3999", &page_sum(&memory, 3999));
        drop(good);
        daemon.ends(7);
    }
}

#[test]
fn a_working_set_is_recorded_packed_and_there_before_it_is_touched() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = Daemon::start(&place, "vm.mem", &["--record-working-set", "first.txt"]);
    let mut vmm = Vmm::whole(&place);
    let pages = [3000, 1, 2, 900, 2999, 2];
    for page in pages {
        vmm.does(&format!("read {page}"), &page_sum(&memory, page));
    }
    drop(vmm);
    // Written when the VM ends, and what is fetched at the end is no part of it.
    daemon.event("end");
    let expected = "3000\n1-2\n900\n2999\n";
    let recorded = || {
        place
            .read("first.txt")
            .split_once('\n')
            .map(|(_, lines)| lines.to_owned())
    };
    assert_eq!(recorded().as_deref(), Some(expected));
    let mut another = Vmm::whole(&place);
    another.does("read 4", &page_sum(&memory, 4));
    daemon.ends(0);
    assert_eq!(recorded().as_deref(), Some("3000\n1-2\n900\n2999\n4\n"));

    let pack = [
        "pager",
        "pack",
        "vm.mem",
        "-o",
        "vm.ami",
        "--working-set",
        "first.txt",
        "-q",
    ];
    place.amdahl(pack).ends_with(0);
    let info = place
        .amdahl(["pager", "info", "vm.ami", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(info["working_set_pages"], 6);
    // Also where the image is another host's.
    let there = Daemon::listens(&place, "vm.ami", "tcp:127.0.0.1:0", &[]);
    let listening = there.event("listening");
    assert_eq!(listening["working_set_pages"], 6, "{listening}");
    let address = listening["listen"].as_str().expect("text");
    for image in ["vm.ami", address] {
        let daemon = Daemon::start(&place, image, &[]);
        let mut vmm = Vmm::whole(&place);
        assert_eq!(daemon.event("working-set")["pages"], 6);
        for page in pages {
            vmm.does(&format!("read {page}"), &page_sum(&memory, page));
        }
        let pid = vmm.0.pid();
        drop(vmm);
        let end = daemon.line("end", |line| line["pid"] == pid);
        assert_eq!(
            (&end["faults"], &end["pages_ahead"]),
            (&json!(0), &json!(6)),
            "{image}: {end}"
        );
        daemon.ends(0);
    }
    // Who asks for it learns when it is there, whatever the budget, and at once where there is none.
    for (image, options, count) in [
        ("vm.ami", &["--budget", "4K"][..], 6),
        ("vm.ami", &["--no-working-set"], 0),
        ("vm.mem", &[], 0),
    ] {
        let daemon = Daemon::start(&place, image, options);
        let mut vmm = Vmm::start(&place, json!({ "waits": true }));
        vmm.does("there", &format!("{count} pages"));
        vmm.does("read 900", &page_sum(&memory, 900));
        drop(vmm);
        daemon.ends(0);
    }
    let daemon = Daemon::start(&place, address, &["--no-working-set"]);
    assert_eq!(daemon.event("listening")["working_set_pages"], 0);
    daemon.ends(0);
    there.ends(0);
}

#[test]
fn a_host_that_is_away_for_longer_than_a_page_may_take_is_waited_for() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let there = Daemon::listens(&place, "vm.ami", "tcp:127.0.0.1:0", &[]);
    let listening = there.event("listening");
    let address = listening["listen"].as_str().expect("text");
    // What is left of it when the host is back must do for a page, on a busy machine too.
    let timeout = std::time::Duration::from_secs(4);
    let options = ["--read-timeout", "4", "--recover", "600"];
    let daemon = Daemon::start(&place, address, &options);
    let mut vmm = Vmm::whole(&place);
    vmm.does("read 1", &page_sum(&memory, 1));
    there.0.signal(Signal::STOP);
    vmm.0.say("read 900");
    daemon.event("away");
    // Longer than that it would be lost.
    std::thread::sleep(2 * timeout);
    there.0.signal(Signal::CONT);
    vmm.answers(&page_sum(&memory, 900));
    daemon.event("back");
    let pid = vmm.0.pid();
    drop(vmm);
    let end = daemon.line("end", |line| line["pid"] == pid);
    assert_eq!(end["pages_lost"], 0, "{end}");
    daemon.ends(0);
    there.ends(0);
}

#[test]
fn there_is_one_daemon_at_a_socket() {
    let place = Place::new();
    with_image(&place);
    let daemon = Daemon::start(&place, "vm.ami", &[]);
    let mode = |place: &Place| {
        let socket = fs::metadata(place.join("pager.sock")).expect("a socket");
        socket.permissions().mode() & 0o777
    };
    assert_eq!(mode(&place), 0o600);
    let serve = [
        "pager",
        "serve",
        "--image",
        "vm.ami",
        "--listen",
        "unix:pager.sock",
    ];
    let refused = place.amdahl(serve).ends_with(1);
    assert!(
        refused.message().contains("another program listens there"),
        "{refused:?}"
    );
    // One that was killed is replaced.
    daemon.0.signal(Signal::KILL);
    let _ = daemon.0.ended();
    assert!(place.join("pager.sock").exists());
    let daemon = Daemon::start(&place, "vm.ami", &["--socket-mode", "660"]);
    assert_eq!(mode(&place), 0o660);
    daemon.ends(0);
    assert_eq!(place.names(), ["vm.ami", "vm.mem"]);
}

#[test]
fn what_cannot_be_served_is_said_at_once() {
    let place = Place::new();
    with_image(&place);
    fs::write(place.join("empty.mem"), "").expect("written");
    fs::write(place.join("no.ami"), [1; 4096]).expect("written");
    fs::write(place.join("taken"), "somebody's").expect("written");
    for (image, more, code, says) in [
        ("missing.mem", &["--listen", "unix:s"][..], 1, "missing.mem"),
        ("empty.mem", &["--listen", "unix:s"], 2, "it is empty"),
        ("no.ami", &["--listen", "unix:s"], 7, "not a memory image"),
        (
            "vm.ami",
            &["--listen", "unix:s", "--base", "vm.ami"],
            2,
            "has no base",
        ),
        (
            "vm.ami",
            &["--listen", "unix:taken"],
            1,
            "which is no socket",
        ),
        (
            "vm.ami",
            &["--listen", "unix:none/s"],
            1,
            "listening at none/s",
        ),
        ("vm.ami", &["--listen", "systemd"], 2, "LISTEN_FDS"),
        ("vm.ami", &["--listen", "tcp:1"], 2, "tcp:ADDRESS:PORT"),
        (
            "vm.ami",
            &["--listen", "tcp:0.0.0.0:0"],
            2,
            "--tls-certificate",
        ),
        (
            "vm.ami",
            &["--listen", "tcp:127.0.0.1:0", "--fill"],
            2,
            "--fill is for VMs",
        ),
        (
            "vm.ami",
            &["--listen", "unix:s", "--tls-key", "k.pem"],
            2,
            "--tls-certificate",
        ),
        (
            "vm.ami",
            &[
                "--listen",
                "tcp:127.0.0.1:0",
                "--tls-certificate",
                "c",
                "--tls-key",
                "k",
                "--tls-authorities",
                "a",
            ],
            2,
            "No such file",
        ),
        (
            "tcp:127.0.0.1:1",
            &["--listen", "unix:s"],
            1,
            "127.0.0.1:1: Connection refused",
        ),
        (
            "vm.ami",
            &["--listen", "unix:s", "--max-vms", "1000"],
            2,
            "8000 MiB",
        ),
        (
            "vm.ami",
            &["--listen", "unix:s", "--record-working-set", "none/x"],
            1,
            "none/x",
        ),
        (
            "vm.ami",
            &["--listen", "unix:s", "--fill", "--record-working-set", "x"],
            2,
            "cannot be used",
        ),
    ] {
        let args = ["pager", "serve", "--image", image];
        let ran = place.amdahl(args.iter().chain(more)).ends_with(code);
        assert!(ran.err.contains(says), "{says}: {}", ran.err);
    }
    assert_eq!(place.read("taken"), "somebody's");
    assert!(!place.join("s").exists());
}

#[test]
fn systemd_may_open_the_socket_and_is_told_when_all_is_ready() {
    let place = Place::new();
    let memory = with_image(&place);
    let listener = UnixListener::bind(place.join("pager.sock")).expect("a socket");
    let notices = UnixDatagram::bind(place.join("notify.sock")).expect("a socket");
    let tool = env!("CARGO_BIN_EXE_amdahl");
    let mut command = Command::new("sh");
    let script = r#"LISTEN_PID=$$ exec "$0" "$@" 3<&0 </dev/null"#;
    command.args(["-c", script, tool]);
    command.args([
        "pager", "serve", "--image", "vm.ami", "--listen", "systemd", "--json",
    ]);
    let mut command = place.here(command);
    command
        .env("LISTEN_FDS", "1")
        .env("NOTIFY_SOCKET", place.join("notify.sock"));
    command.stdin(Stdio::from(OwnedFd::from(listener)));
    let daemon = Daemon(place.start(command));
    let mut notice = [0; 64];
    let len = notices.recv(&mut notice).expect("a notice");
    assert_eq!(&notice[..len], b"READY=1");
    if is_possible() {
        let mut vmm = Vmm::whole(&place);
        vmm.does("touch 2", &whole_sum(&memory));
    }
    daemon.ends(0);
    let len = notices.recv(&mut notice).expect("a notice");
    assert_eq!(&notice[..len], b"STOPPING=1");
    assert!(place.join("pager.sock").exists(), "it is systemd's");
}

#[test]
fn lines_are_for_people_too() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let args = [
        "pager",
        "serve",
        "--image",
        "vm.ami",
        "--listen",
        "unix:pager.sock",
        "--fill",
    ];
    let daemon = place.start(place.tool(args));
    until("the socket", || {
        place.join("pager.sock").exists().then_some(())
    });
    let mut vmm = Vmm::whole(&place);
    vmm.does("touch 1", &whole_sum(&memory));
    until("its end", || {
        daemon.out_so_far().contains("is complete").then_some(())
    });
    daemon.signal(Signal::INT);
    let ran = daemon.ended().ends_with(0);
    let pid = vmm.0.pid();
    ran.says("serving vm.ami (image, 16.0 MiB) to at most 32 VMs at unix:pager.sock")
        .says(&format!("VM 1 (pid {pid}) begins: 16.0 MiB in 2 regions"))
        .says(&format!(
            "VM 1 (pid {pid}) is complete and served no more after"
        ))
        .says("of 4096 pages")
        // It may not have been taken off the list yet.
        .says("ending: ");
}

/// The control plane told a line to a full pipe, and waited until somebody read it: nobody was served meanwhile, nor told to end.
#[test]
fn a_reader_that_does_not_read_holds_nobody_up() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let fifo = place.join("lines");
    let (kind, mode) = (FileType::Fifo, Mode::from_raw_mode(0o600));
    mknodat(CWD, &fifo, kind, mode, 0).expect("a pipe of this name");
    let mut pipe = fs::File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&fifo)
        .expect("a pipe");
    for part in [4096, 1] {
        while pipe.write(&vec![b'\n'; part]).is_ok() {}
    }
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" > lines"]);
    command.arg(env!("CARGO_BIN_EXE_amdahl"));
    command.args(["pager", "serve", "--image", "vm.ami", "--json", "--fill"]);
    command.args(["--listen", "unix:pager.sock"]);
    let daemon = place.start(place.here(command));
    until("the socket", || {
        place.join("pager.sock").exists().then_some(())
    });
    let mut vmm = Vmm::whole(&place);
    vmm.does("touch 1", &whole_sum(&memory));
    let mut text = String::new();
    let mut says = |event: &str| {
        until(event, || {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(count) = pipe.read(&mut bytes) {
                text += std::str::from_utf8(&bytes[..count]).expect("text");
            }
            let is_said = lines(text.trim_start())
                .iter()
                .any(|line| line["event"] == event);
            is_said.then_some(())
        });
    };
    says("listening");
    says("end");
    daemon.signal(Signal::TERM);
    says("ending");
    daemon.ended().ends_with(0);
}
