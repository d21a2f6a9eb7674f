//! Which point of a sweep, as a reader says it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::compare::PointChange;
use crate::schema::{Point, RunFailure, SampleRow};

/// CPUs and threads, which tell the points of a sweep apart. Shown as `2 CPUs`, and as
/// `2 CPUs with 8 threads` where there are more threads than CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PointId {
    cpus: u32,
    threads: u32,
}

impl PointId {
    /// Of a point with `threads` on `cpus`. Fewer threads than CPUs (none, in older files) are one
    /// for each CPU.
    pub fn new(cpus: u32, threads: u32) -> PointId {
        PointId {
            cpus,
            threads: threads.max(cpus),
        }
    }

    /// Number of CPUs.
    pub fn cpus(self) -> u32 {
        self.cpus
    }

    /// Threads asked of the program.
    pub fn threads(self) -> u32 {
        self.threads
    }

    /// There are more threads than CPUs.
    pub fn is_oversubscribed(self) -> bool {
        self.threads > self.cpus
    }

    /// The words with numbers and their units joined by no-break spaces.
    pub(crate) fn joined(self) -> String {
        let cpus = count(self.cpus, "CPU");
        if self.is_oversubscribed() {
            format!("{cpus} with {}", count(self.threads, "thread"))
        } else {
            cpus
        }
    }

    /// For the cell of a table whose head says CPUs: `2 (8t)`.
    pub(crate) fn brief(self) -> String {
        if self.is_oversubscribed() {
            format!("{} ({}t)", self.cpus, self.threads)
        } else {
            self.cpus.to_string()
        }
    }
}

impl fmt::Display for PointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.joined().replace('\u{a0}', " "))
    }
}

impl From<&Point> for PointId {
    fn from(point: &Point) -> PointId {
        PointId::new(point.cpus, point.threads)
    }
}

impl From<&SampleRow> for PointId {
    fn from(row: &SampleRow) -> PointId {
        PointId::new(row.cpus, row.threads)
    }
}

impl From<&RunFailure> for PointId {
    fn from(failure: &RunFailure) -> PointId {
        PointId::new(failure.cpus, failure.threads)
    }
}

impl From<&PointChange> for PointId {
    fn from(change: &PointChange) -> PointId {
        PointId::new(change.cpus, change.threads)
    }
}

/// `1 CPU`, `8 threads`, joined by a no-break space.
pub(crate) fn count(count: u32, unit: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count}\u{a0}{unit}{plural}")
}

#[cfg(test)]
mod tests {
    use super::PointId;

    #[test]
    fn threads_are_told_where_there_are_more_than_cpus() {
        for (cpus, threads, words, brief) in [
            (1, 1, "1 CPU", "1"),
            (2, 0, "2 CPUs", "2"),
            (1, 3, "1 CPU with 3 threads", "1 (3t)"),
            (2, 8, "2 CPUs with 8 threads", "2 (8t)"),
        ] {
            let id = PointId::new(cpus, threads);
            assert_eq!(
                (id.to_string().as_str(), id.brief().as_str()),
                (words, brief)
            );
        }
    }
}
