//! A budget of bytes per second, as a bucket that fills with time.

/// The bucket. Time comes from outside.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: u64,
    /// What may be taken at once after a pause.
    burst: u64,
    left: u64,
    since_ns: u64,
}

impl Rate {
    /// Full, from `now_ns` on.
    pub fn new(per_second: u64, burst: u64, now_ns: u64) -> Rate {
        Rate {
            per_second: per_second.max(1),
            burst: burst.max(1),
            left: burst.max(1),
            since_ns: now_ns,
        }
    }

    /// Takes bytes.
    ///
    /// # Errors
    /// Nanoseconds after which it is worth another try. More than a burst is granted when the bucket is full.
    pub fn take(&mut self, bytes: u64, now_ns: u64) -> Result<(), u64> {
        let passed = now_ns.saturating_sub(self.since_ns);
        let gained = u128::from(passed) * u128::from(self.per_second) / 1_000_000_000;
        if gained > 0 {
            self.left = self
                .left
                .saturating_add(u64::try_from(gained).unwrap_or(u64::MAX))
                .min(self.burst);
            self.since_ns = now_ns;
        }
        let bytes = bytes.min(self.burst);
        if self.left >= bytes {
            self.left -= bytes;
            return Ok(());
        }
        let lacking = u128::from(bytes - self.left) * 1_000_000_000;
        let wait = lacking.div_ceil(u128::from(self.per_second));
        Err(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_more_than_the_rate_and_a_burst_is_granted(
            per_second in 1u64..1_000_000_000, burst in 1u64..10_000_000, takes in proptest::collection::vec((1u64..100_000, 0u64..100_000_000), 1..100),
        ) {
            let mut rate = Rate::new(per_second, burst, 0);
            let mut now = 0;
            let mut granted = 0u128;
            for (bytes, pause) in takes {
                now += pause;
                if rate.take(bytes, now).is_ok() {
                    granted += u128::from(bytes.min(burst));
                }
                let most = u128::from(burst) + u128::from(now) * u128::from(per_second) / 1_000_000_000;
                prop_assert!(granted <= most, "{} of {}", granted, most);
            }
        }

        #[test]
        fn after_the_wait_it_is_granted(per_second in 1u64..1_000_000_000, burst in 1u64..10_000_000, bytes in 1u64..20_000_000) {
            let mut rate = Rate::new(per_second, burst, 0);
            rate.take(burst, 0).unwrap();
            if let Err(wait) = rate.take(bytes, 0) {
                prop_assert_eq!(rate.take(bytes, wait), Ok(()));
            }
        }
    }
}
