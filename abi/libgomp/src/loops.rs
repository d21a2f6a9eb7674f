//! Loops. The program's variable is `long`, or `unsigned long long` in the functions with `ull`. All that begin a loop
//! or go on with it return whether there are iterations for the calling thread, and write where they begin and end.

use std::ffi::{c_uint, c_void};
use std::slice;

use amdahl_openmp::loops::{self, Extras};
use amdahl_openmp::schedule::{Iterations, Range};
use amdahl_openmp::share::{self, Deal, Share};
use amdahl_openmp::thread::{self, Thread};
use amdahl_openmp::{doacross, ordered, team};

use crate::parallel::begin_shared;

/// In a schedule: the program asks for increasing numbers.
const MONOTONIC: i64 = 0x8000_0000;

/// The range for the program, in variables of either type.
#[inline(always)]
unsafe fn give<T>(range: Option<Range>, first: *mut T, end: *mut T) -> bool {
    const { assert!(size_of::<T>() == size_of::<u64>()) };
    let Some(range) = range else { return false };
    // SAFETY: the caller's pointers to numbers of 64 bits.
    unsafe {
        first.cast::<u64>().write(range.0);
        end.cast::<u64>().write(range.1);
    }
    true
}

/// A chunk as `long`; what is not a size counts as none.
fn size(chunk: i64) -> u64 {
    u64::try_from(chunk).unwrap_or(0)
}

fn first_come(chunk: u64, may_reorder: bool) -> Deal {
    Deal::Dynamic {
        chunk,
        is_monotonic: !may_reorder,
    }
}

/// What the control variables say of `schedule(runtime)`.
unsafe fn runtime(thread: *mut Thread, may_reorder: bool) -> Deal {
    // SAFETY: the thread is the calling one.
    Deal::runtime(unsafe { Thread::icv(thread) }.schedule, may_reorder)
}

/// A schedule as a number: that of `omp_sched_t`; 0: at run time; 4: at run time, and in any order.
unsafe fn numbered(thread: *mut Thread, schedule: i64, chunk: u64, may_reorder: bool) -> Deal {
    let may_reorder = may_reorder && schedule & MONOTONIC == 0;
    match schedule & !MONOTONIC {
        1 => Deal::Static { chunk },
        2 => first_come(chunk, may_reorder),
        3 => Deal::Guided { chunk },
        // SAFETY: the thread is the calling one.
        _ => unsafe { runtime(thread, may_reorder) },
    }
}

#[inline(always)]
unsafe fn start(iterations: impl FnOnce() -> Iterations, deal: Deal) -> Option<Range> {
    // SAFETY: the thread is the calling one.
    unsafe {
        let thread = thread::current();
        loops::start(thread, iterations, deal);
        loops::next(thread)
    }
}

unsafe fn start_ordered(iterations: impl FnOnce() -> Iterations, deal: Deal) -> Option<Range> {
    // SAFETY: the thread is the calling one.
    unsafe {
        let thread = thread::current();
        share::enter(thread, |share, threads| {
            share.deal(iterations(), deal, threads);
            share.order(threads);
        });
        ordered::first(thread)
    }
}

/// Loops of `counts` iterations, the outermost one first. Numbers up to what `long` can be are the same in both types.
unsafe fn start_doacross(counts: *const u64, depth: c_uint, deal: Deal) -> Option<Range> {
    // SAFETY: the compiler's array; the thread is the calling one.
    unsafe {
        let thread = thread::current();
        let counts = slice::from_raw_parts(counts, depth as usize);
        share::enter(thread, |share, threads| {
            cross(share, counts, deal, threads);
        });
        loops::next(thread)
    }
}

fn cross(share: &mut Share, counts: &[u64], deal: Deal, threads: u32) {
    let outer = counts.first().copied().unwrap_or(0);
    share.deal(Iterations::upto(outer), deal, threads);
    share.cross(counts, threads);
}

/// Functions that go on with a loop: they are the same for all types and schedules.
macro_rules! next {
    ($number:ty, $($name:ident)+) => { $(
        /// More iterations of the loop.
        ///
        /// # Safety
        /// The thread is in a loop; the pointers are valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(first: *mut $number, end: *mut $number) -> bool {
            // Who has not used OpenMP yet is in no loop.
            let Some(thread) = thread::known() else { return false };
            // SAFETY: the caller's promise.
            unsafe { give(loops::next(thread), first, end) }
        }
    )+ };
}

next! { i64,
    GOMP_loop_static_next GOMP_loop_dynamic_next GOMP_loop_guided_next GOMP_loop_runtime_next
    GOMP_loop_nonmonotonic_dynamic_next GOMP_loop_nonmonotonic_guided_next
    GOMP_loop_nonmonotonic_runtime_next GOMP_loop_maybe_nonmonotonic_runtime_next
}
next! { u64,
    GOMP_loop_ull_static_next GOMP_loop_ull_dynamic_next GOMP_loop_ull_guided_next GOMP_loop_ull_runtime_next
    GOMP_loop_ull_nonmonotonic_dynamic_next GOMP_loop_ull_nonmonotonic_guided_next
    GOMP_loop_ull_nonmonotonic_runtime_next GOMP_loop_ull_maybe_nonmonotonic_runtime_next
}

macro_rules! next_ordered {
    ($number:ty, $($name:ident)+) => { $(
        /// More iterations of the ordered loop.
        ///
        /// # Safety
        /// The thread is in such a loop; the pointers are valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(first: *mut $number, end: *mut $number) -> bool {
            // SAFETY: the caller's promise.
            unsafe { give(ordered::next(thread::current()), first, end) }
        }
    )+ };
}

next_ordered! { i64,
    GOMP_loop_ordered_static_next GOMP_loop_ordered_dynamic_next GOMP_loop_ordered_guided_next
    GOMP_loop_ordered_runtime_next
}
next_ordered! { u64,
    GOMP_loop_ull_ordered_static_next GOMP_loop_ull_ordered_dynamic_next GOMP_loop_ull_ordered_guided_next
    GOMP_loop_ull_ordered_runtime_next
}

/// Functions that begin a loop with `$start`, by name: how `chunk` iterations are dealt out. First of `long`, then the
/// others.
macro_rules! starts {
    ($start:ident: $($name:ident, $ull_name:ident: |$chunk:ident| $deal:expr;)+) => { $(
        /// The calling thread comes to a loop.
        ///
        /// # Safety
        /// All threads of the team do, with the same loop; the pointers are valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            begin: i64, stop: i64, step: i64, chunk: i64, first: *mut i64, end: *mut i64,
        ) -> bool {
            let $chunk = size(chunk);
            // SAFETY: the caller's promise.
            unsafe { give($start(|| Iterations::signed(begin, stop, step), $deal), first, end) }
        }

        /// The calling thread comes to a loop.
        ///
        /// # Safety
        /// All threads of the team do, with the same loop; the pointers are valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $ull_name(
            is_up: bool, begin: u64, stop: u64, step: u64, $chunk: u64, first: *mut u64, end: *mut u64,
        ) -> bool {
            // SAFETY: the caller's promise.
            unsafe { give($start(|| Iterations::unsigned(is_up, begin, stop, step), $deal), first, end) }
        }
    )+ };
}

starts! { start:
    GOMP_loop_static_start, GOMP_loop_ull_static_start: |chunk| Deal::Static { chunk };
    GOMP_loop_dynamic_start, GOMP_loop_ull_dynamic_start: |chunk| first_come(chunk, false);
    GOMP_loop_guided_start, GOMP_loop_ull_guided_start: |chunk| Deal::Guided { chunk };
    GOMP_loop_nonmonotonic_dynamic_start, GOMP_loop_ull_nonmonotonic_dynamic_start: |chunk| first_come(chunk, true);
    GOMP_loop_nonmonotonic_guided_start, GOMP_loop_ull_nonmonotonic_guided_start: |chunk| Deal::Guided { chunk };
}

/// The same where the schedule is the control variables'; `true`: the program does not ask for increasing numbers.
macro_rules! starts_at_run_time {
    ($start:ident: $($name:ident, $ull_name:ident: $may_reorder:expr;)+) => { $(
        /// The calling thread comes to a loop with a schedule that is known at run time.
        ///
        /// # Safety
        /// All threads of the team do, with the same loop; the pointers are valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            begin: i64, stop: i64, step: i64, first: *mut i64, end: *mut i64,
        ) -> bool {
            // SAFETY: the caller's promise.
            unsafe {
                let deal = runtime(thread::current(), $may_reorder);
                give($start(|| Iterations::signed(begin, stop, step), deal), first, end)
            }
        }

        /// The calling thread comes to a loop with a schedule that is known at run time.
        ///
        /// # Safety
        /// All threads of the team do, with the same loop; the pointers are valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $ull_name(
            is_up: bool, begin: u64, stop: u64, step: u64, first: *mut u64, end: *mut u64,
        ) -> bool {
            // SAFETY: the caller's promise.
            unsafe {
                let deal = runtime(thread::current(), $may_reorder);
                give($start(|| Iterations::unsigned(is_up, begin, stop, step), deal), first, end)
            }
        }
    )+ };
}

starts_at_run_time! { start:
    GOMP_loop_runtime_start, GOMP_loop_ull_runtime_start: false;
    GOMP_loop_nonmonotonic_runtime_start, GOMP_loop_ull_nonmonotonic_runtime_start: true;
    GOMP_loop_maybe_nonmonotonic_runtime_start, GOMP_loop_ull_maybe_nonmonotonic_runtime_start: true;
}

starts! { start_ordered:
    GOMP_loop_ordered_static_start, GOMP_loop_ull_ordered_static_start: |chunk| Deal::Static { chunk };
    GOMP_loop_ordered_dynamic_start, GOMP_loop_ull_ordered_dynamic_start: |chunk| first_come(chunk, false);
    GOMP_loop_ordered_guided_start, GOMP_loop_ull_ordered_guided_start: |chunk| Deal::Guided { chunk };
}

starts_at_run_time! { start_ordered:
    GOMP_loop_ordered_runtime_start, GOMP_loop_ull_ordered_runtime_start: false;
}

/// A loop of any schedule, with reductions over tasks and memory; see [`Extras`]. Without `first` the thread knows
/// its iterations by itself.
unsafe fn start_any<T>(
    iterations: Iterations,
    (schedule, chunk): (i64, u64),
    (first, end): (*mut T, *mut T),
    extras: Extras,
) -> bool {
    // SAFETY: the callers' promises.
    unsafe {
        let thread = thread::current();
        let deal = numbered(thread, schedule, chunk, true);
        loops::enter(thread, extras, |share, threads| {
            share.deal(iterations, deal, threads);
        });
        first.is_null() || give(loops::next(thread), first, end)
    }
}

unsafe fn start_any_ordered<T>(
    iterations: Iterations,
    (schedule, chunk): (i64, u64),
    (first, end): (*mut T, *mut T),
    extras: Extras,
) -> bool {
    // SAFETY: the callers' promises.
    unsafe {
        let thread = thread::current();
        let deal = numbered(thread, schedule, chunk, false);
        loops::enter(thread, extras, |share, threads| {
            share.deal(iterations, deal, threads);
            share.order(threads);
        });
        give(ordered::first(thread), first, end)
    }
}

unsafe fn start_any_doacross<T>(
    (depth, counts): (c_uint, *const u64),
    (schedule, chunk): (i64, u64),
    (first, end): (*mut T, *mut T),
    extras: Extras,
) -> bool {
    // SAFETY: the callers' promises.
    unsafe {
        let thread = thread::current();
        let counts = slice::from_raw_parts(counts, depth as usize);
        let deal = numbered(thread, schedule, chunk, false);
        loops::enter(thread, extras, |share, threads| {
            cross(share, counts, deal, threads);
        });
        give(loops::next(thread), first, end)
    }
}

macro_rules! start_any {
    ($($name:ident, $ull_name:ident: $start:ident;)+) => { $(
        /// The calling thread comes to a loop with what newer programs may ask for beside its iterations.
        ///
        /// # Safety
        /// All threads of the team do, with the same loop; the pointers are valid or null.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            begin: i64, stop: i64, step: i64, schedule: i64, chunk: i64, first: *mut i64, end: *mut i64,
            reductions: *mut usize, memory: *mut *mut c_void,
        ) -> bool {
            let iterations = Iterations::signed(begin, stop, step);
            // SAFETY: the caller's promise.
            unsafe { $start(iterations, (schedule, size(chunk)), (first, end), Extras { reductions, memory }) }
        }

        /// The calling thread comes to a loop with what newer programs may ask for beside its iterations.
        ///
        /// # Safety
        /// All threads of the team do, with the same loop; the pointers are valid or null.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $ull_name(
            is_up: bool, begin: u64, stop: u64, step: u64, schedule: i64, chunk: u64,
            first: *mut u64, end: *mut u64, reductions: *mut usize, memory: *mut *mut c_void,
        ) -> bool {
            let iterations = Iterations::unsigned(is_up, begin, stop, step);
            // SAFETY: the caller's promise.
            unsafe { $start(iterations, (schedule, chunk), (first, end), Extras { reductions, memory }) }
        }
    )+ };
}

start_any! {
    GOMP_loop_start, GOMP_loop_ull_start: start_any;
    GOMP_loop_ordered_start, GOMP_loop_ull_ordered_start: start_any_ordered;
}

macro_rules! start_doacross {
    ($($number:ty: $static:ident $dynamic:ident $guided:ident $runtime:ident $any:ident |$chunk:ident| $size:expr;)+) => { $(
        start_doacross! { @one $number, $static, |$chunk| Deal::Static { chunk: $size } }
        start_doacross! { @one $number, $dynamic, |$chunk| first_come($size, false) }
        start_doacross! { @one $number, $guided, |$chunk| Deal::Guided { chunk: $size } }

        /// The calling thread comes to a nest of loops with a schedule that is known at run time.
        ///
        /// # Safety
        /// All threads of the team do, with the same loops; the pointers are valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $runtime(
            depth: c_uint, counts: *const $number, first: *mut $number, end: *mut $number,
        ) -> bool {
            // SAFETY: the caller's promise.
            unsafe {
                let deal = runtime(thread::current(), false);
                give(start_doacross(counts.cast(), depth, deal), first, end)
            }
        }

        /// The calling thread comes to a nest of loops with what newer programs may ask for beside its iterations.
        ///
        /// # Safety
        /// All threads of the team do, with the same loops; the pointers are valid or null.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $any(
            depth: c_uint, counts: *const $number, schedule: i64, $chunk: $number,
            first: *mut $number, end: *mut $number, reductions: *mut usize, memory: *mut *mut c_void,
        ) -> bool {
            let extras = Extras { reductions, memory };
            // SAFETY: the caller's promise.
            unsafe { start_any_doacross((depth, counts.cast()), (schedule, $size), (first, end), extras) }
        }
    )+ };
    (@one $number:ty, $name:ident, |$chunk:ident| $deal:expr) => {
        /// The calling thread comes to a nest of loops whose iterations wait for others.
        ///
        /// # Safety
        /// All threads of the team do, with the same loops; the pointers are valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            depth: c_uint, counts: *const $number, $chunk: $number, first: *mut $number, end: *mut $number,
        ) -> bool {
            // SAFETY: the caller's promise.
            unsafe { give(start_doacross(counts.cast(), depth, $deal), first, end) }
        }
    };
}

start_doacross! {
    i64: GOMP_loop_doacross_static_start GOMP_loop_doacross_dynamic_start GOMP_loop_doacross_guided_start
        GOMP_loop_doacross_runtime_start GOMP_loop_doacross_start |chunk| size(chunk);
    u64: GOMP_loop_ull_doacross_static_start GOMP_loop_ull_doacross_dynamic_start GOMP_loop_ull_doacross_guided_start
        GOMP_loop_ull_doacross_runtime_start GOMP_loop_ull_doacross_start |chunk| chunk;
}

/// Begins a region that begins with a loop.
unsafe fn begin(
    region: (team::Body, *mut c_void),
    num_threads: c_uint,
    iterations: Iterations,
    deal: Deal,
    flags: c_uint,
) {
    // SAFETY: the callers' promises.
    unsafe {
        begin_shared(region, num_threads, 0, flags, |share, threads| {
            share.deal(iterations, deal, threads);
        });
    }
}

/// Functions that begin a region with a loop: those that leave the body and the end to the caller, and the whole ones.
macro_rules! parallel {
    ($($start:ident)? | $($name:ident)+: |$chunk:ident| $deal:expr) => {
        $(
            /// Begins a region that begins with a loop; the caller runs the body itself.
            ///
            /// # Safety
            /// `body` may be called with `data` by all threads at once; `GOMP_parallel_end` follows.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $start(
                body: team::Body, data: *mut c_void, num_threads: c_uint,
                begins: i64, stop: i64, step: i64, chunk: i64,
            ) {
                let $chunk = size(chunk);
                // SAFETY: the caller's promise.
                unsafe { begin((body, data), num_threads, Iterations::signed(begins, stop, step), $deal, 0) };
            }
        )?
        $(
            /// A region that begins with a loop.
            ///
            /// # Safety
            /// `body` may be called with `data` by all threads at once.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(
                body: team::Body, data: *mut c_void, num_threads: c_uint,
                begins: i64, stop: i64, step: i64, chunk: i64, flags: c_uint,
            ) {
                let $chunk = size(chunk);
                // SAFETY: the caller's promise.
                unsafe {
                    begin((body, data), num_threads, Iterations::signed(begins, stop, step), $deal, flags);
                    body(data);
                    team::end(thread::current());
                }
            }
        )+
    };
}

parallel! { GOMP_parallel_loop_static_start | GOMP_parallel_loop_static: |chunk| Deal::Static { chunk } }
parallel! { GOMP_parallel_loop_dynamic_start | GOMP_parallel_loop_dynamic: |chunk| first_come(chunk, false) }
parallel! { | GOMP_parallel_loop_nonmonotonic_dynamic: |chunk| first_come(chunk, true) }
parallel! {
    GOMP_parallel_loop_guided_start | GOMP_parallel_loop_guided GOMP_parallel_loop_nonmonotonic_guided:
        |chunk| Deal::Guided { chunk }
}

/// Begins a region that begins with a loop with a schedule that is known at run time; the caller runs the body itself.
///
/// # Safety
/// `body` may be called with `data` by all threads at once; `GOMP_parallel_end` follows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_parallel_loop_runtime_start(
    body: team::Body,
    data: *mut c_void,
    num_threads: c_uint,
    begins: i64,
    stop: i64,
    step: i64,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let deal = runtime(thread::current(), false);
        let iterations = Iterations::signed(begins, stop, step);
        begin((body, data), num_threads, iterations, deal, 0);
    }
}

macro_rules! parallel_runtime {
    ($($name:ident: $may_reorder:expr;)+) => { $(
        /// A region that begins with a loop with a schedule that is known at run time.
        ///
        /// # Safety
        /// `body` may be called with `data` by all threads at once.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            body: team::Body, data: *mut c_void, num_threads: c_uint,
            begins: i64, stop: i64, step: i64, flags: c_uint,
        ) {
            // SAFETY: the caller's promise.
            unsafe {
                let deal = runtime(thread::current(), $may_reorder);
                begin((body, data), num_threads, Iterations::signed(begins, stop, step), deal, flags);
                body(data);
                team::end(thread::current());
            }
        }
    )+ };
}

parallel_runtime! {
    GOMP_parallel_loop_runtime: false;
    GOMP_parallel_loop_nonmonotonic_runtime: true;
    GOMP_parallel_loop_maybe_nonmonotonic_runtime: true;
}

/// The end of a loop: all threads meet.
///
/// # Safety
/// All threads of the team call it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_loop_end() {
    // SAFETY: the caller's promise.
    unsafe { team::barrier(thread::current()) };
}

/// The end of a loop in a region that may be cancelled. True: it was.
///
/// # Safety
/// All threads of the team call it, or cancel.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_loop_end_cancel() -> bool {
    // SAFETY: the caller's promise.
    unsafe { team::barrier_cancellable(thread::current()) }
}

/// The end of a loop after which nobody waits.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn GOMP_loop_end_nowait() {
    // The thread leaves the work share when it comes to the next one.
}

/// The calling thread has come to the source of an iteration, whose numbers these are.
///
/// # Safety
/// The thread is in a nest of so many loops.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_doacross_post(numbers: *const i64) {
    // SAFETY: the caller's promise; one number for each loop.
    unsafe {
        doacross::post(thread::current(), |i| numbers.add(i).read() as u64);
    }
}

/// The same with unsigned numbers.
///
/// # Safety
/// As [`GOMP_doacross_post`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_doacross_ull_post(numbers: *const u64) {
    // SAFETY: as above.
    unsafe { doacross::post(thread::current(), |i| numbers.add(i).read()) };
}
