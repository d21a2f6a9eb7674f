//! What the runtime says on standard error, in the form that GCC's has, and the end of the program where there is no
//! way on.

use std::fmt;

use crate::sys;

/// A line that begins with the name users know, an empty one before.
pub fn error(text: fmt::Arguments<'_>) {
    sys::write_error(format!("\nlibgomp: {text}\n").as_bytes());
}

/// Says why, and ends the program with status 1, what it registered with `atexit` included: GCC's runtime does.
pub fn fatal(text: fmt::Arguments<'_>) -> ! {
    error(text);
    end()
}

/// Ends the program as [`fatal`] does, where the reason has been said.
pub fn end() -> ! {
    std::process::exit(1)
}
