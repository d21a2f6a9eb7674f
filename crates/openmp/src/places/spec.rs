//! What `OMP_PLACES` and `GOMP_CPU_AFFINITY` say, before it meets a machine.

use super::topology::Level;
use crate::env::text::Text;

/// More places than this are not taken, however they are written.
const PLACES_MAX: u64 = 1 << 16;

/// A description of places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// An abstract name, with the number of places at most.
    Abstract(Level, Option<u64>),
    /// A list, with the exclusions in their order.
    Explicit(Vec<Item>),
    /// CPUs, each of them a place.
    Cpus(Vec<Interval>),
}

/// An item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The place is taken out of those before it.
    pub is_excluded: bool,
    /// The place.
    pub place: Vec<Resource>,
    /// How often it is repeated.
    pub len: u64,
    /// How far apart repetitions are.
    pub stride: i64,
}

/// CPUs of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// They are taken out of the others of the place.
    pub is_excluded: bool,
    /// The CPUs.
    pub cpus: Interval,
}

/// `first`, `first + stride`, ... : `len` CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "said above")]
pub struct Interval {
    pub first: u64,
    pub len: u64,
    pub stride: i64,
}

impl Spec {
    /// Reads `OMP_PLACES`; `None` where it is not well-formed.
    pub fn places(value: &[u8]) -> Option<Self> {
        let mut text = Text::new(value);
        if text.ends() {
            return None;
        }
        let level = text.take_one_of(&[
            ("threads", Level::Threads),
            ("cores", Level::Cores),
            ("sockets", Level::Sockets),
            ("ll_caches", Level::LlCaches),
            ("numa_domains", Level::NumaDomains),
        ]);
        if let Some(level) = level {
            if text.ends() {
                return Some(Self::Abstract(level, None));
            }
            if !text.take(b'(') {
                return None;
            }
            let count = text.unsigned()?;
            text.skip_spaces();
            return (text.take(b')') && text.ends()).then_some(Self::Abstract(level, Some(count)));
        }
        let mut items = vec![];
        let mut places = 0_u64;
        loop {
            let item = item(&mut text)?;
            places += if item.is_excluded { 0 } else { item.len };
            if places > PLACES_MAX {
                return None;
            }
            items.push(item);
            if text.is_empty() {
                return Some(Self::Explicit(items));
            }
            if !text.take(b',') {
                return None;
            }
        }
    }

    /// Reads `GOMP_CPU_AFFINITY`: CPUs and ranges with strides, with spaces or commas between; `None` where it is
    /// not well-formed.
    pub fn cpus(value: &[u8]) -> Option<Self> {
        let mut text = Text::new(value);
        let mut cpus = vec![];
        let mut places = 0;
        loop {
            text.skip_spaces();
            let small = |number: &u64| *number < PLACES_MAX;
            let first = text.unsigned_any_base().filter(small)?;
            let (mut last, mut stride) = (first, 1);
            if text.take(b'-') {
                last = text.unsigned_any_base().filter(small)?;
                if text.take(b':') {
                    stride = text.unsigned_any_base().filter(small)?;
                }
            }
            if last < first || stride == 0 {
                return None;
            }
            let len = (last - first) / stride + 1;
            places += len;
            if places > PLACES_MAX {
                return None;
            }
            cpus.push(Interval {
                first,
                len,
                stride: stride.cast_signed(),
            });
            if text.ends() {
                return Some(Self::Cpus(cpus));
            }
            text.take(b',');
        }
    }
}

/// `[!]{RESOURCES}[:LEN[:STRIDE]]`, or a CPU alone instead of the braces.
fn item(text: &mut Text<'_>) -> Option<Item> {
    text.skip_spaces();
    let is_excluded = text.take(b'!');
    text.skip_spaces();
    let mut place = vec![];
    if text.take(b'{') {
        loop {
            text.skip_spaces();
            place.push(resource(text)?);
            if text.take(b'}') {
                break;
            }
            if !text.take(b',') {
                return None;
            }
        }
    } else {
        let cpus = Interval {
            first: text.unsigned()?,
            len: 1,
            stride: 1,
        };
        place.push(Resource {
            is_excluded: false,
            cpus,
        });
    }
    text.skip_spaces();
    if text.peek() == Some(b':') && is_excluded {
        return None;
    }
    let (len, stride) = len_and_stride(text)?;
    (len < PLACES_MAX).then_some(Item {
        is_excluded,
        place,
        len,
        stride,
    })
}

fn resource(text: &mut Text<'_>) -> Option<Resource> {
    let is_excluded = text.take(b'!');
    text.skip_spaces();
    let first = text.unsigned()?;
    text.skip_spaces();
    if text.peek() == Some(b':') && is_excluded {
        return None;
    }
    let (len, stride) = len_and_stride(text)?;
    let cpus = Interval { first, len, stride };
    Some(Resource { is_excluded, cpus })
}

/// `[:LEN[:STRIDE]]` and the spaces behind.
fn len_and_stride(text: &mut Text<'_>) -> Option<(u64, i64)> {
    let (mut len, mut stride) = (1, 1);
    if text.take(b':') {
        len = text.unsigned().filter(|&len| len > 0)?;
        text.skip_spaces();
        if text.take(b':') {
            stride = text.signed()?;
            text.skip_spaces();
        }
    }
    Some((len, stride))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abstract_names_in_any_case_and_with_spaces() {
        for (text, level, count) in [
            (" Threads ", Level::Threads, None),
            ("CORES(4)", Level::Cores, Some(4)),
            ("sockets ( 2 ) ", Level::Sockets, Some(2)),
            ("ll_caches", Level::LlCaches, None),
            ("numa_domains(+1)", Level::NumaDomains, Some(1)),
        ] {
            let expected = Some(Spec::Abstract(level, count));
            assert_eq!(Spec::places(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn lists_with_lengths_strides_and_exclusions() {
        let text = b" { 0:4:2 , !2 } : 3 : -1 , 7, !{1}";
        let one = |first| Interval {
            first,
            len: 1,
            stride: 1,
        };
        let taken = |cpus| Resource {
            is_excluded: false,
            cpus,
        };
        let expected = vec![
            Item {
                is_excluded: false,
                place: vec![
                    taken(Interval {
                        first: 0,
                        len: 4,
                        stride: 2,
                    }),
                    Resource {
                        is_excluded: true,
                        cpus: one(2),
                    },
                ],
                len: 3,
                stride: -1,
            },
            Item {
                is_excluded: false,
                place: vec![taken(one(7))],
                len: 1,
                stride: 1,
            },
            Item {
                is_excluded: true,
                place: vec![taken(one(1))],
                len: 1,
                stride: 1,
            },
        ];
        assert_eq!(Spec::places(text), Some(Spec::Explicit(expected)));
    }

    #[test]
    fn what_is_not_well_formed_is_refused() {
        for text in [
            "",
            " ",
            "core",
            "threads(",
            "threads()",
            "threads(2",
            "threads(2)x",
            "{",
            "{}",
            "{0",
            "{0:}",
            "{0:0}",
            "{0:1:}",
            "{0},",
            "{0}:0",
            "{0}:65536",
            "!{0}:2",
            "{0},!{1}:1",
            "{!1:2}",
            "{0}{1}",
            "{a}",
            "{0}:65535,{0}:2",
            "{18446744073709551616}",
            "{0:1:9223372036854775808}",
        ] {
            assert_eq!(Spec::places(text.as_bytes()), None, "{text:?}");
        }
        for text in [
            "",
            "x",
            "1-",
            "3-1",
            "0-4:0",
            "65536",
            "0-65535,0",
            "1,,2",
            "1;2",
            "1,",
        ] {
            assert_eq!(Spec::cpus(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn cpus_in_three_bases() {
        let interval = |first, len, stride| Interval { first, len, stride };
        let expected = vec![interval(0, 1, 1), interval(3, 3, 2), interval(16, 1, 1)];
        assert_eq!(Spec::cpus(b" 0 3-010:2,0x10 "), Some(Spec::Cpus(expected)));
    }
}
