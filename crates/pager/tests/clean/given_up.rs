//! What a mapping of clean pages gives up reads as zero, and as the clean page where nobody was told.

use std::os::unix::net::UnixStream;

use amdahl_pager::handoff::{hand_over, receive};
use amdahl_pager::{Event, Mapping, PAGE, Pager};

use super::common::{ENGINES, Generated, MIB, MINUTE, check, check_all, give_up};
use super::{can_share, clean, vm};

#[test]
fn what_is_given_up_is_zero_if_it_is_told_and_clean_if_not() {
    if !can_share() {
        return;
    }
    for engine in ENGINES {
        let clean = clean(Generated::default(), 4 * MIB);
        let (memory, pager) = vm(&clean, engine);
        let (beside, _other) = vm(&clean, engine);
        let mut page = [1; PAGE];
        // There, written to, missing.
        check(&memory, 8, 8);
        memory.write(9 * PAGE, &[7; 100]);
        // SAFETY: nobody has references.
        unsafe { pager.discard(8..700) }.unwrap();
        for _ in 0..2 {
            for at in [8, 9, 10, 600, 699] {
                memory.read(at * PAGE, &mut page);
                assert!(page == [0; PAGE], "{engine}: page {at}");
            }
            // The zeros are given up without telling: they do not become the clean pages again.
            give_up(&memory, 8, 692);
        }
        memory.write(9 * PAGE, &[3; 100]);
        memory.read(9 * PAGE, &mut page);
        assert!(page[..100] == [3; 100] && page[100..] == [0; PAGE - 100]);
        for at in [7, 700] {
            check(&memory, at, at as u64);
            memory.write(at * PAGE, &[9; 8]);
            // As a private mapping of a file does, and as the kernel does with clean pages itself.
            give_up(&memory, at, 1);
            check(&memory, at, at as u64);
        }
        // SAFETY: nobody has references.
        unsafe { pager.discard(750..800) }.unwrap();
        drop(pager);
        for at in 750..800 {
            memory.read(at * PAGE, &mut page);
            assert!(page == [0; PAGE], "{engine}: page {at}");
        }
        check_all(&beside);
        let (late, _later) = vm(&clean, engine);
        check_all(&late);
    }
}

#[test]
fn a_balloon_of_memory_that_was_handed_over_reads_as_zero() {
    if !can_share() {
        return;
    }
    let clean = clean(Generated::default(), 4 * MIB);
    // Two parts, of one descriptor.
    let memory = Mapping::of_clean(clean.file(), MIB as u64, 2 * MIB).unwrap();
    let low = Mapping::of_clean(clean.file(), 0, MIB).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let _kept = hand_over(&theirs, &[&memory, &low]).unwrap();
    let received = receive(&ours, 4 * MIB as u64, MINUTE).unwrap();
    let offsets: Vec<_> = received
        .regions
        .iter()
        .map(|one| one.source_offset)
        .collect();
    assert_eq!(offsets, [MIB as u64, 0]);
    let pager = Pager::builder()
        .handed_over(received.descriptor, &received.regions)
        .clean(&clean)
        .start()
        .unwrap();
    check_all(&low);
    let is_low_first = low.as_ptr() < memory.as_ptr();
    let offset = if is_low_first { MIB / PAGE } else { 0 };
    let first = (MIB / PAGE) as u64;
    for page in [0, 3, 400] {
        check(&memory, page, first + page as u64);
    }
    give_up(&memory, 2, 4);
    assert_eq!(
        pager.next_event(MINUTE),
        Some(Event::Removed {
            page: offset + 2,
            pages: 4
        })
    );
    let mut page = [1; PAGE];
    for at in 2..6 {
        memory.read(at * PAGE, &mut page);
        assert!(page == [0; PAGE], "page {at}");
    }
    for at in [1, 6, 500] {
        check(&memory, at, first + at as u64);
    }
    // Nobody touches these before the pager ends.
    give_up(&memory, 100, 50);
    assert_eq!(pager.finish().1, 0);
    for at in 0..512 {
        if (2..6).contains(&at) || (100..150).contains(&at) {
            memory.read(at * PAGE, &mut page);
            assert!(page == [0; PAGE], "page {at}");
        } else {
            check(&memory, at, first + at as u64);
        }
    }
}

/// The kernel refuses a range that lies in two mappings, with the error of memory that is no more.
#[test]
fn what_was_given_up_is_zero_in_the_end_however_it_is_cut() {
    if !can_share() {
        return;
    }
    let clean = clean(Generated::default(), 2 * MIB);
    let memory = Mapping::of_clean(clean.file(), 0, 2 * MIB).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let _kept = hand_over(&theirs, &[&memory]).unwrap();
    let received = receive(&ours, 2 * MIB as u64, MINUTE).unwrap();
    let pager = Pager::builder()
        .handed_over(received.descriptor, &received.regions)
        .clean(&clean)
        .start()
        .unwrap();
    check_all(&memory);
    give_up(&memory, 100, 60);
    let at = memory.as_ptr().wrapping_add(133 * PAGE);
    // SAFETY: the pages are this thread's, which only reads them from now on.
    let done = unsafe { libc::mprotect(at.cast(), 200 * PAGE, libc::PROT_READ) };
    assert_eq!(done, 0);
    assert_eq!(pager.finish().1, 0);
    for page in 0..512 {
        match (100..160).contains(&page) {
            true => {
                let mut found = [1; PAGE];
                memory.read(page * PAGE, &mut found);
                assert!(found == [0; PAGE], "page {page}");
            }
            false => check(&memory, page, page as u64),
        }
    }
}
