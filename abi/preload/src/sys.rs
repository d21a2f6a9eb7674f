//! The few C functions this library stands on, declared here so that it needs nothing but libc.so.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

/// `RTLD_NEXT`: the next definition after this library.
pub const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;
/// `RTLD_DEFAULT`: the first definition of all.
pub const RTLD_DEFAULT: *mut c_void = core::ptr::null_mut();

pub const EINTR: c_int = 4;
pub const EBUSY: c_int = 16;
pub const ENOSYS: c_int = 38;
pub const ETIMEDOUT: c_int = 110;
pub const EOWNERDEAD: c_int = 130;

pub const O_RDWR: c_int = 2;
pub const O_CREAT: c_int = 0o100;
pub const O_EXCL: c_int = 0o200;
pub const O_CLOEXEC: c_int = 0o2_000_000;
pub const PROT_READ: c_int = 1;
pub const PROT_WRITE: c_int = 2;
pub const MAP_SHARED: c_int = 1;
const CLOCK_MONOTONIC: c_int = 1;
const RLIMIT_FSIZE: c_uint = 1;

#[cfg(target_arch = "x86_64")]
const SYS_GETTID: c_long = 186;
#[cfg(not(target_arch = "x86_64"))]
const SYS_GETTID: c_long = 178; // asm-generic: arm64, riscv64, loongarch64

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: c_long,
}

#[repr(C)]
struct Rlimit {
    soft: u64,
    hard: u64,
}

unsafe extern "C" {
    pub fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    pub fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    pub fn close(fd: c_int) -> c_int;
    pub fn unlink(path: *const c_char) -> c_int;
    pub fn posix_fallocate(fd: c_int, offset: i64, len: i64) -> c_int;
    pub fn mmap(
        at: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    pub fn getenv(name: *const c_char) -> *const c_char;
    pub fn getpid() -> c_int;
    fn clock_gettime(clock: c_int, at: *mut Timespec) -> c_int;
    fn getrlimit(resource: c_uint, limit: *mut Rlimit) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn __errno_location() -> *mut c_int;
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub fn now_ns() -> u64 {
    let mut at = Timespec {
        seconds: 0,
        nanoseconds: 0,
    };
    // SAFETY: `at` is a valid timespec of this ABI for the call to fill in.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &mut at) };
    (at.seconds as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(at.nanoseconds as u64)
}

/// Kernel id of the calling thread.
pub fn tid() -> u32 {
    // SAFETY: gettid takes no arguments and cannot fail.
    unsafe { syscall(SYS_GETTID) as u32 }
}

/// Whether a file of `bytes` may be made: going beyond the limit would raise SIGXFSZ.
pub fn may_make_file_of(bytes: u64) -> bool {
    let mut limit = Rlimit { soft: 0, hard: 0 };
    // SAFETY: `limit` is a valid rlimit of this ABI for the call to fill in.
    unsafe { getrlimit(RLIMIT_FSIZE, &mut limit) == 0 && limit.soft >= bytes }
}

/// `errno` of the calling thread.
pub fn errno() -> c_int {
    // SAFETY: the location is valid for the life of the calling thread.
    unsafe { *__errno_location() }
}

/// Sets `errno` of the calling thread.
pub fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *__errno_location() = value };
}
