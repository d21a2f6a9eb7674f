//! One daemon follows another: replaced, killed, or refused. The VMs must not notice.

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use amdahl_pager::succession::{Arbiter, Claim};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix,
    SocketType, recvmsg, sendmsg,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::vmm::{Vmm, is_possible};
use super::{Daemon, PAGES, lines, page_sum, with_image, zero_sum};
use crate::tool::{Place, Ran, Running, skipped, until};

const CONTROL: &str = "unix:pager.control";

pub(super) fn controlled(place: &Place, image: &str, more: &[&str]) -> Daemon {
    Daemon::start(place, image, &[&["--control", CONTROL], more].concat())
}

/// Another one, which takes over or stands by.
fn follower(place: &Place, image: &str, how: &str, more: &[&str]) -> Daemon {
    let args = ["pager", "serve", "--image", image, how, CONTROL, "--json"];
    Daemon(place.start(place.tool(args.iter().chain(more))))
}

pub(super) fn standby(place: &Place, image: &str, more: &[&str]) -> Daemon {
    let standby = follower(place, image, "--standby-for", more);
    standby.event("standing-by");
    standby
}

/// A successor that has taken over; the one before ends as it should.
pub(super) fn replaced(place: &Place, old: Daemon, image: &str, more: &[&str]) -> Daemon {
    let (new, ran) = succeeded(place, old, image, more);
    let ran = ran.ends_with(0);
    let told = lines(&ran.out);
    assert!(
        !told.iter().any(|line| line["event"] == "lost"),
        "{}",
        ran.out
    );
    new
}

fn succeeded(place: &Place, old: Daemon, image: &str, more: &[&str]) -> (Daemon, Ran) {
    let new = follower(place, image, "--replace", more);
    new.event("took-over");
    let handed = old.event("handed-over");
    assert_eq!(handed["pid"], new.0.pid(), "{handed}");
    (new, old.0.ended())
}

/// The VM is served: who stands by holds it.
fn begins(daemon: &Daemon, vmm: &Vmm) {
    begins_by(daemon, vmm.0.pid());
}

/// The same of the VM of that process.
pub(super) fn begins_by(daemon: &Daemon, pid: u32) {
    daemon.line("begin", |line| line["pid"] == pid);
}

#[test]
fn a_new_version_takes_over_while_vms_fault() {
    if !is_possible() {
        return;
    }
    for (image, more) in [
        ("vm.ami", &["--fill=2M"][..]),
        // Page by page, so that there are more faults.
        ("vm.mem", &["--record-working-set", "first.txt"]),
    ] {
        let place = Place::new();
        let memory = with_image(&place);
        let mut daemon = controlled(&place, image, more);
        let mut vmms: Vec<Vmm> = (0..2).map(|seed| Vmm::stormy(&place, seed)).collect();
        for turn in 0..6 {
            // Whoever comes at that moment finds one of both, at the same socket.
            let (next, mut others) = std::thread::scope(|scope| {
                let place = &place;
                let others: Vec<_> = (0..3)
                    .map(|nth| scope.spawn(move || Vmm::stormy(place, 100 + 10 * turn + nth)))
                    .collect();
                let next = replaced(place, daemon, image, more);
                let others = others.into_iter();
                let others = others.map(|other| other.join().expect("a VM"));
                (next, others.collect::<Vec<_>>())
            });
            daemon = next;
            let took = daemon.event("took-over");
            assert_eq!(took["why"], "asked", "{took}");
            for vmm in vmms.iter_mut().chain(&mut others) {
                vmm.goes_on(60);
            }
            let mut another = Vmm::whole(&place);
            another.does("balloon 200 9", "given up");
            another.does("read 77", &page_sum(&memory, 77));
            another.does("read 203", &zero_sum(203));
            let pid = another.0.pid();
            drop(another);
            let end = daemon.line("end", |line| line["pid"] == pid);
            assert_eq!(end["outcome"], "gone");
        }
        let ran = daemon.ends(0);
        let ends: Vec<Value> = lines(&ran.out)
            .into_iter()
            .filter(|line| line["event"] == "end" && line["outcome"] == "complete")
            .collect();
        assert_eq!(ends.len(), vmms.len(), "{}", ran.out);
        // What was counted before is not forgotten.
        assert!(ends.iter().all(|end| end["faults"].as_u64() > Some(50)));
        for vmm in &mut vmms {
            vmm.goes_on(60);
        }
        assert!(!place.join("pager.sock").exists() && !place.join("pager.control").exists());
        if image == "vm.mem" {
            let text = place.read("first.txt");
            let pages: usize = text
                .split(' ')
                .nth(1)
                .and_then(|n| n.parse().ok())
                .expect("pages");
            assert!(pages > 100, "{text}");
        }
    }
}

/// Killed at moments that a seed chooses, with a balloon going on: VMs pause, and nothing is wrong.
#[test]
fn a_standby_takes_over_from_one_that_is_killed() {
    if !is_possible() {
        return;
    }
    for (image, more, seed) in [
        ("vm.mem", &["--record-working-set", "first.txt"][..], 1u64),
        ("vm.ami", &["--fill=1M"], 2),
    ] {
        let place = Place::new();
        let memory = with_image(&place);
        let mut daemon = controlled(&place, image, more);
        let mut next = standby(&place, image, more);
        let mut vmms: Vec<Vmm> = (0..2)
            .map(|nth| Vmm::stormy(&place, seed * 10 + nth))
            .collect();
        // One whose hand-off is not received yet is nobody's.
        for vmm in &vmms {
            begins(&daemon, vmm);
        }
        let mut state = seed;
        for turn in 0..8 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            // Not waited for: at which moment it is killed is the point.
            std::thread::sleep(Duration::from_micros((state >> 40) % 40_000));
            daemon.0.signal(Signal::KILL);
            let _ = daemon.0.ended();
            let took = next.event("took-over");
            assert_eq!(
                (&took["vms"], &took["why"]),
                (&json!(2), &json!("died")),
                "{took}"
            );
            daemon = next;
            if turn % 3 == 2 {
                // Between two deaths it may be replaced as well; one that stands by finds the new one.
                let waits = standby(&place, image, more);
                daemon = replaced(&place, daemon, image, more);
                daemon.event("follower");
                next = waits;
            } else {
                next = standby(&place, image, more);
            }
            for vmm in &mut vmms {
                vmm.goes_on(40);
            }
        }
        let mut another = Vmm::whole(&place);
        another.does("read 9", &page_sum(&memory, 9));
        drop(another);
        let ran = daemon.ends(0);
        let ends = lines(&ran.out);
        let complete = ends.iter().filter(|line| line["outcome"] == "complete");
        assert_eq!(complete.count(), 2, "{}", ran.out);
        // Nothing is left to stand by for.
        next.event("released");
        next.0.ended().ends_with(0);
        for vmm in &mut vmms {
            vmm.goes_on(40);
        }
        assert!(!place.join("pager.sock").exists() && !place.join("pager.control").exists());
    }
}

/// Killed while another has begun to take over and a third stands by: one of both serves, the other one never.
#[test]
fn of_a_successor_and_a_standby_one_serves_after_a_death() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let mut daemon = controlled(&place, "vm.mem", &[]);
    let mut vmms: Vec<Vmm> = (0..2).map(|nth| Vmm::stormy(&place, 70 + nth)).collect();
    for vmm in &vmms {
        begins(&daemon, vmm);
    }
    let mut state = 5u64;
    let mut standing = standby(&place, "vm.mem", &[]);
    for _ in 0..8 {
        let heir = follower(&place, "vm.mem", "--replace", &[]);
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        // Not waited for: at which moment it is killed is the point.
        std::thread::sleep(Duration::from_micros((state >> 40) % 30_000));
        daemon.0.signal(Signal::KILL);
        let _ = daemon.0.ended();
        let has_taken = |daemon: &Daemon| {
            let lines = daemon.lines();
            lines.iter().any(|line| line["event"] == "took-over")
        };
        // Whoever asks to replace may find the standby at the same socket, and replace that one after its turn has come.
        let is_heirs = until("one to take over", || {
            let is_refused = !heir.0.err_so_far().is_empty();
            match has_taken(&heir) {
                true => Some(true),
                false => (is_refused && has_taken(&standing)).then_some(false),
            }
        });
        for vmm in &mut vmms {
            vmm.goes_on(20);
        }
        let mut another = Vmm::whole(&place);
        another.does("read 9", &page_sum(&memory, 9));
        drop(another);
        if is_heirs && has_taken(&standing) {
            let ran = standing.0.ended().ends_with(0);
            assert!(ran.out.contains("handed-over"), "{}", ran.out);
            daemon = heir;
            standing = standby(&place, "vm.mem", &[]);
        } else if is_heirs {
            // The standby has found who serves now.
            heir.event("follower");
            daemon = heir;
        } else {
            heir.0.ended().ends_with(1);
            daemon = standing;
            standing = standby(&place, "vm.mem", &[]);
        }
    }
    daemon.ends(0);
    standing.0.ended().ends_with(0);
}

/// One that was dropped while it was held up has not heard of it: it holds too few VMs, and must not serve when it goes on.
#[test]
fn a_standby_that_was_dropped_never_serves_in_its_old_place() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let more = ["--handoff-timeout", "1"];
    let daemon = controlled(&place, "vm.mem", &more);
    let dropped = standby(&place, "vm.mem", &more);
    dropped.0.signal(Signal::STOP);
    // It is served without it, when it has had its time.
    let mut vmm = Vmm::whole(&place);
    vmm.does("read 9", &page_sum(&memory, 9));
    let lost = daemon.event("follower-lost");
    assert_eq!(lost["pid"], dropped.0.pid(), "{lost}");
    let next = standby(&place, "vm.mem", &[]);
    daemon.0.signal(Signal::KILL);
    let _ = daemon.0.ended();
    dropped.0.signal(Signal::CONT);
    assert_eq!(next.event("took-over")["vms"], 1);
    vmm.does("read 300", &page_sum(&memory, 300));
    // It stands by again, for the one that serves now, which it holds all VMs of.
    let follows = next.event("follower");
    assert_eq!(
        (&follows["pid"], &follows["vms"]),
        (&json!(dropped.0.pid()), &json!(1)),
        "{follows}"
    );
    next.0.signal(Signal::KILL);
    let _ = next.0.ended();
    assert_eq!(dropped.event("took-over")["vms"], 1);
    vmm.does("read 600", &page_sum(&memory, 600));
    vmm.does("touch 2", &super::whole_sum(&memory));
}

/// A connection that ends, or one that is held up, is no death.
#[test]
fn one_that_is_stopped_is_not_taken_over_from() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = controlled(&place, "vm.mem", &[]);
    let mut vmm = Vmm::whole(&place);
    vmm.does("read 9", &page_sum(&memory, 9));
    let waits = standby(&place, "vm.mem", &[]);
    daemon.0.signal(Signal::STOP);
    // It asks one that says nothing, which is not killed by that.
    let heir = follower(&place, "vm.mem", "--replace", &[]);
    heir.0.signal(Signal::TERM);
    daemon.0.signal(Signal::CONT);
    let ran = heir.0.ended();
    assert!(!ran.out.contains("took-over"), "{}", ran.out);
    vmm.does("read 700", &page_sum(&memory, 700));
    let daemon = replaced(&place, daemon, "vm.mem", &[]);
    vmm.does("read 800", &page_sum(&memory, 800));
    daemon.event("follower");
    assert!(
        !waits
            .lines()
            .iter()
            .any(|line| line["event"] == "took-over")
    );
    daemon.ends(0);
    waits.0.ended().ends_with(0);
}

/// Told to end just when another takes over: either it ends as it should, or the other serves, at sockets that are there.
#[test]
fn one_that_is_told_to_end_gives_its_sockets_or_removes_them() {
    if !is_possible() {
        return;
    }
    let mut state = 11u64;
    for _ in 0..8 {
        let place = Place::new();
        let memory = with_image(&place);
        let daemon = controlled(&place, "vm.mem", &[]);
        let mut vmm = Vmm::stormy(&place, state);
        begins(&daemon, &vmm);
        let heir = follower(&place, "vm.mem", "--replace", &[]);
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        // Not waited for, as above.
        std::thread::sleep(Duration::from_micros((state >> 40) % 20_000));
        daemon.0.signal(Signal::TERM);
        let ran = daemon.0.ended().ends_with(0);
        vmm.goes_on(20);
        if ran.out.contains("handed-over") {
            let mut another = Vmm::whole(&place);
            another.does("read 9", &page_sum(&memory, 9));
            drop(another);
            heir.ends(0);
        } else {
            heir.0.ended().ends_with(1);
        }
        assert!(!place.join("pager.sock").exists() && !place.join("pager.control").exists());
        vmm.goes_on(20);
    }
}

/// Killed while it fetched what was missing, to end: the standby does that in its place, and takes no new VMs.
#[test]
fn one_that_is_killed_while_it_ends_is_ended_for() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    // One that can be held up.
    let there = Daemon::listens(&place, "vm.mem", "tcp:127.0.0.1:0", &[]);
    let address = there.event("listening")["listen"].clone();
    let address = address.as_str().expect("text");
    let daemon = controlled(&place, address, &[]);
    let next = standby(&place, address, &[]);
    let mut vmm = Vmm::whole(&place);
    vmm.does("read 9", &page_sum(&memory, 9));
    there.0.signal(Signal::STOP);
    daemon.0.signal(Signal::TERM);
    daemon.event("ending");
    daemon.0.signal(Signal::KILL);
    let _ = daemon.0.ended();
    assert_eq!(next.event("took-over")["why"], "died");
    assert!(!place.join("pager.sock").exists());
    there.0.signal(Signal::CONT);
    let ran = next.0.ended().ends_with(0);
    assert!(ran.out.contains("complete"), "{}", ran.out);
    vmm.does("touch 2", &super::whole_sum(&memory));
    assert!(!place.join("pager.control").exists());
}

#[test]
fn what_was_lost_stays_lost_and_what_was_given_up_zero() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let mut file = fs::read(place.join("vm.ami")).expect("an image");
    // Of the first clusters, which are behind the header.
    file[4096 + 500] ^= 1;
    fs::write(place.join("bad.ami"), file).expect("written");
    let daemon = controlled(&place, "bad.ami", &[]);
    if daemon.event("listening")["can_poison"] != true {
        return skipped("this kernel cannot poison pages");
    }
    let mut vmm = Vmm::whole(&place);
    vmm.does("peek 0", "lost");
    vmm.does("balloon 3000 7", "given up");
    let check = |vmm: &mut Vmm| {
        vmm.does("peek 0", "lost");
        vmm.does("peek 3003", &zero_sum(3003));
        vmm.does("peek 4000", &page_sum(&memory, 4000));
    };
    // The same image, with the damage mended meanwhile: the page was lost all the same.
    fs::copy(place.join("vm.ami"), place.join("bad.ami")).expect("mended");
    // It says by its code that it has met damage.
    let (daemon, ran) = succeeded(&place, daemon, "bad.ami", &[]);
    ran.ends_with(7);
    check(&mut vmm);
    let next = standby(&place, "bad.ami", &[]);
    daemon.0.signal(Signal::KILL);
    let _ = daemon.0.ended();
    next.event("took-over");
    check(&mut vmm);
    vmm.does("balloon 0 1", "given up");
    vmm.does("peek 0", &zero_sum(0));
    let daemon = replaced(&place, next, "bad.ami", &[]);
    vmm.does("peek 0", &zero_sum(0));
    // Nothing is lost any more.
    let ran = daemon.ends(0);
    assert!(ran.out.contains("complete"), "{}", ran.out);
}

#[test]
fn who_may_not_follow_is_told_why_and_the_other_goes_on() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    fs::copy(place.join("vm.mem"), place.join("copy.mem")).expect("copied");
    let daemon = controlled(&place, "vm.mem", &["--max-vms", "8"]);
    let mut vmm = Vmm::stormy(&place, 5);
    let mut refusals = 0;
    for (image, how, more, says) in [
        // The same bytes in another file may be changed by whoever likes.
        ("copy.mem", "--replace", &[][..], "another image"),
        ("vm.ami", "--standby-for", &[], "another image"),
        ("vm.mem", "--replace", &["--max-vms", "7"], "--max-vms"),
    ] {
        let ran = follower(&place, image, how, more).0.ended().ends_with(1);
        assert!(
            ran.err.contains(says) && ran.err.contains("goes on"),
            "{says}: {}",
            ran.err
        );
        refusals += 1;
        vmm.goes_on(20);
    }
    let waits = standby(&place, "vm.mem", &["--max-vms", "8"]);
    let ran = follower(&place, "vm.mem", "--standby-for", &["--max-vms", "8"]);
    let ran = ran.0.ended().ends_with(1);
    assert!(ran.err.contains("another stands by"), "{}", ran.err);
    refusals += 1;
    // Words of another version, and no words at all.
    let hello = |oldest: u32, newest: u32| {
        json!({
            "is": "hello", "oldest": oldest, "newest": newest, "program": "9.9", "identity": "",
            "memory_bytes": 1, "max_vms": 1, "replaces": true,
        })
    };
    for (said, says) in [
        (hello(7, 9).to_string(), "versions 7 to 9"),
        (hello(1, 9).to_string(), "another image"),
        ("[]".to_owned(), "no message of this protocol"),
        (json!({ "is": "take" }).to_string(), "hello"),
        (json!({ "is": "vm" }).to_string(), "no message"),
    ] {
        let socket = connect(&place);
        say(&socket, &said);
        let (answer, _) = hear(&socket).expect("an answer");
        let why = answer["why"].as_str().expect("text");
        assert!(
            answer["is"] == "no" && why.contains(says),
            "{says}: {answer}"
        );
        refusals += 1;
    }
    drop(connect(&place));
    // One that goes away harms nobody.
    waits.0.signal(Signal::TERM);
    waits.0.ended().ends_with(0);
    daemon.event("follower-lost");
    vmm.goes_on(20);
    vmm.does("read 9", &page_sum(&memory, 9));
    let ran = daemon.ends(0);
    let told = lines(&ran.out);
    let told = told.iter().filter(|line| line["event"] == "not-followed");
    assert_eq!(told.count(), refusals, "{}", ran.out);
    let nobody = follower(&place, "vm.mem", "--replace", &[]).0.ended();
    assert!(
        nobody
            .ends_with(1)
            .err
            .contains("--control unix:pager.control")
    );
}

// ---- A successor that fails ----

/// How far it goes before it ends, or for how long.
const HEIR: &str = "SERVE_TEST_HEIR";

fn connect(place: &Place) -> OwnedFd {
    connect_at(&place.join("pager.control"))
}

fn connect_at(path: &std::path::Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket(AddressFamily::UNIX, kind, None).expect("a socket");
    let address = SocketAddrUnix::new(path).expect("an address");
    rustix::net::connect(&socket, &address).expect("connected");
    socket
}

fn say(socket: &OwnedFd, text: &str) {
    let mut control = SendAncillaryBuffer::default();
    let bytes = [IoSlice::new(text.as_bytes())];
    let sent = sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent, Ok(text.len()));
}

/// A message, with its descriptors.
fn hear(socket: &OwnedFd) -> Option<(Value, Vec<OwnedFd>)> {
    let mut bytes = vec![0; 256 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, parts, &mut control, RecvFlags::empty()).ok()?;
    let mut descriptors = Vec::new();
    for sent in control.drain() {
        if let rustix::net::RecvAncillaryMessage::ScmRights(some) = sent {
            descriptors.extend(some);
        }
    }
    let text = &bytes[..received.bytes];
    let message = (!text.is_empty()).then(|| serde_json::from_slice(text).expect("JSON"))?;
    Some((message, descriptors))
}

/// No test, but a successor that goes only so far.
#[test]
fn heir() {
    let Ok(text) = std::env::var(HEIR) else {
        return;
    };
    let told: Value = serde_json::from_str(&text).expect("JSON");
    let ends_at = told["ends_at"].as_str().expect("text");
    let socket = connect_at(std::path::Path::new(
        told["control"].as_str().expect("a path"),
    ));
    let reaches = |point: &str| {
        if ends_at == point {
            // As if killed.
            std::process::abort();
        }
    };
    say(&socket, &told["hello"].to_string());
    reaches("hello");
    let mut kept = Vec::new();
    let mut arbiter = None;
    while let Some((message, mut descriptors)) = hear(&socket) {
        let is = message["is"].as_str().expect("text");
        reaches(is);
        if is == "welcome" {
            let member = message["member"].as_u64().expect("a number") as u32;
            let opened = Arbiter::open(descriptors.pop().expect("the arbiter")).expect("opened");
            opened.enter(member).expect("entered");
            say(&socket, &json!({ "is": "entered" }).to_string());
            arbiter = Some((opened, member));
            reaches("entered");
        }
        if is == "yours" && ends_at.starts_with("claim") {
            let (arbiter, member) = arbiter.as_ref().expect("welcome before");
            assert_eq!(arbiter.claim(*member), Claim::Ours);
            println!("CLAIMED");
            reaches("claimed");
        }
        kept.extend(descriptors);
        match is {
            "vm" => say(
                &socket,
                &json!({ "is": "held", "number": message["number"] }).to_string(),
            ),
            "current" => {
                say(&socket, &json!({ "is": "take" }).to_string());
                reaches("take");
            }
            "yours" if ends_at == "close" => {
                drop(socket);
                return std::thread::sleep(Duration::from_secs(600));
            }
            // Held up for ever.
            "yours" => return std::thread::sleep(Duration::from_secs(600)),
            _ => {}
        }
    }
}

/// As the tool knows a raw file.
fn identity_of(path: &std::path::Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let of = fs::metadata(path).expect("a file");
    let which = of.dev() ^ of.ino().rotate_left(32);
    let when =
        (of.mtime() as u64).rotate_left(30) ^ of.mtime_nsec() as u64 ^ of.len().rotate_left(48);
    let bytes = [which.to_le_bytes(), when.to_le_bytes()].concat();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A successor, of the raw file, that goes only so far.
pub(super) fn failing(place: &Place, ends_at: &str) -> Running {
    let told = json!({
        "ends_at": ends_at,
        "control": place.join("pager.control"),
        "hello": {
            "is": "hello", "oldest": 1, "newest": 1, "program": "test",
            "identity": identity_of(&place.join("vm.mem")),
            "memory_bytes": PAGES * 4096, "max_vms": 100, "replaces": true,
        },
    });
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "serving::following::heir", "--nocapture"]);
    let mut command = place.here(command);
    command.env(HEIR, told.to_string()).stdin(Stdio::null());
    place.start(command)
}

#[test]
fn a_successor_that_fails_midway_leaves_all_to_the_one_before() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let more = [
        "--handoff-timeout",
        "1",
        "--record-working-set",
        "first.txt",
    ];
    let daemon = controlled(&place, "vm.mem", &more);
    let mut vmms: Vec<Vmm> = (0..2).map(|seed| Vmm::stormy(&place, 40 + seed)).collect();
    // The last three live, and say nothing any more: they are ended.
    for point in [
        "hello",
        "welcome",
        "entered",
        "vm",
        "current",
        "take",
        "yours",
        "claimed",
        "close",
        "hang",
        "claim and hang",
    ] {
        let heir = failing(&place, point);
        let pid = heir.pid();
        let ran = heir.ended();
        assert!(!ran.status.success(), "{point}: {ran:?}");
        until("a word about it", || {
            let lines = daemon.lines();
            let is_about = |line: &Value| {
                let event = line["event"].as_str().expect("text");
                line["pid"] == pid && ["follower-lost", "not-followed"].contains(&event)
            };
            lines.iter().any(is_about).then_some(())
        });
        for vmm in &mut vmms {
            vmm.goes_on(40);
        }
        let mut another = Vmm::whole(&place);
        another.does("read 9", &page_sum(&memory, 9));
    }
    let daemon = replaced(&place, daemon, "vm.mem", &[]);
    for vmm in &mut vmms {
        vmm.goes_on(40);
    }
    daemon.ends(0);
}

/// A successor that began and died, then the one before that went on: whoever stands by then follows the right one.
#[test]
fn after_a_successor_that_failed_a_standby_takes_over() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = controlled(&place, "vm.mem", &[]);
    let mut vmm = Vmm::stormy(&place, 77);
    begins(&daemon, &vmm);
    let heir = failing(&place, "claimed");
    let _ = heir.ended();
    daemon.event("not-followed");
    let waits = standby(&place, "vm.mem", &[]);
    // It dies in front of who stands by, who goes on standing by.
    let heir = failing(&place, "claimed");
    let pid = heir.pid();
    let _ = heir.ended();
    daemon.line("not-followed", |line| line["pid"] == pid);
    vmm.goes_on(40);
    daemon.0.signal(Signal::KILL);
    let _ = daemon.0.ended();
    assert_eq!(waits.event("took-over")["vms"], 1);
    vmm.goes_on(40);
    let mut another = Vmm::whole(&place);
    another.does("read 9", &page_sum(&memory, 9));
    drop(another);
    waits.ends(0);
}

/// The successor hangs after it has taken the turn, and the one before is killed: who stands by serves when the other is gone, and not before.
#[test]
fn a_standby_serves_when_both_of_a_hand_over_have_died() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = controlled(&place, "vm.mem", &["--handoff-timeout", "60"]);
    let mut vmm = Vmm::whole(&place);
    vmm.does("read 9", &page_sum(&memory, 9));
    let waits = standby(&place, "vm.mem", &[]);
    let heir = failing(&place, "claim and hang");
    until("the claim", || {
        heir.out_so_far().contains("CLAIMED").then_some(())
    });
    daemon.0.signal(Signal::KILL);
    let _ = daemon.0.ended();
    // As soon as it has seen that, it would.
    assert!(
        !waits
            .lines()
            .iter()
            .any(|line| line["event"] == "took-over")
    );
    heir.signal(Signal::KILL);
    let _ = heir.ended();
    assert_eq!(waits.event("took-over")["vms"], 1);
    vmm.does("touch 2", &super::whole_sum(&memory));
    waits.ends(0);
}
