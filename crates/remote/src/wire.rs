//! The bytes on the wire: frames to and from their fields. Pure; DESIGN.md has the layout.
//!
//! Whoever is at the other end is not trusted: a frame is refused unless all of it is right, and no length that it names is
//! allocated unless this side asked for as much.

use std::ops::Range;

use amdahl_pager::is_zero as is_zero_page;
use thiserror::Error;

use crate::PAGE;

/// What a connection begins with, from both sides.
pub const MAGIC: [u8; 8] = *b"amdpages";
/// What is spoken here.
pub const VERSION: u16 = 2;
/// Bytes of a [hello](hello).
pub const HELLO: usize = 16;
/// Bytes of what follows a hello where a secret is shown: the secret and a checksum.
pub const SHOWN: usize = 36;
/// Bytes of a [`Welcome`].
pub const WELCOME: usize = 48;
/// Bytes of a [`Request`].
pub const REQUEST: usize = 24;
/// Bytes of an [`AnswerHead`].
pub const ANSWER: usize = 20;
/// The most bytes that one request asks for.
pub const READ_MAX: u32 = 256 << 10;
/// The most bytes of bits that one request asks for: of 64 GiB.
pub const MAP_MAX: u32 = 4096;
/// The most ranges of a working set.
pub const SET_MAX: u32 = 1 << 20;
/// The most ranges that one request asks for.
pub const SET_STEP: u32 = 4096;
/// Bytes of one of them: its first page and how many they are.
pub const SET_RANGE: u32 = 16;
/// The most runs of one answer: one for each page, and one more at each end that is no page.
const RUNS_MAX: usize = READ_MAX as usize / 4096 + 2;
/// The most bytes that say why something failed.
const REASON_MAX: u32 = 256;
/// The bit of a run that is all zero.
const ZERO: u32 = 1 << 31;

/// Bytes that are not what this version of the protocol allows.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// Nobody who speaks this protocol.
    #[error("the other side does not speak the page protocol")]
    Magic,
    /// Another version.
    #[error("the other side speaks version {0} of the page protocol, not {VERSION}")]
    Version(u16),
    /// A checksum is wrong.
    #[error("damaged on the way: the checksum of {0} is wrong")]
    Checksum(&'static str),
    /// A field has a value that it may not have.
    #[error("{field} may not be {value}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it is.
        value: u64,
    },
}

fn field<T>(field: &'static str, value: u64) -> Result<T, WireError> {
    Err(WireError::Field { field, value })
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("N bytes")
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(part(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(part(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(part(bytes, at))
}

/// Writes the checksum of all before it into the last four bytes.
pub fn seal(bytes: &mut [u8]) {
    let end = bytes.len() - 4;
    let crc = crc32c::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
}

fn sealed(bytes: &[u8], what: &'static str) -> Result<(), WireError> {
    let end = bytes.len() - 4;
    match crc32c::crc32c(&bytes[..end]) == u32_at(bytes, end) {
        true => Ok(()),
        false => Err(WireError::Checksum(what)),
    }
}

fn magic(bytes: &[u8]) -> Result<(), WireError> {
    if bytes[..8] != MAGIC {
        return Err(WireError::Magic);
    }
    match u16_at(bytes, 8) {
        VERSION => Ok(()),
        other => Err(WireError::Version(other)),
    }
}

/// The first words of who asks.
pub fn hello() -> [u8; HELLO] {
    let mut bytes = [0; HELLO];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    seal(&mut bytes);
    bytes
}

/// Whether these are the first words of somebody who may ask.
///
/// # Errors
/// [`WireError`].
pub fn check_hello(bytes: &[u8; HELLO]) -> Result<(), WireError> {
    magic(bytes)?;
    sealed(bytes, "the greeting")
}

/// What only those know who may ask. Is not printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What follows the hello of who has a secret to show.
pub fn show(secret: &Secret) -> [u8; SHOWN] {
    let mut bytes = [0; SHOWN];
    bytes[..32].copy_from_slice(&secret.0);
    seal(&mut bytes);
    bytes
}

/// Whether that is the secret. Takes as long whatever is wrong with it, so that nobody finds it out byte by byte.
pub fn is_shown(secret: &Secret, bytes: &[u8; SHOWN]) -> bool {
    let ours = show(secret);
    let differ = ours.iter().zip(bytes).map(|(ours, theirs)| ours ^ theirs);
    std::hint::black_box(differ.fold(0, |all, one| all | one)) == 0
}

/// What a memory is known by: who has another one has other content.
pub type Identity = [u8; 16];

/// The first words of who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Bytes of the memory.
    pub len: u64,
    /// Which memory.
    pub identity: Identity,
    /// Ranges of its working set; 0 where none is known.
    pub set: u32,
}

impl Welcome {
    /// As bytes.
    pub fn bytes(&self) -> [u8; WELCOME] {
        let mut bytes = [0; WELCOME];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.identity);
        bytes[40..44].copy_from_slice(&self.set.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Of bytes.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn of(bytes: &[u8; WELCOME]) -> Result<Welcome, WireError> {
        magic(bytes)?;
        sealed(bytes, "the greeting")?;
        let len = u64_at(bytes, 16);
        if len > 1 << 62 {
            return field("the length of the memory", len);
        }
        let set = u32_at(bytes, 40);
        if set > SET_MAX {
            return field("the ranges of a working set", set.into());
        }
        Ok(Welcome {
            len,
            identity: part(bytes, 24),
            set,
        })
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Content.
    Read,
    /// Which huge pages hold anything but zeros: a bit for each, from the one of `offset` on, `len` bytes of bits.
    Map,
    /// The working set: `len` ranges of it, from the one with the number `offset` on.
    Set,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the answer is known by.
    pub id: u32,
    /// What for.
    pub ask: Ask,
    /// Somebody waits for it: it goes before those for which nobody does.
    pub is_urgent: bool,
    /// From which byte of the memory on, or from which range of the working set.
    pub offset: u64,
    /// Bytes; 1 to [`READ_MAX`], or [`MAP_MAX`] of a map. Ranges of the working set: 1 to [`SET_STEP`].
    pub len: u32,
}

impl Request {
    /// As bytes.
    pub fn bytes(&self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[..4].copy_from_slice(&self.id.to_le_bytes());
        bytes[4] = match self.ask {
            Ask::Read => 1,
            Ask::Map => 2,
            Ask::Set => 3,
        };
        bytes[5] = self.is_urgent.into();
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Of bytes.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn of(bytes: &[u8; REQUEST]) -> Result<Request, WireError> {
        sealed(bytes, "a request")?;
        let request = Request {
            id: u32_at(bytes, 0),
            ask: match bytes[4] {
                1 => Ask::Read,
                2 => Ask::Map,
                3 => Ask::Set,
                other => return field("what is asked for", other.into()),
            },
            is_urgent: match bytes[5] {
                0 => false,
                1 => true,
                other => return field("the urgency", other.into()),
            },
            offset: u64_at(bytes, 8),
            len: u32_at(bytes, 16),
        };
        let len_max = match request.ask {
            Ask::Read => READ_MAX,
            Ask::Map => MAP_MAX,
            Ask::Set => SET_STEP,
        };
        if request.len == 0 || request.len > len_max {
            return field("the length of a request", request.len.into());
        }
        if request.offset > 1 << 62 {
            return field("the offset of a request", request.offset);
        }
        Ok(request)
    }

    /// The most bytes that may follow the head of its answer.
    pub fn answer_max(&self) -> u32 {
        let bytes = match self.ask {
            Ask::Read => self.len + 2 + 4 * RUNS_MAX as u32,
            Ask::Map => self.len,
            Ask::Set => self.len * SET_RANGE,
        };
        bytes.max(REASON_MAX)
    }
}

/// Why there is no content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The memory ends before.
    Short,
    /// What was stored is damaged.
    Corrupt,
    /// It is gone for good.
    Gone,
    /// It could not be read now.
    Failed,
}

/// How an answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    /// Of which request.
    pub id: u32,
    /// `Err`: there is no content, and what follows says why, for people.
    pub is: Result<(), Refusal>,
    /// Bytes that follow.
    pub len: u32,
    /// Their checksum.
    pub crc: u32,
}

impl AnswerHead {
    /// As bytes.
    pub fn bytes(&self) -> [u8; ANSWER] {
        let mut bytes = [0; ANSWER];
        bytes[..4].copy_from_slice(&self.id.to_le_bytes());
        bytes[4] = match self.is {
            Ok(()) => 0,
            Err(Refusal::Short) => 1,
            Err(Refusal::Corrupt) => 2,
            Err(Refusal::Gone) => 3,
            Err(Refusal::Failed) => 4,
        };
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.crc.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Of bytes. Whether the length is one that was asked for, the caller knows ([`Request::answer_max`]).
    ///
    /// # Errors
    /// [`WireError`].
    pub fn of(bytes: &[u8; ANSWER]) -> Result<AnswerHead, WireError> {
        sealed(bytes, "the head of an answer")?;
        Ok(AnswerHead {
            id: u32_at(bytes, 0),
            is: match bytes[4] {
                0 => Ok(()),
                1 => Err(Refusal::Short),
                2 => Err(Refusal::Corrupt),
                3 => Err(Refusal::Gone),
                4 => Err(Refusal::Failed),
                other => return field("the kind of an answer", other.into()),
            },
            len: u32_at(bytes, 8),
            crc: u32_at(bytes, 12),
        })
    }
}

/// An answer without content, with its head. Of `reason` what fits is kept.
pub fn refusal(id: u32, why: Refusal, reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(REASON_MAX as usize);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut answer = vec![0; ANSWER];
    answer.extend_from_slice(&reason.as_bytes()[..end]);
    finish(&mut answer, id, Err(why));
    answer
}

/// An answer of which the first [`ANSWER`] bytes are still to be written.
fn finish(answer: &mut [u8], id: u32, is: Result<(), Refusal>) {
    let (head, payload) = answer.split_at_mut(ANSWER);
    let fields = AnswerHead {
        id,
        is,
        len: u32::try_from(payload.len()).expect("bounded by what was asked for"),
        crc: crc32c::crc32c(payload),
    };
    head.copy_from_slice(&fields.bytes());
}

/// Makes an answer of bits.
pub fn map_answer(id: u32, bits: &[u8]) -> Vec<u8> {
    let mut answer = vec![0; ANSWER];
    answer.extend_from_slice(bits);
    finish(&mut answer, id, Ok(()));
    answer
}

/// Makes an answer of ranges of pages.
pub fn set_answer(id: u32, ranges: &[Range<u64>]) -> Vec<u8> {
    let mut answer = vec![0; ANSWER];
    for range in ranges {
        answer.extend_from_slice(&range.start.to_le_bytes());
        answer.extend_from_slice(&(range.end - range.start).to_le_bytes());
    }
    finish(&mut answer, id, Ok(()));
    answer
}

/// The ranges of what follows the head of such an answer, of a memory of so many pages.
///
/// # Errors
/// [`WireError`]: a range is empty or not within the memory.
pub fn set_of(payload: &[u8], pages: u64) -> Result<Vec<Range<u64>>, WireError> {
    let (ranges, rest) = payload.as_chunks::<{ SET_RANGE as usize }>();
    if !rest.is_empty() {
        return field("the length of a working set", payload.len() as u64);
    }
    let range = |bytes: &[u8; SET_RANGE as usize]| {
        let (first, count) = (u64_at(bytes, 0), u64_at(bytes, 8));
        match first.checked_add(count) {
            Some(end) if count > 0 && end <= pages => Ok(first..end),
            _ => field("a page of the working set", first),
        }
    };
    ranges.iter().map(range).collect()
}

/// Makes an answer of content: runs of zeros, which are only told, and runs of bytes.
pub struct Content {
    answer: Vec<u8>,
    runs: Vec<(u32, bool)>,
}

impl Content {
    /// Of the runs of `len` bytes, in order: how many bytes, and whether all are zero. Neighbours of one kind become one; when
    /// there are more runs than an answer may have, those that come later are of bytes.
    pub fn new(len: u32, of: impl IntoIterator<Item = (u32, bool)>) -> Content {
        let mut runs: Vec<(u32, bool)> = Vec::new();
        let mut left = len;
        for (bytes, is_zero) in of {
            let bytes = bytes.min(left);
            left -= bytes;
            let is_zero = is_zero && runs.len() + 1 < RUNS_MAX;
            match runs.last_mut() {
                _ if bytes == 0 => {}
                Some((before, kind)) if *kind == is_zero => *before += bytes,
                _ => runs.push((bytes, is_zero)),
            }
        }
        assert_eq!(left, 0, "runs are of all that was asked for");
        let mut answer = vec![0; ANSWER];
        answer.extend_from_slice(&(runs.len() as u16).to_le_bytes());
        for &(bytes, is_zero) in &runs {
            let word = bytes | if is_zero { ZERO } else { 0 };
            answer.extend_from_slice(&word.to_le_bytes());
        }
        Content { answer, runs }
    }

    /// The whole answer: `read(at, into)` fills the runs of bytes, `at` being how far from the beginning of what was asked for. What turns out to be pages of
    /// zeros is only told, too; `offset` says where pages begin, being that of the beginning in the memory.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn fill<E>(
        mut self,
        id: u32,
        offset: u64,
        mut read: impl FnMut(u32, &mut [u8]) -> Result<(), E>,
    ) -> Result<Vec<u8>, E> {
        let bytes = |&(bytes, is_zero): &(u32, bool)| if is_zero { 0 } else { bytes as usize };
        let mut end = self.answer.len();
        self.answer
            .resize(end + self.runs.iter().map(bytes).sum::<usize>(), 0);
        let mut at = 0;
        for run in &self.runs {
            let len = bytes(run);
            if len > 0 {
                read(at, &mut self.answer[end..end + len])?;
            }
            end += len;
            at += run.0;
        }
        let mut answer = self.without_zeros(offset);
        finish(&mut answer, id, Ok(()));
        Ok(answer)
    }

    /// The answer with pages of zeros that are among its runs of bytes as runs of zeros; without any it stays as it is.
    fn without_zeros(self, offset: u64) -> Vec<u8> {
        let Content { answer, runs } = self;
        let mut content = &answer[ANSWER + 2 + 4 * runs.len()..];
        let (mut at, mut pieces, mut stored) = (offset, Vec::new(), Vec::new());
        let mut has_zeros = false;
        for (bytes, is_zero) in runs {
            let end = at + u64::from(bytes);
            if is_zero {
                pieces.push((bytes, true));
                at = end;
            }
            while at < end {
                let len = ((at / PAGE + 1) * PAGE).min(end) - at;
                let (piece, rest) = content.split_at(len as usize);
                let is_zero = is_zero_page(piece);
                match is_zero {
                    true => has_zeros = true,
                    false => stored.push(piece),
                }
                pieces.push((len as u32, is_zero));
                (content, at) = (rest, at + len);
            }
        }
        let len = (at - offset) as u32;
        let mut less = Content::new(len, pieces);
        // With more runs than there may be some zeros are not told, and their bytes would be missed.
        if !has_zeros || less.runs.len() + 1 >= RUNS_MAX {
            return answer;
        }
        stored
            .iter()
            .for_each(|piece| less.answer.extend_from_slice(piece));
        less.answer
    }
}

/// The content of an answer.
#[derive(Debug)]
pub struct Runs<'a> {
    runs: Vec<(u32, bool)>,
    content: &'a [u8],
}

impl<'a> Runs<'a> {
    /// Of what follows the head of an answer to a request for `len` bytes.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn of(payload: &'a [u8], len: u32) -> Result<Runs<'a>, WireError> {
        let Some((count, rest)) = payload.split_first_chunk::<2>() else {
            return field("the length of an answer", payload.len() as u64);
        };
        let count = usize::from(u16::from_le_bytes(*count));
        if count > RUNS_MAX {
            return field("the number of runs", count as u64);
        }
        let Some((table, content)) = rest.split_at_checked(4 * count) else {
            return field("the number of runs", count as u64);
        };
        let words = table.chunks_exact(4).map(|word| u32_at(word, 0));
        let runs: Vec<_> = words.map(|word| (word & !ZERO, word & ZERO != 0)).collect();
        // Sums of less than 2^9 numbers below 2^31.
        let all: u64 = runs.iter().map(|&(bytes, _)| u64::from(bytes)).sum();
        let stored = runs.iter().filter(|(_, is_zero)| !is_zero);
        let stored: u64 = stored.map(|&(bytes, _)| u64::from(bytes)).sum();
        if all != u64::from(len) {
            return field("the sum of the runs", all);
        }
        if stored != content.len() as u64 {
            return field("the content of the runs", stored);
        }
        Ok(Runs { runs, content })
    }

    /// Puts the content where it belongs; `into` is as long as what was asked for.
    pub fn copy_to(&self, into: &mut [u8]) {
        let (mut content, mut at) = (self.content, 0);
        for &(bytes, is_zero) in &self.runs {
            let range: Range<usize> = at..at + bytes as usize;
            at = range.end;
            if is_zero {
                into[range].fill(0);
            } else {
                let (here, rest) = content.split_at(bytes as usize);
                into[range].copy_from_slice(here);
                content = rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn requests() -> impl Strategy<Value = Request> {
        const ASKS: &[(Ask, u32)] = &[
            (Ask::Read, READ_MAX),
            (Ask::Map, MAP_MAX),
            (Ask::Set, SET_STEP),
        ];
        (
            any::<u32>(),
            prop::sample::select(ASKS),
            any::<bool>(),
            0..=1_u64 << 62,
            1..=READ_MAX,
        )
            .prop_map(|(id, (ask, most), is_urgent, offset, len)| Request {
                id,
                ask,
                is_urgent,
                offset,
                len: len.min(most),
            })
    }

    proptest! {
        #[test]
        fn requests_come_back(request in requests()) {
            prop_assert_eq!(Request::of(&request.bytes()), Ok(request));
        }

        #[test]
        fn one_changed_bit_is_found(request in requests(), bit in 0..REQUEST * 8) {
            let mut bytes = request.bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Request::of(&bytes), Err(WireError::Checksum("a request")));
        }

        #[test]
        fn welcomes_come_back(len in 0..=1_u64 << 62, identity: Identity, set in 0..=SET_MAX) {
            let welcome = Welcome { len, identity, set };
            prop_assert_eq!(Welcome::of(&welcome.bytes()), Ok(welcome));
        }

        #[test]
        fn content_comes_back(runs in prop::collection::vec((1..3000_u32, any::<bool>()), 0..80), offset in 0..3 * PAGE, id: u32) {
            let len: u32 = runs.iter().map(|run| run.0).sum();
            let mut memory = Vec::new();
            for &(bytes, is_zero) in &runs {
                let next = memory.len();
                memory.extend((0..bytes as usize).map(|at| if is_zero { 0 } else { (next + at) as u8 }));
            }
            let read = |at: u32, into: &mut [u8]| {
                into.copy_from_slice(&memory[at as usize..][..into.len()]);
                Ok::<(), ()>(())
            };
            let answer = Content::new(len, runs).fill(id, offset, read).unwrap();
            let (head, payload) = answer.split_first_chunk::<ANSWER>().unwrap();
            let head = AnswerHead::of(head).unwrap();
            prop_assert_eq!(head.id, id);
            prop_assert_eq!(head.is, Ok(()));
            prop_assert_eq!(head.len as usize, payload.len());
            prop_assert_eq!(head.crc, crc32c::crc32c(payload));
            let asked = Request { id, ask: Ask::Read, is_urgent: false, offset: 0, len };
            prop_assert!(head.len <= asked.answer_max());
            let mut into = vec![1; len as usize];
            Runs::of(payload, len).unwrap().copy_to(&mut into);
            prop_assert_eq!(into, memory);
        }

        #[test]
        fn working_sets_come_back(ranges in prop::collection::vec((0..=1_u64 << 62, 1..=1_u64 << 62), 0..80), id: u32) {
            let ranges: Vec<_> = ranges.into_iter().map(|(first, count)| first..first + count).collect();
            let answer = set_answer(id, &ranges);
            let (head, payload) = answer.split_first_chunk::<ANSWER>().unwrap();
            prop_assert_eq!(AnswerHead::of(head).unwrap().crc, crc32c::crc32c(payload));
            let last = ranges.iter().map(|range| range.end).max();
            prop_assert_eq!(set_of(payload, u64::MAX), Ok(ranges));
            if let Some(last) = last {
                prop_assert!(set_of(payload, last).is_ok());
                prop_assert!(set_of(payload, last - 1).is_err());
                prop_assert!(set_of(&payload[1..], last).is_err());
            }
        }

        /// Whatever comes is refused or fits what was asked for; nothing panics.
        #[test]
        fn any_payload_is_safe(payload in prop::collection::vec(any::<u8>(), 0..200), len in 1..READ_MAX) {
            if let Ok(runs) = Runs::of(&payload, len) {
                runs.copy_to(&mut vec![0; len as usize]);
            }
        }
    }

    #[test]
    fn runs_of_another_length_are_refused() {
        let answer = Content::new(8, [(4, true), (4, false)])
            .fill(1, 0, |_, into| {
                into.fill(7);
                Ok::<(), ()>(())
            })
            .unwrap();
        let payload = &answer[ANSWER..];
        assert!(Runs::of(payload, 8).is_ok());
        assert_eq!(
            Runs::of(payload, 9).unwrap_err(),
            WireError::Field {
                field: "the sum of the runs",
                value: 8
            }
        );
        assert!(Runs::of(&payload[..payload.len() - 1], 8).is_err());
    }

    #[test]
    fn strangers_and_other_versions_are_told_apart() {
        assert_eq!(check_hello(&hello()), Ok(()));
        assert_eq!(check_hello(b"GET / HTTP/1.1\r\n"), Err(WireError::Magic));
        let mut later = hello();
        later[8] = 3;
        assert_eq!(check_hello(&later), Err(WireError::Version(3)));
    }

    #[test]
    fn ranges_that_cannot_be_are_refused() {
        let bytes = |first: u64, count: u64| [first.to_le_bytes(), count.to_le_bytes()].concat();
        assert_eq!(set_of(&bytes(7, 3), 10).unwrap().first(), Some(&(7..10)));
        for (first, count) in [(7, 0), (7, 4), (10, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(set_of(&bytes(first, count), 10).is_err(), "{first} {count}");
        }
        let welcome = Welcome {
            len: 1,
            identity: [0; 16],
            set: SET_MAX + 1,
        };
        assert!(Welcome::of(&welcome.bytes()).is_err());
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let answer = refusal(3, Refusal::Gone, &"ä".repeat(300));
        let (head, reason) = answer.split_first_chunk::<ANSWER>().unwrap();
        assert_eq!(AnswerHead::of(head).unwrap().is, Err(Refusal::Gone));
        assert_eq!(std::str::from_utf8(reason).unwrap(), "ä".repeat(128));
    }
}
