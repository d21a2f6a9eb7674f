//! What the contract tests share: content that proves itself, sources that fail as told.
#![allow(dead_code)] // Each test binary uses a part.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use amdahl_pager::measure::{Reserved, SharedHugePages};
use amdahl_pager::{
    BLOCK, Backing, Builder, Engine, Extent, HandedOver, Mapping, PAGE, Pager, Source, SourceError,
    Support,
};

/// Whether userfaultfd can be used here; says so if not.
pub fn is_possible() -> bool {
    let support = Support::probe();
    if support.way.is_none() {
        println!("SKIPPED: {support}");
    }
    support.way.is_some()
}

/// The engines that serve memory of this process.
pub const ENGINES: [Engine; 3] = [Engine::Reader, Engine::Sharded, Engine::Inline];

/// Huge pages for the tests of this process, where the machine keeps none and we may change that: as root. They are given back when the process
/// ends, however it does.
fn reserve_huge_pages() {
    static RESERVED: OnceLock<Option<Reserved>> = OnceLock::new();
    RESERVED.get_or_init(|| match Reserved::new(32 * BLOCK) {
        Ok(reserved) => Some(reserved),
        Err(why) => {
            println!("{why}");
            None
        }
    });
}

/// Huge pages for shared memory as long as this lives, where we may have the system give them; says why not.
pub fn shared_huge_pages() -> Option<SharedHugePages> {
    match SharedHugePages::new() {
        Ok(given) => Some(given),
        Err(why) => {
            println!("SKIPPED: {why}");
            None
        }
    }
}

/// A mapping, or why there is none.
pub fn mapping(len: usize, backing: Backing) -> Option<Arc<Mapping>> {
    let mut mapping = Mapping::new(len, backing);
    if mapping.is_err() && backing == Backing::HugeTlb {
        reserve_huge_pages();
        mapping = Mapping::new(len, backing);
    }
    match mapping {
        Ok(mapping) => Some(Arc::new(mapping)),
        Err(error) if backing == Backing::HugeTlb => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

/// Every seventh run of three pages is zero.
pub fn is_zero(page: u64) -> bool {
    page / 3 % 7 == 4
}

/// What a page of the source holds.
pub fn content(page: u64, into: &mut [u8]) {
    for (word, bytes) in into.chunks_exact_mut(8).enumerate() {
        let value = if is_zero(page) {
            0
        } else {
            mix(page << 9 | word as u64)
        };
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

/// What the source holds from an offset on, a page's beginning.
pub fn contents(offset: u64, into: &mut [u8]) {
    for (nth, bytes) in into.chunks_exact_mut(PAGE).enumerate() {
        content(offset / PAGE as u64 + nth as u64, bytes);
    }
}

/// Whether memory holds what the source has.
pub fn check(mapping: &Mapping, page: usize, source_page: u64) {
    let (mut found, mut expected) = ([0; PAGE], [0; PAGE]);
    mapping.read(page * PAGE, &mut found);
    content(source_page, &mut expected);
    assert!(found == expected, "page {page} is not what the source has");
}

pub fn check_all(mapping: &Mapping) {
    for page in 0..mapping.len() / PAGE {
        check(mapping, page, page as u64);
    }
}

/// Computes the content; can be told to fail, by a seed. Signal-safe.
#[derive(Default)]
pub struct Generated {
    pub zeros_told: bool,
    /// Of 1000 reads, how many fail, and are right when tried again.
    pub failing_permille: u64,
    pub seed: u64,
    /// Pages from here on cannot be had.
    pub end: Option<u64>,
    /// A page that is damaged for good.
    pub bad: Option<u64>,
    /// Of 1000 reads, how many panic.
    pub panicking_permille: u64,
    pub reads: AtomicU64,
    pub bytes: AtomicU64,
    /// Reads of each page, if counted.
    pub per_page: Vec<AtomicUsize>,
}

impl Generated {
    pub fn counted(pages: usize) -> Generated {
        Generated {
            per_page: (0..pages).map(|_| AtomicUsize::new(0)).collect(),
            ..Generated::default()
        }
    }
}

impl Source for Generated {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        let dice = mix(self.seed ^ mix(read)) % 1000;
        if dice < self.failing_permille {
            // Leaves something behind that nobody must see.
            into.fill(0xee);
            return Err(SourceError::Corrupt("as the test wants it"));
        }
        if dice < self.failing_permille + self.panicking_permille {
            into.fill(0xdd);
            panic!("as the test wants it");
        }
        for (nth, bytes) in into.chunks_exact_mut(PAGE).enumerate() {
            let page = offset / PAGE as u64 + nth as u64;
            if self.end.is_some_and(|end| page >= end) {
                let end = self.end.unwrap_or(0) * PAGE as u64;
                return Err(SourceError::Short { end });
            }
            if self.bad == Some(page) {
                return Err(SourceError::Corrupt("this page"));
            }
            if let Some(count) = self.per_page.get(page as usize) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            content(page, bytes);
        }
        Ok(())
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        let first = offset / PAGE as u64;
        let is_zero = self.zeros_told && is_zero(first);
        let mut end = first + 1;
        while (end - first) * (PAGE as u64) < len
            && (self.zeros_told && self::is_zero(end)) == is_zero
        {
            end += 1;
        }
        Extent {
            len: (end - first) * PAGE as u64,
            is_zero,
        }
    }

    fn is_signal_safe(&self) -> bool {
        true
    }
}

/// A source of which reads wait until they are let go.
pub struct Stuck {
    pub go: std::sync::Mutex<bool>,
    pub change: std::sync::Condvar,
    pub waiting: AtomicUsize,
}

impl Stuck {
    pub fn new() -> Arc<Stuck> {
        Arc::new(Stuck {
            go: std::sync::Mutex::new(false),
            change: std::sync::Condvar::new(),
            waiting: AtomicUsize::new(0),
        })
    }

    pub fn let_go(&self) {
        *self.go.lock().unwrap() = true;
        self.change.notify_all();
    }
}

impl Source for Stuck {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut go = self.go.lock().unwrap();
        while !*go {
            go = self.change.wait(go).unwrap();
        }
        contents(offset, into);
        Ok(())
    }
}

pub const MINUTE: Duration = Duration::from_secs(60);
pub const MIB: usize = BLOCK / 2;

/// A source that says nothing of some pages until it is let go. Signal-safe.
pub struct Deaf {
    /// From this page on it answers.
    pub until: u64,
    pub is_let_go: std::sync::atomic::AtomicBool,
    pub waiting: AtomicUsize,
}

impl Deaf {
    pub fn new(until: u64) -> Arc<Deaf> {
        Arc::new(Deaf {
            until,
            is_let_go: false.into(),
            waiting: AtomicUsize::new(0),
        })
    }

    pub fn let_go(&self) {
        self.is_let_go.store(true, Ordering::SeqCst);
    }

    /// Returns when so many reads wait.
    pub fn wait_for(&self, reads: usize) {
        let begun = std::time::Instant::now();
        while self.waiting.load(Ordering::SeqCst) < reads {
            assert!(begun.elapsed() < MINUTE, "nobody asks");
            std::thread::yield_now();
        }
    }
}

impl Source for Deaf {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        if offset / (PAGE as u64) < self.until {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            while !self.is_let_go.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        contents(offset, into);
        Ok(())
    }

    fn is_signal_safe(&self) -> bool {
        true
    }
}

/// Answers faults, and says nothing to who reads ahead until it is let go. Signal-safe.
pub struct Ahead {
    pub deaf: Arc<Deaf>,
    /// Pages that were read for faults.
    pub urgent: AtomicUsize,
}

impl Ahead {
    pub fn new() -> Arc<Ahead> {
        Arc::new(Ahead {
            deaf: Deaf::new(u64::MAX),
            urgent: AtomicUsize::new(0),
        })
    }
}

impl Source for Ahead {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.urgent.fetch_add(into.len() / PAGE, Ordering::SeqCst);
        contents(offset, into);
        Ok(())
    }

    fn read_ahead(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.deaf.read(offset, into)
    }

    fn is_signal_safe(&self) -> bool {
        true
    }
}

/// Runs something in a thread of its own, which is left behind if it does not end: that it ends is what is tested.
pub fn ends<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    begin(run)
        .recv_timeout(MINUTE)
        .unwrap_or_else(|_| panic!("{what} does not end"))
}

/// The same, going on meanwhile.
pub fn begin<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> std::sync::mpsc::Receiver<T> {
    let (to, from) = std::sync::mpsc::channel();
    std::thread::spawn(move || to.send(run()));
    from
}

/// Has the kernel read a page: `None` if that is an error, where a thread would be stopped by a signal.
pub fn peek(memory: &Mapping, page: usize) -> Option<Box<[u8; PAGE]>> {
    let mut found = Box::new([0; PAGE]);
    let local = libc::iovec {
        iov_base: found.as_mut_ptr().cast(),
        iov_len: PAGE,
    };
    let remote = libc::iovec {
        iov_base: memory.as_ptr().wrapping_add(page * PAGE).cast(),
        iov_len: PAGE,
    };
    // SAFETY: writes into the page alone; the kernel checks the other address.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (read == PAGE as isize).then_some(found)
}

pub fn expected(page: usize) -> [u8; PAGE] {
    let mut expected = [0; PAGE];
    content(page as u64, &mut expected);
    expected
}

/// Runs a test of this file again as a process of its own. True in that process.
pub fn is_child(
    test: &str,
    variant: &str,
    ends: impl FnOnce(std::process::ExitStatus) -> bool,
) -> bool {
    const NAME: &str = "PAGER_TEST_VARIANT";
    if let Ok(name) = std::env::var(NAME) {
        return name == variant;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(NAME, variant)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    assert!(
        ends(output.status),
        "{variant}: {:?}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// A descriptor as a VMM makes it: with messages of changes, set up by hand. The VMM keeps one of the two.
pub fn vmm(memory: &Mapping) -> Option<[OwnedFd; 2]> {
    vmm_as(memory, 1)
}

/// The same, registered in a mode.
pub fn vmm_as(memory: &Mapping, mode: u64) -> Option<[OwnedFd; 2]> {
    registered(memory.as_ptr().addr(), memory.len(), mode)
}

/// The same of any memory.
pub fn registered(start: usize, len: usize, mode: u64) -> Option<[OwnedFd; 2]> {
    const REMAP_REMOVE_AND_UNMAP: u64 = 1 << 2 | 1 << 3 | 1 << 6;
    registered_for(start, len, mode, REMAP_REMOVE_AND_UNMAP)
}

/// The same, with messages of such changes.
pub fn registered_for(start: usize, len: usize, mode: u64, features: u64) -> Option<[OwnedFd; 2]> {
    use std::os::fd::{AsRawFd, FromRawFd};

    #[repr(C)]
    struct Api {
        api: u64,
        features: u64,
        ioctls: u64,
    }
    #[repr(C)]
    struct Register {
        start: u64,
        len: u64,
        mode: u64,
        ioctls: u64,
    }
    // SAFETY: the calls take these structures; the memory is the test's.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
        if fd < 0 {
            println!("SKIPPED: userfaultfd(2) is not allowed to this user");
            return None;
        }
        let fd = OwnedFd::from_raw_fd(fd as i32);
        let mut api = Api {
            api: 0xaa,
            features,
            ioctls: 0,
        };
        if libc::ioctl(fd.as_raw_fd(), 0xc018_aa3f, &mut api) != 0 {
            // Of a fork only who may trace others is told.
            let error = std::io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::EPERM));
            println!("SKIPPED: UFFDIO_API with features {features:#x}: {error}");
            return None;
        }
        let mut register = Register {
            start: start as u64,
            len: len as u64,
            mode,
            ioctls: 0,
        };
        assert_eq!(libc::ioctl(fd.as_raw_fd(), 0xc020_aa00, &mut register), 0);
        let other = fd.try_clone().unwrap();
        Some([fd, other])
    }
}

pub fn give_up(memory: &Mapping, page: usize, pages: usize) {
    let at = memory.as_ptr().wrapping_add(page * PAGE);
    // SAFETY: the pages are the calling thread's.
    let done = unsafe { libc::madvise(at.cast(), pages * PAGE, libc::MADV_DONTNEED) };
    assert_eq!(done, 0);
}

/// A pager of a mapping, by an engine.
pub fn start(engine: Engine, memory: &Arc<Mapping>, source: Arc<dyn Source>) -> Pager {
    with(engine, memory, source, |builder| builder)
}

/// The same, with more settings.
pub fn with(
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

/// A pager of the first pages of memory, by its descriptor.
pub fn handed_over(descriptor: OwnedFd, memory: &Mapping, pages: usize) -> Builder {
    let region = HandedOver {
        start: memory.as_ptr().expose_provenance(),
        len: pages * PAGE,
        source_offset: 0,
        page_bytes: PAGE,
    };
    Pager::builder().handed_over(descriptor, &[region])
}

/// How a child of a test should end.
pub fn ends_well(status: std::process::ExitStatus) -> bool {
    status.success() && status.signal().is_none()
}

/// Has all threads of this process get an error from a system call with this argument.
pub fn refuse(call: libc::c_long, argument: usize, value: u32, errno: i32) {
    const ALL_THREADS: libc::c_long = 1;
    refuse_to(ALL_THREADS, call, argument, value, errno);
}

/// Has this thread get an error from a system call with this argument, so many times; then it does what it does.
pub fn refuse_for_a_while(
    call: libc::c_long,
    argument: usize,
    value: u32,
    errno: i32,
    times: usize,
) {
    use std::os::fd::{AsRawFd, FromRawFd};

    const TO_LISTENER: u32 = libc::SECCOMP_RET_USER_NOTIF;
    const NEW_LISTENER: libc::c_long = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as libc::c_long;
    let listener = filter(NEW_LISTENER, call, argument, value, TO_LISTENER);
    // SAFETY: it is new, and ours.
    let listener = unsafe { OwnedFd::from_raw_fd(listener) };
    std::thread::spawn(move || {
        for told in 0.. {
            // SAFETY: all zeros are such structures; the calls take pointers to them.
            unsafe {
                let mut notif: libc::seccomp_notif = std::mem::zeroed();
                let (receive, send) = (
                    libc::SECCOMP_IOCTL_NOTIF_RECV,
                    libc::SECCOMP_IOCTL_NOTIF_SEND,
                );
                if libc::ioctl(listener.as_raw_fd(), receive, &raw mut notif) != 0 {
                    return;
                }
                let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
                answer.id = notif.id;
                match told < times {
                    true => answer.error = -errno,
                    false => answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
                }
                libc::ioctl(listener.as_raw_fd(), send, &raw mut answer);
            }
        }
    });
}

/// The same, of this thread alone without flags.
pub fn refuse_to(flags: libc::c_long, call: libc::c_long, argument: usize, value: u32, errno: i32) {
    filter(flags, call, argument, value, 0x0005_0000 | errno as u32);
}

fn filter(flags: libc::c_long, call: libc::c_long, argument: usize, value: u32, then: u32) -> i32 {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(LOAD, 0, 0, 0),
        step(EQUAL, 0, 3, call as u32),
        step(LOAD, 0, 0, 16 + 8 * argument as u32),
        step(EQUAL, 0, 1, value),
        step(RETURN, 0, 0, then),
        step(RETURN, 0, 0, 0x7fff_0000),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    const MODE_FILTER: libc::c_long = 1;
    // SAFETY: the program is valid; the threads are a test's own.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::syscall(libc::SYS_seccomp, MODE_FILTER, flags, &raw const program);
        assert!(set >= 0);
        set as i32
    }
}
