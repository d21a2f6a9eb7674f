//! What the runtime says on standard error, in the form that GCC's has, and the end of the program where there is no
//! way on.

use std::fmt;

use crate::sys;

/// A line that begins with the name users know, an empty one before.
pub fn error(text: fmt::Arguments<'_>) {
    let mut line = Line {
        bytes: [0; LINE_BYTES],
        len: 0,
    };
    match fmt::write(&mut line, format_args!("\nlibgomp: {text}\n")) {
        Ok(()) => sys::write_error(&line.bytes[..line.len]),
        Err(fmt::Error) => sys::write_error(format!("\nlibgomp: {text}\n").as_bytes()),
    }
}

/// Ends the program as GCC's runtime does where it gets no memory. Needs none itself.
pub fn out_of_memory(bytes: usize) -> ! {
    fatal(format_args!("Out of memory allocating {bytes} bytes"))
}

/// Longer lines take memory.
const LINE_BYTES: usize = 256;

/// A line without memory of its own: there may be none left.
struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        let room = self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
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
