//! Whether tasks of others are worth taking.
//!
//! Who takes a task from another thread, and ends it, writes half a dozen lines that the other one writes as well, which costs both of them some 0.3 µs. Shorter tasks
//! end sooner where they are made: there a thread that has made enough runs the next at once, as long as it is left alone. So a waiting thread
//! measures both. Where tasks take longer it takes several at once; where they do not, one after a while, to see whether that has changed.
//!
//! What is too short to be made a task at all is usually for the program to say; that runtimes can find it out is shown by Duran, Corbalán and Ayguadé, "An adaptive
//! cut-off for task parallelism" (SC 2008).

/// Thefts that a thief keeps away for after one that was not worth it: the other thread loses no more than a part of its time in so many.
const AWAY: u64 = 8;
/// More than any theft takes: the thread had lost its CPU.
const THEFT_MAX_NS: u64 = 2_000;
/// Longer tasks are not told apart: who lost its CPU in one has soon forgotten that.
const BODY_MAX_NS: u64 = 4 * THEFT_MAX_NS;
/// Of what was known so much is left after the next: 3 of 4.
const KEPT: u64 = 4;

/// What one thread has measured. In nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Worth {
    theft: u64,
    body: u64,
    /// When the next theft is due.
    due: u64,
}

impl Worth {
    /// Whether tasks take longer than taking them. Not known: no.
    #[inline]
    pub(super) fn pays(&self) -> bool {
        self.body > self.theft
    }

    /// Whether a theft is due.
    #[inline]
    pub(super) fn is_due(&self, now: u64) -> bool {
        now >= self.due
    }

    /// A task that was taken took so long.
    #[inline]
    pub(super) fn ran(&mut self, body: u64) {
        self.body = mean(self.body, body.min(BODY_MAX_NS));
    }

    /// And taking it, alone, and ending it so long, until now.
    #[inline]
    pub(super) fn took(&mut self, theft: u64, now: u64) {
        self.theft = mean(self.theft, theft.min(THEFT_MAX_NS));
        self.due = match self.pays() {
            true => now,
            false => now + AWAY * self.theft,
        };
    }
}

fn mean(known: u64, new: u64) -> u64 {
    match known {
        0 => new,
        known => (known * (KEPT - 1) + new) / KEPT,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn short_tasks_are_left_alone_and_looked_at_after_a_while() {
        let mut worth = Worth::default();
        assert!(worth.is_due(0) && !worth.pays());
        let mut now = 1_000;
        for _ in 0..10 {
            worth.ran(60);
            worth.took(300, now);
            assert!(!worth.pays() && !worth.is_due(now) && worth.is_due(now + AWAY * 300));
            now += AWAY * 300;
        }
        // They are longer now: known after one that is much longer, or some that are a little.
        let mut longer = worth;
        longer.ran(5_000);
        longer.took(300, now);
        assert!(longer.pays() && longer.is_due(now));
        let steps = (1..).find(|_| {
            worth.ran(400);
            worth.pays()
        });
        assert!(steps <= Some(5), "{steps:?}");
    }

    #[test]
    fn a_lost_cpu_is_soon_forgotten() {
        // In a short one.
        let mut worth = Worth::default();
        worth.ran(60);
        worth.took(300, 0);
        worth.ran(4_000_000);
        worth.took(300, 0);
        let steps = (1..).find(|_| {
            worth.ran(60);
            !worth.pays()
        });
        assert!(steps < Some(12), "{steps:?}");
        // While one was taken: long tasks are worth it all the same.
        let mut worth = Worth::default();
        worth.ran(100_000);
        worth.took(4_000_000, 7);
        assert!(worth.pays() && worth.is_due(7));
    }
}
