//! VMs that map the one copy of `--share` go on when the daemon that fills it is replaced, or killed.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::following::{begins_by, controlled, failing, replaced, standby};
use super::sharing::{address, can_map, mapped};
use super::vmm::{Vmm, is_possible};
use super::{Daemon, lines, page_sum, whole_sum, with_image, zero_sum};
use crate::tool::Place;

/// A VM that maps the copy, touches all the time, and knows what its memory must be.
fn stormy(place: &Place, seed: u64) -> Vmm {
    let told = json!({ "maps": true, "file": place.join("vm.mem") });
    let mut vmm = Vmm::start(place, told);
    vmm.does(&format!("storm {seed}"), "it storms");
    vmm
}

/// Followers hold it.
fn begun(daemon: &Daemon, vmm: Vmm) -> Vmm {
    begins_by(daemon, vmm.0.pid());
    vmm
}

#[test]
fn a_new_version_goes_on_with_the_copy_while_vms_fault() {
    if !is_possible() || !can_map() {
        return;
    }
    for (image, more) in [
        ("vm.mem", &["--share"][..]),
        ("vm.ami", &["--share", "--fill=2M"]),
    ] {
        let place = Place::new();
        let memory = with_image(&place);
        let mut daemon = controlled(&place, image, more);
        let mut vmms = vec![stormy(&place, 1), stormy(&place, 2), Vmm::stormy(&place, 3)];
        for turn in 0..4 {
            daemon = replaced(&place, daemon, image, more);
            for vmm in &mut vmms {
                vmm.goes_on(60);
            }
            // There is a copy for those who come, of which each has nothing of its own.
            let mut another = mapped(&place);
            another.does("touch 3", &whole_sum(&memory));
            another.does("own", "0 KiB");
            drop(another);
            vmms.push(stormy(&place, 10 + turn));
        }
        let ran = daemon.ends(0);
        let told = lines(&ran.out);
        let complete = told.iter().filter(|line| line["outcome"] == "complete");
        assert_eq!(complete.count(), vmms.len(), "{}", ran.out);
        // What those that map give up from now on is not zero.
    }
}

/// Killed at moments that a seed chooses, while it fills: VMs pause, and nothing is wrong.
#[test]
fn a_standby_goes_on_with_the_copy_of_one_that_is_killed() {
    if !is_possible() || !can_map() {
        return;
    }
    for (image, more, seed) in [
        ("vm.mem", &["--share", "--fill=1M"][..], 3u64),
        ("vm.ami", &["--share"], 4),
    ] {
        let place = Place::new();
        let memory = with_image(&place);
        let mut daemon = controlled(&place, image, more);
        let mut next = standby(&place, image, more);
        let mut vmms = vec![begun(&daemon, stormy(&place, seed))];
        let mut state = seed;
        for turn in 0..6 {
            // Of each that fills there is one, and they are served by the next ones together.
            vmms.push(begun(&daemon, stormy(&place, seed * 10 + turn)));
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            // Not waited for: at which moment it is killed is the point.
            std::thread::sleep(Duration::from_micros((state >> 40) % 40_000));
            daemon.0.signal(Signal::KILL);
            let _ = daemon.0.ended();
            let took = next.event("took-over");
            assert_eq!(took["vms"], vmms.len(), "{took}");
            daemon = next;
            next = standby(&place, image, more);
            for vmm in &mut vmms {
                vmm.goes_on(30);
            }
        }
        let mut another = mapped(&place);
        another.does("touch 2", &whole_sum(&memory));
        drop(another);
        let ran = daemon.ends(0);
        let told = lines(&ran.out);
        let complete = told.iter().filter(|line| line["outcome"] == "complete");
        assert_eq!(complete.count(), vmms.len(), "{}", ran.out);
        next.event("released");
        next.0.ended().ends_with(0);
    }
}

#[test]
fn what_the_copy_had_is_one_copy_still_and_the_rest_is_each_vms_own() {
    if !is_possible() || !can_map() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let there = Daemon::listens(&place, "vm.mem", "tcp:127.0.0.1:0", &[]);
    let image = address(&there);
    for is_killed in [false, true] {
        let daemon = controlled(&place, &image, &["--share"]);
        let next = is_killed.then(|| standby(&place, &image, &["--share"]));
        let mut one = begun(&daemon, mapped(&place));
        let mut other = begun(&daemon, mapped(&place));
        one.does("read 77", &page_sum(&memory, 77));
        one.does("write 2700", "written");
        one.does("balloon 3000 50", "given up");
        let daemon = match next {
            Some(next) => {
                daemon.0.signal(Signal::KILL);
                let _ = daemon.0.ended();
                next.event("took-over");
                next
            }
            None => replaced(&place, daemon, &image, &["--share"]),
        };
        other.does("read 77", &page_sum(&memory, 77));
        other.does("own", "0 KiB");
        other.does("read 600", &page_sum(&memory, 600));
        other.does("own", "4 KiB");
        for page in [3000, 3017, 3049] {
            one.does(&format!("read {page}"), &zero_sum(page));
        }
        other.does("read 3000", &page_sum(&memory, 3000));
        one.does("balloon 77 1", "given up");
        one.does("read 77", &zero_sum(77));
        other.does("touch 2", &whole_sum(&memory));
        // Those who come share what is filled now.
        let mut vmms = [mapped(&place), mapped(&place)];
        for vmm in &mut vmms {
            vmm.does("touch 2", &whole_sum(&memory));
            vmm.does("own", "0 KiB");
        }
        let ran = daemon.ends(0);
        assert_eq!(ran.out.matches("\"complete\"").count(), 4, "{}", ran.out);
        other.does("touch 2", &whole_sum(&memory));
    }
    there.ends(0);
}

/// One that is asked for no copy any more goes on with those who map one.
#[test]
fn a_new_version_may_give_no_copy_to_those_who_come() {
    if !is_possible() || !can_map() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = controlled(&place, "vm.ami", &["--share"]);
    let mut vmm = stormy(&place, 9);
    let daemon = replaced(&place, daemon, "vm.ami", &[]);
    vmm.goes_on(60);
    let mut another = Vmm::whole(&place);
    another.does("touch 2", &whole_sum(&memory));
    // And one that gives some again.
    let daemon = replaced(&place, daemon, "vm.ami", &["--share"]);
    let mut mapped = mapped(&place);
    mapped.does("touch 2", &whole_sum(&memory));
    mapped.does("own", "0 KiB");
    vmm.goes_on(60);
    daemon.ends(0);
}

/// A version that knows nothing of such VMs would fill them as if nothing were there; it follows while there are none.
#[test]
fn a_version_from_before_does_not_follow_vms_that_map_the_copy() {
    if !is_possible() || !can_map() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let daemon = controlled(&place, "vm.mem", &["--share"]);
    let mut copied = Vmm::whole(&place);
    copied.does("read 9", &page_sum(&memory, 9));
    // It is let in, and says nothing when it has the turn.
    let heir = failing(&place, "yours");
    let pid = heir.pid();
    let _ = heir.ended();
    let told = daemon.line("not-followed", |line| line["pid"] == pid);
    assert!(!told["why"].to_string().contains("--share"), "{told}");
    let mut vmm = stormy(&place, 5);
    let heir = failing(&place, "yours");
    let pid = heir.pid();
    let lost = daemon.line("follower-lost", |line| line["pid"] == pid);
    assert!(lost["why"].to_string().contains("--share"), "{lost}");
    let _ = heir.ended();
    vmm.goes_on(60);
    daemon.ends(0);
}
