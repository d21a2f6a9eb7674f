//! Numbers and words of an environment variable, read as C's library reads them: programs and scripts that work
//! with GCC's runtime rely on what `strtoul` and `strncasecmp` accept.

/// What is left of a value while it is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    rest: &'a [u8],
}

impl<'a> Text<'a> {
    /// The text up to the zero byte that C would stop at.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        let len = bytes
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(bytes.len());
        Self {
            rest: &bytes[..len],
        }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    pub(crate) fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    /// Skips what `isspace` accepts in the C locale.
    pub(crate) fn skip_spaces(&mut self) {
        while self.peek().is_some_and(is_space) {
            self.skip(1);
        }
    }

    /// Skips spaces, and tells whether nothing is left.
    pub(crate) fn ends(&mut self) -> bool {
        self.skip_spaces();
        self.is_empty()
    }

    /// Takes one byte if it is the next.
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        if is_next {
            self.skip(1);
        }
        is_next
    }

    /// Takes a word if the text begins with it, in any case.
    pub(crate) fn take_word(&mut self, word: &str) -> bool {
        let is_next = self
            .rest
            .get(..word.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()));
        if is_next {
            self.skip(word.len());
        }
        is_next
    }

    /// Takes the first of the words that the text begins with.
    pub(crate) fn take_one_of<T: Copy>(&mut self, words: &[(&str, T)]) -> Option<T> {
        words
            .iter()
            .find(|(word, _)| self.take_word(word))
            .map(|&(_, value)| value)
    }

    /// `strtoul` in base 10: spaces, a sign (a minus sign wraps around), digits. `None` without a digit, and where
    /// the number does not fit.
    pub(crate) fn unsigned(&mut self) -> Option<u64> {
        self.number(10)
    }

    /// `strtoul` in base 0: `0x` makes it hexadecimal, `0` octal.
    pub(crate) fn unsigned_any_base(&mut self) -> Option<u64> {
        let mut at = *self;
        at.skip_spaces();
        if matches!(at.peek(), Some(b'+' | b'-')) {
            at.skip(1);
        }
        let base = match at.rest {
            [b'0', b'x' | b'X', digit, ..] if digit.is_ascii_hexdigit() => 16,
            [b'0', ..] => 8,
            _ => 10,
        };
        self.number(base)
    }

    /// `strtol` in base 10.
    pub(crate) fn signed(&mut self) -> Option<i64> {
        let (is_negative, magnitude) = self.magnitude(10)?;
        let magnitude = i128::from(magnitude);
        i64::try_from(if is_negative { -magnitude } else { magnitude }).ok()
    }

    fn number(&mut self, base: u32) -> Option<u64> {
        let (is_negative, magnitude) = self.magnitude(base)?;
        Some(if is_negative {
            magnitude.wrapping_neg()
        } else {
            magnitude
        })
    }

    /// Sign and digits.
    fn magnitude(&mut self, base: u32) -> Option<(bool, u64)> {
        self.skip_spaces();
        let is_negative = self.peek() == Some(b'-');
        if matches!(self.peek(), Some(b'+' | b'-')) {
            self.skip(1);
        }
        if base == 16 {
            self.skip(2);
        }
        let digit = |text: &Self| text.peek().and_then(|byte| char::from(byte).to_digit(base));
        let mut value = u64::from(digit(self)?);
        self.skip(1);
        while let Some(next) = digit(self) {
            value = value
                .checked_mul(u64::from(base))?
                .checked_add(u64::from(next))?;
            self.skip(1);
        }
        Some((is_negative, value))
    }
}

pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::raw::c_char;

    use proptest::prelude::*;

    use super::*;

    /// What C's library says: a value, if there is one that fits, and the bytes taken.
    fn by_libc(text: &CString, base: i32, is_signed: bool) -> (Option<u64>, usize) {
        let mut end: *mut c_char = std::ptr::null_mut();
        // SAFETY: the text ends in a zero byte, `end` is written, errno is this thread's.
        let (value, errno) = unsafe {
            *libc::__errno_location() = 0;
            let value = if is_signed {
                libc::strtol(text.as_ptr(), &raw mut end, base).cast_unsigned()
            } else {
                libc::strtoul(text.as_ptr(), &raw mut end, base)
            };
            (value, *libc::__errno_location())
        };
        let taken = end as usize - text.as_ptr() as usize;
        ((errno == 0 && taken > 0).then_some(value), taken)
    }

    proptest! {
        #[test]
        fn numbers_are_those_of_the_c_library(text in r"[ \t]{0,2}[-+]{0,2}(0x|0|)[0-9a-fA-F]{0,22}[ ,:x]?") {
            let c = CString::new(text.clone()).expect("no zero byte");
            for (base, is_signed) in [(10, false), (0, false), (10, true)] {
                let mut at = Text::new(text.as_bytes());
                let value = match (base, is_signed) {
                    (10, false) => at.unsigned(),
                    (0, _) => at.unsigned_any_base(),
                    _ => at.signed().map(i64::cast_unsigned),
                };
                let (expected, taken) = by_libc(&c, base, is_signed);
                prop_assert_eq!(value, expected, "{:?} in base {}", text, base);
                if value.is_some() {
                    prop_assert_eq!(text.len() - at.rest().len(), taken, "{:?} in base {}", text, base);
                }
            }
        }
    }

    #[test]
    fn words_are_taken_in_any_case_and_only_whole() {
        let mut text = Text::new(b"DyNaMic,3\0hidden");
        assert!(!text.take_word("dynamics"));
        assert!(text.take_word("dynamic"));
        assert!(text.take(b','));
        assert_eq!(text.rest(), b"3");
    }
}
