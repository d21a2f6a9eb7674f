//! `/etc/ld.so.cache`: which libraries there are, as `ldconfig` has found them.
//!
//! The format is glibc's own (its `dl-cache.h`): a header of 48 bytes, an entry of 24 bytes for each
//! library, and strings; offsets count from the header. Older systems have a table of another
//! format before it.

use std::collections::HashMap;
use std::path::PathBuf;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
const OLD_HEADER_BYTES: usize = 16;
const OLD_ENTRY_BYTES: usize = 12;
const NAME_BYTES_MAX: usize = 4096;

/// Names and paths of libraries, best first for each name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cache {
    paths: HashMap<String, Vec<PathBuf>>,
}

impl Cache {
    /// Reads the file's bytes. `None` if it is of no known format; entries that point nowhere are
    /// left out.
    pub fn parse(bytes: &[u8]) -> Option<Cache> {
        let bytes = if bytes.starts_with(OLD_MAGIC) {
            let count = usize::try_from(word(bytes, 12)?).ok()?;
            let end = count
                .checked_mul(OLD_ENTRY_BYTES)?
                .checked_add(OLD_HEADER_BYTES)?;
            bytes.get(end.checked_next_multiple_of(8)?..)?
        } else {
            bytes
        };
        if !bytes.starts_with(MAGIC) || bytes.len() < HEADER_BYTES {
            return None;
        }
        let count = usize::try_from(word(bytes, 20)?).ok()?;
        // No more entries than there are bytes for, whatever the count says.
        let entries = bytes[HEADER_BYTES..].chunks_exact(ENTRY_BYTES).take(count);
        let mut cache = Cache::default();
        for entry in entries {
            let (Some(name), Some(path)) = (
                word(entry, 4).and_then(|at| text(bytes, at)),
                word(entry, 8).and_then(|at| text(bytes, at)),
            ) else {
                continue;
            };
            cache.paths.entry(name).or_default().push(path.into());
        }
        Some(cache)
    }

    /// Where the library of this name is: for several machines perhaps, or kinds of one.
    pub fn paths(&self, name: &str) -> &[PathBuf] {
        self.paths.get(name).map_or(&[], Vec::as_slice)
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }
}

/// In the order of bytes of this machine: the file is made on it.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}

fn text(bytes: &[u8], at: u32) -> Option<String> {
    let bytes = bytes.get(usize::try_from(at).ok()?..)?;
    let len = bytes
        .iter()
        .take(NAME_BYTES_MAX)
        .position(|&byte| byte == 0)?;
    let text = std::str::from_utf8(&bytes[..len]).ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(entries: &[(&str, &str)], prefix: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((entries.len() as u32).to_ne_bytes());
        bytes.resize(HEADER_BYTES, 0);
        let mut strings = Vec::new();
        let begin = HEADER_BYTES + entries.len() * ENTRY_BYTES;
        for (name, path) in entries {
            let mut at = |text: &str| {
                let at = (begin + strings.len()) as u32;
                strings.extend(text.bytes().chain([0]));
                at.to_ne_bytes()
            };
            bytes.extend([0; 4]);
            bytes.extend(at(name));
            bytes.extend(at(path));
            bytes.extend([0; 12]);
        }
        bytes.extend(strings);
        [prefix, &bytes].concat()
    }

    #[test]
    fn reads_both_formats() {
        let entries = [
            ("liba.so.1", "/lib/liba.so.1"),
            ("libb.so", "/b"),
            ("liba.so.1", "/lib32/liba.so.1"),
        ];
        let mut old = OLD_MAGIC.to_vec();
        old.resize(12, 0);
        old.extend(1_u32.to_ne_bytes());
        old.resize(32, 0); // one entry, and up to a multiple of 8
        for prefix in [&b""[..], &old] {
            let cache = Cache::parse(&cache(&entries, prefix)).expect("a cache");
            assert_eq!(cache.len(), 2);
            let paths = cache.paths("liba.so.1");
            assert_eq!(
                paths,
                ["/lib/liba.so.1", "/lib32/liba.so.1"].map(PathBuf::from)
            );
            assert!(cache.paths("libc").is_empty());
        }
    }

    #[test]
    fn nonsense_is_refused_or_left_out() {
        assert_eq!(Cache::parse(b""), None);
        assert_eq!(Cache::parse(MAGIC), None);
        let mut bytes = cache(&[("liba.so.1", "/lib/liba.so.1")], b"");
        // A count beyond the file, and a name beyond it.
        bytes[20..24].fill(0xff);
        assert_eq!(Cache::parse(&bytes).expect("a cache").len(), 1);
        bytes[HEADER_BYTES + 4..HEADER_BYTES + 8].fill(0xff);
        assert!(Cache::parse(&bytes).expect("a cache").is_empty());
        let mut old = OLD_MAGIC.to_vec();
        old.resize(12, 0);
        old.extend([0xff; 40]);
        assert_eq!(Cache::parse(&old), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>, cut in 0_usize..200, at in 0_usize..200, byte: u8) {
            let _ = Cache::parse(&bytes);
            let mut damaged = cache(&[("liba.so.1", "/lib/liba.so.1"), ("b", "/b")], b"");
            let at = at % damaged.len();
            damaged[at] = byte;
            damaged.truncate(damaged.len().min(cut));
            let _ = Cache::parse(&damaged);
        }
    }
}
