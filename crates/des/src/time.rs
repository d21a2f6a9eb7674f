//! Simulated time, and how people write it.

/// Nanoseconds of simulated time. Integers only: a run is the same on every machine.
pub type Ns = u64;

/// Never: of an event that is not planned.
pub(crate) const NEVER: Ns = u64::MAX;

/// The longest time that can be written: 100 days. Sums of many stay far below `u64::MAX`, which is never.
pub const TIME_MAX: Ns = 100 * 86_400 * 1_000_000_000;

/// Reads `10us`, `1.5ms`, `2s`, `300ns`, `1min`; a number without a unit is nanoseconds.
///
/// # Errors
/// What was expected.
pub fn parse(text: &str) -> Result<Ns, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == 'µ');
    let factor: u64 = match &text[digits.len()..] {
        "" | "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "min" => 60_000_000_000,
        unit => {
            return Err(format!(
                "unknown unit `{unit}`; there are ns, us, ms, s, min"
            ));
        }
    };
    let expected = || format!("expected a time such as 10us, found `{text}`");
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) || fraction.len() > 12 {
        return Err(expected());
    }
    let whole: u64 = whole.parse().map_err(|_| expected())?;
    let mut ns = u128::from(whole) * u128::from(factor);
    if !fraction.is_empty() {
        let digits: u128 = fraction.parse().map_err(|_| expected())?;
        ns += digits * u128::from(factor) / 10u128.pow(fraction.len() as u32);
    }
    match u64::try_from(ns) {
        Ok(ns) if ns <= TIME_MAX => Ok(ns),
        _ => Err(format!("{text} is more than 100 days")),
    }
}

/// With four digits and a unit.
pub fn show(ns: Ns) -> String {
    let (factor, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1e3, "us"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    let value = ns as f64 / factor;
    let decimals = 3 - (value.log10() as usize).min(3);
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_exactly() {
        assert_eq!(parse("10us"), Ok(10_000));
        assert_eq!(parse("1.5ms"), Ok(1_500_000));
        assert_eq!(parse("0.000000001s"), Ok(1));
        assert_eq!(parse("7"), Ok(7));
        for bad in [
            "",
            "us",
            "1.2.3s",
            "-1us",
            "5 parsecs",
            "1e9s",
            "99999999999999999999s",
            "9000000s",
            ".",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_shown_with_four_digits() {
        assert_eq!(show(999), "999 ns");
        assert_eq!(show(1_500), "1.500 us");
        assert_eq!(show(12_345_678), "12.35 ms");
        assert_eq!(show(999_900_000_000), "999.9 s");
        assert_eq!(show(123_456_000_000_000), "123456 s");
    }
}
