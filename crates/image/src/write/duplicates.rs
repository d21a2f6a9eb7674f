//! Which stored page might be equal to a page: by hash, within a bound of memory.

/// Most memory of the table: 256 MiB, for 96 GiB of different pages before any is forgotten.
const BUCKETS_MAX: usize = 1 << 22;
const WAYS: usize = 8;
/// Candidates for each bucket before there are twice as many buckets. Each goes to the emptier of two buckets (Azar, Broder,
/// Karlin and Upfal 1994), so that hardly any is full then.
const LOAD: usize = 6;

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

    /// A stored page of the same hash, whose content must be compared.
    pub fn find(&self, hash: u64) -> Option<u64> {
        let tag = Duplicates::tag(hash);
        let same = |candidate: &&Candidate| candidate.number != 0 && candidate.tag == tag;
        let mut both = self.buckets(tag).into_iter();
        let found = both.find_map(|at| self.buckets[at].0.iter().find(same))?;
        Some(u64::from(found.number) - 1)
    }

    pub fn insert(&mut self, hash: u64, number: u64) {
        let Ok(number) = u32::try_from(number + 1) else {
            return;
        };
        if self.len >= self.buckets.len() * LOAD && self.buckets.len() < self.buckets_max {
            self.grow();
        }
        let tag = Duplicates::tag(hash);
        self.put(Candidate { tag, number });
    }

    /// To the front; the others move back, and if it was full the last, the oldest, falls out.
    fn put(&mut self, candidate: Candidate) {
        let has = |at: &usize| {
            self.buckets[*at]
                .0
                .iter()
                .filter(|one| one.number != 0)
                .count()
        };
        let [first, second] = self.buckets(candidate.tag);
        let at = if has(&second) < has(&first) {
            second
        } else {
            first
        };
        let bucket = &mut self.buckets[at].0;
        self.len += usize::from(bucket[WAYS - 1].number == 0);
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

    fn hash(i: u64) -> u64 {
        (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn finds_what_was_put_in_while_it_grows() {
        let mut table = Duplicates::new();
        for i in 0..100_000 {
            table.insert(hash(i), i);
        }
        let found = (0..100_000).filter(|i| table.find(hash(*i)) == Some(*i));
        // A few share a tag.
        assert!(found.count() > 99_990);
        assert_eq!(table.find(hash(100_001)), None);
    }

    #[test]
    fn keeps_to_its_bound_and_the_newest() {
        let mut table = Duplicates::bounded(64);
        for i in 0..100_000 {
            table.insert(hash(i), i);
        }
        assert_eq!(table.buckets.len(), 64);
        assert_eq!(table.find(hash(99_999)), Some(99_999));
        assert_eq!(table.find(hash(0)), None);
    }
}
