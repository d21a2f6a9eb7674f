//! `amdahl pager migrate --pid`: another process is asked to move, and whatever fails it runs at one side, on its own memory.

use std::process::{Command, Stdio};

use amdahl_test_certificates::{Files, make};
use rustix::process::Signal;

use super::{is_possible, listens};
use crate::tool::{Place, Ran, Running, skipped, until};

/// Options by which both sides know each other.
fn tls(files: &Files) -> Vec<String> {
    let name = |path: &std::path::Path| path.display().to_string();
    [
        ("--tls-certificate", &files.certificate),
        ("--tls-key", &files.key),
        ("--tls-authorities", &files.authority),
    ]
    .into_iter()
    .flat_map(|(option, path)| [option.to_owned(), name(path)])
    .collect()
}

fn certificates(place: &Place, name: &str) -> Vec<String> {
    tls(&make(place.path(), name).expect("certificates"))
}

fn tool(place: &Place, args: &[&str], more: &[String]) -> Command {
    let words = args.iter().map(|word| (*word).to_owned());
    place.tool(words.chain(more.iter().cloned()))
}

/// A demonstration that runs here.
pub(super) fn demo(place: &Place, args: &[&str]) -> Running {
    let args = [&["pager", "demo-vm"][..], args].concat();
    let demo = place.start(place.tool(args));
    until("it runs", || {
        demo.err_so_far().contains("--pid").then_some(())
    });
    demo
}

pub(super) fn ask(place: &Place, pid: u32, to: &str, args: &[&str], more: &[String]) -> Running {
    let pid = pid.to_string();
    let first = ["pager", "migrate", "--pid", &pid, "--to", to];
    let args = [&first[..], args].concat();
    place.start(tool(place, &args, more))
}

/// Waits until a process has said something.
pub(super) fn says(running: &Running, what: &str) {
    until(what, || running.err_so_far().contains(what).then_some(()));
}

/// Ends a demonstration: it has found all of its pages right.
fn is_right(demo: Running) -> Ran {
    demo.signal(Signal::INT);
    demo.ended().ends_with(0).says("pages are right")
}

/// Rounds without an end.
const NEVER: [&str; 5] = [
    "--downtime",
    "0",
    "--no-post-copy",
    "--rounds",
    "4000000000",
];
/// Threads that write so much that pages are left whenever one looks.
pub(super) const BUSY: [&str; 4] = ["--write-rate", "0", "--memory", "16M"];

/// Whether anything can be moved here.
pub(super) fn can_move() -> bool {
    match amdahl_migrate::missing() {
        Some(why) => is_possible(&why),
        None => true,
    }
}

#[test]
fn it_moves_and_moves_on_over_tls_while_it_runs() {
    if !can_move() {
        return;
    }
    let place = Place::new();
    let tls = certificates(&place, "pages");
    let listen = ["--memory", "16M", "--listen", "tcp:127.0.0.1:0"];
    let there = tool(
        &place,
        &[&["pager", "demo-vm"][..], &listen[..]].concat(),
        &tls,
    );
    let there = place.start(there);
    let to = listens(&there);
    let here = demo(&place, &BUSY);

    // As the user of the command line writes it; with pages that are fetched afterwards.
    let to = to.strip_prefix("tcp:").expect("of TCP");
    let fast = ["--downtime", "0", "--rounds", "2", "--json"];
    let asked = ask(&place, here.pid(), to, &fast, &tls)
        .ended()
        .ends_with(0);
    let said = asked.json();
    assert_eq!(said["format"], "amdahl.pager.migrate/1");
    assert_eq!(said["outcome"], "moved");
    assert_eq!(said["pid"], here.pid());
    assert_eq!(said["rounds"][0]["pages"], 4096);
    assert!(said["rounds"][0]["downtime_estimate_ns"].as_u64() > Some(0));
    assert!(said["left_pages"].as_u64() > Some(0), "{said}");
    assert!(asked.err.contains("round 1: 4096 pages"), "{}", asked.err);
    assert!(
        asked.err.contains("it runs at tcp:127.0.0.1"),
        "{}",
        asked.err
    );
    here.ended().ends_with(0).says("moved: stood still for");

    // And on, now that all is there, to one that checks all of it.
    says(&there, "--pid");
    let third = tool(
        &place,
        &[
            "pager", "migrate", "--memory", "16M", "--listen", "unix:way",
        ],
        &[],
    );
    let third = place.start(third);
    let to = listens(&third);
    ask(&place, there.pid(), &to, &["--downtime", "60000"], &[])
        .ended()
        .ends_with(0)
        .says("moved:");
    there.ended().ends_with(0).says("moved:");
    third.ended().ends_with(0).says("all 4096 pages are right");
}

#[test]
fn until_the_switch_over_it_goes_on_here_whatever_happens() {
    if !can_move() {
        return;
    }
    let place = Place::new();
    let tls = certificates(&place, "pages");
    let strange = certificates(&place, "strange");
    let here = demo(&place, &BUSY);
    let waits = |more: &[String]| {
        let listen = [
            "pager",
            "demo-vm",
            "--memory",
            "16M",
            "--listen",
            "tcp:127.0.0.1:0",
        ];
        let there = place.start(tool(&place, &listen, more));
        let to = listens(&there);
        (there, to)
    };

    // Nobody is there.
    let nobody = ask(&place, here.pid(), "unix:nobody", &[], &[])
        .ended()
        .ends_with(1);
    assert!(nobody.message().contains("goes on here"), "{}", nobody.err);

    // Not who it should be.
    let (there, to) = waits(&strange);
    let wrong = ask(&place, here.pid(), &to, &[], &tls).ended().ends_with(1);
    assert!(wrong.message().contains("goes on here"), "{}", wrong.err);
    there.ended().ends_with(1);

    // The other side is killed.
    let (there, to) = waits(&tls);
    let asked = ask(&place, here.pid(), &to, &NEVER, &tls);
    says(&asked, "round 2:");
    there.signal(Signal::KILL);
    let asked = asked.ended().ends_with(1);
    assert!(
        asked
            .message()
            .contains("goes on here, as if nothing had been"),
        "{}",
        asked.err
    );

    // Ctrl-C. The other side is told, and runs nothing.
    let (there, to) = waits(&tls);
    let asked = ask(
        &place,
        here.pid(),
        &to,
        &[&NEVER[..], &["--json"]].concat(),
        &tls,
    );
    says(&asked, "round 2:");
    asked.signal(Signal::INT);
    let asked = asked.ended().ends_with(1);
    assert_eq!(asked.json()["outcome"], "stayed");
    assert!(asked.message().contains("cancelled"), "{}", asked.err);
    let there = there.ended().ends_with(1);
    assert!(
        there.message().contains("goes on by itself: cancelled"),
        "{}",
        there.err
    );

    // Who asked is killed.
    let (there, to) = waits(&tls);
    let asked = ask(&place, here.pid(), &to, &NEVER, &tls);
    says(&asked, "round 2:");
    asked.signal(Signal::KILL);
    there.ended().ends_with(1);

    // Itself is told to end, and does.
    let (there, to) = waits(&tls);
    let asked = ask(&place, here.pid(), &to, &NEVER, &tls);
    says(&asked, "round 2:");
    let ended = is_right(here);
    assert_eq!(ended.err.matches("stays: ").count(), 6, "{}", ended.err);
    asked.ended().ends_with(1);
    there.ended().ends_with(1);
}

#[test]
fn a_source_that_is_lost_afterwards_ends_it_with_clear_words() {
    if !can_move() {
        return;
    }
    // Pages are fetched in moments; the source is killed in the middle of that at one of the tries.
    for _ in 0..20 {
        let place = Place::new();
        let listen = ["pager", "demo-vm", "--memory", "64M", "--timeout", "1"];
        let more = ["--recover", "0", "--listen", "tcp:127.0.0.1:0"];
        let listen = [&listen[..], &more].concat();
        let there = place.start(place.tool(listen));
        let to = listens(&there);
        let here = demo(&place, &["--write-rate", "0", "--memory", "64M"]);
        let asked = ask(
            &place,
            here.pid(),
            &to,
            &["--downtime", "0", "--rounds", "1"],
            &[],
        );
        says(&asked, "it runs at");
        here.signal(Signal::KILL);
        until("all was fetched, or lost", || {
            let said = there.err_so_far();
            (said.contains("--pid") || said.contains("amdahl: ")).then_some(())
        });
        if there.err_so_far().contains("--pid") {
            is_right(there);
            continue;
        }
        let there = there.ended().ends_with(1);
        assert!(
            there
                .message()
                .contains("cannot be had from the source any more"),
            "{}",
            there.err
        );
        let asked = asked.ended().ends_with(1);
        assert!(
            asked.message().contains(&format!("It runs at {to} with")),
            "{}",
            asked.err
        );
        return;
    }
    panic!("it was never in time");
}

#[test]
fn a_destination_that_is_lost_afterwards_leaves_it_standing_with_clear_words() {
    if !can_move() {
        return;
    }
    // As above: the destination is killed while pages are fetched at one of the tries.
    for _ in 0..20 {
        let place = Place::new();
        let listen = ["pager", "demo-vm", "--memory", "64M"];
        let listen = [&listen[..], &["--listen", "tcp:127.0.0.1:0"]].concat();
        let there = place.start(place.tool(listen));
        let to = listens(&there);
        let here = demo(&place, &["--write-rate", "0", "--memory", "64M"]);
        let fast = [
            "--downtime",
            "0",
            "--rounds",
            "1",
            "--timeout",
            "1",
            "--recover",
            "0",
            "--json",
        ];
        let pid = here.pid();
        let asked = ask(&place, pid, &to, &fast, &[]);
        says(&asked, "it runs at");
        there.signal(Signal::KILL);
        let _ = there.ended();
        let (asked, here) = (asked.ended(), here.ended());
        if here.out.contains("moved:") {
            continue;
        }
        let asked = asked.ends_with(1);
        assert_eq!(asked.json()["outcome"], "unknown");
        let stands = format!("Process {pid} stands still");
        for words in [
            &*stands,
            "pages are served until nobody has been connected for 1 s",
        ] {
            assert!(asked.err.contains(words), "{}", asked.err);
        }
        let here = here.ends_with(1);
        for ran in [&asked, &here] {
            let message = ran.message();
            assert!(
                message.contains("whether the destination runs is not known"),
                "{message}"
            );
        }
        return;
    }
    panic!("it was never in time");
}

#[test]
fn who_cannot_be_asked_is_left_alone() {
    let place = Place::new();
    // Some other program.
    let mut other = Command::new("cat");
    other.stdin(Stdio::piped());
    let other = place.start(other);
    let asked = ask(&place, other.pid(), "127.0.0.1:1", &[], &[])
        .ended()
        .ends_with(1);
    assert!(
        asked.message().contains("cannot be asked to move"),
        "{}",
        asked.err
    );
    let nobody = ask(&place, 4_000_000, "127.0.0.1:1", &[], &[])
        .ended()
        .ends_with(1);
    assert!(
        nobody.message().contains("no such process"),
        "{}",
        nobody.err
    );
    for wrong in [
        &["pager", "migrate", "--pid", "1"][..],
        &["pager", "migrate", "--pid", "1", "--listen", "unix:a"],
        &[
            "pager", "migrate", "--pid", "1", "--to", "unix:a", "--memory", "1M",
        ],
        &["pager", "migrate", "--pid", "0", "--to", "unix:a"],
    ] {
        place.amdahl(wrong).ends_with(2);
    }

    // Another user may not ask; the demonstration does not even begin.
    if !crate::tool::is_root() {
        return skipped("other users: not root");
    }
    let demo = demo(&place, &["--memory", "1M"]);
    let pid = demo.pid().to_string();
    let args = ["pager", "migrate", "--pid", &pid, "--to", "unix:nobody"];
    if let Some(ran) = place.amdahl_as_ordinary_user(&args) {
        let ran = ran.ends_with(1);
        assert!(
            ran.message().contains("another user's process"),
            "{}",
            ran.err
        );
    }
    is_right(demo);
}
