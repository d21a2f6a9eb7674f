//! What both sides promise while everything works, and whom they refuse.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use amdahl_pager::{Extent, FileSource, Source, SourceError};
use amdahl_remote::{Connect, Credentials, Error, Identity, Remote, Secret, Serve, Server};
use proptest::prelude::*;

const BLOCK: usize = 2 << 20;
const IDENTITY: Identity = *b"a certain memory";

/// Memory whose zero pages are told.
struct Memory(Vec<u8>);

impl Source for Memory {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let end = self.0.len() as u64;
        let from = self.0.get(offset as usize..).unwrap_or_default();
        let from = from.get(..into.len()).ok_or(SourceError::Short { end })?;
        into.copy_from_slice(from);
        Ok(())
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        let rest = &self.0[(offset as usize).min(self.0.len())..];
        let page = |at: usize| &rest[at..rest.len().min(at + 4096)];
        let is_zero = page(0).iter().all(|&byte| byte == 0);
        let mut end = 4096;
        while end < rest.len() && page(end).iter().all(|&byte| byte == 0) == is_zero {
            end += 4096;
        }
        Extent {
            len: len.min(end as u64),
            is_zero,
        }
    }
}

/// Content in which a page of every three, and the second huge page, are zero.
fn content(len: usize) -> Vec<u8> {
    let byte = |at: usize| match at / 4096 % 3 == 1 || at / BLOCK == 1 {
        true => 0,
        false => (at * 31 + at / 4096) as u8 | 1,
    };
    (0..len).map(byte).collect()
}

fn serve(content: &[u8]) -> Serve {
    Serve::new(
        Arc::new(Memory(content.to_vec())),
        content.len() as u64,
        IDENTITY,
    )
}

fn connect(server: &Server) -> Connect {
    Connect::new(server.address().to_string())
}

#[test]
fn every_byte_comes_whatever_is_asked_for() {
    let content = content(3 * BLOCK + 5 * 4096);
    let server = Server::start("127.0.0.1:0", serve(&content)).unwrap();
    let remote = Remote::connect(connect(&server)).unwrap();
    assert_eq!(
        (remote.len(), remote.identity()),
        (content.len() as u64, IDENTITY)
    );
    proptest!(|(at in 0..content.len(), len in 1..BLOCK + 4096, ahead: bool)| {
        let len = len.min(content.len() - at);
        let mut into = vec![9; len];
        let read = if ahead { Remote::read_ahead } else { Remote::read };
        prop_assert_eq!(read(&remote, at as u64, &mut into), Ok(()));
        prop_assert!(into == content[at..at + len]);
    });
    assert_eq!(server.stats().refused, 0);
}

#[test]
fn threads_share_the_connections() {
    let content = content(8 * BLOCK);
    let server = Server::start("127.0.0.1:0", serve(&content)).unwrap();
    for streams in [1, 2, 5] {
        let remote = Remote::connect(Connect {
            streams,
            ..connect(&server)
        })
        .unwrap();
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let (remote, content) = (&remote, &content);
                scope.spawn(move || {
                    for turn in 0..40 {
                        let at = (thread * 97 + turn * 31) % (8 * 512 - 64) * 4096;
                        let mut into = vec![0; if turn % 4 == 0 { 64 * 4096 } else { 4096 }];
                        match turn % 2 {
                            0 => remote.read_ahead(at as u64, &mut into).unwrap(),
                            _ => remote.read(at as u64, &mut into).unwrap(),
                        }
                        assert!(into == content[at..at + into.len()]);
                    }
                });
            }
        });
        assert_eq!(remote.stats().repeated, 0);
    }
}

#[test]
fn zeros_are_not_sent_and_empty_huge_pages_not_asked_for() {
    let content = content(4 * BLOCK);
    let server = Server::start("127.0.0.1:0", serve(&content)).unwrap();
    let remote = Remote::connect(connect(&server)).unwrap();
    let whole = 4 * BLOCK as u64;
    assert_eq!(
        remote.extent(0, whole),
        Extent {
            len: BLOCK as u64,
            is_zero: false
        }
    );
    assert_eq!(
        remote.extent(BLOCK as u64, whole),
        Extent {
            len: BLOCK as u64,
            is_zero: true
        }
    );
    assert_eq!(
        remote.extent(BLOCK as u64 + 4096, 4096),
        Extent {
            len: 4096,
            is_zero: true
        }
    );
    assert_eq!(
        remote.extent(2 * BLOCK as u64, whole),
        Extent {
            len: 2 * BLOCK as u64,
            is_zero: false
        }
    );

    let before = server.stats().bytes;
    remote.read(0, &mut vec![0; BLOCK]).unwrap();
    let stored = content[..BLOCK]
        .chunks(4096)
        .filter(|page| page[0] != 0)
        .count()
        * 4096;
    // Counted once it is sent, and its reader may have it before.
    let sent = || (server.stats().bytes - before) as usize;
    while sent() < stored {
        thread::yield_now();
    }
    assert!(
        sent() < stored + BLOCK / 256,
        "{} bytes for {stored}",
        sent()
    );
}

/// Only what the source knew to be zeros was left out: of a raw file, holes.
#[test]
fn zeros_of_a_dense_file_are_not_sent() {
    let content = content(4 * BLOCK);
    let file = tempfile::tempfile().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &content, 0).unwrap();
    let source = FileSource::of(file).unwrap();
    let known = source.extent(0, content.len() as u64);
    if known.is_zero || known.len < content.len() as u64 {
        println!("SKIPPED: this file system makes holes by itself");
        return;
    }
    let serve = Serve::new(Arc::new(source), content.len() as u64, IDENTITY);
    let server = Server::start("127.0.0.1:0", serve).unwrap();
    let stored = |range: std::ops::Range<usize>| {
        // No page begins with a zero that is not all zeros.
        range.filter(|at| content[at / 4096 * 4096] != 0).count()
    };
    // Bytes beside those that had to be sent.
    let over = |range: std::ops::Range<usize>| {
        let before = server.stats().bytes;
        let mut into = vec![9; range.len()];
        let remote = Remote::connect(connect(&server)).unwrap();
        remote.read(range.start as u64, &mut into).unwrap();
        assert!(into == content[range.clone()], "{range:?}");
        drop(remote);
        // All is counted when the connections have ended.
        while server.stats().connections > 0 {
            thread::yield_now();
        }
        let sent = (server.stats().bytes - before) as usize;
        sent.checked_sub(stored(range)).expect("all that is stored")
    };
    // What remains is the map, heads and runs.
    let more = over(0..content.len());
    assert!(more < content.len() / 256, "{more}");
    // A huge page of zeros, and a page of them.
    let more = over(BLOCK..2 * BLOCK);
    assert!(more < 1024, "{more}");
    let more = over(4096..2 * 4096);
    assert!(more < 128, "{more}");
    // Pages are those of the memory, wherever a request begins and ends: at both ends of this one is a part of a page of zeros.
    let more = over(4096 + 100..5 * 4096 - 7);
    assert!(more < 128, "{more}");
}

#[test]
fn nothing_behind_the_end_is_served_or_zero() {
    let content = content(3 * BLOCK);
    // Less than the source has, and no whole page.
    let len = BLOCK as u64 + 4096 * 7 + 5;
    let serve = Serve {
        len,
        ..serve(&content)
    };
    let server = Server::start("127.0.0.1:0", serve).unwrap();
    let remote = Remote::connect(connect(&server)).unwrap();
    let last = len / 4096 * 4096;
    assert_eq!(remote.read(last, &mut [0; 4096]), Ok(()));
    for offset in [last + 4096, 2 * BLOCK as u64, 1 << 40] {
        let mut page = [0; 4096];
        assert!(
            matches!(
                remote.read(offset, &mut page),
                Err(SourceError::Short { .. })
            ),
            "{offset}"
        );
        assert!(!remote.extent(offset, 4096).is_zero, "{offset}");
    }
    // The second huge page is zero; it ends with the memory.
    let rest = remote.extent(BLOCK as u64, 1 << 40);
    assert_eq!(
        rest,
        Extent {
            len: last + 4096 - BLOCK as u64,
            is_zero: true
        }
    );
}

#[test]
fn the_working_set_is_told_in_its_order() {
    let content = content(64 * BLOCK);
    let pages = content.len() as u64 / 4096;
    // More than one request asks for.
    let many = (0..3 * 4096 + 7).map(|at| (at * 31 + 5) % pages);
    let many: Vec<(u64, u64)> = many.map(|page| (page, page + 1)).collect();
    for (set, is_possible) in [
        (&[][..], true),
        (&[(7, 9), (3, 4), (pages - 1, pages)], true),
        (&[(0, pages)], true),
        (&many, true),
        (&[(3, 4), (pages, pages + 1)], false),
        (&[(0, pages), (0, 1)], false),
        (&[(5, 5)], false),
    ] {
        let set: Vec<_> = set.iter().map(|&(first, end)| first..end).collect();
        let serve = Serve {
            working_set: set.as_slice().into(),
            ..serve(&content)
        };
        let server = Server::start("127.0.0.1:0", serve).unwrap();
        match (Remote::connect(connect(&server)), is_possible) {
            (Ok(remote), true) => {
                assert!(remote.working_set() == set);
                let mut page = [0; 4096];
                assert_eq!(remote.read(4096 * 2, &mut page), Ok(()));
            }
            (Err(Error::Wire(_)), false) => {}
            (connected, _) => panic!("{:?}", connected.err()),
        }
    }
}

#[test]
fn what_the_source_says_is_told() {
    struct Bad;
    impl Source for Bad {
        fn read(&self, offset: u64, _: &mut [u8]) -> Result<(), SourceError> {
            match offset / 4096 {
                0 => Err(SourceError::Corrupt("this page")),
                1 => Err(SourceError::Gone("the disk")),
                2 => panic!("a defect of the source"),
                _ => Ok(()),
            }
        }
    }
    let serve = Serve {
        workers: 1,
        ..Serve::new(Arc::new(Bad), 1 << 20, IDENTITY)
    };
    let server = Server::start("127.0.0.1:0", serve).unwrap();
    let remote = Remote::connect(connect(&server)).unwrap();
    let mut page = [0; 4096];
    assert!(matches!(
        remote.read(0, &mut page),
        Err(SourceError::Corrupt(_))
    ));
    assert!(matches!(
        remote.read(4096, &mut page),
        Err(SourceError::Gone(_))
    ));
    assert!(matches!(
        remote.read(8192, &mut page),
        Err(SourceError::Gone(_))
    ));
    // The only worker is still there.
    assert_eq!(remote.read(12288, &mut page), Ok(()));
    assert_eq!(server.stats().refused, 3);
}

#[test]
fn urgent_pages_overtake_what_nobody_waits_for() {
    use std::sync::Mutex;
    use std::sync::mpsc;
    /// Reads when it is allowed to, and remembers in which order.
    struct Held(Mutex<mpsc::Receiver<()>>, Mutex<Vec<u64>>);
    impl Source for Held {
        fn read(&self, offset: u64, _: &mut [u8]) -> Result<(), SourceError> {
            self.0.lock().unwrap().recv().unwrap();
            self.1.lock().unwrap().push(offset / 4096);
            Ok(())
        }
    }
    let (go, held) = mpsc::channel();
    let held = Arc::new(Held(Mutex::new(held), Mutex::default()));
    let serve = Serve {
        workers: 1,
        ..Serve::new(held.clone(), 1 << 20, IDENTITY)
    };
    let server = Server::start("127.0.0.1:0", serve).unwrap();
    let remote = Remote::connect(Connect {
        streams: 2,
        ..connect(&server)
    })
    .unwrap();
    let wait_for = |sent: u64| {
        while server.stats().received < sent {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        for page in 0..8 {
            let remote = &remote;
            scope.spawn(move || remote.read_ahead(page * 4096, &mut [0; 4096]).unwrap());
        }
        // One of them tells how much there is.
        wait_for(1 + 8);
        let urgent = scope.spawn(|| remote.read(100 * 4096, &mut [0; 4096]).unwrap());
        wait_for(1 + 9);
        // One that is being read, and perhaps another that the worker took before the urgent one came, may go first.
        for _ in 0..3 {
            go.send(()).unwrap();
        }
        urgent.join().unwrap();
        for _ in 0..6 {
            go.send(()).unwrap();
        }
    });
    let order = held.1.lock().unwrap();
    let place = order.iter().position(|&page| page == 100).unwrap();
    assert!(place <= 2, "{order:?}");
}

// --- whom ----------------------------------------------------------------------------

fn credentials(folder: &Path, name: &str) -> Credentials {
    let files = amdahl_test_certificates::make(folder, name).unwrap();
    Credentials {
        certificates: files.certificate,
        key: files.key,
        authorities: files.authority,
    }
}

#[test]
fn with_tls_both_sides_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (
        credentials(folder.path(), "ours"),
        credentials(folder.path(), "theirs"),
    );
    let content = content(2 * BLOCK);
    let serve = Serve {
        credentials: Some(ours.clone()),
        timeout: Duration::from_secs(5),
        ..serve(&content)
    };
    let server = Server::start("127.0.0.1:0", serve).unwrap();
    let with = |credentials: Option<Credentials>, name: Option<&str>| Connect {
        credentials,
        name: name.map(str::to_owned),
        timeout: Duration::from_secs(5),
        ..connect(&server)
    };

    let remote = Remote::connect(with(Some(ours.clone()), None)).unwrap();
    let mut into = vec![0; BLOCK];
    remote.read(4096, &mut into).unwrap();
    assert!(into == content[4096..4096 + BLOCK]);
    assert!(Remote::connect(with(Some(ours.clone()), Some("pages.test"))).is_ok());

    // We do not trust who serves.
    let who = Credentials {
        authorities: theirs.authorities.clone(),
        ..ours.clone()
    };
    assert!(Remote::connect(with(Some(who), None)).is_err());
    // It does not trust us.
    let who = Credentials {
        authorities: ours.authorities.clone(),
        ..theirs
    };
    assert!(Remote::connect(with(Some(who), None)).is_err());
    // It is not who we want.
    assert!(Remote::connect(with(Some(ours.clone()), Some("other.test"))).is_err());
    // We do not speak TLS: no byte of the memory is told, not even its length.
    assert!(Remote::connect(with(None, None)).is_err());
    // It still serves.
    assert!(Remote::connect(with(Some(ours), None)).is_ok());
}

/// A certificate that was renewed was used after a restart only, so the first one ended with all connections that were made later.
#[test]
fn files_that_are_replaced_are_used_for_the_next_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (
        credentials(folder.path(), "old"),
        credentials(folder.path(), "new"),
    );
    let used = Credentials {
        certificates: folder.path().join("used.pem"),
        key: folder.path().join("used.key"),
        authorities: folder.path().join("used-ca.pem"),
    };
    let replace = |from: &Path, to: &Path| {
        let beside = folder.path().join("beside");
        fs::copy(from, &beside).unwrap();
        fs::rename(&beside, to).unwrap();
    };
    replace(&old.certificates, &used.certificates);
    replace(&old.key, &used.key);
    replace(&old.authorities, &used.authorities);
    let serve = Serve {
        credentials: Some(used.clone()),
        timeout: Duration::from_secs(5),
        ..serve(&content(BLOCK))
    };
    let server = Server::start("127.0.0.1:0", serve).unwrap();
    let may_connect = |credentials: &Credentials| {
        let with = Connect {
            credentials: Some(credentials.clone()),
            timeout: Duration::from_secs(5),
            ..connect(&server)
        };
        Remote::connect(with).is_ok()
    };
    assert!(may_connect(&old) && !may_connect(&new));
    assert_eq!(server.take_trouble(), None);
    // Its key is not there yet.
    replace(&new.certificates, &used.certificates);
    assert!(may_connect(&old) && !may_connect(&new));
    let trouble = server.take_trouble().unwrap();
    assert!(trouble.contains("cannot be used"), "{trouble}");
    // Once, not for each connection.
    assert!(may_connect(&old));
    assert_eq!(server.take_trouble(), None);
    fs::remove_file(&used.key).unwrap();
    assert!(may_connect(&old));
    let trouble = server.take_trouble().unwrap();
    assert!(trouble.contains("used.key"), "{trouble}");
    replace(&new.key, &used.key);
    replace(&new.authorities, &used.authorities);
    assert!(!may_connect(&old) && may_connect(&new));
    assert_eq!(server.take_trouble(), None);
}

#[test]
fn without_tls_only_this_host_is_served() {
    let content = content(BLOCK);
    for address in ["0.0.0.0:0", "[::]:0"] {
        assert!(
            matches!(Server::start(address, serve(&content)), Err(Error::Open(_))),
            "{address}"
        );
    }
}

#[test]
fn files_that_are_no_credentials_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let right = credentials(folder.path(), "right");
    let empty = folder.path().join("empty.pem");
    fs::write(&empty, "").unwrap();
    let missing = folder.path().join("missing.pem");
    let cases = [
        Credentials {
            certificates: empty.clone(),
            ..right.clone()
        },
        Credentials {
            key: right.certificates.clone(),
            ..right.clone()
        },
        Credentials {
            authorities: missing,
            ..right.clone()
        },
    ];
    for case in cases {
        let serve = Serve {
            credentials: Some(case),
            ..serve(&content(BLOCK))
        };
        let error = Server::start("127.0.0.1:0", serve).err().unwrap();
        assert!(matches!(&error, Error::Credentials { .. }), "{error}");
        assert!(error.to_string().contains(".pem: "), "{error}");
    }
}

#[test]
fn who_says_nothing_right_is_let_go_and_harms_nobody() {
    use std::io::{Read, Write};
    let content = content(BLOCK);
    let server = Server::start("127.0.0.1:0", serve(&content)).unwrap();
    let remote = Remote::connect(Connect {
        streams: 1,
        ..connect(&server)
    })
    .unwrap();
    for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64]] {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.write_all(said).unwrap();
        // It is told nothing.
        let mut told = Vec::new();
        let _ = socket.read_to_end(&mut told);
        assert!(told.is_empty(), "{told:?}");
    }
    while server.stats().connections > 1 {
        std::thread::yield_now();
    }
    assert_eq!(server.stats().failed, 2);
    assert_eq!(remote.read(0, &mut [0; 4096]), Ok(()));
}

#[test]
fn who_does_not_know_the_secret_is_told_nothing() {
    use std::io::{Read, Write};
    let content = content(BLOCK);
    let secret = Secret([7; 32]);
    let served = Serve {
        secret: Some(secret),
        ..serve(&content)
    };
    let server = Server::start("127.0.0.1:0", served).unwrap();
    let knows = Connect {
        secret: Some(secret),
        ..connect(&server)
    };
    let remote = Remote::connect(knows.clone()).unwrap();
    let mut page = [0; 4096];
    remote.read(0, &mut page).unwrap();
    assert_eq!(page[..], content[..4096]);
    for nth in [0, 17, 31] {
        let mut wrong = secret;
        wrong.0[nth] ^= 1;
        let guesses = Connect {
            secret: Some(wrong),
            ..knows.clone()
        };
        assert!(Remote::connect(guesses).is_err(), "{nth}");
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.write_all(&amdahl_remote::wire::hello()).unwrap();
        socket
            .write_all(&amdahl_remote::wire::show(&wrong))
            .unwrap();
        let mut told = Vec::new();
        let _ = socket.read_to_end(&mut told);
        assert!(told.is_empty(), "{told:?}");
    }
    // Nor does the server that wants none take one for something else.
    let open = Server::start("127.0.0.1:0", serve(&content)).unwrap();
    let shows = Connect {
        secret: Some(secret),
        ..connect(&open)
    };
    assert!(Remote::connect(shows).is_err());
}

#[test]
fn a_server_that_has_finished_reads_nothing_any_more() {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    struct Slow(
        Mutex<(Sender<()>, Receiver<()>)>,
        std::sync::atomic::AtomicBool,
    );
    impl Source for Slow {
        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
            let ends = self.0.lock().unwrap();
            let _ = ends.0.send(());
            let _ = ends.1.recv();
            self.1.store(true, std::sync::atomic::Ordering::SeqCst);
            into.fill(1);
            Ok(())
        }

        fn extent(&self, _: u64, len: u64) -> Extent {
            Extent {
                len,
                is_zero: false,
            }
        }
    }
    let ((begins, has_begun), (go, goes)) = (channel(), channel());
    let source = Arc::new(Slow(Mutex::new((begins, goes)), false.into()));
    let serve = Serve::new(source.clone(), BLOCK as u64, IDENTITY);
    let server = Server::start("127.0.0.1:0", serve).unwrap();
    let hasty = Connect {
        timeout: Duration::from_secs(1),
        ..connect(&server)
    };
    let remote = Remote::connect(hasty).unwrap();
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| remote.read(0, &mut [0; 4096]));
        has_begun.recv().unwrap();
        let ends = scope.spawn(|| {
            server.finish();
            assert!(source.1.load(std::sync::atomic::Ordering::SeqCst));
        });
        // Whoever asks again is let through.
        go.send(()).unwrap();
        drop(go);
        ends.join().unwrap();
        let _ = reads.join();
    });
}
