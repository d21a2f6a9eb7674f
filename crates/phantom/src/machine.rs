//! What `/proc` says of the whole machine. Samplers that look together read it once: `/proc/stat` is the dearest file there is (the
//! kernel adds up all interrupts of all CPUs).

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock;
use crate::error::SourceError;
use crate::proc::cpus::Text;
use crate::proc::text;

/// Where it only adds details, `/proc/stat` is read this often at most, and so rarely that its reading takes at most a thousandth of a CPU.
const STAT_PAUSE_NS: u64 = 100_000_000;
const STAT_SHARE: u64 = 1000;

/// Files about the machine, shared by those who [look together](Machine::begin_look).
#[derive(Clone)]
pub struct Machine(Arc<Mutex<Files>>);

/// What was read.
pub(crate) struct Files {
    stat: Text,
    /// How much of it somebody needs.
    stat_bytes: usize,
    /// Which reading of it this is.
    stat_number: u64,
    /// The look at which it was read.
    stat_look: u64,
    stat_due_ns: u64,
    loadavg: Option<Text>,
    loadavg_look: u64,
    runnable: Option<u64>,
    look: u64,
}

impl Machine {
    /// Opens the files.
    ///
    /// # Errors
    /// Without `/proc/stat`.
    pub fn open() -> Result<Machine, SourceError> {
        const PATH: &str = "/proc/stat";
        let stat = Text::open(PATH).map_err(|source| SourceError::Read { path: PATH, source })?;
        Ok(Machine(Arc::new(Mutex::new(Files {
            stat,
            stat_bytes: 0,
            stat_number: 0,
            stat_look: 0,
            stat_due_ns: 0,
            loadavg: Text::open("/proc/loadavg").ok(),
            loadavg_look: 0,
            runnable: None,
            look: 0,
        }))))
    }

    /// From now until the next call all samplers see the same.
    pub fn begin_look(&self) {
        self.files().look += 1;
    }

    pub(crate) fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files {
    /// `/proc/stat` at this look, `bytes` of it or more, and the number of the reading; the last one again if it `is_detail` and was
    /// read not long ago.
    pub(crate) fn stat(
        &mut self,
        now_ns: u64,
        bytes: usize,
        is_detail: bool,
    ) -> io::Result<(&str, u64)> {
        let has_enough = bytes <= self.stat_bytes && self.stat_number > 0;
        let is_due = match is_detail {
            true => now_ns >= self.stat_due_ns,
            false => true,
        };
        if !has_enough || is_due && self.stat_look != self.look {
            self.stat_bytes = self.stat_bytes.max(bytes);
            let begun_ns = clock::thread_cpu_ns();
            self.stat.read(self.stat_bytes)?;
            let cost_ns = clock::thread_cpu_ns().saturating_sub(begun_ns);
            let pause_ns = STAT_PAUSE_NS.max(cost_ns.saturating_mul(STAT_SHARE));
            self.stat_due_ns = now_ns.saturating_add(pause_ns);
            self.stat_look = self.look;
            self.stat_number += 1;
        }
        Ok((self.stat.last(), self.stat_number))
    }

    /// Threads that run or could run, but for the one that asks.
    pub(crate) fn runnable(&mut self) -> Option<u64> {
        if self.loadavg_look != self.look {
            self.loadavg_look = self.look;
            self.runnable = self.loadavg.as_mut().and_then(|loadavg| {
                let text = loadavg.read(0).ok()?;
                // We who ask run, too.
                Some(text::runnable_threads(text)?.saturating_sub(1))
            });
        }
        self.runnable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight pages cost eight readings of a file that takes half a millisecond on large machines.
    #[test]
    fn a_look_reads_each_file_once() {
        let machine = Machine::open().unwrap();
        let number = |now_ns, bytes, is_detail| {
            let mut files = machine.files();
            let (text, number) = files.stat(now_ns, bytes, is_detail).unwrap();
            assert!(text.starts_with("cpu "), "{text}");
            number
        };
        machine.begin_look();
        assert_eq!([number(1, 1, false), number(2, 1, false)], [1, 1]);
        // Who needs more has it read again, and all have more from then on.
        assert_eq!([number(3, 400, false), number(4, 1, false)], [2, 2]);
        machine.begin_look();
        assert_eq!([number(5, 1, false), number(6, 400, false)], [3, 3]);
        // For a detail it is not read at each look.
        machine.begin_look();
        assert_eq!(number(7, 1, true), 3);
        assert_eq!(number(u64::MAX, 1, true), 4);
        let mut files = machine.files();
        assert_eq!(files.runnable(), files.runnable());
        assert!(files.runnable().is_some());
    }
}
