//! One copy of clean pages for all who map them: right bytes for everybody, writes that are nobody else's, each page asked for once.

#[path = "../common/mod.rs"]
mod common;
mod given_up;
mod others;
mod successors;

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use amdahl_pager::handoff::hand_over;
use amdahl_pager::{
    Background, Backing, CleanPages, Engine, Event, HandedOver, Loss, Mapping, MemorySource, PAGE,
    Pager, Source, SourceError, Support, WorkingSet,
};
use common::{
    Ahead, Deaf, ENGINES, Generated, MIB, MINUTE, begin, check, check_all, contents, ends,
    expected, give_up, is_possible, is_zero, mapping, peek,
};

/// Whether the kernel shares clean pages; says so if not.
fn can_share() -> bool {
    let support = Support::probe();
    if !support.can_share() {
        println!("SKIPPED: {support}");
    }
    support.can_share()
}

/// The same for other processes, who cannot change them.
fn can_offer() -> bool {
    let support = Support::probe();
    if !support.can_offer() {
        println!("SKIPPED: {support}");
    }
    support.can_offer()
}

fn clean(source: impl Source + 'static, len: usize) -> Arc<CleanPages> {
    Arc::new(CleanPages::new(Arc::new(source), len as u64).unwrap())
}

/// All of the pages, served.
fn vm(clean: &Arc<CleanPages>, engine: Engine) -> (Arc<Mapping>, Pager) {
    let memory = Arc::new(clean.map(0, clean.pages() * PAGE).unwrap());
    let pager = Pager::builder()
        .mapping(&memory, 0)
        .clean(clean)
        .engine(engine)
        .start()
        .unwrap();
    (memory, pager)
}

/// What the kernel says of a mapping, in KiB.
fn smaps(memory: &Mapping, field: &str) -> u64 {
    let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (start, end) = (
        memory.as_ptr().addr(),
        memory.as_ptr().addr() + memory.len(),
    );
    let (mut sum, mut is_within) = (0, false);
    for line in all.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap();
        if let Some((low, high)) = first.split_once('-')
            && let (Ok(low), Ok(high)) = (
                usize::from_str_radix(low, 16),
                usize::from_str_radix(high, 16),
            )
        {
            is_within = low >= start && high <= end;
        } else if is_within && first == field {
            sum += words.next().unwrap().parse::<u64>().unwrap();
        }
    }
    sum
}

/// A page as the file has it.
fn in_file(clean: &CleanPages, page: usize) -> [u8; PAGE] {
    let file = std::fs::File::from(clean.file().try_clone_to_owned().unwrap());
    let mut found = [0; PAGE];
    file.read_exact_at(&mut found, (page * PAGE) as u64)
        .unwrap();
    found
}

fn writes(page: usize) -> [u8; 8] {
    (page as u64 ^ u64::MAX).to_le_bytes()
}

#[test]
fn every_engine_gives_right_bytes_of_one_copy() {
    if !can_share() {
        return;
    }
    let pages = 8 * MIB / PAGE;
    let source = Arc::new(Generated {
        zeros_told: true,
        ..Generated::counted(pages)
    });
    let all: Arc<dyn Source> = Arc::<Generated>::clone(&source);
    let clean = Arc::new(CleanPages::new(all, (pages * PAGE) as u64).unwrap());
    let mut vms = Vec::new();
    for engine in ENGINES {
        for window in [PAGE, 64 << 10, 2 * MIB] {
            let memory = Arc::new(clean.map(0, pages * PAGE).unwrap());
            assert_eq!(memory.backing(), Backing::Clean);
            let pager = Pager::builder()
                .mapping(&memory, 0)
                .clean(&clean)
                .engine(engine)
                .window(window)
                .start()
                .unwrap();
            check_all(&memory);
            let (stats, missing) = pager.finish();
            assert_eq!(missing, 0);
            assert_eq!(
                stats.shared_pages, stats.pages,
                "{engine} {window}: {stats:?}"
            );
            assert_eq!((stats.pages + stats.zero_pages) as usize, pages);
            // It is as it was without the pager, too.
            check_all(&memory);
            vms.push(memory);
        }
    }
    let zeros = (0..pages).filter(|page| is_zero(*page as u64)).count();
    for page in 0..pages {
        let read = source.per_page[page].load(Ordering::Relaxed);
        assert_eq!(read, usize::from(!is_zero(page as u64)), "page {page}");
    }
    assert_eq!(clean.pages_there(), pages - zeros);
    assert_eq!(clean.pages_fetched() as usize, pages - zeros);
    for memory in &vms {
        // Nothing is its own, and what it has is shared by as many, and by who fills it.
        assert_eq!(smaps(memory, "Anonymous:"), 0);
        let shared = smaps(memory, "Shared_Clean:") + smaps(memory, "Shared_Dirty:");
        assert!(
            shared >= ((pages - zeros) * PAGE / 1024) as u64,
            "{shared} KiB"
        );
    }
}

#[test]
fn what_one_writes_nobody_else_sees() {
    if !can_share() {
        return;
    }
    for engine in ENGINES {
        let clean = clean(Generated::default(), 4 * MIB);
        let (writer, pager) = vm(&clean, engine);
        let (reader, beside) = vm(&clean, engine);
        let pages = clean.pages();
        for page in 0..pages {
            if page % 2 == 0 {
                // Some are there when they are written to, for others that is the first touch.
                check(&writer, page, page as u64);
            }
            writer.write(page * PAGE, &writes(page));
        }
        check_all(&reader);
        let (late, _later) = vm(&clean, engine);
        check_all(&late);
        for page in 0..pages {
            let mut found = [0; PAGE];
            writer.read(page * PAGE, &mut found);
            let mut own = expected(page);
            own[..8].copy_from_slice(&writes(page));
            assert!(found == own, "{engine}: page {page}");
            assert!(
                in_file(&clean, page) == expected(page),
                "{engine}: page {page}"
            );
        }
        assert_eq!(smaps(&writer, "Anonymous:"), (pages * PAGE / 1024) as u64);
        assert_eq!(smaps(&reader, "Anonymous:"), 0);
        assert_eq!((pager.finish().1, beside.finish().1), (0, 0));
    }
}

#[test]
fn mappings_that_race_for_a_page_ask_for_it_once() {
    if !can_share() {
        return;
    }
    for engine in ENGINES {
        let pages = 6 * MIB / PAGE;
        let source = Arc::new(Generated::counted(pages));
        let all: Arc<dyn Source> = Arc::<Generated>::clone(&source);
        let clean = Arc::new(CleanPages::new(all, (pages * PAGE) as u64).unwrap());
        let vms: Vec<_> = (0..4).map(|_| vm(&clean, engine)).collect();
        thread::scope(|scope| {
            for number in 0..12u64 {
                let (memory, _) = &vms[number as usize % 4];
                scope.spawn(move || {
                    for nth in 0..pages as u64 {
                        let page = match number / 4 {
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
            assert_eq!(count.load(Ordering::Relaxed), 1, "{engine}: page {page}");
        }
    }
}

/// What a page of a VM should hold.
#[derive(Clone, Copy, Default)]
struct Model {
    is_given_up: bool,
    written: Option<u64>,
}

impl Model {
    fn check(self, memory: &Mapping, page: usize, what: &str) {
        let (mut found, mut wanted) = ([0; PAGE], [0; PAGE]);
        memory.read(page * PAGE, &mut found);
        if !self.is_given_up {
            wanted = expected(page);
        }
        if let Some(word) = self.written {
            wanted[..8].copy_from_slice(&word.to_le_bytes());
        }
        assert!(found == wanted, "{what}: page {page}");
    }
}

/// Reads, writes, and gives up, told and untold, by a seed; then all pages are looked at.
fn live(memory: &Mapping, pager: &Pager, seed: u64) {
    let what = format!("seed {seed}, {}", pager.engine());
    let count = memory.len() / PAGE;
    let mut model = vec![Model::default(); count];
    for step in 0..600 {
        let dice = common::mix(seed << 32 | step);
        let page = (dice >> 8) as usize % count;
        let end = (page + (dice >> 40) as usize % 40).min(count);
        match dice % 8 {
            0..3 => model[page].check(memory, page, &what),
            3..6 => {
                memory.write(page * PAGE, &dice.to_le_bytes());
                model[page].written = Some(dice);
            }
            6 => {
                // SAFETY: nobody has references.
                unsafe { pager.discard(page..end) }.unwrap();
                model[page..end].fill(Model {
                    is_given_up: true,
                    written: None,
                });
            }
            _ if page < end => {
                give_up(memory, page, end - page);
                for page in &mut model[page..end] {
                    page.written = None;
                }
            }
            _ => {}
        }
    }
    for (page, model) in model.iter().enumerate() {
        model.check(memory, page, &what);
    }
}

/// A thread that gave a page up just when a window had brought it was told to wait for who had brought it already, and waited for ever.
#[test]
fn vms_that_live_side_by_side_have_what_is_theirs() {
    if !can_share() {
        return;
    }
    for seed in 0..24 {
        ends(&format!("seed {seed}"), move || side_by_side(seed));
    }
}

fn side_by_side(seed: u64) {
    let source = Arc::new(Generated {
        zeros_told: seed.is_multiple_of(2),
        ..Generated::counted(MIB / PAGE)
    });
    let all: Arc<dyn Source> = Arc::<Generated>::clone(&source);
    let clean = Arc::new(CleanPages::new(all, MIB as u64).unwrap());
    thread::scope(|scope| {
        for (number, engine) in ENGINES.into_iter().enumerate() {
            let clean = &clean;
            scope.spawn(move || {
                let memory = Arc::new(clean.map(0, MIB).unwrap());
                let background = match seed % 3 {
                    0 => Background::Unlimited,
                    _ => Background::Off,
                };
                let pager = Pager::builder()
                    .mapping(&memory, 0)
                    .clean(clean)
                    .engine(engine)
                    .window(PAGE << (seed % 10))
                    .background(background)
                    .start()
                    .unwrap();
                live(&memory, &pager, seed * 8 + number as u64);
            });
        }
    });
    for (page, count) in source.per_page.iter().enumerate() {
        let count = count.load(Ordering::Relaxed);
        // A fault that overtakes the background asks once more.
        let most = if seed.is_multiple_of(3) { 2 } else { 1 };
        assert!(
            count <= most,
            "seed {seed}: page {page} was asked for {count} times"
        );
        if count > 0 {
            let found = in_file(&clean, page);
            assert!(found == expected(page), "seed {seed}: page {page}");
        }
    }
}

#[test]
fn pages_that_cannot_be_had_stop_who_touches_them_and_nobody_else() {
    if !can_share() {
        return;
    }
    for engine in ENGINES {
        let source = Generated {
            bad: Some(5),
            ..Generated::default()
        };
        let clean = clean(source, MIB);
        let (memory, pager) = vm(&clean, engine);
        let (beside, _other) = vm(&clean, engine);
        // By the kernel's hand: inline serves none of its faults, so there it is the end of the pager that stops it.
        if engine == Engine::Inline {
            check(&memory, 4, 4);
            assert_eq!(pager.finish().1, 1);
        } else {
            assert!(peek(&memory, 5).is_none());
            let lost = |event| {
                matches!(
                    event,
                    Event::Lost {
                        page: 5,
                        pages: 1,
                        why: Loss::Source(_)
                    }
                )
            };
            let begun = Instant::now();
            while !pager.next_event(MINUTE).is_some_and(lost) {
                assert!(begun.elapsed() < MINUTE);
            }
        }
        assert!(peek(&memory, 5).is_none(), "{engine}");
        for page in (0..256).filter(|page| *page != 5) {
            check(&memory, page, page as u64);
            check(&beside, page, page as u64);
        }
        assert_eq!(clean.pages_there(), 255);
    }
}

#[test]
fn errors_that_pass_and_panics_leave_nothing_behind() {
    if !can_share() {
        return;
    }
    for seed in 0..20 {
        let source = Generated {
            seed,
            failing_permille: 200,
            panicking_permille: 5,
            ..Generated::default()
        };
        let clean = clean(source, 2 * MIB);
        let vms: Vec<_> = (0..3).map(|_| vm(&clean, Engine::Sharded)).collect();
        thread::scope(|scope| {
            for (memory, _) in &vms {
                scope.spawn(|| {
                    for page in 0..512 {
                        // Lost by bad luck, or right.
                        if let Some(found) = peek(memory, page) {
                            assert!(*found == expected(page), "seed {seed}: page {page}");
                        }
                    }
                });
            }
        });
        let (memory, pager) = vm(&clean, Engine::Sharded);
        let begun = Instant::now();
        while pager.fill() > 0 {
            assert!(begun.elapsed() < MINUTE, "seed {seed}");
        }
        check_all(&memory);
    }
}

#[test]
fn who_hangs_with_the_source_is_overtaken_and_writes_nothing_late() {
    if !can_share() {
        return;
    }
    let source = Deaf::new(512);
    let all: Arc<dyn Source> = Arc::<Deaf>::clone(&source);
    let clean = CleanPages::new(all, 2 * MIB as u64).unwrap();
    // However short: on a busy machine fetches are given up now and then, which costs time and nothing else.
    let clean = Arc::new(clean.timeout(Duration::from_millis(1)));
    let vms: Vec<_> = (0..2).map(|_| vm(&clean, Engine::Sharded)).collect();
    thread::scope(|scope| {
        for (memory, _) in &vms {
            scope.spawn(|| check(memory, 3, 3));
        }
        // The second one has waited for the first, and then asks by itself.
        source.wait_for(2);
        source.let_go();
    });
    for (memory, pager) in &vms {
        check_all(memory);
        assert_eq!(pager.stats().lost_pages, 0);
    }
    for page in 0..512 {
        assert!(in_file(&clean, page) == expected(page), "page {page}");
    }
}

#[test]
fn the_end_of_a_pager_leaves_no_page_that_has_not_come() {
    if !can_share() {
        return;
    }
    for engine in ENGINES {
        let clean = clean(Generated::default(), 4 * MIB);
        let memory = Arc::new(clean.map(0, 4 * MIB).unwrap());
        let pager = Pager::builder()
            .mapping(&memory, 0)
            .clean(&clean)
            .engine(engine)
            .window(PAGE)
            .start()
            .unwrap();
        check(&memory, 7, 7);
        // Another brings a page that this one never had.
        let (beside, _other) = vm(&clean, engine);
        check(&beside, 100, 100);
        drop(pager);
        check(&memory, 7, 7);
        for page in [6, 8, 100, 1023] {
            assert!(peek(&memory, page).is_none(), "{engine}: page {page}");
        }
        check_all(&beside);
        // The copy outlives who made it.
        let (late, later) = vm(&clean, engine);
        assert_eq!(later.finish().1, 0);
        drop((clean, _other));
        check_all(&late);
    }
}

#[test]
fn parts_are_mapped_where_they_are() {
    if !can_share() {
        return;
    }
    let clean = clean(Generated::default(), 8 * MIB);
    let high = Arc::new(clean.map(5 * MIB as u64, 3 * MIB).unwrap());
    let low = Arc::new(clean.map(PAGE as u64, MIB).unwrap());
    let own = mapping(2 * MIB, Backing::Huge).unwrap();
    for engine in ENGINES {
        let pager = Pager::builder()
            .mapping(&high, 5 * MIB as u64)
            .mapping(&low, PAGE as u64)
            .mapping(&own, 2 * MIB as u64)
            .clean(&clean)
            .engine(engine)
            .shards(3)
            .start();
        let pager = match (pager, engine) {
            (Ok(pager), _) => pager,
            (Err(error), _) => panic!("{error}"),
        };
        for (memory, first) in [(&high, 5 * MIB), (&low, PAGE), (&own, 2 * MIB)] {
            for page in 0..memory.len() / PAGE {
                check(memory, page, (first / PAGE + page) as u64);
            }
        }
        assert_eq!(pager.finish().1, 0);
    }
}

#[test]
fn sets_are_brought_before_anybody_maps_them() {
    if !can_share() {
        return;
    }
    let source = Generated {
        zeros_told: true,
        ..Generated::default()
    };
    let clean = clean(source, MIB);
    let set = WorkingSet::from_pages((3..40).chain([200, 255]));
    assert_eq!(clean.prefetch(&set), 0);
    let wanted = set.runs().iter().cloned().flatten();
    let content = wanted.filter(|page| !is_zero(*page)).count();
    assert_eq!(clean.pages_there(), content);
    assert_eq!(clean.prefetch(&WorkingSet::from_pages([255, 256, 900])), 2);
    assert_eq!(clean.pages_there(), content);
}

#[test]
fn the_end_of_the_source_is_filled_with_zeros() {
    if !can_share() {
        return;
    }
    let mut bytes = vec![0; MIB];
    contents(0, &mut bytes);
    bytes.truncate(10 * PAGE + 100);
    let source = MemorySource::of_bytes(bytes.clone().into());
    let clean = clean(source, bytes.len());
    assert_eq!(clean.pages(), 11);
    let (memory, _pager) = vm(&clean, Engine::Sharded);
    let mut found = vec![1; 11 * PAGE];
    memory.read(0, &mut found);
    bytes.resize(11 * PAGE, 0);
    assert!(found == bytes);
}

#[test]
fn memory_that_maps_no_file_gets_copies_and_asks_once_all_the_same() {
    if !is_possible() {
        return;
    }
    let pages = 4 * MIB / PAGE;
    let source = Arc::new(Generated::counted(pages));
    let all: Arc<dyn Source> = Arc::<Generated>::clone(&source);
    let clean = Arc::new(CleanPages::new(all, (pages * PAGE) as u64).unwrap());
    for engine in ENGINES {
        for is_clean in [false, true] {
            let memory = mapping(4 * MIB, Backing::Huge).unwrap();
            let builder = Pager::builder().mapping(&memory, 0).engine(engine);
            let builder = match is_clean {
                true => builder.clean(&clean),
                false => builder.source(Arc::<CleanPages>::clone(&clean)),
            };
            let pager = builder.start().unwrap();
            check_all(&memory);
            let (stats, missing) = pager.finish();
            assert_eq!((stats.shared_pages, missing), (0, 0));
        }
    }
    for (page, count) in source.per_page.iter().enumerate() {
        assert_eq!(count.load(Ordering::Relaxed), 1, "page {page}");
    }
    // Not of whole pages.
    let mut found = vec![0; 3 * PAGE];
    clean.read(100, &mut found).unwrap();
    let all: Vec<u8> = (0..4).flat_map(expected).collect();
    assert!(found == all[100..100 + 3 * PAGE]);
    let beyond = clean.read((pages * PAGE) as u64 - 10, &mut found);
    assert!(matches!(beyond, Err(SourceError::Short { .. })));
}

#[test]
fn what_cannot_be_is_refused() {
    if !can_share() {
        return;
    }
    let clean = clean(Generated::default(), 4 * MIB);
    let other = self::clean(Generated::default(), 4 * MIB);
    let memory = Arc::new(clean.map(MIB as u64, MIB).unwrap());
    let start = |builder: amdahl_pager::Builder| builder.start().map(drop).unwrap_err().to_string();
    let at = |offset| Pager::builder().mapping(&memory, offset);
    for builder in [
        at(0).clean(&clean),
        at(MIB as u64).clean(&other),
        at(MIB as u64).source(Arc::<CleanPages>::clone(&clean)),
    ] {
        let error = start(builder);
        assert!(error.contains("Builder::clean"), "{error}");
    }
    let small = mapping(MIB, Backing::Small).unwrap();
    assert!(start(Pager::builder().mapping(&small, 5).clean(&clean)).contains("whole pages"));
    let huge = HandedOver {
        start: 2 * MIB,
        len: 2 * MIB,
        source_offset: 0,
        page_bytes: 2 * MIB,
    };
    let descriptor = clean.file().try_clone_to_owned().unwrap();
    let huge = Pager::builder().handed_over(descriptor, &[huge]);
    assert!(start(huge.clean(&clean)).contains("whole pages"));
    assert!(Mapping::new(MIB, Backing::Clean).is_err());
    assert!(CleanPages::new(Arc::new(Generated::default()), 0).is_err());
    for (offset, len) in [
        (5, PAGE),
        (4 * MIB as u64, PAGE),
        (0, 4 * MIB + 1),
        (u64::MAX - 4095, 2 * PAGE),
    ] {
        assert!(clean.map(offset, len).is_err(), "{len} at {offset}");
    }
    let open = mapping(MIB, Backing::Shared).unwrap();
    let error = Mapping::of_clean(open.file().unwrap().as_fd(), 0, MIB).unwrap_err();
    assert!(error.to_string().contains("not sealed"), "{error}");
    let (_ours, theirs) = UnixStream::pair().unwrap();
    for not_theirs in [&*memory, &*small] {
        let error = hand_over(&theirs, &[not_theirs]).unwrap_err().to_string();
        assert!(error.contains("another process"), "{error}");
    }
    // Nor can what was to be handed over with it be read, which nobody serves.
    let theirs_too = Mapping::of_clean(clean.file(), 0, MIB).unwrap();
    assert!(hand_over(&theirs, &[&theirs_too, &small]).is_err());
    assert!(peek(&theirs_too, 0).is_none());
}

/// A page was lost to a VM that waited for another VM's background: the source was never asked for it as for a page that somebody waits for.
#[test]
fn who_waits_for_a_page_does_not_wait_for_another_who_reads_it_ahead() {
    if !can_share() {
        return;
    }
    for is_copied in [false, true] {
        let source = Ahead::new();
        let all: Arc<dyn Source> = Arc::<Ahead>::clone(&source);
        let clean = Arc::new(CleanPages::new(all, 2 * MIB as u64).unwrap());
        let start = |memory: &Arc<Mapping>, background| {
            let builder = Pager::builder().mapping(memory, 0).workers(1);
            let builder = match is_copied {
                true => builder.source(Arc::<CleanPages>::clone(&clean)),
                false => builder.clean(&clean),
            };
            // Nobody is given up in the time of this test.
            let builder = builder.timeout(60 * MINUTE).background(background);
            builder.start().unwrap()
        };
        let map = || match is_copied {
            true => mapping(2 * MIB, Backing::Small).unwrap(),
            false => Arc::new(clean.map(0, 2 * MIB).unwrap()),
        };
        let (ahead, memory) = (map(), map());
        let other = start(&ahead, Background::Unlimited);
        source.deaf.wait_for(1);
        let pager = start(&memory, Background::Off);
        for page in [7, 8, 500] {
            let memory = Arc::clone(&memory);
            let touched = begin(move || check(&memory, page, page as u64));
            touched.recv_timeout(MINUTE).expect("it is served");
        }
        assert!(!source.deaf.is_let_go.load(Ordering::SeqCst));
        // Not more than it would have asked for without the other.
        assert!(source.urgent.load(Ordering::SeqCst) <= 2 + 8);
        // So is who waits for its own background.
        let touched = {
            let ahead = Arc::clone(&ahead);
            begin(move || check(&ahead, 300, 300))
        };
        touched.recv_timeout(MINUTE).expect("it is served");
        source.deaf.let_go();
        assert_eq!(ends("finish", || pager.finish()).1, 0);
        assert_eq!(ends("finish", || other.finish()).1, 0);
        check_all(&memory);
        check_all(&ahead);
        // What came of the one that was overtaken was not put there once more.
        assert_eq!(clean.pages_fetched() as usize, clean.pages());
    }
}
