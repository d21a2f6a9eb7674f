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
    mapping, start, with,
};

#[test]
fn every_engine_fills_every_backing() {
    if !is_possible() {
        return;
    }
    for backing in [
        Backing::Small,
        Backing::Huge,
        Backing::Shared,
        Backing::SharedHuge,
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
