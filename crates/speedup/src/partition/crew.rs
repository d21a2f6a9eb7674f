//! Workers without a task.

use rustc_hash::FxHashMap;

use crate::cause::Cause;

/// The workers of one process that wait for a task. They are interchangeable: what gives one of
/// them a task tells what all of them have been waiting for since the last time.
#[derive(Debug, Default)]
pub(super) struct Crew {
    waiting: u64,
    /// Sum over the waiting of the integral's value when they joined or were last settled.
    marks: f64,
    /// Value of the integral when all were last settled.
    settled: f64,
    /// Gathered by workers that were woken without a reason that is known.
    unsettled: f64,
    /// What was settled, by cause.
    pub(super) mix: FxHashMap<Cause, f64>,
}

impl Crew {
    pub(super) fn join(&mut self, now: f64) {
        self.waiting += 1;
        self.marks += now;
    }

    /// A worker that joined at `mark` leaves; what it has gathered since the last settling stays.
    pub(super) fn leave(&mut self, mark: f64, now: f64) {
        let mark = mark.max(self.settled);
        self.waiting -= 1;
        self.marks -= mark;
        self.unsettled += now - mark;
    }

    /// Everything gathered, which is then settled.
    pub(super) fn settle(&mut self, now: f64) -> f64 {
        let gathered = self.unsettled + self.waiting as f64 * now - self.marks;
        self.unsettled = 0.0;
        self.marks = self.waiting as f64 * now;
        self.settled = now;
        gathered.max(0.0)
    }
}
