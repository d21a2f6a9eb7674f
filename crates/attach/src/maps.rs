//! Where a program has its memory, by `/proc/PID/smaps`. Pure but for [`of`].

use std::ops::Range;

use amdahl_pager::{BLOCK, HandedOver};

use crate::Error;

/// A mapping of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Addresses.
    pub range: Range<usize>,
    /// Whether others who map the same file see what is written.
    pub is_shared: bool,
    /// Whether it may be written.
    pub is_writable: bool,
    /// Where in its file it begins.
    pub offset: u64,
    /// Its file, or what the kernel calls it; empty for memory without either.
    pub name: String,
    /// Bytes of its pages.
    pub page_bytes: usize,
}

/// Memory that is to be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its address.
    pub start: usize,
    /// Bytes.
    pub len: usize,
    /// Where in the source its content begins.
    pub source_offset: u64,
    /// Whether it is shared memory.
    pub is_shared: bool,
    /// Bytes of its pages.
    pub page_bytes: usize,
}

impl Place {
    pub(crate) fn region(&self) -> HandedOver {
        HandedOver {
            start: self.start,
            len: self.len,
            source_offset: self.source_offset,
            page_bytes: self.page_bytes,
        }
    }
}

/// Places in so many parts of about as many bytes, cut at multiples of 2 MiB in memory; fewer parts where there are fewer of those, one at least.
pub(crate) fn in_parts(places: &[Place], parts: usize) -> Vec<Vec<Place>> {
    let all: usize = places.iter().map(|place| place.len).sum();
    let most = all.div_ceil(parts.max(1)).max(BLOCK);
    let mut done: Vec<Vec<Place>> = vec![Vec::new()];
    let mut room = most;
    for place in places {
        let mut at = place.start;
        let end = place.start + place.len;
        while at < end {
            if room == 0 {
                done.push(Vec::new());
                room = most;
            }
            // Beyond its room, up to the end of a huge page.
            let to = at.saturating_add(room).checked_next_multiple_of(BLOCK);
            let to = to.map_or(end, |to| to.min(end));
            let last = done.len() - 1;
            done[last].push(Place {
                start: at,
                len: to - at,
                source_offset: place.source_offset + (at - place.start) as u64,
                ..*place
            });
            room = room.saturating_sub(to - at);
            at = to;
        }
    }
    done
}

/// What is told of mappings, line by line; what is not understood is passed over.
pub fn parse(smaps: &str) -> Vec<Map> {
    let mut maps: Vec<Map> = Vec::new();
    for line in smaps.lines() {
        if let Some(map) = head(line) {
            maps.push(map);
        } else if let Some(size) = line.strip_prefix("KernelPageSize:")
            && let Some(map) = maps.last_mut()
            && let Some(kib) = size
                .split_whitespace()
                .next()
                .and_then(|kib| kib.parse::<usize>().ok())
        {
            map.page_bytes = kib.saturating_mul(1024);
        }
    }
    maps
}

/// `7f00-7f10 rw-s 00000000 00:01 1234    /memfd:name (deleted)`
fn head(line: &str) -> Option<Map> {
    let mut rest = line;
    let mut word = || {
        let trimmed = rest.trim_start();
        let end = trimmed.find(' ').unwrap_or(trimmed.len());
        let (word, after) = trimmed.split_at(end);
        rest = after;
        (!word.is_empty()).then_some(word)
    };
    let (start, end) = word()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let address = |text: &str| hex(text).and_then(|at| usize::try_from(at).ok());
    let range = address(start)?..address(end)?;
    let rights = word()?;
    let offset = hex(word()?)?;
    let (_device, _inode) = (word()?, word()?);
    (rights.len() == 4 && range.start < range.end).then(|| Map {
        range,
        is_shared: rights.ends_with('s'),
        is_writable: rights.as_bytes()[1] == b'w',
        offset,
        name: rest.trim_start().to_owned(),
        page_bytes: 4096,
    })
}

/// The mappings of a process.
///
/// # Errors
/// [`Error::Gone`], [`Error::Refused`].
pub fn of(pid: u32) -> Result<Vec<Map>, Error> {
    let smaps = std::fs::read(format!("/proc/{pid}/smaps"));
    let smaps = smaps.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Error::Refused { pid },
        _ => Error::Gone { pid },
    })?;
    Ok(parse(&String::from_utf8_lossy(&smaps)))
}

/// The places of writable mappings whose name contains `name`; or of the one that begins at an address, where `name` is that in hexadecimal (`0x...`).
/// Each holds what the source has from `source_offset` on, and, further, from where its own file has it.
pub fn places(maps: &[Map], name: &str, source_offset: u64) -> Vec<Place> {
    let address = name
        .strip_prefix("0x")
        .and_then(|hex| usize::from_str_radix(hex, 16).ok());
    let is_it = |map: &&Map| {
        map.is_writable
            && match address {
                Some(address) => map.range.start == address,
                None => !name.is_empty() && map.name.contains(name),
            }
    };
    let place = |map: &Map| Place {
        start: map.range.start,
        len: map.range.len(),
        // Memory without a file has none to be at.
        source_offset: source_offset.saturating_add(if map.name.starts_with('/') {
            map.offset
        } else {
            0
        }),
        is_shared: map.is_shared,
        page_bytes: map.page_bytes,
    };
    maps.iter().filter(is_it).map(place).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0004000000 rw-s 00000000 00:01 2053                       /memfd:memory-backend-memfd (deleted)
Size:              65536 kB
KernelPageSize:        4 kB
7f0010000000-7f0010400000 rw-s 00400000 00:10 9                          /anon_hugepage a b
KernelPageSize:     2048 kB
7f0020000000-7f0020001000 r--p 00000000 fe:00 77                         /usr/lib/memory-backend-memfd.so
7f0030000000-7f0030001000 rw-p 00000000 00:00 0 
VmFlags: rd wr mr
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn mappings_are_read_and_found_by_name_or_address() {
        let maps = parse(SMAPS);
        assert_eq!(maps.len(), 5);
        assert_eq!(maps[0].name, "/memfd:memory-backend-memfd (deleted)");
        assert!(maps[0].is_shared && maps[0].is_writable && !maps[2].is_writable);
        assert_eq!((maps[1].page_bytes, maps[1].offset), (2 << 20, 4 << 20));
        assert_eq!(maps[1].name, "/anon_hugepage a b");
        assert_eq!(maps[3].name, "");

        let found = places(&maps, "memory-backend", 0);
        assert_eq!(
            found.len(),
            1,
            "what cannot be written is no memory of a guest"
        );
        assert_eq!((found[0].start, found[0].len), (0x7f00_0000_0000, 64 << 20));
        assert_eq!(
            places(&maps, "anon_huge", 4096)[0].source_offset,
            (4 << 20) + 4096
        );
        let found = places(&maps, "0x7f0030000000", 8192);
        assert_eq!((found[0].source_offset, found[0].is_shared), (8192, false));
        for nothing in ["", "0x1", "0xzz", "elsewhere"] {
            assert!(places(&maps, nothing, 0).is_empty(), "{nothing}");
        }
    }

    proptest! {
        #[test]
        fn parts_are_all_of_it_once_cut_at_huge_pages(
            sizes in proptest::collection::vec((0usize..600, 1usize..3000), 1..5), parts in 0usize..9,
        ) {
            let (mut at, mut places) = (1usize << 30, Vec::new());
            for (gap, pages) in sizes {
                at += gap * 4096;
                places.push(Place {
                    start: at,
                    len: pages * 4096,
                    source_offset: at as u64 * 3,
                    is_shared: false,
                    page_bytes: 4096,
                });
                at += pages * 4096;
            }
            let done = in_parts(&places, parts);
            prop_assert!((1..=parts.max(1)).contains(&done.len()));
            prop_assert!(done.iter().all(|part| !part.is_empty()));
            let mut joined: Vec<Place> = Vec::new();
            for piece in done.concat() {
                match joined.last_mut() {
                    Some(last) if last.start + last.len == piece.start
                        && last.source_offset + last.len as u64 == piece.source_offset
                        && !places.iter().any(|place| place.start == piece.start) => {
                        prop_assert!(piece.start.is_multiple_of(BLOCK));
                        last.len += piece.len;
                    }
                    _ => joined.push(piece),
                }
            }
            prop_assert_eq!(joined, places.clone());
            // About as many bytes: a block more at most, and in all but the last no less.
            let all: usize = places.iter().map(|place| place.len).sum();
            let most = all.div_ceil(parts.max(1)).max(BLOCK);
            for part in &done {
                let bytes: usize = part.iter().map(|place| place.len).sum();
                prop_assert!(bytes < most + BLOCK);
            }
        }
    }

    #[test]
    fn odd_lines_are_passed_over() {
        for odd in [
            "",
            "x",
            "1-2",
            "2-1 rw-p 0 0 0",
            "zz-zz rw-p 0 0:0 0",
            "1-2 rw 0 0:0 0",
            "KernelPageSize: 4 kB",
        ] {
            assert!(parse(odd).is_empty(), "{odd}");
        }
    }
}
