//! A stream for lines that nobody waits for: a reader that does not read holds up a thread here, and not who tells.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes of lines that wait to be written; more are left out, and counted.
const ROOM: usize = 1 << 20;

/// Lines on their way to a stream, in their order.
pub struct Outlet(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    change: Condvar,
    /// Writes a line, whole.
    write: Box<dyn Fn(&str) + Send + Sync>,
    /// The line that says how many are left out.
    left_out: Box<dyn Fn(u64) -> String + Send + Sync>,
}

#[derive(Default)]
struct State {
    lines: VecDeque<String>,
    bytes: usize,
    left_out: u64,
    /// Lines that were written.
    written: u64,
    is_writing: bool,
}

impl Outlet {
    /// Written by `write`, which may wait for as long as it likes. `left_out` makes the line for so many that there was no room for.
    pub fn new(
        write: impl Fn(&str) + Send + Sync + 'static,
        left_out: impl Fn(u64) -> String + Send + Sync + 'static,
    ) -> Outlet {
        Outlet(Arc::new(Inner {
            state: Mutex::default(),
            change: Condvar::new(),
            write: Box::new(write),
            left_out: Box::new(left_out),
        }))
    }

    /// Writes a line, soon.
    pub fn say(&self, line: String) {
        let mut state = self.0.state();
        if state.bytes + line.len() > ROOM {
            state.left_out += 1;
            return;
        }
        if state.left_out > 0 {
            let notice = (self.0.left_out)(std::mem::take(&mut state.left_out));
            state.push(notice);
        }
        state.push(line);
        if std::mem::replace(&mut state.is_writing, true) {
            return;
        }
        drop(state);
        // One that has nothing to write ends, so that there is none for a stream that nothing is said to.
        let inner = Arc::clone(&self.0);
        let writer = thread::Builder::new().name("lines".to_owned());
        if writer.spawn(move || inner.write_all()).is_err() {
            // Better late than never.
            self.0.write_all();
        }
    }

    /// Waits until all is written, or nothing was for so long.
    pub fn flush(&self, patience: Duration) {
        let mut state = self.0.state();
        while state.is_writing {
            let before = state.written;
            let idle = |state: &mut State| state.is_writing && state.written == before;
            let waited = self.0.change.wait_timeout_while(state, patience, idle);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                return;
            }
            state = now;
        }
    }
}

impl State {
    fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what there is.
    fn write_all(&self) {
        loop {
            let mut state = self.state();
            if state.lines.is_empty() && state.left_out > 0 {
                let notice = (self.left_out)(std::mem::take(&mut state.left_out));
                state.push(notice);
            }
            let Some(line) = state.lines.pop_front() else {
                state.is_writing = false;
                self.change.notify_all();
                return;
            };
            state.bytes -= line.len();
            drop(state);
            (self.write)(&line);
            self.state().written += 1;
            self.change.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};

    use super::*;

    /// Who told a line to a full pipe waited until somebody read it, with the control plane.
    #[test]
    fn a_pipe_that_nobody_reads_holds_nobody_up() {
        let (reader, writer) = std::io::pipe().unwrap();
        let outlet = Outlet::new(
            move |line| drop((&writer).write_all(line.as_bytes())),
            |count| format!("{count} left out\n"),
        );
        let lines = 3 * ROOM / 100;
        for nth in 0..lines {
            outlet.say(format!("{nth:099}\n"));
        }
        outlet.flush(Duration::from_millis(1));
        let (mut next, mut notices) = (0, 0);
        let mut found = BufReader::new(reader).lines();
        while next < lines {
            let line = found.next().unwrap().unwrap();
            match line.split_once(' ') {
                Some((count, _)) => {
                    next += count.parse::<usize>().unwrap();
                    notices += 1;
                }
                None => {
                    assert_eq!(line.parse(), Ok(next));
                    next += 1;
                }
            }
        }
        assert!(next == lines && notices > 0, "{next} {notices}");
        outlet.flush(Duration::from_secs(60));
        outlet.say("the end\n".to_owned());
        assert_eq!(found.next().unwrap().unwrap(), "the end");
    }
}
