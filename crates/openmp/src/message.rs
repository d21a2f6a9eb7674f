//! What the runtime says on standard error, in the form that GCC's has, and the end of the program where there is no
//! way on.

use std::fmt;
use std::io::Write;

use crate::sys;

/// A line that begins with the name users know, an empty one before.
pub fn error(text: fmt::Arguments<'_>) {
    // There may be no memory left: only a longer line takes some.
    let mut line = [0; 256];
    let mut room = &mut line[..];
    match write!(room, "\nlibgomp: {text}\n") {
        Ok(()) => {
            let left = room.len();
            sys::write_error(&line[..line.len() - left]);
        }
        Err(_) => sys::write_error(format!("\nlibgomp: {text}\n").as_bytes()),
    }
}

/// Ends the program as GCC's runtime does where it gets no memory. Needs none itself.
pub fn out_of_memory(bytes: usize) -> ! {
    fatal(format_args!("Out of memory allocating {bytes} bytes"))
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
