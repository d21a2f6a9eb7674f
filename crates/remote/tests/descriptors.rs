//! No descriptors are left: who has a connection goes on, who needs one gets it when there are some again, or is told in time.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use amdahl_pager::{MemorySource, Source, SourceError};
use amdahl_remote::{Connect, Error, Remote, Serve, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PAGE: usize = 4096;

/// Runs a test of this file again as a process of its own, which has the limit to itself. True in that process.
fn is_child(test: &str) -> bool {
    const NAME: &str = "REMOTE_TEST_ALONE";
    if std::env::var_os(NAME).is_some() {
        return true;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(NAME, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{said}", output.status);
    false
}

/// All descriptors that there may be, but for some.
struct Taken {
    files: Vec<File>,
    was: Rlimit,
}

impl Taken {
    fn all_but(left: usize) -> Taken {
        let was = getrlimit(Resource::Nofile);
        let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
        let few = Rlimit {
            current: Some(next + 64),
            ..was
        };
        setrlimit(Resource::Nofile, few).unwrap();
        let mut taken = Taken {
            files: Vec::new(),
            was,
        };
        taken.take_all();
        taken.files.truncate(taken.files.len() - left);
        taken
    }

    fn take_all(&mut self) {
        self.files
            .extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.files.clear();
        setrlimit(Resource::Nofile, self.was).unwrap();
    }
}

fn content() -> Arc<[u8]> {
    (0..64 * PAGE)
        .map(|at| (at * 7 + at / PAGE) as u8)
        .collect()
}

fn serve(content: &Arc<[u8]>) -> Serve {
    let source = MemorySource::of_bytes(content.clone());
    Serve::new(Arc::new(source), content.len() as u64, *b"0123456789abcdef")
}

#[test]
fn a_connection_that_cannot_be_made_again_is_late_and_made_when_it_can() {
    if !is_child("a_connection_that_cannot_be_made_again_is_late_and_made_when_it_can") {
        return;
    }
    let content = content();
    let server = Server::start("127.0.0.1:0", serve(&content)).unwrap();
    let address = server.address().to_string();
    let connect = |timeout| Connect {
        streams: 1,
        timeout,
        ..Connect::new(address.clone())
    };
    let hasty = Remote::connect(connect(Duration::from_millis(300))).unwrap();
    let patient = Remote::connect(connect(Duration::from_secs(60))).unwrap();
    let mut page = [0; PAGE];
    hasty.read(0, &mut page).unwrap();
    // Their connections end, and what they had is taken: a listener, a bell, and for both a socket and a bell there, a socket here.
    let mut taken = Taken::all_but(0);
    let before = taken.files.len();
    drop(server);
    while taken.files.len() < before + 2 + 2 * 3 {
        taken.take_all();
        std::thread::yield_now();
    }
    // Another server is there with the same memory, which has just what it needs; clients that try again may be in its way for a moment.
    taken.files.truncate(before + 2 * 3);
    let _server = std::iter::repeat_with(|| Server::start(&address, serve(&content)))
        .find_map(Result::ok)
        .unwrap();
    assert_eq!(hasty.read(PAGE as u64, &mut page), Err(SourceError::Late));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut page = [0; PAGE];
            patient.read(2 * PAGE as u64, &mut page).map(|()| page)
        });
        drop(taken);
        let page = waiting.join().unwrap().unwrap();
        assert!(page == content[2 * PAGE..3 * PAGE]);
    });
    hasty.read(PAGE as u64, &mut page).unwrap();
    assert!(page == content[PAGE..2 * PAGE]);
}

#[test]
fn a_server_that_can_accept_nobody_serves_those_that_it_has() {
    if !is_child("a_server_that_can_accept_nobody_serves_those_that_it_has") {
        return;
    }
    let content = content();
    let server = Server::start("127.0.0.1:0", serve(&content)).unwrap();
    let connect = |timeout| Connect {
        streams: 1,
        timeout,
        ..Connect::new(server.address().to_string())
    };
    let first = Remote::connect(connect(Duration::from_secs(60))).unwrap();
    let taken = Taken::all_but(1);
    // That one is the client's own end.
    let refused = Remote::connect(connect(Duration::from_millis(300)));
    assert!(matches!(refused, Err(Error::Io(_))), "{:?}", refused.err());
    let mut page = [0; PAGE];
    first.read(5 * PAGE as u64, &mut page).unwrap();
    assert!(page == content[5 * PAGE..6 * PAGE]);
    drop(taken);
    let second = Remote::connect(connect(Duration::from_secs(60))).unwrap();
    second.read(6 * PAGE as u64, &mut page).unwrap();
    assert!(page == content[6 * PAGE..7 * PAGE]);
}
