//! Shared memory that gets huge pages where whole blocks arrive.

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use amdahl_pager::{BLOCK, Backing, Engine, PAGE};
use common::{
    ENGINES, Generated, MIB, check, check_all, contents, is_possible, mapping, shared_huge_pages,
    start, with,
};

/// Bytes of shared memory that another mapping of the file maps as huge pages, once it has been read.
fn mapped_huge(file: &impl AsRawFd, len: usize) -> usize {
    // SAFETY: mappings of this function's own, unmapped at its end.
    unsafe {
        let (none, shared) = (
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            libc::MAP_SHARED | libc::MAP_FIXED,
        );
        let room = libc::mmap(
            std::ptr::null_mut(),
            len + BLOCK,
            libc::PROT_NONE,
            none,
            -1,
            0,
        );
        assert_ne!(room, libc::MAP_FAILED);
        let at = room.map_addr(|at| at.next_multiple_of(BLOCK));
        let mapped = libc::mmap(at, len, libc::PROT_READ, shared, file.as_raw_fd(), 0);
        assert_eq!(mapped, at);
        for page in (0..len).step_by(PAGE) {
            at.cast::<u8>().add(page).read_volatile();
        }
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps
            .lines()
            .skip_while(|line| !line.starts_with(&format!("{:x}-", at.addr())));
        let huge = lines
            .find_map(|line| line.strip_prefix("ShmemPmdMapped:"))
            .unwrap();
        libc::munmap(room, len + BLOCK);
        let kib: usize = huge.trim().trim_end_matches(" kB").parse().unwrap();
        kib << 10
    }
}

#[test]
fn whole_blocks_arrive_as_huge_pages_and_others_see_them() {
    if !is_possible() {
        return;
    }
    let Some(_given) = shared_huge_pages() else {
        return;
    };
    for engine in ENGINES {
        let memory = mapping(7 * MIB, Backing::SharedHuge).unwrap();
        let pager = start(engine, &memory, Arc::new(Generated::default()));
        check_all(&memory);
        let (stats, missing) = pager.finish();
        assert_eq!((stats.moved_blocks, missing), (3, 0), "{engine}: {stats:?}");
        assert_eq!(
            (stats.pages + stats.zero_pages) as usize,
            memory.len() / PAGE
        );
        let (mut seen, mut expected) = (vec![0; memory.len()], vec![0; memory.len()]);
        let file = std::fs::File::from(memory.file().unwrap().try_clone().unwrap());
        file.read_exact_at(&mut seen, 0).unwrap();
        contents(0, &mut expected);
        assert!(seen == expected, "{engine}: the file has something else");
        assert_eq!(mapped_huge(&file, memory.len()), 3 * BLOCK, "{engine}");
        assert!(file.set_len(0).is_err(), "it could be cut");
    }
}

#[test]
fn what_the_file_has_already_is_left_as_it_is() {
    if !is_possible() {
        return;
    }
    let given = shared_huge_pages();
    for engine in ENGINES {
        let memory = mapping(4 * MIB, Backing::SharedHuge).unwrap();
        let file = std::fs::File::from(memory.file().unwrap().try_clone().unwrap());
        let there = BLOCK / PAGE + 37;
        file.write_all_at(&[0xab; PAGE], (there * PAGE) as u64)
            .unwrap();
        let pager = start(engine, &memory, Arc::new(Generated::default()));
        for page in (0..memory.len() / PAGE).filter(|page| *page != there) {
            check(&memory, page, page as u64);
        }
        let mut found = [0; PAGE];
        memory.read(there * PAGE, &mut found);
        assert_eq!(found, [0xab; PAGE], "{engine}");
        let blocks = u64::from(given.is_some());
        // Who has brought a page counts it after waking who waited for it.
        let (stats, _) = pager.finish();
        assert_eq!(stats.moved_blocks, blocks, "{engine}");
    }
}

#[test]
fn what_is_given_up_reads_as_zero_before_and_after_it_came() {
    if !is_possible() {
        return;
    }
    let given = shared_huge_pages();
    for engine in ENGINES {
        let memory = mapping(6 * MIB, Backing::SharedHuge).unwrap();
        let pager = start(engine, &memory, Arc::new(Generated::default()));
        let pages = |at: usize| at * BLOCK / PAGE;
        check(&memory, pages(1), pages(1) as u64);
        // The first block has not come, the second has: as a whole where huge pages are given.
        for gone in [10..20, pages(1) + 10..pages(1) + 20] {
            // SAFETY: nobody has references to it.
            unsafe { pager.discard(gone) }.unwrap();
        }
        for page in 0..memory.len() / PAGE {
            let mut found = [1; PAGE];
            match page % pages(1) {
                10..20 if page < pages(2) => {
                    memory.read(page * PAGE, &mut found);
                    assert_eq!(found, [0; PAGE], "{engine}: {page}");
                }
                _ => check(&memory, page, page as u64),
            }
        }
        if given.is_some() {
            assert!(pager.stats().moved_blocks >= 1, "{engine}");
        }
    }
}

#[test]
fn a_source_that_fails_now_and_then_gives_the_right_content() {
    if !is_possible() {
        return;
    }
    let given = shared_huge_pages();
    let mut blocks = 0;
    for seed in 0..10 {
        for engine in ENGINES {
            let memory = mapping(8 * MIB, Backing::SharedHuge).unwrap();
            let source = Arc::new(Generated {
                failing_permille: 100,
                seed,
                ..Generated::default()
            });
            let pager = with(engine, &memory, source, |builder| builder.workers(2));
            if engine != Engine::Inline {
                pager.start_background();
            }
            check_all(&memory);
            blocks += pager.stats().moved_blocks;
        }
    }
    assert_eq!(blocks > 0, given.is_some());
}
