//! Memory that lies in an object store: a real S3 server in this process.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use amdahl_test_objects::{Fault, Server};
use rustix::process::Signal;
use serde_json::json;

use super::vmm::{Vmm, is_possible};
use super::{Daemon, PAGE, page_sum, tls_options, whole_sum, with_image};
use crate::tool::{Place, skipped};

/// A server, and a bucket for it.
struct Store(Server, PathBuf);

impl Store {
    fn new(place: &Place) -> Store {
        let bucket = place.join("store/bucket");
        fs::create_dir_all(&bucket).expect("a folder");
        let server = Server::start(&place.join("store")).expect("a server");
        Store(server, bucket)
    }

    /// Puts a file of the place there.
    fn put(&self, place: &Place, name: &str) {
        fs::copy(place.join(name), self.1.join(name)).expect("copied");
    }

    fn tool(&self, place: &Place, args: &[&str]) -> Command {
        let mut command = place.tool(args);
        // No certificates of authorities: none are needed here.
        command
            .envs(self.0.variables())
            .env("SSL_CERT_FILE", "/none");
        command
    }

    fn daemon(&self, place: &Place, image: &str, more: &[&str]) -> Daemon {
        self.listens(place, image, "unix:pager.sock", more)
    }

    fn listens(&self, place: &Place, image: &str, at: &str, more: &[&str]) -> Daemon {
        let args = ["pager", "serve", "--image", image, "--listen", at, "--json"];
        let daemon = Daemon(place.start(self.tool(place, &[&args[..], more].concat())));
        daemon.event("listening");
        daemon
    }
}

/// An image of another memory, of which all but a page is in the base.
fn with_difference(place: &Place, memory: &[u8]) -> Vec<u8> {
    let mut later = memory.to_vec();
    later[3000 * PAGE..3001 * PAGE].fill(0x5a);
    fs::write(place.join("later.mem"), &later).expect("written");
    place
        .amdahl([
            "pager",
            "pack",
            "later.mem",
            "-o",
            "later.ami",
            "--base",
            "vm.ami",
            "-q",
        ])
        .ends_with(0);
    later
}

#[test]
fn the_memory_may_be_in_an_object_store() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let later = with_difference(&place, &memory);
    let store = Store::new(&place);
    for name in ["vm.ami", "later.ami", "vm.mem"] {
        store.put(&place, name);
    }
    for (name, memory, kind) in [
        ("vm.ami", &memory, "image"),
        ("later.ami", &later, "image"),
        ("vm.mem", &memory, "raw memory"),
    ] {
        let daemon = store.daemon(&place, &format!("s3://bucket/{name}"), &["--fill"]);
        assert_eq!(daemon.event("listening")["kind"], kind);
        let mut vmm = Vmm::whole(&place);
        vmm.0.say("touch 3");
        vmm.answers(&whole_sum(memory));
        assert_eq!(daemon.end_of(&vmm)["outcome"], "complete");
        daemon.ends(0);
    }
}

/// From a store to another host, and to VMs there.
#[test]
fn what_is_in_a_store_is_served_to_other_hosts_over_tls() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let memory = with_image(&place);
    let store = Store::new(&place);
    let tls = tls_options(&place);
    let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
    for name in ["vm.ami", "vm.mem"] {
        store.put(&place, name);
        let there = store.listens(
            &place,
            &format!("s3://bucket/{name}"),
            "tcp:127.0.0.1:0",
            &tls,
        );
        let listening = there.event("listening");
        assert_eq!(listening["is_tls"], true, "{listening}");
        let address = listening["listen"].as_str().expect("text");
        // Who shows no certificate is told nothing.
        let more = ["--read-timeout", "1"];
        let args = [
            "pager",
            "serve",
            "--image",
            address,
            "--listen",
            "unix:other.sock",
        ];
        place.amdahl(args.iter().chain(&more)).ends_with(1);
        let here = Daemon::start(&place, address, &[&tls[..], &["--fill"]].concat());
        let mut vmm = Vmm::whole(&place);
        vmm.does("touch 3", &whole_sum(&memory));
        assert_eq!(here.end_of(&vmm)["outcome"], "complete");
        here.ends(0);
        there.0.signal(Signal::TERM);
        let end = there.line("end", |_| true);
        assert_eq!(end["refused"], 0, "{end}");
        // Zeros are not sent, though raw memory in a store is not known to have any before it is read.
        let stored = memory
            .chunks(PAGE)
            .filter(|page| page.iter().any(|byte| *byte != 0));
        let stored = (stored.count() * PAGE) as u64;
        let sent = end["sent_bytes"].as_u64().expect("a number");
        assert!(
            (stored..stored + stored / 8).contains(&sent),
            "{sent} of {stored}"
        );
        there.0.ended().ends_with(0);
    }
}

/// Raw memory in a store, and who serves it; `None`, and a word about it, where pages that are lost cannot be told from others.
fn served(place: &Place, more: &[&str]) -> Option<(Vec<u8>, Store, Daemon)> {
    if !is_possible() {
        return None;
    }
    let memory = with_image(place);
    let store = Store::new(place);
    store.put(place, "vm.mem");
    let daemon = store.daemon(place, "s3://bucket/vm.mem", more);
    if daemon.event("listening")["can_poison"] != true {
        skipped("this kernel cannot poison pages");
        return None;
    }
    Some((memory, store, daemon))
}

#[test]
fn an_object_that_is_replaced_while_it_is_served_stops_who_touches_it() {
    let place = Place::new();
    let Some((memory, store, daemon)) = served(&place, &[]) else {
        return;
    };
    let mut vmm = Vmm::whole(&place);
    vmm.does("read 10", &page_sum(&memory, 10));
    let mut other = memory.clone();
    other.reverse();
    fs::write(store.1.join("vm.mem"), other).expect("written");
    let pid = vmm.0.pid();
    vmm.dies_of("read 3000", Signal::BUS);
    let lost = daemon.line("lost", |line| line["pid"] == pid);
    let what = lost["what"].as_str().expect("text");
    assert!(what.contains("was replaced"), "{lost}");
    daemon.ends(1);
}

#[test]
fn a_server_that_says_nothing_loses_pages_in_time_and_goes_on_later() {
    let place = Place::new();
    let Some((memory, store, daemon)) = served(&place, &["--read-timeout", "2"]) else {
        return;
    };
    let mut good = Vmm::whole(&place);
    good.does("read 10", &page_sum(&memory, 10));
    let bad = Vmm::start(&place, json!({}));
    store.0.fail(Fault::Stuck);
    bad.dies_of("read 3000", Signal::BUS);
    store.0.fail(Fault::None);
    good.does("touch 3", &whole_sum(&memory));
    daemon.ends(1);
}

#[test]
fn other_commands_take_objects_too_and_say_what_is_wrong() {
    let place = Place::new();
    let memory = with_image(&place);
    let later = with_difference(&place, &memory);
    let store = Store::new(&place);
    for name in ["vm.ami", "later.ami"] {
        store.put(&place, name);
    }
    let run = |args: &[&str]| place.run(store.tool(&place, args));
    let info = run(&["pager", "info", "s3://bucket/later.ami", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(info["layers"][1]["path"], "s3://bucket/vm.ami");
    run(&["pager", "verify", "s3://bucket/later.ami", "-q"]).ends_with(0);
    run(&[
        "pager",
        "unpack",
        "s3://bucket/later.ami",
        "-o",
        "unpacked",
        "-q",
    ])
    .ends_with(0);
    assert!(fs::read(place.join("unpacked")).expect("a file") == later);
    let file = format!("file://{}", place.join("later.ami").display());
    place.amdahl(["pager", "verify", &file, "-q"]).ends_with(0);
    let pack = [
        "pager",
        "pack",
        "later.mem",
        "-o",
        "again.ami",
        "--base",
        "s3://bucket/vm.ami",
        "-q",
    ];
    run(&pack).ends_with(0);
    assert!(
        fs::read(place.join("again.ami")).expect("a file")
            == fs::read(place.join("later.ami")).expect("a file")
    );
    for (args, code, what) in [
        (
            ["pager", "info", "s3://bucket/other.ami"],
            1,
            "open s3://bucket/other.ami: there is no object of this name",
        ),
        (["pager", "info", "s3://nowhere/vm.ami"], 1, "there is no "),
        (["pager", "info", "s3://bucket"], 1, "s3://BUCKET/KEY"),
    ] {
        let ran = run(&args).ends_with(code);
        assert!(ran.err.contains(what), "{}", ran.err);
    }
    let mut stranger = store.tool(&place, &["pager", "info", "s3://bucket/vm.ami"]);
    stranger.env("AWS_SECRET_ACCESS_KEY", "wrong");
    let ran = place.run(stranger).ends_with(1);
    assert!(
        ran.err.contains("refuses: SignatureDoesNotMatch"),
        "{}",
        ran.err
    );
}
