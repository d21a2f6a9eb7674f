//! Target regions, device memory and leagues of teams: the host is the only device.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::slice;

use amdahl_openmp::target::{self, Body, Private, Rectangle};
use amdahl_openmp::{message, sys, task, thread};

/// `omp_initial_device` of OpenMP 5.2.
pub(crate) const INITIAL_DEVICE: c_int = -1;

pub(crate) fn is_host(device: c_int) -> bool {
    device == 0 || device == INITIAL_DEVICE
}

/// Runs a region, as compilers before GCC 5 call it.
///
/// # Safety
/// `body` may be called with `addresses`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_target(
    device: c_int,
    body: Body,
    _unused: *const c_void,
    _count: usize,
    addresses: *mut *mut c_void,
    _sizes: *mut usize,
    _kinds: *mut u8,
) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe {
        let thread = thread::current();
        target::fall_back(thread, device);
        target::run(thread, body, addresses.cast(), 0);
    }
}

/// Runs a region. With `nowait` as well: its end is waited for, which is allowed.
///
/// # Safety
/// The tables have `count` entries, `depend` is as for `GOMP_task`, `arguments` ends in a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_target_ext(
    device: c_int,
    body: Body,
    count: usize,
    addresses: *mut *mut c_void,
    sizes: *mut usize,
    kinds: *mut u16,
    _flags: c_uint,
    depend: *mut *mut c_void,
    arguments: *mut *mut c_void,
) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe {
        let thread = thread::current();
        target::fall_back(thread, device);
        // Before the dependences are waited for: the values of now.
        let private = Private::copy(count, addresses, sizes, kinds);
        wait_for(depend);
        let limit = target::thread_limit(arguments.cast::<usize>());
        target::run(thread, body, addresses.cast(), limit);
        drop(private);
    }
}

/// Waits until what a construct depends on has ended.
///
/// # Safety
/// Null, or as for `GOMP_task`.
unsafe fn wait_for(depend: *mut *mut c_void) {
    if !depend.is_null() {
        // SAFETY: the caller's promise; the thread is the calling one.
        unsafe { task::wait_depend(thread::current(), depend) };
    }
}

/// Data of a target region: it is on the host already.
///
/// # Safety
/// None of the tables is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_target_data(
    device: c_int,
    _unused: *const c_void,
    _count: usize,
    _addresses: *mut *mut c_void,
    _sizes: *mut usize,
    _kinds: *mut u8,
) {
    // SAFETY: the thread is the calling one.
    unsafe { target::fall_back(thread::current(), device) };
}

/// The same, as younger compilers call it.
///
/// # Safety
/// None of the tables is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_target_data_ext(
    device: c_int,
    _count: usize,
    _addresses: *mut *mut c_void,
    _sizes: *mut usize,
    _kinds: *mut u16,
) {
    // SAFETY: the thread is the calling one.
    unsafe { target::fall_back(thread::current(), device) };
}

/// The end of it.
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_target_end_data() {}

/// Has both sides see the same: they do.
///
/// # Safety
/// None of the tables is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_target_update(
    device: c_int,
    _unused: *const c_void,
    _count: usize,
    _addresses: *mut *mut c_void,
    _sizes: *mut usize,
    _kinds: *mut u8,
) {
    // SAFETY: the thread is the calling one.
    unsafe { target::fall_back(thread::current(), device) };
}

/// The same, as younger compilers call it.
///
/// # Safety
/// `depend` is as for `GOMP_task`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_target_update_ext(
    device: c_int,
    _count: usize,
    _addresses: *mut *mut c_void,
    _sizes: *mut usize,
    _kinds: *mut u16,
    _flags: c_uint,
    depend: *mut *mut c_void,
) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe {
        target::fall_back(thread::current(), device);
        wait_for(depend);
    }
}

/// Data that stays on a device, or goes from it.
///
/// # Safety
/// `depend` is as for `GOMP_task`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_target_enter_exit_data(
    device: c_int,
    _count: usize,
    _addresses: *mut *mut c_void,
    _sizes: *mut usize,
    _kinds: *mut u16,
    _flags: c_uint,
    depend: *mut *mut c_void,
) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe {
        target::fall_back(thread::current(), device);
        wait_for(depend);
    }
}

/// The device address of a function: its own.
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_target_map_indirect_ptr(address: *mut c_void) -> *mut c_void {
    address
}

/// Code for devices that are not there.
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_offload_register(_: *const c_void, _: c_int, _: *const c_void) {}

/// The same, with a version.
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_offload_register_ver(
    _: c_uint,
    _: *const c_void,
    _: c_int,
    _: *const c_void,
) {
}

/// The end of it.
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_offload_unregister(_: *const c_void, _: c_int, _: *const c_void) {}

/// The same, with a version.
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_offload_unregister_ver(
    _: c_uint,
    _: *const c_void,
    _: c_int,
    _: *const c_void,
) {
}

/// A league of teams in a target region, as compilers before GCC 12 call it: of one team.
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_teams(_teams: c_uint, thread_limit: c_uint) {
    if thread_limit != 0 {
        // SAFETY: the thread is the calling one.
        unsafe { target::set_thread_limit(thread::current(), thread_limit) };
    }
}

/// The same since GCC 12: called before each team, and once more. False: all teams have been.
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_teams4(
    teams_min: c_uint,
    _teams_max: c_uint,
    thread_limit: c_uint,
    is_first: bool,
) -> bool {
    // SAFETY: the thread is the calling one.
    unsafe {
        let thread = thread::current();
        if is_first {
            if thread_limit != 0 {
                target::set_thread_limit(thread, thread_limit);
            }
            (*thread).at.league = (0, teams_min.max(1) - 1);
            return true;
        }
        let (number, last) = (*thread).at.league;
        if number < last {
            (*thread).at.league.0 = number + 1;
        }
        number < last
    }
}

/// A league of teams on the host.
///
/// # Safety
/// `body` may be called with `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_teams_reg(
    body: Body,
    data: *mut c_void,
    teams: c_uint,
    thread_limit: c_uint,
    _flags: c_uint,
) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe { target::league(thread::current(), body, data, teams, thread_limit) };
}

/// Memory of a device; null where there is no such device.
#[unsafe(no_mangle)]
pub extern "C" fn omp_target_alloc(size: usize, device: c_int) -> *mut c_void {
    if is_host(device) {
        // SAFETY: any size may be asked for.
        unsafe { libc::malloc(size) }
    } else {
        absent(device);
        std::ptr::null_mut()
    }
}

/// Ends the program where `omp_invalid_device` is meant, or offloading was made mandatory and a device is meant that
/// could be there.
pub(crate) fn absent(number: c_int) {
    target::check(number);
    if number >= 0 {
        // SAFETY: the thread is the calling one.
        unsafe { target::fall_back(thread::current(), number) };
    }
}

/// Frees it.
///
/// # Safety
/// From [`omp_target_alloc`] for the same device, and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_target_free(memory: *mut c_void, device: c_int) {
    if is_host(device) {
        // SAFETY: the caller's promise.
        unsafe { libc::free(memory) };
    } else if memory.is_null() {
        target::check(device);
    } else {
        absent(device);
    }
}

/// Whether a device has a variable.
#[unsafe(no_mangle)]
pub extern "C" fn omp_target_is_present(address: *const c_void, device: c_int) -> c_int {
    if address.is_null() || is_host(device) {
        return 1;
    }
    absent(device);
    0
}

/// Whether a device can reach memory.
#[unsafe(no_mangle)]
pub extern "C" fn omp_target_is_accessible(
    address: *const c_void,
    size: usize,
    device: c_int,
) -> c_int {
    if !address.is_null() && size > 0 {
        target::check(device);
    }
    c_int::from(is_host(device))
}

/// The address of a variable on a device; null where it has none.
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_mapped_ptr(address: *const c_void, device: c_int) -> *mut c_void {
    if is_host(device) {
        return address.cast_mut();
    }
    if !address.is_null() {
        target::check(device);
    }
    std::ptr::null_mut()
}

/// `EINVAL` if one of the devices is not the host.
fn hosts(to: c_int, from: c_int) -> Result<(), c_int> {
    for device in [to, from] {
        if !is_host(device) {
            absent(device);
            return Err(libc::EINVAL);
        }
    }
    Ok(())
}

/// Copies between devices; 0, or `EINVAL`.
///
/// # Safety
/// Both have so many bytes behind their offsets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_target_memcpy(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    to_offset: usize,
    from_offset: usize,
    to_device: c_int,
    from_device: c_int,
) -> c_int {
    if let Err(errno) = hosts(to_device, from_device) {
        return errno;
    }
    // SAFETY: the caller's promise. They may overlap: nothing forbids that on one device.
    unsafe {
        std::ptr::copy(
            from.byte_add(from_offset).cast::<u8>(),
            to.byte_add(to_offset).cast::<u8>(),
            bytes,
        );
    }
    0
}

/// A list of dependences of the asynchronous functions.
///
/// # Safety
/// As many as is said.
unsafe fn wait_for_objects(count: c_int, objects: *mut [*mut c_void; 2]) {
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 || objects.is_null() {
        return;
    }
    // The compiler's form for dependence objects: 0, their number, of no other kind, and their addresses.
    let mut depend: Vec<*mut c_void> = vec![std::ptr::null_mut(); 5];
    depend[1] = std::ptr::without_provenance_mut(count);
    // SAFETY: the caller's promise.
    depend.extend((0..count).map(|at| unsafe { objects.add(at).cast::<c_void>() }));
    // SAFETY: a list of that form.
    unsafe { wait_for(depend.as_mut_ptr()) };
}

/// The same behind what it depends on. It has ended when this returns, which is allowed.
///
/// # Safety
/// As [`omp_target_memcpy`]; there are as many dependence objects as is said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_target_memcpy_async(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    to_offset: usize,
    from_offset: usize,
    to_device: c_int,
    from_device: c_int,
    count: c_int,
    objects: *mut [*mut c_void; 2],
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        wait_for_objects(count, objects);
        omp_target_memcpy(
            to,
            from,
            bytes,
            to_offset,
            from_offset,
            to_device,
            from_device,
        )
    }
}

/// Copies a box of an array; 0, or `EINVAL`. Without both arrays: how many dimensions it may have.
///
/// # Safety
/// The tables have an entry for each dimension, and the arrays are of the sizes that they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_target_memcpy_rect(
    to: *mut c_void,
    from: *const c_void,
    element: usize,
    dimensions: c_int,
    volume: *const usize,
    to_offsets: *const usize,
    from_offsets: *const usize,
    to_size: *const usize,
    from_size: *const usize,
    to_device: c_int,
    from_device: c_int,
) -> c_int {
    if to.is_null() && from.is_null() {
        return c_int::MAX;
    }
    if let Err(errno) = hosts(to_device, from_device) {
        return errno;
    }
    let dimensions = match usize::try_from(dimensions) {
        Ok(dimensions) if dimensions > 0 => dimensions,
        _ => return libc::EINVAL,
    };
    // SAFETY: the caller's promise.
    let table = |table: *const usize| unsafe { slice::from_raw_parts(table, dimensions) };
    let rectangle = Rectangle {
        element,
        volume: table(volume),
        to: table(to_offsets),
        from: table(from_offsets),
        to_size: table(to_size),
        from_size: table(from_size),
    };
    let copied = rectangle.each_run(&mut |to_offset, from_offset, bytes| {
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy(
                from.byte_add(from_offset).cast::<u8>(),
                to.byte_add(to_offset).cast::<u8>(),
                bytes,
            );
        }
    });
    match copied {
        Ok(()) => 0,
        Err(target::Overflow) => libc::EINVAL,
    }
}

/// The same behind what it depends on.
///
/// # Safety
/// As [`omp_target_memcpy_rect`]; there are as many dependence objects as is said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_target_memcpy_rect_async(
    to: *mut c_void,
    from: *const c_void,
    element: usize,
    dimensions: c_int,
    volume: *const usize,
    to_offsets: *const usize,
    from_offsets: *const usize,
    to_size: *const usize,
    from_size: *const usize,
    to_device: c_int,
    from_device: c_int,
    count: c_int,
    objects: *mut [*mut c_void; 2],
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        wait_for_objects(count, objects);
        omp_target_memcpy_rect(
            to,
            from,
            element,
            dimensions,
            volume,
            to_offsets,
            from_offsets,
            to_size,
            from_size,
            to_device,
            from_device,
        )
    }
}

/// Tells that device memory is that of a variable: the host has none besides its own.
#[unsafe(no_mangle)]
pub extern "C" fn omp_target_associate_ptr(
    _host: *const c_void,
    _device_memory: *const c_void,
    _size: usize,
    _offset: usize,
    device: c_int,
) -> c_int {
    if !is_host(device) {
        absent(device);
    }
    libc::EINVAL
}

/// Takes that back.
#[unsafe(no_mangle)]
pub extern "C" fn omp_target_disassociate_ptr(_host: *const c_void, device: c_int) -> c_int {
    if !is_host(device) {
        absent(device);
    }
    libc::EINVAL
}

/// Gives back what the runtime holds of a device; 0, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn omp_pause_resource(kind: c_uint, device: c_int) -> c_int {
    if is_host(device) {
        omp_pause_resource_all(kind)
    } else {
        target::check(device);
        -1
    }
}

/// The same for Fortran.
///
/// # Safety
/// The addresses are of integers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_pause_resource_(kind: *const i32, device: *const i32) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { omp_pause_resource(kind.read().cast_unsigned(), device.read()) }
}

/// The same of all devices.
#[unsafe(no_mangle)]
pub extern "C" fn omp_pause_resource_all(_kind: c_uint) -> c_int {
    // SAFETY: the thread is the calling one.
    if unsafe { target::pause(thread::current()) } {
        0
    } else {
        -1
    }
}

/// The same for Fortran.
///
/// # Safety
/// The address is of an integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_pause_resource_all_(kind: *const i32) -> i32 {
    // SAFETY: the caller's promise.
    omp_pause_resource_all(unsafe { kind.read() }.cast_unsigned())
}

/// The text of an `error` directive, with its length or a zero byte at its end.
///
/// # Safety
/// Null, or such a text.
unsafe fn directive<'a>(text: *const c_char, len: usize) -> Option<&'a [u8]> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe {
        match len {
            usize::MAX => std::ffi::CStr::from_ptr(text).to_bytes(),
            len => slice::from_raw_parts(text.cast(), len),
        }
    })
}

fn say(severity: &str, text: Option<&[u8]>) {
    let mut line = format!("\nlibgomp: {severity}error directive encountered").into_bytes();
    if let Some(text) = text {
        line.extend_from_slice(b": ");
        line.extend_from_slice(text);
    }
    line.push(b'\n');
    sys::write_error(&line);
}

/// `error at(execution) severity(warning)`.
///
/// # Safety
/// Null, or a text of that length, or one that ends in a zero byte and the length `SIZE_MAX`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GOMP_warning(text: *const c_char, len: usize) {
    // SAFETY: the caller's promise.
    say("", unsafe { directive(text, len) });
}

/// `error at(execution) severity(fatal)`.
///
/// # Safety
/// As [`GOMP_warning`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GOMP_error(text: *const c_char, len: usize) -> ! {
    // SAFETY: the caller's promise.
    say("fatal error: ", unsafe { directive(text, len) });
    message::end()
}
