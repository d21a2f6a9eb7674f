//! A sampler that may open too few files. Alone in its process: the limit is everybody's.

mod common;

use std::process::Command;

use amdahl_probe::perf::{Counter, Rate, Sampler, View};
use common::{Killed, limit};
use rustix::process::{Resource, getrlimit};

/// Events of page faults that could not be opened were taken for ones that the machine does not have.
#[test]
fn what_there_are_no_descriptors_for_is_told() {
    if let Err(error) = View::allowed() {
        println!("SKIPPED: samples: perf events cannot be used ({error})");
        return;
    }
    let sleeper = Killed(Command::new("sleep").arg("1000").spawn().expect("sleep"));
    let cpus: Vec<u32> = amdahl_topology::allowed().expect("CPUs").iter().collect();
    let rate = Rate {
        hz: 99,
        clock_hz: 1_000_000_000,
    };
    // Of user code alone page faults have events of their own.
    let open = || Sampler::of_running(&[sleeper.0.id()], &cpus, View::User, rate);
    let all = open().expect("enough descriptors");
    assert!(all.left_out().is_empty(), "{:?}", all.left_out());
    drop(all);

    let usual = getrlimit(Resource::Nofile).current;
    // One descriptor more each time: the first that suffices for the time is too low for more.
    let mut files = 3;
    let few = loop {
        limit(Some(files));
        let opened = open();
        limit(usual);
        match opened {
            Ok(sampler) => break sampler,
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}"),
        }
        files += 1;
    };
    let faults = few
        .left_out()
        .iter()
        .find(|left| left.counter == Counter::PageFaults);
    let faults = faults.expect("no event of page faults");
    assert_eq!(faults.error.raw_os_error(), Some(libc::EMFILE));
}
