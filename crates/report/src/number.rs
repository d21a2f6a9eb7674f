//! Numbers as a reader sees them. Number and unit are joined by a no-break space.

const NBSP: char = '\u{a0}';

/// Four significant digits, without an exponent between 1e-3 and 1e6.
pub(crate) fn significant(value: f64) -> String {
    rounded(value, 4)
}

/// Three significant digits, for estimates.
pub fn estimate(value: f64) -> String {
    rounded(value, 3)
}

fn rounded(value: f64, digits: i32) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if !(1e-3..1e6).contains(&size) {
        format!("{value:.2e}")
    } else {
        // Digits before the point, counted after rounding: 9.9996 is 10.00.
        let near: f64 = format!("{size:.*e}", digits as usize - 1)
            .parse()
            .unwrap_or(size);
        let before = near.log10().floor() as i32 + 1;
        format!("{value:.*}", usize::try_from(digits - before).unwrap_or(0))
    }
}

/// Seconds with the unit that suits their size.
pub(crate) fn seconds(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v == 0.0 || v >= 1.0 => (value, "s"),
        v if v >= 1e-3 => (value * 1e3, "ms"),
        _ => (value * 1e6, "µs"),
    };
    format!("{}{NBSP}{unit}", significant(scaled))
}

/// Bytes with the unit that suits their size.
pub(crate) fn bytes(value: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 999.5 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let digits = match (unit, scaled) {
        (0, _) => 0,
        (_, v) if v < 9.995 => 2,
        (_, v) if v < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$}{NBSP}{}", units[unit])
}

/// A fraction as percent with one decimal, without the sign.
pub(crate) fn percent_digits(fraction: f64) -> String {
    let text = format!("{:.1}", fraction * 100.0);
    if text == "-0.0" {
        "0.0".to_owned()
    } else {
        text
    }
}

/// A fraction as percent.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{}{NBSP}%", percent_digits(fraction))
}

/// A fraction as percent in a sentence: whole percents from 10 on.
pub(crate) fn percent_coarse(fraction: f64) -> String {
    if fraction.abs() >= 0.0995 {
        format!("{:.0}{NBSP}%", fraction * 100.0)
    } else {
        percent(fraction)
    }
}

/// A factor such as a speedup, without the multiplication sign.
pub(crate) fn factor_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{value:.2e}"),
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A change of a ratio as percent with its sign: 0.9 is `-10.0 %`.
pub(crate) fn change(ratio: f64) -> String {
    format!("{:+.1}{NBSP}%", (ratio - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits() {
        for (value, text) in [
            (0.0, "0"),
            (12.414, "12.41"),
            (9.99996, "10.00"),
            (999.96, "1000"),
            (123456.0, "123456"),
            (0.04567, "0.04567"),
            (1e9, "1.00e9"),
            (-2.5, "-2.500"),
        ] {
            assert_eq!(significant(value), text);
        }
        assert_eq!(seconds(12.414), "12.41\u{a0}s");
        assert_eq!(seconds(0.0123), "12.30\u{a0}ms");
        assert_eq!(seconds(0.000_004), "4.000\u{a0}µs");
        for (value, text) in [
            (0, "0\u{a0}bytes"),
            (4096, "4.00\u{a0}KiB"),
            (1023 << 10, "1.00\u{a0}MiB"),
            (48 << 20, "48.0\u{a0}MiB"),
            (u64::MAX, "16384\u{a0}PiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        assert_eq!(percent(0.4123), "41.2\u{a0}%");
        assert_eq!(percent(-0.00001), "0.0\u{a0}%");
        assert_eq!(percent_coarse(0.4123), "41\u{a0}%");
        assert_eq!(percent_coarse(0.0412), "4.1\u{a0}%");
        assert_eq!(factor_digits(3.0812), "3.08");
        assert_eq!(factor_digits(31.26), "31.3");
        assert_eq!(change(0.9), "-10.0\u{a0}%");
    }
}
