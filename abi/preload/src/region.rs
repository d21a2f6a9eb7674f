//! The shared file of a process: what it waited for, readable while it runs and after it was killed.
//!
//! Layout, native byte order, every entry 64 bytes: [`Header`] padded to 4096 bytes,
//! then [`LIVE_LEN`] waits in progress, [`TABLE_LEN`] totals by (kind, object,
//! caller), and a ring of the last [`RING_LEN`] episodes. Everything is written with
//! atomics and without locks, so a signal handler may wait while a thread records.

use core::ffi::c_char;
use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence,
};

use crate::sys;

/// First word of a file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"AMDHLWT\x01");
const HEADER_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 64;
/// Threads that can be seen waiting at a time.
pub const LIVE_LEN: usize = 256;
/// Distinct (kind, object, caller).
pub const TABLE_LEN: usize = 1024;
/// Episodes kept.
pub const RING_LEN: usize = 4096;
const FILE_BYTES: usize = HEADER_BYTES + ENTRY_BYTES * (LIVE_LEN + TABLE_LEN + RING_LEN);
const KINDS: usize = 16;
const PROBES: usize = 16;

/// What is waited for. The numbers are part of the file format.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Mutex = 1,
    RwlockRead = 2,
    RwlockWrite = 3,
    Condition = 4,
    Semaphore = 5,
    Barrier = 6,
    Join = 7,
    Spin = 8,
}

#[repr(C)]
struct Header {
    magic: AtomicU64,
    header_bytes: AtomicU32,
    entry_bytes: AtomicU32,
    pid: AtomicU32,
    live_len: AtomicU32,
    table_len: AtomicU32,
    ring_len: AtomicU32,
    /// When the file was made.
    started_ns: AtomicU64,
    /// Episodes ever written to the ring.
    episodes: AtomicU64,
    /// Episodes without room in the table.
    untabled: AtomicU64,
    /// Waits without room among those in progress.
    unseen: AtomicU64,
    /// Episodes and nanoseconds by kind: complete, whatever the tables lost.
    by_kind: [[AtomicU64; 2]; KINDS],
}

/// A wait in progress; free when `tid` is 0.
#[repr(C)]
struct Live {
    tid: AtomicU32,
    kind: AtomicU32,
    start_ns: AtomicU64,
    object: AtomicU64,
    caller: AtomicU64,
    unused: [u64; 4],
}

/// Totals of one (kind, object, caller).
#[repr(C)]
struct Total {
    /// 0 free, 1 being claimed, 2 ready.
    state: AtomicU32,
    kind: AtomicU32,
    object: AtomicU64,
    caller: AtomicU64,
    count: AtomicU64,
    ns: AtomicU64,
    max_ns: AtomicU64,
    unused: [u64; 2],
}

/// One episode; `seq` is its number from 1, or 0 while it is being written.
#[repr(C)]
struct Slot {
    seq: AtomicU64,
    start_ns: AtomicU64,
    end_ns: AtomicU64,
    object: AtomicU64,
    caller: AtomicU64,
    tid: AtomicU32,
    kind: AtomicU32,
    unused: [u64; 2],
}

const _: () = {
    assert!(size_of::<Header>() <= HEADER_BYTES);
    assert!(size_of::<Live>() == ENTRY_BYTES);
    assert!(size_of::<Total>() == ENTRY_BYTES);
    assert!(size_of::<Slot>() == ENTRY_BYTES);
};

#[repr(C)]
struct Region {
    header: Header,
    pad: [u8; HEADER_BYTES - size_of::<Header>()],
    live: [Live; LIVE_LEN],
    table: [Total; TABLE_LEN],
    ring: [Slot; RING_LEN],
}

const _: () = assert!(size_of::<Region>() == FILE_BYTES);

const UNOPENED: *mut Region = core::ptr::null_mut();
const CLOSED: *mut Region = core::ptr::without_provenance_mut(1);
const OPENING: *mut Region = core::ptr::without_provenance_mut(2);
const LAST_SENTINEL: usize = 2;

static REGION: AtomicPtr<Region> = AtomicPtr::new(UNOPENED);

const DIR_MAX: usize = 4000;
static DIR: [AtomicU8; DIR_MAX] = [const { AtomicU8::new(0) }; DIR_MAX];
static DIR_LEN: AtomicUsize = AtomicUsize::new(0);

/// Notes the folder before the program can change its environment.
pub fn configure() {
    // SAFETY: the name is a C string; the environment is not changed while constructors run.
    let dir = unsafe { sys::getenv(c"AMDAHL_PRELOAD_DIR".as_ptr()) };
    if dir.is_null() {
        return;
    }
    // SAFETY: getenv gave a C string.
    let dir = unsafe { core::ffi::CStr::from_ptr(dir) }.to_bytes();
    if dir.first() != Some(&b'/') || dir.len() > DIR_MAX {
        return;
    }
    for (to, &from) in DIR.iter().zip(dir) {
        to.store(from, Relaxed);
    }
    // Release: pairs with the Acquire in `make`, which reads DIR.
    DIR_LEN.store(dir.len(), Release);
}

/// A forked child makes a file of its own when it first needs one.
pub extern "C" fn forked() {
    REGION.store(UNOPENED, Relaxed);
}

/// Makes the file now if there is none yet.
pub fn prepare() {
    if REGION.load(Relaxed).is_null() {
        open();
    }
}

fn region() -> Option<&'static Region> {
    // Acquire: pairs with the Release in `open`; the header is written before.
    let mut at = REGION.load(Acquire);
    if at.is_null() {
        at = open();
    }
    if at as usize <= LAST_SENTINEL {
        return None;
    }
    // SAFETY: a mapping of FILE_BYTES that is never unmapped; all its fields are atomics.
    Some(unsafe { &*at })
}

#[cold]
fn open() -> *mut Region {
    if REGION
        .compare_exchange(UNOPENED, OPENING, Relaxed, Relaxed)
        .is_err()
    {
        // Another thread is at it: this episode is not recorded, nobody waits for us.
        return REGION.load(Acquire);
    }
    let errno = sys::errno();
    let made = make().unwrap_or(CLOSED);
    sys::set_errno(errno);
    // Release: pairs with the Acquire in `region`.
    REGION.store(made, Release);
    made
}

fn make() -> Option<*mut Region> {
    let len = DIR_LEN.load(Acquire);
    if len == 0 || !sys::may_make_file_of(FILE_BYTES as u64) {
        return None;
    }
    let started = sys::now_ns();
    // SAFETY: getpid cannot fail.
    let pid = unsafe { sys::getpid() } as u32;
    let mut path = Path {
        bytes: [0; DIR_MAX + 64],
        len: 0,
    };
    for byte in DIR.iter().take(len) {
        path.push(byte.load(Relaxed));
    }
    path.push(b'/');
    path.number(u64::from(pid));
    path.push(b'-');
    // The start time tells the images of one process apart that follow each other by exec.
    path.number(started);
    for &byte in b".waits" {
        path.push(byte);
    }
    let name = path.bytes.as_ptr().cast::<c_char>();
    let flags = sys::O_RDWR | sys::O_CREAT | sys::O_EXCL | sys::O_CLOEXEC;
    // SAFETY: `name` is a C string: the buffer is larger than all that was pushed, and zeroed.
    let fd = unsafe { sys::open(name, flags, 0o600) };
    if fd < 0 {
        return None;
    }
    // Reserved, not sparse: a write to a page that finds no room would be a SIGBUS.
    // SAFETY: a descriptor that we own.
    let reserved = unsafe { sys::posix_fallocate(fd, 0, FILE_BYTES as i64) } == 0;
    let at = if reserved {
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, over a file of that length.
        unsafe {
            sys::mmap(
                core::ptr::null_mut(),
                FILE_BYTES,
                prot,
                sys::MAP_SHARED,
                fd,
                0,
            )
        }
    } else {
        usize::MAX as *mut _
    };
    // SAFETY: a descriptor that we own and do not use any more.
    unsafe { sys::close(fd) };
    if at as usize == usize::MAX {
        // SAFETY: a C string, see above.
        unsafe { sys::unlink(name) };
        return None;
    }
    let region = at.cast::<Region>();
    // SAFETY: mapped, of that size, page-aligned, zeroed, and all fields are atomics.
    let header = unsafe { &(*region).header };
    header.header_bytes.store(HEADER_BYTES as u32, Relaxed);
    header.entry_bytes.store(ENTRY_BYTES as u32, Relaxed);
    header.pid.store(pid, Relaxed);
    header.live_len.store(LIVE_LEN as u32, Relaxed);
    header.table_len.store(TABLE_LEN as u32, Relaxed);
    header.ring_len.store(RING_LEN as u32, Relaxed);
    header.started_ns.store(started, Relaxed);
    // Release: a reader that sees the magic sees the lengths.
    header.magic.store(MAGIC, Release);
    Some(region)
}

struct Path {
    bytes: [u8; DIR_MAX + 64],
    len: usize,
}

impl Path {
    fn push(&mut self, byte: u8) {
        // The last byte stays zero.
        let last = self.bytes.len() - 1;
        if let Some(to) = self.bytes[..last].get_mut(self.len) {
            *to = byte;
            self.len += 1;
        }
    }

    fn number(&mut self, value: u64) {
        if value >= 10 {
            self.number(value / 10);
        }
        self.push(b'0' + (value % 10) as u8);
    }
}

/// A wait that has begun. Has no destructor: a cancelled thread unwinds over it.
#[derive(Clone, Copy)]
pub struct Episode {
    region: Option<&'static Region>,
    live: Option<&'static Live>,
    kind: Kind,
    tid: u32,
    start_ns: u64,
    object: u64,
    caller: u64,
}

/// The calling thread begins to wait.
pub fn begin(kind: Kind, object: u64, caller: u64) -> Episode {
    let errno = sys::errno();
    let Some(region) = region() else {
        return Episode {
            region: None,
            live: None,
            kind,
            tid: 0,
            start_ns: 0,
            object,
            caller,
        };
    };
    let tid = sys::tid();
    let start_ns = sys::now_ns();
    let live = live(region, tid);
    match live {
        Some(live) => {
            live.kind.store(kind as u32, Relaxed);
            live.start_ns.store(start_ns, Relaxed);
            live.object.store(object, Relaxed);
            live.caller.store(caller, Relaxed);
            // Release: a reader that sees the thread sees its wait.
            live.tid.store(tid, Release);
        }
        None => {
            region.header.unseen.fetch_add(1, Relaxed);
        }
    }
    sys::set_errno(errno);
    Episode {
        region: Some(region),
        live,
        kind,
        tid,
        start_ns,
        object,
        caller,
    }
}

/// The wait is over. It is recorded if `blocked`, and forgotten if the call failed.
pub fn end(episode: Episode, blocked: bool) {
    let Some(region) = episode.region else { return };
    let errno = sys::errno();
    if let Some(live) = episode.live {
        live.tid.store(0, Release);
    }
    if blocked {
        let end_ns = sys::now_ns();
        record(region, &episode, end_ns);
    }
    sys::set_errno(errno);
}

/// A place for the thread: its own one of before, if an earlier wait was cancelled, or a free one.
fn live(region: &'static Region, tid: u32) -> Option<&'static Live> {
    /// Claimed, and not yet to be read.
    const CLAIMED: u32 = u32::MAX;
    let first = tid as usize;
    for step in 0..PROBES {
        let live = &region.live[first.wrapping_add(step) % LIVE_LEN];
        if live.tid.load(Relaxed) == tid {
            live.tid.store(CLAIMED, Relaxed);
            fence(Release);
            return Some(live);
        }
        // Release on the way in would not order the stores after it; the reader checks `tid` twice.
        if live
            .tid
            .compare_exchange(0, CLAIMED, Acquire, Relaxed)
            .is_ok()
        {
            return Some(live);
        }
    }
    None
}

fn record(region: &'static Region, episode: &Episode, end_ns: u64) {
    let header = &region.header;
    let ns = end_ns.saturating_sub(episode.start_ns);
    let [count, sum] = &header.by_kind[episode.kind as usize % KINDS];
    count.fetch_add(1, Relaxed);
    sum.fetch_add(ns, Relaxed);
    match total(region, episode) {
        Some(total) => {
            total.count.fetch_add(1, Relaxed);
            total.ns.fetch_add(ns, Relaxed);
            total.max_ns.fetch_max(ns, Relaxed);
        }
        None => {
            header.untabled.fetch_add(1, Relaxed);
        }
    }
    let number = header.episodes.fetch_add(1, Relaxed);
    let slot = &region.ring[number as usize % RING_LEN];
    slot.seq.store(0, Relaxed);
    // Release fence: whoever reads a field of the new episode also sees that `seq` is not the old.
    fence(Release);
    slot.start_ns.store(episode.start_ns, Relaxed);
    slot.end_ns.store(end_ns, Relaxed);
    slot.object.store(episode.object, Relaxed);
    slot.caller.store(episode.caller, Relaxed);
    slot.tid.store(episode.tid, Relaxed);
    slot.kind.store(episode.kind as u32, Relaxed);
    // Release: a reader that sees the number sees the episode.
    slot.seq.store(number + 1, Release);
}

fn total(region: &'static Region, episode: &Episode) -> Option<&'static Total> {
    let kind = episode.kind as u32;
    let hash = (episode.object ^ episode.caller.rotate_left(32) ^ u64::from(kind))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        >> 32;
    for step in 0..PROBES {
        let total = &region.table[(hash as usize).wrapping_add(step) % TABLE_LEN];
        let mut state = total.state.load(Acquire);
        if state == 0 {
            match total.state.compare_exchange(0, 1, Acquire, Acquire) {
                Ok(_) => {
                    total.kind.store(kind, Relaxed);
                    total.object.store(episode.object, Relaxed);
                    total.caller.store(episode.caller, Relaxed);
                    // Release: pairs with the Acquire loads of `state`.
                    total.state.store(2, Release);
                    return Some(total);
                }
                Err(now) => state = now,
            }
        }
        // An entry that is just being claimed may be ours: then there are two, and the reader adds.
        if state == 2
            && total.object.load(Relaxed) == episode.object
            && total.caller.load(Relaxed) == episode.caller
            && total.kind.load(Relaxed) == kind
        {
            return Some(total);
        }
    }
    None
}
