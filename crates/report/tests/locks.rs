//! The result of `amdahl locks`: what is read, what is refused, what is shown.

mod fixture;

use std::path::PathBuf;

use amdahl_report::load::LoadError;
use amdahl_report::locks::schema::LocksResult;
use amdahl_report::locks::{self, Shown};
use amdahl_report::schema::SampleRow;
use amdahl_report::terminal::Style;
use fixture::locks::{hostile, result};
use proptest::prelude::*;
use unicode_width::UnicodeWidthStr;

const PLAIN: Style = Style {
    color: false,
    unicode: true,
};

#[test]
fn the_table_on_80_columns() {
    let shown = Shown {
        rows: 20,
        owners: true,
    };
    let text = locks::render(&result(), 80, PLAIN, shown);
    assert_eq!(text, include_str!("locks-80.txt"), "\n{text}");
}

#[test]
fn what_is_saved_is_read_again() {
    let json = locks::to_json(&result()).unwrap();
    let read = locks::parse(json.as_bytes(), PathBuf::from("result.json")).unwrap();
    assert_eq!(read, result());
}

#[test]
fn untrue_results_are_refused_by_name() {
    type Damage = fn(&mut LocksResult);
    for (damage, place) in [
        ((|r| r.rows[0].max_s = 9.0) as Damage, "rows.0.max_s"),
        (|r| r.rows[0].mean_s = 1.0, "rows.0.mean_s"),
        (|r| r.rows.swap(0, 3), "rows.1.total_s"),
        (|r| r.seconds = -1.0, "seconds"),
        (|r| r.rows[0].what = "x".repeat(1 << 20), "rows.0.what"),
    ] {
        let mut damaged = result();
        damage(&mut damaged);
        let json = serde_json::to_vec(&damaged).unwrap();
        match locks::parse(&json, PathBuf::from("r")) {
            Err(LoadError::Invalid { at, .. }) => assert_eq!(at, place),
            other => panic!("{place}: {other:?}"),
        }
    }
    let scale = br#"{"schema":"amdahl.scale/1"}"#;
    let refused = locks::parse(scale, PathBuf::from("r")).unwrap_err();
    assert!(matches!(refused, LoadError::Schema { .. }), "{refused}");
}

#[test]
fn fields_of_the_csv_stay_fields() {
    let mut result = result();
    result.rows[0].site.symbol = "f<a, b>(\"x\")\n".to_owned();
    let csv = locks::csv(&result);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + result.rows.len());
    assert!(lines[1].starts_with("pthread mutex,lock,\"f<a, b>(\"\"x\"\")\u{fffd}\",/src"));
    let columns = lines[0].split(',').count();
    assert!(
        lines[2..]
            .iter()
            .all(|line| line.split(',').count() == columns),
        "{csv}"
    );
}

#[test]
fn the_page_has_every_figure_and_no_script() {
    let sample = SampleRow {
        cause: "pthread mutex".to_owned(),
        stack: "pthread_mutex_lock;queue_put;main".to_owned(),
        charged_ns: 2_500_000_000,
        ..SampleRow::default()
    };
    let page = locks::render_html(&result(), &[sample]);
    for path in [
        "rows.0.total_s",
        "rows.3.times",
        "rows.0.owners.0.times",
        "rows.0.nested.0.seconds",
    ] {
        assert!(page.contains(&format!("data-figure=\"{path}\"")), "{path}");
    }
    assert!(page.contains("queue_put") && page.contains("/src/app/queue.c:77"));
    assert!(!page.contains("<script"));
}

const STEERING: [char; 2] = ['\u{1b}', '\u{202e}'];

proptest! {
    #[test]
    fn no_name_steers_the_terminal_or_the_page(text in any::<String>(), width in 0_usize..300) {
        let text = format!("{text}\u{1b}[31m</style><script>\u{202e}");
        let result = hostile(&text);
        let shown = Shown { owners: true, ..Shown::default() };
        let page = locks::render(&result, width, PLAIN, shown);
        let width = width.clamp(40, 200);
        for line in page.lines() {
            prop_assert!(line.width() <= width, "{line:?}");
            prop_assert!(!line.contains(STEERING));
        }
        let page = locks::render_html(&result, &[]);
        prop_assert!(!page.contains("<script") && !page.contains(STEERING));
        prop_assert!(!locks::csv(&result).contains(STEERING));
    }
}
