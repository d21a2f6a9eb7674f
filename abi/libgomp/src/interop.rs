//! Interoperability objects, which stand for a stream or a context of another runtime on a device: the host has none of
//! them, so that each is `omp_interop_none`. And names of devices: the host's is the only one.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::slice;

use amdahl_openmp::{target, task, thread};

use crate::fortran::to_int;
use crate::target::{INITIAL_DEVICE, absent, is_host};

/// `omp_interop_t`: an address, and 0 is `omp_interop_none`.
type Object = usize;

/// `omp_ipr_first`, the lowest number of a property: they go on to -1.
const PROPERTY_FIRST: c_int = -9;
/// Their names, from -1 on.
const PROPERTIES: [&CStr; 9] = [
    c"fr_id",
    c"fr_name",
    c"vendor",
    c"vendor_name",
    c"device_num",
    c"platform",
    c"device",
    c"device_context",
    c"targetsync",
];

/// `omp_irc_no_value`, the highest code.
const NO_VALUE: c_int = 1;
/// `omp_irc_empty`: it was asked of `omp_interop_none`.
const EMPTY: c_int = -1;
/// `omp_irc_out_of_range`: there is no such property.
const OUT_OF_RANGE: c_int = -2;
/// What codes mean, from `omp_irc_no_value` on. `omp_irc_other`, behind the last one, never comes.
const CODES: [&CStr; 7] = [
    c"there is no value that means anything",
    c"success",
    // Programs compare these two with the words of GCC's.
    c"provided interoperability object is equal to omp_interop_none",
    c"property ID is out of range",
    c"the value is a number: omp_get_interop_int has it",
    c"the value is an address: omp_get_interop_ptr has it",
    c"the value is a text: omp_get_interop_str has it",
];

/// The name of the host.
const HOST: &CStr = c"OMP_INITIAL_DEVICE";
/// `omp_invalid_device`.
const INVALID_DEVICE: c_int = target::device::INVALID;

/// What there is at the place of `number` in a table that begins with `first` and goes down.
fn at(table: &[&'static CStr], first: c_int, number: c_int) -> Option<&'static CStr> {
    let place = i64::from(first) - i64::from(number);
    table.get(usize::try_from(place).ok()?).copied()
}

fn address(text: Option<&CStr>) -> *const c_char {
    text.map_or(std::ptr::null(), CStr::as_ptr)
}

/// Makes, uses and ends objects. None is made on the host, so that there is none to use or to end.
///
/// # Safety
/// There are so many objects; `depend` is as for `GOMP_task`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_interop(
    device: c_int,
    made: c_int,
    objects: *const *mut Object,
    _kinds: *const c_int,
    _preferred: *const *const c_char,
    _used: c_int,
    _used_objects: *const Object,
    ended: c_int,
    ended_objects: *const *mut Object,
    _flags: c_uint,
    depend: *mut *mut c_void,
) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe {
        forget(ended, ended_objects);
        if made > 0 && !is_host(device) {
            absent(device);
        }
        forget(made, objects);
        if !depend.is_null() {
            task::wait_depend(thread::current(), depend);
        }
    }
}

/// Has objects be `omp_interop_none`.
///
/// # Safety
/// There are so many.
unsafe fn forget(count: c_int, objects: *const *mut Object) {
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 || objects.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    for object in unsafe { slice::from_raw_parts(objects, count) } {
        // SAFETY: the caller's promise.
        unsafe { object.write(0) };
    }
}

/// Properties that the specification does not know: none.
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_num_interop_properties(_object: Object) -> c_int {
    0
}

/// Says why there is no value.
///
/// # Safety
/// `code` is null or of an integer.
unsafe fn refuse(property: c_int, code: *mut c_int) {
    if !code.is_null() {
        let is_there = (PROPERTY_FIRST..0).contains(&property);
        // SAFETY: the caller's promise.
        unsafe { code.write(if is_there { EMPTY } else { OUT_OF_RANGE }) };
    }
}

/// The value of a property that is a number: 0.
///
/// # Safety
/// `code` is null or of an integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_interop_int(
    _object: Object,
    property: c_int,
    code: *mut c_int,
) -> isize {
    // SAFETY: the caller's promise.
    unsafe { refuse(property, code) };
    0
}

/// The value of a property that is an address: null.
///
/// # Safety
/// `code` is null or of an integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_interop_ptr(
    _object: Object,
    property: c_int,
    code: *mut c_int,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { refuse(property, code) };
    std::ptr::null_mut()
}

/// The value of a property that is a text: null.
///
/// # Safety
/// `code` is null or of an integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_interop_str(
    _object: Object,
    property: c_int,
    code: *mut c_int,
) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { refuse(property, code) };
    std::ptr::null()
}

/// The name of a property; null where there is no such property.
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_interop_name(_object: Object, property: c_int) -> *const c_char {
    address(at(&PROPERTIES, -1, property))
}

/// The type of a property of an object: null, there is no object.
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_interop_type_desc(_object: Object, _property: c_int) -> *const c_char {
    std::ptr::null()
}

/// What a code means; null where it means nothing.
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_interop_rc_desc(_object: Object, code: c_int) -> *const c_char {
    address(at(&CODES, NO_VALUE, code))
}

/// The name of a device; null where there is no such device.
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_uid_from_device(device: c_int) -> *const c_char {
    address(is_host(device).then_some(HOST))
}

fn device_of(name: &[u8]) -> c_int {
    if name == HOST.to_bytes() {
        INITIAL_DEVICE
    } else {
        INVALID_DEVICE
    }
}

/// The device of a name; `omp_invalid_device` where none has it.
///
/// # Safety
/// Null, or a text that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_device_from_uid(name: *const c_char) -> c_int {
    if name.is_null() {
        return INVALID_DEVICE;
    }
    // SAFETY: the caller's promise.
    device_of(unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// The same for Fortran, whose texts have a length.
///
/// # Safety
/// The text has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_device_from_uid_(name: *const c_char, len: usize) -> i32 {
    if name.is_null() {
        return INVALID_DEVICE;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { slice::from_raw_parts(name.cast::<u8>(), len) };
    // It ends where a text of C would.
    device_of(name.split(|&byte| byte == 0).next().unwrap_or(name))
}

/// A text as a function of Fortran gives it: its address, null for none, and its length.
///
/// # Safety
/// Both addresses are of words; the text is null or ends in a zero byte.
unsafe fn give(text: *const c_char, result: *mut *const c_char, len: *mut usize) {
    // SAFETY: the caller's promise.
    unsafe {
        result.write(text);
        len.write(if text.is_null() {
            0
        } else {
            CStr::from_ptr(text).count_bytes()
        });
    }
}

/// The same as [`omp_get_interop_str`] for Fortran.
///
/// # Safety
/// The addresses are of words; `code` is null or of an integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_interop_str_(
    result: *mut *const c_char,
    len: *mut usize,
    object: Object,
    property: c_int,
    code: *mut c_int,
) {
    // SAFETY: the caller's promise.
    unsafe { give(omp_get_interop_str(object, property, code), result, len) };
}

/// The same as [`omp_get_interop_name`] for Fortran.
///
/// # Safety
/// The addresses are of words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_interop_name_(
    result: *mut *const c_char,
    len: *mut usize,
    object: Object,
    property: c_int,
) {
    // SAFETY: the caller's promise.
    unsafe { give(omp_get_interop_name(object, property), result, len) };
}

/// The same as [`omp_get_interop_type_desc`] for Fortran.
///
/// # Safety
/// The addresses are of words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_interop_type_desc_(
    result: *mut *const c_char,
    len: *mut usize,
    object: Object,
    property: c_int,
) {
    // SAFETY: the caller's promise.
    unsafe { give(omp_get_interop_type_desc(object, property), result, len) };
}

/// The same as [`omp_get_interop_rc_desc`] for Fortran.
///
/// # Safety
/// The addresses are of words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_interop_rc_desc_(
    result: *mut *const c_char,
    len: *mut usize,
    object: Object,
    code: c_int,
) {
    // SAFETY: the caller's promise.
    unsafe { give(omp_get_interop_rc_desc(object, code), result, len) };
}

/// The same as [`omp_get_uid_from_device`] for Fortran.
///
/// # Safety
/// The addresses are of words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_uid_from_device_(
    result: *mut *const c_char,
    len: *mut usize,
    device: i32,
) {
    // SAFETY: the caller's promise.
    unsafe { give(omp_get_uid_from_device(device), result, len) };
}

/// The same for Fortran, with integers of eight bytes.
///
/// # Safety
/// The addresses are of words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_get_uid_from_device_8_(
    result: *mut *const c_char,
    len: *mut usize,
    device: i64,
) {
    // SAFETY: the caller's promise.
    unsafe { omp_get_uid_from_device_(result, len, to_int(device)) };
}
