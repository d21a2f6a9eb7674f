//! The message: a JSON array of regions. Pure.

use serde::{Deserialize, Serialize};

use crate::{BLOCK, HandedOver, PAGE};

/// Bytes of a message at most.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Regions of a VM at most.
pub const REGIONS_MAX: usize = 1024;
/// User space ends before, on all machines that are served.
const ADDRESSES_END: u64 = 1 << 56;

/// Why a message is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// It is not what is spoken here.
    #[error(
        "the message begins with byte {0:#04x} and not with the `[` of a list of regions: this is not Firecracker's hand-off (Cloud Hypervisor's migration protocol is not served)"
    )]
    Foreign(u8),
    /// It is a list no longer.
    #[error("the message is no list of regions: {0}")]
    Json(String),
    /// It does not end.
    #[error("the message is longer than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// Something comes after its end.
    #[error("something follows the list of regions")]
    Trailing,
    /// It names no memory.
    #[error("the list of regions is empty")]
    NoRegions,
    /// It names too many.
    #[error("there are {0} regions; {REGIONS_MAX} are possible")]
    TooManyRegions(usize),
    /// A region cannot be.
    #[error("region {number} (counted from 0): {wrong}")]
    Region {
        /// Its place in the list, from 0.
        number: usize,
        /// Why.
        wrong: Wrong,
    },
}

/// Why a region cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    /// Pages are of another size.
    #[error("its page_size is {0}; 4096 and 2097152 are possible")]
    PageSize(u64),
    /// It has no bytes.
    #[error("its size is 0")]
    Empty,
    /// It has parts of pages.
    #[error("its size {0} is no multiple of its page size")]
    Size(u64),
    /// It begins in the middle of a page.
    #[error("its base_host_virt_addr {0:#x} is no multiple of its page size")]
    Address(u64),
    /// It begins in the middle of a page of the source.
    #[error("its offset {0} is no multiple of 4096")]
    Offset(u64),
    /// It ends behind all addresses.
    #[error("it ends beyond the last address")]
    Beyond,
    /// The source is shorter.
    #[error(
        "it ends at byte {end} of the image, which has {source_bytes}: is this the image of that snapshot?"
    )]
    Source {
        /// Where it ends in the source.
        end: u64,
        /// Where the source ends.
        source_bytes: u64,
    },
    /// Two are in one place.
    #[error("it overlaps region {0}")]
    Overlap(usize),
    /// Two have the same content: a VM would be larger than its image.
    #[error("it has a part of the image that region {0} has already")]
    SameContent(usize),
}

/// A region as it is sent. Fields that are not known are passed over: newer versions add some.
#[derive(Deserialize, Serialize)]
struct Sent {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    page_size: Option<u64>,
    /// The older name. It says KiB, and what is sent are bytes.
    #[serde(skip_serializing)]
    page_size_kib: Option<u64>,
}

/// The message that names regions: what [`parse`] reads.
pub fn describe(regions: &[HandedOver]) -> String {
    let sent = regions.iter().map(|region| Sent {
        base_host_virt_addr: region.start as u64,
        size: region.len as u64,
        offset: region.source_offset,
        page_size: Some(region.page_bytes as u64),
        page_size_kib: None,
    });
    serde_json::to_string(&sent.collect::<Vec<_>>()).expect("numbers become text")
}

/// A message that comes in pieces: knows its end without being told how long it is, at a constant cost for each byte.
#[derive(Clone, Debug, Default)]
pub struct Message {
    bytes: Vec<u8>,
    depth: u32,
    in_text: bool,
    is_escaped: bool,
    is_whole: bool,
}

impl Message {
    /// One of which nothing has come.
    pub fn new() -> Message {
        Message::default()
    }

    /// The next piece; whether the message is whole.
    ///
    /// # Errors
    /// [`Malformed`], as soon as no further byte could make it a message.
    pub fn push(&mut self, piece: &[u8]) -> Result<bool, Malformed> {
        for &byte in piece {
            let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
            if self.is_whole {
                if !is_space {
                    return Err(Malformed::Trailing);
                }
                continue;
            }
            if self.depth == 0 && byte != b'[' {
                if is_space && self.bytes.len() < MESSAGE_BYTES_MAX {
                    self.bytes.push(byte);
                    continue;
                }
                return Err(match is_space {
                    true => Malformed::TooLong,
                    false => Malformed::Foreign(byte),
                });
            }
            if self.bytes.len() == MESSAGE_BYTES_MAX {
                return Err(Malformed::TooLong);
            }
            self.bytes.push(byte);
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_text => self.is_escaped = true,
                b'"' => self.in_text = !self.in_text,
                _ if self.in_text => {}
                b'[' | b'{' => self.depth += 1,
                b']' | b'}' => {
                    self.depth -= 1;
                    self.is_whole = self.depth == 0;
                }
                _ => {}
            }
        }
        Ok(self.is_whole)
    }

    /// What has come.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The regions that a message names, for a source of so many bytes, in the order in which they were named. They are of whole pages, do not
/// overlap, neither in memory nor in the source, and lie within the source, of which the last page may be short.
///
/// # Errors
/// [`Malformed`].
pub fn parse(message: &[u8], source_bytes: u64) -> Result<Vec<HandedOver>, Malformed> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(Malformed::TooLong);
    }
    let sent: Vec<Sent> =
        serde_json::from_slice(message).map_err(|error| Malformed::Json(error.to_string()))?;
    match sent.len() {
        0 => return Err(Malformed::NoRegions),
        count @ (..=REGIONS_MAX) => count,
        count => return Err(Malformed::TooManyRegions(count)),
    };
    let region = |number| move |wrong| Malformed::Region { number, wrong };
    let regions = sent
        .iter()
        .enumerate()
        .map(|(number, sent)| checked(sent, source_bytes).map_err(region(number)))
        .collect::<Result<Vec<HandedOver>, Malformed>>()?;
    let place = |at: &HandedOver| (at.start as u64, at.len as u64);
    if let Some((first, second)) = overlap(&regions, place) {
        return Err(region(second)(Wrong::Overlap(first)));
    }
    let content = |at: &HandedOver| (at.source_offset, at.len as u64);
    if let Some((first, second)) = overlap(&regions, content) {
        return Err(region(second)(Wrong::SameContent(first)));
    }
    Ok(regions)
}

fn checked(sent: &Sent, source_bytes: u64) -> Result<HandedOver, Wrong> {
    let page_bytes = match sent.page_size.or(sent.page_size_kib) {
        // Firecracker before 1.7 has no other pages and says nothing.
        None => PAGE,
        // No size of a page in bytes, so it was meant as the name says.
        Some(4) => PAGE,
        Some(2048) => BLOCK,
        Some(bytes) if bytes == PAGE as u64 => PAGE,
        Some(bytes) if bytes == BLOCK as u64 => BLOCK,
        Some(other) => return Err(Wrong::PageSize(other)),
    };
    let unit = page_bytes as u64;
    if sent.size == 0 {
        return Err(Wrong::Empty);
    }
    if !sent.size.is_multiple_of(unit) {
        return Err(Wrong::Size(sent.size));
    }
    if !sent.base_host_virt_addr.is_multiple_of(unit) {
        return Err(Wrong::Address(sent.base_host_virt_addr));
    }
    if !sent.offset.is_multiple_of(PAGE as u64) {
        return Err(Wrong::Offset(sent.offset));
    }
    let end = sent.base_host_virt_addr.checked_add(sent.size);
    if end.is_none_or(|end| end > ADDRESSES_END) {
        return Err(Wrong::Beyond);
    }
    let end = sent.offset.saturating_add(sent.size);
    let whole = source_bytes.checked_next_multiple_of(PAGE as u64);
    if end > whole.unwrap_or(source_bytes) {
        return Err(Wrong::Source { end, source_bytes });
    }
    let size = |bytes: u64| usize::try_from(bytes).map_err(|_| Wrong::Beyond);
    Ok(HandedOver {
        start: size(sent.base_host_virt_addr)?,
        len: size(sent.size)?,
        source_offset: sent.offset,
        page_bytes,
    })
}

/// Two regions that overlap, by number, the smaller first.
fn overlap(
    regions: &[HandedOver],
    range: impl Fn(&HandedOver) -> (u64, u64),
) -> Option<(usize, usize)> {
    let mut order: Vec<usize> = (0..regions.len()).collect();
    order.sort_by_key(|number| range(&regions[*number]));
    order.windows(2).find_map(|two| {
        let (start, len) = range(&regions[two[0]]);
        let (next, _) = range(&regions[two[1]]);
        (start + len > next).then(|| (two[0].min(two[1]), two[0].max(two[1])))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn one(text: &str) -> Result<Vec<HandedOver>, Malformed> {
        parse(format!("[{text}]").as_bytes(), 16 * MIB)
    }

    fn wrong(text: &str) -> Wrong {
        match one(text) {
            Err(Malformed::Region { wrong, .. }) => wrong,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn all_forms_that_were_ever_sent_are_read() {
        let region = HandedOver {
            start: 0x7f00_0000_0000,
            len: 4 << 20,
            source_offset: MIB,
            page_bytes: PAGE,
        };
        let huge = HandedOver {
            page_bytes: BLOCK,
            ..region
        };
        let other = HandedOver {
            start: 1 << 40,
            source_offset: 8 * MIB,
            ..region
        };
        let said = describe(&[other, region]);
        assert_eq!(parse(said.as_bytes(), 16 * MIB), Ok(vec![other, region]));
        let base = r#""base_host_virt_addr":139637976727552,"size":4194304,"offset":1048576"#;
        for (more, expected) in [
            ("", region),
            (r#","page_size_kib":4096"#, region),
            (r#","page_size":4096,"page_size_kib":4096"#, region),
            (r#","page_size":2097152,"page_size_kib":2097152"#, huge),
            (r#","page_size_kib":2097152"#, huge),
            (r#","page_size_kib":2048"#, huge),
            (r#","page_size":4096,"numa_node":[1,{"a":null}]"#, region),
        ] {
            assert_eq!(
                one(&format!("{{{base}{more}}}")),
                Ok(vec![expected]),
                "{more}"
            );
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        let text = |address: u64, size: u64, offset: u64, page: u64| {
            format!(
                r#"{{"base_host_virt_addr":{address},"size":{size},"offset":{offset},"page_size":{page}}}"#
            )
        };
        let end = 17 * MIB;
        for (text, expected) in [
            (text(0x10000, MIB, 0, 8192), Wrong::PageSize(8192)),
            (text(0x10000, 0, 0, 4096), Wrong::Empty),
            (text(0x10000, 4097, 0, 4096), Wrong::Size(4097)),
            (text(0x10000, MIB, 0, 2 * MIB), Wrong::Size(MIB)),
            (text(0x10001, MIB, 0, 4096), Wrong::Address(0x10001)),
            (text(MIB, 2 * MIB, 0, 2 * MIB), Wrong::Address(MIB)),
            (text(0x10000, MIB, 7, 4096), Wrong::Offset(7)),
            (text(u64::MAX - 4095, 4096, 0, 4096), Wrong::Beyond),
            (text(1 << 56, 4096, 0, 4096), Wrong::Beyond),
            (
                text(0x10000, MIB, 16 * MIB, 4096),
                Wrong::Source {
                    end,
                    source_bytes: 16 * MIB,
                },
            ),
            (
                text(0x10000, 4096, u64::MAX - 4095, 4096),
                Wrong::Source {
                    end: u64::MAX,
                    source_bytes: 16 * MIB,
                },
            ),
        ] {
            assert_eq!(wrong(&text), expected, "{text}");
        }
        let two = |a: String, b: String| one(&format!("{a},{b}"));
        let region = |number, wrong| Err(Malformed::Region { number, wrong });
        let (a, b) = (text(MIB, MIB, 0, 4096), text(MIB + 4096, MIB, MIB, 4096));
        assert_eq!(two(a, b), region(1, Wrong::Overlap(0)));
        let (a, b) = (text(9 * MIB, MIB, MIB, 4096), text(MIB, 2 * MIB, 0, 4096));
        assert_eq!(two(a, b), region(1, Wrong::SameContent(0)));
        assert_eq!(one(""), Err(Malformed::NoRegions));
        let many = vec![text(MIB, MIB, 0, 4096); REGIONS_MAX + 1].join(",");
        assert_eq!(one(&many), Err(Malformed::TooManyRegions(REGIONS_MAX + 1)));
        for text in [
            "{}",
            "[1]",
            r#"[{"size":1}]"#,
            "[",
            "",
            r#"[{"base_host_virt_addr":-1,"size":4096,"offset":0}]"#,
        ] {
            let refused = parse(text.as_bytes(), MIB);
            assert!(
                matches!(refused, Err(Malformed::Json(_))),
                "{text}: {refused:?}"
            );
        }
    }

    #[test]
    fn a_source_whose_last_page_is_short_is_whole() {
        let text = r#"[{"base_host_virt_addr":65536,"size":8192,"offset":0}]"#;
        assert!(parse(text.as_bytes(), 4097).is_ok());
        assert!(parse(text.as_bytes(), 4096).is_err());
    }

    #[test]
    fn the_end_of_a_message_is_where_its_list_ends() {
        let text = br#" [ {"a":"]\"}[\\"}, [] ] "#;
        let mut message = Message::new();
        let whole: Vec<bool> = text
            .iter()
            .map(|byte| message.push(&[*byte]).unwrap())
            .collect();
        assert_eq!(whole.iter().position(|whole| *whole), Some(text.len() - 2));
        assert_eq!(message.push(b"x"), Err(Malformed::Trailing));
        assert_eq!(Message::new().push(b"{}"), Err(Malformed::Foreign(b'{')));
        assert_eq!(Message::new().push(&[1, 0]), Err(Malformed::Foreign(1)));
        let mut endless = Message::new();
        let spaces = vec![b' '; MESSAGE_BYTES_MAX];
        assert_eq!(endless.push(&spaces), Ok(false));
        assert_eq!(endless.push(b" "), Err(Malformed::TooLong));
        let mut endless = Message::new();
        let open = vec![b'['; MESSAGE_BYTES_MAX];
        assert_eq!(endless.push(&open), Ok(false));
        assert_eq!(endless.push(b"]"), Err(Malformed::TooLong));
    }

    proptest! {
        #[test]
        fn however_it_is_cut_it_is_the_same_message(bytes in "[\\[\\]{}\", \\\\a]{0,40}", cuts in proptest::collection::vec(0usize..40, 0..6)) {
            let bytes = bytes.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut <= bytes.len()).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let mut whole = Message::new();
            let at_once = whole.push(bytes);
            let (mut pieces, mut from, mut last) = (Message::new(), 0, Ok(false));
            for cut in cuts {
                last = pieces.push(&bytes[from..cut]);
                from = cut;
                if last.is_err() { break; }
            }
            prop_assert_eq!(&last, &at_once);
            prop_assert_eq!(pieces.bytes(), whole.bytes());
        }

        #[test]
        fn what_is_taken_is_disjoint_and_inside(regions in proptest::collection::vec((0u64..40, 0u64..12, 0u64..40), 1..6)) {
            let texts: Vec<String> = regions.iter().map(|(at, size, offset)| {
                format!(r#"{{"base_host_virt_addr":{},"size":{},"offset":{}}}"#, 65536 + at * 4096, size * 4096, offset * 4096)
            }).collect();
            let touch = |a: (u64, u64), b: (u64, u64)| a.0 < b.0 + b.1 && b.0 < a.0 + a.1;
            let is_good = regions.iter().all(|(_, size, offset)| *size > 0 && offset + size <= 32)
                && (0..regions.len()).all(|i| (0..i).all(|j| {
                    let ((a, b, c), (d, e, f)) = (regions[i], regions[j]);
                    !touch((a, b), (d, e)) && !touch((c, b), (f, e))
                }));
            let parsed = parse(format!("[{}]", texts.join(",")).as_bytes(), 32 * 4096);
            prop_assert_eq!(parsed.is_ok(), is_good, "{:?}", parsed);
        }
    }
}
