//! Memory that was handed over, its owner's changes, and kernels that refuse: a clear end, never a hang, never wrong bytes.

mod common;

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use amdahl_pager::{
    BLOCK, Backing, CleanPages, Engine, Event, Features, Loss, Mapping, PAGE, Pager, SourceError,
    Support,
};
use common::{
    Deaf, Generated, MIB, MINUTE, begin, check, ends, ends_well, expected, give_up, handed_over,
    is_child, is_possible, mapping, peek, refuse, registered_for, vmm,
};

/// Memory of a block, served page by page; the descriptor that its owner keeps.
fn served_by_pages() -> Option<(Arc<Mapping>, Pager, OwnedFd)> {
    let memory = mapping(BLOCK, Backing::Small).unwrap();
    let [descriptor, kept] = vmm(&memory)?;
    let pager = handed_over(descriptor, &memory, 512)
        .source(Arc::new(Generated::default()))
        .window(PAGE)
        .start()
        .unwrap();
    Some((memory, pager, kept))
}

/// Has pages move elsewhere: where they are then.
fn moved(memory: &Mapping, pages: Range<usize>) -> Mapping {
    let len = pages.len() * PAGE;
    let to = Mapping::new(len, Backing::Small).unwrap();
    let from = memory.as_ptr().wrapping_add(pages.start * PAGE);
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: pages of the test's, and others that nothing is in.
    let at = unsafe { libc::mremap(from.cast(), len, len, how, to.as_ptr()) };
    assert_eq!(at.cast(), to.as_ptr());
    to
}

#[test]
fn what_is_missing_in_a_child_of_fork_is_deadly_and_what_is_there_stays() {
    if !is_possible() || !Support::probe().features.contain(Features::POISON) {
        println!("SKIPPED: the kernel cannot mark lost pages");
        return;
    }
    const EVENT_FORK: u64 = 1 << 1;
    let memory = mapping(BLOCK, Backing::Small).unwrap();
    let (start, len) = (memory.as_ptr().addr(), memory.len());
    let Some([descriptor, _kept]) = registered_for(start, len, 1, EVENT_FORK) else {
        return;
    };
    let pager = handed_over(descriptor, &memory, 512)
        .source(Arc::new(Generated::default()))
        .window(PAGE)
        .start()
        .unwrap();
    check(&memory, 3, 3);
    let word = |page: usize| {
        // SAFETY: within the mapping.
        unsafe {
            memory
                .as_ptr()
                .add(page * PAGE)
                .cast::<u64>()
                .read_volatile()
        }
    };
    let had = word(3);
    // SAFETY: the child reads memory and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // Who is served by nobody ends by another signal.
        // SAFETY: a number.
        unsafe { libc::alarm(60) };
        let is_as_it_was = word(3) == had;
        if is_as_it_was {
            word(7);
        }
        // SAFETY: ends the child without what the test's process does at its end.
        unsafe { libc::_exit(1) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: our child, and an integer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status), "{status:#x}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGBUS);
    assert_eq!(pager.next_event(MINUTE), Some(Event::Forked));
    // The parent's is served as before.
    check(&memory, 7, 7);
}

/// A page that was lost stayed so when its owner had given it up.
#[test]
fn a_lost_page_that_is_given_up_is_zero() {
    if !is_possible() {
        return;
    }
    let memory = mapping(BLOCK, Backing::Small).unwrap();
    let Some([descriptor, _kept]) = vmm(&memory) else {
        return;
    };
    let source = Arc::new(Generated {
        end: Some(8),
        ..Generated::default()
    });
    let pager = handed_over(descriptor, &memory, 512)
        .source(source)
        .start()
        .unwrap();
    for page in [8, 9, 300] {
        assert!(peek(&memory, page).is_none());
    }
    give_up(&memory, 8, 2);
    for page in [8, 9] {
        assert_eq!(peek(&memory, page).as_deref(), Some(&[0; PAGE]));
    }
    assert!(peek(&memory, 300).is_none());
    check(&memory, 7, 7);
    ends("drop", || drop(pager));
}

/// The kernel marks pages of one mapping at a time, and says for several what it says for none: all that was missing became zero.
#[test]
fn what_is_missing_of_several_mappings_is_never_zero() {
    if !is_possible() {
        return;
    }
    let memory = mapping(2 * BLOCK, Backing::Small).unwrap();
    let Some([descriptor, _kept]) = vmm(&memory) else {
        return;
    };
    let pager = handed_over(descriptor, &memory, 1024)
        .source(Arc::new(Generated::default()))
        .start()
        .unwrap();
    // Mappings of their own, at odd places.
    for (first, pages) in [(3, 1), (100, 57), (511, 2), (900, 1)] {
        let start = memory.as_ptr().wrapping_add(first * PAGE);
        // SAFETY: it changes what a dump of this process has in it.
        let done = unsafe { libc::madvise(start.cast(), pages * PAGE, libc::MADV_DONTDUMP) };
        assert_eq!(done, 0);
    }
    check(&memory, 5, 5);
    ends("drop", || drop(pager));
    check(&memory, 5, 5);
    for page in [
        0, 3, 4, 99, 100, 156, 157, 300, 511, 512, 513, 899, 900, 901, 1023,
    ] {
        assert!(peek(&memory, page).is_none(), "page {page}");
    }
}

#[test]
fn a_fault_outside_of_all_regions_is_answered() {
    if !is_possible() {
        return;
    }
    let memory = mapping(BLOCK, Backing::Small).unwrap();
    let Some([descriptor, _kept]) = vmm(&memory) else {
        return;
    };
    let pager = handed_over(descriptor, &memory, 64)
        .source(Arc::new(Generated::default()))
        .start()
        .unwrap();
    check(&memory, 63, 63);
    let theirs = Arc::clone(&memory);
    let found = ends("a touch", move || peek(&theirs, 64));
    assert!(found.is_none());
    let outside = Event::Outside {
        address: memory.as_ptr().addr() + 64 * PAGE,
    };
    assert_eq!(pager.next_event(MINUTE), Some(outside));
    check(&memory, 0, 0);
}

/// All that was moved was counted as lost, also what was there.
#[test]
fn of_moved_memory_what_was_missing_is_lost() {
    if !is_possible() {
        return;
    }
    let Some((memory, pager, _kept)) = served_by_pages() else {
        return;
    };
    check(&memory, 3, 3);
    check(&memory, 4, 4);
    let to = moved(&memory, 0..8);
    let told = Event::Moved { page: 0, pages: 8 };
    assert_eq!(pager.next_event(MINUTE), Some(told));
    assert_eq!(pager.stats().lost_pages, 6);
    for page in 0..8 {
        assert_eq!(peek(&to, page).is_some(), [3, 4].contains(&page), "{page}");
    }
    ends("drop", || drop(pager));
    std::mem::forget(memory);
}

/// To mark moved pages was tried again and again under the closed gate, while the kernel waited for a message to be read.
#[test]
fn memory_is_moved_and_given_up_at_once() {
    if !is_possible() {
        return;
    }
    const THREADS: usize = 4;
    for _ in 0..20 {
        let memory = mapping(2 * BLOCK, Backing::Small).unwrap();
        let Some([descriptor, _kept]) = vmm(&memory) else {
            return;
        };
        let pager = handed_over(descriptor, &memory, 1024)
            .source(Arc::new(Generated::default()))
            .workers(1)
            .start()
            .unwrap();
        let changing: Vec<_> = (0..THREADS)
            .map(|number| {
                let memory = Arc::clone(&memory);
                begin(move || {
                    if number > 0 {
                        for _ in 0..200 {
                            give_up(&memory, 256 * number, 100);
                        }
                        return;
                    }
                    for page in 0..100 {
                        let to = moved(&memory, page..page + 1);
                        // Not the source's any more, and not zero.
                        assert!(peek(&to, 0).is_none());
                    }
                })
            })
            .collect();
        for changing in changing {
            changing.recv_timeout(MINUTE).expect("a change ends");
        }
        check(&memory, 101, 101);
        ends("drop", || drop(pager));
        // Stacks of other threads may lie where pages were moved away: it must not be unmapped as a whole.
        std::mem::forget(memory);
    }
}

#[test]
fn messages_that_cannot_be_read_end_the_shard() {
    if !is_possible() {
        return;
    }
    let test = "messages_that_cannot_be_read_end_the_shard";
    for engine in [Engine::Reader, Engine::Sharded] {
        if is_child(test, engine.name(), ends_well) {
            let memory = mapping(BLOCK, Backing::Small).unwrap();
            let pager = Pager::builder()
                .mapping(&memory, 0)
                .source(Arc::new(Generated::default()))
                .engine(engine)
                .shards(1)
                .window(PAGE)
                .start()
                .unwrap();
            check(&memory, 0, 0);
            for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
                let path = entry.unwrap().path();
                if std::fs::read_link(&path)
                    .is_ok_and(|to| to.ends_with("anon_inode:[userfaultfd]"))
                {
                    let number = path.file_name().unwrap().to_str().unwrap();
                    refuse(libc::SYS_read, 0, number.parse().unwrap(), libc::EIO);
                }
            }
            // If the reader is in a read from before, it comes back with this.
            let theirs = Arc::clone(&memory);
            let first = ends("a touch", move || peek(&theirs, 1));
            assert!(first.as_deref().is_none_or(|found| *found == expected(1)));
            let theirs = Arc::clone(&memory);
            let found = ends("a touch", move || peek(&theirs, 2));
            assert!(found.is_none());
            let errno = match pager.next_event(MINUTE) {
                Some(Event::Unreadable { errno }) => errno,
                event => panic!("{event:?}"),
            };
            assert_eq!(errno.raw_os_error(), libc::EIO);
            let lost = pager.next_event(MINUTE);
            let why = Loss::Unreadable(errno);
            let page = 1 + usize::from(first.is_some());
            let pages = 512 - page;
            assert_eq!(lost, Some(Event::Lost { page, pages, why }));
            check(&memory, 0, 0);
            ends("drop", || drop(pager));
        }
    }
}

/// A kernel before 6.6: lost pages were waited for, and nobody was told.
#[test]
fn lost_pages_that_cannot_be_marked_are_told_and_can_be_given_up() {
    if !is_possible() {
        return;
    }
    const POISON: u32 = 0xc020_aa08;
    let test = "lost_pages_that_cannot_be_marked_are_told_and_can_be_given_up";
    if is_child(test, "unmarked", ends_well) {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        // Never unmapped: at the end nobody reads of that any more, so a test that fails would hang instead.
        std::mem::forget(Arc::clone(&memory));
        let Some([descriptor, kept]) = vmm(&memory) else {
            return;
        };
        let descriptors = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap();
            all.filter(|entry| {
                let path = entry.as_ref().unwrap().path();
                std::fs::read_link(path).is_ok_and(|to| to.ends_with("anon_inode:[userfaultfd]"))
            })
            .count()
        };
        refuse(libc::SYS_ioctl, 1, POISON, libc::EINVAL);
        let source = Arc::new(Generated {
            end: Some(8),
            ..Generated::default()
        });
        let pager = handed_over(descriptor, &memory, 512)
            .source(source)
            .window(PAGE)
            .timeout(Duration::from_millis(200))
            .start()
            .unwrap();
        let touch = |page: usize| {
            let memory = Arc::clone(&memory);
            begin(move || peek(&memory, page))
        };
        let waiting = touch(8);
        let why = Loss::Source(SourceError::Short {
            end: 8 * PAGE as u64,
        });
        let (page, pages) = (8, 1);
        let next = || pager.next_event(MINUTE);
        assert_eq!(next(), Some(Event::Lost { page, pages, why }));
        assert_eq!(next(), Some(Event::Unstopped { page, pages }));
        give_up(&memory, 8, 1);
        let found = waiting.recv_timeout(MINUTE).unwrap();
        assert_eq!(found.as_deref(), Some(&[0; PAGE]));
        check(&memory, 3, 3);
        // At the end what is missing must not be zero: it stays registered, by a descriptor that is kept.
        let before = descriptors();
        ends("drop", move || drop(pager));
        // A thread of the pager may have it a moment longer than it counts.
        let begun = std::time::Instant::now();
        while descriptors() != before {
            assert!(begun.elapsed() < MINUTE, "{} of {before}", descriptors());
            std::thread::yield_now();
        }
        let waiting = touch(100);
        assert_eq!(peek(&memory, 3).as_deref(), Some(&expected(3)));
        assert!(waiting.recv_timeout(Duration::from_millis(100)).is_err());
        drop(kept);
        assert!(waiting.recv_timeout(Duration::from_millis(100)).is_err());
        std::process::exit(0);
    }
}

/// The memory of a VM was unregistered at its end, and read as zeros, because nobody was told that its pages could not be marked until then.
#[test]
fn lost_pages_that_were_not_marked_until_the_end_are_told() {
    if !is_possible() {
        return;
    }
    const POISON: u32 = 0xc020_aa08;
    let test = "lost_pages_that_were_not_marked_until_the_end_are_told";
    if is_child(test, "unmarked", ends_well) {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        // As above.
        std::mem::forget(Arc::clone(&memory));
        let Some([descriptor, _kept]) = vmm(&memory) else {
            return;
        };
        // As while the memory is about to change.
        refuse(libc::SYS_ioctl, 1, POISON, libc::EAGAIN);
        let source = Arc::new(Generated {
            end: Some(8),
            ..Generated::default()
        });
        let mut pager = handed_over(descriptor, &memory, 512)
            .source(source)
            .window(PAGE)
            .timeout(Duration::from_millis(100))
            .start()
            .unwrap();
        let waiting = {
            let memory = Arc::clone(&memory);
            begin(move || peek(&memory, 8))
        };
        let lost = pager.next_event(MINUTE);
        assert!(
            matches!(lost, Some(Event::Lost { page: 8, .. })),
            "{lost:?}"
        );
        assert!(!pager.has_unstopped());
        let pager = ends("stop", move || {
            pager.stop();
            pager
        });
        assert!(pager.has_unstopped());
        let mut unstopped = Vec::new();
        while let Some(event) = pager.next_event(Duration::ZERO) {
            let Event::Unstopped { page, pages } = event else {
                panic!("{event:?}");
            };
            unstopped.extend(page..page + pages);
        }
        unstopped.sort_unstable();
        // All that had not come.
        assert!((0..512).eq(unstopped.iter().copied()), "{unstopped:?}");
        assert!(waiting.recv_timeout(Duration::from_millis(100)).is_err());
        std::process::exit(0);
    }
}

/// Pages of a fetch that was on its way were missing for ever, or lost.
#[test]
fn what_is_unmapped_while_it_is_fetched_is_nobodys() {
    if !is_possible() {
        return;
    }
    for (unmapped, is_touched) in [(0..512, false), (7..300, false), (7..300, true)] {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let Some([descriptor, _kept]) = vmm(&memory) else {
            return;
        };
        let source = Deaf::new(u64::MAX);
        let pager = handed_over(descriptor, &memory, 512)
            .source(source.clone())
            .timeout(Duration::from_secs(24 * 3600))
            .start()
            .unwrap();
        let pager = Arc::new(pager);
        let theirs = Arc::clone(&pager);
        let (touched, filled) = match is_touched {
            true => {
                let memory = Arc::clone(&memory);
                (Some(begin(move || peek(&memory, 0))), None)
            }
            false => (None, Some(begin(move || theirs.fill()))),
        };
        source.wait_for(1);
        let at = memory.as_ptr().wrapping_add(unmapped.start * PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // Other memory in its place, so that nobody else's comes there.
        // SAFETY: the test's own memory, to which nobody has references.
        let done = unsafe {
            let len = unmapped.len() * PAGE;
            libc::mmap(at.cast(), len, libc::PROT_NONE, flags, -1, 0)
        };
        assert_eq!(done, at.cast());
        let told = Event::Unmapped {
            page: unmapped.start,
            pages: unmapped.len(),
        };
        assert_eq!(pager.next_event(MINUTE), Some(told));
        source.let_go();
        if let Some(filled) = filled {
            assert_eq!(filled.recv_timeout(MINUTE), Ok(0));
        }
        if let Some(touched) = touched {
            let found = touched.recv_timeout(MINUTE).unwrap();
            assert_eq!(found.as_deref(), Some(&expected(0)));
            assert_eq!(pager.fill(), 0);
        }
        assert!(pager.is_filled());
        assert_eq!(pager.stats().lost_pages, 0);
        assert_eq!(pager.next_event(Duration::ZERO), None);
        for page in (0..512).filter(|page| !unmapped.contains(page)) {
            check(&memory, page, page as u64);
        }
    }
}

/// Its thread faulted again and again, without an end.
#[test]
fn a_clean_page_for_which_there_is_no_memory_any_more_is_lost() {
    let support = Support::probe();
    if !support.can_share() {
        println!("SKIPPED: {support}");
        return;
    }
    const CONTINUE: u32 = 0xc020_aa07;
    for (engine, variant) in [(Engine::Reader, "reader"), (Engine::Sharded, "sharded")] {
        let test = "a_clean_page_for_which_there_is_no_memory_any_more_is_lost";
        if is_child(test, variant, ends_well) {
            let source = Arc::new(Generated::default());
            let clean = Arc::new(CleanPages::new(source, MIB as u64).unwrap());
            let memory = Arc::new(clean.map(0, MIB).unwrap());
            let pager = Pager::builder()
                .mapping(&memory, 0)
                .clean(&clean)
                .engine(engine)
                .timeout(Duration::from_millis(100))
                .start()
                .unwrap();
            for page in 0..8 {
                check(&memory, page, page as u64);
            }
            refuse(libc::SYS_ioctl, 1, CONTINUE, libc::ENOMEM);
            give_up(&memory, 3, 1);
            let touched = Arc::clone(&memory);
            assert!(ends("touching it", move || peek(&touched, 3)).is_none());
            let lost = |event| {
                matches!(
                    event,
                    Event::Lost {
                        page: 3,
                        pages: 1,
                        why: Loss::Kernel(_)
                    }
                )
            };
            assert!(pager.next_event(MINUTE).is_some_and(lost));
            assert!(peek(&memory, 3).is_none());
            check(&memory, 4, 4);
            assert_eq!(pager.stats().lost_pages, 1);
            ends("drop", move || drop(pager));
            std::process::exit(0);
        }
    }
}

/// The owner makes the descriptor block, which both have.
#[test]
fn a_descriptor_that_is_made_to_block_stops_nobody() {
    if !is_possible() {
        return;
    }
    let Some((memory, pager, kept)) = served_by_pages() else {
        return;
    };
    check(&memory, 0, 0);
    for page in 1..50 {
        // SAFETY: a descriptor of the test's.
        let done = unsafe { libc::fcntl(kept.as_raw_fd(), libc::F_SETFL, 0) };
        assert_eq!(done, 0);
        check(&memory, page, page as u64);
    }
    ends("drop", || drop(pager));
}

/// A page of a huge page that cannot be brought in pieces was lost when all staging was in use for a second.
#[test]
fn huge_pages_wait_for_staging() {
    if !is_possible() {
        return;
    }
    let Some(memory) = mapping(3 * BLOCK, Backing::HugeTlb) else {
        return;
    };
    let source = Deaf::new(512);
    let pager = Pager::builder()
        .mapping(&memory, 0)
        .source(source.clone())
        .engine(Engine::Sharded)
        .shards(3)
        .staging(BLOCK)
        .start()
        .unwrap();
    let touch = |page: usize| {
        let memory = Arc::clone(&memory);
        begin(move || check(&memory, page, page as u64))
    };
    let first = touch(0);
    source.wait_for(1);
    let others = [touch(600), touch(1200)];
    // Nothing is lost in the time in which it was.
    assert_eq!(pager.next_event(Duration::from_millis(1500)), None);
    source.let_go();
    first.recv_timeout(MINUTE).unwrap();
    for other in others {
        other.recv_timeout(MINUTE).unwrap();
    }
    assert_eq!(pager.stats().lost_pages, 0);
}

/// Regions after one whose size is no multiple of 2 MiB were cut in the middle of huge pages.
#[test]
fn huge_pages_are_whole_whatever_region_lies_before() {
    if !is_possible() || !Support::probe().features.contain(Features::MOVE) {
        println!("SKIPPED: huge pages cannot be moved here");
        return;
    }
    for shards in [1, 2, 5] {
        let mut all = [
            mapping(4 * BLOCK, Backing::Huge).unwrap(),
            // In between, whether addresses rise or fall.
            mapping(MIB, Backing::Small).unwrap(),
            mapping(4 * BLOCK, Backing::Huge).unwrap(),
        ];
        all.sort_by_key(|mapping| mapping.as_ptr().addr());
        for is_filled in [true, false] {
            let mut builder = Pager::builder().source(Arc::new(Generated::default()));
            for (number, memory) in all.iter().enumerate() {
                builder = builder.mapping(memory, (number * 16 * BLOCK) as u64);
            }
            let pager = builder
                .engine(Engine::Sharded)
                .shards(shards)
                .start()
                .unwrap();
            if is_filled {
                assert_eq!(pager.fill(), 0);
            } else {
                for (number, memory) in all.iter().enumerate() {
                    for page in 0..memory.len() / PAGE {
                        check(memory, page, (number * 16 * 512 + page) as u64);
                    }
                }
            }
            let (stats, missing) = pager.finish();
            assert_eq!(
                (stats.moved_blocks, missing),
                (8, 0),
                "{shards} {is_filled}"
            );
            for memory in &all {
                give_up(memory, 0, memory.len() / PAGE);
            }
        }
    }
}

/// One page that fails gave up the rest of its window.
#[test]
fn a_page_that_fails_loses_only_itself() {
    if !is_possible() {
        return;
    }
    for (bad, backing) in [
        (0, Backing::Small),
        (777, Backing::Huge),
        (2047, Backing::Huge),
    ] {
        let memory = mapping(4 * BLOCK, backing).unwrap();
        let source = Arc::new(Generated {
            bad: Some(bad),
            ..Generated::default()
        });
        let pager = Pager::builder()
            .mapping(&memory, 0)
            .source(source)
            .start()
            .unwrap();
        assert_eq!(pager.fill(), 1);
        let not_fetched = Event::NotFetched {
            page: bad as usize,
            pages: 1,
            why: Loss::Source(SourceError::Corrupt("this page")),
        };
        assert_eq!(pager.next_event(Duration::ZERO), Some(not_fetched));
        assert_eq!(pager.next_event(Duration::ZERO), None);
        let (_, missing) = pager.finish();
        assert_eq!(missing, 1);
        for page in (0..2048).filter(|page| *page != bad as usize) {
            check(&memory, page, page as u64);
        }
        assert!(peek(&memory, bad as usize).is_none());
    }
}

/// What some pages of a file hold before a pager serves it.
const THEIRS: [u8; PAGE] = [0xab; PAGE];

fn is_theirs(page: usize) -> bool {
    page.is_multiple_of(5)
}

/// Memory as QEMU has it: a file in shared memory, some of whose pages are there before, by another way.
#[test]
fn what_the_file_of_shared_memory_has_is_mapped() {
    use std::os::unix::fs::FileExt;

    let support = Support::probe();
    if !support.can_share() {
        println!("SKIPPED: {support}");
        return;
    }
    let memory = mapping(2 * MIB, Backing::Shared).unwrap();
    let file = memory.file().unwrap().try_clone().unwrap();
    let file = std::fs::File::from(file);
    for page in (0..512).filter(|page| is_theirs(*page)) {
        file.write_all_at(&THEIRS, (page * PAGE) as u64).unwrap();
    }
    const MISSING_AND_MINOR: u64 = 1 | 1 << 2;
    let Some([descriptor, _kept]) = common::vmm_as(&memory, MISSING_AND_MINOR) else {
        return;
    };
    let pager = handed_over(descriptor, &memory, 512)
        .source(Arc::new(Generated::default()))
        .start()
        .unwrap();
    ends("touching what the file has", move || {
        touch_file(&memory, &file, pager)
    });
}

fn touch_file(memory: &Mapping, file: &std::fs::File, pager: Pager) {
    use std::os::unix::fs::FileExt;

    let look = |page: usize, content: &[u8; PAGE]| {
        let mut found = [0; PAGE];
        memory.read(page * PAGE, &mut found);
        assert!(found == *content, "page {page}");
    };
    let all = |pages: std::ops::Range<usize>| {
        for page in pages {
            match is_theirs(page) {
                true => look(page, &THEIRS),
                false => look(page, &expected(page)),
            }
        }
    };
    all(0..300);
    // What is written is in the file, and stays there when it is only unmapped.
    memory.write(7 * PAGE, &THEIRS);
    memory.write(10 * PAGE, &expected(10));
    let mut found = [0; PAGE];
    file.read_exact_at(&mut found, 7 * PAGE as u64).unwrap();
    assert!(found == THEIRS);
    give_up(memory, 0, 20);
    look(7, &THEIRS);
    look(10, &expected(10));
    // A balloon takes it out of the file.
    let at = memory.as_ptr().wrapping_add(400 * PAGE);
    // SAFETY: the pages are this thread's.
    let done = unsafe { libc::madvise(at.cast(), 50 * PAGE, libc::MADV_REMOVE) };
    assert_eq!(done, 0);
    for page in 400..450 {
        look(page, &[0; PAGE]);
    }
    all(300..400);
    all(450..512);
    assert_eq!(pager.finish().1, 0);
    all(20..400);
}
