//! `/proc/PID/numa_maps`: the nodes on which the pages of each mapping are.

use std::collections::BTreeMap;

use crate::KIB;
use crate::text::{decimal, hexadecimal, lines, unescape, words};

/// The pages of a mapping, by node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// First address of the mapping.
    pub start: u64,
    /// Policy: `default`, `bind:0-1`, `interleave:0-3`, `prefer:1`, ...
    pub policy: String,
    /// Its file, or empty.
    pub file: String,
    /// Bytes on each node.
    pub bytes: BTreeMap<u32, u64>,
}

/// The mappings in `text` that have pages. Lines that are not understood are passed over.
pub fn parse(text: &[u8]) -> impl Iterator<Item = Placement> {
    lines(text)
        .filter_map(line)
        .filter(|placement| !placement.bytes.is_empty())
}

/// `7f00 default file=/a\040b anon=1 dirty=1 N0=1 N1=7 kernelpagesize_kB=4`
fn line(line: &[u8]) -> Option<Placement> {
    let mut words = words(line);
    let start = hexadecimal(words.next()?)?;
    let policy = String::from_utf8_lossy(words.next()?).into_owned();
    let mut placement = Placement {
        start,
        policy,
        ..Placement::default()
    };
    let mut page = 4 * KIB;
    for word in words {
        let Some(at) = word.iter().position(|&byte| byte == b'=') else {
            continue;
        };
        let (name, value) = (&word[..at], &word[at + 1..]);
        if name == b"file" {
            placement.file = unescape(value);
        } else if name == b"kernelpagesize_kB" {
            page = decimal(value)?.saturating_mul(KIB);
        } else if let Some(node) = name.strip_prefix(b"N").and_then(decimal) {
            let node = u32::try_from(node).ok()?;
            placement.bytes.insert(node, decimal(value)?);
        }
    }
    for pages in placement.bytes.values_mut() {
        *pages = pages.saturating_mul(page);
    }
    Some(placement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pages_are_counted_by_node() {
        let text = b"7f00 default file=/a\\040b anon=1 N0=1 N31=7 kernelpagesize_kB=4\n\
            8000 interleave:0-1 heap anon=2 N0=2 kernelpagesize_kB=2048\n9000 default\nnonsense\n";
        let all: Vec<Placement> = parse(text).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].start, all[0].file.as_str()), (0x7f00, "/a b"));
        assert_eq!(all[0].bytes, BTreeMap::from([(0, 4096), (31, 7 * 4096)]));
        assert_eq!(all[1].policy, "interleave:0-1");
        assert_eq!(all[1].bytes, BTreeMap::from([(0, 4 << 20)]));
    }

    proptest! {
        #[test]
        fn any_line_is_parsed(line in "[0-9a-f]{0,20} [a-z:0-9-]{0,9}( (N|file|kernelpagesize_kB)?[0-9]{0,3}=[0-9\\\\]{0,22}){0,6}") {
            let _ = parse(line.as_bytes()).count();
        }
    }
}
