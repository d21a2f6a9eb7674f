//! The bytes on the wire: frames to and from messages. Pure; DESIGN.md has the layout.
//!
//! Whoever is at the other end is not trusted: a frame is refused unless all of it is right, and none is longer than
//! [`PAYLOAD_MAX`], which is all that is allocated for one.

use std::ops::Range;

use thiserror::Error;

/// What the first message begins with.
pub const MAGIC: [u8; 8] = *b"amdmigra";
/// What is spoken here.
pub const VERSION: u16 = 1;
/// Bytes before each payload.
pub const HEAD: usize = 16;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// The most pages of one message.
pub const PAGES_MAX: usize = 64;
/// The most bytes of state in one message.
pub const STATE_MAX: usize = 256 << 10;
/// The most runs in one message.
pub const RUNS_MAX: usize = 16 << 10;
/// The most bytes that say why.
pub const REASON_MAX: usize = 256;
/// The most bytes behind a head.
pub const PAYLOAD_MAX: usize = 24 + PAGES_MAX * PAGE;
/// The largest memory.
pub const LEN_MAX: u64 = 64 << 40;

/// Bytes that are not what this version of the protocol allows.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// Nobody who speaks this protocol.
    #[error("the other side does not speak the migration protocol")]
    Magic,
    /// Another version.
    #[error("the other side speaks version {0} of the migration protocol, not {VERSION}")]
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
    /// A message that has no place here.
    #[error("{0} came where it has no place")]
    Unexpected(&'static str),
}

fn field<T>(field: &'static str, value: u64) -> Result<T, WireError> {
    Err(WireError::Field { field, value })
}

/// Which memory it is, told in the beginning and checked where its pages are fetched.
pub type Identity = [u8; 16];

pub use amdahl_remote::Secret;

/// What makes each proof another one.
pub type Nonce = [u8; 32];
/// That a side knows identity and secret, without a word of them.
pub type Proof = [u8; 32];

/// What is said. The first eleven go to the destination, the others to the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The first word.
    Hello {
        /// Bytes of the memory.
        len: u64,
        /// Which memory.
        identity: Identity,
        /// Known to the two sides alone, as far as the connection is.
        secret: Secret,
    },
    /// Content.
    Pages(Pages<'a>),
    /// All pages of a round have been sent.
    RoundEnd {
        /// Which.
        round: u32,
    },
    /// The next bytes of the state.
    State(&'a [u8]),
    /// More pages that are to be fetched, in rising order.
    Missing(Vec<Range<u64>>),
    /// All is said: the memory can be taken over.
    Switch(Switch),
    /// The source will never run again.
    Commit,
    /// The source goes on instead, or nobody does.
    Cancel(&'a str),
    /// The first word on a later connection: the source, whose guest has left, is back.
    Resume {
        /// Never the same.
        nonce: Nonce,
    },
    /// It is the source of this migration.
    Proof {
        /// That it knows what only the two sides know.
        proof: Proof,
        /// Where pages are served now; 0 if none are.
        port: u16,
    },
    /// It has heard that it is not needed any more.
    Farewell,
    /// The first answer.
    Welcome,
    /// All pages until the end of a round are in their places.
    Ack {
        /// Which.
        round: u32,
    },
    /// The destination can run, and will as soon as it may.
    Prepared,
    /// It may, and does.
    Running,
    /// It is alive.
    Progress {
        /// Pages that it lacks still.
        missing: u64,
    },
    /// It needs the source no more.
    Done,
    /// It does not take the memory.
    Refused(&'a str),
    /// Whoever is back is to prove who it is, and this is the destination of its migration.
    Challenge {
        /// Never the same.
        nonce: Nonce,
        /// That it knows what only the two sides know.
        proof: Proof,
    },
    /// It goes on from there.
    Resumed {
        /// Pages that it lacks still.
        missing: u64,
    },
}

/// Pages that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages<'a> {
    /// The first.
    pub first: u64,
    /// How many, 1 to [`PAGES_MAX`].
    pub count: u32,
    /// A bit for each that is all zero.
    pub zeros: u64,
    /// The others, one after the other.
    pub content: &'a [u8],
}

impl<'a> Pages<'a> {
    /// Each page: `None` for zeros.
    pub fn each(&self) -> impl Iterator<Item = (u64, Option<&'a [u8]>)> {
        let (first, zeros) = (self.first, self.zeros);
        let mut content = self.content.chunks_exact(PAGE);
        (0..u64::from(self.count)).map(move |nth| match zeros >> nth & 1 {
            1 => (first + nth, None),
            _ => (first + nth, content.next()),
        })
    }
}

/// What the destination needs besides what came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Bytes of the state.
    pub state_bytes: u64,
    /// Its checksum.
    pub state_crc: u32,
    /// Pages that are to be fetched.
    pub missing: u64,
    /// Where they are served; 0 if there are none.
    pub port: u16,
}

impl Message<'_> {
    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Hello { .. } => "a greeting",
            Message::Pages(_) => "pages",
            Message::RoundEnd { .. } => "the end of a round",
            Message::State(_) => "state",
            Message::Missing(_) => "a list of pages",
            Message::Switch(_) => "a switch-over",
            Message::Commit => "a commitment",
            Message::Cancel(_) => "a cancellation",
            Message::Resume { .. } => "a return",
            Message::Proof { .. } => "a proof",
            Message::Farewell => "a farewell",
            Message::Welcome => "a welcome",
            Message::Ack { .. } => "the receipt of a round",
            Message::Prepared => "readiness",
            Message::Running => "a take-over",
            Message::Progress { .. } => "progress",
            Message::Done => "the end",
            Message::Refused(_) => "a refusal",
            Message::Challenge { .. } => "a challenge",
            Message::Resumed { .. } => "a resumption",
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Message::Hello { .. } => 1,
            Message::Pages(_) => 2,
            Message::RoundEnd { .. } => 3,
            Message::State(_) => 4,
            Message::Missing(_) => 5,
            Message::Switch(_) => 6,
            Message::Commit => 7,
            Message::Cancel(_) => 8,
            Message::Resume { .. } => 9,
            Message::Proof { .. } => 10,
            Message::Farewell => 11,
            Message::Welcome => 16,
            Message::Ack { .. } => 17,
            Message::Prepared => 18,
            Message::Running => 19,
            Message::Progress { .. } => 20,
            Message::Done => 21,
            Message::Refused(_) => 22,
            Message::Challenge { .. } => 23,
            Message::Resumed { .. } => 24,
        }
    }

    /// Its frame, into `frame`, in the place of what was there.
    ///
    /// # Panics
    /// If it says more than one message may.
    pub fn frame(&self, frame: &mut Vec<u8>) {
        frame.clear();
        frame.resize(HEAD, 0);
        match self {
            Message::Hello {
                len,
                identity,
                secret,
            } => {
                frame.extend(MAGIC);
                frame.extend(VERSION.to_le_bytes());
                frame.extend([0; 6]);
                frame.extend(len.to_le_bytes());
                frame.extend(identity);
                frame.extend(secret.0);
            }
            Message::Pages(pages) => {
                frame.extend(pages.first.to_le_bytes());
                frame.extend(u64::from(pages.count).to_le_bytes());
                frame.extend(pages.zeros.to_le_bytes());
                frame.extend(pages.content);
            }
            Message::RoundEnd { round } | Message::Ack { round } => {
                frame.extend(round.to_le_bytes());
            }
            Message::State(bytes) => frame.extend(*bytes),
            Message::Missing(runs) => {
                for run in runs {
                    frame.extend(run.start.to_le_bytes());
                    frame.extend(run.end.to_le_bytes());
                }
            }
            Message::Switch(switch) => {
                frame.extend(switch.state_bytes.to_le_bytes());
                frame.extend(switch.missing.to_le_bytes());
                frame.extend(switch.state_crc.to_le_bytes());
                frame.extend(switch.port.to_le_bytes());
                frame.extend([0; 2]);
            }
            Message::Welcome => {
                frame.extend(MAGIC);
                frame.extend(VERSION.to_le_bytes());
            }
            Message::Progress { missing } | Message::Resumed { missing } => {
                frame.extend(missing.to_le_bytes());
            }
            Message::Resume { nonce } => {
                frame.extend(MAGIC);
                frame.extend(VERSION.to_le_bytes());
                frame.extend([0; 6]);
                frame.extend(nonce);
            }
            Message::Challenge { nonce, proof } => {
                frame.extend(nonce);
                frame.extend(proof);
            }
            Message::Proof { proof, port } => {
                frame.extend(proof);
                frame.extend(port.to_le_bytes());
                frame.extend([0; 6]);
            }
            Message::Cancel(why) | Message::Refused(why) => {
                let mut end = why.len().min(REASON_MAX);
                while !why.is_char_boundary(end) {
                    end -= 1;
                }
                frame.extend(&why.as_bytes()[..end]);
            }
            Message::Commit
            | Message::Farewell
            | Message::Prepared
            | Message::Running
            | Message::Done => {}
        }
        seal(self.kind(), frame);
    }

    /// Of what follows a head.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn of(kind: u8, payload: &[u8]) -> Result<Message<'_>, WireError> {
        let len = payload.len() as u64;
        let exactly = |expected: usize| match payload.len() == expected {
            true => Ok(()),
            false => field("the length of a message", len),
        };
        let u64_at = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().expect("8"));
        let u32_at = |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().expect("4"));
        let u16_at = |at: usize| u16::from_le_bytes(payload[at..at + 2].try_into().expect("2"));
        let word_at = |at: usize| payload[at..at + 32].try_into().expect("32");
        let kept_for_later = |bytes: Range<usize>| match payload[bytes.clone()].iter().max() {
            None | Some(0) => Ok(()),
            Some(&value) => field("what is kept for later", value.into()),
        };
        let greeted = || {
            if payload.len() < 10 || payload[..8] != MAGIC {
                return Err(WireError::Magic);
            }
            match u16_at(8) {
                VERSION => Ok(()),
                other => Err(WireError::Version(other)),
            }
        };
        let reason = || {
            if payload.len() > REASON_MAX {
                return field("the length of a reason", len);
            }
            // It is shown to people: what would move their cursor is not passed on.
            let text = str::from_utf8(payload).unwrap_or("for a reason that is no text");
            Ok(match text.chars().any(char::is_control) {
                true => "for a reason that is no text",
                false => text,
            })
        };
        Ok(match kind {
            1 => {
                greeted()?;
                exactly(72)?;
                if payload[10..16] != [0; 6] {
                    return field("what is kept for later", u64_at(8));
                }
                let len = u64_at(16);
                if len == 0 || len > LEN_MAX || !len.is_multiple_of(PAGE as u64) {
                    return field("the length of the memory", len);
                }
                let identity = payload[24..40].try_into().expect("16");
                let secret = Secret(payload[40..72].try_into().expect("32"));
                Message::Hello {
                    len,
                    identity,
                    secret,
                }
            }
            2 => {
                if payload.len() < 24 {
                    return field("the length of a message", len);
                }
                let (first, count, zeros) = (u64_at(0), u64_at(8), u64_at(16));
                if count == 0 || count > PAGES_MAX as u64 {
                    return field("the number of pages", count);
                }
                if first > LEN_MAX {
                    return field("the first page", first);
                }
                if zeros & !(u64::MAX >> (64 - count)) != 0 {
                    return field("the zero pages", zeros);
                }
                exactly(24 + (count as usize - zeros.count_ones() as usize) * PAGE)?;
                Message::Pages(Pages {
                    first,
                    count: count as u32,
                    zeros,
                    content: &payload[24..],
                })
            }
            3 | 17 => {
                exactly(4)?;
                let round = u32_at(0);
                match kind {
                    3 => Message::RoundEnd { round },
                    _ => Message::Ack { round },
                }
            }
            4 => {
                if payload.is_empty() || payload.len() > STATE_MAX {
                    return field("the length of a message", len);
                }
                Message::State(payload)
            }
            5 => {
                let count = payload.len() / 16;
                exactly(count * 16)?;
                if count == 0 || count > RUNS_MAX {
                    return field("the number of runs", count as u64);
                }
                let runs: Vec<_> = (0..count)
                    .map(|nth| u64_at(16 * nth)..u64_at(16 * nth + 8))
                    .collect();
                let mut end = 0;
                for (nth, run) in runs.iter().enumerate() {
                    // Neighbours are one run.
                    if run.start < end || nth > 0 && run.start == end || run.start >= run.end {
                        return field("the start of a run", run.start);
                    }
                    end = run.end;
                }
                Message::Missing(runs)
            }
            6 => {
                exactly(24)?;
                let (missing, port) = (u64_at(8), u16_at(20));
                if u16_at(22) != 0 {
                    return field("what is kept for later", u16_at(22).into());
                }
                if (missing == 0) != (port == 0) {
                    return field("the port of the pages", port.into());
                }
                Message::Switch(Switch {
                    state_bytes: u64_at(0),
                    state_crc: u32_at(16),
                    missing,
                    port,
                })
            }
            16 => {
                greeted()?;
                exactly(10)?;
                Message::Welcome
            }
            20 | 24 => {
                exactly(8)?;
                let missing = u64_at(0);
                match kind {
                    20 => Message::Progress { missing },
                    _ => Message::Resumed { missing },
                }
            }
            9 => {
                greeted()?;
                exactly(48)?;
                kept_for_later(10..16)?;
                Message::Resume { nonce: word_at(16) }
            }
            10 => {
                exactly(40)?;
                kept_for_later(34..40)?;
                Message::Proof {
                    proof: word_at(0),
                    port: u16_at(32),
                }
            }
            23 => {
                exactly(64)?;
                Message::Challenge {
                    nonce: word_at(0),
                    proof: word_at(32),
                }
            }
            8 => Message::Cancel(reason()?),
            22 => Message::Refused(reason()?),
            7 | 11 | 18 | 19 | 21 => {
                exactly(0)?;
                match kind {
                    7 => Message::Commit,
                    11 => Message::Farewell,
                    18 => Message::Prepared,
                    19 => Message::Running,
                    _ => Message::Done,
                }
            }
            other => return field("the kind of a message", other.into()),
        })
    }
}

/// Writes the head of a frame, of which all but that is there.
///
/// # Panics
/// If the frame is longer than it may be, or shorter than a head.
pub fn seal(kind: u8, frame: &mut [u8]) {
    let (head, payload) = frame.split_at_mut(HEAD);
    assert!(payload.len() <= PAYLOAD_MAX);
    head[0] = kind;
    head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    head[8..12].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    let crc = crc32c::crc32c(&head[..12]);
    head[12..].copy_from_slice(&crc.to_le_bytes());
}

/// How a frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Of the message.
    pub kind: u8,
    /// Bytes that follow, [`PAYLOAD_MAX`] at most.
    pub len: usize,
    crc: u32,
}

impl Head {
    /// Of bytes.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn of(bytes: &[u8; HEAD]) -> Result<Head, WireError> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4"));
        if crc32c::crc32c(&bytes[..12]) != word(12) {
            return Err(WireError::Checksum("the head of a message"));
        }
        if bytes[1..4] != [0; 3] {
            return field("what is kept for later", word(0).into());
        }
        let len = word(4) as usize;
        if len > PAYLOAD_MAX {
            return field("the length of a message", len as u64);
        }
        Ok(Head {
            kind: bytes[0],
            len,
            crc: word(8),
        })
    }

    /// Whether what followed is what was sent.
    ///
    /// # Errors
    /// [`WireError::Checksum`].
    pub fn check(&self, payload: &[u8]) -> Result<(), WireError> {
        match crc32c::crc32c(payload) == self.crc {
            true => Ok(()),
            false => Err(WireError::Checksum("a message")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(message: &Message) {
        let mut frame = Vec::new();
        message.frame(&mut frame);
        let head = Head::of(frame[..HEAD].try_into().unwrap()).unwrap();
        assert_eq!(head.len, frame.len() - HEAD);
        head.check(&frame[HEAD..]).unwrap();
        assert_eq!(&Message::of(head.kind, &frame[HEAD..]).unwrap(), message);
    }

    #[test]
    fn what_is_said_is_understood() {
        let content = vec![7; 2 * PAGE];
        let pages = Pages {
            first: 9,
            count: 3,
            zeros: 0b010,
            content: &content,
        };
        let each: Vec<_> = pages
            .each()
            .map(|(page, content)| (page, content.is_some()))
            .collect();
        assert_eq!(each, [(9, true), (10, false), (11, true)]);
        let all = [
            Message::Hello {
                len: 1 << 30,
                identity: *b"0123456789abcdef",
                secret: Secret([8; 32]),
            },
            Message::Pages(pages),
            Message::RoundEnd { round: 7 },
            Message::State(b"registers"),
            Message::Missing(vec![0..1, 5..9]),
            Message::Switch(Switch {
                state_bytes: 5,
                state_crc: 6,
                missing: 7,
                port: 8,
            }),
            Message::Commit,
            Message::Cancel("no"),
            Message::Welcome,
            Message::Ack { round: 7 },
            Message::Prepared,
            Message::Running,
            Message::Progress { missing: 3 },
            Message::Done,
            Message::Refused("nö"),
            Message::Resume { nonce: [9; 32] },
            Message::Challenge {
                nonce: [1; 32],
                proof: [2; 32],
            },
            Message::Proof {
                proof: [3; 32],
                port: 80,
            },
            Message::Resumed { missing: 5 },
            Message::Farewell,
        ];
        all.iter().for_each(round_trip);
    }

    #[test]
    fn what_may_not_be_is_refused() {
        let refused = |kind, payload: &[u8]| Message::of(kind, payload).unwrap_err();
        let run = |runs: &[(u64, u64)]| -> Vec<u8> {
            let words = runs.iter().flat_map(|&(start, end)| [start, end]);
            words.flat_map(u64::to_le_bytes).collect()
        };
        for runs in [
            &[(3, 3)][..],
            &[(5, 2)],
            &[(0, 4), (3, 9)],
            &[(0, 4), (4, 5)],
        ] {
            assert!(
                matches!(refused(5, &run(runs)), WireError::Field { .. }),
                "{runs:?}"
            );
        }
        assert!(matches!(refused(0, &[]), WireError::Field { .. }));
        assert_eq!(refused(1, b"something else"), WireError::Magic);
        // Zero pages that are not among those that are told, and content that is missing.
        let mut pages = run(&[(0, 2)]);
        pages.extend(0b100u64.to_le_bytes());
        assert!(matches!(
            refused(2, &pages),
            WireError::Field {
                field: "the zero pages",
                ..
            }
        ));
        pages[16] = 0b1;
        assert!(matches!(refused(2, &pages), WireError::Field { .. }));
        pages.extend([0; PAGE]);
        assert!(Message::of(2, &pages).is_ok());
        assert_eq!(
            Message::of(22, b"\x1b[2J").unwrap(),
            Message::Refused("for a reason that is no text")
        );
    }

    proptest! {
        #[test]
        fn no_changed_bit_passes(state in prop::collection::vec(any::<u8>(), 1..100), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut frame = Vec::new();
            Message::State(&state).frame(&mut frame);
            let at = at.index(frame.len());
            frame[at] ^= 1u8 << bit;
            let head = Head::of(frame[..HEAD].try_into().unwrap());
            prop_assert!(head.and_then(|head| head.check(&frame[HEAD..])).is_err());
        }

        #[test]
        fn any_bytes_are_understood_or_refused(kind in any::<u8>(), payload in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = Message::of(kind, &payload) {
                prop_assert_eq!(message.kind(), kind);
                let mut frame = Vec::new();
                message.frame(&mut frame);
                prop_assert!(matches!(message, Message::Cancel(_) | Message::Refused(_)) || frame[HEAD..] == payload);
            }
        }
    }
}
