//! A set of CPU numbers.

use std::fmt;
use std::str::FromStr;

/// A growable bitmap of CPU numbers.
///
/// One bit per number up to the largest one in the set. Parses and prints the
/// kernel's list format: `0-3,8`.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet {
    // The last word is never zero, so that equal sets have equal words.
    words: Vec<u64>,
}

/// Why a text is not a CPU list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseCpuSetError {
    /// An item between commas is neither `N` nor `N-M`.
    #[error("`{item}` in a CPU list is neither a number nor a range such as 0-3")]
    Item {
        /// The item, cut after 40 characters.
        item: String,
    },
    /// A range ends before it begins.
    #[error("the range {first}-{last} in a CPU list is the wrong way round")]
    Backwards {
        /// As written.
        first: u32,
        /// As written.
        last: u32,
    },
    /// A number above [`CpuSet::MAX_PARSED`].
    #[error("CPU number {number} in a CPU list is above {}", CpuSet::MAX_PARSED)]
    TooLarge {
        /// The digits, cut after 40 characters.
        number: String,
    },
}

impl CpuSet {
    /// The largest CPU number that is accepted from text. Eight times what any
    /// Linux kernel is configured for; it bounds what hostile text can allocate.
    pub const MAX_PARSED: u32 = 65_535;

    /// The empty set.
    pub const fn new() -> Self {
        CpuSet { words: Vec::new() }
    }

    /// Adds `cpu`; true if it was not there. Grows the bitmap to `cpu / 8` bytes.
    pub fn insert(&mut self, cpu: u32) -> bool {
        let (word, bit) = position(cpu);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Takes `cpu` out; true if it was there.
    pub fn remove(&mut self, cpu: u32) -> bool {
        let (word, bit) = position(cpu);
        let was = self.contains(cpu);
        if was {
            self.words[word] &= !bit;
            self.trim();
        }
        was
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        let (word, bit) = position(cpu);
        self.words.get(word).is_some_and(|w| w & bit != 0)
    }

    /// How many CPUs; O(largest number / 64).
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The numbers in rising order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().zip(0u32..).flat_map(|(&word, i)| {
            // Each step clears the lowest set bit.
            std::iter::successors(Some(word), |w| Some(w & w.wrapping_sub(1)))
                .take_while(|&w| w != 0)
                .map(move |w| i * 64 + w.trailing_zeros())
        })
    }

    /// The smallest number.
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The largest number.
    pub fn last(&self) -> Option<u32> {
        let word = *self.words.last()?;
        Some((self.words.len() as u32 - 1) * 64 + 63 - word.leading_zeros())
    }

    /// The CPUs in both sets.
    #[must_use]
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        self.words
            .iter()
            .zip(&other.words)
            .map(|(a, b)| a & b)
            .collect::<Vec<_>>()
            .into()
    }

    /// The CPUs in either set.
    #[must_use]
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        let (mut long, short) = match self.words.len() >= other.words.len() {
            true => (self.clone(), other),
            false => (other.clone(), self),
        };
        for (a, b) in long.words.iter_mut().zip(&short.words) {
            *a |= b;
        }
        long
    }

    /// The CPUs in this set that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        self.words
            .iter()
            .zip(other.words.iter().chain(std::iter::repeat(&0)))
            .map(|(a, b)| a & !b)
            .collect::<Vec<_>>()
            .into()
    }

    /// 64 CPUs a word, lowest first: the kernel's affinity mask.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    fn insert_range(&mut self, first: u32, last: u32) {
        let (last_word, _) = position(last);
        if last_word >= self.words.len() {
            self.words.resize(last_word + 1, 0);
        }
        let (first_word, _) = position(first);
        for word in first_word..=last_word {
            let from = if word == first_word { first % 64 } else { 0 };
            let to = if word == last_word { last % 64 } else { 63 };
            self.words[word] |= (u64::MAX << from) & (u64::MAX >> (63 - to));
        }
    }

    fn trim(&mut self) {
        let used = self
            .words
            .iter()
            .rposition(|&w| w != 0)
            .map_or(0, |i| i + 1);
        self.words.truncate(used);
    }
}

fn position(cpu: u32) -> (usize, u64) {
    ((cpu / 64) as usize, 1 << (cpu % 64))
}

impl From<Vec<u64>> for CpuSet {
    /// From a mask, 64 CPUs a word, lowest first.
    fn from(words: Vec<u64>) -> Self {
        let mut set = CpuSet { words };
        set.trim();
        set
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = CpuSet::new();
        set.extend(cpus);
        set
    }
}

impl Extend<u32> for CpuSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    /// Reads `0-3,8`. Blank text is the empty set, as in the kernel's `offline` file.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut set = CpuSet::new();
        if text.trim().is_empty() {
            return Ok(set);
        }
        for item in text.split(',').map(str::trim) {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let (first, last) = (number(first, item)?, number(last, item)?);
            if first > last {
                return Err(ParseCpuSetError::Backwards { first, last });
            }
            set.insert_range(first, last);
        }
        Ok(set)
    }
}

fn number(digits: &str, item: &str) -> Result<u32, ParseCpuSetError> {
    let digits = digits.trim();
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ParseCpuSetError::Item {
            item: item.chars().take(40).collect(),
        });
    }
    match digits.parse() {
        Ok(cpu) if cpu <= CpuSet::MAX_PARSED => Ok(cpu),
        _ => Err(ParseCpuSetError::TooLarge {
            number: digits.chars().take(40).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn reads_and_prints_the_kernels_format() {
        for text in ["", "0", "0-3,8", "63-64", "1,3,5", "0-127,256-4095"] {
            assert_eq!(set(text).to_string(), text);
        }
        assert_eq!(set(" 0-1, 1-3 ,8\n").to_string(), "0-3,8");
        assert_eq!(set("\n"), CpuSet::new());
    }

    #[test]
    fn rejects_hostile_text() {
        for text in [
            "0-4294967295",
            "4294967296",
            "99999999999999999999999999",
            "65536",
            "3-1",
            "-1",
            "1-",
            "0-1-2",
            "0,,1",
            ",",
            "+1",
            "0x1",
            "all",
            "0-3:1/2",
            "٣",
        ] {
            assert!(text.parse::<CpuSet>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn removal_leaves_no_trace() {
        let mut cpus = set("0,700");
        assert!(cpus.remove(700));
        assert!(!cpus.remove(700));
        assert_eq!(cpus, set("0"));
        assert_eq!(cpus.last(), Some(0));
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_numbers(
            a in prop::collection::btree_set(0u32..300, 0..60),
            b in prop::collection::btree_set(0u32..300, 0..60),
        ) {
            let (x, y): (CpuSet, CpuSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            let as_set = |s: &CpuSet| s.iter().collect::<BTreeSet<_>>();
            prop_assert_eq!(as_set(&x), a.clone());
            prop_assert_eq!(x.len(), a.len());
            prop_assert_eq!(x.is_empty(), a.is_empty());
            prop_assert_eq!(x.first(), a.first().copied());
            prop_assert_eq!(x.last(), a.last().copied());
            prop_assert_eq!(as_set(&x.intersection(&y)), &a & &b);
            prop_assert_eq!(as_set(&x.union(&y)), &a | &b);
            prop_assert_eq!(as_set(&x.difference(&y)), &a - &b);
            prop_assert_eq!(x == y, a == b);
            prop_assert_eq!(x.to_string().parse::<CpuSet>().unwrap(), x.clone());
            for cpu in 0..310 {
                prop_assert_eq!(x.contains(cpu), a.contains(&cpu));
            }
        }

        #[test]
        fn any_text_gives_a_set_or_an_error(text in "[0-9,\\- \\n]{0,30}|\\PC{0,30}") {
            if let Ok(cpus) = text.parse::<CpuSet>() {
                prop_assert!(cpus.last().is_none_or(|last| last <= CpuSet::MAX_PARSED));
            }
        }
    }
}
