//! What the runtime knows of each thread: where in which team it is.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::chain::Link;
use crate::contention::Own;
use crate::icv::{self, Icv};
use crate::share::{self, Share};
use crate::task::worth::Worth;
use crate::task::{Queue, Task};
use crate::team::Team;
use crate::{fork, tls, worker};

/// Where a thread is in the nest of parallel regions. Saved by the master when a region begins, restored when it
/// ends.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The innermost team; null outside of all regions.
    pub team: *mut Team,
    /// The number of this thread in the team.
    pub id: u32,
    /// Its queue of tasks there; null outside of all regions.
    pub(crate) queue: *const Queue,
    /// Regions around this thread.
    pub level: u32,
    /// Those of them with more than one thread.
    pub active_level: u32,
    /// The places that its teams may use: first and number. No places: 0, 0.
    pub places: (u32, u32),
    /// In a league of teams on the host: the number of this thread's team, and of the last one.
    pub league: (u32, u32),
    /// Threads of the contention group besides its first, where its size is limited; null: of a worker without a team.
    pub group: *const AtomicU32,
    /// The allocator of `omp_set_default_allocator`; 0: not set.
    pub allocator: usize,
    /// The work share this thread is in.
    pub share: *mut Link<Share>,
    /// `single` constructs that this thread has met in the region.
    pub singles: u64,
    /// How often it has taken iterations of a static or guided loop, or in how many parts of a dynamic one none are left.
    pub trip: u64,
    /// Its iterations of an ordered loop.
    pub chunk: Option<(u64, u64)>,
    /// Meetings (barriers and ends) that this thread has come to in the team, of all its regions.
    pub(crate) meetings: u64,
    /// The region of the team that it is in or was in last.
    pub(crate) region: u64,
}

impl Position {
    /// Outside of all regions.
    pub const OUTSIDE: Position = Position {
        team: ptr::null_mut(),
        id: 0,
        queue: ptr::null(),
        level: 0,
        active_level: 0,
        places: (0, 0),
        league: (0, 0),
        group: ptr::null(),
        allocator: 0,
        share: ptr::null_mut(),
        singles: 0,
        trip: 0,
        chunk: None,
        meetings: 0,
        region: 0,
    };
}

/// A thread that uses OpenMP. Only the thread itself touches it, while it lives.
pub struct Thread {
    /// Where it is.
    pub at: Position,
    /// What it executes.
    pub task: *mut Task,
    /// Tasks within each other that it runs where they were made.
    pub(crate) depth: u32,
    /// Where its stack was when the outermost of them began.
    pub(crate) stack: usize,
    /// What it has gained by tasks of others.
    pub(crate) worth: Worth,
    /// Its place plus 1; 0: not bound.
    pub place: u32,
    pub(crate) own: Own,
    /// The team of its outermost regions, with workers that wait for the next one.
    pub(crate) hot: *mut Team,
    /// Teams of inner regions, without workers.
    pub(crate) spares: Vec<*mut Team>,
    /// Threads that it may have for its next region, of those that its contention group has left; see `resolve`.
    pub(crate) reserved: u32,
    /// The size of the contention group of an initial thread.
    busy: AtomicU32,
    /// It has begun an outermost region.
    pub(crate) has_begun: bool,
    /// What a thread executes that no region made.
    initial: *mut Task,
    /// The number of the thread that no region made and in whose regions this one is; 0: of a worker before its first.
    pub(crate) root: u64,
}

impl Thread {
    pub(crate) fn new() -> Thread {
        Thread {
            at: Position::OUTSIDE,
            task: ptr::null_mut(),
            depth: 0,
            stack: 0,
            worth: Worth::default(),
            place: 0,
            own: Own::default(),
            hot: ptr::null_mut(),
            spares: Vec::new(),
            reserved: 0,
            busy: AtomicU32::new(0),
            has_begun: false,
            initial: ptr::null_mut(),
            root: 0,
        }
    }

    #[inline]
    pub(crate) fn next_meeting(&mut self) -> u64 {
        self.at.meetings += 1;
        self.at.meetings
    }

    /// The control variables of what this thread executes.
    ///
    /// # Safety
    /// `this` is the calling thread's.
    #[inline]
    pub unsafe fn icv<'a>(this: *mut Thread) -> &'a mut Icv {
        // SAFETY: a current task is always there, see `current`, and its variables are its thread's alone.
        unsafe { &mut (*(*this).task).icv }
    }
}

/// The calling thread's. Made at the first call of threads that no region made, with an initial task. Valid as long
/// as the thread lives.
#[inline]
pub fn current() -> *mut Thread {
    known().unwrap_or_else(enter)
}

/// The calling thread's, if it has used OpenMP before.
#[inline]
pub fn known() -> Option<*mut Thread> {
    let thread = tls::get() as *mut Thread;
    (!thread.is_null()).then_some(thread)
}

#[cold]
fn enter() -> *mut Thread {
    crate::team::init();
    /// The next one's number.
    static ROOTS: AtomicU64 = AtomicU64::new(1);
    let mut thread = Box::new(Thread::new());
    thread.root = ROOTS.fetch_add(1, Ordering::Relaxed);
    let initial = Box::into_raw(Box::new(Task::implicit(
        ptr::null_mut(),
        icv::globals().initial,
    )));
    thread.initial = initial;
    thread.task = initial;
    let thread = Box::into_raw(thread);
    // SAFETY: just made; it stays where it is.
    unsafe { (*thread).at.group = &raw const (*thread).busy };
    tls::set(thread as usize);
    at_exit(thread);
    worker::entered();
    thread
}

/// Key whose destructor runs where a thread ends that has entered.
static EXIT_KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Has what `thread` holds given back when it ends.
fn at_exit(thread: *mut Thread) {
    static ONCE: OnceLock<()> = OnceLock::new();
    unsafe extern "C" fn ends(thread: *mut c_void) {
        // SAFETY: the value of the key is what `at_exit` was given, and the thread ends.
        unsafe {
            let thread = thread.cast::<Thread>();
            // Who ends inside of a region leaves it to the others, who wait for it in vain.
            if (*thread).at.team.is_null() {
                give_back_teams(thread);
                leave(thread);
            }
        }
    }
    fork::filled(&ONCE, || {
        let mut key = 0;
        // SAFETY: `key` is written by the call.
        if unsafe { libc::pthread_key_create(&mut key, Some(ends)) } == 0 {
            EXIT_KEY.store(key, Ordering::Relaxed);
        }
    });
    let key = EXIT_KEY.load(Ordering::Relaxed);
    if key != u32::MAX {
        // SAFETY: the key was made above.
        unsafe { libc::pthread_setspecific(key, thread.cast()) };
    }
}

/// The thread ends: what it held is given back.
///
/// # Safety
/// Called by the thread itself, last of all, with what `current` gave it.
unsafe fn leave(thread: *mut Thread) {
    tls::set(0);
    worker::left();
    // SAFETY: nobody else has it; both were made by `enter`. Outside of all regions the share is the thread's own.
    unsafe {
        share::give_back((*thread).at.share);
        drop(Box::from_raw((*thread).initial));
        drop(Box::from_raw(thread));
    }
}

/// Gives the teams of a thread to others, and their workers.
///
/// # Safety
/// `thread` is the calling thread's, outside of all regions.
pub(crate) unsafe fn give_back_teams(thread: *mut Thread) {
    // SAFETY: the thread's own, between regions: nobody else is in its teams.
    unsafe {
        let Teams { hot, spares, .. } = set_teams_aside(thread);
        if !hot.is_null() {
            (*hot).resize(1, (*thread).root);
            worker::keep_team(hot);
            worker::master_left();
        }
        for team in spares {
            worker::keep_team(team);
        }
    }
}

/// The teams of a thread, taken from it for a while: it begins anew, as a thread that has had no regions.
pub(crate) struct Teams {
    hot: *mut Team,
    spares: Vec<*mut Team>,
    /// How often this process is a child of `fork`.
    forks: u32,
}

/// Has the thread make teams of its own until [`put_teams_back`].
///
/// # Safety
/// `thread` is the calling thread's.
pub(crate) unsafe fn set_teams_aside(thread: *mut Thread) -> Teams {
    // SAFETY: the thread's own fields.
    unsafe {
        let hot = std::mem::replace(&mut (*thread).hot, ptr::null_mut());
        Teams {
            hot,
            spares: std::mem::take(&mut (*thread).spares),
            forks: worker::forks(),
        }
    }
}

/// The end of [`set_teams_aside`]; what was made in between has been given back.
///
/// # Safety
/// `thread` is the calling thread's.
pub(crate) unsafe fn put_teams_back(thread: *mut Thread, teams: Teams) {
    // SAFETY: the thread's own fields.
    unsafe {
        if teams.forks == worker::forks() {
            (*thread).hot = teams.hot;
            (*thread).spares = teams.spares;
        } else {
            // Their workers are in the parent.
            std::mem::forget(teams.spares);
        }
    }
}
