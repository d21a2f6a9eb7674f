//! What each view gives again and again.

use std::time::Duration;

use amdahl_probe::bpf::Losses;
use amdahl_top::{By, Data};

use crate::watch::Follow;

/// A recording whose result so far can be asked for.
pub trait Live: Follow {
    /// The result, `seconds` after the recording began, which lacks `losses`.
    fn data(&mut self, by: By, seconds: f64, losses: Losses) -> Data;
}

/// The same without a recording: looks by the owner's rights.
pub trait Look {
    /// Looks once. Returns after which time to do it again.
    fn look(&mut self) -> Duration;

    /// The result, `seconds` after the first look.
    fn data(&mut self, by: By, seconds: f64) -> Data;
}
