use std::num::NonZeroU64;

use super::slots::NoteAt;

/// Where a held range is noted. One word: what goes from function to function stays in a register.
///
/// From the lowest bit: whether it is a note, a one, and of a note its place, or of a leaf ten bits of its number and its token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place(NonZeroU64);

/// Tells an entry from all others that were or will be in its leaf: the order that it got there. Those that are alike lie 2^52 requests apart,
/// which is months. In the high bits, and not 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Token(NonZeroU64);

const IS_NOTE: u64 = 1;
const ONE: NonZeroU64 = NonZeroU64::new(2).expect("2 is not 0");
const LOW: u32 = 2;
const NUMBER_BITS: u32 = 10;
const TOKEN_SHIFT: u32 = LOW + NUMBER_BITS;

/// Leaves that can be told apart.
pub(super) const LEAVES_MAX: u32 = 1 << NUMBER_BITS;

impl Place {
    /// In leaves; which ones is not known.
    pub(crate) const LEAVES: Place = Place(ONE);

    /// In this leaf, if it was not split since.
    #[inline]
    pub(super) fn leaf(number: u32, token: Option<Token>) -> Place {
        let token = token.map_or(0, |token| token.0.get());
        Place(ONE | u64::from(number) << LOW | token)
    }

    /// In a reader's slot.
    #[inline]
    pub(super) fn note(at: NoteAt) -> Place {
        Place(ONE | IS_NOTE | u64::from(at.bits()) << LOW)
    }

    #[inline]
    pub(super) fn as_note(self) -> Option<NoteAt> {
        let is_note = self.0.get() & IS_NOTE != 0;
        is_note.then(|| NoteAt::from_bits((self.0.get() >> LOW) as u32))
    }

    /// The number of the leaf, of what is not a note.
    #[inline]
    pub(super) fn number(self) -> u32 {
        (self.0.get() >> LOW) as u32 & (LEAVES_MAX - 1)
    }

    /// The token, of what is not a note.
    #[inline]
    pub(super) fn token(self) -> Option<Token> {
        Token::of_bits(self.0.get() >> TOKEN_SHIFT)
    }
}

impl Token {
    /// `None`: one in 2^52 orders has none.
    #[inline]
    pub(super) fn of(order: u64) -> Option<Token> {
        Token::of_bits(order)
    }

    #[inline]
    fn of_bits(bits: u64) -> Option<Token> {
        NonZeroU64::new(bits << TOKEN_SHIFT).map(Token)
    }

    #[inline]
    pub(super) fn bits(self) -> u64 {
        self.0.get()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_comes_out() {
        assert_eq!(Place::LEAVES, Place::leaf(0, None));
        for order in [1, 7, 1 << 51, (1 << 52) - 1] {
            let token = Token::of(order);
            assert!(token.is_some());
            for number in [0, 1, LEAVES_MAX - 1] {
                let place = Place::leaf(number, token);
                assert_eq!(
                    (place.number(), place.token(), place.as_note()),
                    (number, token, None)
                );
            }
        }
        assert_eq!(Token::of(1 << 52), None);
        for bits in [0, 1, u32::MAX] {
            let at = NoteAt::from_bits(bits);
            assert_eq!(Place::note(at).as_note(), Some(at));
        }
    }
}
