//! A result of `amdahl sched` on the terminal, on the page, and from damaged files.

mod fixture;

use std::collections::BTreeMap;

use amdahl_report::sched::schema::{
    ChainEntry, ChainLink, CpuEntry, SchedResult, StealEntry, ThreadEntry, Wasted,
};
use amdahl_report::sched::{csv, html, load, terminal, to_json};
use amdahl_report::terminal::Style;
use fixture::sched::result;

const HOSTILE: &str = "\u{1b}[31m<script>alert(1)</script>\u{202e}";

#[test]
fn the_terminal_keeps_its_width_at_2_and_at_512_cpus() {
    for cpus in [2, 512] {
        for width in [60, 80, 120] {
            let text = terminal::render(
                &result(cpus, "worker"),
                width,
                Style {
                    color: false,
                    unicode: true,
                },
            );
            let longest = text
                .lines()
                .map(|line| line.chars().count())
                .max()
                .unwrap_or(0);
            assert!(longest <= width, "{longest} on {width}\n{text}");
            assert!(text.lines().count() < 140, "{text}");
        }
    }
}

/// Wake-ups just placed, and moved on within microseconds, were told as waste of the machine.
#[test]
fn the_first_sentences_count_what_lasted() {
    let said = |total_s: f64, brief_s: f64, brief_limit_s: f64| {
        let mut result = result(2, "worker");
        result.wasted = Wasted {
            placement_s: total_s,
            brief_s,
            brief_limit_s,
            ..Wasted::default()
        };
        let lines = terminal::render(&result, 200, Style::default());
        lines.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let only_brief = said(0.004, 0.004, 0.0005);
    assert!(
        only_brief.contains("No CPU idled for 500 us or longer while a thread waited elsewhere"),
        "{only_brief}"
    );
    let both = said(0.4, 0.1, 0.0005);
    assert!(
        both.contains("CPUs idled for 300.0 ms in turns of 500 us or longer"),
        "{both}"
    );
    assert!(both.contains("100 ms in shorter turns"), "{both}");
    assert!(
        both.contains("of it in turns shorter than 500 us"),
        "{both}"
    );
    // A result that does not tell them apart.
    let older = said(0.4, 0.0, 0.0);
    assert!(
        older.contains("CPUs idled for 400.0 ms while threads"),
        "{older}"
    );
}

#[test]
fn steal_has_a_column_where_there_is_some() {
    let said = |steal: Vec<StealEntry>| {
        let mut result = result(2, "worker");
        (result.steal, result.wall_s) = (steal, 2.0);
        terminal::render(&result, 120, Style::default())
    };
    let entry = |steal_s: f64| vec![StealEntry { cpu: 1, steal_s }];
    let text = said(entry(0.24));
    let row = |cpu: &str| {
        let mut lines = text.lines().skip_while(|line| *line != "CPUs").skip(1);
        let row = lines.find(|line| line.split_whitespace().next() == Some(cpu));
        row.expect("a row").split_whitespace().collect::<Vec<_>>()
    };
    assert!(
        text.contains("p99 wait") && text.contains("steal"),
        "{text}"
    );
    let (with, without) = (row("1"), row("0"));
    assert_eq!(with[with.len() - 2..], ["12.0", "%"], "{text}");
    assert_ne!(without.last(), Some(&"%"), "{text}");
    assert!(!said(Vec::new()).contains("steal"));
}

#[test]
fn foreign_text_steers_nothing() {
    let result = result(2, HOSTILE);
    let text = terminal::render(&result, 80, Style::default());
    assert!(!text.chars().any(|c| c.is_control() && c != '\n') && !text.contains('\u{202e}'));
    let page = html::render(&result);
    assert!(!page.contains("<script") && !page.contains('\u{1b}') && !page.contains('\u{202e}'));
    let csv = csv::render(&result);
    assert!(!csv.contains('\u{1b}') && !csv.contains('\u{202e}'));
}

#[test]
fn every_figure_of_the_page_is_in_the_result() {
    let result = result(2, "worker");
    let json: serde_json::Value = serde_json::from_str(&to_json(&result).unwrap()).unwrap();
    let page = html::render(&result);
    let mut figures = 0;
    for part in page.split("data-figure=\"").skip(1) {
        let (path, rest) = part.split_once('"').unwrap();
        let value = rest
            .split_once("data-value=\"")
            .unwrap()
            .1
            .split_once('"')
            .unwrap()
            .0;
        let found = path
            .split('.')
            .fold(&json, |at, key| match key.parse::<usize>() {
                Ok(index) if at.is_array() => &at[index],
                _ => &at[key],
            });
        assert_eq!(found.as_f64(), value.parse().ok(), "{path}");
        figures += 1;
    }
    assert!(figures > 100);
}

/// Phantom time was once that in run queues alone, and each guest's CPU had a number.
#[test]
fn guests_of_older_and_newer_results_are_shown() {
    let mut result = result(2, "worker");
    let shown = |result: &SchedResult| {
        let text = terminal::render(result, 120, Style::default());
        let mut lines = text
            .lines()
            .skip_while(|line| *line != "CPUs of guests")
            .skip(2);
        let row = lines.next().expect("a row").to_owned();
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(
        shown(&result).starts_with("worker 4 3 1.00 s 250 ms 125 ms 27.3 %"),
        "{}",
        shown(&result)
    );
    (result.guests[0].guest_cpu, result.guests[0].blocked_s) = (None, 0.0);
    assert!(
        shown(&result).starts_with("worker 4 ? 1.00 s 250 ms 0 20.0 %"),
        "{}",
        shown(&result)
    );
    assert!(html::render(&result).contains("not known"));
    let json = to_json(&result).expect("a result");
    assert!(!json.contains("guest_cpu"));
    assert_eq!(
        load::parse(json.as_bytes(), "x".into()).expect("the same"),
        result
    );
    let old = r#"{"schema":"amdahl.sched/1","guests":[{"vmm":"QEMU","pid":9,"tid":10,"guest_cpu":0,"run_s":1,"phantom_s":1}]}"#;
    let old = load::parse(old.as_bytes(), "x".into()).expect("an older result");
    assert!(
        shown(&old).starts_with("QEMU 9 0 1.00 s 1.00 s 0 50.0 %"),
        "{}",
        shown(&old)
    );
    assert!(old.timelines.is_none() && !html::render(&old).contains("timelines"));
}

#[test]
fn pictures_tell_those_who_do_not_see_them_what_they_show() {
    let page = html::render(&result(256, "worker"));
    let (_, picture) = page.split_once("id=\"timelines-title\">").expect("a title");
    assert!(picture.starts_with("What 300 threads did over time</title>"));
    let (_, words) = picture
        .split_once("id=\"timelines-desc\">")
        .expect("a description");
    let (words, _) = words.split_once("</desc>").expect("its end");
    for word in [
        "running",
        "waiting for a CPU",
        "blocked",
        "sleep",
        "12 more threads",
    ] {
        assert!(words.contains(word), "{words}");
    }
}

/// The cells of a row of CSV by the names of their columns; no name of the results here needs quotes.
fn cells<'a>(header: &'a str, row: &'a str) -> BTreeMap<&'a str, &'a str> {
    let (names, cells): (Vec<&str>, Vec<&str>) =
        (header.split(',').collect(), row.split(',').collect());
    assert_eq!(names.len(), cells.len(), "{row}");
    names.into_iter().zip(cells).collect()
}

/// Only threads were printed.
#[test]
fn all_tables_are_printed_as_comma_separated_values() {
    let mut result = result(2, "worker");
    result.migrations.llc = 4;
    result.steal = vec![StealEntry {
        cpu: 1,
        steal_s: 0.5,
    }];
    let link = |name: &str, woken_s| ChainLink {
        tid: 7,
        name: name.to_owned(),
        woken_s,
        waited_s: 0.25,
        active_s: 0.5,
    };
    result.chains = vec![ChainEntry {
        total_s: 2.0,
        began_by: "timer".to_owned(),
        is_cut: true,
        links: vec![link("first", 0.0), link("second", 1.0)],
    }];
    let text = csv::render(&result);
    let (header, rows) = text.split_once("\r\n").unwrap();
    let rows: Vec<_> = rows.lines().map(|row| cells(header, row)).collect();
    let of = |table: &str| {
        let rows = rows.iter().filter(|row| row["table"] == table);
        rows.collect::<Vec<_>>()
    };
    for (table, count) in [
        ("thread", 30),
        ("cpu", 2),
        ("latency", 3),
        ("wasted", 4),
        ("wasted-pair", 1),
        ("waker", 1),
        ("migration", 5),
        ("guest", 1),
        ("steal", 1),
        ("chain", 1),
        ("chain-link", 2),
    ] {
        assert_eq!(of(table).len(), count, "{table}");
    }
    assert_eq!(rows.len(), 51);
    let last = of("chain-link")[1];
    for (name, cell) in [
        ("chain", "1"),
        ("name", "second"),
        ("tid", "7"),
        ("woken_s", "1.000000000"),
        ("wait_s", "0.250000000"),
        ("run_s", "0.500000000"),
    ] {
        assert_eq!(last[name], cell, "{name}");
    }
    for (table, cells) in [
        (
            "thread",
            &[("name", "worker"), ("pid", "1"), ("p99_s", "0.004000000")][..],
        ),
        ("cpu", &[("cpu", "0"), ("run_s", "3.000000000")]),
        (
            "latency",
            &[
                ("name", "wake-up"),
                ("count", "12345"),
                ("max_s", "0.250000000"),
            ],
        ),
        (
            "wasted",
            &[("name", "affinity"), ("wasted_s", "0.500000000")],
        ),
        (
            "wasted-pair",
            &[
                ("name", "worker"),
                ("cpu", "511"),
                ("other_cpu", "3"),
                ("count", "4"),
            ],
        ),
        (
            "waker",
            &[("name", "worker"), ("other_name", "worker"), ("count", "7")],
        ),
        (
            "guest",
            &[
                ("cpu", "3"),
                ("wait_s", "0.250000000"),
                ("sleep_s", "0.125000000"),
            ],
        ),
        ("steal", &[("cpu", "1"), ("total_s", "0.500000000")]),
        (
            "chain",
            &[
                ("name", "timer"),
                ("other_name", "cut"),
                ("count", "2"),
                ("chain", "1"),
            ],
        ),
    ] {
        let row = of(table)[0];
        for (name, cell) in cells {
            assert_eq!(row[name], *cell, "{table} {name}");
        }
    }
    assert!(
        of("migration")
            .iter()
            .any(|row| (row["name"], row["count"]) == ("llc", "4"))
    );
}

#[test]
fn what_is_not_known_is_an_empty_cell() {
    let result = SchedResult {
        cpus: vec![CpuEntry {
            run_s: 1.0,
            ..CpuEntry::default()
        }],
        threads: vec![ThreadEntry {
            name: "worker".to_owned(),
            ..ThreadEntry::default()
        }],
        ..SchedResult::default()
    };
    let text = csv::render(&result);
    let (header, rows) = text.split_once("\r\n").unwrap();
    let rows: Vec<_> = rows.lines().map(|row| cells(header, row)).collect();
    assert_eq!(rows.len(), 2);
    for row in rows {
        for name in ["wasted_s", "p99_s", "preempted", "migrations"] {
            assert_eq!(row[name], "", "{row:?}");
        }
        assert!(!row["run_s"].is_empty());
    }
}

#[test]
fn what_is_saved_is_read_again() {
    let result = result(2, "worker");
    let json = to_json(&result).unwrap();
    assert_eq!(load::parse(json.as_bytes(), "x".into()).unwrap(), result);
}

#[test]
fn figures_that_cannot_be_are_refused() {
    let spoil: [fn(&mut SchedResult); 9] = [
        |r| r.wall_s = -1.0,
        |r| r.wall_s = f64::NAN,
        |r| r.threads[3].wake_latency.p99_s = 1e30,
        |r| r.picture.as_mut().unwrap().cpus[0].runs.push([1, 0, 0]),
        |r| {
            let picture = r.picture.as_mut().unwrap();
            picture.cpus[0].runs[0][1] = picture.threads.len() as u32 + 1;
        },
        |r| r.schema = "amdahl.sched/2".to_owned(),
        |r| r.guests[0].blocked_s = f64::INFINITY,
        |r| {
            r.timelines.as_mut().unwrap().threads[0]
                .runs
                .push([1, 0, 0, 0, 0])
        },
        |r| r.timelines.as_mut().unwrap().threads[1].runs[0] = [1, 9, 4, 2, 2],
    ];
    for spoil in spoil {
        let mut result = result(2, "worker");
        spoil(&mut result);
        assert!(to_json(&result).is_err());
    }
}

#[test]
fn events_that_were_left_out_are_told_where_there_are_some() {
    let mut some = result(2, "worker");
    assert!(some.totals.events_refused > 0);
    let told = |result: &SchedResult| {
        let text = terminal::render(result, 120, Style::default());
        (
            text.contains("were left out"),
            html::render(result).contains("left out"),
        )
    };
    assert_eq!(told(&some), (true, true));
    some.totals.events_refused = 0;
    assert_eq!(told(&some), (false, false));
}
