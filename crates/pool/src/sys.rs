//! All system calls of this crate.
//!
//! Futexes by libc's `syscall`, which Miri knows; of what it does not know, each function has an answer for it.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use amdahl_topology::CpuSet;

/// A place for tracers: no system call, but an instruction that Miri does not know either.
macro_rules! probe {
    ($provider:ident, $name:ident $(, $value:expr)* $(,)?) => {
        #[cfg(not(miri))]
        ::probe::probe!($provider, $name $(, $value)*);
    };
}
pub(crate) use probe;

/// Sleeps while `*word == expected`, until it is woken, the time is over or for no reason.
#[inline(never)]
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    // A time beyond what can be told is none.
    let timeout = timeout.and_then(|t| {
        Some(libc::timespec {
            tv_sec: t.as_secs().try_into().ok()?,
            tv_nsec: t.subsec_nanos().into(),
        })
    });
    let timeout: *const libc::timespec = timeout.as_ref().map_or(std::ptr::null(), |t| t);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // Errors are: the word has changed, a signal, the time is over. The caller looks again after all of them.
    // SAFETY: the word is borrowed and the time is on this stack; the kernel reads both and writes neither.
    let _ = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, timeout) };
}

/// Wakes up to `count` threads that sleep on `word`.
pub(crate) fn futex_wake(word: &AtomicU32, count: u32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // Fails for bad addresses only, which a reference is not.
    // SAFETY: the word is borrowed, and its address alone is used.
    let _ = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, count) };
}

/// A full fence on each CPU that runs a thread of this process; false if the kernel has none.
#[cfg_attr(any(loom, miri), allow(dead_code))]
pub(crate) fn membarrier() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let call = |command: libc::c_int| {
        // SAFETY: takes integers only and touches no memory.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    };
    *REGISTERED.get_or_init(|| call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
        && call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

/// The kernel's number of this thread.
pub(crate) fn thread_id() -> u32 {
    if cfg!(miri) {
        return 1;
    }
    rustix::thread::gettid().as_raw_pid() as u32
}

/// Why a thread was not bound. It is where it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unbound {
    /// None of the CPUs may be used: they have gone, or left the CPU set.
    NoCpu,
    /// Threads may not be bound here, or this one has ended.
    Refused,
}

/// Binds a thread, 0 for this one.
pub(crate) fn bind(thread: u32, cpus: &CpuSet) -> Result<(), Unbound> {
    use amdahl_topology::Error::Affinity;
    amdahl_topology::set_allowed(thread, cpus).map_err(|error| match error {
        Affinity { source, .. } if source.raw_os_error() == Some(libc::EINVAL) => Unbound::NoCpu,
        _ => Unbound::Refused,
    })
}

/// Whether a thread of this process sleeps.
#[cfg(all(test, not(any(loom, miri))))]
pub(crate) fn is_asleep(thread: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    let (_, behind_the_name) = stat.rsplit_once(") ").unwrap();
    behind_the_name.starts_with('S')
}

/// The CPU this thread is on.
pub(crate) fn current_cpu() -> u32 {
    if cfg!(miri) {
        return 0;
    }
    rustix::thread::sched_getcpu() as u32
}

/// The node where the page of each address is, by the kernel's numbers; `None` of one that has no memory yet. `None` at all where the
/// kernel does not tell: it has no NUMA, or a filter of system calls refuses.
pub(crate) fn nodes_of(addresses: &[usize]) -> Option<Vec<Option<u32>>> {
    if cfg!(miri) {
        return None;
    }
    // SAFETY: takes a number and touches no memory.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let pages: Vec<usize> = addresses.iter().map(|at| at / page * page).collect();
    let mut status = vec![-1 as libc::c_int; pages.len()];
    let nowhere: *const libc::c_int = std::ptr::null();
    // SAFETY: of this process; the kernel reads `pages.len()` addresses, which it looks up and does not touch, and writes as many
    // numbers. Without nodes to go to nothing moves.
    let rc = unsafe {
        let (count, to) = (pages.len() as libc::c_ulong, status.as_mut_ptr());
        libc::syscall(
            libc::SYS_move_pages,
            0,
            count,
            pages.as_ptr(),
            nowhere,
            to,
            0,
        )
    };
    let node = |status: libc::c_int| u32::try_from(status).ok();
    (rc == 0).then(|| status.into_iter().map(node).collect())
}

/// Class and nice value of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    class: libc::c_int,
    nice: i32,
    realtime: libc::c_int,
}

impl Standing {
    /// The lowest within its class.
    pub(crate) fn nicest(self) -> Standing {
        Standing { nice: 19, ..self }
    }
}

/// As the kernel's `struct sched_attr` in its first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Where thread `tid` stands.
pub(crate) fn standing(tid: u32) -> Option<Standing> {
    if cfg!(miri) {
        return None;
    }
    let mut attr = std::mem::MaybeUninit::<SchedAttr>::zeroed();
    let size = size_of::<SchedAttr>();
    // SAFETY: the kernel writes at most `size` bytes to it.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, attr.as_mut_ptr(), size, 0) };
    // SAFETY: integers, zeroed at least.
    let attr = unsafe { attr.assume_init() };
    (rc == 0).then_some(Standing {
        class: attr.policy as libc::c_int,
        nice: attr.nice,
        realtime: attr.priority as libc::c_int,
    })
}

/// Whether the kernel did it.
pub(crate) fn set_standing(tid: u32, standing: Standing) -> bool {
    if cfg!(miri) {
        return false;
    }
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: standing.class as u32,
        flags: 0,
        nice: standing.nice,
        priority: standing.realtime as u32,
        runtime: 0,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the kernel reads as much of it as `size` says.
    unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0) == 0 }
}

/// How long a thread ran and how long it waited for a CPU: `/proc/self/task/TID/schedstat`, kept open.
#[derive(Debug)]
pub(crate) struct SchedStat(std::fs::File);

impl SchedStat {
    pub(crate) fn open(tid: u32) -> Option<Self> {
        let path = format!("/proc/self/task/{tid}/schedstat");
        std::fs::File::open(path).ok().map(SchedStat)
    }

    /// Nanoseconds on a CPU, and runnable without one.
    pub(crate) fn read(&self) -> Option<(u64, u64)> {
        use std::os::unix::fs::FileExt;
        let mut buffer = [0; 96];
        let len = self.0.read_at(&mut buffer, 0).ok()?;
        let mut words = std::str::from_utf8(&buffer[..len])
            .ok()?
            .split_ascii_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    }
}

/// The times of all CPUs: `/proc/stat`, kept open.
#[derive(Debug)]
pub(crate) struct CpuStat {
    file: std::fs::File,
    text: String,
}

impl CpuStat {
    pub(crate) fn open() -> Option<Self> {
        let file = std::fs::File::open("/proc/stat").ok()?;
        let text = String::new();
        Some(CpuStat { file, text })
    }

    pub(crate) fn read(&mut self) -> Option<&str> {
        use std::io::{Read, Seek};
        self.text.clear();
        self.file.rewind().ok()?;
        self.file.read_to_string(&mut self.text).ok()?;
        Some(&self.text)
    }
}

/// The unit of the times in `/proc/stat`.
pub(crate) fn tick_ns() -> u64 {
    // SAFETY: takes a number and touches no memory.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    1_000_000_000 / u64::try_from(ticks).unwrap_or(100).max(1)
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_where_memory_is_and_touches_none() {
        const BYTES: usize = 1 << 20;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            let (access, kind) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            );
            let base = libc::mmap(std::ptr::null_mut(), BYTES, access, kind, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            // One page is not to bring others along.
            libc::madvise(base, BYTES, libc::MADV_NOHUGEPAGE);
            base.cast::<u8>()
        };
        // SAFETY: within the mapping.
        unsafe { base.write_volatile(1) };
        let (first, last) = (base.addr(), base.addr() + BYTES - 1);
        let told = nodes_of(&[first + 5, last, first, last]);
        // SAFETY: mapped above, used no more.
        unsafe { libc::munmap(base.cast(), BYTES) };
        let Some(told) = told else {
            println!("SKIPPED the_kernel_tells_where_memory_is: move_pages is refused here");
            return;
        };
        assert!(told[0].is_some() && told[0] == told[2], "{told:?}");
        assert_eq!((told[1], told[3]), (None, None), "it was touched");
        assert_eq!(nodes_of(&[usize::MAX / 2]), Some(vec![None]));
    }
}
