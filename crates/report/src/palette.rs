//! How each cause looks: a letter, a colour and a pattern, so that no reader depends on colour.

/// What kind of loss a cause is; decides the pattern and the order of hues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// CPU time that one CPU needs too.
    Useful,
    /// CPU time that only exists because there are more CPUs.
    Burnt,
    /// Idle: the program waits for itself.
    Waiting,
    /// Idle or taken: the reason lies outside the program's own code.
    Outside,
    /// Unexplained, or a cause from a newer version.
    Unknown,
}

/// Appearance of one cause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// Cause id.
    pub id: &'static str,
    /// One ASCII letter, unique.
    pub letter: char,
    /// A few plain words.
    pub title: &'static str,
    /// Kind of loss.
    pub family: Family,
    /// Fill in the HTML report; dark text on it has a contrast of 4.5 or more.
    pub rgb: [u8; 3],
    /// Colour of the 256-colour terminal palette.
    pub ansi: u8,
}

impl Look {
    /// The rows of the cause are time on a CPU (as opposed to a CPU left idle or taken away).
    pub fn is_on_cpu(&self) -> bool {
        matches!(self.family, Family::Useful | Family::Burnt)
    }
}

const fn look(
    id: &'static str,
    letter: char,
    title: &'static str,
    family: Family,
    rgb: u32,
    ansi: u8,
) -> Look {
    let rgb = [(rgb >> 16) as u8, (rgb >> 8) as u8, rgb as u8];
    Look {
        id,
        letter,
        title,
        family,
        rgb,
        ansi,
    }
}

use Family::{Burnt, Outside, Unknown, Useful, Waiting};

/// All causes in the order in which a stack is drawn. Greens are useful, warm hues are CPU time
/// burnt, blues are waiting, earth colours come from outside, grey is unknown.
pub(crate) const LOOKS: [Look; 17] = [
    look("work", 'W', "useful work", Useful, 0x58ad8c, 72),
    look(
        "extra-work",
        'X',
        "more instructions than on one CPU",
        Burnt,
        0xe3a83f,
        179,
    ),
    look(
        "slow-work",
        'C',
        "same instructions, more cycles",
        Burnt,
        0xe08a4a,
        173,
    ),
    look(
        "extra-kernel",
        'K',
        "extra kernel time",
        Burnt,
        0xdd7f76,
        174,
    ),
    look("page-fault", 'F', "page faults", Burnt, 0xe5a0b2, 217),
    look(
        "user-spin",
        'U',
        "spinning in user space",
        Burnt,
        0xe0ca55,
        185,
    ),
    look("kernel-lock", 'Q', "kernel locks", Burnt, 0xd484bb, 175),
    look(
        "mmap-lock",
        'M',
        "the address-space lock",
        Burnt,
        0xbf9fe3,
        183,
    ),
    look(
        "lock-wait",
        'L',
        "waiting for a lock",
        Waiting,
        0x7399e6,
        68,
    ),
    look(
        "barrier",
        'B',
        "waiting at a barrier",
        Waiting,
        0x5bb5db,
        74,
    ),
    look(
        "partner",
        'P',
        "waiting for another thread or process",
        Waiting,
        0x9292ea,
        104,
    ),
    look(
        "serial",
        'S',
        "too few threads with work",
        Waiting,
        0xa3bad2,
        152,
    ),
    look(
        "io",
        'I',
        "storage or an outside peer",
        Outside,
        0xc4a27b,
        180,
    ),
    look("sleep", 'Z', "timers", Outside, 0xbcbb9c, 144),
    look(
        "placement",
        'R',
        "runnable while a CPU idles",
        Outside,
        0x98c065,
        107,
    ),
    look("stolen", 'T', "CPU taken away", Outside, 0xb1988a, 138),
    look("unexplained", '?', "unexplained", Unknown, 0xb3b7bd, 249),
];

/// Whatever a newer version may name.
const UNKNOWN: Look = look(
    "",
    '*',
    "a cause that this version does not know",
    Unknown,
    0xb3b7bd,
    249,
);

/// The look of a cause id.
pub(crate) fn look_of(id: &str) -> Look {
    LOOKS
        .iter()
        .find(|look| look.id == id)
        .copied()
        .unwrap_or(UNKNOWN)
}

/// Position in the drawing order; unknown causes last.
pub(crate) fn rank(id: &str) -> usize {
    LOOKS
        .iter()
        .position(|look| look.id == id)
        .unwrap_or(LOOKS.len())
}

/// Cause ids of a stack in drawing order, unknown ones last by name.
pub(crate) fn in_order<'a>(ids: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut ids: Vec<&str> = ids.map(String::as_str).collect();
    ids.sort_unstable_by_key(|id| (rank(id), *id));
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Relative luminance after WCAG 2.
    fn luminance(rgb: [u8; 3]) -> f64 {
        let [r, g, b] = rgb.map(|c| {
            let c = f64::from(c) / 255.0;
            if c <= 0.04045 {
                c / 12.92
            } else {
                ((c + 0.055) / 1.055).powf(2.4)
            }
        });
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    #[test]
    fn letters_are_unique_and_readable_on_their_colour() {
        let letters: BTreeSet<char> = LOOKS.iter().map(|look| look.letter).collect();
        assert_eq!(letters.len(), LOOKS.len());
        let ink = luminance([0x14, 0x18, 0x1d]);
        for look in LOOKS {
            // The pattern darkens a tenth of the area's light at most.
            let contrast = (luminance(look.rgb) * 0.9 + 0.05) / (ink + 0.05);
            assert!(contrast >= 4.5, "{}: {contrast:.2}", look.id);
        }
    }

    #[test]
    fn order_puts_unknown_causes_last() {
        let ids = ["zebra", "serial", "work", "apple"].map(String::from);
        assert_eq!(in_order(ids.iter()), ["work", "serial", "apple", "zebra"]);
    }
}
