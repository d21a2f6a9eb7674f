//! Which chunk comes next: pure but for one word a node.

use std::ops::Range;
use std::time::Duration;

use crate::sync::{AtomicUsize, Ordering, Padded};

/// What a chunk should take: long against taking it and asking the time, short against a time slice.
pub(super) const AIM: Duration = Duration::from_micros(100);

/// No chunk is more than this part of what is left to each thread, so that all end at about the same time.
const LEFT: usize = 4;

/// The part of a node, of which chunks are taken from the front.
pub(crate) struct Part {
    next: Padded<AtomicUsize>,
    end: usize,
}

impl Part {
    /// Up to `wanted` from the front.
    fn take(&self, wanted: impl Fn(usize) -> usize) -> Option<Range<usize>> {
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let left = self.end - next;
            if left == 0 {
                return None;
            }
            let to = next + wanted(left).clamp(1, left);
            match self
                .next
                .compare_exchange_weak(next, to, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(next..to),
                Err(found) => next = found,
            }
        }
    }

    fn left(&self) -> usize {
        self.end - self.next.load(Ordering::Relaxed)
    }
}

/// The range in a part for each node, by the CPUs it has.
pub(crate) struct Parts(Box<[Part]>);

impl Parts {
    /// `cpus` are those of each node that may help. Boundaries are multiples of `chunk_min` from the start.
    pub(crate) fn new(range: Range<usize>, chunk_min: usize, cpus: &[u32]) -> Self {
        let chunks = range.len().div_ceil(chunk_min);
        let all: u64 = cpus.iter().map(|&n| u64::from(n)).sum::<u64>().max(1);
        let mut before = 0u64;
        let mut start = range.start;
        let mut parts: Vec<Part> = cpus
            .iter()
            .map(|&n| {
                before += u64::from(n);
                let chunk = (chunks as u128 * u128::from(before) / u128::from(all)) as usize;
                let end = range.start + chunk.saturating_mul(chunk_min).min(range.len());
                let part = start..end.max(start);
                start = part.end;
                Part {
                    next: Padded(AtomicUsize::new(part.start)),
                    end: part.end,
                }
            })
            .collect();
        if let Some(last) = parts.last_mut() {
            last.end = range.end;
        }
        Parts(parts.into())
    }

    /// Of the node's own part, or else of the next ones.
    pub(crate) fn take(&self, node: usize, pace: &Pace, threads: u32) -> Option<Range<usize>> {
        let (before, from) = self.0.split_at(node.min(self.0.len()));
        from.iter()
            .chain(before)
            .find_map(|part| part.take(|left| pace.wanted(left, threads)))
    }

    pub(crate) fn left(&self) -> usize {
        self.0.iter().map(Part::left).sum()
    }
}

/// How large this thread's chunks are.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    chunk: usize,
    chunk_min: usize,
}

impl Pace {
    pub(crate) fn new(chunk_min: usize) -> Self {
        Pace {
            chunk: chunk_min,
            chunk_min,
        }
    }

    /// Of what is `left` to so many threads.
    fn wanted(&self, left: usize, threads: u32) -> usize {
        self.chunk
            .min(left / (LEFT * threads.max(1) as usize))
            .max(self.chunk_min)
    }

    /// A chunk of `len` took `took`: the next one grows or shrinks by at most a factor towards the aim.
    pub(crate) fn took(&mut self, len: usize, took: Duration) {
        let full = len >= self.chunk;
        if took < AIM / 8 && full {
            self.chunk = self.chunk.saturating_mul(4);
        } else if took < AIM / 2 && full {
            self.chunk = self.chunk.saturating_mul(2);
        } else if took > AIM * 2 {
            let by = (took.as_nanos() / AIM.as_nanos()).clamp(2, 16) as usize;
            self.chunk = (len / by).max(self.chunk_min);
        }
    }
}

/// Parts in rising order, neighbours joined.
pub(crate) fn joined(mut parts: Vec<Range<usize>>) -> Vec<Range<usize>> {
    parts.sort_unstable_by_key(|part| part.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => joined.push(part),
        }
    }
    joined
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// All of it, once, whoever takes and however long chunks take; no chunk is too small but at the end of a part.
        #[test]
        fn chunks_are_the_range(
            start in prop_oneof![0usize..1000, (usize::MAX - 2000)..(usize::MAX - 1000)],
            len in 1usize..1000,
            chunk_min in prop_oneof![1usize..50, Just(usize::MAX)],
            cpus in prop::collection::vec(0u32..5, 1..5),
            times in prop::collection::vec((0usize..6, 0u64..2000), 1..50),
        ) {
            let range = start..start + len;
            let parts = Parts::new(range.clone(), chunk_min, &cpus);
            let mut pace = Pace::new(chunk_min);
            let mut taken = vec![];
            for &(node, micros) in times.iter().cycle() {
                let Some(chunk) = parts.take(node, &pace, 3) else { break };
                let ends_a_part = parts.0.iter().any(|part| part.end == chunk.end);
                prop_assert!(chunk.len() >= chunk_min || ends_a_part);
                pace.took(chunk.len(), Duration::from_micros(micros));
                taken.push(chunk);
            }
            prop_assert_eq!(parts.left(), 0);
            let sum: usize = taken.iter().map(ExactSizeIterator::len).sum();
            prop_assert_eq!(sum, len);
            prop_assert_eq!(joined(taken), vec![range]);
        }
    }

    #[test]
    fn nodes_get_parts_by_their_cpus() {
        let parts = Parts::new(0..1000, 100, &[3, 0, 1]);
        let bounds: Vec<_> = parts.0.iter().map(|p| (p.left(), p.end)).collect();
        assert_eq!(bounds, [(700, 700), (0, 700), (300, 1000)]);
        let own = parts.take(2, &Pace::new(100), 1).unwrap();
        assert_eq!(own, 700..800);
    }

    #[test]
    fn chunks_grow_with_cheap_work_and_shrink_at_the_end() {
        let mut pace = Pace::new(1);
        (0..20).for_each(|_| pace.took(usize::MAX, Duration::ZERO));
        assert_eq!(pace.wanted(8000, 2), 1000, "an eighth of what is left");
        assert_eq!(pace.wanted(7, 2), 1);
        assert_eq!(
            pace.wanted(8000, 4),
            500,
            "among more there is less for each"
        );
        let chunk = pace.wanted(usize::MAX, 2);
        pace.took(chunk, Duration::from_millis(10));
        assert!(pace.wanted(usize::MAX, 2) <= chunk / 16);
    }
}
