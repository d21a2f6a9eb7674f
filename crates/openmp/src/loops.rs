//! Loops whose iterations are dealt out to the threads of a team, and sections, which are such a loop.

use std::ffi::c_void;

use crate::icv::{Schedule, ScheduleKind};
use crate::schedule::{FULL_SPEED, Iterations, Range};
use crate::share::{self, Deal, Plan, Share};
use crate::thread::Thread;
use crate::{task, team};

impl Deal {
    /// The schedule of `schedule(runtime)`. `may_reorder`: the program has not asked for increasing numbers.
    pub fn runtime(schedule: Schedule, may_reorder: bool) -> Deal {
        let chunk = u64::try_from(schedule.chunk).unwrap_or(0);
        let is_monotonic = schedule.is_monotonic || !may_reorder;
        match schedule.kind {
            ScheduleKind::Static => Deal::Static { chunk },
            ScheduleKind::Auto if is_monotonic => Deal::Static { chunk: 0 },
            ScheduleKind::Auto => Deal::Auto,
            ScheduleKind::Guided => Deal::Guided { chunk },
            ScheduleKind::Dynamic => Deal::Dynamic {
                chunk,
                is_monotonic,
            },
        }
    }
}

/// What a construct asks for beside its iterations, both may be null.
#[derive(Clone, Copy, Debug)]
pub struct Extras {
    /// Reductions over tasks, in the form that the compiler gives them.
    pub reductions: *mut usize,
    /// In: bytes of memory that is to be zero; out: where they are, the same for all threads of the team.
    pub memory: *mut *mut c_void,
}

/// The calling thread comes to a work share with `extras`.
///
/// # Safety
/// `thread` is the calling thread's, and the pointers are valid.
pub unsafe fn enter(thread: *mut Thread, extras: Extras, make: impl FnOnce(&mut Share, u32)) {
    // SAFETY: the caller's promise.
    unsafe {
        if !extras.reductions.is_null() {
            task::begin_workshare(thread);
        }
        let bytes = if extras.memory.is_null() {
            0
        } else {
            (*extras.memory).addr()
        };
        let (share, is_first) = share::enter(thread, |share, threads| {
            make(share, threads);
            share.clear_memory(bytes);
            if !extras.reductions.is_null() {
                // Before others see the share: they take what this one makes.
                task::register_reductions(thread, extras.reductions);
                share.reductions = extras.reductions;
            }
        });
        if !is_first && !extras.reductions.is_null() {
            task::join_reductions(thread, extras.reductions, share.reductions);
        }
        if !extras.memory.is_null() {
            *extras.memory = share.memory();
        }
    }
}

/// The calling thread comes to a loop. [`next`] gives it its iterations.
///
/// # Safety
/// `thread` is the calling thread's.
#[inline]
pub unsafe fn start(thread: *mut Thread, iterations: impl FnOnce() -> Iterations, deal: Deal) {
    // SAFETY: the caller's promise.
    unsafe {
        share::enter(thread, |share, threads| {
            share.deal(iterations(), deal, threads);
        });
    }
}

/// More iterations of the loop that the calling thread is in: first value of the variable, and where to stop.
///
/// # Safety
/// `thread` is the calling thread's.
#[inline(always)]
pub unsafe fn next(thread: *mut Thread) -> Option<(u64, u64)> {
    // SAFETY: a thread's share stays as it is while the thread is in it.
    unsafe {
        let share = share::current(thread)?;
        if share.plan != Plan::Dynamic {
            return next_otherwise(thread);
        }
        let (first, end) = share.take_dynamic()?;
        Some(share.iterations.values(first, end))
    }
}

#[inline(never)]
unsafe fn next_otherwise(thread: *mut Thread) -> Option<(u64, u64)> {
    // SAFETY: as above.
    unsafe {
        let share = share::current(thread)?;
        let (first, end) = take(thread, share)?;
        Some(share.iterations.values(first, end))
    }
}

/// The next iterations of the calling thread in its share, whatever the plan is.
///
/// # Safety
/// `thread` is the calling thread's, and in `share`.
#[inline]
pub(crate) unsafe fn take(thread: *mut Thread, share: &Share) -> Option<Range> {
    // SAFETY: the caller's promise.
    unsafe {
        let trip = &mut (*thread).at.trip;
        let mut speed = FULL_SPEED;
        if share.plan == Plan::Guided {
            if is_worth_a_look(*trip) {
                (*thread).own.look(&team::CONTENTION);
            }
            *trip += 1;
            speed = (*thread).own.speed();
        }
        share.take((*thread).at.id, trip, speed)
    }
}

/// Whether a thread may have lost its CPU since it has looked last, which costs a clock where it has lost it lately: after the
/// first chunk of a guided loop, which is the largest, and then more and more seldom. Who comes to the loop has looked at the
/// barrier before.
fn is_worth_a_look(trip: u64) -> bool {
    trip.is_power_of_two() && trip.trailing_zeros().is_multiple_of(2)
}

/// Makes a share of `count` sections.
pub fn sections(share: &mut Share, count: u32, threads: u32) {
    let each = Deal::Dynamic {
        chunk: 1,
        is_monotonic: true,
    };
    share.deal(Iterations::upto(count.into()), each, threads);
}

/// The next section of the calling thread, counted from 1; 0: there is none left.
///
/// # Safety
/// `thread` is the calling thread's.
#[inline]
pub unsafe fn next_section(thread: *mut Thread) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { next(thread) }.map_or(0, |(first, _)| first as u32 + 1)
}
