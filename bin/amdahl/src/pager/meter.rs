//! How far something has come, on standard error, when it takes longer than a person waits without asking.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use amdahl_image::Progress;

use crate::interrupt::Interrupt;

/// Before anything is shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// Shows progress, and ends what is watched when the user wants to.
pub struct Meter {
    what: &'static str,
    interrupt: Interrupt,
    begun: Instant,
    next: Duration,
    live: bool,
    quiet: bool,
    /// There is a line that must go.
    open: bool,
}

impl Meter {
    /// Of what is done, as in "packing".
    pub fn new(what: &'static str, quiet: bool, interrupt: &Interrupt) -> Meter {
        Meter {
            what,
            interrupt: interrupt.clone(),
            begun: Instant::now(),
            next: PATIENCE,
            live: std::io::stderr().is_terminal(),
            quiet,
            open: false,
        }
    }

    /// What is done has come so far.
    pub fn tell(&mut self, progress: Progress) -> ControlFlow<()> {
        if self.interrupt.asked() {
            return ControlFlow::Break(());
        }
        let now = self.begun.elapsed();
        if self.quiet || now < self.next {
            return ControlFlow::Continue(());
        }
        // A log is not filled with lines.
        self.next = now + Duration::from_millis(if self.live { 200 } else { 10_000 });
        let line = line(self.what, progress, now.as_secs_f64());
        let mut err = anstream::stderr().lock();
        let _ = match self.live {
            true => write!(err, "\r\x1b[K{line}"),
            false => writeln!(err, "{line}"),
        };
        let _ = err.flush();
        self.open = self.live;
        ControlFlow::Continue(())
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.open {
            let _ = write!(anstream::stderr(), "\r\x1b[K");
        }
    }
}

fn line(what: &str, progress: Progress, seconds: f64) -> String {
    let done = progress.done_bytes as f64;
    let mut line = format!("{what}: {}", size(progress.done_bytes));
    if let Some(total) = progress.total_bytes {
        line += &format!(" of {}", size(total));
    }
    line += &format!(", {:.0} MB/s", done / seconds / 1e6);
    if let Some(total) = progress.total_bytes.filter(|_| done > 0.0) {
        let left = (total as f64 - done) * seconds / done;
        line += &format!(", about {left:.0} s left");
    }
    line
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 100.0);
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_for_people() {
        let progress = Progress {
            done_bytes: 1 << 30,
            total_bytes: Some(4 << 30),
        };
        let shown = line("packing", progress, 2.0);
        assert_eq!(
            shown,
            "packing: 1.0 GiB of 4.0 GiB, 537 MB/s, about 6 s left"
        );
        let progress = Progress {
            done_bytes: 0,
            total_bytes: None,
        };
        assert_eq!(line("packing", progress, 2.0), "packing: 0 bytes, 0 MB/s");
        assert_eq!(size(150 << 20), "150 MiB");
    }
}
