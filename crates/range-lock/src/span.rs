use std::ops::{Bound, RangeBounds, RangeInclusive};

/// A range that is not empty, by its first and its last address: so the last address of all, 2^64 - 1, can be in one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) last: u64,
}

impl Span {
    pub(crate) const ALL: Span = Span {
        start: 0,
        last: u64::MAX,
    };

    /// `None`: the range is empty.
    pub(crate) fn of(range: impl RangeBounds<u64>) -> Option<Span> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let last = match range.end_bound() {
            Bound::Included(&last) => last,
            Bound::Excluded(&end) => end.checked_sub(1)?,
            Bound::Unbounded => u64::MAX,
        };
        Span::between(start, last)
    }

    pub(crate) fn between(start: u64, last: u64) -> Option<Span> {
        (start <= last).then_some(Span { start, last })
    }

    #[inline]
    pub(crate) fn overlaps(self, other: Span) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// What lies before `at`, and what begins with it.
    pub(crate) fn split(self, at: u64) -> (Option<Span>, Option<Span>) {
        let left = at
            .checked_sub(1)
            .and_then(|last| Span::between(self.start, last.min(self.last)));
        (left, Span::between(at.max(self.start), self.last))
    }

    pub(crate) fn range(self) -> RangeInclusive<u64> {
        self.start..=self.last
    }
}

impl std::fmt::Debug for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..={}", self.start, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_at_the_ends_of_u64() {
        let span = |start, last| Some(Span { start, last });
        assert_eq!(Span::of(..), span(0, u64::MAX));
        assert_eq!(
            Span::of(u64::MAX..=u64::MAX),
            span(u64::MAX, u64::MAX),
            "the last address"
        );
        assert_eq!(Span::of(..u64::MAX), span(0, u64::MAX - 1));
        assert_eq!(Span::of(0..0), None);
        #[allow(clippy::reversed_empty_ranges)]
        let backwards = 7..3;
        assert_eq!(Span::of(backwards), None);
        let after_all = (Bound::Excluded(u64::MAX), Bound::Unbounded);
        assert_eq!(Span::of(after_all), None);
        assert_eq!(
            Span::of((Bound::Excluded(4), Bound::Excluded(6))),
            span(5, 5)
        );
    }

    #[test]
    fn a_split_loses_nothing() {
        let all = Span::ALL;
        let parts = |at| all.split(at);
        assert_eq!(parts(0), (None, Some(all)));
        let last = Span::between(u64::MAX, u64::MAX);
        assert_eq!(parts(u64::MAX), (Span::between(0, u64::MAX - 1), last));
        let small = Span { start: 4, last: 9 };
        assert_eq!(small.split(4), (None, Some(small)));
        assert_eq!(small.split(10), (Some(small), None));
        assert_eq!(small.split(2), (None, Some(small)));
    }
}
