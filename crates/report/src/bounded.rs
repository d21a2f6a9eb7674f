//! Lists of untrusted length: `{},` is three bytes in a file and hundreds in memory.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

/// Reads a list of which at most `MAX + 1` entries are kept: the one too many tells
/// [`check`](crate::check::check) that there were more, so that it can name the place.
pub(crate) fn bounded<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(Bounded::<T, MAX>(PhantomData))
}

struct Bounded<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Bounded<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
        let mut kept = Vec::new();
        while kept.len() <= MAX {
            match entries.next_element()? {
                Some(entry) => kept.push(entry),
                None => return Ok(kept),
            }
        }
        while entries.next_element::<IgnoredAny>()?.is_some() {}
        Ok(kept)
    }
}
