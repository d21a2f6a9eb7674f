//! The result of `amdahl locks`: what is read, what is refused, what is shown.

mod fixture;

use std::path::PathBuf;

use amdahl_report::load::LoadError;
use amdahl_report::locks::schema::{LockRow, LocksResult};
use amdahl_report::locks::{self, Shown};
use amdahl_report::schema::SampleRow;
use amdahl_report::terminal::Style;
use fixture::locks::{hostile, result, row, site};
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

/// Two rows that differ in who called.
fn by_stack() -> LocksResult {
    let called_by = |caller: &str, times, total_s| {
        let at = site("queue_put", "/src/app/queue.c", 77);
        let frames = ["pthread_mutex_lock", "queue_put", caller, "main"];
        LockRow {
            stack: frames.map(str::to_owned).to_vec(),
            ..row("pthread mutex", "lock", at, times, total_s)
        }
    };
    LocksResult {
        by: "stack".to_owned(),
        rows: vec![called_by("import", 20, 2.0), called_by("answer", 10, 1.0)],
        ..result()
    }
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Rows of one line of code that differ in their callers were printed without them.
#[test]
fn rows_of_one_site_are_told_apart_by_their_stacks() {
    for width in [40, 80, 200] {
        let text = locks::render(&by_stack(), width, PLAIN, Shown::default());
        let words = words(&text);
        let (_, rest) = words
            .split_once("pthread_mutex_lock < queue_put < import < main")
            .expect(&text);
        assert!(
            rest.contains("pthread_mutex_lock < queue_put < answer < main"),
            "{text}"
        );
    }
    let mut of_site = by_stack();
    of_site.by = "site".to_owned();
    let text = locks::render(&of_site, 80, PLAIN, Shown::default());
    assert!(!text.contains("import"), "{text}");
    let csv = locks::csv(&by_stack());
    let stacks: Vec<&str> = csv
        .lines()
        .map(|line| column(&csv, line, "stack"))
        .collect();
    let stack_of = |caller| format!("pthread_mutex_lock;queue_put;{caller};main");
    assert_eq!(stacks[1..], [stack_of("import"), stack_of("answer")]);
}

/// Field of a line without quotes.
fn column<'a>(csv: &str, line: &'a str, name: &str) -> &'a str {
    let at = csv
        .lines()
        .next()
        .and_then(|header| header.split(',').position(|of| of == name));
    line.split(',').nth(at.expect("a column")).expect("a field")
}

/// Polled lower bounds looked exact.
#[test]
fn what_only_samples_tell_is_marked_in_comma_separated_values() {
    let mut polled = by_stack();
    polled.rows[1].at_least = true;
    let csv = locks::csv(&polled);
    let column = |line| column(&csv, line, "at_least");
    assert_eq!(
        csv.lines().map(column).collect::<Vec<_>>(),
        ["at_least", "false", "true"]
    );
}

/// Stacks of those who held a lock were in the JSON alone, and the CSV had no holds.
#[test]
fn holds_are_told_with_the_stack_that_acquired() {
    let fault = site("do_user_addr_fault", "", 0);
    let held = LockRow {
        in_kernel: true,
        stack: ["lock_mm_and_find_vma", "do_user_addr_fault", "touch"]
            .map(str::to_owned)
            .to_vec(),
        ..row("mmap_lock (read)", "lock", fault, 9, 0.5)
    };
    let with_holds = LocksResult {
        holds: vec![held],
        ..result()
    };
    let csv = locks::csv(&with_holds);
    let kinds: Vec<&str> = csv.lines().map(|line| column(&csv, line, "kind")).collect();
    assert_eq!(kinds[..2], ["kind", "wait"]);
    assert_eq!(kinds[kinds.len() - 2..], ["wait", "hold"]);
    let hold = csv.lines().last().expect("a hold");
    for (name, field) in [
        ("what", "mmap_lock (read)"),
        ("times", "9"),
        ("total_s", "0.500000000"),
        ("stack", "lock_mm_and_find_vma;do_user_addr_fault;touch"),
    ] {
        assert_eq!(column(&csv, hold, name), field, "{name}");
    }
    let text = locks::render(&with_holds, 80, PLAIN, Shown::default());
    let (_, holds) = text.split_once("\nHolds\n").expect("holds");
    let stack = "lock_mm_and_find_vma < do_user_addr_fault < touch";
    assert_eq!(holds.lines().nth(2).map(str::trim), Some(stack), "{text}");
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
        (|r| r.sort = "times".to_owned(), "rows.2.times"),
        (|r| r.sort = "site".to_owned(), "sort"),
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

/// The headline tells where most of the time went, whatever the first row is.
#[test]
fn rows_may_be_sorted_by_another_figure() {
    let mut by_times = result();
    by_times.sort = "times".to_owned();
    by_times
        .rows
        .sort_by_key(|row| std::cmp::Reverse(row.times));
    let json = locks::to_json(&by_times).expect("a true result");
    let read = locks::parse(json.as_bytes(), PathBuf::from("result.json"));
    assert_eq!(read.expect("the same"), by_times);
    let text = locks::render(&by_times, 80, PLAIN, Shown::default());
    let headline = text.lines().take_while(|line| !line.is_empty());
    let headline = words(&headline.collect::<Vec<_>>().join(" "));
    assert!(
        headline.contains("for pthread mutex in queue_put"),
        "{text}"
    );
    let (_, locks) = text.split_once("\nLocks\n").expect("locks");
    assert!(
        locks.lines().nth(1).expect("a row").starts_with("spinlock"),
        "{text}"
    );
    let csv = locks::csv(&by_times);
    let times: Vec<&str> = csv
        .lines()
        .skip(1)
        .map(|line| column(&csv, line, "times"))
        .collect();
    assert_eq!(times, ["88123", "1024", "77", "10"]);
    let page = locks::render_html(&by_times, &[]);
    assert!(page.contains("Most waits first") && !page.contains("Longest waiting time first"));
    assert!(locks::render_html(&result(), &[]).contains("Longest waiting time first"));
}

/// Rows without a 99th percentile are the last; equal means were rounded differently.
#[test]
fn rows_that_hardly_rise_are_no_untrue_result() {
    let mut result = result();
    for row in &mut result.rows {
        (row.times, row.total_s, row.max_s) = (3, 0.3, 0.3);
        row.mean_s = row.total_s / 3.0;
    }
    result.rows[3].mean_s = f64::from_bits(result.rows[3].mean_s.to_bits() + 1);
    result.rows[3].p99_s = None;
    result.sort = "mean".to_owned();
    assert!(locks::to_json(&result).is_ok());
    result.sort = "p99".to_owned();
    assert!(locks::to_json(&result).is_ok());
    result.rows.swap(0, 3);
    assert!(locks::to_json(&result).is_err());
}

#[test]
fn fields_of_the_csv_stay_fields() {
    let mut result = result();
    result.rows[0].site.symbol = "f<a, b>(\"x\")\n".to_owned();
    let csv = locks::csv(&result);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + result.rows.len());
    assert!(lines[1].starts_with("pthread mutex,lock,\"f<a, b>(\"\"x\"\")\u{fffd}\",/src"));
    for (name, field) in [
        ("from", ""),
        ("stack", ""),
        ("owners", ""),
        ("unowned", "0"),
    ] {
        assert_eq!(column(&csv, lines[2], name), field, "{name}");
    }
    let columns = lines[0].split(',').count();
    assert!(
        lines[2..]
            .iter()
            .all(|line| line.split(',').count() == columns),
        "{csv}"
    );
}

#[test]
fn owners_and_callers_are_columns_of_the_csv() {
    let mut result = result();
    result.rows.truncate(1);
    let put = &mut result.rows[0];
    put.from = site("store", "/src/app/store.c", 12);
    put.stack.push("visit::<[u8; 4]>".to_owned());
    let mut second = put.owners[0].clone();
    (second.thread, second.process) = (String::new(), "other".to_owned());
    (second.times, second.seconds) = (24, 0.1);
    second.site = site("", "", 0);
    put.owners.push(second);
    let csv = locks::csv(&result);
    let line = csv.lines().nth(1).expect("a row");
    for (name, field) in [
        ("from", "store"),
        ("from_file", "/src/app/store.c"),
        ("from_line", "12"),
        ("stack", "pthread_mutex_lock;queue_put;visit::<[u8: 4]>"),
        ("owners", "worker;other"),
        ("owner_sites", "queue_get queue.c:91;"),
        ("owner_times", "1000;24"),
        ("owner_s", "2.400000000;0.100000000"),
        ("unowned", "24"),
    ] {
        assert_eq!(column(&csv, line, name), field, "{name}");
    }
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
        let mut result = hostile(&text);
        let shown = Shown { owners: true, ..Shown::default() };
        for by in ["site", "stack", "thread"] {
            result.by = by.to_owned();
            let page = locks::render(&result, width, PLAIN, shown);
            let width = width.clamp(40, 200);
            for line in page.lines() {
                prop_assert!(line.width() <= width, "{line:?}");
                prop_assert!(!line.contains(STEERING));
            }
        }
        let page = locks::render_html(&result, &[]);
        prop_assert!(!page.contains("<script") && !page.contains(STEERING));
        prop_assert!(!locks::csv(&result).contains(STEERING));
    }
}
