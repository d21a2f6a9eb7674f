//! The points of a sweep that a job array has to do, as a file: ranges of their numbers, a line each.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::failure::Failure;

/// Ascending numbers as ranges, `FIRST-LAST` or a number alone.
pub fn text(points: &[u64]) -> String {
    let mut text = String::new();
    let follow = |a: &u64, b: &u64| a.checked_add(1) == Some(*b);
    for range in points.chunk_by(follow) {
        let (first, last) = (range[0], range[range.len() - 1]);
        let _ = match first == last {
            true => writeln!(text, "{first}"),
            false => writeln!(text, "{first}-{last}"),
        };
    }
    text
}

/// Reads such a file of a sweep of `count` points: it may be of another sweep.
pub fn read(path: &Path, count: u64) -> Result<Vec<u64>, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    parse(&text, count).ok_or_else(|| {
        Failure::usage(format!(
            "{}: not a list of points of this sweep, which has {count}",
            path.display()
        ))
    })
}

fn parse(text: &str, count: u64) -> Option<Vec<u64>> {
    let mut points = vec![];
    for line in text.lines() {
        let (first, last) = line.split_once('-').unwrap_or((line, line));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        let is_next = points.last().is_none_or(|&before| before < first);
        // Bounds what is taken: ascending, and below what there is.
        if !is_next || first > last || last >= count {
            return None;
        }
        points.extend(first..=last);
    }
    Some(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_short_and_come_back() {
        for (points, expected) in [
            (&[][..], ""),
            (&[3], "3\n"),
            (&[0, 1, 2, 5, 7, 8], "0-2\n5\n7-8\n"),
        ] {
            assert_eq!(text(points), expected);
            assert_eq!(parse(expected, 9).as_deref(), Some(points));
        }
    }

    #[test]
    fn what_is_no_list_of_the_sweep_is_refused() {
        for wrong in [
            "9",
            "0-9",
            "3\n3",
            "3\n1",
            "2-1",
            "x",
            "1-",
            "-1",
            "0-18446744073709551615",
        ] {
            assert_eq!(parse(wrong, 9), None, "{wrong}");
        }
    }
}
