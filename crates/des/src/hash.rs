//! Names of results by what they were computed from.

// The build script uses this file too.

/// FNV-1a (Fowler, Noll and Vo) of 128 bits over texts and their lengths, as 32 hexadecimal digits. It tells inputs
/// apart; it does not withstand somebody who looks for two that agree.
pub fn content_hash(parts: &[&str]) -> String {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let mut add = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    };
    for part in parts {
        add(&(part.len() as u64).to_le_bytes());
        add(part.as_bytes());
    }
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_count() {
        assert_ne!(content_hash(&["ab", "c"]), content_hash(&["a", "bc"]));
        assert_eq!(content_hash(&["a"]).len(), 32);
    }
}
