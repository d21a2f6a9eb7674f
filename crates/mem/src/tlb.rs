//! Misses of the translation lookaside buffers against instructions.

/// What counters counted; `None` where there is no such counter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Instructions, of user code.
    pub instructions: Option<f64>,
    /// Misses on the data side, loads and stores.
    pub data: Option<f64>,
    /// Misses on the instruction side.
    pub fetches: Option<f64>,
    /// Smallest share of the time that one of them was counting; they take turns where there are
    /// too few counters, and counts are scaled.
    pub counted: f64,
}

/// A counter read: its value, and for how long it was wanted and counting (nanoseconds).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Events counted.
    pub value: u64,
    /// Time enabled.
    pub enabled: u64,
    /// Time running.
    pub running: u64,
}

impl Reading {
    /// The count for the whole time; `None` if it never ran while it was wanted.
    pub fn scaled(self) -> Option<f64> {
        match (self.enabled, self.running) {
            (0, _) => Some(self.value as f64),
            (_, 0) => None,
            (enabled, running) => Some(self.value as f64 * enabled as f64 / running as f64),
        }
    }

    /// Share of the time that it was counting.
    pub fn share(self) -> f64 {
        if self.enabled == 0 {
            1.0
        } else {
            self.running as f64 / self.enabled as f64
        }
    }
}

impl Counts {
    /// Misses on the data side per thousand instructions.
    pub fn data_per_thousand(&self) -> Option<f64> {
        self.per_thousand(self.data)
    }

    /// Misses on the instruction side per thousand instructions.
    pub fn fetches_per_thousand(&self) -> Option<f64> {
        self.per_thousand(self.fetches)
    }

    fn per_thousand(&self, misses: Option<f64>) -> Option<f64> {
        let instructions = self.instructions.filter(|&count| count > 0.0)?;
        Some(misses? / instructions * 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_set_against_instructions() {
        let counts = Counts {
            instructions: Some(2e6),
            data: Some(5e3),
            ..Counts::default()
        };
        assert_eq!(counts.data_per_thousand(), Some(2.5));
        assert_eq!(counts.fetches_per_thousand(), None);
        assert_eq!(Counts::default().data_per_thousand(), None);
    }

    #[test]
    fn counters_that_took_turns_are_scaled() {
        let half = Reading {
            value: 10,
            enabled: 100,
            running: 50,
        };
        assert_eq!((half.scaled(), half.share()), (Some(20.0), 0.5));
        let never = Reading { running: 0, ..half };
        assert_eq!(never.scaled(), None);
        assert_eq!(Reading::default().scaled(), Some(0.0));
    }
}
