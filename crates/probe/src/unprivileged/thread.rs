//! One thread, polled.

use std::sync::Arc;

use amdahl_speedup::event::{Blocked, Ns, StackId, Tid};
use amdahl_speedup::primitive::KernelPrimitive;
use amdahl_speedup::snapshot::{State, ThreadState, Waiting};
use amdahl_speedup::wait::SYS_FUTEX_WAIT;
use rustc_hash::FxHashMap;
use rustix::io::Errno;

use super::files::{Kept, Room, Unread};
use super::parse::{self, Stat, Syscall};
use super::reach::{Reaches, memory};

/// A waiting thread whose counters stand still is looked at again only after this many polls: it
/// may have been woken without having got a CPU yet.
const TRUSTED_POLLS: u32 = 8;
/// Stack memory copied where a thread waits.
const STACK_BYTES: usize = 3072;
/// Calls that sleep at futexes.
const FUTEXES: [libc::c_long; 3] = [libc::SYS_futex, libc::SYS_futex_waitv, SYS_FUTEX_WAIT];
/// Copies of one run.
const STACKS_MAX: usize = 8192;

/// Stack memory of a thread that waits in a system call, to be unwound.
#[derive(Clone, Debug)]
pub struct StackCopy {
    /// The id by which waits name it.
    pub stack: StackId,
    /// Process.
    pub pid: Tid,
    /// Thread.
    pub tid: Tid,
    /// When.
    pub ts: Ns,
    /// User instruction pointer.
    pub ip: u64,
    /// User stack pointer.
    pub sp: u64,
    /// Memory from `sp` upwards; the frame pointer is not known.
    pub memory: Box<[u8]>,
}

/// Of which waits stack memory is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copies {
    Nothing,
    OfLocks,
    All,
}

/// What all threads of a poll share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) buffer: Vec<u8>,
    pub(super) tick_ns: Ns,
    pub(super) ts: Ns,
    pub(super) pids: Vec<Tid>,
    pub(super) reaches: Reaches,
    pub(super) functions: FxHashMap<Box<[u8]>, Arc<str>>,
    pub(super) copies: Copies,
    pub(super) first_stack: u32,
    pub(super) places: FxHashMap<Place, StackId>,
    pub(super) stacks: Vec<StackCopy>,
    /// Threads of which the kernel hides the system call.
    pub(super) hidden: u64,
    /// Files of threads that could not be read.
    pub(super) unread: Unread,
}

/// Where a thread waits: what it calls from where, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    tid: Tid,
    number: u32,
    object: u64,
    sp: u64,
    pc: u64,
}

/// The files of one thread and what they said last.
#[derive(Debug)]
pub(super) struct Thread {
    pid: Tid,
    tid: Tid,
    stat: Kept,
    schedstat: Kept,
    syscall: Kept,
    wchan: Kept,
    has_schedstat: bool,
    last: Option<ThreadState>,
    trusted: u32,
    pub(super) name: String,
}

impl Thread {
    pub(super) fn new(pid: Tid, tid: Tid, room: &Room) -> Thread {
        let kept = |name: &str| Kept::new(format!("/proc/{pid}/task/{tid}/{name}"), room);
        Thread {
            pid,
            tid,
            stat: kept("stat"),
            schedstat: kept("schedstat"),
            syscall: kept("syscall"),
            wchan: kept("wchan"),
            has_schedstat: true,
            last: None,
            trusted: 0,
            name: String::new(),
        }
    }

    /// Its state now, or the last one that could be read; `None` when it is gone.
    pub(super) fn poll(&mut self, shared: &mut Shared) -> Option<ThreadState> {
        match self.look(shared) {
            Ok(state) => state,
            Err(why) if shared.unread.note(why) => self.last.clone(),
            Err(_) => None,
        }
    }

    /// `None` of one that has ended.
    fn look(&mut self, shared: &mut Shared) -> Result<Option<ThreadState>, Errno> {
        let counters = self.counters(shared)?;
        if let (Some(last), Some([cpu_ns, queued_ns, turns])) = (&self.last, counters) {
            let stands_still =
                (last.cpu_ns, last.queued_ns, last.turns) == (cpu_ns, queued_ns, turns);
            let waits = matches!(last.state, State::Waiting(_));
            if stands_still && waits && self.trusted < TRUSTED_POLLS {
                self.trusted += 1;
                return Ok(self.last.clone());
            }
        }
        self.trusted = 0;
        let stat = parse::stat(self.stat.read(&mut shared.buffer)?);
        let Some(stat) = stat.filter(|stat| !matches!(stat.state, b'Z' | b'X' | b'x')) else {
            return Ok(None);
        };
        if stat.name != self.name.as_bytes() {
            self.name = String::from_utf8_lossy(stat.name).into_owned();
        }
        let Stat {
            user_ticks,
            system_ticks,
            cpu,
            state,
            ..
        } = stat;
        let user_ns = user_ticks.saturating_mul(shared.tick_ns);
        let system_ns = system_ticks.saturating_mul(shared.tick_ns);
        let [cpu_ns, queued_ns, turns] =
            counters.unwrap_or([user_ns.saturating_add(system_ns), 0, 0]);
        let state = match state {
            b'R' => State::Runnable,
            b'T' | b't' => State::Stopped,
            _ => self.waiting(state == b'D', shared),
        };
        let (pid, tid) = (self.pid, self.tid);
        let now = ThreadState {
            tid,
            pid,
            state,
            cpu,
            cpu_ns,
            queued_ns,
            turns,
            user_ns,
            system_ns,
        };
        self.last = Some(now.clone());
        Ok(Some(now))
    }

    /// `None` where the kernel keeps no such counters.
    fn counters(&mut self, shared: &mut Shared) -> Result<Option<[u64; 3]>, Errno> {
        if !self.has_schedstat {
            return Ok(None);
        }
        match self.schedstat.read(&mut shared.buffer) {
            Ok(text) => Ok(parse::schedstat(text)),
            // No such file, but is there such a thread? `stat` will tell.
            Err(Errno::NOENT) => {
                self.has_schedstat = false;
                Ok(None)
            }
            Err(why) => Err(why),
        }
    }

    fn waiting(&mut self, uninterruptible: bool, shared: &mut Shared) -> State {
        let call = match self.syscall.read(&mut shared.buffer) {
            Ok(text) => parse::syscall(text),
            Err(why) => {
                // A thread that has just ended hides nothing.
                shared.hidden += u64::from(matches!(why, Errno::ACCESS | Errno::PERM));
                shared.unread.note(why);
                None
            }
        };
        let is_readable = call.is_some();
        let mut blocked = Blocked {
            uninterruptible,
            ..Blocked::default()
        };
        // The kernel function matters where the system call says too little.
        let wchan = if uninterruptible || !is_readable {
            self.function(shared)
        } else {
            Arc::default()
        };
        let mut reach = Default::default();
        match call {
            // It got a CPU since its state was read.
            Some(Syscall::Running) => return State::Runnable,
            Some(Syscall::Blocked {
                number,
                args,
                sp,
                pc,
            }) => {
                blocked.syscall = number;
                blocked.args = [args[0], args[1], args[2], args[3]];
                if let Some(number) = number {
                    let pids = std::mem::take(&mut shared.pids);
                    reach = shared.reaches.of(self.pid, number, &args, &pids);
                    shared.pids = pids;
                    let place = Place {
                        tid: self.tid,
                        number,
                        object: args[0],
                        sp,
                        pc,
                    };
                    let is_lock = FUTEXES.contains(&libc::c_long::from(number))
                        || KernelPrimitive::from_wchan(&wchan).is_some();
                    if shared.copies == Copies::All || is_lock {
                        blocked.stack = self.stack(place, shared);
                    }
                }
            }
            None => {}
        }
        State::Waiting(Waiting {
            blocked,
            is_readable,
            wchan,
            reach,
        })
    }

    fn function(&mut self, shared: &mut Shared) -> Arc<str> {
        const FUNCTIONS_MAX: usize = 4096;
        let Ok(text) = self.wchan.read(&mut shared.buffer) else {
            return Arc::default();
        };
        // "0" is no function: it runs, or the kernel does not tell.
        if text.is_empty() || text == b"0" {
            return Arc::default();
        }
        if let Some(name) = shared.functions.get(text) {
            return name.clone();
        }
        let name: Arc<str> = String::from_utf8_lossy(text).into();
        if shared.functions.len() < FUNCTIONS_MAX {
            shared.functions.insert(text.into(), name.clone());
        }
        name
    }

    /// The stack of this place, copied when the thread is first seen there.
    fn stack(&self, place: Place, shared: &mut Shared) -> Option<StackId> {
        if shared.copies == Copies::Nothing {
            return None;
        }
        if let Some(&stack) = shared.places.get(&place) {
            return Some(stack);
        }
        if shared.places.len() >= STACKS_MAX {
            return None;
        }
        let stack = StackId(shared.first_stack + shared.places.len() as u32);
        shared.places.insert(place, stack);
        shared.stacks.push(StackCopy {
            stack,
            pid: self.pid,
            tid: self.tid,
            ts: shared.ts,
            ip: place.pc,
            sp: place.sp,
            memory: copy_stack(self.pid, place.sp),
        });
        Some(stack)
    }
}

/// Stack memory of a process from `sp` upwards; nothing if it may not be read.
pub(crate) fn copy_stack(pid: Tid, sp: u64) -> Box<[u8]> {
    let mut bytes = [0; STACK_BYTES];
    let mut len = memory(pid, sp, &mut bytes);
    if len == 0 {
        // The stack may end before so many bytes: what is left of the page is there.
        let rest = (4096 - sp % 4096) as usize;
        len = memory(pid, sp, &mut bytes[..rest.min(STACK_BYTES)]);
    }
    bytes[..len].into()
}
