//! Columns and cells on a line of a given width.

use amdahl_report::number::estimate;
use amdahl_report::plain::elide;
use amdahl_report::terminal::Style;
use unicode_width::UnicodeWidthStr;

use crate::grid::{Cell, Column, Row};

/// Columns that have room, with their widths.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Which column, and how wide.
    pub shown: Vec<(usize, usize)>,
}

const GAP: usize = 1;

impl Layout {
    /// Columns for lines of `width`. Those that are more expendable than others give way; `keep`
    /// does not, since rows are sorted by it.
    pub fn new(columns: &[Column], width: usize, keep: usize) -> Layout {
        let mut shown: Vec<usize> = (0..columns.len()).collect();
        let least = |shown: &[usize]| -> usize {
            let widths = shown.iter().map(|&at| usize::from(columns[at].width) + GAP);
            widths.sum::<usize>().saturating_sub(GAP)
        };
        while least(&shown) > width {
            let expendable = |&at: &usize| {
                if at == keep {
                    0
                } else {
                    columns[at].expendable
                }
            };
            let Some(at) = (0..shown.len())
                .filter(|&at| expendable(&shown[at]) > 0)
                .max_by_key(|&at| (expendable(&shown[at]), at))
            else {
                break;
            };
            shown.remove(at);
        }
        let rest = width.saturating_sub(least(&shown));
        let texts = shown.iter().filter(|&&at| columns[at].is_text);
        let weight: usize = texts.map(|&at| usize::from(columns[at].width)).sum();
        let wide = |at: usize| {
            let own = usize::from(columns[at].width);
            if columns[at].is_text {
                own + rest * own / weight.max(1)
            } else {
                own
            }
        };
        Layout {
            shown: shown.into_iter().map(|at| (at, wide(at))).collect(),
        }
    }

    /// The line of titles. The sorted one has a mark.
    pub fn titles(&self, columns: &[Column], sorted: usize, is_falling: bool) -> Vec<String> {
        let title = |&(at, width): &(usize, usize)| {
            let column = &columns[at];
            let mark = match (at == sorted, is_falling) {
                (false, _) => "",
                (true, true) => "v",
                (true, false) => "^",
            };
            let text = elide(&format!("{}{mark}", column.title), width, "");
            pad(text, width, column.is_text)
        };
        self.shown.iter().map(title).collect()
    }

    /// A row, cell by cell.
    pub fn cells(&self, columns: &[Column], row: &Row, style: Style) -> Vec<String> {
        let cell = |&(at, width): &(usize, usize)| {
            let text = row
                .cells
                .get(at)
                .map_or(String::new(), |cell| written(cell, style));
            let mark = if style.unicode { "…" } else { ".." };
            pad(elide(&text, width, mark), width, columns[at].is_text)
        };
        self.shown.iter().map(cell).collect()
    }
}

fn pad(text: String, width: usize, is_text: bool) -> String {
    let blanks = " ".repeat(width.saturating_sub(text.width()));
    if is_text {
        text + &blanks
    } else {
        blanks + &text
    }
}

/// A cell in at most seven columns, if it is a figure.
pub fn written(cell: &Cell, style: Style) -> String {
    let text = match cell {
        Cell::Text(text) => return ascii(text, style),
        Cell::Count(count) => count_text(*count),
        Cell::Seconds(seconds) => seconds_text(*seconds),
        Cell::Bytes(bytes) => bytes_text(*bytes),
        Cell::Share(share) => format!("{:.0}%", share * 100.0),
        Cell::Number(number) => number.to_string(),
        Cell::AtLeast(cell) => format!("≥{}", written(cell, style)),
        Cell::Unknown => "-".to_owned(),
    };
    ascii(&text, style)
}

/// Where the locale has no Unicode, other characters are shown as `?`.
pub fn ascii(text: &str, style: Style) -> String {
    if style.unicode || text.is_ascii() {
        return text.to_owned();
    }
    let c = |c: char| match c {
        'µ' => 'u',
        '≥' => '>',
        '\u{a0}' => ' ',
        c if c.is_ascii() => c,
        _ => '?',
    };
    text.chars().map(c).collect()
}

fn count_text(count: u64) -> String {
    match count {
        0..=999_999 => count.to_string(),
        _ => {
            let (mut scaled, mut unit) = (count as f64 / 1e6, 0);
            while scaled >= 999.5 && unit < 4 {
                scaled /= 1e3;
                unit += 1;
            }
            format!("{}{}", estimate(scaled), ["M", "G", "T", "P", "E"][unit])
        }
    }
}

/// `48.0M`: three digits, no blank; of 1024.
pub fn bytes_text(bytes: u64) -> String {
    let (mut scaled, mut unit) = (bytes as f64, 0);
    while scaled >= 999.5 && unit < 6 {
        scaled /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => bytes.to_string(),
        _ => format!(
            "{}{}",
            estimate(scaled),
            ["", "K", "M", "G", "T", "P", "E"][unit]
        ),
    }
}

/// `1.23ms`: three digits, no blank.
pub fn seconds_text(seconds: f64) -> String {
    let (scaled, unit) = match seconds.abs() {
        0.0 => return "0".to_owned(),
        v if v >= 99_999.5 => (seconds / 3600.0, "h"),
        v if v >= 1.0 => (seconds, "s"),
        v if v >= 0.999_5e-3 => (seconds * 1e3, "ms"),
        v if v >= 0.999_5e-6 => (seconds * 1e6, "µs"),
        _ => (seconds * 1e9, "ns"),
    };
    format!("{}{unit}", estimate(scaled))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views;
    use crate::{Shape, Tab};

    #[test]
    fn no_line_is_longer_than_the_terminal_and_the_sorted_column_stays() {
        for tab in Tab::ALL {
            let shapes = tab.groupings().iter();
            let shapes = shapes.flat_map(|&by| [false, true].map(|owners| Shape { by, owners }));
            for shape in shapes {
                let columns = views::columns(tab, shape);
                for width in 40..200 {
                    for keep in 0..columns.len() {
                        let layout = Layout::new(columns, width, keep);
                        let sum: usize = layout.shown.iter().map(|&(_, width)| width + GAP).sum();
                        assert!(sum - GAP <= width, "{tab:?} {shape:?} {width} {sum}");
                        assert!(layout.shown.iter().any(|&(at, _)| at == keep));
                    }
                }
            }
        }
    }

    #[test]
    fn figures_are_short() {
        for (seconds, text) in [
            (0.0, "0"),
            (0.0123, "12.3ms"),
            (4.2e-6, "4.20µs"),
            (3e-9, "3.00ns"),
            (12_345.0, "12345s"),
            (1e6, "278h"),
        ] {
            assert_eq!(seconds_text(seconds), text);
        }
        for (bytes, text) in [
            (0, "0"),
            (4096, "4.00K"),
            (1023 << 10, "0.999M"),
            (48 << 20, "48.0M"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(bytes_text(bytes), text);
        }
        assert_eq!(count_text(12_345_678), "12.3M");
        assert_eq!(count_text(u64::MAX), "18.4E");
    }
}
