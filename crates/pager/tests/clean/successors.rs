//! Mappings of clean pages go on when the process that filled their file is gone: what the file has is one copy still, the rest comes once more.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use amdahl_pager::handoff::{Offer, hand_over, offer, offer_in_spite, receive, take_offer};
use amdahl_pager::succession::{Filled, Ledger};
use amdahl_pager::{
    Background, Backing, Builder, CleanPages, Engine, Error, HandedOver, Mapping, PAGE, Pager,
    Source, SourceError, WorkingSet,
};

use super::common::{
    Generated, MIB, MINUTE, Stuck, check, check_all, ends, give_up, mix, peek, registered_for,
    start,
};
use super::others::mapped_to_write;
use super::{can_offer, can_share, clean, in_file, smaps};

const ID: [u8; 16] = [5; 16];

fn filled(bytes: usize) -> Arc<Filled> {
    Arc::new(Filled::new(bytes as u64, ID).unwrap())
}

/// As another process would have it.
fn again(filled: &Filled, bytes: usize) -> Arc<Filled> {
    let fd = filled.descriptor().try_clone_to_owned().unwrap();
    Arc::new(Filled::open(fd, bytes as u64, ID).unwrap())
}

fn noted(source: &Arc<Generated>, bytes: usize) -> (Arc<CleanPages>, Arc<Filled>) {
    let filled = filled(bytes);
    let source: Arc<dyn Source> = Arc::<Generated>::clone(source);
    let clean = CleanPages::new(source, bytes as u64).unwrap();
    (Arc::new(clean.noted(Arc::clone(&filled)).unwrap()), filled)
}

/// A VM that maps a file of clean pages.
struct Vm {
    memory: Mapping,
    descriptor: OwnedFd,
    region: HandedOver,
    ledger: Arc<Ledger>,
}

impl Vm {
    fn new(clean: &CleanPages) -> Vm {
        let (ours, theirs) = UnixStream::pair().unwrap();
        offer_in_spite(&ours, clean).unwrap();
        Vm::of(&take_offer(&theirs, MINUTE).unwrap(), &theirs)
    }

    /// What is handed over goes to the stream as well.
    fn of(offer: &Offer, stream: &UnixStream) -> Vm {
        let memory = offer.map(0, offer.bytes() as usize).unwrap();
        let region = HandedOver {
            start: memory.as_ptr().expose_provenance(),
            len: memory.len(),
            source_offset: 0,
            page_bytes: PAGE,
        };
        let ledger = Arc::new(Ledger::new(&[region], ID).unwrap());
        tell(stream, ledger.descriptor());
        let descriptor = hand_over(stream, &[&memory]).unwrap();
        Vm {
            memory,
            descriptor,
            region,
            ledger,
        }
    }

    fn builder(&self) -> Builder {
        let fd = self.ledger.descriptor().try_clone_to_owned().unwrap();
        let ledger = Ledger::open(fd, &[self.region], ID).unwrap();
        Pager::builder()
            .handed_over(self.descriptor.try_clone().unwrap(), &[self.region])
            .ledger(Arc::new(ledger))
    }
}

fn is_zero(memory: &Mapping, page: usize) -> bool {
    peek(memory, page).is_some_and(|found| *found == [0; PAGE])
}

/// Page by page, so that it is known what the file has.
fn touch(memory: &Mapping, pages: std::ops::Range<usize>) {
    pages.for_each(|page| check(memory, page, page as u64));
}

#[test]
fn what_the_file_has_is_mapped_and_the_rest_is_the_vms_own() {
    if !can_share() {
        return;
    }
    let bytes = 4 * MIB;
    let pages = bytes / PAGE;
    let source = Arc::new(Generated::counted(pages));
    let (first, filled) = noted(&source, bytes);
    let vms = [Vm::new(&first), Vm::new(&first)];
    let start = |vm: &Vm| vm.builder().clean(&first).window(PAGE).start().unwrap();
    let pagers = vms.each_ref().map(start);
    let [one, other] = &vms;
    touch(&one.memory, 0..200);
    touch(&other.memory, 100..300);
    assert_eq!(filled.pages_there(), 300);
    for page in 10..15 {
        one.memory.write(page * PAGE, &[7; PAGE]);
    }
    give_up(&one.memory, 20, 5);
    // One was touched again, which is zero and no page of the file's.
    assert!(is_zero(&one.memory, 21));
    for pager in pagers {
        pager.leave().unwrap();
    }
    // The only mapping that could write to the file.
    drop(first);
    let mut before = again(&filled, bytes);
    let mut clean: Option<Arc<CleanPages>> = None;
    // One after the other, of which the last may be filled by nobody but the first.
    for turn in 0..3 {
        let (next, _) = noted(&source, bytes);
        let start = |vm: &Vm| {
            let source: Arc<dyn Source> = Arc::<CleanPages>::clone(&next);
            let builder = vm.builder().clean_before(&before, source);
            builder.window(PAGE).start().unwrap()
        };
        let pagers = vms.each_ref().map(start);
        for page in 20..25 {
            assert!(is_zero(&one.memory, page), "{page}");
        }
        for page in 10..15 {
            assert_eq!(*peek(&one.memory, page).unwrap(), [7; PAGE]);
        }
        check(&other.memory, 12, 12);
        check(&other.memory, 22, 22);
        // In the file, and not mapped by this one until now.
        let at = 200 + 20 * turn;
        touch(&one.memory, at..at + 20);
        // In no file.
        let at = 400 + 50 * turn;
        touch(&one.memory, at..at + 50);
        touch(&other.memory, at + 25..at + 75);
        // What is counted is, when it was left.
        pagers.iter().for_each(|pager| pager.leave().unwrap());
        let [mine, others] = pagers.each_ref().map(Pager::stats);
        let mapped = if turn == 0 { 2 } else { 0 };
        assert_eq!((mine.shared_pages, others.shared_pages), (20, mapped));
        assert!(mine.pages + mine.zero_pages >= 70, "{mine:?}");
        before = again(&before, bytes);
        clean = Some(next);
    }
    // Copies are the VM's own, in memory; what is mapped is not.
    let zeros = (400..550)
        .filter(|page| super::is_zero(*page as u64))
        .count();
    let own = 150 - zeros + 5;
    assert_eq!(smaps(&one.memory, "Anonymous:"), (own * PAGE / 1024) as u64);
    let clean = clean.unwrap();
    for vm in &vms {
        let source: Arc<dyn Source> = Arc::<CleanPages>::clone(&clean);
        let pager = vm.builder().clean_before(&before, source).start().unwrap();
        assert_eq!(pager.fill(), 0);
        let given_up = |page: usize| (20..25).contains(&page) || (10..15).contains(&page);
        for page in (0..pages).filter(|page| !given_up(*page)) {
            check(&vm.memory, page, page as u64);
        }
        ends("drop", || drop(pager));
    }
    // Nobody asks for what the file has, however often one goes on.
    let counts = source
        .per_page
        .iter()
        .map(|count| count.load(Ordering::Relaxed));
    assert!(counts.take(300).eq([1; 300]));
}

/// Has its content in memory that arrives late.
struct Slowly(Arc<Mapping>);

impl Source for Slowly {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
        unreachable!("it is in memory")
    }

    fn in_memory(&self, offset: u64, _: usize) -> Option<*const u8> {
        Some(self.0.as_ptr().wrapping_add(offset as usize))
    }
}

/// Killed in the middle of the copy, with the bit set, the next one would map half a page.
#[test]
fn a_page_is_noted_when_all_of_it_is_in_the_file() {
    if !can_share() {
        return;
    }
    let stuck = Stuck::new();
    let memory = Arc::new(Mapping::new(PAGE, Backing::Small).unwrap());
    let slow = start(Engine::Sharded, &memory, Arc::<Stuck>::clone(&stuck));
    let filled = filled(PAGE);
    let clean = CleanPages::new(Arc::new(Slowly(memory)), PAGE as u64).unwrap();
    let clean = clean.noted(Arc::clone(&filled)).unwrap();
    thread::scope(|scope| {
        let brings = scope.spawn(|| clean.prefetch(&WorkingSet::from_pages([0])));
        // It waits in the copy.
        while stuck.waiting.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        let there = (filled.pages_there(), clean.pages_there());
        stuck.let_go();
        assert_eq!(brings.join().unwrap(), 0);
        assert_eq!(there, (0, 0));
        assert_eq!((filled.pages_there(), clean.pages_there()), (1, 1));
    });
    ends("drop", || drop(slow));
}

/// The end of a page that was copied to the file when its process was killed: it has no bit.
#[test]
fn a_page_of_which_the_file_has_a_part_is_not_mapped() {
    if !can_share() {
        return;
    }
    let bytes = MIB;
    let source = Arc::new(Generated::default());
    let (first, filled) = noted(&source, bytes);
    let vm = Vm::new(&first);
    let pager = vm.builder().clean(&first).window(PAGE).start().unwrap();
    touch(&vm.memory, 0..10);
    let at = mapped_to_write(&first) + 20 * PAGE;
    // SAFETY: the file's only mapping that can be written to, of which nobody has brought these pages.
    unsafe {
        let at: *mut u8 = std::ptr::with_exposed_provenance_mut(at);
        at.write_bytes(0x55, 10 * PAGE);
    }
    assert!(in_file(&first, 20) == [0x55; PAGE]);
    pager.leave().unwrap();
    drop(first);
    assert_eq!(filled.pages_there(), 10);
    let builder = vm.builder().clean_before(&filled, source);
    let pager = builder.start().unwrap();
    check_all(&vm.memory);
    assert_eq!(pager.stats().lost_pages, 0);
    ends("drop", || drop(pager));
}

/// The mark of what was given up went with the process that had it: what had been zero was the file's page again when the kernel unmapped the zeros.
#[test]
fn what_was_given_up_before_stays_zero_whatever_becomes_of_its_zeros() {
    if !can_share() {
        return;
    }
    let bytes = MIB;
    let source = Arc::new(Generated::default());
    let (first, filled) = noted(&source, bytes);
    let (other, mut pager) = super::vm(&first, Engine::Sharded);
    check_all(&other);
    let memory = Mapping::of_clean(first.file(), 0, bytes).unwrap();
    // Of nothing that changes is told, so what is given up below is as if unmapped by the kernel.
    let Some([descriptor, _kept]) = registered_for(memory.as_ptr().addr(), bytes, 1 | 4, 0) else {
        return;
    };
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the memory is this test's, and is served from below on.
    let done = unsafe { libc::mprotect(memory.as_ptr().cast(), bytes, both) };
    assert_eq!(done, 0);
    let region = HandedOver {
        start: memory.as_ptr().expose_provenance(),
        len: bytes,
        source_offset: 0,
        page_bytes: PAGE,
    };
    let ledger = Arc::new(Ledger::new(&[region], ID).unwrap());
    // As the ledger's layout has it: the pages that were given up follow those that are settled.
    let file = File::from(ledger.descriptor().try_clone_to_owned().unwrap());
    let removed = 1u64 << 9 | 1 << 10;
    std::os::unix::fs::FileExt::write_all_at(&file, &removed.to_ne_bytes(), 3 * PAGE as u64)
        .unwrap();
    let before = Pager::builder()
        .handed_over(descriptor, &[region])
        .clean_before(&filled, source)
        .ledger(ledger)
        .start()
        .unwrap();
    for page in [8, 11] {
        check(&memory, page, page as u64);
        give_up(&memory, page, 1);
        check(&memory, page, page as u64);
    }
    for page in [9, 10] {
        assert!(is_zero(&memory, page));
        give_up(&memory, page, 1);
        assert!(is_zero(&memory, page), "{page}");
    }
    pager.stop();
    ends("drop", || drop(before));
}

/// Who is held up by the source fills the file later, which is right, and puts nothing into place.
#[test]
fn a_fetch_that_is_held_up_is_not_waited_for() {
    if !can_share() {
        return;
    }
    let stuck = Stuck::new();
    let filled = filled(MIB);
    let held_up: Arc<dyn Source> = Arc::<Stuck>::clone(&stuck);
    let first = CleanPages::new(held_up, MIB as u64).unwrap();
    let first = Arc::new(first.noted(Arc::clone(&filled)).unwrap());
    let vm = Vm::new(&first);
    let pager = vm.builder().clean(&first).window(PAGE).start().unwrap();
    thread::scope(|scope| {
        let vm = &vm;
        let reading =
            [5, 77, 200].map(|page| scope.spawn(move || check(&vm.memory, page, page as u64)));
        while stuck.waiting.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        pager.leave().unwrap();
        let (next, _) = noted(&Arc::new(Generated::default()), MIB);
        let next = vm.builder().clean_before(&filled, next).start().unwrap();
        for thread in reading {
            thread.join().unwrap();
        }
        give_up(&vm.memory, 5, 1);
        stuck.let_go();
        drop(pager);
        assert!(is_zero(&vm.memory, 5));
        for page in (0..MIB / PAGE).filter(|page| *page != 5) {
            check(&vm.memory, page, page as u64);
        }
        ends("drop", || drop(next));
    });
}

#[test]
fn what_cannot_be_gone_on_with_is_refused() {
    let source = || Arc::new(Generated::default()) as Arc<dyn Source>;
    let new = || CleanPages::new(source(), MIB as u64).unwrap();
    assert!(matches!(
        new().noted(filled(MIB + PAGE)),
        Err(Error::Config(_))
    ));
    if !can_share() {
        return;
    }
    // What another file has says nothing of a new one.
    let (first, noted) = noted(&Arc::new(Generated::default()), MIB);
    let (memory, pager) = super::vm(&first, Engine::Sharded);
    check(&memory, 3, 3);
    assert!(matches!(
        new().noted(Arc::clone(&noted)),
        Err(Error::Config(_))
    ));
    // Memory of this process maps files of this process.
    let clean = clean(Generated::default(), MIB);
    let own = Arc::new(clean.map(0, MIB).unwrap());
    let refused = Pager::builder()
        .mapping(&own, 0)
        .clean_before(&noted, source())
        .start();
    assert!(matches!(refused, Err(Error::Config(_))));
    ends("drop", || drop(pager));
}

// The process that has the clean pages, which is killed.

const SOCKET: &str = "PAGER_TEST_CLEAN_DAEMON";
const LEN: usize = 16 * MIB;

/// Memory that the parent has, by the number of its descriptor there.
fn parents(stream: &mut UnixStream) -> OwnedFd {
    let mut number = [0; 4];
    stream.read_exact(&mut number).unwrap();
    let number = i32::from_ne_bytes(number);
    let path = format!("/proc/{}/fd/{number}", std::os::unix::process::parent_id());
    let file = File::options().read(true).write(true).open(path);
    file.unwrap().into()
}

fn tell(mut stream: &UnixStream, descriptor: BorrowedFd<'_>) {
    let number = descriptor.as_raw_fd().to_ne_bytes();
    stream.write_all(&number).unwrap();
}

/// Serves until it is killed.
#[test]
fn a_daemon() {
    let Ok(path) = std::env::var(SOCKET) else {
        return;
    };
    let mut stream = UnixStream::connect(path).unwrap();
    let filled = Filled::open(parents(&mut stream), LEN as u64, ID).unwrap();
    let clean = CleanPages::new(Arc::new(Generated::default()), LEN as u64).unwrap();
    let clean = Arc::new(clean.noted(Arc::new(filled)).unwrap());
    offer(&stream, &clean).unwrap();
    let ledger = parents(&mut stream);
    let memory = receive(&stream, LEN as u64, MINUTE).unwrap();
    let ledger = Ledger::open(ledger, &memory.regions, ID).unwrap();
    let _pager = Pager::builder()
        .handed_over(memory.descriptor, &memory.regions)
        .clean(&clean)
        .ledger(Arc::new(ledger))
        .background(Background::BytesPerSecond(16 << 20))
        .start()
        .unwrap();
    loop {
        thread::park();
    }
}

/// Killed while it fills, at moments that a seed chooses: VMs pause, and nothing is wrong.
#[test]
fn a_vm_goes_on_when_the_one_that_filled_is_killed() {
    if !can_offer() {
        return;
    }
    let seeds = std::env::var("AMDAHL_SEEDS").ok();
    let seeds = seeds.and_then(|text| text.parse().ok()).unwrap_or(8u64);
    for seed in 0..seeds {
        ends("a seed", move || killed(seed));
    }
}

fn killed(seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("daemon");
    let listener = UnixListener::bind(&path).unwrap();
    let mut daemon = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "successors::a_daemon", "--nocapture"])
        .env(SOCKET, &path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (stream, _) = listener.accept().unwrap();
    let filled = filled(LEN);
    tell(&stream, filled.descriptor());
    let vm = Vm::of(&take_offer(&stream, MINUTE).unwrap(), &stream);
    let pages = LEN / PAGE;
    // The last quarter is written to and given up; the rest is read.
    let (read, is_over) = (pages / 4 * 3, AtomicBool::new(false));
    let checked = AtomicUsize::new(0);
    let pager = thread::scope(|scope| {
        let (vm, is_over, checked) = (&vm, &is_over, &checked);
        for nth in 0..2u64 {
            scope.spawn(move || {
                for turn in 0u64.. {
                    let page = mix(seed << 40 ^ turn << 1 ^ nth) as usize % read;
                    check(&vm.memory, page, page as u64);
                    checked.fetch_add(1, Ordering::Relaxed);
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        scope.spawn(move || {
            for page in (read..pages - 3).step_by(4) {
                check(&vm.memory, page, page as u64);
                vm.memory.write((page + 1) * PAGE, &[page as u8; PAGE]);
                give_up(&vm.memory, page + 2, 1);
                assert!(is_zero(&vm.memory, page + 2), "{page}");
            }
        });
        // How much was done, and then some instructions more, which nobody counts.
        let until = 1 + mix(seed) as usize % 400;
        while checked.load(Ordering::Relaxed) < until {
            thread::yield_now();
        }
        for _ in 0..mix(!seed) % 200_000 {
            std::hint::spin_loop();
        }
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        let (next, _) = noted(&Arc::new(Generated::default()), LEN);
        let pager = vm.builder().clean_before(&filled, next).start().unwrap();
        let until = checked.load(Ordering::Relaxed) + 500;
        while checked.load(Ordering::Relaxed) < until {
            thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
        pager
    });
    assert!(filled.pages_there() > 0, "nothing was noted");
    assert_eq!(pager.fill(), 0);
    for page in 0..pages {
        match page.checked_sub(read).map(|past| past % 4) {
            Some(1) => {
                let expected = [(page - 1) as u8; PAGE];
                assert!(*peek(&vm.memory, page).unwrap() == expected, "{page}");
            }
            Some(2) => assert!(is_zero(&vm.memory, page), "{page}"),
            _ => check(&vm.memory, page, page as u64),
        }
    }
    assert_eq!(pager.stats().lost_pages, 0);
    drop(pager);
}
