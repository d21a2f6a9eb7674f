//! A poller that may open no more files. Alone in its process: the limit is everybody's.

mod common;

use std::process::{Command, Stdio};

use amdahl_probe::unprivileged::{Poller, Scope};
use amdahl_speedup::snapshot::{Snapshot, State};
use common::{Killed, limit};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

fn threads(snapshot: &Snapshot) -> Vec<(u32, State)> {
    let states = snapshot.threads.iter();
    states
        .map(|thread| (thread.tid, thread.state.clone()))
        .collect()
}

#[test]
fn what_cannot_be_read_has_not_ended() {
    let usual = getrlimit(Resource::Nofile).current;
    // With so few no file is kept open.
    limit(Some(64));
    let mut sleeper = Command::new("sleep");
    sleeper.arg("1000").stdin(Stdio::null());
    let mut sleeper = Killed(sleeper.spawn().expect("sleep"));
    let mut poller = Poller::new(Scope {
        root: Some(sleeper.0.id()),
        ..Scope::default()
    })
    .expect("it is alive");
    let before = loop {
        let threads = threads(&poller.poll());
        if matches!(threads[..], [(_, State::Waiting(_))]) {
            break threads;
        }
        std::thread::park_timeout(poller.pause());
    };
    assert_eq!(poller.blindness().unread.why, None);

    limit(Some(0));
    // More than the polls for which a thread that stands still is trusted, and some looks for new ones.
    for _ in 0..50 {
        assert_eq!(threads(&poller.poll()), before);
        std::thread::park_timeout(poller.pause());
    }
    let unread = poller.blindness().unread;
    assert_eq!(unread.why, Some(Errno::MFILE));
    assert!(unread.times >= 50, "{unread:?}");

    limit(usual);
    assert_eq!(threads(&poller.poll()), before);
    assert_eq!(poller.blindness().unread, unread, "all can be read again");
    sleeper.0.kill().expect("it is ours");
    sleeper.0.wait().expect("it is ours");
    while !threads(&poller.poll()).is_empty() {
        std::thread::park_timeout(poller.pause());
    }
    assert_eq!(poller.blindness().unread, unread, "an end is no failure");
}
