//! A process that is busy in a known way, and its clock.

use rustix::process::{Pid, Signal, kill_process};

use crate::quota::Group;
use crate::stage::{RunError, Stage, Started};

/// Ended when dropped.
pub struct Busy(Started);

impl Busy {
    /// Starts `threads` of them, or one that sleeps, on one CPU or on all.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(
        stage: &Stage,
        threads: usize,
        cpu: Option<usize>,
        group: Option<&Group>,
    ) -> Result<Busy, RunError> {
        let mut command = stage.program("busy");
        command.arg(threads.to_string());
        command.args(cpu.map(|cpu| cpu.to_string()));
        if let Some(group) = group {
            group.take_in(&mut command);
        }
        Started::start(&mut command).map(Busy)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Stops it for a while, or lets it go on.
    pub fn go_on(&self, does: bool) {
        let signal = if does { Signal::CONT } else { Signal::STOP };
        let pid = Pid::from_raw(self.pid() as i32).expect("a process has a number");
        // It is not reaped before it is dropped.
        let _ = kill_process(pid, signal);
    }

    /// CPU time that it has had, to the nanosecond, whatever goes on.
    pub fn cpu_ns(&self) -> u64 {
        // The clock of another process, as clock_getcpuclockid gives it.
        let clock = !(self.pid() as libc::clockid_t) << 3 | 2;
        let mut at = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `at` is writable and of the right type.
        match unsafe { libc::clock_gettime(clock, &mut at) } {
            0 => at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64,
            _ => 0,
        }
    }
}
