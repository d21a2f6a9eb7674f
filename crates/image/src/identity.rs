//! Which memory an image holds, whatever it is packed with.

use std::fmt;
use std::str::FromStr;

use crate::layout::PageKind;

/// A BLAKE3 hash over the content of a layer's memory and the identity of its base.
///
/// Compression, cluster size, the sharing of equal pages and sections leave it as it is, so a base that was packed anew still fits
/// the layers upon it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub [u8; 32]);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({self})")
    }
}

/// The text is not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an identity has 64 hexadecimal digits")]
pub struct ParseIdentityError;

impl FromStr for Identity {
    type Err = ParseIdentityError;

    fn from_str(text: &str) -> Result<Identity, ParseIdentityError> {
        let mut identity = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ParseIdentityError);
        }
        for (byte, digits) in identity.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| ParseIdentityError)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| ParseIdentityError)?;
        }
        Ok(Identity(identity))
    }
}

/// The digest of a group: what its pages are, then the content of those that have some.
pub(crate) fn group_digest<'a>(
    kinds: &[PageKind],
    contents: impl Iterator<Item = &'a [u8]>,
) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let kinds: Vec<u8> = kinds.iter().map(|kind| *kind as u8).collect();
    hasher.update(&kinds);
    for content in contents {
        hasher.update(content);
    }
    hasher.finalize().into()
}

/// Adds the digests of groups up, in their order.
pub(crate) struct IdentityHasher(blake3::Hasher);

impl IdentityHasher {
    pub fn new(base: Option<Identity>) -> IdentityHasher {
        let mut hasher = blake3::Hasher::new_derive_key("amdahl-image 2026-11-22 identity 1");
        hasher.update(&base.map_or([0; 32], |base| base.0));
        IdentityHasher(hasher)
    }

    pub fn add(&mut self, digest: &[u8; 32]) {
        self.0.update(digest);
    }

    pub fn finish(mut self, memory_bytes: u64) -> Identity {
        self.0.update(&memory_bytes.to_le_bytes());
        Identity(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_and_read_again_it_is_the_same() {
        let identity = Identity(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(identity.to_string().parse(), Ok(identity));
        for wrong in ["", "00", &"g".repeat(64), &"+f".repeat(32)] {
            assert_eq!(wrong.parse::<Identity>(), Err(ParseIdentityError));
        }
    }

    #[test]
    fn every_part_counts() {
        let page = [7; 4096];
        let digest = |kinds: &[PageKind]| group_digest(kinds, std::iter::once(&page[..]));
        let data = digest(&[PageKind::Data, PageKind::Zero]);
        assert_ne!(data, digest(&[PageKind::Zero, PageKind::Data]));
        assert_ne!(data, digest(&[PageKind::Data, PageKind::Absent]));
        let of = |base, bytes| {
            let mut hasher = IdentityHasher::new(base);
            hasher.add(&data);
            hasher.finish(bytes)
        };
        assert_ne!(of(None, 8192), of(None, 4096));
        assert_ne!(of(None, 8192), of(Some(Identity([1; 32])), 8192));
    }
}
