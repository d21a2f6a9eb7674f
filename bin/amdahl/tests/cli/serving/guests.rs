//! Guests of KVM whose memory the daemon serves, page tables and code included. What their CPUs compute on it says whether all of it was right, also across
//! daemons that follow each other.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use amdahl_pager::{Backing, HandedOver, Mapping, handoff};
use amdahl_test_vm::{BOOT_PAGES, Kind, Machine, Running, contents, kinds, model};
use rustix::process::Signal;

use super::following::{begins_by, controlled, replaced, standby};
use super::vmm::{is_possible, registered};
use super::{Daemon, PAGE, lines};
use crate::tool::{Place, skipped};

/// Whether a guest can be served here; says so if not.
fn can_be() -> bool {
    if !kinds().contains(&Kind::Kvm) {
        skipped(format_args!("no guest of KVM runs here"));
        return false;
    }
    is_possible()
}

/// A machine that was stopped, with its memory in `vm.mem` and `vm.ami`.
struct Snapshot {
    cpus: usize,
    /// What was in its memory before it ran.
    at_first: Vec<u8>,
    state: Vec<u8>,
}

impl Snapshot {
    fn new(place: &Place, pages: usize, cpus: usize) -> Snapshot {
        let memory = Mapping::new(pages * PAGE, Backing::Small).expect("memory");
        let memory = Arc::new(memory);
        Machine::boot(&memory);
        for page in BOOT_PAGES..pages {
            // Some stay zero, most until they are written.
            if page % 5 > 0 {
                memory.write(page * PAGE + 8, &(page as u64).to_le_bytes());
            }
        }
        let at_first = contents(&memory);
        let machine = Machine::new(Kind::Threads, memory.clone(), cpus).expect("a machine");
        let running = machine.run().expect("it runs");
        running.wait_for(16);
        let state = running.pause().expect("it stops").state();
        fs::write(place.join("vm.mem"), contents(&memory)).expect("written");
        place
            .amdahl(["pager", "pack", "vm.mem", "-o", "vm.ami", "-q"])
            .ends_with(0);
        Snapshot {
            cpus,
            at_first,
            state,
        }
    }

    /// Its guest, which runs at once. This process is its VMM.
    fn restored(&self, place: &Place) -> Guest {
        let memory = Mapping::new(self.at_first.len(), Backing::Small).expect("memory");
        let memory = Arc::new(memory);
        let start = memory.as_ptr().expose_provenance();
        let uffd = registered(start, memory.len());
        let stream = UnixStream::connect(place.join("pager.sock")).expect("connected");
        let region = HandedOver {
            start,
            len: memory.len(),
            source_offset: 0,
            page_bytes: PAGE,
        };
        handoff::send(&stream, &[region], uffd.as_fd()).expect("handed over");
        let machine = Machine::of_state(Kind::Kvm, memory.clone(), &self.state);
        Guest {
            running: machine.expect("a machine").run().expect("it runs"),
            memory,
            _kept: (uffd, stream),
        }
    }
}

struct Guest {
    running: Running,
    /// In which the daemon may be until it has ended.
    memory: Arc<Mapping>,
    _kept: (OwnedFd, UnixStream),
}

impl Guest {
    /// Each CPU does so many steps more: none waits for ever.
    fn goes_on(&self, steps: u64) {
        self.running.wait_for_more(steps);
        assert!(!self.running.has_failed());
    }

    /// Ends it; each CPU has computed what it should. The memory is kept.
    fn end_right(self, snapshot: &Snapshot) -> Arc<Mapping> {
        let sums = self.running.sums().expect("all CPUs could go on");
        assert_eq!(sums.len(), snapshot.cpus);
        for (number, sum) in sums.into_iter().enumerate() {
            let expected = model::expected(&snapshot.at_first, snapshot.cpus, number, sum.steps);
            assert_eq!(sum, expected, "CPU {number}");
        }
        self.memory
    }
}

/// It fetches what is left, and has lost nothing.
fn ends_complete(daemon: Daemon) {
    let ran = daemon.ends(0);
    let told = lines(&ran.out);
    let end = told.iter().find(|line| line["event"] == "end");
    let end = end.unwrap_or_else(|| panic!("no end: {}", ran.out));
    assert_eq!(end["outcome"], "complete", "{end}");
    assert_eq!(
        (&end["pages_lost"], &end["pages_missing"]),
        (&0.into(), &0.into())
    );
    assert!(end["faults"].as_u64() > Some(0), "{end}");
}

/// The guest first, whose memory the daemon is in until it has ended.
fn both_end(guest: Guest, snapshot: &Snapshot, daemon: Daemon) {
    let memory = guest.end_right(snapshot);
    ends_complete(daemon);
    drop(memory);
}

/// It has taken over while pages are missing.
fn goes_on_with_less(daemon: &Daemon) {
    let resumed = daemon.event("resume");
    assert!(resumed["pages_missing"].as_u64() > Some(0), "{resumed}");
}

#[test]
fn a_guest_finds_its_memory() {
    if !can_be() {
        return;
    }
    let place = Place::new();
    let snapshot = Snapshot::new(&place, BOOT_PAGES + 3 * 400, 3);
    for (image, more) in [
        ("vm.ami", &["--fill=16M"][..]),
        ("vm.mem", &[]),
        // Page by page.
        ("vm.mem", &["--record-working-set", "first.txt"]),
    ] {
        let daemon = Daemon::start(&place, image, more);
        let guest = snapshot.restored(&place);
        guest.goes_on(100);
        both_end(guest, &snapshot, daemon);
    }
}

/// Replaced and killed while the guest's CPUs fault.
#[test]
fn a_guest_does_not_notice_who_serves_it() {
    if !can_be() {
        return;
    }
    let place = Place::new();
    let snapshot = Snapshot::new(&place, BOOT_PAGES + 3 * 1300, 3);
    let more = ["--record-working-set", "first.txt"];
    let mut daemon = controlled(&place, "vm.mem", &more);
    let guest = snapshot.restored(&place);
    begins_by(&daemon, std::process::id());
    for _ in 0..3 {
        guest.goes_on(16);
        daemon = replaced(&place, daemon, "vm.mem", &more);
        goes_on_with_less(&daemon);
        guest.goes_on(16);
        let next = standby(&place, "vm.mem", &more);
        daemon.0.signal(Signal::KILL);
        let _ = daemon.0.ended();
        assert_eq!(next.event("took-over")["why"], "died");
        goes_on_with_less(&next);
        daemon = next;
    }
    guest.goes_on(16);
    both_end(guest, &snapshot, daemon);
}

#[test]
fn sixty_four_cpus_find_their_memory() {
    if !can_be() {
        return;
    }
    let place = Place::new();
    let snapshot = Snapshot::new(&place, (64 << 20) / PAGE, 64);
    let daemon = controlled(&place, "vm.ami", &[]);
    let guest = snapshot.restored(&place);
    guest.goes_on(16);
    let daemon = replaced(&place, daemon, "vm.ami", &[]);
    guest.goes_on(16);
    both_end(guest, &snapshot, daemon);
}
