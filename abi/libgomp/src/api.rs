//! `omp_*`: control variables, and where the caller is in the nest of regions.

use std::ffi::{c_double, c_int, c_uint};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use amdahl_openmp::icv::{Icv, SUPPORTED_ACTIVE_LEVELS, Schedule, globals};
use amdahl_openmp::thread::{self, Position, Thread};
use amdahl_openmp::{binding, display, sys};

use crate::fortran::{getters, of_int, to_int};

/// The caller's control variables, to be changed.
fn change(change: impl FnOnce(&mut Icv)) {
    // SAFETY: the thread is the calling one, and nothing below runs other tasks.
    change(unsafe { Thread::icv(thread::current()) });
}

/// The caller's control variables. A question does not make a thread known to the runtime.
fn icv() -> Icv {
    match thread::known() {
        // SAFETY: the thread is the calling one.
        Some(thread) => unsafe { *Thread::icv(thread) },
        None => globals().initial,
    }
}

/// Where the caller is.
#[inline]
fn at() -> Position {
    match thread::known() {
        // SAFETY: the thread is the calling one.
        Some(thread) => unsafe { (*thread).at },
        None => Position::OUTSIDE,
    }
}

/// Where the caller, or the one who has begun its region and so on, was at a level.
fn ancestor(level: c_int) -> Option<Position> {
    let mut at = at();
    let level = u32::try_from(level)
        .ok()
        .filter(|&level| level <= at.level)?;
    while at.level > level {
        // SAFETY: a level above 0 has a team, whose plain fields stay while its threads are in it.
        at = unsafe { *at.team.as_ref()?.outer };
    }
    Some(at)
}

fn team_size(at: &Position) -> c_int {
    // SAFETY: as in `ancestor`.
    unsafe { at.team.as_ref() }.map_or(1, |team| int(team.nthreads))
}

pub(crate) fn int(number: u32) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

getters! {
    /// The number of the calling thread in its team.
    omp_get_thread_num, omp_get_thread_num_ => int(at().id);
    /// Threads of the caller's team.
    omp_get_num_threads, omp_get_num_threads_ => team_size(&at());
    /// Threads of the next region that does not say how many.
    omp_get_max_threads, omp_get_max_threads_ => int(icv().nthreads);
    /// CPUs that the caller may run on; when threads are bound, those the process began with.
    omp_get_num_procs, omp_get_num_procs_ => int(match globals().places {
        Some(_) => globals().available_cpus(),
        None => sys::allowed_cpus(),
    });
    /// Whether a region around the caller has more than one thread.
    omp_in_parallel, omp_in_parallel_ => c_int::from(at().active_level > 0);
    /// Whether regions may get fewer threads than they ask for.
    omp_get_dynamic, omp_get_dynamic_ => c_int::from(icv().dynamic);
    /// Whether a region here may have regions with more than one thread within.
    omp_get_nested, omp_get_nested_ => {
        let levels = icv().max_active_levels;
        c_int::from(levels > 1 && levels > at().active_level)
    };
    /// Threads of a contention group at most.
    omp_get_thread_limit, omp_get_thread_limit_ => int(icv().thread_limit);
    /// Regions with more than one thread within each other, at most.
    omp_get_max_active_levels, omp_get_max_active_levels_ => int(icv().max_active_levels);
    /// What `omp_set_max_active_levels` takes at most.
    omp_get_supported_active_levels, omp_get_supported_active_levels_ => int(SUPPORTED_ACTIVE_LEVELS);
    /// Regions around the caller.
    omp_get_level, omp_get_level_ => int(at().level);
    /// Those with more than one thread.
    omp_get_active_level, omp_get_active_level_ => int(at().active_level);
    /// Whether constructs can be cancelled.
    omp_get_cancellation, omp_get_cancellation_ => c_int::from(globals().cancellation);
    /// What task priorities can be at most.
    omp_get_max_task_priority, omp_get_max_task_priority_ => globals().max_task_priority;
    /// How the next region's threads are bound to places.
    omp_get_proc_bind, omp_get_proc_bind_ => icv().bind as c_int;
    /// Places.
    omp_get_num_places, omp_get_num_places_ => globals().places.as_ref().map_or(0, |list| int(list.len()));
    /// The place of the calling thread; -1: none.
    omp_get_place_num, omp_get_place_num_ => placed(|thread| {
        // SAFETY: the thread is the calling one.
        int(unsafe { (*thread).place }) - 1
    })
    .unwrap_or(-1);
    /// Places of the caller's partition.
    omp_get_partition_num_places, omp_get_partition_num_places_ => placed(|thread| {
        // SAFETY: the thread is the calling one.
        int(unsafe { (*thread).at.places.1 })
    })
    .unwrap_or(0);
    /// Teams of the league around the caller.
    omp_get_num_teams, omp_get_num_teams_ => int(at().league.1.saturating_add(1));
    /// The number of the caller's team in it.
    omp_get_team_num, omp_get_team_num_ => int(at().league.0);
    /// Teams of the next league at most; 0: not set.
    omp_get_max_teams, omp_get_max_teams_ => globals().num_teams.load(Relaxed);
    /// Threads of its teams at most; 0: not set.
    omp_get_teams_thread_limit, omp_get_teams_thread_limit_ => globals().teams_thread_limit.load(Relaxed);
    /// The device of target regions that name none.
    omp_get_default_device, omp_get_default_device_ => icv().default_device;
    /// Devices besides the host: there are none.
    omp_get_num_devices, omp_get_num_devices_ => 0;
    /// The host's number: one behind the last device.
    omp_get_initial_device, omp_get_initial_device_ => 0;
    /// The device of the caller.
    omp_get_device_num, omp_get_device_num_ => 0;
    /// Whether the caller runs on the host.
    omp_is_initial_device, omp_is_initial_device_ => 1;
}

/// What a thread that is on a place says; `None` where threads are not bound.
fn placed<T>(look: impl FnOnce(*mut Thread) -> T) -> Option<T> {
    globals().places.as_ref()?;
    let thread = thread::current();
    // SAFETY: the thread is the calling one.
    unsafe { binding::enter(thread) };
    Some(look(thread))
}

of_int! {
    /// Threads of the next region that does not say how many.
    omp_set_num_threads, omp_set_num_threads_, omp_set_num_threads_8_, threads => {
        change(|icv| icv.nthreads = threads.max(1).unsigned_abs());
    };
    /// Whether regions may get fewer threads than they ask for.
    omp_set_dynamic, omp_set_dynamic_, omp_set_dynamic_8_, is_dynamic => {
        change(|icv| icv.dynamic = is_dynamic != 0);
    };
    /// Whether regions within regions get more than one thread.
    omp_set_nested, omp_set_nested_, omp_set_nested_8_, is_nested => {
        change(|icv| {
            icv.max_active_levels = match is_nested {
                0 => icv.max_active_levels.min(1),
                _ => SUPPORTED_ACTIVE_LEVELS,
            };
        });
    };
    /// Regions with more than one thread within each other, at most. Negative numbers change nothing.
    omp_set_max_active_levels, omp_set_max_active_levels_, omp_set_max_active_levels_8_, levels => {
        if let Ok(levels) = u32::try_from(levels) {
            change(|icv| icv.max_active_levels = levels.min(SUPPORTED_ACTIVE_LEVELS));
        }
    };
    /// Teams of the next league at most. Negative numbers change nothing.
    omp_set_num_teams, omp_set_num_teams_, omp_set_num_teams_8_, teams => {
        if teams >= 0 {
            globals().num_teams.store(teams, Relaxed);
        }
    };
    /// Threads of its teams at most. Negative numbers change nothing.
    omp_set_teams_thread_limit, omp_set_teams_thread_limit_, omp_set_teams_thread_limit_8_, limit => {
        if limit >= 0 {
            globals().teams_thread_limit.store(limit, Relaxed);
        }
    };
    /// The device of target regions that name none.
    omp_set_default_device, omp_set_default_device_, omp_set_default_device_8_, device => {
        change(|icv| icv.default_device = device.max(0));
    };
    /// The number of the caller, or of the one who has begun its region and so on, at a level; -1 where there is no
    /// such level.
    omp_get_ancestor_thread_num, omp_get_ancestor_thread_num_, omp_get_ancestor_thread_num_8_, level -> c_int => {
        ancestor(level).map_or(-1, |at| int(at.id))
    };
    /// Threads of the team at a level; -1 where there is no such level.
    omp_get_team_size, omp_get_team_size_, omp_get_team_size_8_, level -> c_int => {
        ancestor(level).map_or(-1, |at| team_size(&at))
    };
    /// CPUs of a place; 0 where there is no such place.
    omp_get_place_num_procs, omp_get_place_num_procs_, omp_get_place_num_procs_8_, place -> c_int => {
        cpus_of(place).count() as c_int
    };
    /// Shows the variables, as `OMP_DISPLAY_ENV` does.
    omp_display_env, omp_display_env_, omp_display_env_8_, is_verbose => {
        sys::write_error(&display::environment(globals(), is_verbose != 0));
    };
}

fn cpus_of(place: c_int) -> impl Iterator<Item = u32> {
    let place = u32::try_from(place).ok();
    let list = globals().places.as_ref();
    let cpus = list.zip(place).and_then(|(list, place)| list.get(place));
    cpus.into_iter().flat_map(|cpus| cpus.iter())
}

/// Writes numbers one behind the other.
///
/// # Safety
/// There is room for all of them.
unsafe fn write_all<T>(mut to: *mut T, numbers: impl Iterator<Item = u32>, convert: fn(u32) -> T) {
    for number in numbers {
        // SAFETY: the caller's promise.
        unsafe {
            to.write(convert(number));
            to = to.add(1);
        }
    }
}

/// The CPUs of a place.
///
/// # Safety
/// There is room for as many as `omp_get_place_num_procs` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_place_proc_ids(place: c_int, ids: *mut c_int) {
    // SAFETY: the caller's promise.
    unsafe { write_all(ids, cpus_of(place), int) };
}

/// The same for Fortran.
///
/// # Safety
/// As [`omp_get_place_proc_ids`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_place_proc_ids_(place: *const i32, ids: *mut i32) {
    // SAFETY: the caller's promise.
    unsafe { omp_get_place_proc_ids(place.read(), ids) };
}

/// The same for Fortran, with integers of eight bytes.
///
/// # Safety
/// As [`omp_get_place_proc_ids`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_place_proc_ids_8_(place: *const i64, ids: *mut i64) {
    // SAFETY: the caller's promise.
    unsafe { write_all(ids, cpus_of(to_int(place.read())), i64::from) };
}

fn partition() -> std::ops::Range<u32> {
    placed(|thread| {
        // SAFETY: the thread is the calling one.
        let (off, len) = unsafe { (*thread).at.places };
        off..off + len
    })
    .unwrap_or(0..0)
}

/// The numbers of the places of the caller's partition.
///
/// # Safety
/// There is room for as many as `omp_get_partition_num_places` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_partition_place_nums(places: *mut c_int) {
    // SAFETY: the caller's promise.
    unsafe { write_all(places, partition(), int) };
}

/// The same for Fortran.
///
/// # Safety
/// As [`omp_get_partition_place_nums`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_partition_place_nums_(places: *mut i32) {
    // SAFETY: the caller's promise.
    unsafe { omp_get_partition_place_nums(places) };
}

/// The same for Fortran, with integers of eight bytes.
///
/// # Safety
/// As [`omp_get_partition_place_nums`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_partition_place_nums_8_(places: *mut i64) {
    // SAFETY: the caller's promise.
    unsafe { write_all(places, partition(), i64::from) };
}

/// The schedule of loops with `schedule(runtime)`. Kinds that there are not change nothing.
#[unsafe(no_mangle)]
pub extern "C" fn omp_set_schedule(kind: c_uint, chunk: c_int) {
    if let Some(schedule) = Schedule::from_raw(kind, chunk) {
        change(|icv| icv.schedule = schedule);
    }
}

/// The same for Fortran.
///
/// # Safety
/// The addresses are of integers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_set_schedule_(kind: *const i32, chunk: *const i32) {
    // SAFETY: the caller's promise.
    unsafe { omp_set_schedule(kind.read().cast_unsigned(), chunk.read()) };
}

/// The same for Fortran, with integers of eight bytes.
///
/// # Safety
/// The addresses are of integers; the kind has four bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_set_schedule_8_(kind: *const i32, chunk: *const i64) {
    // SAFETY: the caller's promise.
    unsafe { omp_set_schedule(kind.read().cast_unsigned(), to_int(chunk.read())) };
}

/// The schedule of loops with `schedule(runtime)`.
///
/// # Safety
/// The addresses may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_schedule(kind: *mut c_uint, chunk: *mut c_int) {
    let raw = icv().schedule.to_raw();
    // SAFETY: the caller's promise.
    unsafe {
        kind.write(raw.0);
        chunk.write(raw.1);
    }
}

/// The kind as Fortran programs know it: without the bit that says monotonic, which is younger than they are.
fn plain_schedule() -> (i32, c_int) {
    let (kind, chunk) = icv().schedule.to_raw();
    ((kind & !Schedule::MONOTONIC).cast_signed(), chunk)
}

/// The same for Fortran.
///
/// # Safety
/// The addresses may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_schedule_(kind: *mut i32, chunk: *mut i32) {
    let schedule = plain_schedule();
    // SAFETY: the caller's promise.
    unsafe {
        kind.write(schedule.0);
        chunk.write(schedule.1);
    }
}

/// The same for Fortran, with integers of eight bytes.
///
/// # Safety
/// The addresses may be written; the kind has four bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_schedule_8_(kind: *mut i32, chunk: *mut i64) {
    let schedule = plain_schedule();
    // SAFETY: the caller's promise.
    unsafe {
        kind.write(schedule.0);
        chunk.write(schedule.1.into());
    }
}

fn seconds(read: unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int) -> c_double {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is written.
    unsafe { read(libc::CLOCK_MONOTONIC, ptr::from_mut(&mut time)) };
    time.tv_sec as c_double + time.tv_nsec as c_double / 1e9
}

/// Seconds since some time in the past.
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_wtime() -> c_double {
    seconds(libc::clock_gettime)
}

/// The same for Fortran.
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_wtime_() -> c_double {
    omp_get_wtime()
}

/// Seconds between two ticks of that clock.
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_wtick() -> c_double {
    seconds(libc::clock_getres)
}

/// The same for Fortran.
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_wtick_() -> c_double {
    omp_get_wtick()
}
