//! Pages that come back just when something else ends: neither lost nor missing.

mod common;

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use amdahl_pager::{BLOCK, Backing, Engine, Event, Mapping, PAGE, Pager, Source, SourceError};
use common::{
    Deaf, Generated, MINUTE, begin, check, content, ends, ends_well, expected, give_up,
    handed_over, is_child, is_possible, mapping, peek, refuse, refuse_for_a_while, refuse_to, vmm,
};

/// It was lost where it was touched just when serving ended: by then the memory is registered no longer.
#[test]
fn a_page_that_was_given_up_is_not_lost_where_nothing_is_registered() {
    if !is_possible() {
        return;
    }
    const ZEROPAGE: u32 = 0xc020_aa04;
    const UNREGISTER: libc::c_ulong = 0x8010_aa01;
    let test = "a_page_that_was_given_up_is_not_lost_where_nothing_is_registered";
    if is_child(test, "unregistered", ends_well) {
        let memory = mapping(BLOCK, Backing::Small).unwrap();
        let Some([descriptor, kept]) = vmm(&memory) else {
            return;
        };
        let pager = handed_over(descriptor, &memory, 1)
            .source(Arc::new(Generated::default()))
            .start()
            .unwrap();
        assert_eq!(pager.fill(), 0);
        give_up(&memory, 0, 1);
        // As the kernel says then.
        refuse(libc::SYS_ioctl, 1, ZEROPAGE, libc::ENOENT);
        let faults = pager.stats().faults;
        let touched = {
            let memory = Arc::clone(&memory);
            begin(move || peek(&memory, 0))
        };
        // Let go on, it faults again, for it is registered after all.
        let begun = std::time::Instant::now();
        while pager.stats().faults < faults + 2 {
            assert!(begun.elapsed() < MINUTE, "{:?}", pager.stats());
            assert_eq!(pager.stats().lost_pages, 0);
            std::thread::yield_now();
        }
        let mut range = [memory.as_ptr().addr() as u64, PAGE as u64];
        // SAFETY: the call takes two words; the memory is the test's.
        let done = unsafe { libc::ioctl(kept.as_raw_fd(), UNREGISTER, &raw mut range) };
        assert_eq!(done, 0);
        let found = touched.recv_timeout(MINUTE).expect("the kernel's fault");
        assert_eq!(found.as_deref(), Some(&[0; PAGE]));
        assert_eq!(pager.stats().lost_pages, 0);
        let told = Event::Removed { page: 0, pages: 1 };
        assert_eq!(pager.next_event(Duration::ZERO), Some(told));
        assert_eq!(pager.next_event(Duration::ZERO), None);
        std::process::exit(0);
    }
}

/// Whose first reader finds memory about to change for ever.
struct Hindered(Arc<Deaf>);

impl Source for Hindered {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        const COPY: u32 = 0xc028_aa03;
        if self.0.waiting.load(Ordering::SeqCst) == 0 {
            refuse_to(0, libc::SYS_ioctl, 1, COPY, libc::EAGAIN);
        }
        self.0.read(offset, into)
    }
}

/// Whose readers find no memory for so many copies of pages.
struct Scarce {
    times: usize,
    reads: AtomicUsize,
}

impl Source for Scarce {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        const COPY: u32 = 0xc028_aa03;
        if self.reads.fetch_add(1, Ordering::SeqCst) == 0 {
            refuse_for_a_while(libc::SYS_ioctl, 1, COPY, libc::ENOMEM, self.times);
        }
        content(offset / PAGE as u64, into);
        Ok(())
    }
}

/// A pager that finds no memory for pages so many times.
fn without_memory(times: usize, timeout: Duration) -> (Arc<Mapping>, Arc<Scarce>, Pager) {
    let memory = mapping(BLOCK, Backing::Small).unwrap();
    let source = Arc::new(Scarce {
        times,
        reads: AtomicUsize::new(0),
    });
    let pager = Pager::builder()
        .mapping(&memory, 0)
        .source(source.clone())
        .engine(Engine::Reader)
        .window(PAGE)
        .timeout(timeout)
        .start()
        .unwrap();
    (memory, source, pager)
}

/// It was lost after four tries in a row, though the machine mostly has memory again in a moment.
#[test]
fn a_page_for_which_there_is_no_memory_for_a_moment_is_not_lost() {
    if !is_possible() {
        return;
    }
    let (memory, source, pager) = without_memory(30, MINUTE);
    assert!(peek(&memory, 5).is_some_and(|found| *found == expected(5)));
    assert_eq!(pager.stats().lost_pages, 0);
    assert_eq!(source.reads.load(Ordering::SeqCst), 31);
}

/// It would keep a pager from ending that waits for memory.
#[test]
fn a_pager_ends_while_there_is_no_memory() {
    if !is_possible() {
        return;
    }
    let (memory, source, pager) = without_memory(usize::MAX, Duration::from_secs(24 * 3600));
    let touched = {
        let memory = Arc::clone(&memory);
        begin(move || peek(&memory, 5))
    };
    let begun = std::time::Instant::now();
    while source.reads.load(Ordering::SeqCst) < 9 {
        assert!(begun.elapsed() < MINUTE, "it is not tried again");
        std::thread::yield_now();
    }
    ends("drop", || drop(pager));
    assert_eq!(touched.recv_timeout(MINUTE), Ok(None));
}

/// They counted as missing, and a VM's end as a failure.
#[test]
fn pages_that_another_gives_back_are_fetched() {
    if !is_possible() {
        return;
    }
    let memory = mapping(BLOCK, Backing::Small).unwrap();
    let Some([descriptor, _kept]) = vmm(&memory) else {
        return;
    };
    let source = Deaf::new(u64::MAX);
    let pager = handed_over(descriptor, &memory, 1)
        .source(Arc::new(Hindered(source.clone())))
        .timeout(Duration::from_secs(24 * 3600))
        .start()
        .unwrap();
    let pager = Arc::new(pager);
    let fill = || {
        let pager = Arc::clone(&pager);
        begin(move || pager.fill())
    };
    let hindered = fill();
    source.wait_for(1);
    let other = fill();
    source.let_go();
    assert_eq!(other.recv_timeout(MINUTE), Ok(0));
    assert_eq!(hindered.recv_timeout(MINUTE), Ok(0));
    check(&memory, 0, 0);
}
