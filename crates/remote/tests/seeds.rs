//! A pager whose pages come from another host, by answers that are late, out of order, doubled, damaged or cut, from a source that errs or goes away: right memory, or a
//! clear stop that names the page. `AMDAHL_SEEDS=N` runs as many seeds, `AMDAHL_SEED=N` that one.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use amdahl_pager::{
    Background, Backing, CleanPages, Engine, Event, Loss, Mapping, PAGE, Pager, Source,
    SourceError, Support,
};
use amdahl_remote::{Connect, Remote, Serve, Server};
use common::gate::{Cut, Gate, Shut};
use common::{Mischief, Random, Unruly, run_seeds, run_seeds_by};

const PAGES: usize = 1200;

fn byte(page: usize) -> u8 {
    (page * 7 + page / 256) as u8 | 1
}

/// Errs as its seed says.
struct Erring {
    permille: u64,
    seed: u64,
    reads: AtomicU64,
    /// That is damaged where it is stored.
    bad: Option<usize>,
}

impl Source for Erring {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let read = self.reads.fetch_add(1, Ordering::SeqCst);
        let mut random = Random(self.seed ^ read << 20);
        random.below(2);
        if random.below(1000) < self.permille {
            into.fill(0xee);
            let errno = rustix::io::Errno::IO;
            let operation = "as the test wants it";
            return Err(SourceError::Io { operation, errno });
        }
        for (nth, bytes) in into.chunks_mut(PAGE).enumerate() {
            let page = offset as usize / PAGE + nth;
            if self.bad == Some(page) {
                return Err(SourceError::Corrupt("this page"));
            }
            bytes.fill(byte(page));
        }
        Ok(())
    }
}

/// Has the kernel read a page: `None` where a thread would be stopped by a signal.
fn peek(memory: &Mapping, page: usize) -> Option<[u8; PAGE]> {
    let (mut to, mut from) = UnixStream::pair().unwrap();
    let at = memory.as_ptr().wrapping_add(page * PAGE);
    // SAFETY: within the mapping; nobody but the kernel reads it, and only this test's source writes to it.
    let bytes = unsafe { std::slice::from_raw_parts(at, PAGE) };
    match to.write(bytes) {
        Ok(PAGE) => {}
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::FAULT.raw_os_error()) => {
            return None;
        }
        other => panic!("page {page}: {other:?}"),
    }
    let mut found = [0; PAGE];
    from.read_exact(&mut found).unwrap();
    Some(found)
}

fn is_possible() -> bool {
    let support = Support::probe();
    if support.way.is_none() {
        println!("SKIPPED: {support}");
    }
    support.way.is_some()
}

fn seed_of_answers(seed: u64) {
    let mut random = Random::of_seed(seed);
    let mut often = |most: u64| random.often(most);
    let mut mischief = Mischief {
        held: often(700),
        doubled: often(80),
        damaged: often(100),
        misled: often(40),
        cut: often(60),
        ..Mischief::default()
    };
    let errs = often(15);
    // A third of them end in a stop: in one way each.
    let (mut bad, mut page) = (None, None);
    match seed % 9 {
        0 => mischief.bad_page = Some(random.below(PAGES as u64)),
        1 => bad = Some(random.below(PAGES as u64) as usize),
        2 => mischief.end = Some(1 + random.below(60)),
        // Costs as long as a connection may be silent.
        3 if seed % 90 == 3 => mischief.silenced = 10,
        _ => {}
    }
    page = page.or(bad).or(mischief.bad_page.map(|page| page as usize));
    // What the last try meets is what is told: of a bad page always the same.
    let errs = if page.is_some() { 0 } else { errs };
    let source = Erring {
        permille: errs,
        seed,
        reads: AtomicU64::new(0),
        bad,
    };
    let len = (PAGES * PAGE) as u64;
    let serve = Serve::new(Arc::new(source), len, *b"0123456789abcdef");
    let server = Server::start("127.0.0.1:0", serve).unwrap();
    let unruly = Unruly::new("127.0.0.1:0", server.address(), false, mischief, seed);
    // Where nobody is there any more the time is over soon; elsewhere a busy machine has more than enough.
    let timeout = Duration::from_millis(if mischief.end.is_some() { 150 } else { 20_000 });
    let connect = Connect {
        streams: 1 + random.below(4) as usize,
        timeout,
        // What another length in a head does to a connection is this long: a third of the timeout, and a page that meets it three times would be lost rightly.
        silence: mischief.end.is_none().then(|| timeout / 20),
        ..Connect::new(unruly.address.to_string())
    };
    // The first words may be cut: its caller is told, and tries again.
    let remote = (0..50).find_map(|_| Remote::connect(connect.clone()).ok());
    let Some(remote) = remote else {
        assert!(
            mischief.end.is_some(),
            "seed {seed}: it cannot be connected to"
        );
        return;
    };
    let remote = Arc::new(remote);
    let memory = Mapping::new(PAGES * PAGE, Backing::Small).unwrap();
    let memory = Arc::new(memory);
    let engine = match random.below(2) {
        0 => Engine::Reader,
        _ => Engine::Sharded,
    };
    let builder = Pager::builder()
        .mapping(&memory, 0)
        .engine(engine)
        .window(PAGE << random.below(10))
        .workers(2)
        .timeout(2 * timeout)
        .background(match random.below(3) {
            0 => Background::Off,
            _ => Background::Unlimited,
        });
    let builder = match random.below(3) {
        0 => {
            let clean = CleanPages::new(remote.clone(), len)
                .unwrap()
                .timeout(timeout);
            builder.source(Arc::new(clean))
        }
        _ => builder.source(remote.clone()),
    };
    let pager = builder.start().unwrap();
    thread::scope(|scope| {
        for thread in 0..3 {
            let (memory, mut random) = (&memory, random.clone());
            random.below(2 + thread);
            scope.spawn(move || {
                for nth in 0..40 {
                    let page = match thread {
                        0 => nth as usize * 9,
                        _ => random.below(PAGES as u64) as usize,
                    };
                    match peek(memory, page) {
                        Some(found) => {
                            assert!(found == [byte(page); PAGE], "seed {seed}: page {page}");
                        }
                        // Each takes as long.
                        None if mischief.end.is_some() => return,
                        None => {}
                    }
                }
            });
        }
    });
    // Whoever touches the bad one is stopped, and told which it was.
    if let Some(page) = page {
        assert!(peek(&memory, page).is_none(), "seed {seed}: page {page}");
    }
    let mut lost = vec![false; PAGES];
    let mut events = Vec::new();
    while let Some(event) = pager.next_event(Duration::ZERO) {
        if let Event::Lost { page, pages, why } = event {
            lost[page..page + pages].fill(true);
            events.push((page, pages, why));
        }
    }
    match (page, mischief.end) {
        (Some(page), _) => {
            let is_named = |event: &(usize, usize, Loss)| {
                let is_damage = matches!(event.2, Loss::Source(SourceError::Corrupt(_)));
                event.0 == page && event.1 == 1 && is_damage
            };
            assert!(events.iter().all(is_named), "seed {seed}: {events:?}");
            assert_eq!(events.len(), 1, "seed {seed}");
        }
        (None, Some(_)) => {}
        // All that went wrong passed.
        (None, None) => assert!(events.is_empty(), "seed {seed}: {events:?}"),
    }
    let (_, missing) = pager.finish();
    let mut gone = 0;
    for (page, is_lost) in lost.iter().enumerate() {
        match peek(&memory, page) {
            Some(found) => assert!(
                found == [byte(page); PAGE] && !is_lost,
                "seed {seed}: page {page}"
            ),
            None => gone += u64::from(!is_lost),
        }
    }
    // Where it ends, what came at the last moment, out of clean pages say, was counted as missing before.
    if mischief.end.is_none() {
        assert_eq!((missing, gone), (0, 0), "seed {seed}");
    }
    let done = &unruly.done;
    HAPPENED[0].fetch_add(done.held.load(Ordering::SeqCst), Ordering::SeqCst);
    HAPPENED[1].fetch_add(done.overtaken.load(Ordering::SeqCst), Ordering::SeqCst);
    HAPPENED[2].fetch_add(done.doubled.load(Ordering::SeqCst), Ordering::SeqCst);
    HAPPENED[3].fetch_add(done.damaged.load(Ordering::SeqCst), Ordering::SeqCst);
    HAPPENED[4].fetch_add(done.broken.load(Ordering::SeqCst), Ordering::SeqCst);
    HAPPENED[5].fetch_add(
        u64::from(done.is_over.load(Ordering::SeqCst)),
        Ordering::SeqCst,
    );
}

/// Answers held, overtaken, doubled, damaged, connections broken, sources gone.
static HAPPENED: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];

#[test]
fn whatever_becomes_of_answers_memory_is_right_or_the_page_is_named() {
    if !is_possible() {
        return;
    }
    let count = run_seeds("whatever_becomes_of_answers", 200, seed_of_answers);
    let happened = HAPPENED.each_ref().map(|many| many.load(Ordering::SeqCst));
    println!("{count} seeds: held, overtaken, doubled, damaged, broken, gone: {happened:?}");
    // What has not happened was not tested.
    if count >= 100 {
        assert!(happened.iter().all(|many| *many > 0), "{happened:?}");
    }
}

/// Cuts that happened, after which all was right; and which ended in a stop.
static CUTS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The way is shut for longer than a page may take, once or twice, at any byte: the other side is the same afterwards, perhaps at another address. Or for longer than the
/// patience, and for good.
fn seed_of_cuts(seed: u64) {
    let mut random = Random::of_seed(seed);
    let comes_back = !seed.is_multiple_of(4);
    let moves = comes_back && random.below(3) == 0;
    // Where it comes back a busy machine has seconds for each page, and no page is lost although none comes for longer than that.
    let timeout = Duration::from_millis(if comes_back { 5000 } else { 500 });
    let source = Erring {
        permille: 0,
        seed,
        reads: AtomicU64::new(0),
        bad: None,
    };
    let len = (PAGES * PAGE) as u64;
    let serve = Serve::new(Arc::new(source), len, *b"0123456789abcdef");
    let server = Server::start("127.0.0.1:0", serve).unwrap();
    let gate = Gate::new("127.0.0.1:0", server.address());
    let connect = Connect {
        streams: 1 + random.below(4) as usize,
        timeout,
        silence: Some(timeout / 10),
        recovery: match comes_back {
            true => Duration::from_secs(120),
            false => 2 * timeout,
        },
        ..Connect::new(gate.address.to_string())
    };
    // Until it is connected the caller has patience; half a second may not do for the first words.
    let remote = (0..50).find_map(|_| Remote::connect(connect.clone()).ok());
    let remote = Arc::new(remote.expect("it is connected"));
    let cuts = 1 + random.below(2);
    let mut at = gate.passed() + random.below(1 + len / 8);
    for _ in 0..cuts {
        gate.cut([Cut {
            how: match random.below(2) {
                0 => Shut::Silent,
                _ => Shut::Refusing,
            },
            after: at,
            lasts: (comes_back && !moves).then_some(timeout * 5 / 4),
        }]);
        at = at.saturating_sub(random.below(at));
    }
    let memory = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
    let pager = Pager::builder()
        .mapping(&memory, 0)
        .engine(match random.below(2) {
            0 => Engine::Reader,
            _ => Engine::Sharded,
        })
        .window(PAGE << random.below(10))
        .workers(2)
        .timeout(timeout)
        .background(match random.below(2) {
            0 => Background::Off,
            _ => Background::Unlimited,
        })
        .source(remote.clone())
        .start()
        .unwrap();
    thread::scope(|scope| {
        if moves {
            scope.spawn(|| {
                // Its old address is no good any more.
                while remote.away().is_none() {
                    thread::sleep(Duration::from_millis(5));
                }
                thread::sleep(timeout * 5 / 4);
                remote.redirect(&server.address().to_string()).unwrap();
            });
        }
        for thread in 0..3 {
            let (memory, mut random) = (&memory, random.clone());
            random.below(2 + thread);
            scope.spawn(move || {
                for nth in 0..PAGES {
                    let page = match thread {
                        0 => nth,
                        _ => random.below(PAGES as u64) as usize,
                    };
                    match peek(memory, page) {
                        Some(found) => {
                            assert!(found == [byte(page); PAGE], "seed {seed}: page {page}");
                        }
                        None => {
                            assert!(!comes_back, "seed {seed}: page {page} is lost");
                            return;
                        }
                    }
                }
            });
        }
    });
    let lost = std::iter::from_fn(|| pager.next_event(Duration::ZERO))
        .filter(|event| matches!(event, Event::Lost { .. }))
        .count();
    match comes_back {
        true => assert_eq!(lost, 0, "seed {seed}"),
        false => assert!(lost > 0, "seed {seed}"),
    }
    drop(pager);
    CUTS[usize::from(!comes_back)].fetch_add(gate.happened(), Ordering::SeqCst);
}

#[test]
fn who_comes_back_in_time_has_lost_nothing_and_who_does_not_is_lost() {
    if !is_possible() {
        return;
    }
    let count = run_seeds_by(24, "who_comes_back_in_time", 48, seed_of_cuts);
    let happened = CUTS.each_ref().map(|many| many.load(Ordering::SeqCst));
    println!("{count} seeds: cuts that passed, and that did not: {happened:?}");
    if count >= 40 {
        assert!(happened.iter().all(|many| *many > 10), "{happened:?}");
    }
}
