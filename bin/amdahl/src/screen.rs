//! The terminal: its width, its colours, and output that may be cut off by a closed pipe.

use std::io::{ErrorKind, IsTerminal, Write};

use amdahl_report::terminal::Style;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Failure;

/// Columns of the terminal; without one there is more room.
pub fn width() -> usize {
    terminal_size::terminal_size()
        .map_or(120, |(width, _)| usize::from(width.0))
        .clamp(40, 200)
}

/// Colour only on a terminal and without NO_COLOR; ASCII unless the locale says UTF-8.
pub fn style() -> Style {
    let color = std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_default();
    let unicode = locale
        .to_ascii_lowercase()
        .replace('-', "")
        .contains("utf8");
    Style { color, unicode }
}

/// Prints `text` on standard output. A reader that has gone (`| head`) is no error.
pub fn print(text: &str) -> Result<u8, Failure> {
    print_on(text).map(|_| 0)
}

/// The same for who has more to print: whether anybody reads on.
pub fn print_on(text: &str) -> Result<bool, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::result(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}

/// Whether who read standard output has gone, without writing to it.
pub fn is_unread() -> bool {
    let out = std::io::stdout();
    // These two are told without being asked for.
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut polled, Some(&now)).is_ok()
        && (polled[0].revents()).intersects(PollFlags::ERR | PollFlags::HUP)
}
