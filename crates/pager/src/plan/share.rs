//! When a reader hands faults to others: the load is skewed if many come at once while others have nothing to do.

/// Faults of one read that a reader keeps: handing one over costs about as much as serving this many.
const KEPT: usize = 2;

/// Of `read` faults that came at once, how many go to other threads, of which `idle` wait for work.
pub(crate) fn to_others(read: usize, idle: usize) -> usize {
    let spare = read.saturating_sub(KEPT);
    // Each one who is idle gets as much as we keep; the rest is read again by whoever is first.
    let fair = read * idle / (idle + 1);
    spare.min(fair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_idle_nothing_handed() {
        assert_eq!(to_others(64, 0), 0);
        assert_eq!(to_others(0, 8), 0);
    }

    #[test]
    fn few_are_served_at_once() {
        assert_eq!(to_others(1, 8), 0);
        assert_eq!(to_others(2, 8), 0);
        assert_eq!(to_others(3, 8), 1);
    }

    #[test]
    fn many_are_shared_evenly() {
        assert_eq!(to_others(64, 1), 32);
        assert_eq!(to_others(64, 3), 48);
        assert_eq!(to_others(9, 2), 6);
    }
}
