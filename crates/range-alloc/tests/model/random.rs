//! Numbers that are the same each time.

/// xorshift.
pub struct Random(pub u64);

impl Random {
    /// One from 0 up to, but not, `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
