//! C ABI of `amdahl-range-alloc`; the contract is `include/amdahl_range_alloc.h`.
//!
//! Functions are thin: pointers are checked for null, everything else is the library's. A panic, which
//! only a broken invariant causes, ends the process: it never unwinds into C (`extern "C"` aborts).

mod call;
mod codes;
mod plain;
mod shared;

use std::ffi::{c_char, c_int};

pub use plain::*;
pub use shared::*;

/// `ARA_ABI_VERSION`.
#[unsafe(no_mangle)]
pub extern "C" fn ara_abi_version() -> u32 {
    3
}

/// Text for a code, valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn ara_error_text(code: c_int) -> *const c_char {
    codes::text(code).as_ptr()
}
