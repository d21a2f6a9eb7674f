//! Workers: threads that no region has made yet another time. They wait for the region of their team, or for a team.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use amdahl_topology::CpuSet;

use crate::dock::{Berth, Next};
use crate::gate::{Gate, Manner};
use crate::lateness::Awaited;
use crate::spinners::Place;
use crate::sync::{AtomicPtr, AtomicU32, Ordering};
use crate::team::{self, CONTENTION, Member, Team};
use crate::thread::{Position, Thread};
use crate::{capacity, degree, icv, message, policy::Patience, runnable, sys, tls};

/// A thread of this runtime. Never freed.
pub(crate) struct Worker {
    thread: Thread,
    gate: Gate,
    /// Whose part it plays; null: nobody's. Written by who owns it: the idle list, or the master of a team.
    member: AtomicPtr<Member>,
    /// Whose regions it serves. Written by who assigns it, read by the worker when a region has begun.
    service: UnsafeCell<Service>,
}

struct Service {
    /// [`Thread::root`] of the thread that has it or had it last.
    root: u64,
    /// Where it may run from its next region on, if another thread had it before.
    cpus: Option<CpuSet>,
}

/// Who takes workers for its team.
pub(crate) struct Taker {
    root: u64,
    /// Where the calling thread may run, once that was asked.
    cpus: Option<CpuSet>,
}

impl Taker {
    /// The calling thread, whose root this is.
    pub(crate) fn new(root: u64) -> Taker {
        Taker { root, cpus: None }
    }

    /// Where a worker is to run that served another initial thread. A program may give its threads CPUs of their own
    /// (one for each rank, a socket for each server thread), and a thread that is started inherits them. Who served
    /// this one before stays where it is: the program may have put it there.
    fn cpus(&mut self) -> Option<CpuSet> {
        if icv::globals().places.is_some() {
            return None;
        }
        if self.cpus.is_none() {
            self.cpus = amdahl_topology::allowed().ok();
        }
        self.cpus.clone()
    }
}

/// What nobody uses at the moment.
struct Idle {
    workers: Vec<*mut Worker>,
    /// Their threads have ended: memory for others.
    ended: Vec<*mut Worker>,
    teams: Vec<*mut Team>,
}

// SAFETY: what is in the list is used by nobody else.
unsafe impl Send for Idle {}

static IDLE: AtomicPtr<Mutex<Idle>> = AtomicPtr::new(ptr::null_mut());
/// Workers that play a part, whether or not their region is on.
static ASSIGNED: AtomicU32 = AtomicU32::new(0);
/// Threads that no region made and that have a team.
static MASTERS: AtomicU32 = AtomicU32::new(0);

/// Threads that no region made and that have used OpenMP.
static ENTERED: AtomicU32 = AtomicU32::new(0);
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How often this process and its ancestors have forked after the first use.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// A thread uses OpenMP for the first time.
pub(crate) fn entered() {
    ENTERED.fetch_add(1, Ordering::Relaxed);
}

/// Such a thread ends. What is idle beyond the CPUs ends with it; everything with the last one: a process ends with
/// its last thread.
pub(crate) fn left() {
    let keep = match ENTERED.fetch_sub(1, Ordering::Relaxed) {
        1 => 0,
        _ => capacity::usable_cpus() as usize,
    };
    end_idle(keep);
}

/// Threads that belong to teams.
pub(crate) fn in_teams() -> u32 {
    ASSIGNED.load(Ordering::Relaxed) + MASTERS.load(Ordering::Relaxed).max(1)
}

/// Whether threads that belong to teams are more than CPUs.
pub(crate) fn are_crowded() -> bool {
    in_teams() > capacity::cpus_at_once()
}

/// Whether threads that belong to teams are more than a quota lets run all the time.
pub(crate) fn are_rationed() -> bool {
    in_teams() > capacity::usable_cpus()
}

/// A thread that no region made has a team.
pub(crate) fn master_came() {
    MASTERS.fetch_add(1, Ordering::Relaxed);
}

/// It has given it back.
pub(crate) fn master_left() {
    MASTERS.fetch_sub(1, Ordering::Relaxed);
}

fn new_idle() -> *mut Mutex<Idle> {
    Box::into_raw(Box::new(Mutex::new(Idle {
        workers: Vec::new(),
        ended: Vec::new(),
        teams: Vec::new(),
    })))
}

pub(crate) fn init() {
    IDLE.store(new_idle(), Ordering::Release);
}

/// Of all threads only the one that called `fork` is there. What belonged to others is forgotten, not freed: it may
/// have been changing.
pub(crate) fn in_child() {
    if !IDLE.load(Ordering::Relaxed).is_null() {
        IDLE.store(new_idle(), Ordering::Release);
    }
    degree::in_child();
    runnable::in_child();
    ENTERED.store(u32::from(tls::get() != 0), Ordering::Relaxed);
    ASSIGNED.store(0, Ordering::Relaxed);
    MASTERS.store(0, Ordering::Relaxed);
    FORKS.fetch_add(1, Ordering::Relaxed);
    let thread = tls::get() as *mut Thread;
    if !thread.is_null() {
        // SAFETY: the calling thread's own.
        unsafe {
            // In a region its team stays: the thread may look at it, and end the process.
            (*thread).hot = ptr::null_mut();
            std::mem::forget(std::mem::take(&mut (*thread).spares));
            // Its CPU clock begins anew.
            (*thread).own = crate::contention::Own::default();
        }
    }
}

fn idle() -> MutexGuard<'static, Idle> {
    // SAFETY: made before the first use, never freed.
    unsafe { &*IDLE.load(Ordering::Acquire) }
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// A team without workers.
pub(crate) fn kept_team() -> *mut Team {
    let kept = idle().teams.pop();
    match kept {
        Some(team) => team,
        None => Team::new(),
    }
}

/// Keeps a team without workers for somebody else.
pub(crate) fn keep_team(team: *mut Team) {
    idle().teams.push(team);
}

/// Finds or starts a worker for a member, which may take part from `join_at` on. Ends the process if the system
/// gives no more threads, as GCC's library does.
pub(crate) unsafe fn assign(member: *mut Member, taker: &mut Taker) -> *mut Worker {
    ASSIGNED.fetch_add(1, Ordering::Relaxed);
    let (kept, memory) = {
        let mut idle = idle();
        match idle.workers.pop() {
            Some(worker) => (Some(worker), None),
            None => (None, idle.ended.pop()),
        }
    };
    // SAFETY: whoever is in the list of workers waits for a member; of those that have ended nobody touches more than
    // the gate, late.
    unsafe {
        if let Some(worker) = kept {
            // It has arrived at the end of its last region, and looks again when one of the new member has begun.
            let service = &mut *(*worker).service.get();
            if service.root != taker.root {
                *service = Service {
                    root: taker.root,
                    cpus: taker.cpus(),
                };
            }
            (*worker).member.store(member, Ordering::SeqCst);
            (*worker).gate.open();
            return worker;
        }
        let worker = memory.unwrap_or_else(|| {
            Box::into_raw(Box::new(Worker {
                thread: Thread::new(),
                gate: Gate::new(),
                member: AtomicPtr::new(ptr::null_mut()),
                service: UnsafeCell::new(Service {
                    root: 0,
                    cpus: None,
                }),
            }))
        });
        (*worker).thread = Thread::new();
        // It inherits where it may run.
        *(*worker).service.get() = Service {
            root: taker.root,
            cpus: None,
        };
        (*worker).member.store(member, Ordering::SeqCst);
        if let Err(error) = sys::spawn(icv::globals().stack_bytes, run, worker.cast()) {
            message::fatal(format_args!("Thread creation failed: {error}"));
        }
        worker
    }
}

/// Takes workers from their team. They have to be told at the dock.
pub(crate) fn release(workers: &[*mut Worker]) {
    ASSIGNED.fetch_sub(workers.len() as u32, Ordering::Relaxed);
    for &worker in workers {
        // SAFETY: the caller's own workers.
        unsafe { (*worker).member.store(ptr::null_mut(), Ordering::SeqCst) };
    }
    // The last one in is the first one out: a team that grows again has the same ones under the same numbers.
    idle().workers.extend(workers.iter().rev());
}

/// Stands for a member: the worker is to end.
const OVER: *mut Member = ptr::without_provenance_mut(usize::MAX);

/// Ends the workers that nobody uses, but for `keep`.
pub(crate) fn end_idle(keep: usize) {
    let ended = {
        let workers = &mut idle().workers;
        workers.split_off(keep.min(workers.len()))
    };
    for worker in ended {
        // SAFETY: whoever was in the list waits for a member, and nobody else gives it one.
        unsafe {
            (*worker).member.store(OVER, Ordering::SeqCst);
            (*worker).gate.open();
        }
    }
}

extern "C" fn run(worker: *mut c_void) -> *mut c_void {
    let worker = worker.cast::<Worker>();
    // SAFETY: the worker is never freed; its thread is this one.
    unsafe {
        let thread: *mut Thread = &raw mut (*worker).thread;
        tls::set(thread as usize);
        loop {
            let member = wait_for_member(worker, thread);
            if member == OVER {
                tls::set(0);
                let spares = std::mem::take(&mut (*thread).spares);
                let mut idle = idle();
                idle.teams.extend(spares);
                idle.ended.push(worker);
                return ptr::null_mut();
            }
            serve(worker, thread, member);
        }
    }
}

unsafe fn wait_for_member(worker: *mut Worker, thread: *mut Thread) -> *mut Member {
    // SAFETY: the worker's own gate and thread.
    unsafe {
        let member = || (*worker).member.load(Ordering::SeqCst);
        let mut manner = Manner {
            // Nobody knows when the next region comes that needs it.
            patience: Patience::Turns {
                alone: 0,
                crowded: 0,
            },
            is_crowded: true,
            are_crowded: || true,
            own: &mut (*thread).own,
            contention: &CONTENTION,
            is_awaited_here: &|| false,
            place: Place::default(),
            awaited: Awaited::Other,
        };
        (*worker)
            .gate
            .wait(&mut manner, || !member().is_null(), |_| false);
        member()
    }
}

/// Takes part in the regions of a team as long as it is assigned to it.
unsafe fn serve(worker: *mut Worker, thread: *mut Thread, member: *mut Member) {
    // SAFETY: members and their groups are never freed.
    unsafe {
        let dock = &(*(*member).group).dock;
        let mut berth = Berth::new(&(*member).join_at);
        loop {
            let is_mine = || (*worker).member.load(Ordering::SeqCst) == member;
            match berth.next(dock, is_mine, &(*member).join_at) {
                Next::Leave => {
                    (*thread).at = Position::OUTSIDE;
                    return;
                }
                Next::Begin => {
                    begin_service(thread, (*worker).service.get());
                    team::work(thread, member);
                }
                Next::Wait(seen) => team::wait_at_dock(thread, member, seen),
            }
        }
    }
}

/// A region has begun: perhaps another thread's than the last one.
unsafe fn begin_service(thread: *mut Thread, service: *mut Service) {
    // SAFETY: the calling worker's own. It was written before the dock was opened, and will be after this worker has
    // arrived at the end.
    unsafe {
        (*thread).root = (*service).root;
        // One that may run where it did is not told: the kernel would take that for a wish that outlives a change of
        // the control group's CPUs.
        if let Some(cpus) = (*service).cpus.take()
            && amdahl_topology::allowed().is_ok_and(|now| now != cpus)
        {
            let _ = amdahl_topology::set_allowed(0, &cpus);
        }
    }
}
