//! Progress on standard error, only where a person looks.

use std::io::{IsTerminal, Write};

use amdahl_report::point::PointId;

/// Counts the runs.
pub struct Progress {
    total: u32,
    at: u32,
    shown: bool,
    live: bool,
    /// A line has begun that has no end yet.
    open: bool,
    begun: std::time::Instant,
}

impl Progress {
    /// Of `total` runs.
    pub fn new(total: u32, quiet: bool) -> Progress {
        let live = std::io::stderr().is_terminal();
        Progress {
            total,
            at: 0,
            shown: !quiet,
            live,
            open: false,
            begun: std::time::Instant::now(),
        }
    }

    /// A run begins.
    pub fn step(&mut self, what: &str, on: PointId) {
        self.at += 1;
        if !self.shown {
            return;
        }
        let left = if self.at > 2 {
            let each = self.begun.elapsed().as_secs_f64() / f64::from(self.at - 1);
            format!(
                ", about {:.0} s left",
                each * f64::from(self.total + 1 - self.at)
            )
        } else {
            String::new()
        };
        let line = format!("run {}/{}: {on}, {what}{left}", self.at, self.total);
        let mut err = anstream::stderr().lock();
        let begin = match (self.live, self.open) {
            (true, _) => "\r\x1b[K",
            // The run before is one of which no time is told.
            (false, true) => "\n",
            (false, false) => "",
        };
        let _ = write!(err, "{begin}{line}");
        let _ = err.flush();
        self.open = true;
    }

    /// A run is left out.
    pub fn skip(&mut self) {
        self.total -= 1;
    }

    /// It took `seconds`.
    pub fn done(&mut self, seconds: f64) {
        self.open &= self.live;
        if self.shown && !self.live {
            let _ = writeln!(anstream::stderr(), ": {seconds:.2} s");
        }
    }

    /// All runs are made.
    pub fn finish(&mut self) {
        if self.shown && self.live {
            let _ = write!(anstream::stderr(), "\r\x1b[K");
            self.open = false;
        }
    }
}

impl Drop for Progress {
    /// Whatever comes next begins a line.
    fn drop(&mut self) {
        if self.shown && self.open {
            let end: &[u8] = if self.live { b"\r\x1b[K" } else { b"\n" };
            let _ = anstream::stderr().write_all(end);
        }
    }
}
