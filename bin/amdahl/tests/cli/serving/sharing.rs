//! `--share`: one copy of the pages of an image that is elsewhere, for all VMs of this host.

use amdahl_pager::Support;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::vmm::{Vmm, is_possible};
use super::{Daemon, PAGE, PAGES, lines, page_sum, tls_options, whole_sum, with_image, zero_sum};
use crate::tool::{Place, skipped};

/// Pages of the memory that hold anything.
fn filled(memory: &[u8]) -> u64 {
    let pages = memory.chunks_exact(PAGE);
    pages.filter(|page| **page != [0; PAGE]).count() as u64
}

/// A VM whose memory is mapped.
pub(super) fn mapped(place: &Place) -> Vmm {
    let regions = json!([[PAGES - 1000, 1000], [1000, 0]]);
    Vmm::start(place, json!({ "regions": regions, "maps": true }))
}

pub(super) fn can_map() -> bool {
    let support = Support::probe();
    if !support.can_offer() {
        skipped(support.to_string());
    }
    support.can_offer()
}

/// The address of a daemon that serves the memory to others.
pub(super) fn address(there: &Daemon) -> String {
    let at = there.event("listening")["listen"].clone();
    at.as_str().expect("text").to_owned()
}

fn number(line: &Value, field: &str) -> u64 {
    line[field].as_u64().expect("a number")
}

/// Each VM had each page from there once.
#[test]
fn many_vms_ask_the_other_host_for_each_page_once() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let tls = tls_options(&place);
    let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
    for (options, more) in [(&tls[..], &["--fill"][..]), (&[], &[])] {
        let there = Daemon::listens(&place, "vm.ami", "tcp:127.0.0.1:0", options);
        let here = [options, more, &["--share"]].concat();
        let here = Daemon::start(&place, &address(&there), &here);
        assert_eq!(here.event("listening")["is_shared"], true);
        let mut vmms: Vec<Vmm> = (0..3).map(|_| Vmm::whole(&place)).collect();
        for vmm in &mut vmms {
            vmm.0.say("touch 2");
        }
        for vmm in &mut vmms {
            vmm.answers(&whole_sum(&memory));
            assert_eq!(here.end_of(vmm)["outcome"], "complete");
            vmm.does("balloon 7 3", "given up");
            vmm.does("read 8", &zero_sum(8));
        }
        here.ends(0);
        let ran = there.ends(0);
        let all = lines(&ran.out);
        let end = all.iter().find(|line| line["event"] == "end");
        let sent = number(end.expect("its end"), "sent_bytes");
        let content = filled(&memory) * PAGE as u64;
        // Not twice, whatever is said beside it, and where faults overtake the background.
        assert!(sent >= content && sent < content + content / 2, "{sent}");
    }
}

#[test]
fn vms_that_map_the_copy_have_it_together() {
    if !is_possible() || !can_map() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let there = Daemon::listens(&place, "vm.ami", "tcp:127.0.0.1:0", &[]);
    let here = Daemon::start(&place, &address(&there), &["--share"]);
    let mut vmms = [mapped(&place), mapped(&place), Vmm::whole(&place)];
    for vmm in &mut vmms {
        vmm.does("touch 3", &whole_sum(&memory));
    }
    // What is only read is nobody's own.
    let [one, other, copied] = &mut vmms;
    one.does("own", "0 KiB");
    other.does("own", "0 KiB");
    one.does("write 1001", "written");
    one.does("own", "4 KiB");
    other.does("read 1001", &page_sum(&memory, 1001));
    // Given up when all is there, which is not the copy.
    one.does("balloon 1000 50", "given up");
    for page in [1000, 1001, 1049] {
        one.does(&format!("read {page}"), &zero_sum(page));
    }
    other.does("read 1000", &page_sum(&memory, 1000));
    copied.does("read 1000", &page_sum(&memory, 1000));
    // Nor when nobody serves it any more.
    one.does("balloon 2000 9", "given up");
    let ran = here.ends(0);
    let outcomes: Vec<_> = lines(&ran.out)
        .into_iter()
        .filter(|line| line["event"] == "end")
        .map(|line| line["outcome"].clone())
        .collect();
    assert_eq!(outcomes, ["complete"; 3], "{}", ran.out);
    one.does("read 2004", &zero_sum(2004));
    other.does("touch 2", &whole_sum(&memory));
    there.ends(0);
}

#[test]
fn a_daemon_that_is_killed_leaves_the_copy_to_its_vms_and_to_nobody_else() {
    if !is_possible() || !can_map() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let there = Daemon::listens(&place, "vm.ami", "tcp:127.0.0.1:0", &[]);
    let at = address(&there);
    let here = Daemon::start(&place, &at, &["--share"]);
    let mut vmm = mapped(&place);
    vmm.does("read 77", &page_sum(&memory, 77));
    let names = place.names();
    here.0.signal(Signal::KILL);
    let _ = here.0.ended();
    assert_eq!(place.names(), names, "nothing is left but the socket");
    vmm.does("read 77", &page_sum(&memory, 77));
    // Another begins anew at the same socket.
    let here = Daemon::start(&place, &at, &["--share"]);
    let mut another = mapped(&place);
    another.does("touch 2", &whole_sum(&memory));
    vmm.does("read 77", &page_sum(&memory, 77));
    drop(another);
    here.ends(0);
    there.ends(0);
}

#[test]
fn who_asks_for_a_copy_that_is_not_there_is_refused() {
    if !is_possible() || !can_map() {
        return;
    }
    let place = Place::new();
    with_image(&place);
    for more in [&[][..], &["--control", "unix:control.sock"]] {
        let daemon = Daemon::start(&place, "vm.ami", more);
        let stream = std::os::unix::net::UnixStream::connect(place.join("pager.sock"));
        let stream = stream.expect("connected");
        amdahl_pager::handoff::ask(&stream, amdahl_pager::handoff::Question::CleanPages)
            .expect("asked");
        let offer = amdahl_pager::handoff::take_offer(&stream, std::time::Duration::from_secs(60));
        assert!(
            matches!(offer, Err(amdahl_pager::handoff::OfferError::Closed)),
            "{offer:?}"
        );
        let said = daemon.event("refused")["why"].to_string();
        assert!(said.contains("without --share"), "{said}");
        daemon.ends(0);
    }
}
