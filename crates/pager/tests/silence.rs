//! A source that says nothing: who waits for it is stopped in time, and nobody else waits.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_pager::{
    BLOCK, Background, Backing, Builder, Engine, Event, Extent, HandedOver, Loss, Mapping, PAGE,
    Pager, Source, SourceError,
};
use common::{
    Ahead, Deaf, MINUTE, begin, content, contents, ends, expected, give_up, is_possible, mapping,
    mix, peek,
};

const READERS: [Engine; 2] = [Engine::Reader, Engine::Sharded];
/// Long enough for no test to end by it.
const NEVER: Duration = Duration::from_secs(24 * 3600);
const SHORT: Duration = Duration::from_millis(100);

/// Without workers: the reader is alone.
fn alone(engine: Engine, memory: &Arc<Mapping>, source: Arc<dyn Source>) -> Builder {
    Pager::builder()
        .mapping(memory, 0)
        .source(source)
        .engine(engine)
        .shards(1)
        .workers(0)
        .window(PAGE)
}

/// The reader of a descriptor read the source itself, and nobody read messages meanwhile.
#[test]
fn one_silent_page_keeps_no_other_waiting() {
    if !is_possible() {
        return;
    }
    for engine in READERS {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let source = Deaf::new(2);
        let pager = alone(engine, &memory, source.clone())
            .timeout(NEVER)
            .start()
            .unwrap();
        let touch = |page: usize| {
            let memory = Arc::clone(&memory);
            begin(move || common::check(&memory, page, page as u64))
        };
        let silent = [touch(0), touch(1)];
        source.wait_for(2);
        for page in 2..100 {
            touch(page).recv_timeout(MINUTE).unwrap();
        }
        source.let_go();
        for silent in silent {
            silent.recv_timeout(MINUTE).unwrap();
        }
        assert_eq!(pager.stats().lost_pages, 0);
        // Who was held up and who stood in both end.
        let (stats, missing) = ends("finish", || pager.finish());
        assert_eq!((stats.lost_pages, missing), (0, 0));
    }
}

/// More silent pages than there are threads that may stand in: those that nobody could ask for are given up as well.
#[test]
fn faults_that_nobody_can_serve_are_given_up() {
    if !is_possible() {
        return;
    }
    const SILENT: usize = 100;
    for engine in READERS {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let source = Deaf::new(SILENT as u64);
        let pager = alone(engine, &memory, source.clone())
            .timeout(SHORT)
            .start()
            .unwrap();
        let touch = |page: usize| {
            let memory = Arc::clone(&memory);
            begin(move || peek(&memory, page))
        };
        let silent: Vec<_> = (0..SILENT).map(touch).collect();
        for (page, silent) in silent.into_iter().enumerate() {
            let found = silent.recv_timeout(MINUTE).expect("it is given up");
            assert!(found.is_none(), "{engine}: page {page}");
        }
        let mut lost = [false; SILENT];
        while let Some(event) = pager.next_event(Duration::ZERO) {
            let Event::Lost { page, pages, why } = event else {
                panic!("{event:?}");
            };
            assert_eq!((pages, why), (1, Loss::Timeout));
            assert!(!std::mem::replace(&mut lost[page], true), "twice");
        }
        assert_eq!(lost, [true; SILENT]);
        source.let_go();
        // Those who were held up come back, and serve again.
        let served = (200..400).find_map(|page| Some((page, peek(&memory, page)?)));
        let (page, found) = served.expect("pages that can be had are served");
        assert!(*found == expected(page));
        ends("drop", || drop(pager));
    }
}

/// `drop` joined workers that the source kept, `finish` read by threads of its own that it joined.
#[test]
fn a_silent_source_is_left_behind() {
    if !is_possible() {
        return;
    }
    for engine in READERS {
        for is_finished in [false, true] {
            let memory = mapping(8 * BLOCK, Backing::Huge).unwrap();
            let source = Deaf::new(u64::MAX);
            let pager = Pager::builder()
                .mapping(&memory, 0)
                .source(source.clone())
                .engine(engine)
                .timeout(SHORT)
                .start()
                .unwrap();
            let touched = {
                let memory = Arc::clone(&memory);
                begin(move || peek(&memory, 5))
            };
            source.wait_for(1);
            match is_finished {
                false => {
                    pager.start_background();
                    source.wait_for(2);
                    ends("drop", || drop(pager));
                }
                true => {
                    let (stats, missing) = ends("finish", || pager.finish());
                    // Lost or missing: nothing can have come.
                    assert_eq!(stats.pages, 0);
                    assert!(stats.lost_pages + missing >= 8 * 512, "{missing} {stats:?}");
                }
            }
            assert!(touched.recv_timeout(MINUTE).unwrap().is_none());
            assert!((0..memory.len() / PAGE).all(|page| peek(&memory, page).is_none()));
            // The memory is used for something else, and the threads come back with what they have.
            give_up(&memory, 0, memory.len() / PAGE);
            source.let_go();
            let begun = std::time::Instant::now();
            while Arc::strong_count(&source) > 1 {
                assert!(begun.elapsed() < MINUTE, "threads do not end");
                thread::yield_now();
            }
            let mut page = [1; PAGE];
            for at in 0..memory.len() / PAGE {
                memory.read(at * PAGE, &mut page);
                assert!(page == [0; PAGE], "{engine}: page {at}");
            }
        }
    }
}

#[test]
fn a_page_that_is_silent_in_between_keeps_only_its_block_back() {
    if !is_possible() {
        return;
    }
    let memory = mapping(16 * BLOCK, Backing::Small).unwrap();
    let source = Deaf::new(3);
    let pager = Pager::builder()
        .mapping(&memory, 0)
        .source(source.clone())
        .timeout(SHORT)
        .start()
        .unwrap();
    let (stats, missing) = ends("finish", || pager.finish());
    // A block that a busy machine brought too late is missing as well, but never all.
    let mut deadly = 0;
    for page in 0..memory.len() / PAGE {
        match peek(&memory, page) {
            Some(found) => assert!(page >= 512 && *found == expected(page), "page {page}"),
            None => deadly += 1,
        }
    }
    // Nobody waited for any of them.
    assert_eq!((stats.lost_pages, missing), (0, deadly));
    assert!(deadly < (memory.len() / PAGE) as u64, "nothing was served");
    source.let_go();
}

/// All pages of a fetch that was given up were lost: a source that said nothing for one timeout cost a VM that did nothing its life.
#[test]
fn what_nobody_waits_for_can_be_had_after_a_silence() {
    if !is_possible() {
        return;
    }
    for engine in READERS {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let source = Deaf::new(u64::MAX);
        let pager = Pager::builder()
            .mapping(&memory, 0)
            .source(source.clone())
            .engine(engine)
            .background(Background::Unlimited)
            .workers(1)
            .timeout(SHORT)
            .start()
            .unwrap();
        let given_up = Event::NotFetched {
            page: 0,
            pages: 512,
            why: Loss::Timeout,
        };
        assert_eq!(pager.next_event(MINUTE), Some(given_up), "{engine}");
        source.let_go();
        for page in [511, 3, 0] {
            // A busy machine may be late with one.
            let touch = || peek(&memory, page).is_some_and(|found| *found == expected(page));
            assert!(touch() || pager.stats().lost_pages > 0, "{engine}: {page}");
        }
        let is_lost = |event| matches!(event, Event::Lost { pages: 512, .. });
        while let Some(event) = pager.next_event(Duration::ZERO) {
            assert!(!is_lost(event), "{engine}: {event:?}");
        }
    }
}

/// A fault waited until the block had come that the background had begun to fetch, or until its fetch was given up.
#[test]
fn a_fault_overtakes_what_is_read_ahead_of_its_page() {
    if !is_possible() {
        return;
    }
    for engine in common::ENGINES {
        let memory = mapping(BLOCK, Backing::Huge).unwrap();
        let source = Ahead::new();
        let pager = Pager::builder()
            .mapping(&memory, 0)
            .source(source.clone())
            .engine(engine)
            .background(Background::Unlimited)
            .workers(1)
            .timeout(NEVER)
            .start()
            .unwrap();
        source.deaf.wait_for(1);
        let pages = [0, 5, 300, 301, 511, 5, 300];
        let touched = pages.map(|page| {
            let memory = Arc::clone(&memory);
            begin(move || common::check(&memory, page, page as u64))
        });
        for touched in touched {
            touched.recv_timeout(MINUTE).expect("it is served");
        }
        // Each costs a page, whoever else waits for it, and the rest is on its way still.
        assert_eq!(source.urgent.load(Ordering::SeqCst), 5, "{engine}");
        assert_eq!(pager.stats().overtaken, 5, "{engine}");
        assert!(!source.deaf.is_let_go.load(Ordering::SeqCst));
        memory.write(5 * PAGE, &[7; 8]);
        source.deaf.let_go();
        let (stats, missing) = ends("finish", || pager.finish());
        assert_eq!((stats.lost_pages, missing), (0, 0), "{engine}");
        assert_eq!(
            (stats.pages + stats.zero_pages, stats.background_pages),
            (512, 507),
            "{engine}"
        );
        for page in 0..512 {
            let (mut found, mut wanted) = ([0; PAGE], expected(page));
            memory.read(page * PAGE, &mut found);
            if page == 5 {
                wanted[..8].fill(7);
            }
            assert!(found == wanted, "{engine}: page {page}");
        }
    }
}

/// What has overtaken a fetch is no page of it any more: what becomes of it afterwards is not undone.
#[test]
fn what_has_overtaken_can_be_given_up_before_the_rest_comes() {
    if !is_possible() {
        return;
    }
    let memory = mapping(BLOCK, Backing::Small).unwrap();
    let Some([_theirs, descriptor]) = common::vmm(&memory) else {
        return;
    };
    let source = Ahead::new();
    let pager = common::handed_over(descriptor, &memory, 512)
        .source(source.clone())
        .background(Background::Unlimited)
        .workers(1)
        .timeout(NEVER)
        .start()
        .unwrap();
    source.deaf.wait_for(1);
    let is_zero = |page: usize| {
        let memory = Arc::clone(&memory);
        let touched = begin(move || peek(&memory, page));
        let found = touched.recv_timeout(MINUTE).expect("it is served");
        assert!(*found.unwrap() == [0; PAGE], "page {page}");
    };
    for page in [5, 6] {
        let memory = Arc::clone(&memory);
        let touched = begin(move || common::check(&memory, page, page as u64));
        touched.recv_timeout(MINUTE).expect("it is served");
    }
    // There, there and touched again, and on its way.
    give_up(&memory, 5, 3);
    is_zero(6);
    is_zero(7);
    source.deaf.let_go();
    assert_eq!(ends("finish", || pager.finish()).1, 0);
    for page in [5, 6, 7] {
        is_zero(page);
    }
    for page in (0..5).chain(8..512) {
        common::check(&memory, page, page as u64);
    }
}

/// It was lost, although the source was never asked for it as for a page that somebody waits for.
#[test]
fn who_comes_to_wait_for_what_is_read_ahead_in_silence_is_served() {
    if !is_possible() {
        return;
    }
    for engine in READERS {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let source = Ahead::new();
        // Long enough for a busy machine to answer a fault in it.
        let timeout = Duration::from_secs(2);
        let pager = Pager::builder()
            .mapping(&memory, 0)
            .source(source.clone())
            .engine(engine)
            .background(Background::Unlimited)
            .workers(1)
            .timeout(timeout)
            .start()
            .unwrap();
        source.deaf.wait_for(1);
        let touched = [5, 300].map(|page| {
            let memory = Arc::clone(&memory);
            begin(move || (page, peek(&memory, page)))
        });
        for touched in touched {
            let (page, found) = touched.recv_timeout(MINUTE).expect("it is served");
            assert!(
                found.is_some_and(|found| *found == expected(page)),
                "{engine}"
            );
        }
        assert_eq!(pager.stats().lost_pages, 0, "{engine}");
        source.deaf.let_go();
        ends("drop", || drop(pager));
    }
}

/// Of a window one page is waited for.
#[test]
fn a_silence_costs_of_a_window_what_is_waited_for() {
    if !is_possible() {
        return;
    }
    for engine in READERS {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let source = Deaf::new(u64::MAX);
        let pager = Pager::builder()
            .mapping(&memory, 0)
            .source(source.clone())
            .engine(engine)
            .shards(1)
            .workers(0)
            .timeout(SHORT)
            .start()
            .unwrap();
        let touch = |page: usize| {
            let theirs = Arc::clone(&memory);
            begin(move || peek(&theirs, page))
        };
        // All of the block is fetched for it, and another waits for a page of that.
        let first = touch(0);
        source.wait_for(1);
        let other = touch(100);
        for waits in [first, other] {
            let found = waits.recv_timeout(MINUTE).expect("it is stopped");
            assert!(found.is_none(), "{engine}");
        }
        let mut lost = Vec::new();
        while let Some(event) = pager.next_event(Duration::ZERO) {
            let Event::Lost { page, pages, why } = event else {
                panic!("{event:?}");
            };
            assert_eq!(why, Loss::Timeout);
            lost.extend(page..page + pages);
        }
        // The other may have come so late that its own window was given up.
        assert_eq!(lost, [0, 100], "{engine}");
        source.let_go();
        let (stats, missing) = ends("finish", || pager.finish());
        assert_eq!(stats.lost_pages, 2, "{engine}");
        // A busy machine may be late with some.
        let mut deadly = 0;
        for page in 0..512 {
            match peek(&memory, page) {
                Some(found) => assert!(*found == expected(page), "{engine}: page {page}"),
                None => deadly += 1,
            }
        }
        assert_eq!(deadly, 2 + missing, "{engine}");
    }
}

/// Answers each read just before the timeout, that it has failed or with one page.
struct Slow {
    by: Duration,
    fails: bool,
    /// The first page that is slow.
    from: u64,
    reads: AtomicUsize,
    /// Until then the first of the slow ones waits.
    is_let_go: AtomicBool,
}

impl Source for Slow {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let page = offset / PAGE as u64;
        if page >= self.from {
            self.reads.fetch_add(1, Ordering::SeqCst);
            while !self.is_let_go.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            thread::sleep(self.by);
        }
        if self.fails {
            return Err(SourceError::Corrupt("as the test wants it"));
        }
        content(page, into);
        Ok(())
    }

    fn extent(&self, _: u64, _: u64) -> Extent {
        Extent {
            len: if self.fails { BLOCK } else { PAGE } as u64,
            is_zero: false,
        }
    }

    fn is_signal_safe(&self) -> bool {
        true
    }
}

/// Each error gave the fetch its whole time again, four times for the window and four for the page.
#[test]
fn errors_that_come_slowly_are_not_waited_for_again_and_again() {
    if !is_possible() {
        return;
    }
    for engine in READERS {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let source = Arc::new(Slow {
            by: SHORT * 3 / 4,
            fails: true,
            from: 0,
            reads: AtomicUsize::new(0),
            is_let_go: AtomicBool::new(true),
        });
        let _pager = Pager::builder()
            .mapping(&memory, 0)
            .source(source.clone())
            .engine(engine)
            .timeout(SHORT)
            .start()
            .unwrap();
        assert!(peek(&memory, 0).is_none(), "{engine}");
        // The window once, then the page alone.
        let reads = source.reads.load(Ordering::SeqCst);
        assert!(reads <= 2, "{engine}: {reads}");
    }
}

/// Who had come to wait for a page of somebody else's window waited as often as that had other pages.
#[test]
fn pages_that_come_slowly_keep_who_waits_for_another_no_longer() {
    if !is_possible() {
        return;
    }
    for engine in READERS {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let timeout = Duration::from_secs(1);
        let source = Arc::new(Slow {
            by: timeout * 3 / 4,
            fails: false,
            from: 1,
            reads: AtomicUsize::new(0),
            is_let_go: AtomicBool::new(false),
        });
        let pager = Pager::builder()
            .mapping(&memory, 0)
            .source(source.clone())
            .engine(engine)
            .shards(1)
            .workers(0)
            .timeout(timeout)
            .start()
            .unwrap();
        // The rest of the block is on its way with it.
        assert!(
            peek(&memory, 0).is_some_and(|found| *found == expected(0)),
            "{engine}"
        );
        let theirs = Arc::clone(&memory);
        let waits = begin(move || peek(&theirs, 100));
        let begun = std::time::Instant::now();
        while pager.stats().waits == 0 {
            assert!(begun.elapsed() < MINUTE, "nobody waits");
            thread::yield_now();
        }
        source.is_let_go.store(true, Ordering::SeqCst);
        // A busy machine may have come to it so late that it had a fetch of its own.
        waits.recv_timeout(MINUTE).expect("it is stopped");
        let reads = source.reads.load(Ordering::SeqCst);
        assert!(reads <= 4, "{engine}: {reads}");
    }
}

/// Memory of which a thread that serves itself never gets the first page.
fn held_up_inline() -> (Arc<Mapping>, Pager) {
    let memory = mapping(BLOCK, Backing::Small).unwrap();
    let source = Deaf::new(1);
    let pager = alone(Engine::Inline, &memory, source.clone())
        .timeout(SHORT)
        .start()
        .unwrap();
    let theirs = Arc::clone(&memory);
    // It never ends, and nobody waits for it.
    drop(begin(move || common::check(&theirs, 0, 0)));
    source.wait_for(1);
    (memory, pager)
}

/// A thread that serves itself cannot be freed from its own read; others who wait for its pages can, and so can the pager.
#[test]
fn inline_others_are_stopped_and_the_pager_ends() {
    if !is_possible() {
        return;
    }
    let (memory, pager) = held_up_inline();
    let lost = Event::Lost {
        page: 0,
        pages: 1,
        why: Loss::Timeout,
    };
    assert_eq!(pager.next_event(MINUTE), Some(lost));
    common::check(&memory, 1, 1);
    ends("drop", || drop(pager));
    let is_stopped = |status: std::process::ExitStatus| status.signal() == Some(libc::SIGBUS);
    let test = "inline_others_are_stopped_and_the_pager_ends";
    if common::is_child(test, "others", is_stopped) {
        let (memory, _pager) = held_up_inline();
        common::check(&memory, 0, 0);
        unreachable!();
    }
}

/// Late for so many reads of a thousand, by a seed.
struct Late {
    permille: u64,
    seed: u64,
    by: Duration,
    reads: std::sync::atomic::AtomicU64,
}

impl Source for Late {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        if mix(self.seed ^ mix(read)) % 1000 < self.permille {
            thread::sleep(self.by);
        }
        contents(offset, into);
        Ok(())
    }
}

/// After a time-out and a balloon the late fetch put its content where zeros must be.
#[test]
fn a_balloon_gives_zeros_whatever_comes_too_late() {
    if !is_possible() {
        return;
    }
    const THREADS: usize = 4;
    const MINE: usize = 64;
    for seed in 0..40u64 {
        let memory = mapping(THREADS * MINE * PAGE, Backing::Small).unwrap();
        let Some([descriptor, _kept]) = common::vmm(&memory) else {
            return;
        };
        let timeout = Duration::from_millis(4);
        let source = Arc::new(Late {
            permille: 60,
            seed,
            by: timeout * [1, 2, 5][seed as usize % 3],
            reads: 0.into(),
        });
        let pager = handed_over(descriptor, &memory, memory.len())
            .source(source)
            .workers(seed as usize % 3)
            .timeout(timeout)
            .start()
            .unwrap();
        if seed % 2 == 0 {
            pager.start_background();
        }
        thread::scope(|scope| {
            for number in 0..THREADS {
                let memory = &memory;
                scope.spawn(move || {
                    let mut is_zero = [false; MINE];
                    let mut dice = mix(seed << 8 | number as u64);
                    for _ in 0..200 {
                        dice = mix(dice.wrapping_add(1));
                        let page = (dice >> 8) as usize % MINE;
                        let at = number * MINE + page;
                        if dice.is_multiple_of(8) {
                            let pages = (1 + (dice >> 40) as usize % 9).min(MINE - page);
                            give_up(memory, at, pages);
                            is_zero[page..page + pages].fill(true);
                            continue;
                        }
                        // Lost, or what it must be.
                        match (peek(memory, at), is_zero[page]) {
                            (None, false) => {}
                            (None, true) => panic!("seed {seed}: zeros of page {at} are lost"),
                            (Some(found), true) => assert!(*found == [0; PAGE], "seed {seed}"),
                            (Some(found), false) => assert!(*found == expected(at), "seed {seed}"),
                        }
                    }
                });
            }
        });
        ends("drop", || drop(pager));
    }
}

fn handed_over(descriptor: std::os::fd::OwnedFd, memory: &Mapping, len: usize) -> Builder {
    let region = HandedOver {
        start: memory.as_ptr().expose_provenance(),
        len,
        source_offset: 0,
        page_bytes: PAGE,
    };
    Pager::builder().handed_over(descriptor, &[region])
}

/// Memory that was handed over stayed registered: who changed it waited for ever.
#[test]
fn memory_that_was_handed_over_is_the_owners_again() {
    if !is_possible() {
        return;
    }
    let memory = mapping(BLOCK, Backing::Small).unwrap();
    let Some([descriptor, _kept]) = common::vmm(&memory) else {
        return;
    };
    let source = Deaf::new(1);
    let pager = handed_over(descriptor, &memory, memory.len())
        .source(source.clone())
        .timeout(SHORT)
        .window(PAGE)
        .start()
        .unwrap();
    // A busy machine may be late with one.
    let there =
        (7..200).find(|&page| peek(&memory, page).is_some_and(|found| *found == expected(page)));
    let there = there.expect("pages are served");
    let theirs = Arc::clone(&memory);
    let waiting = begin(move || peek(&theirs, 0));
    source.wait_for(1);
    ends("drop", || drop(pager));
    assert!(waiting.recv_timeout(MINUTE).unwrap().is_none());
    // Missing is deadly, what was there is there, and what is given up is the kernel's.
    assert!(peek(&memory, there + 2).is_none());
    common::check(&memory, there, there as u64);
    let theirs = Arc::clone(&memory);
    ends("a balloon", move || give_up(&theirs, there, 5));
    for page in there..there + 5 {
        assert_eq!(peek(&memory, page).as_deref(), Some(&[0; PAGE]));
    }
    source.let_go();
}

/// Says nothing, and says that it is away, until it is back.
struct Away {
    deaf: Arc<Deaf>,
    is_away: AtomicBool,
    looks: AtomicUsize,
}

impl Source for Away {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.deaf.read(offset, into)
    }

    fn is_signal_safe(&self) -> bool {
        true
    }

    fn is_away(&self) -> bool {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.is_away.load(Ordering::SeqCst)
    }
}

/// A source that was away for longer than the timeout, to be back in time for its own patience, had lost pages by then.
#[test]
fn nobody_is_given_up_while_the_source_is_away_and_in_time_afterwards() {
    if !is_possible() {
        return;
    }
    for engine in READERS {
        for comes_back in [true, false] {
            let memory = mapping(BLOCK, Backing::Small).unwrap();
            let source = Arc::new(Away {
                deaf: Deaf::new(u64::MAX),
                is_away: true.into(),
                looks: AtomicUsize::new(0),
            });
            let pager = alone(engine, &memory, source.clone())
                .timeout(SHORT)
                .start()
                .unwrap();
            let touch = |page: usize| {
                let memory = Arc::clone(&memory);
                begin(move || peek(&memory, page))
            };
            let waiting = [touch(0), touch(7)];
            source.deaf.wait_for(2);
            let (looks, begun) = (source.looks.load(Ordering::SeqCst), Instant::now());
            let has_looked = || source.looks.load(Ordering::SeqCst) >= looks + 4;
            while pager.stats().lost_pages == 0 && !(has_looked() && begun.elapsed() > 3 * SHORT) {
                thread::yield_now();
            }
            assert_eq!(pager.stats().lost_pages, 0);
            match comes_back {
                true => source.deaf.let_go(),
                false => source.is_away.store(false, Ordering::SeqCst),
            }
            for (waiting, page) in waiting.into_iter().zip([0, 7]) {
                let found = waiting.recv_timeout(MINUTE).unwrap();
                let is_right = found.is_some_and(|found| *found == expected(page));
                assert_eq!(is_right, comes_back, "{engine:?}: page {page}");
            }
            source.deaf.let_go();
        }
    }
}
