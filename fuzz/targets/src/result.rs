//! Results of others: read, shown in every way, compared, written again.

use std::path::PathBuf;

use amdahl_report::load::{LoadError, parse};
use amdahl_report::schema::{Point, ScaleResult};
use amdahl_report::terminal::{self, Style};
use amdahl_report::{compare, headline, html, samples, save};
use bytes::Bytes;

use crate::markup::assert_markup;

/// A `result.json` of `amdahl locks`: what is read can be shown and written again.
pub(crate) fn locks(bytes: &[u8]) {
    use amdahl_report::locks::{Shown, csv, parse, render, render_html, to_json};
    let Ok(result) = parse(bytes, PathBuf::from("fuzz")) else {
        return;
    };
    for (width, unicode, owners) in [(0, false, true), (80, true, false), (500, true, true)] {
        let (style, shown) = (
            Style {
                color: false,
                unicode,
            },
            Shown {
                owners,
                ..Shown::default()
            },
        );
        assert_harmless(&render(&result, width, style, shown), false);
    }
    assert_markup(&render_html(&result, &[]));
    csv(&result);
    to_json(&result).expect("what was read can be written");
}

/// A `result.json`.
pub(crate) fn result(bytes: &[u8]) {
    let Some(result) = read(bytes) else { return };
    let stacks = result.points.iter().map(|point| &point.stack);
    for stack in stacks.filter(|stack| !stack.is_empty()) {
        let sum: f64 = stack.values().sum();
        assert!((0.98..1.02).contains(&sum), "a stack adds up to {sum}");
    }
    for (width, color, unicode) in [(0, false, false), (80, false, true), (500, true, true)] {
        assert_harmless(
            &terminal::render(&result, width, Style { color, unicode }),
            color,
        );
    }
    assert_harmless(&headline::text(&result), false);

    assert_markup(&html::render(&result, &[]));

    let text = save::to_json(&result).expect("what was read can be written");
    let again = parse(text.as_bytes(), PathBuf::new()).expect("and read again");
    assert_eq!(again, result);
}

/// A `samples.parquet`, drawn by pages of two results: one of the same point and one without any.
pub(crate) fn samples(bytes: &[u8]) {
    let rows = match samples::read_from(Bytes::copy_from_slice(bytes)) {
        Ok(rows) => rows,
        Err(why) => return assert!(!why.is_empty()),
    };
    let point = rows.iter().find(|row| row.cpus > 0).map(|row| Point {
        cpus: row.cpus,
        threads: row.threads,
        ..Point::default()
    });
    let of_point = ScaleResult {
        points: point.into_iter().collect(),
        ..ScaleResult::default()
    };
    for result in [of_point, ScaleResult::default()] {
        assert_markup(&html::render(&result, &rows));
    }
    let file = samples::write(rows.iter().cloned(), Vec::new()).expect("memory");
    assert_eq!(samples::read_from(Bytes::from(file)), Ok(rows));
}

/// Two results, a zero byte between them.
pub(crate) fn compare(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |&byte| byte == 0);
    let before = parts.next().unwrap_or_default();
    let after = parts.next().unwrap_or(before);
    let (Some(before), Some(after)) = (read(before), read(after)) else {
        return;
    };
    let comparison = compare::compare(&before, &after);
    for point in &comparison.points {
        assert!(point.ratio.is_none_or(f64::is_finite));
        assert!(
            point.interval.is_none_or(|[low, high]| low <= high),
            "{:?}",
            point.interval
        );
    }
    serde_json::to_string(&comparison).expect("plain data");
    for width in [0, 100] {
        assert_harmless(
            &terminal::render_comparison(&comparison, width, Style::default()),
            false,
        );
    }
}

fn read(bytes: &[u8]) -> Option<ScaleResult> {
    match parse(bytes, PathBuf::from("r")) {
        Ok(result) => Some(result),
        Err(error) => {
            assert!(!matches!(error, LoadError::Io { .. }), "there is no file");
            let message = error.to_string();
            assert!(
                message.len() < 2000 && !message.contains(char::is_control),
                "{message:?}"
            );
            None
        }
    }
}

/// Nothing in it steers a terminal but our own colours.
fn assert_harmless(text: &str, color: bool) {
    let steers = |c: char| c.is_control() && c != '\n' && !(color && c == '\u{1b}');
    assert!(
        !text.contains(steers),
        "{:?}",
        text.chars().find(|&c| steers(c))
    );
    if color {
        for code in text.split('\u{1b}').skip(1) {
            let (code, _) = code.split_once('m').expect("the end of a colour");
            let usual = |c: char| c.is_ascii_digit() || c == ';';
            assert!(
                code.strip_prefix('[')
                    .is_some_and(|code| code.chars().all(usual)),
                "{code:?}"
            );
        }
    }
}

/// A result of `amdahl sched`: what is accepted can be shown and saved.
pub(crate) fn sched(bytes: &[u8]) {
    use amdahl_report::sched::{html, load, picture, terminal, to_json};
    let Ok(result) = load::parse(bytes, "fuzz".into()) else {
        return;
    };
    let json = to_json(&result).expect("what was accepted is valid");
    assert_eq!(
        load::parse(json.as_bytes(), "fuzz".into()).expect("what was saved"),
        result
    );
    let text = terminal::render(&result, 80, amdahl_report::terminal::Style::default());
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
    assert_markup(&html::render(&result));
    let _ = picture::file(&result);
}
