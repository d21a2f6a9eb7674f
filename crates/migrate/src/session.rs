//! How the two sides of a migration know each other again, on a connection that says nothing of it. Pure.

use crate::wire::{Identity, Nonce, Proof, Secret};

/// What only the two sides know: identity and secret of the hello. A page server is shown the secret and shows the identity; who has taken the place of one of them knows one of the two at most.
#[derive(Clone, Copy)]
pub(crate) struct Session([u8; 32]);

impl Session {
    pub fn new(identity: &Identity, secret: &Secret) -> Session {
        let both = [&identity[..], &secret.0].concat();
        Session(blake3::derive_key(
            "amdahl-migrate version 1, a connection that resumes a migration",
            &both,
        ))
    }

    /// By the destination, which has been told `there` and says `here`.
    pub fn of_destination(&self, there: &Nonce, here: &Nonce) -> Proof {
        self.proof(&[b"destination", there, here])
    }

    /// By the source, which has said `here` and been told `there`, and serves pages at that port.
    pub fn of_source(&self, here: &Nonce, there: &Nonce, port: u16) -> Proof {
        self.proof(&[b"source", here, there, &port.to_le_bytes()])
    }

    fn proof(&self, what: &[&[u8]]) -> Proof {
        *blake3::keyed_hash(&self.0, &what.concat()).as_bytes()
    }
}

/// Takes as long whatever is wrong.
pub(crate) fn is_same(one: Proof, other: Proof) -> bool {
    blake3::Hash::from(one) == blake3::Hash::from(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_proves_itself_and_nothing_else() {
        let session = Session::new(&[1; 16], &Secret([2; 32]));
        let (one, other) = ([3; 32], [4; 32]);
        let proof = session.of_source(&one, &other, 7);
        assert!(is_same(proof, session.of_source(&one, &other, 7)));
        for wrong in [
            // Said back by who was asked.
            session.of_destination(&one, &other),
            session.of_source(&other, &one, 7),
            // Said on another connection, or of another port.
            session.of_source(&one, &one, 7),
            session.of_source(&one, &other, 8),
            // By who knows a half.
            Session::new(&[1; 16], &Secret([0; 32])).of_source(&one, &other, 7),
            Session::new(&[0; 16], &Secret([2; 32])).of_source(&one, &other, 7),
        ] {
            assert!(!is_same(proof, wrong));
        }
    }
}
