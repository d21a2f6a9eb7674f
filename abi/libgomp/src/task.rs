//! Tasks.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_ulonglong, c_void};

use amdahl_openmp::schedule::Iterations;
use amdahl_openmp::task::{self, Creation};
use amdahl_openmp::{degree, team, thread};

/// Makes a task.
///
/// # Safety
/// What the compiler passes: `body` may be called with `data`, or a copy of it made by `copy`, or of its bytes, until
/// the next barrier. Arguments that the flags do not name are not looked at: older compilers do not pass them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_task(
    body: task::Body,
    data: *mut c_void,
    copy: Option<task::CopyFn>,
    arg_size: c_long,
    arg_align: c_long,
    if_clause: bool,
    flags: c_uint,
    depend: *mut *mut c_void,
    priority: c_int,
    detach: *mut c_void,
) {
    let thread = thread::current();
    // SAFETY: the caller's promise; the thread is the calling one.
    if copy.is_none() && unsafe { task::run_plain(thread, body, data, if_clause, flags) } {
        return;
    }
    let creation = Creation {
        body,
        data,
        copy,
        bytes: arg_size as usize,
        align: arg_align as usize,
        may_defer: if_clause,
        flags,
        depend,
        priority,
        detach: detach.cast(),
    };
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe { task::spawn(thread, &creation) };
}

/// Children have ended.
///
/// # Safety
/// None that the type does not say.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_taskwait() {
    // SAFETY: the thread is the calling one.
    unsafe { task::wait(thread::current()) };
}

/// Children with these dependences have ended.
///
/// # Safety
/// `depend` is what the compiler passes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_taskwait_depend(depend: *mut *mut c_void) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe { task::wait_depend(thread::current(), depend) };
}

/// An empty task with these dependences.
///
/// # Safety
/// `depend` is what the compiler passes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_taskwait_depend_nowait(depend: *mut *mut c_void) {
    unsafe extern "C-unwind" fn nothing(_: *mut c_void) {}
    let creation = Creation {
        body: nothing,
        data: std::ptr::null_mut(),
        copy: None,
        bytes: 0,
        align: 1,
        may_defer: true,
        flags: task::FLAG_DEPEND,
        depend,
        priority: 0,
        detach: std::ptr::null_mut(),
    };
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe { task::spawn(thread::current(), &creation) };
}

/// Another task may run now.
///
/// # Safety
/// None that the type does not say.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_taskyield() {
    // SAFETY: the thread is the calling one.
    unsafe { task::give_way(thread::current()) };
}

/// A taskgroup begins.
///
/// # Safety
/// [`GOMP_taskgroup_end`] follows in the same task.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_taskgroup_start() {
    // SAFETY: the thread is the calling one.
    unsafe { task::group::start(thread::current()) };
}

/// It ends: its tasks and their descendants have ended.
///
/// # Safety
/// [`GOMP_taskgroup_start`] came before.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_taskgroup_end() {
    // SAFETY: the thread is the calling one.
    unsafe { task::group::end(thread::current()) };
}

/// Tasks for a loop over `long`.
///
/// # Safety
/// As [`GOMP_task`]; the data begin with two `long`s.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_taskloop(
    body: task::Body,
    data: *mut c_void,
    copy: Option<task::CopyFn>,
    arg_size: c_long,
    arg_align: c_long,
    flags: c_uint,
    num_tasks: c_ulong,
    priority: c_int,
    start: c_long,
    end: c_long,
    step: c_long,
) {
    let creation = loop_task(body, data, copy, arg_size, arg_align, flags, priority);
    let range = Iterations::signed(start, end, step);
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe { task::loops::taskloop(thread::current(), &creation, num_tasks, range) };
}

/// Tasks for a loop over `unsigned long long`.
///
/// # Safety
/// As [`GOMP_task`]; the data begin with two `unsigned long long`s.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_taskloop_ull(
    body: task::Body,
    data: *mut c_void,
    copy: Option<task::CopyFn>,
    arg_size: c_long,
    arg_align: c_long,
    flags: c_uint,
    num_tasks: c_ulong,
    priority: c_int,
    start: c_ulonglong,
    end: c_ulonglong,
    step: c_ulonglong,
) {
    let creation = loop_task(body, data, copy, arg_size, arg_align, flags, priority);
    let range = Iterations::unsigned(flags & task::FLAG_UP != 0, start, end, step);
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe { task::loops::taskloop(thread::current(), &creation, num_tasks, range) };
}

fn loop_task(
    body: task::Body,
    data: *mut c_void,
    copy: Option<task::CopyFn>,
    arg_size: c_long,
    arg_align: c_long,
    flags: c_uint,
    priority: c_int,
) -> Creation {
    Creation {
        body,
        data,
        copy,
        bytes: arg_size as usize,
        align: arg_align as usize,
        may_defer: flags & task::FLAG_IF != 0,
        // The compiler passes a priority always, and neither dependences nor events.
        flags: flags & !(task::FLAG_DEPEND | task::FLAG_DETACH) | task::FLAG_PRIORITY,
        depend: std::ptr::null(),
        priority,
        detach: std::ptr::null_mut(),
    }
}

/// The innermost taskgroup has reductions.
///
/// # Safety
/// `data` is the compiler's array, which stays where it is.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_taskgroup_reduction_register(data: *mut usize) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe { task::register_reductions(thread::current(), data) };
}

/// They end.
///
/// # Safety
/// `data` was registered, and nobody uses the copies any more.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_taskgroup_reduction_unregister(data: *mut usize) {
    // SAFETY: the caller's promise.
    unsafe { task::reduction::unregister(data) };
}

/// Where the calling thread's copies are.
///
/// # Safety
/// `addresses` holds `count` addresses, and has room for `originals` more.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_task_reduction_remap(
    count: usize,
    originals: usize,
    addresses: *mut *mut c_void,
) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe { task::reduction::remap(thread::current(), count, originals, addresses.cast()) };
}

/// The end of a loop, or of sections, with reductions over tasks.
///
/// # Safety
/// The calling thread has begun one.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_workshare_task_reduction_unregister(is_cancelled: bool) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe { task::reduction::end_workshare(thread::current(), is_cancelled) };
}

/// A region with reductions over tasks. Returns the number of its threads.
///
/// # Safety
/// As [`crate::parallel::GOMP_parallel`]; the data begin with the address of the compiler's array, which it
/// unregisters itself.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_parallel_reductions(
    body: team::Body,
    data: *mut c_void,
    num_threads: c_uint,
    flags: c_uint,
) -> c_uint {
    // SAFETY: the caller's promise; the thread is the calling one, and so is the team after the region.
    unsafe {
        let thread = thread::current();
        let threads = degree::resolve(thread, num_threads, 0);
        let array = *data.cast::<*mut usize>();
        let none = std::ptr::null_mut();
        task::reduction::prepare(array, none, none, threads);
        team::begin(thread, body, data, threads, |team| {
            team.set_proc_bind(flags);
            team.reductions
                .store(array, std::sync::atomic::Ordering::Release);
        });
        body(data);
        let team = (*thread).at.team;
        team::end(thread);
        (*team)
            .reductions
            .store(none, std::sync::atomic::Ordering::Release);
        threads
    }
}

/// Cancels what `which` names, if `do_cancel`. True: it was cancelled.
///
/// # Safety
/// None that the type does not say.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_cancel(which: c_int, do_cancel: bool) -> bool {
    // SAFETY: the thread is the calling one.
    unsafe { task::cancel::cancel(thread::current(), which as u32, do_cancel) }
}

/// Whether what `which` names was cancelled.
///
/// # Safety
/// None that the type does not say.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_cancellation_point(which: c_int) -> bool {
    // SAFETY: the thread is the calling one.
    unsafe { task::cancel::is_cancelled(thread::current(), which as u32) }
}

/// Whether the task is final.
#[unsafe(no_mangle)]
pub extern "C" fn omp_in_final() -> c_int {
    // SAFETY: the thread is the calling one.
    c_int::from(unsafe { task::is_final(thread::current()) })
}

/// The same for Fortran.
#[unsafe(no_mangle)]
pub extern "C" fn omp_in_final_() -> c_int {
    omp_in_final()
}

/// Whether the task is an explicit one.
#[unsafe(no_mangle)]
pub extern "C" fn omp_in_explicit_task() -> c_int {
    // SAFETY: the thread is the calling one.
    c_int::from(unsafe { task::is_explicit(thread::current()) })
}

/// The same for Fortran.
#[unsafe(no_mangle)]
pub extern "C" fn omp_in_explicit_task_() -> c_int {
    omp_in_explicit_task()
}

/// The event of a task is fulfilled.
///
/// # Safety
/// `event` is the handle of one that was not fulfilled.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn omp_fulfill_event(event: usize) {
    // SAFETY: the caller's promise.
    unsafe { task::fulfill(event) };
}

/// The same for Fortran.
///
/// # Safety
/// As [`omp_fulfill_event`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn omp_fulfill_event_(event: usize) {
    // SAFETY: the caller's promise.
    unsafe { task::fulfill(event) };
}
