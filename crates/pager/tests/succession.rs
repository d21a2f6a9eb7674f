//! One pager goes on where another was left: no fault is lost, nothing is served wrongly.

mod common;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use amdahl_pager::succession::Ledger;
use amdahl_pager::{
    BLOCK, Background, Backing, Builder, Error, HandedOver, Mapping, PAGE, Pager, Source,
};
use common::{
    Generated, Stuck, check, check_all, ends, give_up, is_possible, mapping, mix, peek, vmm,
};

struct Memory {
    memory: Arc<Mapping>,
    descriptor: OwnedFd,
    _kept: OwnedFd,
    region: HandedOver,
    ledger: Arc<Ledger>,
}

impl Memory {
    fn new(bytes: usize) -> Option<Memory> {
        let memory = mapping(bytes, Backing::Small)?;
        let [descriptor, kept] = vmm(&memory)?;
        let region = HandedOver {
            start: memory.as_ptr().expose_provenance(),
            len: bytes,
            source_offset: 0,
            page_bytes: PAGE,
        };
        let ledger = Arc::new(Ledger::new(&[region], [3; 16]).expect("a ledger"));
        Some(Memory {
            memory,
            descriptor,
            _kept: kept,
            region,
            ledger,
        })
    }

    /// A pager for it, with the ledger as another process would have it.
    fn builder(&self, source: Arc<dyn Source>) -> Builder {
        let fd = self.ledger.descriptor().try_clone_to_owned().unwrap();
        let ledger = Ledger::open(fd, &[self.region], [3; 16]).expect("the same ledger");
        Pager::builder()
            .handed_over(self.descriptor.try_clone().unwrap(), &[self.region])
            .source(source)
            .ledger(Arc::new(ledger))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Unmapping registered memory waits until somebody has read of it.
        drop(self.builder(Arc::new(Generated::default())).start());
    }
}

#[test]
fn threads_that_fault_notice_nothing_of_many_changes() {
    if !is_possible() {
        return;
    }
    let pages = 8192;
    let Some(memory) = Memory::new(pages * PAGE) else {
        return;
    };
    let source = Arc::new(Generated::default());
    let start = |nth: usize| {
        // Some of them fetch in the background as well.
        let background = match nth % 3 {
            0 => Background::BytesPerSecond(8 << 20),
            _ => Background::Off,
        };
        let builder = memory.builder(Arc::clone(&source) as Arc<dyn Source>);
        let window = if nth.is_multiple_of(2) {
            PAGE
        } else {
            16 * PAGE
        };
        builder
            .background(background)
            .window(window)
            .start()
            .unwrap()
    };
    let mut pager = start(0);
    let is_over = AtomicBool::new(false);
    // The upper half is given up, piece by piece, the lower is read.
    let half = pages / 2;
    let pager = thread::scope(|scope| {
        let (is_over, memory) = (&is_over, &memory);
        for nth in 0..3u64 {
            scope.spawn(move || {
                for turn in 0.. {
                    let page = mix(turn * 3 + nth) as usize % half;
                    check(&memory.memory, page, page as u64);
                    if is_over.load(Ordering::Relaxed) && turn > 20_000 {
                        break;
                    }
                }
            });
        }
        let balloon = scope.spawn(move || {
            for piece in (half..pages).step_by(8) {
                // Some were there, most were not.
                if piece % 3 == 0 {
                    check(&memory.memory, piece + 1, piece as u64 + 1);
                }
                give_up(&memory.memory, piece, 8);
                for page in [piece, piece + 1, piece + 7] {
                    let found = peek(&memory.memory, page);
                    assert_eq!(found.as_deref(), Some(&[0; PAGE]), "page {page}");
                }
            }
        });
        let mut changes = 0;
        while !balloon.is_finished() || changes < 30 {
            changes += 1;
            pager.leave().expect("left");
            drop(pager);
            pager = start(changes);
        }
        is_over.store(true, Ordering::Relaxed);
        pager
    });
    for page in half..pages {
        assert_eq!(
            peek(&memory.memory, page).as_deref(),
            Some(&[0; PAGE]),
            "page {page}"
        );
    }
    assert_eq!(pager.stats().lost_pages, 0);
    ends("drop", || drop(pager));
}

#[test]
fn what_has_arrived_is_not_fetched_again() {
    if !is_possible() {
        return;
    }
    let Some(memory) = Memory::new(2 * BLOCK) else {
        return;
    };
    let counted = Arc::new(Generated::counted(1024));
    let pager = memory.builder(Arc::clone(&counted) as _).start().unwrap();
    assert_eq!(pager.fill(), 0);
    pager.leave().unwrap();
    drop(pager);
    let pager = memory.builder(Arc::clone(&counted) as _).start().unwrap();
    assert_eq!(pager.missing_pages(), 0);
    assert_eq!(pager.fill(), 0);
    check_all(&memory.memory);
    let counts = counted.per_page.iter();
    assert!(
        counts
            .map(|count| count.load(Ordering::Relaxed))
            .eq([1; 1024])
    );
    pager.leave().unwrap();
}

#[test]
fn what_was_lost_stays_lost_until_it_is_given_up() {
    if !is_possible() {
        return;
    }
    let Some(memory) = Memory::new(BLOCK) else {
        return;
    };
    let broken = Generated {
        bad: Some(8),
        ..Generated::default()
    };
    let pager = memory.builder(Arc::new(broken)).start().unwrap();
    assert!(peek(&memory.memory, 8).is_none());
    check(&memory.memory, 9, 9);
    pager.leave().unwrap();
    drop(pager);
    let good = || Arc::new(Generated::default());
    let pager = memory.builder(good()).start().unwrap();
    assert!(peek(&memory.memory, 8).is_none());
    check(&memory.memory, 300, 300);
    give_up(&memory.memory, 8, 1);
    assert_eq!(peek(&memory.memory, 8).as_deref(), Some(&[0; PAGE]));
    pager.leave().unwrap();
    drop(pager);
    let pager = memory.builder(good()).start().unwrap();
    assert_eq!(peek(&memory.memory, 8).as_deref(), Some(&[0; PAGE]));
    ends("drop", || drop(pager));
}

#[test]
fn a_source_that_says_nothing_does_not_keep_the_memory() {
    if !is_possible() {
        return;
    }
    let Some(memory) = Memory::new(BLOCK) else {
        return;
    };
    let stuck = Stuck::new();
    let pager = memory.builder(Arc::clone(&stuck) as _).start().unwrap();
    thread::scope(|scope| {
        let reading: Vec<_> = [5, 77, 400]
            .into_iter()
            .map(|page| {
                scope.spawn({
                    let memory = &memory;
                    move || check(&memory.memory, page, page as u64)
                })
            })
            .collect();
        while stuck.waiting.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        pager.leave().unwrap();
        let other = memory.builder(Arc::new(Generated::default()));
        let other = other.start().unwrap();
        for thread in reading {
            thread.join().unwrap();
        }
        // Whoever was held up comes back, and puts nothing into place.
        give_up(&memory.memory, 5, 1);
        stuck.let_go();
        drop(pager);
        assert_eq!(peek(&memory.memory, 5).as_deref(), Some(&[0; PAGE]));
        check(&memory.memory, 78, 78);
        ends("drop", || drop(other));
    });
}

#[test]
fn a_ledger_of_other_memory_is_refused() {
    if !is_possible() {
        return;
    }
    let (Some(memory), Some(other)) = (Memory::new(BLOCK), Memory::new(2 * BLOCK)) else {
        return;
    };
    let wrong = memory
        .builder(Arc::new(Generated::default()))
        .ledger(Arc::clone(&other.ledger))
        .start();
    assert!(matches!(wrong, Err(Error::Config(_))));
    let without = Pager::builder()
        .handed_over(memory.descriptor.try_clone().unwrap(), &[memory.region])
        .source(Arc::new(Generated::default()))
        .start()
        .unwrap();
    assert!(matches!(without.leave(), Err(Error::Config(_))));
    check(&memory.memory, 3, 3);
    ends("drop", || drop(without));
}

/// Killed between the kernel's giving the message of a balloon and the marking of its pages, which the kernel has let go by then: they were read as
/// what the source has.
#[test]
fn a_balloon_that_was_told_to_one_who_died_is_not_forgotten() {
    if !is_possible() {
        return;
    }
    let Some(memory) = Memory::new(BLOCK) else {
        return;
    };
    let address = |page: usize| (memory.region.start + page * PAGE) as u64;
    // `struct uffd_msg`: UFFD_EVENT_REMOVE, then from where to where.
    let mut message = [0; 32];
    message[0] = 0x15;
    message[8..16].copy_from_slice(&address(10).to_ne_bytes());
    message[16..24].copy_from_slice(&address(14).to_ne_bytes());
    let file = std::fs::File::from(memory.ledger.descriptor().try_clone_to_owned().unwrap());
    // The third of those that were read at once.
    std::os::unix::fs::FileExt::write_all_at(&file, &message, (PAGE + 64) as u64).unwrap();
    let start = || memory.builder(Arc::new(Generated::default())).start();
    for turn in 0..2 {
        let pager = start().unwrap();
        if turn == 1 {
            // Killed once more before any of them was touched: the first has left nothing but its marks.
            for page in 10..14 {
                let found = peek(&memory.memory, page);
                assert_eq!(found.as_deref(), Some(&[0; PAGE]), "page {page}");
            }
            check(&memory.memory, 14, 14);
            check(&memory.memory, 9, 9);
        }
        pager.leave().unwrap();
    }
}

/// Nothing that another process writes there makes us panic or touch what is not ours.
#[test]
fn a_ledger_full_of_nonsense_harms_nobody() {
    if !is_possible() {
        return;
    }
    for seed in 0..30u64 {
        let Some(memory) = Memory::new(BLOCK) else {
            return;
        };
        let file = std::fs::File::from(memory.ledger.descriptor().try_clone_to_owned().unwrap());
        let mut messages: Vec<u8> = (0..PAGE as u64)
            .map(|at| match at % 32 {
                // Kinds that there are. The descriptor of a fork is never ours.
                0 => [0x12, 0x13, 0x14, 0x15, 0x16, 0][mix(seed * 7919 + at) as usize % 6],
                8..24 if seed % 3 == 0 => 0xff,
                _ => mix(seed << 20 | at) as u8,
            })
            .collect();
        // Moves that begin within the region and not at a page, or go beyond the last address.
        for (nth, message) in messages.chunks_exact_mut(32).enumerate().step_by(3) {
            let mixed = mix(seed << 8 | nth as u64);
            message[0] = 0x14;
            let from = memory.region.start as u64 + mixed % BLOCK as u64;
            let len = if nth % 2 == 0 { mixed >> 20 } else { mixed };
            for (word, value) in [from, mixed << 3, len].into_iter().enumerate() {
                message[8 + word * 8..][..8].copy_from_slice(&value.to_ne_bytes());
            }
        }
        std::os::unix::fs::FileExt::write_all_at(&file, &messages, PAGE as u64).unwrap();
        let source = Arc::new(Generated::default());
        let pager = memory.builder(source).start().unwrap();
        check(&memory.memory, 100, 100);
        assert_eq!(pager.fill(), 0);
        check_all(&memory.memory);
        ends("drop", || drop(pager));
    }
}
