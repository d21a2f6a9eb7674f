//! What is fetched that nobody has touched yet: in the background, of working sets, along with faults.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use amdahl_pager::{
    Background, Backing, Engine, Event, Loss, PAGE, Pager, Source, SourceError, WorkingSet,
};
use common::{
    ENGINES, Generated, MIB, MINUTE, check, check_all, content, is_possible, mapping, start, with,
};

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
