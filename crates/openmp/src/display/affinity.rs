//! `OMP_AFFINITY_FORMAT`: where a thread is, in the user's words.

use std::fmt;

use crate::icv::globals;
use crate::message;
use crate::sys;
use crate::thread::Thread;

/// What a format may speak of.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "the long names of the specification")]
pub struct Place {
    pub team_num: i64,
    pub num_teams: i64,
    pub nesting_level: i64,
    pub thread_num: i64,
    pub num_threads: i64,
    pub ancestor_tnum: i64,
    pub host: Vec<u8>,
    pub process_id: i64,
    pub native_thread_id: u64,
    pub thread_affinity: String,
}

/// Why a format was not understood, in the words of GCC's runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    /// `%0` without a dot.
    ZeroWithoutDot,
    /// `%0.` or `%.` without a width.
    NoWidth,
    /// `%{name}`.
    UnknownName(Vec<u8>),
    /// `%{name`.
    Unterminated(Vec<u8>),
    /// `%x`.
    UnknownType(u8),
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy;
        match self {
            Self::ZeroWithoutDot => {
                f.write_str("leading zero not followed by dot in affinity format")
            }
            Self::NoWidth => {
                f.write_str("leading zero or right justification in affinity format requires size")
            }
            Self::UnknownName(name) => write!(
                f,
                "unsupported long type name '{}' in affinity format",
                text(name)
            ),
            Self::Unterminated(name) => write!(
                f,
                "unterminated long type name '{}' in affinity format",
                text(name)
            ),
            Self::UnknownType(byte) => {
                write!(f, "unsupported type {} in affinity format", text(&[*byte]))
            }
        }
    }
}

const NAMES: [(&str, u8); 10] = [
    ("team_num", b't'),
    ("num_teams", b'T'),
    ("nesting_level", b'L'),
    ("thread_num", b'n'),
    ("num_threads", b'N'),
    ("ancestor_tnum", b'a'),
    ("host", b'H'),
    ("process_id", b'P'),
    ("native_thread_id", b'i'),
    ("thread_affinity", b'A'),
];

/// What a format came to: its first bytes, and how long it is altogether.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// At most as many bytes as were asked for.
    pub bytes: Vec<u8>,
    /// Bytes of the whole text.
    pub len: usize,
    keep: usize,
}

impl Captured {
    fn add(&mut self, bytes: &[u8]) {
        let room = self.keep - self.bytes.len();
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.len = self.len.saturating_add(bytes.len());
    }

    fn fill(&mut self, byte: u8, count: usize) {
        let room = self.keep - self.bytes.len();
        self.bytes.resize(self.bytes.len() + count.min(room), byte);
        self.len = self.len.saturating_add(count);
    }

    fn field(&mut self, layout: Layout, text: &[u8], is_number: bool) {
        let pad = layout.width.saturating_sub(text.len());
        if layout.is_zero_padded && is_number && pad > 0 {
            let sign = match text {
                [b'-', ..] => 1,
                [b'0', b'x', ..] => 2,
                _ => 0,
            };
            self.add(&text[..sign]);
            self.fill(b'0', pad);
            self.add(&text[sign..]);
        } else if layout.is_right {
            self.fill(b' ', pad);
            self.add(text);
        } else {
            self.add(text);
            self.fill(b' ', pad);
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Layout {
    is_zero_padded: bool,
    is_right: bool,
    width: usize,
}

/// Fills a format, and keeps the first `keep` bytes.
pub fn capture(format: &[u8], place: &Place, keep: usize) -> Result<Captured, FormatError> {
    let mut out = Captured {
        keep,
        ..Captured::default()
    };
    let mut rest = format;
    loop {
        let text = rest
            .iter()
            .position(|&byte| byte == b'%')
            .unwrap_or(rest.len());
        out.add(&rest[..text]);
        let Some((_, field)) = rest[text..].split_first() else {
            return Ok(out);
        };
        if let Some(b'%') = field.first() {
            out.add(b"%");
            rest = &field[1..];
            continue;
        }
        let (layout, field) = layout(field)?;
        let (kind, behind) = kind(field)?;
        let number = |value: i64| value.to_string().into_bytes();
        let (text, is_number) = match kind {
            b't' => (number(place.team_num), true),
            b'T' => (number(place.num_teams), true),
            b'L' => (number(place.nesting_level), true),
            b'n' => (number(place.thread_num), true),
            b'N' => (number(place.num_threads), true),
            b'a' => (number(place.ancestor_tnum), true),
            b'P' => (number(place.process_id), true),
            b'i' => (format!("{:#x}", place.native_thread_id).into_bytes(), true),
            b'H' => (place.host.clone(), false),
            b'A' => (place.thread_affinity.clone().into_bytes(), false),
            other => return Err(FormatError::UnknownType(other)),
        };
        out.field(layout, &text, is_number);
        rest = behind;
    }
}

fn layout(mut field: &[u8]) -> Result<(Layout, &[u8]), FormatError> {
    let mut layout = Layout::default();
    if let [b'0', behind @ ..] = field {
        layout.is_zero_padded = true;
        field = behind;
        if field.first() != Some(&b'.') {
            return Err(FormatError::ZeroWithoutDot);
        }
    }
    if let [b'.', behind @ ..] = field {
        layout.is_right = true;
        field = behind;
    }
    let digits = match field.first() {
        Some(b'1'..=b'9') => field
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count(),
        _ if layout.is_right => return Err(FormatError::NoWidth),
        _ => 0,
    };
    layout.width = field[..digits].iter().fold(0_usize, |width, digit| {
        width
            .saturating_mul(10)
            .saturating_add(usize::from(digit - b'0'))
    });
    Ok((layout, &field[digits..]))
}

/// The letter of a field, and what is behind it. The end of the format counts as a zero byte, as in C.
fn kind(field: &[u8]) -> Result<(u8, &[u8]), FormatError> {
    let Some((&first, behind)) = field.split_first() else {
        return Err(FormatError::UnknownType(0));
    };
    if first != b'{' {
        return Ok((first, behind));
    }
    let Some(end) = behind.iter().position(|&byte| byte == b'}') else {
        return Err(FormatError::Unterminated(behind.to_vec()));
    };
    NAMES
        .iter()
        .find(|(name, _)| name.as_bytes() == &behind[..end])
        .map(|&(_, letter)| (letter, &behind[end + 1..]))
        .ok_or_else(|| FormatError::UnknownName(behind[..end].to_vec()))
}

/// Longer texts are cut off where they are shown.
pub const SHOWN_BYTES_MAX: usize = 1 << 20;

/// What the calling thread's place is, in a format (empty: the one of the variables). Ends the program where the
/// format is not understood, as GCC's runtime does.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn affinity(thread: *mut Thread, format: &[u8], keep: usize) -> Captured {
    // SAFETY: the caller's promise.
    let place = unsafe { of(thread) };
    let captured = if format.is_empty() {
        capture(&globals().affinity_format(), &place, keep)
    } else {
        capture(format, &place, keep)
    };
    captured.unwrap_or_else(|why| message::fatal(format_args!("{why}")))
}

/// Says where the calling thread is, in a line of its own.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn show(thread: *mut Thread) {
    // SAFETY: the caller's promise.
    let mut line = unsafe { affinity(thread, b"", SHOWN_BYTES_MAX) }.bytes;
    line.push(b'\n');
    sys::write_error(&line);
}

/// # Safety
/// `thread` is the calling thread's.
unsafe fn of(thread: *mut Thread) -> Place {
    // SAFETY: the caller's promise; a team's plain fields do not change while a thread is in it.
    let (at, place, num_threads, ancestor) = unsafe {
        let at = (*thread).at;
        let (threads, ancestor) = match at.team.as_ref() {
            Some(team) => (team.nthreads.into(), team.outer.id.into()),
            None => (1, -1),
        };
        (at, (*thread).place, threads, ancestor)
    };
    let globals = globals();
    let bound = globals
        .places
        .as_ref()
        .and_then(|list| list.get(place.checked_sub(1)?));
    Place {
        team_num: at.league.0.into(),
        num_teams: i64::from(at.league.1) + 1,
        nesting_level: at.level.into(),
        thread_num: at.id.into(),
        num_threads,
        ancestor_tnum: ancestor,
        host: sys::host_name(),
        process_id: std::process::id().into(),
        native_thread_id: sys::pthread_self(),
        thread_affinity: bound.unwrap_or(&globals.allowed).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            team_num: 0,
            num_teams: 1,
            nesting_level: 2,
            thread_num: 3,
            num_threads: 8,
            ancestor_tnum: -1,
            host: b"node7".to_vec(),
            process_id: 4711,
            native_thread_id: 0x7f00,
            thread_affinity: "0-3,8".into(),
        }
    }

    fn filled(format: &str) -> String {
        let captured = capture(format.as_bytes(), &place(), 1000).expect("a format");
        assert_eq!(captured.len, captured.bytes.len());
        String::from_utf8(captured.bytes).expect("text")
    }

    #[test]
    fn short_and_long_names() {
        assert_eq!(
            filled("level %L thread %i affinity %A"),
            "level 2 thread 0x7f00 affinity 0-3,8"
        );
        let long = "%{team_num} %{num_teams} %{nesting_level} %{thread_num} %{num_threads} %{ancestor_tnum} %{host} \
                    %{process_id} %{native_thread_id} %{thread_affinity}";
        assert_eq!(filled(long), "0 1 2 3 8 -1 node7 4711 0x7f00 0-3,8");
        assert_eq!(filled("%t %T %L %n %N %a %H %P %i %A"), filled(long));
        assert_eq!(filled("100%% %%n"), "100% %n");
        assert_eq!(filled(""), "");
    }

    #[test]
    fn widths() {
        assert_eq!(filled("[%4n]"), "[3   ]");
        assert_eq!(filled("[%.4n]"), "[   3]");
        assert_eq!(filled("[%0.4n]"), "[0003]");
        assert_eq!(filled("[%0.5a]"), "[-0001]");
        assert_eq!(filled("[%0.9i]"), "[0x0007f00]");
        assert_eq!(filled("[%1P]"), "[4711]");
        assert_eq!(filled("[%0.7H]"), "[  node7]");
        assert_eq!(filled("[%7{thread_affinity}]"), "[0-3,8  ]");
        assert_eq!(filled("[%.7A]"), "[  0-3,8]");
    }

    #[test]
    fn what_is_no_format() {
        let error = |format: &[u8]| capture(format, &place(), 10).expect_err("none");
        assert_eq!(error(b"%04n"), FormatError::ZeroWithoutDot);
        assert_eq!(error(b"%.n"), FormatError::NoWidth);
        assert_eq!(error(b"%0.0n"), FormatError::NoWidth);
        assert_eq!(error(b"%x"), FormatError::UnknownType(b'x'));
        assert_eq!(error(b"%"), FormatError::UnknownType(0));
        assert_eq!(error(b"%5"), FormatError::UnknownType(0));
        assert_eq!(error(b"%{hos}"), FormatError::UnknownName(b"hos".to_vec()));
        assert_eq!(
            error(b"%{host"),
            FormatError::Unterminated(b"host".to_vec())
        );
    }

    #[test]
    fn what_is_too_long_is_counted_and_not_kept() {
        let captured = capture(b"ab%.99999999999999999999nc", &place(), 5).expect("a format");
        assert_eq!(
            (captured.bytes.as_slice(), captured.len),
            (&b"ab   "[..], usize::MAX)
        );
        let captured = capture(b"%n-%N", &place(), 0).expect("a format");
        assert_eq!((captured.bytes.len(), captured.len), (0, 3));
    }
}
