//! Waits for locks that began before a recording of [`LOCKS`](super::LOCKS).
//!
//! The programs see a wait when it begins. So user space looks once at the threads that are there when a recording has
//! begun, and enters what they wait for into the programs' table of waits, as if it began with the recording: they tell of
//! its end as of that of any other.
//!
//! A thread may run between the look and the entry, which then is one of a wait that is over. How often it was put on a CPU
//! tells: if that is the same before the look and after the entry, it has slept all the time, and whatever it does next the
//! programs see with the entry there. Otherwise what they tell of the entry is left out ([`Before::told`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use amdahl_locks::{Event, Wait};
use amdahl_speedup::event::{Ns, Tid};
use amdahl_speedup::primitive::KernelPrimitive;
use amdahl_speedup::wait::SYS_FUTEX_WAIT;
use aya::maps::{HashMap, MapData};
use rustc_hash::FxHashMap;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::drain::Part;
use super::elements::{lookup_u32, update_element};
use super::error::{RecorderError, chain, system};
use super::locks::open_wait;
use super::tasks::{ENTRIES, RESERVED};
use super::wire::{OpenWait, OpenWaitWords, Stack, kind, sleep, stack_kind};
use crate::clock;
use crate::mapping::Mapping;
use crate::unprivileged::parse::{self, Syscall};
use crate::unprivileged::thread::copy_stack;

/// Waits that are entered, at most: each has a copy of its stack.
const WAITS_MAX: usize = 8192;
/// Threads that are looked at, at most: mostly one file of `/proc` each, some 10 µs.
const THREADS_MAX: usize = 1 << 16;

/// What only user space enters as a sleep; the programs do not know its address.
const PRIMITIVES: [KernelPrimitive; 12] = {
    use KernelPrimitive as K;
    [
        K::RwsemRead,
        K::RwsemWrite,
        K::MmapRead,
        K::MmapWrite,
        K::Mutex,
        K::Rtmutex,
        K::PercpuRwsemRead,
        K::PercpuRwsemWrite,
        K::Rcu,
        K::SysvSemaphore,
        K::FileLock,
        K::Other,
    ]
};

/// What a sleep is for by its number in the table, if user space entered it.
pub(super) fn primitive(lock_kind: u8) -> Option<KernelPrimitive> {
    let at = lock_kind.checked_sub(sleep::BEFORE)?;
    PRIMITIVES.get(usize::from(at)).copied()
}

fn number(primitive: KernelPrimitive) -> Option<u8> {
    let at = PRIMITIVES.iter().position(|&other| other == primitive)?;
    Some(sleep::BEFORE + at as u8)
}

/// What a thread waits for, as the table of waits has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lock {
    kind: u8,
    lock_kind: u8,
    expected: u8,
    address: u64,
}

/// The calls in which the programs look for waits, told by the same arguments.
fn lock_of_call(number: u32, args: &[u64; 6]) -> Option<Lock> {
    const F_OFD_SETLKW: u64 = 38;
    let sleep = |lock_kind, address| Lock {
        kind: kind::SLEEP,
        lock_kind,
        address,
        expected: 0,
    };
    match libc::c_long::from(number) {
        libc::SYS_futex => Some(Lock {
            kind: kind::FUTEX_WAIT,
            lock_kind: args[1] as u8,
            expected: args[2] as u8,
            address: args[0],
        }),
        SYS_FUTEX_WAIT => Some(Lock {
            kind: kind::FUTEX_WAIT,
            lock_kind: 0,
            expected: args[1] as u8,
            address: args[0],
        }),
        // Which futexes is in its memory; the programs have looked there when it began to wait.
        libc::SYS_futex_waitv => Some(Lock {
            kind: kind::FUTEX_WAIT,
            ..Lock::default()
        }),
        libc::SYS_semop | libc::SYS_semtimedop => Some(sleep(sleep::SEMAPHORE, args[0])),
        // The programs have the inode's address, which nobody else knows.
        libc::SYS_flock => Some(sleep(sleep::FILE, 0)),
        libc::SYS_fcntl => [libc::F_SETLKW as u64, F_OFD_SETLKW]
            .contains(&args[1])
            .then(|| sleep(sleep::FILE, 0)),
        _ => None,
    }
}

/// Calls that are made to wait for something else: most threads that sleep are in one, and need no second look.
fn is_idle(number: u32) -> bool {
    const EPOLL_PWAIT2: libc::c_long = 441;
    let number = libc::c_long::from(number);
    #[cfg(target_arch = "x86_64")]
    if [
        libc::SYS_epoll_wait,
        libc::SYS_poll,
        libc::SYS_select,
        libc::SYS_pause,
    ]
    .contains(&number)
    {
        return true;
    }
    [
        libc::SYS_epoll_pwait,
        EPOLL_PWAIT2,
        libc::SYS_ppoll,
        libc::SYS_pselect6,
        libc::SYS_nanosleep,
        libc::SYS_clock_nanosleep,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_rt_sigsuspend,
        libc::SYS_wait4,
        libc::SYS_waitid,
    ]
    .contains(&number)
}

/// The programs' table of waits in progress.
pub struct WaitTable {
    table: Mapping,
    /// Of threads whose entry another one has.
    crowd: HashMap<MapData, u32, OpenWaitWords>,
    /// How many `SLEEP`s there are: without any the programs look none up.
    sleepers: OwnedFd,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    Yes,
    /// The programs have seen the thread wait.
    Known,
    /// Another thread has the entry.
    NoRoom,
}

impl WaitTable {
    pub(super) fn new(
        table: Mapping,
        crowd: HashMap<MapData, u32, OpenWaitWords>,
        sleepers: OwnedFd,
    ) -> WaitTable {
        assert!(table.bytes() >= ENTRIES * size_of::<OpenWait>());
        WaitTable {
            table,
            crowd,
            sleepers,
        }
    }

    fn entry(&self, index: usize) -> *mut OpenWait {
        assert!(index < ENTRIES);
        // SAFETY: in bounds of the table (see `new`).
        unsafe { self.table.address().cast::<OpenWait>().add(index) }
    }

    /// An entry as it is now; none while a program writes it.
    fn read(&self, index: usize) -> Option<OpenWait> {
        const WORDS: usize = size_of::<OpenWait>() / size_of::<u64>();
        let words: *mut u64 = self.entry(index).cast();
        let read = || {
            std::array::from_fn::<u64, WORDS, _>(|at| {
                // SAFETY: a word of an entry, which is page-aligned in sum; all are read atomically.
                unsafe { AtomicU64::from_ptr(words.add(at)) }.load(Ordering::Acquire)
            })
        };
        let wait = read();
        // SAFETY: of the same size, and any bits are an OpenWait.
        (read() == wait).then(|| unsafe { std::mem::transmute::<[u64; WORDS], OpenWait>(wait) })
    }

    /// Waits that have not ended by now, `until`. At most 65,536, and those of threads that share an entry. Who was woken
    /// before has waited until then: it stands in a run queue, or has gone on unseen (see `end_unseen` in `locks.bpf.c`).
    /// The programs may write meanwhile.
    pub fn open(&self, until: Ns) -> Vec<Event> {
        let entries = (0..ENTRIES).filter_map(|index| self.read(index));
        let crowd = self.crowd.iter().flatten();
        let entries = entries.chain(crowd.map(|(_, words)| words.into()));
        let open = entries.filter(|wait| {
            wait.tid != 0 && wait.tid != RESERVED && wait.kind != 0 && wait.begin < until
        });
        open.map(|wait| open_wait(&wait, until)).collect()
    }

    /// Forgets all waits. No program may be attached.
    pub(super) fn clear(&mut self) -> Result<(), RecorderError> {
        let left: Vec<u32> = self.crowd.keys().flatten().collect();
        for tid in left {
            self.crowd
                .remove(&tid)
                .map_err(|error| RecorderError::Load(chain(&error)))?;
        }
        for index in 0..ENTRIES {
            let entry = self.entry(index);
            // SAFETY: in bounds, page-aligned in sum, and no program is attached.
            unsafe {
                if (*entry).tid != 0 || (*entry).crowded != 0 {
                    entry.write_bytes(0, 1);
                }
            }
        }
        update_element(self.sleepers.as_fd(), 0, 0).map_err(system("clear the number of sleepers"))
    }

    fn enter(&self, wait: &OpenWait) -> Entered {
        let entry = self.entry(wait.tid as usize % ENTRIES);
        // SAFETY: in bounds, aligned, and accessed by the programs by atomic operations too.
        let (tid, crowded) = unsafe {
            (
                AtomicU32::from_ptr(&raw mut (*entry).tid),
                AtomicU32::from_ptr(&raw mut (*entry).crowded),
            )
        };
        match tid.compare_exchange(0, RESERVED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) if crowded.load(Ordering::Acquire) == 0 => {}
            // The thread may be one of the crowd.
            Ok(_) => {
                tid.store(0, Ordering::Release);
                return Entered::NoRoom;
            }
            Err(other) if other == wait.tid => return Entered::Known,
            Err(_) => return Entered::NoRoom,
        }
        // SAFETY: the entry is reserved: no program reads or writes these fields before the id is there.
        unsafe {
            (&raw mut (*entry).pid).write(wait.pid);
            (&raw mut (*entry).lock).write(wait.lock);
            (&raw mut (*entry).begin).write(wait.begin);
            (&raw mut (*entry).woken_at).write(0);
            (&raw mut (*entry).place).write(wait.place);
            (&raw mut (*entry).kind).write(wait.kind);
            (&raw mut (*entry).lock_kind).write(wait.lock_kind);
            (&raw mut (*entry).expected).write(wait.expected);
            (&raw mut (*entry).had_run).write(wait.had_run);
        }
        // Release: whoever finds the id finds the rest.
        tid.store(wait.tid, Ordering::Release);
        Entered::Yes
    }

    /// Lets the programs look for sleepers until the recording ends: they count them, and what they count while this
    /// is written is lost, so it is more than ever there are.
    fn let_sleepers_be_looked_for(&self) -> Result<(), Errno> {
        const MANY: u32 = 1 << 20;
        let map: BorrowedFd<'_> = self.sleepers.as_fd();
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let now = lookup_u32(map, 0).map_err(errno)?;
        update_element(map, 0, now.wrapping_add(MANY)).map_err(errno)
    }

    /// Looks once at `threads`, each with its process, and enters what they wait for since before `since`. All of them are
    /// watched since then or longer; whether they still are says `is_over`, which is set before the recording ends.
    pub fn look(
        &self,
        threads: impl Iterator<Item = (u32, u32)>,
        since: Ns,
        is_over: &AtomicBool,
    ) -> Looked {
        let mut look = Look {
            table: self,
            since,
            is_over,
            buffer: [0; 1024],
            sleepers_are_looked_for: false,
            looked: Looked::default(),
        };
        look.looked.before.since = since;
        for (at, (pid, tid)) in threads.enumerate() {
            let is_full = at >= THREADS_MAX || look.looked.before.entered.len() >= WAITS_MAX;
            if is_full || is_over.load(Ordering::Acquire) {
                look.looked.left_out += 1;
                continue;
            }
            match look.at(pid, tid) {
                Ok(()) | Err(Errno::NOENT | Errno::SRCH) => {}
                Err(_) => look.looked.hidden += 1,
            }
        }
        look.looked
    }
}

/// What a look has found.
#[derive(Debug, Default)]
pub struct Looked {
    /// Whose waits were entered.
    pub before: Before,
    /// Their stacks.
    pub part: Part,
    /// Threads that could not be looked at: the kernel hides them, or there were too few descriptors.
    pub hidden: u64,
    /// Threads that there were too many of to look at before the recording ended, and waits that had no room in the table.
    pub left_out: u64,
}

/// Waits that were entered for a recording.
#[derive(Debug, Default)]
pub struct Before {
    since: Ns,
    /// By thread, whether it is certain that it waited when the entry was there.
    entered: FxHashMap<Tid, bool>,
}

impl Before {
    /// What `wait`, as the programs tell it, really was; `None` if it was over before they could know.
    pub fn told(&self, wait: Wait) -> Option<Wait> {
        if wait.begin != self.since {
            return Some(wait);
        }
        match self.entered.get(&wait.tid) {
            None => Some(wait),
            Some(false) => None,
            Some(true) => Some(Wait {
                began_before: true,
                ..wait
            }),
        }
    }
}

struct Look<'a> {
    table: &'a WaitTable,
    since: Ns,
    is_over: &'a AtomicBool,
    buffer: [u8; 1024],
    sleepers_are_looked_for: bool,
    looked: Looked,
}

impl Look<'_> {
    fn read(&mut self, pid: u32, tid: u32, file: &str) -> Result<&[u8], Errno> {
        let path = format!("/proc/{pid}/task/{tid}/{file}");
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let len = rustix::io::read(file, &mut self.buffer)?;
        Ok(&self.buffer[..len])
    }

    /// What the thread waits for, if that is a lock, with its stack and instruction pointers.
    fn waits(&mut self, pid: u32, tid: u32) -> Result<Option<(Lock, u64, u64)>, Errno> {
        let call = parse::syscall(self.read(pid, tid, "syscall")?);
        let Some(Syscall::Blocked {
            number: call,
            args,
            sp,
            pc,
        }) = call
        else {
            return Ok(None);
        };
        // Threads of the kernel have no stack of a program.
        if sp == 0 {
            return Ok(None);
        }
        let lock = match call.and_then(|call| lock_of_call(call, &args)) {
            None if call.is_some_and(is_idle) => None,
            None => {
                let function = String::from_utf8_lossy(self.read(pid, tid, "wchan")?);
                let primitive = KernelPrimitive::from_wchan(&function);
                primitive.and_then(number).map(|lock_kind| Lock {
                    kind: kind::SLEEP,
                    lock_kind,
                    ..Lock::default()
                })
            }
            lock => lock,
        };
        Ok(lock.map(|lock| (lock, sp, pc)))
    }

    /// Whether it sleeps: one that was stopped inside its call is told to be in it as well.
    fn sleeps(&mut self, pid: u32, tid: u32) -> Result<bool, Errno> {
        let stat = parse::stat(self.read(pid, tid, "stat")?);
        Ok(stat.is_some_and(|stat| matches!(stat.state, b'S' | b'D')))
    }

    /// How long it has run and how often it was put on a CPU; 0 where the kernel does not count that.
    fn turns(&mut self, pid: u32, tid: u32) -> Result<(u64, u64), Errno> {
        let text = match self.read(pid, tid, "schedstat") {
            Err(Errno::NOENT) => return Ok((0, 0)),
            text => text?,
        };
        let [ran_ns, _, turns] = parse::schedstat(text).unwrap_or_default();
        Ok((ran_ns, turns))
    }

    fn at(&mut self, pid: u32, tid: u32) -> Result<(), Errno> {
        if self.waits(pid, tid)?.is_none() {
            return Ok(());
        }
        let turns = self.turns(pid, tid)?;
        let waits = self.waits(pid, tid)?;
        let Some((lock, sp, pc)) = waits else {
            return Ok(());
        };
        if !self.sleeps(pid, tid)? {
            return Ok(());
        }
        if lock.kind == kind::SLEEP && !self.sleepers_are_looked_for {
            self.table.let_sleepers_be_looked_for()?;
            self.sleepers_are_looked_for = true;
        }
        // Any number that no other has, and hashes of the programs hardly ever.
        let place = (self.looked.before.entered.len() as u32 + 1).wrapping_mul(0x9e37_79b1);
        let mut wait = OpenWait::default();
        (wait.tid, wait.pid) = (tid, pid);
        (wait.kind, wait.lock_kind) = (lock.kind, lock.lock_kind);
        (wait.lock, wait.expected) = (lock.address, lock.expected);
        (wait.begin, wait.had_run) = (self.since, turns.0);
        wait.place = place;
        match self.table.enter(&wait) {
            Entered::Yes => {}
            Entered::Known => return Ok(()),
            Entered::NoRoom => {
                self.looked.left_out += 1;
                return Ok(());
            }
        }
        self.looked.before.entered.insert(tid, false);
        let stack = Stack {
            ts: clock::monotonic(),
            tid,
            pid,
            kind: stack_kind::WAIT,
            place,
            ip: pc,
            sp,
            bytes: copy_stack(pid, sp),
            ..Stack::default()
        };
        // Where turns are not counted, that it still waits the same way must do.
        let is_counted = turns.1 != 0;
        let has_slept =
            self.turns(pid, tid)? == turns && (is_counted || self.waits(pid, tid)? == waits);
        // Acquire: pairs with the Release of who ends the recording, so all of this was before.
        if self.is_over.load(Ordering::Acquire) {
            self.looked.left_out += 1;
        } else if has_slept {
            self.looked.before.entered.insert(tid, true);
            self.looked.part.stacks.push(stack);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amdahl_locks::{Kind, LockId, Place};

    fn wait(tid: Tid, begin: Ns) -> Wait {
        Wait {
            tid,
            pid: 1,
            lock: LockId::default(),
            kind: Kind::Futex,
            begin,
            end: begin + 10,
            place: Place(1),
            waker: None,
            expected: 0,
            is_open: false,
            began_before: false,
            is_polled: false,
        }
    }

    #[test]
    fn an_entry_that_came_too_late_is_left_out() {
        let before = Before {
            since: 100,
            entered: FxHashMap::from_iter([(1, true), (2, false)]),
        };
        let began_before = |wait| before.told(wait).map(|wait| wait.began_before);
        assert_eq!(began_before(wait(1, 100)), Some(true));
        assert_eq!(began_before(wait(2, 100)), None);
        // Their next waits, which the programs have seen.
        assert_eq!(began_before(wait(1, 120)), Some(false));
        assert_eq!(began_before(wait(2, 120)), Some(false));
        assert_eq!(began_before(wait(3, 100)), Some(false));
    }

    #[test]
    fn calls_tell_locks_from_other_sleeps() {
        let of = |number: libc::c_long, args| lock_of_call(number as u32, &args);
        let futex = of(libc::SYS_futex, [0x1000, 0x80, 2, 0, 0, 0]).expect("a futex");
        assert_eq!(
            (futex.kind, futex.lock_kind, futex.expected, futex.address),
            (kind::FUTEX_WAIT, 0x80, 2, 0x1000)
        );
        let newer =
            of(SYS_FUTEX_WAIT, [0x1000, 2, u64::from(u32::MAX), 0x82, 0, 0]).expect("a futex");
        assert_eq!(
            (newer.kind, newer.lock_kind, newer.expected, newer.address),
            (kind::FUTEX_WAIT, 0, 2, 0x1000)
        );
        let several = of(libc::SYS_futex_waitv, [0x7000, 2, 0, 0, 0, 0]).expect("futexes");
        assert_eq!((several.kind, several.address), (kind::FUTEX_WAIT, 0));
        let lock = of(libc::SYS_fcntl, [3, libc::F_SETLKW as u64, 0, 0, 0, 0]);
        assert_eq!(lock.map(|lock| lock.lock_kind), Some(sleep::FILE));
        for (number, args) in [
            (libc::SYS_fcntl, [3, libc::F_SETLK as u64, 0, 0, 0, 0]),
            (libc::SYS_read, [0; 6]),
            (libc::SYS_ppoll, [0; 6]),
        ] {
            assert_eq!(of(number, args), None);
        }
        assert!(is_idle(libc::SYS_ppoll as u32) && !is_idle(libc::SYS_read as u32));
    }

    #[test]
    fn what_wchan_tells_is_told_again() {
        for function in ["rwsem_down_read_slowpath", "synchronize_rcu", "__down"] {
            let told = KernelPrimitive::from_wchan(function).expect("a lock");
            assert_eq!(number(told).and_then(primitive), Some(told));
        }
        for by_program in [1, sleep::SEMAPHORE, sleep::FILE, sleep::NAP] {
            assert_eq!(primitive(by_program), None);
        }
    }
}
