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
    /// A position in it.
    next: Padded<AtomicUsize>,
    end: usize,
    /// Of a part that is several pieces of the range: at which position each begins, and where in the range. None: positions are
    /// those of the range.
    pieces: Box<[(usize, usize)]>,
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
            let (start, most) = self.at(next);
            let len = wanted(left).clamp(1, most);
            match self.next.compare_exchange_weak(
                next,
                next + len,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(start..start + len),
                Err(found) => next = found,
            }
        }
    }

    /// Of pieces in rising order that do not overlap.
    fn of(pieces: &[Range<usize>]) -> Part {
        let mut end = 0;
        let at = |piece: &Range<usize>| {
            let position = end;
            end += piece.len();
            (position, piece.start)
        };
        Part {
            pieces: pieces.iter().map(at).collect(),
            next: Padded(AtomicUsize::new(0)),
            end,
        }
    }

    /// Where in the range a position is, and how much follows there without a gap. O(log pieces).
    fn at(&self, position: usize) -> (usize, usize) {
        if self.pieces.is_empty() {
            return (position, self.end - position);
        }
        let after = self.pieces.partition_point(|&(from, _)| from <= position);
        let (from, start) = self.pieces[after - 1];
        let to = self.pieces.get(after).map_or(self.end, |&(from, _)| from);
        (start + (position - from), to - position)
    }

    fn left(&self) -> usize {
        self.end - self.next.load(Ordering::Relaxed)
    }
}

/// A piece of a range, and the node where its memory is, if that is known.
pub(crate) type Piece = (Range<usize>, Option<u32>);

/// The range in a part for each node: by the CPUs it has, or by where memory is.
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
                    pieces: Box::default(),
                }
            })
            .collect();
        if let Some(last) = parts.last_mut() {
            last.end = range.end;
        }
        Parts(parts.into())
    }

    /// Each node has the pieces that are on it. What is on none of those that have CPUs which may help, or of what nobody says anything, is
    /// divided by CPUs, as without pieces. What is outside of the range is nothing, and of pieces that overlap the one that begins first has
    /// what both would have. O(pieces log pieces + nodes).
    pub(crate) fn placed(
        range: Range<usize>,
        chunk_min: usize,
        cpus: &[u32],
        pieces: &[Piece],
    ) -> Self {
        let mut pieces = pieces.to_vec();
        pieces.sort_by_key(|(piece, _)| piece.start);
        let mut of_node: Vec<Vec<Range<usize>>> = vec![vec![]; cpus.len()];
        let mut anywhere = vec![];
        let mut covered = range.start;
        for (piece, node) in pieces {
            let piece = piece.start.max(covered)..piece.end.min(range.end);
            if piece.is_empty() {
                continue;
            }
            push(&mut anywhere, covered..piece.start);
            covered = piece.end;
            let node = node.map(|node| node as usize);
            match node.filter(|&node| cpus.get(node).is_some_and(|&cpus| cpus > 0)) {
                Some(node) => push(&mut of_node[node], piece),
                None => push(&mut anywhere, piece),
            }
        }
        push(&mut anywhere, covered..range.end);
        let total = anywhere.iter().map(ExactSizeIterator::len).sum();
        let shares = Parts::new(0..total, chunk_min, cpus).0;
        let mut left = anywhere.into_iter();
        let mut now = 0..0;
        for (node, share) in of_node.iter_mut().zip(&shares) {
            let mut wanted = share.left();
            while wanted > 0 {
                if now.is_empty() {
                    now = left.next().expect("shares are all of it");
                }
                let end = now.end.min(now.start + wanted);
                wanted -= end - now.start;
                node.push(now.start..end);
                now.start = end;
            }
        }
        let part = |mut pieces: Vec<Range<usize>>| {
            pieces.sort_unstable_by_key(|piece| piece.start);
            Part::of(&joined(pieces))
        };
        Parts(of_node.into_iter().map(part).collect())
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

/// One more piece behind the others.
fn push(pieces: &mut Vec<Range<usize>>, piece: Range<usize>) {
    if !piece.is_empty() {
        pieces.push(piece);
    }
}

/// The pieces of a range whose indexes go over memory from its one end to the other, by the nodes of samples at equal distances: the
/// first is of its beginning.
pub(super) fn sampled(range: Range<usize>, nodes: &[Option<u32>]) -> Vec<Piece> {
    let at = |sample: usize| {
        let index = range.len() as u128 * sample as u128 / nodes.len() as u128;
        range.start + index as usize
    };
    let mut pieces: Vec<Piece> = vec![];
    for (sample, &node) in nodes.iter().enumerate() {
        match pieces.last_mut() {
            Some((last, of)) if *of == node => last.end = at(sample + 1),
            _ => pieces.push((at(sample)..at(sample + 1), node)),
        }
    }
    pieces
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

    /// CPUs of 2, 4 or 8 nodes, of which some may have none.
    fn machines() -> impl Strategy<Value = Vec<u32>> {
        let nodes = prop_oneof![Just(2usize), Just(4), Just(8)];
        nodes.prop_flat_map(|nodes| prop::collection::vec(0u32..9, nodes))
    }

    proptest! {
        /// Each index once, whatever is said of where memory is: overlapping, beyond the range, on nodes that are not there. Who has
        /// something of its own left takes that, and of what is on its node nothing goes to others before.
        #[test]
        fn pieces_are_the_range_and_go_to_their_nodes_first(
            start in prop_oneof![0usize..1000, (usize::MAX - 2000)..(usize::MAX - 1000)],
            len in 1usize..1000,
            chunk_min in prop_oneof![1usize..50, Just(usize::MAX)],
            cpus in machines(),
            said in prop::collection::vec((0usize..1200, 0usize..300, prop::option::of(0u32..10)), 0..40),
            takers in prop::collection::vec((0usize..9, 0u64..2000), 1..50),
        ) {
            let range = start..start + len;
            let place = |&(at, len, node): &(usize, usize, Option<u32>)| {
                let from = (start + at.min(1000)).saturating_sub(100);
                (from..from.saturating_add(len), node)
            };
            let pieces: Vec<Piece> = said.iter().map(place).collect();
            // By the naive rule: the piece that begins first has it.
            let mut in_order = pieces.clone();
            in_order.sort_by_key(|(piece, _)| piece.start);
            let home = |index: usize| {
                let (_, node) = in_order.iter().find(|(piece, _)| piece.contains(&index))?;
                node.filter(|&node| cpus.get(node as usize).is_some_and(|&cpus| cpus > 0))
            };
            let parts = Parts::placed(range.clone(), chunk_min, &cpus, &pieces);
            let mut pace = Pace::new(chunk_min);
            let mut taken = vec![];
            for &(node, micros) in takers.iter().cycle() {
                let own = parts.0.get(node).map_or(0, Part::left);
                let Some(chunk) = parts.take(node, &pace, 3) else { break };
                for index in chunk.clone() {
                    match home(index) {
                        Some(at) if at as usize != node => prop_assert_eq!(own, 0, "{} is on {}", index, at),
                        _ => {}
                    }
                }
                if let Some(part) = parts.0.get(node) {
                    prop_assert_eq!(own - part.left(), own.min(chunk.len()));
                }
                pace.took(chunk.len(), Duration::from_micros(micros));
                taken.push(chunk);
            }
            prop_assert_eq!(parts.left(), 0);
            let sum: usize = taken.iter().map(ExactSizeIterator::len).sum();
            prop_assert_eq!(sum, len);
            prop_assert_eq!(joined(taken), vec![range]);
        }

        #[test]
        fn samples_are_the_range(
            start in prop_oneof![0usize..1000, Just(usize::MAX - 1000)],
            len in 1usize..1000,
            nodes in prop::collection::vec(prop::option::of(0u32..3), 1..100),
        ) {
            let pieces = sampled(start..start + len, &nodes);
            prop_assert!(pieces.windows(2).all(|w| w[0].0.end == w[1].0.start && w[0].1 != w[1].1));
            let all = pieces[0].0.start..pieces.last().unwrap().0.end;
            prop_assert_eq!(all, start..start + len);
            for (piece, node) in pieces {
                for index in piece {
                    // The last sample at or before it.
                    let of = (0..nodes.len()).rev().find(|n| start + len * n / nodes.len() <= index);
                    prop_assert_eq!(nodes[of.unwrap()], node);
                }
            }
        }
    }

    #[test]
    fn pieces_on_a_node_are_its_part_and_the_rest_is_divided_by_cpus() {
        let cpus = [1, 0, 3];
        // Nobody can run on node 1, and of 600..1000 nothing is said.
        let pieces = [(200..400, Some(1)), (0..200, Some(2)), (400..600, Some(2))];
        let parts = Parts::placed(0..1000, 50, &cpus, &pieces);
        let pieces_of = |node: usize| parts.0[node].pieces.to_vec();
        // Of 200..400 and 600..1000 a quarter.
        assert_eq!(pieces_of(0), [(0, 200)]);
        assert_eq!(parts.0[0].end, 150);
        assert!(pieces_of(1).is_empty() && parts.0[1].left() == 0);
        assert_eq!(pieces_of(2), [(0, 0), (200, 350)]);
        assert_eq!(parts.0[2].end, 850);
        // A chunk ends where a piece does.
        let pace = Pace::new(150);
        assert_eq!(parts.take(2, &pace, 1), Some(0..150));
        assert_eq!(parts.take(2, &pace, 1), Some(150..200));
        assert_eq!(parts.take(2, &pace, 1), Some(350..500));
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
