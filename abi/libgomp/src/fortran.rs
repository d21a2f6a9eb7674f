//! The Fortran form of a function: its name with an underscore behind, which takes addresses; with `_8_` behind, for
//! programs whose integers have eight bytes.

use std::ffi::c_int;

/// An integer of eight bytes as an `int`: what is too large stays large.
pub(crate) fn to_int(value: i64) -> c_int {
    value.clamp(c_int::MIN.into(), c_int::MAX.into()) as c_int
}

/// Functions that take nothing and give an `int`.
macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident, $fortran:ident => $value:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            $value
        }

        /// The same for Fortran.
        #[unsafe(no_mangle)]
        pub extern "C" fn $fortran() -> i32 {
            $name()
        }
    )*};
}

/// Functions that take an `int` and give something or nothing.
macro_rules! of_int {
    ($($(#[$doc:meta])* $name:ident, $fortran:ident, $fortran_8:ident, $argument:ident $(-> $result:ty)? => $value:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($argument: c_int) $(-> $result)? {
            $value
        }

        /// The same for Fortran.
        ///
        /// # Safety
        /// The address is of an integer.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fortran($argument: *const i32) $(-> $result)? {
            // SAFETY: the caller's promise.
            $name(unsafe { $argument.read() })
        }

        /// The same for Fortran, with integers of eight bytes.
        ///
        /// # Safety
        /// The address is of an integer.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fortran_8($argument: *const i64) $(-> $result)? {
            // SAFETY: the caller's promise.
            $name($crate::fortran::to_int(unsafe { $argument.read() }))
        }
    )*};
}

pub(crate) use {getters, of_int};

#[cfg(test)]
mod tests {
    #[test]
    fn large_integers_stay_large() {
        for (value, int) in [(5, 5), (-1, -1), (1 << 40, i32::MAX), (i64::MIN, i32::MIN)] {
            assert_eq!(super::to_int(value), int);
        }
    }
}
