//! Working sets: the pages that a start touches, recorded once and fetched before the next start (after REAP, Ustiugov et al.,
//! ASPLOS 2021).

use std::io::{self, Read, Write};
use std::ops::Range;

use crate::PAGE;

/// Pages, as runs in rising order; numbers count from the first page of the first region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkingSet {
    runs: Vec<Range<u64>>,
}

/// Why a file holds no working set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkingSetError {
    /// It could not be read or written.
    #[error("working set: {0}")]
    Io(#[from] io::Error),
    /// It is something else, or damaged.
    #[error("this is no working set that can be used: {0}")]
    Damaged(&'static str),
}

/// What a file begins with: name and version.
const MAGIC: &[u8; 8] = b"AMDLWS\0\x01";

impl WorkingSet {
    /// Of pages in rising order.
    pub fn from_pages(pages: impl IntoIterator<Item = u64>) -> WorkingSet {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for page in pages {
            match runs.last_mut() {
                Some(last) if last.end == page => last.end += 1,
                Some(last) if last.end > page => {}
                _ => runs.push(page..page + 1),
            }
        }
        WorkingSet { runs }
    }

    /// Of runs of pages, by rising starts. Runs that touch or overlap become one, empty ones are left out.
    pub fn from_runs(runs: impl IntoIterator<Item = Range<u64>>) -> WorkingSet {
        let mut all: Vec<Range<u64>> = Vec::new();
        for run in runs {
            match all.last_mut() {
                Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
                _ if run.start >= run.end => {}
                _ => all.push(run),
            }
        }
        WorkingSet { runs: all }
    }

    /// Runs of pages, in rising order.
    pub fn runs(&self) -> &[Range<u64>] {
        &self.runs
    }

    /// How many pages.
    pub fn pages(&self) -> u64 {
        self.runs.iter().map(|run| run.end - run.start).sum()
    }

    /// Writes it: magic, page size, number of runs, start and length of each, CRC-32 of all that; little endian.
    ///
    /// # Errors
    /// What `to` says.
    pub fn save(&self, mut to: impl Write) -> Result<(), WorkingSetError> {
        let mut bytes = Vec::with_capacity(24 + 16 * self.runs.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&(PAGE as u64).to_le_bytes());
        bytes.extend_from_slice(&(self.runs.len() as u64).to_le_bytes());
        for run in &self.runs {
            bytes.extend_from_slice(&run.start.to_le_bytes());
            bytes.extend_from_slice(&(run.end - run.start).to_le_bytes());
        }
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        to.write_all(&bytes)?;
        Ok(())
    }

    /// Reads what [`save`](Self::save) wrote, and trusts none of it. Memory is bounded by the size of the file.
    ///
    /// # Errors
    /// [`WorkingSetError::Damaged`] for anything else.
    pub fn load(mut from: impl Read) -> Result<WorkingSet, WorkingSetError> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        let damaged = WorkingSetError::Damaged;
        let Some((body, sum)) = bytes.split_last_chunk::<4>() else {
            return Err(damaged("it is too short"));
        };
        let Some(rest) = body.strip_prefix(MAGIC) else {
            return Err(damaged("it does not begin as one of this version does"));
        };
        if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            return Err(damaged("its checksum is wrong"));
        }
        let (numbers, []) = rest.as_chunks::<8>() else {
            return Err(damaged("it ends in the middle of a number"));
        };
        let mut numbers = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes));
        if numbers.next() != Some(PAGE as u64) {
            return Err(damaged("it is for pages of another size"));
        }
        let count = numbers.next().ok_or(damaged("it is too short"))?;
        if numbers.len() as u64 / 2 != count || numbers.len() % 2 != 0 {
            return Err(damaged("it has more or fewer runs than it says"));
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        while let (Some(start), Some(len)) = (numbers.next(), numbers.next()) {
            let after = runs.last().map_or(0, |last| last.end);
            match start.checked_add(len) {
                Some(end) if len > 0 && (start > after || runs.is_empty()) => runs.push(start..end),
                _ => return Err(damaged("its runs overlap or are not in order")),
            }
        }
        Ok(WorkingSet { runs })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn saved(set: &WorkingSet) -> Vec<u8> {
        let mut bytes = Vec::new();
        set.save(&mut bytes).unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn what_is_saved_is_loaded(pages in proptest::collection::btree_set(0u64..5000, 0..300)) {
            let set = WorkingSet::from_pages(pages.iter().copied());
            prop_assert_eq!(set.pages(), pages.len() as u64);
            let all: Vec<u64> = set.runs().iter().cloned().flatten().collect();
            prop_assert_eq!(all, pages.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(WorkingSet::load(&saved(&set)[..]).unwrap(), set);
        }

        #[test]
        fn runs_are_the_pages_in_them(mut runs in proptest::collection::vec((0u64..500, 0u64..20), 0..40)) {
            runs.sort();
            let runs = runs.into_iter().map(|(start, len)| start..start + len);
            let pages: std::collections::BTreeSet<u64> = runs.clone().flatten().collect();
            prop_assert_eq!(WorkingSet::from_runs(runs), WorkingSet::from_pages(pages));
        }

        #[test]
        fn damage_is_noticed(at in any::<prop::sample::Index>(), flip in 1u8..=255, cut in any::<prop::sample::Index>()) {
            let mut bytes = saved(&WorkingSet::from_pages([3, 4, 9, 12]));
            prop_assert!(WorkingSet::load(&bytes[..cut.index(bytes.len())]).is_err());
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(WorkingSet::load(&bytes[..]).is_err());
        }
    }

    #[test]
    fn a_right_checksum_over_nonsense_is_not_believed() {
        let mut bytes = MAGIC.to_vec();
        for number in [PAGE as u64, 2, 10, 5, 12, u64::MAX] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        let error = WorkingSet::load(&bytes[..]).unwrap_err();
        assert!(error.to_string().contains("overlap"), "{error}");
    }
}
