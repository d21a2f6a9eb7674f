//! `omp_*`: the format of `OMP_AFFINITY_FORMAT`, and what it comes to. Fortran's texts come with their lengths, behind
//! all other arguments.

use std::ffi::{CStr, c_char};
use std::slice;

use amdahl_openmp::display::{self, SHOWN_BYTES_MAX};
use amdahl_openmp::icv::globals;
use amdahl_openmp::{sys, thread};

/// # Safety
/// Null, or a text that ends in a zero byte.
unsafe fn text<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// # Safety
/// So many bytes.
unsafe fn sized<'a>(bytes: *const c_char, len: usize) -> &'a [u8] {
    if bytes.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(bytes.cast(), len) }
}

/// A format of Fortran's as C would see it.
fn until_zero(format: &[u8]) -> &[u8] {
    format.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Copies as much as fits and ends it with a zero byte.
///
/// # Safety
/// The buffer has `size` bytes.
unsafe fn fill(buffer: *mut c_char, size: usize, bytes: &[u8]) {
    if let Some(room) = size.checked_sub(1) {
        let len = bytes.len().min(room);
        // SAFETY: the caller's promise.
        unsafe {
            buffer
                .cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), len);
            buffer.add(len).write(0);
        }
    }
}

/// Copies as much as fits, spaces behind it.
///
/// # Safety
/// The buffer has `size` bytes.
unsafe fn fill_fortran(buffer: *mut c_char, size: usize, bytes: &[u8]) {
    let len = bytes.len().min(size);
    if size > 0 {
        // SAFETY: the caller's promise.
        unsafe {
            buffer
                .cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), len);
            buffer.cast::<u8>().add(len).write_bytes(b' ', size - len);
        }
    }
}

/// Sets the format.
///
/// # Safety
/// A text that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_set_affinity_format(format: *const c_char) {
    // SAFETY: the caller's promise.
    globals().set_affinity_format(unsafe { text(format) });
}

/// The same for Fortran.
///
/// # Safety
/// So many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_set_affinity_format_(format: *const c_char, len: usize) {
    // SAFETY: the caller's promise.
    globals().set_affinity_format(until_zero(unsafe { sized(format, len) }));
}

/// The format, cut to the buffer; its whole length is the result.
///
/// # Safety
/// The buffer has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_affinity_format(buffer: *mut c_char, size: usize) -> usize {
    let format = globals().affinity_format();
    // SAFETY: the caller's promise.
    unsafe { fill(buffer, size, &format) };
    format.len()
}

/// The same for Fortran, spaces behind it.
///
/// # Safety
/// The buffer has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_affinity_format_(buffer: *mut c_char, size: usize) -> i32 {
    let format = globals().affinity_format();
    // SAFETY: the caller's promise.
    unsafe { fill_fortran(buffer, size, &format) };
    i32::try_from(format.len()).unwrap_or(i32::MAX)
}

fn display(format: &[u8]) {
    // SAFETY: the thread is the calling one.
    let mut shown = unsafe { display::affinity(thread::current(), format, SHOWN_BYTES_MAX) }.bytes;
    shown.push(b'\n');
    sys::write_error(&shown);
}

/// Shows where the calling thread is, in a format; null or empty: the one that is set.
///
/// # Safety
/// Null, or a text that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_display_affinity(format: *const c_char) {
    // SAFETY: the caller's promise.
    display(unsafe { text(format) });
}

/// The same for Fortran.
///
/// # Safety
/// So many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_display_affinity_(format: *const c_char, len: usize) {
    // SAFETY: the caller's promise.
    display(until_zero(unsafe { sized(format, len) }));
}

/// The same into a buffer, cut to it; the whole length is the result.
///
/// # Safety
/// The buffer has `size` bytes; the format is null or a text that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_capture_affinity(
    buffer: *mut c_char,
    size: usize,
    format: *const c_char,
) -> usize {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe {
        let captured = display::affinity(thread::current(), text(format), size);
        fill(buffer, size, &captured.bytes);
        captured.len
    }
}

/// The same for Fortran, spaces behind it.
///
/// # Safety
/// Both have as many bytes as is said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_capture_affinity_(
    buffer: *mut c_char,
    format: *const c_char,
    size: usize,
    format_len: usize,
) -> i32 {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe {
        let format = until_zero(sized(format, format_len));
        let captured = display::affinity(thread::current(), format, size);
        fill_fortran(buffer, size, &captured.bytes);
        i32::try_from(captured.len).unwrap_or(i32::MAX)
    }
}
