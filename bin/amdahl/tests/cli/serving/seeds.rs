//! `amdahl pager serve --image tcp:`, whose pages come from another daemon by answers that are late, out of order, doubled, damaged or cut, over a way that is cut at any byte: a VM has the
//! right memory, or is stopped and its owner told. `AMDAHL_SEEDS=N` runs as many seeds, `AMDAHL_SEED=N` that one.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use super::vmm::{Vmm, is_possible};
use super::{Daemon, PAGES, whole_sum, with_image};
use crate::mischief::gate::{Cut, Gate, Shut};
use crate::mischief::{Done, Mischief, Random, Unruly, run_seeds_by};
use crate::tool::{Place, skipped, until};

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// All that went wrong passed.
    Right,
    /// A page is damaged on each way.
    Damaged,
    /// The other daemon is there no more.
    Gone,
}

/// Seeds of each fate that ended so; answers that had something happen to them, and connections.
static HAPPENED: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

fn add(what: usize, many: u64) {
    HAPPENED[what].fetch_add(many, Ordering::SeqCst);
}

/// A daemon that has found its image: the first words may be cut, which it says. `None`: nobody is there any more.
fn serving(place: &Place, image: &str, timeout: &str, done: &Done) -> Option<Daemon> {
    let args = ["pager", "serve", "--image", image, "--json"];
    let more = ["--listen", "unix:pager.sock", "--read-timeout", timeout];
    until("the image is found", || {
        let daemon = Daemon(place.start(place.tool(args.iter().chain(&more))));
        let is_there = until("it listens, or says why not", || {
            let listens = daemon.0.out_so_far().contains("\"listening\"");
            let ends = daemon.0.err_so_far().contains("amdahl: ");
            (listens || ends).then_some(listens)
        });
        let is_over = done.is_over.load(Ordering::SeqCst);
        (is_there || is_over).then(|| is_there.then_some(daemon))
    })
}

fn seed_of_serving(seed: u64, there: SocketAddr, right: &str) {
    let mut random = Random::of_seed(seed);
    let mut often = |most: u64| random.often(most);
    let mut mischief = Mischief {
        held: often(500),
        damaged: often(80),
        // Each ends a connection, and the pauses between them grow up to a second.
        doubled: often(8),
        misled: often(6),
        cut: often(6),
        ..Mischief::default()
    };
    let fate = match seed % 6 {
        0 => Fate::Damaged,
        1 => Fate::Gone,
        _ => Fate::Right,
    };
    match fate {
        Fate::Right => {}
        // One that is not zeros, which nobody asks for.
        Fate::Damaged => mischief.bad_page = Some(15 * random.below(PAGES as u64 / 15)),
        Fate::Gone => mischief.end = Some(3 + random.below(30)),
    }
    let unruly = Unruly::new("127.0.0.1:0", there, false, mischief, seed);
    let gate = Gate::new("127.0.0.1:0", unruly.address);
    let cuts = (0..random.below(3)).map(|_| Cut {
        how: match random.below(2) {
            0 => Shut::Silent,
            _ => Shut::Refusing,
        },
        // Of the greeting, of what comes first, of anything.
        after: match random.below(3) {
            0 => random.below(100),
            1 => random.below(10_000),
            _ => random.below(4 << 20),
        },
        lasts: Some(Duration::from_millis(random.below(300))),
    });
    let mut cuts: Vec<Cut> = cuts.collect();
    cuts.sort_by_key(|cut| u64::MAX - cut.after);
    gate.cut(cuts);

    let place = Place::new();
    let image = format!("tcp:{}", gate.address);
    let timeout = if fate == Fate::Gone { "1" } else { "100" };
    let Some(daemon) = serving(&place, &image, timeout, &unruly.done) else {
        assert_eq!(fate, Fate::Gone, "seed {seed}: it cannot be served");
        return add(2, 1);
    };
    if fate != Fate::Right && daemon.event("listening")["can_poison"] != true {
        return skipped("this kernel cannot poison pages");
    }
    let mut vmm = Vmm::whole(&place);
    vmm.0.say("touch 3");
    let is_lost = until("all is touched, or something is lost", || {
        let answer = vmm.0.out_so_far();
        let touched = answer
            .split_inclusive('\n')
            .find_map(|line| line.strip_prefix("> touched ")?.strip_suffix('\n'));
        if let Some(sum) = touched {
            assert_eq!(format!("touched {sum}"), right, "seed {seed}");
            return Some(false);
        }
        let mut lines = daemon.lines().into_iter();
        lines.any(|line| line["event"] == "lost").then_some(true)
    });
    match fate {
        Fate::Right => assert!(!is_lost, "seed {seed}: {}", daemon.0.out_so_far()),
        Fate::Damaged => assert!(is_lost, "seed {seed}"),
        // All may be there before.
        Fate::Gone => {}
    }
    if is_lost {
        let ran = vmm.0.ended();
        let signal = ran.status.signal();
        assert_eq!(signal, Some(Signal::BUS.as_raw()), "seed {seed}: {ran:?}");
        daemon.ends(if fate == Fate::Damaged { 7 } else { 1 });
    } else {
        daemon.ends(0);
    }
    add(fate as usize, 1);
    let done = &unruly.done;
    let answers = [&done.held, &done.doubled, &done.damaged, &done.broken];
    add(
        3,
        answers.iter().map(|many| many.load(Ordering::SeqCst)).sum(),
    );
    add(4, gate.happened());
}

#[test]
fn whatever_becomes_of_the_way_a_vm_has_its_memory_or_is_stopped() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let right: Arc<str> = whole_sum(&with_image(&place)).into();
    // Without holes, so that zeros are looked for.
    let there = Daemon::listens(&place, "vm.mem", "tcp:127.0.0.1:0", &[]);
    let listening = there.event("listening");
    let address = listening["listen"].as_str().expect("text");
    let address = address.strip_prefix("tcp:").expect("of TCP");
    let address = address.parse().expect("an address");
    let seed = move |seed| seed_of_serving(seed, address, &right);
    let count = run_seeds_by(8, "whatever_becomes_of_the_way", 36, seed);
    let happened = HAPPENED.each_ref().map(|many| many.load(Ordering::SeqCst));
    println!("{count} seeds: right, damaged, gone, answers, connections: {happened:?}");
    // What has not happened was not tested.
    if count >= 36 {
        assert!(happened.iter().all(|many| *many > 4), "{happened:?}");
    }
    // Whoever asked it, it goes on, and says that connections have failed.
    there.ends(0);
}
