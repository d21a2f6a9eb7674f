//! Pieces of text that the kernel writes. Nothing here trusts it.

/// Words separated by white space.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
}

/// Lines without their ends.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n')
}

/// A decimal number that fits.
pub(crate) fn decimal(word: &[u8]) -> Option<u64> {
    if !word.first()?.is_ascii_digit() {
        return None;
    }
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// A hexadecimal number without prefix that fits.
pub(crate) fn hexadecimal(word: &[u8]) -> Option<u64> {
    if !word.first()?.is_ascii_hexdigit() {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()
}

/// The word in brackets of a line such as `always [madvise] never`.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

/// A path as `/proc` spells it: three octal digits after a backslash are a byte.
pub(crate) fn unescape(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = |at: usize| {
            let digit = after.get(at)?.wrapping_sub(b'0');
            (digit < 8).then_some(u32::from(digit))
        };
        match (byte, octal(0), octal(1), octal(2)) {
            (b'\\', Some(a), Some(b), Some(c)) if a < 4 => {
                bytes.push((a * 64 + b * 8 + c) as u8);
                rest = &after[3..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_read() {
        assert_eq!(decimal(b"12"), Some(12));
        assert_eq!(
            (decimal(b"+1"), decimal(b""), decimal(b"1x")),
            (None, None, None)
        );
        assert_eq!(decimal(b"99999999999999999999"), None);
        assert_eq!(hexadecimal(b"7fF"), Some(0x7ff));
        assert_eq!((hexadecimal(b"+7"), hexadecimal(b"-")), (None, None));
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("never"), None);
        assert_eq!(unescape(b"/a\\040b\\012\\9\\"), "/a b\n\\9\\");
    }
}
