//! The result of `amdahl locks`: what is read, what is refused, what is shown.

use std::path::PathBuf;

use amdahl_report::load::LoadError;
use amdahl_report::locks::schema::{CodeSite, LockRow, LocksResult, Nested, Owner, SCHEMA, Step};
use amdahl_report::locks::{self, Shown};
use amdahl_report::schema::{Machine, SampleRow, Source};
use amdahl_report::terminal::Style;
use proptest::prelude::*;
use unicode_width::UnicodeWidthStr;

const PLAIN: Style = Style {
    color: false,
    unicode: true,
};

fn site(symbol: &str, file: &str, line: u32) -> CodeSite {
    CodeSite {
        symbol: symbol.to_owned(),
        file: (!file.is_empty()).then(|| file.to_owned()),
        line: (line > 0).then_some(line),
        module: "/usr/bin/app".to_owned(),
    }
}

fn row(what: &str, class: &str, site: CodeSite, times: u64, total_s: f64) -> LockRow {
    LockRow {
        what: what.to_owned(),
        class: class.to_owned(),
        site,
        times,
        sleeps: times,
        total_s,
        max_s: total_s / 4.0,
        mean_s: total_s / times as f64,
        p99_s: Some(total_s / 5.0),
        locks: 1,
        threads: 4,
        sites: 1,
        ..LockRow::default()
    }
}

fn result() -> LocksResult {
    let mut put = row(
        "pthread mutex",
        "lock",
        site("queue_put", "/src/app/queue.c", 77),
        1024,
        2.5,
    );
    put.owners.push(Owner {
        process: "app".to_owned(),
        thread: "worker".to_owned(),
        threads: 3,
        site: site("queue_get", "/src/app/queue.c", 91),
        times: 1000,
        seconds: 2.4,
    });
    put.nested.push(Nested {
        chain: vec![Step {
            what: "mutex".to_owned(),
            site: site("pipe_write", "", 0),
        }],
        times: 12,
        seconds: 0.3,
    });
    put.unowned = 24;
    put.stack = vec!["pthread_mutex_lock".to_owned(), "queue_put".to_owned()];
    let mut spin = row(
        "spinlock",
        "lock",
        site("free_pcppages_bulk", "", 0),
        88_123,
        0.0123,
    );
    spin.in_kernel = true;
    LocksResult {
        schema: SCHEMA.to_owned(),
        amdahl_version: "0.1.0".to_owned(),
        target: "the system".to_owned(),
        seconds: 10.0,
        machine: Machine {
            kernel: "6.18.0".to_owned(),
            cpus_online: 2,
            cpus_allowed: 2,
            ..Machine::default()
        },
        sources: vec![Source {
            what: "waits".to_owned(),
            how: "bpf".to_owned(),
            ..Source::default()
        }],
        by: "site".to_owned(),
        p99_error: 1.0 / 32.0,
        rows: vec![
            put,
            row(
                "pthread condvar",
                "partner",
                site("idle", "/src/app/pool.c", 5),
                10,
                1.0,
            ),
            row(
                "parking_lot rwlock (write)",
                "lock",
                site(
                    "<app::store::Store as app::store::Put<u64>>::put_all",
                    "/src/app/store.rs",
                    412,
                ),
                77,
                0.2,
            ),
            spin,
        ],
        events: 89_000,
        events_lost: 3,
        ..LocksResult::default()
    }
}

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

fn hostile(text: &str) -> LocksResult {
    let mut result = result();
    result.target = text.to_owned();
    for row in &mut result.rows {
        for field in [
            &mut row.what,
            &mut row.site.symbol,
            &mut row.thread,
            &mut row.process,
            &mut row.address,
        ] {
            *field = text.to_owned();
        }
        row.site.file = Some(text.to_owned());
        row.stack = vec![text.to_owned()];
        row.tid = 7;
    }
    result
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
