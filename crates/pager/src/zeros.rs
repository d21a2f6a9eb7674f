//! Which pages hold nothing but zeros, told by looking at them.

use crate::PAGE;

/// Whether all bytes are zero. Looks at no more than 16 bytes, or what the compiler's comparison takes at once, behind the first that is not.
/// Async-signal-safe.
pub fn is_zero(bytes: &[u8]) -> bool {
    match bytes.split_first_chunk::<16>() {
        // Each byte is the one 16 before it, and the first 16 are zero: a comparison of memory, as the C library has it for this processor.
        Some((first, rest)) => *first == [0; 16] && rest == &bytes[..rest.len()],
        None => bytes.iter().all(|byte| *byte == 0),
    }
}

/// How many of the first bytes of `content` are pages of one kind, and whether they are zeros. A page that is not whole counts as one.
pub(crate) fn first_run(content: &[u8]) -> (usize, bool) {
    let mut pages = content.chunks(PAGE);
    let Some(first) = pages.next() else {
        return (0, false);
    };
    let kind = is_zero(first);
    let rest = pages.take_while(|page| is_zero(page) == kind);
    (first.len() + rest.map(<[u8]>::len).sum::<usize>(), kind)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_bit_anywhere_is_seen() {
        for len in [0, 1, 15, 16, 17, 31, 100, PAGE] {
            let mut bytes = vec![0; len];
            assert!(is_zero(&bytes), "{len}");
            for at in 0..len {
                for bit in [0, 7] {
                    bytes[at] = 1 << bit;
                    assert!(!is_zero(&bytes), "{len}, {at}");
                }
                bytes[at] = 0;
            }
        }
        // Every byte is that 16 before it, and none is zero.
        assert!(!is_zero(&[7; PAGE]));
    }

    #[test]
    fn runs_end_where_the_kind_changes() {
        let mut content = vec![0; 5 * PAGE + 10];
        content[2 * PAGE + 5] = 1;
        content[4 * PAGE - 1] = 1;
        assert_eq!(first_run(&content), (2 * PAGE, true));
        assert_eq!(first_run(&content[2 * PAGE..]), (2 * PAGE, false));
        assert_eq!(first_run(&content[4 * PAGE..]), (PAGE + 10, true));
        assert_eq!(first_run(&[]), (0, false));
    }
}
