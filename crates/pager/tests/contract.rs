//! What a pager promises: memory holds what the source has, whoever touches it first, by whatever engine.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use amdahl_pager::{
    Background, Backing, Builder, Engine, Event, Extent, FileSource, Loss, Mapping, MemorySource,
    PAGE, Pager, ProcessSource, Source, SourceError, WorkingSet,
};
use common::{
    ENGINES, Generated, MIB, MINUTE, check, check_all, content, contents, is_possible, is_zero,
    mapping,
};

fn start(engine: Engine, memory: &Arc<Mapping>, source: Arc<dyn Source>) -> Pager {
    with(engine, memory, source, |builder| builder)
}

fn with(
    engine: Engine,
    memory: &Arc<Mapping>,
    source: Arc<dyn Source>,
    more: impl FnOnce(Builder) -> Builder,
) -> Pager {
    let builder = Pager::builder()
        .mapping(memory, 0)
        .source(source)
        .engine(engine);
    more(builder).start().unwrap()
}

#[test]
fn every_engine_fills_every_backing() {
    if !is_possible() {
        return;
    }
    for backing in [
        Backing::Small,
        Backing::Huge,
        Backing::Shared,
        Backing::HugeTlb,
    ] {
        for engine in ENGINES {
            for window in [PAGE, 64 << 10, 2 * MIB] {
                let Some(memory) = mapping(8 * MIB, backing) else {
                    return;
                };
                let source = Arc::new(Generated {
                    zeros_told: window != PAGE,
                    ..Generated::default()
                });
                let pager = with(engine, &memory, source, |builder| builder.window(window));
                check_all(&memory);
                let (stats, missing) = pager.finish();
                assert_eq!(missing, 0);
                let all = memory.len() / PAGE;
                assert_eq!(
                    (stats.pages + stats.zero_pages) as usize,
                    all,
                    "{engine} {backing:?} {window}: {stats:?}"
                );
                // It is ordinary memory now.
                memory.write(5 * PAGE, &[1, 2, 3]);
                let mut read = [0; 3];
                memory.read(5 * PAGE, &mut read);
                assert_eq!(read, [1, 2, 3]);
            }
        }
    }
}

#[test]
fn pages_told_to_be_zero_are_never_read() {
    if !is_possible() {
        return;
    }
    let memory = mapping(4 * MIB, Backing::Huge).unwrap();
    let pages = memory.len() / PAGE;
    let source = Arc::new(Generated {
        zeros_told: true,
        ..Generated::counted(pages)
    });
    let pager = start(Engine::Sharded, &memory, source.clone());
    check_all(&memory);
    for page in 0..pages {
        let read = source.per_page[page].load(Ordering::Relaxed);
        assert_eq!(read, usize::from(!is_zero(page as u64)), "page {page}");
    }
    let zeros = (0..pages as u64).filter(|page| is_zero(*page)).count();
    assert_eq!(pager.stats().zero_pages as usize, zeros);
}

/// Bytes of a mapping that are memory, not the page of zeros that all share.
fn resident(memory: &Mapping) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let all = memory.as_ptr().addr()..memory.as_ptr().addr() + memory.len();
    let number = |text| usize::from_str_radix(text, 16).ok();
    let (mut kib, mut is_within) = (0, false);
    for line in smaps.lines() {
        // In as many pieces as there are descriptors.
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        if let Some((start, end)) = range.and_then(|(from, to)| Some((number(from)?, number(to)?)))
        {
            is_within = all.contains(&start) && end <= all.end;
        } else if is_within && let Some(rss) = line.strip_prefix("Rss:") {
            let rss = rss.trim().strip_suffix(" kB").expect("KiB");
            kib += rss.parse::<usize>().unwrap();
        }
    }
    kib << 10
}

/// A file without holes was copied in full, its pages of zeros as well.
#[test]
fn pages_of_a_dense_file_that_are_zeros_take_no_memory() {
    if !is_possible() {
        return;
    }
    let mut bytes = vec![0; 8 * MIB];
    contents(0, &mut bytes);
    let pages = bytes.len() / PAGE;
    let zeros = (0..pages as u64).filter(|page| is_zero(*page)).count();
    let file = tempfile::tempfile().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    let source = Arc::new(FileSource::of(file).unwrap());
    let known = source.extent(0, bytes.len() as u64);
    if known.is_zero || known.len < bytes.len() as u64 {
        println!("SKIPPED: this file system makes holes by itself");
        return;
    }
    for engine in ENGINES {
        for window in [PAGE, 16 << 10, 64 << 10, 2 * MIB] {
            let memory = mapping(8 * MIB, Backing::Small).unwrap();
            let pager = with(engine, &memory, source.clone(), |builder| {
                builder.window(window)
            });
            check_all(&memory);
            assert_eq!(
                resident(&memory),
                (pages - zeros) * PAGE,
                "{engine} {window}"
            );
            // They can be written as any other.
            let zero = (0..pages).find(|page| is_zero(*page as u64)).unwrap();
            memory.write(zero * PAGE + 7, &[1]);
            let mut read = [9; 9];
            memory.read(zero * PAGE, &mut read);
            assert_eq!(read, [0, 0, 0, 0, 0, 0, 0, 1, 0]);
            let (stats, missing) = pager.finish();
            let counted = (stats.pages as usize, stats.zero_pages as usize);
            assert_eq!(counted, (pages - zeros, zeros), "{engine} {window}");
            assert_eq!(missing, 0);
        }
    }
}

#[test]
fn huge_pages_are_not_made_of_zeros() {
    if !is_possible() {
        return;
    }
    // A block of zeros, one with a little content, one with a page of zeros.
    let is_zero = |page: usize| match page / 512 {
        0 => true,
        1 => page % 4 != 1,
        _ => page == 2 * 512 + 9,
    };
    let byte = |at: usize| {
        if is_zero(at / PAGE) {
            0
        } else {
            (at / PAGE) as u8 | 1
        }
    };
    let bytes: Arc<[u8]> = (0..6 * MIB).map(byte).collect();
    for engine in [Engine::Reader, Engine::Sharded] {
        let memory = mapping(6 * MIB, Backing::Huge).unwrap();
        let source = Arc::new(MemorySource::of_bytes(bytes.clone()));
        let pager = with(engine, &memory, source, |builder| builder.window(2 * MIB));
        let mut read = vec![1; 6 * MIB];
        memory.read(0, &mut read);
        assert!(*read == *bytes, "{engine}");
        let (stats, missing) = pager.finish();
        assert_eq!(missing, 0);
        // Where the kernel cannot move, the last block comes in pieces, too.
        let last = u64::from(stats.moved_blocks == 0);
        assert!(stats.moved_blocks < 2, "{engine}: {stats:?}");
        assert_eq!(stats.zero_pages, 512 + 384 + last, "{engine}: {stats:?}");
    }
}

#[test]
fn many_threads_on_the_same_pages_fetch_each_once() {
    if !is_possible() {
        return;
    }
    for engine in ENGINES {
        for window in [PAGE, 2 * MIB] {
            let memory = mapping(6 * MIB, Backing::Huge).unwrap();
            let pages = memory.len() / PAGE;
            let source = Arc::new(Generated::counted(pages));
            let pager = with(engine, &memory, source.clone(), |builder| {
                builder.window(window)
            });
            thread::scope(|scope| {
                for number in 0..12u64 {
                    let memory = &memory;
                    scope.spawn(move || {
                        for nth in 0..pages as u64 {
                            // Some from the front, some from the back, some anywhere.
                            let page = match number % 3 {
                                0 => nth,
                                1 => pages as u64 - 1 - nth,
                                _ => common::mix(nth << 8 | number) % pages as u64,
                            };
                            check(memory, page as usize, page);
                        }
                    });
                }
            });
            for (page, count) in source.per_page.iter().enumerate() {
                let count = count.load(Ordering::Relaxed);
                assert_eq!(count, 1, "{engine} {window}: page {page}");
            }
            assert_eq!(pager.missing_pages(), 0);
        }
    }
}

#[test]
fn writers_keep_what_they_write() {
    if !is_possible() {
        return;
    }
    for engine in ENGINES {
        let memory = mapping(4 * MIB, Backing::Huge).unwrap();
        let pages = memory.len() / PAGE;
        let pager = with(engine, &memory, Arc::new(Generated::default()), |builder| {
            builder.background(Background::Unlimited)
        });
        thread::scope(|scope| {
            for number in 0..4usize {
                let memory = &memory;
                scope.spawn(move || {
                    for page in (number..pages).step_by(4) {
                        memory.write(page * PAGE + 8 * number, &(page as u64).to_le_bytes());
                    }
                });
            }
        });
        let (_, missing) = pager.finish();
        assert_eq!(missing, 0);
        for page in 0..pages {
            let (mut found, mut expected) = ([0; PAGE], [0; PAGE]);
            content(page as u64, &mut expected);
            let at = 8 * (page % 4);
            expected[at..at + 8].copy_from_slice(&(page as u64).to_le_bytes());
            memory.read(page * PAGE, &mut found);
            let differ = found.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(differ, None, "{engine}: page {page}");
        }
    }
}

#[test]
fn all_sources_give_the_same() {
    if !is_possible() {
        return;
    }
    let len = 3 * MIB;
    let mut bytes = vec![0; len];
    contents(0, &mut bytes);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let bytes: Arc<[u8]> = bytes.into();
    let sources: [Arc<dyn Source>; 3] = [
        Arc::new(MemorySource::of_bytes(Arc::clone(&bytes))),
        Arc::new(FileSource::open(file.path()).unwrap()),
        Arc::new(ProcessSource::new(
            std::process::id(),
            bytes.as_ptr().addr() as u64,
            len as u64,
        )),
    ];
    for source in sources {
        for engine in ENGINES {
            let memory = mapping(len, Backing::Huge).unwrap();
            let _pager = start(engine, &memory, Arc::clone(&source));
            check_all(&memory);
        }
    }
}

#[test]
fn regions_come_from_where_they_are_told() {
    if !is_possible() {
        return;
    }
    for engine in ENGINES {
        let first = mapping(MIB, Backing::Small).unwrap();
        let second = mapping(5 * MIB, Backing::Huge).unwrap();
        let _pager = Pager::builder()
            .mapping(&first, 700 * PAGE as u64)
            .mapping(&second, 3 * PAGE as u64)
            .source(Arc::new(Generated::default()))
            .engine(engine)
            .shards(3)
            .start()
            .unwrap();
        for page in 0..first.len() / PAGE {
            check(&first, page, 700 + page as u64);
        }
        for page in (0..second.len() / PAGE).rev() {
            check(&second, page, 3 + page as u64);
        }
    }
}

#[test]
fn the_background_fetches_the_rest() {
    if !is_possible() {
        return;
    }
    for engine in ENGINES {
        let memory = mapping(8 * MIB, Backing::Huge).unwrap();
        let source = Arc::new(Generated::default());
        let pager = with(engine, &memory, source, |builder| {
            builder.background(Background::Unlimited)
        });
        check(&memory, 1000, 1000);
        pager.start_background();
        // It ends without anybody touching anything.
        let begun = std::time::Instant::now();
        while pager.missing_pages() > 0 {
            assert!(begun.elapsed() < MINUTE, "{engine}: {:?}", pager.stats());
            thread::yield_now();
        }
        check_all(&memory);
        assert!(pager.stats().background_pages > 0);
    }
}

#[test]
fn a_working_set_is_recorded_and_replayed() {
    if !is_possible() {
        return;
    }
    for engine in ENGINES {
        let touched = [3usize, 4, 5, 700, 1023];
        let memory = mapping(4 * MIB, Backing::Huge).unwrap();
        let pager = with(engine, &memory, Arc::new(Generated::default()), |builder| {
            builder.record(true)
        });
        for page in touched {
            check(&memory, page, page as u64);
        }
        let set = pager.working_set().unwrap();
        assert_eq!(set.runs(), [3..6, 700..701, 1023..1024]);
        drop(pager);

        let memory = mapping(4 * MIB, Backing::Huge).unwrap();
        let pager = start(engine, &memory, Arc::new(Generated::default()));
        assert_eq!(pager.prefetch(&set), 0);
        assert_eq!(pager.missing_pages(), memory.len() / PAGE - touched.len());
        for page in touched {
            check(&memory, page, page as u64);
        }
        assert_eq!(pager.stats().faults, 0);
        let beyond = WorkingSet::from_pages([1023, 1024, 5000]);
        assert_eq!(pager.prefetch(&beyond), 2);
    }
}

/// A working set came as fast as it went, whatever rate was wanted.
#[test]
fn a_replay_takes_no_more_than_the_budget_and_faults_take_nothing_of_it() {
    if !is_possible() {
        return;
    }
    const SET: u64 = 4 * 512;
    for engine in ENGINES {
        for as_background in [false, true] {
            let memory = mapping(16 * MIB, Backing::Small).unwrap();
            let source = Arc::new(Generated::default());
            let pager = with(engine, &memory, source.clone(), |builder| {
                let builder = builder.window(PAGE);
                match as_background {
                    // The rest of it is a burst: a block.
                    false => builder.budget(1),
                    true => builder.background(Background::BytesPerSecond(1)),
                }
            });
            // The background has the burst, if there is one: either of the two.
            let set = WorkingSet::from_pages(2048..2048 + SET);
            let has_seen = std::sync::atomic::AtomicUsize::new(0);
            let missing = pager.replay(&set, || {
                // It would go on for days. As soon as something is there, and it has waited, it has had what it may have.
                let is_there = pager.missing_pages() < 4096;
                is_there && has_seen.fetch_add(1, Ordering::SeqCst) > 2
            });
            assert!(missing >= SET - 512, "{engine}: {missing}");
            let bytes = source.bytes.load(Ordering::SeqCst);
            assert!((1..=2 * MIB as u64).contains(&bytes), "{engine}: {bytes}");
            for page in [0, 1000, 4095] {
                check(&memory, page, page as u64);
            }
            // Who waits for it is not bound by it.
            assert_eq!(pager.prefetch(&set), 0);
            check_all(&memory);
        }
    }
}

#[test]
fn what_comes_along_with_faults_is_within_the_budget() {
    if !is_possible() {
        return;
    }
    for engine in ENGINES {
        let memory = mapping(16 * MIB, Backing::Small).unwrap();
        let source = Arc::new(Generated::default());
        // The rest of it is a burst: a block.
        let pager = with(engine, &memory, source.clone(), |builder| builder.budget(1));
        for page in 0..2048 {
            check(&memory, page, page as u64);
        }
        let touched = 2048 * PAGE;
        let brought = source.bytes.load(Ordering::SeqCst) as usize;
        let along = pager.stats().faults as usize * PAGE;
        assert!(brought <= along + 2 * MIB, "{engine}: {brought} of {along}");
        assert!(
            brought >= touched && brought < touched + 2 * MIB,
            "{engine}: {brought}"
        );
    }
}

/// The content, and how many asked for it at once at most.
#[derive(Default)]
struct AtOnce {
    content: Generated,
    now: std::sync::atomic::AtomicUsize,
    most: std::sync::atomic::AtomicUsize,
}

impl Source for AtOnce {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let read = self.content.read(offset, into);
        self.now.fetch_sub(1, Ordering::SeqCst);
        read
    }

    fn is_signal_safe(&self) -> bool {
        true
    }
}

#[test]
fn the_background_of_a_source_that_is_here_leaves_half_of_the_cpus_and_a_fill_lets_it() {
    if !is_possible() {
        return;
    }
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    for engine in [Engine::Reader, Engine::Sharded] {
        let memory = mapping(64 * MIB, Backing::Small).unwrap();
        let source = Arc::new(AtOnce::default());
        let pager = with(engine, &memory, source.clone(), |builder| {
            builder.workers(2 * cpus).background(Background::Unlimited)
        });
        assert_eq!(pager.fill(), 0);
        let most = source.most.load(Ordering::SeqCst);
        assert!((1..=(cpus / 2).max(1)).contains(&most), "{engine}: {most}");
        check_all(&memory);
    }
}

#[test]
fn what_is_given_up_reads_as_zero() {
    if !is_possible() {
        return;
    }
    for engine in ENGINES {
        let memory = mapping(4 * MIB, Backing::Huge).unwrap();
        let pager = start(engine, &memory, Arc::new(Generated::default()));
        check(&memory, 10, 10);
        // Some are there, some are not.
        // SAFETY: nobody has references.
        unsafe { pager.discard(8..20) }.unwrap();
        let mut page = [1; PAGE];
        for given_up in 8..20 {
            memory.read(given_up * PAGE, &mut page);
            assert!(page == [0; PAGE], "{engine}: page {given_up}");
        }
        check(&memory, 7, 7);
        check(&memory, 20, 20);
        // Without telling anybody, of pages that are there: what a balloon in the same process does.
        let start = memory.as_ptr().wrapping_add(20 * PAGE);
        // SAFETY: nobody has references.
        let done = unsafe { libc::madvise(start.cast(), PAGE, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
        memory.read(20 * PAGE, &mut page);
        assert!(page == [0; PAGE], "{engine}");
        // Counted when the page is there, which its reader may notice earlier.
        let begun = std::time::Instant::now();
        while pager.stats().removed_pages != 13 {
            assert!(begun.elapsed() < MINUTE, "{engine}: {:?}", pager.stats());
            thread::yield_now();
        }
        // SAFETY: refused.
        assert!(unsafe { pager.discard(1000..5000) }.is_err());
    }
}

#[test]
fn what_is_given_up_of_shared_memory_reads_as_zero() {
    if !is_possible() {
        return;
    }
    let memory = mapping(MIB, Backing::Shared).unwrap();
    let pager = start(ENGINES[0], &memory, Arc::new(Generated::default()));
    check(&memory, 10, 10);
    // SAFETY: nobody has references.
    unsafe { pager.discard(8..20) }.unwrap();
    let mut page = [1; PAGE];
    for given_up in 8..20 {
        memory.read(given_up * PAGE, &mut page);
        assert!(page == [0; PAGE], "page {given_up}");
    }
    check(&memory, 7, 7);
    check(&memory, 20, 20);
}

#[test]
fn a_source_may_end_within_its_last_page() {
    let content: Arc<[u8]> = vec![7; PAGE + 10].into();
    let there = content.as_ptr().expose_provenance() as u64;
    let of_bytes = MemorySource::of_bytes(Arc::clone(&content));
    let of_process = ProcessSource::new(std::process::id(), there, content.len() as u64);
    for source in [&of_bytes as &dyn Source, &of_process] {
        let mut page = [1; PAGE];
        source.read(PAGE as u64, &mut page).unwrap();
        assert!(page[..10] == [7; 10] && page[10..] == [0; PAGE - 10]);
        assert!(source.read(2 * PAGE as u64, &mut page).is_err());
        assert!(source.read(0, &mut [0; 3 * PAGE]).is_err());
    }
}

#[test]
fn kernel_access_is_served_but_by_inline() {
    if !is_possible() {
        return;
    }
    for engine in [Engine::Reader, Engine::Sharded] {
        let memory = mapping(MIB, Backing::Small).unwrap();
        let _pager = start(engine, &memory, Arc::new(Generated::default()));
        let (mut reader, writer) = std::io::pipe().unwrap();
        let at = memory.as_ptr().wrapping_add(5 * PAGE);
        // SAFETY: within the mapping; the pipe has room for a page.
        let written =
            unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&writer), at.cast(), PAGE) };
        assert_eq!(written, PAGE as isize, "{engine}");
        let (mut found, mut expected) = ([0; PAGE], [0; PAGE]);
        std::io::Read::read_exact(&mut reader, &mut found).unwrap();
        content(5, &mut expected);
        assert!(found == expected);
    }
}

#[test]
fn errors_that_pass_are_never_seen() {
    if !is_possible() {
        return;
    }
    for engine in ENGINES {
        for seed in 0..6 {
            let memory = mapping(3 * MIB, Backing::Huge).unwrap();
            let source = Arc::new(Generated {
                failing_permille: 100,
                seed,
                ..Generated::default()
            });
            let window = [PAGE, 64 << 10, 2 * MIB][seed as usize % 3];
            let pager = with(engine, &memory, source, |builder| builder.window(window));
            check_all(&memory);
            let stats = pager.stats();
            assert_eq!(stats.lost_pages, 0);
        }
    }
}

#[test]
fn a_source_that_fails_in_the_background_harms_nobody() {
    if !is_possible() {
        return;
    }
    for engine in ENGINES {
        let memory = mapping(6 * MIB, Backing::Huge).unwrap();
        let source = Arc::new(Generated {
            end: Some(600),
            ..Generated::default()
        });
        let pager = start(engine, &memory, source);
        let pages = memory.len() / PAGE;
        assert_eq!(pager.fill() as usize, pages - 600);
        let mut missed = 0;
        while let Some(event) = pager.next_event(std::time::Duration::ZERO) {
            let Event::NotFetched { pages, why, .. } = event else {
                panic!("{event:?}");
            };
            assert!(matches!(why, Loss::Source(SourceError::Short { .. })));
            missed += pages;
        }
        // A window that reaches beyond the end is made smaller, until it is the page.
        assert_eq!(missed, pages - 600);
        for page in 0..600 {
            check(&memory, page, page as u64);
        }
        assert_eq!(pager.stats().lost_pages, 0);
    }
}

/// A block that could not be had once was left out for good, and nobody was told.
#[test]
fn the_background_tries_again_and_tells_when_it_ends_with_pages_missing() {
    if !is_possible() {
        return;
    }
    for engine in ENGINES {
        let start = |source: &Arc<Mends>| {
            let memory = mapping(4 * MIB, Backing::Small).unwrap();
            let pager = Pager::builder()
                .mapping(&memory, 0)
                .source(Arc::clone(source) as Arc<dyn Source>)
                .engine(engine)
                .background(Background::Unlimited)
                .start()
                .unwrap();
            (memory, pager)
        };
        let failing = |error| {
            Arc::new(Mends {
                bad: 5,
                error,
                is_mended: false.into(),
            })
        };
        let source = failing(SourceError::Corrupt("as the test wants it"));
        let (memory, pager) = start(&source);
        let is_failure = |event| matches!(event, Some(Event::NotFetched { page: 5, .. }));
        assert!(is_failure(pager.next_event(MINUTE)), "{engine}");
        source.is_mended.store(true, Ordering::SeqCst);
        let begun = std::time::Instant::now();
        let there = || pager.stats().pages + pager.stats().zero_pages;
        while there() < pager.pages() as u64 {
            assert!(begun.elapsed() < MINUTE, "{engine}: it does not go on");
            std::thread::yield_now();
        }
        check_all(&memory);

        let (_memory, pager) = start(&failing(SourceError::Gone("as the test wants it")));
        let end = loop {
            match pager.next_event(MINUTE).expect("it tells its end") {
                Event::NotFetched { .. } => {}
                event => break event,
            }
        };
        let Event::Unfilled { pages } = end else {
            panic!("{engine}: {end:?}");
        };
        assert_eq!(pages, pager.missing_pages(), "{engine}");
        assert!(pages > 0, "{engine}");
    }
}

/// A page that cannot be had for a while.
struct Mends {
    bad: u64,
    error: SourceError,
    is_mended: std::sync::atomic::AtomicBool,
}

impl Source for Mends {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        for (nth, bytes) in into.chunks_exact_mut(PAGE).enumerate() {
            let page = offset / PAGE as u64 + nth as u64;
            if page == self.bad && !self.is_mended.load(Ordering::SeqCst) {
                return Err(self.error);
            }
            content(page, bytes);
        }
        Ok(())
    }

    fn is_signal_safe(&self) -> bool {
        true
    }
}

#[test]
fn a_panic_of_the_source_is_an_error() {
    if !is_possible() {
        return;
    }
    let memory = mapping(2 * MIB, Backing::Huge).unwrap();
    let source = Arc::new(Generated {
        panicking_permille: 1000,
        ..Generated::default()
    });
    let pager = start(Engine::Sharded, &memory, source);
    assert_eq!(pager.fill() as usize, memory.len() / PAGE);
    let event = pager.next_event(MINUTE);
    let gone = Loss::Source(SourceError::Gone("it panicked"));
    assert!(
        matches!(event, Some(Event::NotFetched { why, .. }) if why == gone),
        "{event:?}"
    );
}

#[test]
fn so_is_one_where_it_says_what_is_there() {
    if !is_possible() {
        return;
    }
    struct Extents;
    impl Source for Extents {
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
            Ok(())
        }
        fn extent(&self, _: u64, _: u64) -> Extent {
            panic!("on purpose")
        }
    }
    struct Pointers;
    impl Source for Pointers {
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
            Ok(())
        }
        fn in_memory(&self, _: u64, _: usize) -> Option<*const u8> {
            panic!("on purpose")
        }
    }
    let sources: [Arc<dyn Source>; 2] = [Arc::new(Extents), Arc::new(Pointers)];
    for source in sources {
        let memory = mapping(MIB, Backing::Small).unwrap();
        let pager = start(Engine::Sharded, &memory, source);
        assert_eq!(pager.fill() as usize, memory.len() / PAGE);
        // None is left busy: that would be waited for until the timeout.
        assert_eq!(pager.stats().lost_pages, 0);
    }
}

#[test]
fn two_pagers_and_a_source_that_is_itself_filled() {
    if !is_possible() {
        return;
    }
    for (below, above) in [
        (Engine::Inline, Engine::Inline),
        (Engine::Sharded, Engine::Inline),
        (Engine::Inline, Engine::Sharded),
    ] {
        let first = mapping(4 * MIB, Backing::Huge).unwrap();
        let second = mapping(4 * MIB, Backing::Huge).unwrap();
        let _lower = start(below, &first, Arc::new(Generated::default()));
        // Not by `in_memory`: the kernel does not fault for SIGBUS.
        struct Through(Arc<Mapping>);
        impl Source for Through {
            fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
                self.0.read(offset as usize, into);
                Ok(())
            }
            fn is_signal_safe(&self) -> bool {
                true
            }
        }
        let _upper = start(above, &second, Arc::new(Through(Arc::clone(&first))));
        check_all(&second);
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    if !is_possible() {
        return;
    }
    let memory = mapping(MIB, Backing::Small).unwrap();
    let source: Arc<dyn Source> = common::Stuck::new();
    let error = |builder: Builder| builder.start().err().unwrap().to_string();
    assert!(error(Pager::builder().mapping(&memory, 0)).contains("no source"));
    assert!(error(Pager::builder().source(Arc::clone(&source))).contains("no region"));
    let twice = Pager::builder().mapping(&memory, 0).mapping(&memory, 0);
    assert!(error(twice.source(Arc::clone(&source))).contains("overlap"));
    let far = Pager::builder().mapping(&memory, u64::MAX - 4096);
    assert!(error(far.source(Arc::clone(&source))).contains("beyond"));
    let inline = Pager::builder().mapping(&memory, 0).engine(Engine::Inline);
    assert!(error(inline.source(source)).contains("signal handler"));
    let _first = start(Engine::Sharded, &memory, Arc::new(Generated::default()));
    let second = Pager::builder()
        .mapping(&memory, 0)
        .source(Arc::new(Generated::default()));
    assert!(error(second).contains("another userfaultfd"));
    check_all(&memory);
}

#[test]
fn pages_that_are_present_are_not_fetched() {
    if !is_possible() {
        return;
    }
    for engine in ENGINES {
        for backing in [Backing::Small, Backing::Huge, Backing::Shared] {
            let memory = mapping(4 * MIB, backing).unwrap();
            let pages = memory.len() / PAGE;
            // Of three pages one has its content, one was never written, and one is missing.
            for page in (0..pages).step_by(3) {
                memory.write(page * PAGE, &common::expected(page));
            }
            for page in (0..pages).filter(|page| page % 3 > 0 && backing == Backing::Huge) {
                common::give_up(&memory, page, 1);
            }
            let present = WorkingSet::from_pages((0..pages as u64).filter(|page| page % 3 < 2));
            let source = Arc::new(Generated::counted(pages));
            let pager = with(engine, &memory, source.clone(), |builder| {
                builder.present(&present)
            });
            assert_eq!(pager.missing_pages(), pages / 3);
            for page in 0..pages {
                if page % 3 == 1 {
                    let mut found = [1; PAGE];
                    memory.read(page * PAGE, &mut found);
                    assert_eq!(found, [0; PAGE]);
                } else {
                    check(&memory, page, page as u64);
                }
                let read = source.per_page[page].load(Ordering::Relaxed);
                assert_eq!(
                    read,
                    usize::from(page % 3 == 2),
                    "{engine}, {backing:?}, {page}"
                );
            }
            assert_eq!(pager.finish().1, 0);
        }
    }
    let memory = mapping(MIB, Backing::Small).unwrap();
    let pages = (memory.len() / PAGE) as u64;
    let beyond = Pager::builder()
        .mapping(&memory, 0)
        .source(Arc::new(Generated::default()))
        .present(&WorkingSet::from_pages([pages]))
        .start();
    assert!(beyond.is_err());
}
