//! Which stored page might be equal to a page: by hash, within a bound of memory.

/// Most memory of the table: 256 MiB, for 96 GiB of different pages before any is forgotten.
const BUCKETS_MAX: usize = 1 << 22;
const WAYS: usize = 8;
/// Candidates for each bucket before there are twice as many buckets. Each goes to the emptier of two buckets (Azar, Broder,
/// Karlin and Upfal 1994), so that hardly any is full then.
const LOAD: usize = 6;
/// The same where one would be forgotten otherwise: contents chosen to share a bucket do not make the table large.
const LOAD_IF_FULL: usize = 3;

/// A stored page and a part of its hash.
#[derive(Clone, Copy, Default)]
struct Candidate {
    tag: u32,
    /// Plus one: 0 is none.
    number: u32,
}

/// Buckets of a cache line each.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([Candidate; WAYS]);

/// A table of the stored pages. When it is full the older ones go; what is equal to them is then stored again.
///
/// The same insertions leave the same table: nothing in it is random.
pub(super) struct Duplicates {
    buckets: Vec<Bucket>,
    len: usize,
    buckets_max: usize,
}

impl Duplicates {
    pub fn new() -> Duplicates {
        Duplicates::bounded(BUCKETS_MAX)
    }

    fn bounded(buckets_max: usize) -> Duplicates {
        Duplicates {
            buckets: vec![Bucket::default(); 64.min(buckets_max)],
            len: 0,
            buckets_max,
        }
    }

    fn buckets(&self, tag: u32) -> [usize; 2] {
        // The tag is all of the hash that is kept, so both must follow from it.
        let mask = self.buckets.len() - 1;
        let other = (u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        [tag as usize & mask, other & mask]
    }

    fn tag(hash: u64) -> u32 {
        (hash ^ hash >> 32) as u32
    }

    /// The stored pages of the same hash, whose content must be compared: hardly ever more than one.
    pub fn find(&self, hash: u64) -> impl Iterator<Item = u64> {
        let tag = Duplicates::tag(hash);
        let [first, second] = self.buckets(tag);
        let both = [Some(first), (second != first).then_some(second)];
        let candidates = both.into_iter().flatten().flat_map(|at| self.buckets[at].0);
        let same = candidates.filter(move |one| one.number != 0 && one.tag == tag);
        same.map(|found| u64::from(found.number) - 1)
    }

    pub fn insert(&mut self, hash: u64, number: u64) {
        let Ok(number) = u32::try_from(number + 1) else {
            return;
        };
        let tag = Duplicates::tag(hash);
        let load = match self.is_full(self.emptier(tag)) {
            true => LOAD_IF_FULL,
            false => LOAD,
        };
        if self.len >= self.buckets.len() * load && self.buckets.len() < self.buckets_max {
            self.grow();
        }
        self.put(Candidate { tag, number });
    }

    fn emptier(&self, tag: u32) -> usize {
        let has = |at: &usize| {
            let held = self.buckets[*at].0.iter().filter(|one| one.number != 0);
            held.count()
        };
        let [first, second] = self.buckets(tag);
        if has(&second) < has(&first) {
            second
        } else {
            first
        }
    }

    fn is_full(&self, at: usize) -> bool {
        self.buckets[at].0[WAYS - 1].number != 0
    }

    /// To the front; the others move back, and if it was full the last, the oldest, falls out.
    fn put(&mut self, candidate: Candidate) {
        let at = self.emptier(candidate.tag);
        self.len += usize::from(!self.is_full(at));
        let bucket = &mut self.buckets[at].0;
        bucket.copy_within(..WAYS - 1, 1);
        bucket[0] = candidate;
    }

    fn grow(&mut self) {
        let twice = vec![Bucket::default(); self.buckets.len() * 2];
        let old = std::mem::replace(&mut self.buckets, twice);
        self.len = 0;
        for bucket in old {
            for candidate in bucket.0.iter().rev().filter(|old| old.number != 0) {
                self.put(*candidate);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SplitMix64's (Steele, Lea and Flood 2014).
    fn hash(i: u64) -> u64 {
        let z = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Among those that share its tag.
    fn found(table: &Duplicates, i: u64) -> bool {
        table.find(hash(i)).any(|number| number == i)
    }

    #[test]
    fn finds_what_was_put_in_while_it_grows() {
        let mut table = Duplicates::new();
        for i in 0..100_000 {
            table.insert(hash(i), i);
        }
        assert!((0..100_000).all(|i| found(&table, i)));
        assert_eq!(table.find(hash(100_001)).next(), None);
    }

    #[test]
    fn forgets_none_below_its_bound() {
        for first in 0..2_000 {
            let mut table = Duplicates::new();
            let numbers = first * 1_000..first * 1_000 + 384;
            for i in numbers.clone() {
                table.insert(hash(i), i);
            }
            let lost = numbers.filter(|i| !found(&table, *i)).count();
            assert_eq!(lost, 0, "of those from {}", first * 1_000);
        }
    }

    #[test]
    fn one_bucket_for_all_does_not_make_it_large() {
        let mut table = Duplicates::new();
        for i in 0..100_000 {
            table.insert(hash(7), i);
        }
        assert_eq!(table.buckets.len(), 64);
    }

    #[test]
    fn keeps_to_its_bound_and_the_newest() {
        let mut table = Duplicates::bounded(64);
        for i in 0..100_000 {
            table.insert(hash(i), i);
        }
        assert_eq!(table.buckets.len(), 64);
        assert!(found(&table, 99_999));
        assert!(!found(&table, 0));
    }
}
