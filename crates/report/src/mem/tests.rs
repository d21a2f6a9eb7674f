//! What is written can be read again; hostile text stays text; lines fit.

use proptest::prelude::*;
use unicode_width::UnicodeWidthStr;

use super::schema::*;
use super::*;
use crate::schema::{Notice, SampleRow, Source};
use crate::terminal::Style;

fn code(symbol: &str) -> Code {
    Code {
        symbol: symbol.into(),
        module: "/bin/x".into(),
        file: Some("/src/fill.c".into()),
        line: Some(12),
        stack: vec![symbol.into(), "main".into()],
    }
}

/// A result with everything in it, all texts from outside being `text`.
fn sample(text: &str) -> MemResult {
    let row = |operation: &str| LockRow {
        operation: operation.into(),
        mode: "write".into(),
        count: 4,
        seconds: 0.002,
        max_s: 0.001,
        p99_s: Some(0.001),
    };
    let mapping = MappingReport {
        pid: 7,
        process: text.into(),
        start: "7f0000000000".into(),
        bytes: 64 << 20,
        name: text.into(),
        backing: "anonymous".into(),
        resident_bytes: 48 << 20,
        huge_bytes: 16 << 20,
        sizes: [(4096, 32 << 20), (2 << 20, 16 << 20)].into(),
        sizes_seen_bytes: 12 << 20,
        nodes: [(0, 48 << 20)].into(),
        obstacles: vec![("not-advised".into(), 32 << 20)],
        gain_pages: 8192,
        gain_table_bytes: 65536,
        ..MappingReport::default()
    };
    MemResult {
        schema: SCHEMA.into(),
        command: vec![text.into()],
        duration_s: 1.5,
        sources: vec![Source {
            what: "TLB misses".into(),
            how: "missing".into(),
            missing: "no counters".into(),
            remedy: "run on hardware".into(),
        }],
        warnings: vec![Notice {
            code: "busy".into(),
            text: text.into(),
        }],
        processes: vec![ProcessMemory {
            pid: 7,
            name: text.into(),
            resident_bytes: 48 << 20,
            huge_bytes: 16 << 20,
            obstructed_bytes: 32 << 20,
            mappings: 31,
        }],
        huge: HugePages {
            size_bytes: 2 << 20,
            page_bytes: 4096,
            anonymous: "madvise".into(),
            shmem: "never".into(),
            sizes: vec![PageSize {
                bytes: 65536,
                anonymous: "never".into(),
                ..PageSize::default()
            }],
            free: vec![Zone {
                name: "Normal".into(),
                free_bytes: 1 << 30,
                huge_pages: 3,
                unusable: 0.9,
                fragmentation: Some(0.5),
                ..Zone::default()
            }],
            movable: Some(0.95),
            given: Some(4),
            refused: Some(1),
            obstacles: vec![ObstacleReport {
                id: "not-advised".into(),
                text: "Not advised.".into(),
                remedy: "madvise it".into(),
                bytes: 32 << 20,
                mappings: 1,
                huge_pages: 16,
                pages: 8192,
            }],
            mappings: vec![mapping],
            mappings_left_out: 30,
            ..HugePages::default()
        },
        faults: Faults {
            count: 10,
            seconds: 0.01,
            is_timed: true,
            accounted: Some(12),
            lost: 1,
            kinds: vec![FaultKind {
                kind: "first-touch".into(),
                count: 10,
                seconds: 0.01,
                max_s: 0.004,
            }],
            sites: vec![FaultSite {
                kind: "first-touch".into(),
                count: 10,
                seconds: 0.01,
                max_s: 0.004,
                pid: 7,
                process: text.into(),
                object: text.into(),
                syscall: "read".into(),
                code: code(text),
            }],
            left_out: 0,
        },
        mmap_lock: MmapLock {
            waits: vec![row("mmap")],
            has_holds: true,
            holds: vec![row("munmap"), row("proc-reader")],
            strangers: vec![LockStranger {
                operation: "proc-reader".into(),
                mode: "write".into(),
                count: 4,
                seconds: 0.002,
                max_s: 0.001,
                waits: 3,
                waited_s: 0.003,
                waited_max_s: 0.002,
                process: text.into(),
                processes: 2,
                of_pid: 7,
                of_process: text.into(),
            }],
            sites: vec![LockSite {
                operation: "mmap".into(),
                mode: "write".into(),
                count: 4,
                seconds: 0.002,
                max_s: 0.001,
                pid: 7,
                process: text.into(),
                code: code(text),
            }],
        },
        tlb: Some(Tlb {
            instructions: 1e9,
            data_per_thousand: Some(1.5),
            counted: 0.5,
            ..Tlb::default()
        }),
        numa: Some(Numa {
            nodes: vec![
                Node {
                    bytes: 1,
                    ..Node::default()
                },
                Node {
                    node: 1,
                    touched: 5,
                    ..Node::default()
                },
            ],
            remote: Some(0.25),
            concentration: 1.0,
        }),
        vmalloc: Some(Vmalloc {
            allocs: 3,
            sites: vec![VmallocSite {
                pid: 7,
                process: text.into(),
                syscall: "clone".into(),
                count: 3,
                bytes: 9,
                max_bytes: 4,
            }],
            ..Vmalloc::default()
        }),
        ..MemResult::default()
    }
}

#[test]
fn what_is_written_is_read_again() {
    let result = sample("fill");
    let json = to_json(&result).expect("valid");
    assert_eq!(
        parse(json.as_bytes(), "x".into()).expect("readable"),
        result
    );
}

/// Cells by the names of their columns.
type Cells = std::collections::BTreeMap<String, String>;

/// The rows of [`sample`], in which no cell has quotes.
fn csv_of(result: &MemResult) -> Vec<Cells> {
    let text = csv::render(result);
    let (header, rows) = text.split_once("\r\n").expect("a header");
    let names: Vec<&str> = header.split(',').collect();
    let row = |row: &str| -> Cells {
        let cells: Vec<&str> = row.split(',').collect();
        assert_eq!(cells.len(), names.len(), "{row}");
        let named = names.iter().zip(cells);
        named
            .map(|(name, cell)| (name.to_string(), cell.to_owned()))
            .collect()
    };
    rows.lines().map(row).collect()
}

/// There were no huge pages of mappings, no sizes, free memory, misses, percentiles and sums of the kernel's ranges.
#[test]
fn all_tables_are_printed_as_comma_separated_values() {
    let mut result = sample("fill");
    result.huge.pools = vec![Pool {
        bytes: 2 << 20,
        pages: 5,
        free: 2,
    }];
    result.huge.machine = Some(Coverage {
        anonymous_bytes: 9,
        anonymous_huge_bytes: 4,
        ..Coverage::default()
    });
    result.vmalloc.as_mut().expect("told").frees = 8;
    let rows = csv_of(&result);
    for (table, what, cells) in [
        (
            "process",
            "",
            &[("bytes", "50331648"), ("huge_bytes", "16777216")][..],
        ),
        (
            "obstacle",
            "not-advised",
            &[("gain", "16"), ("detail_count", "8192")],
        ),
        (
            "mapping",
            "not-advised",
            &[("huge_bytes", "16777216"), ("gain", "8192")],
        ),
        (
            "mapping-size",
            "2097152",
            &[("bytes", "16777216"), ("detail_bytes", "12582912")],
        ),
        (
            "mapping-node",
            "0",
            &[("bytes", "50331648"), ("where", "7f0000000000")],
        ),
        (
            "page-size",
            "65536",
            &[("detail", "never"), ("refused", "")],
        ),
        ("pool", "2097152", &[("count", "5"), ("free", "2")]),
        (
            "free",
            "0",
            &[
                ("detail", "Normal"),
                ("share", "0.900000"),
                ("fragmentation", "0.500000"),
            ],
        ),
        (
            "machine",
            "anonymous",
            &[("bytes", "9"), ("huge_bytes", "4")],
        ),
        ("machine", "huge pages", &[("count", "4"), ("refused", "1")]),
        ("machine", "movable", &[("share", "0.950000")]),
        ("fault", "", &[("count", "10"), ("detail_count", "12")]),
        (
            "fault",
            "first-touch",
            &[("count", "10"), ("seconds", "0.010000000")],
        ),
        (
            "fault-site",
            "first-touch",
            &[("where", "fill in read fill.c:12")],
        ),
        ("mmap-lock-wait", "mmap", &[("p99_s", "0.001000000")]),
        ("mmap-lock-stranger", "proc-reader", &[("count", "4")]),
        (
            "tlb",
            "data",
            &[
                ("per_thousand", "1.500000"),
                ("share", "0.500000"),
                ("count", ""),
            ],
        ),
        ("tlb", "instructions", &[("count", "1000000000")]),
        ("node", "1", &[("count", "5")]),
        ("numa", "remote", &[("share", "0.250000")]),
        ("vmalloc-sum", "allocated", &[("count", "3")]),
        ("vmalloc-sum", "given back", &[("count", "8")]),
        ("vmalloc", "clone", &[("bytes", "9")]),
    ] {
        let row = rows
            .iter()
            .find(|row| row["table"] == table && row["what"] == what);
        let row = row.unwrap_or_else(|| panic!("{table} {what}: {rows:?}"));
        for (name, cell) in cells {
            assert_eq!(row[*name], *cell, "{table} {what} {name}");
        }
    }
}

/// They were in the JSON and on the page alone.
#[test]
fn callers_and_sizes_between_are_shown() {
    let mut result = sample("fill");
    let mapping = &mut result.huge.mappings[0];
    mapping.sizes = [(4096, 24 << 20), (64 << 10, 8 << 20), (2 << 20, 16 << 20)].into();
    let text = terminal::render(&result, 120, Style::default());
    let plain = text.replace('\u{a0}', " ");
    assert!(plain.contains("fill < main"), "{text}");
    let row = plain
        .lines()
        .find(|line| line.contains("not-advised") && line.contains("fill"));
    let row = row.unwrap_or_else(|| panic!("{text}"));
    assert!(row.contains("64.0 KiB 16.7 %"), "{row}");
    assert!(!row.contains("4.00 KiB"), "{row}");
    // First uses are told by their bytes: five pages of 4 KiB on node 1.
    let row = plain.lines().find(|line| line.contains("20.0 KiB"));
    let row = row.unwrap_or_else(|| panic!("{text}"));
    assert_eq!(row.split_whitespace().next(), Some("1"), "{row}");
}

#[test]
fn untrue_results_are_refused() {
    let refused = |change: fn(&mut MemResult)| {
        let mut result = sample("fill");
        change(&mut result);
        let json = serde_json::to_string(&result).expect("serialised");
        let loaded = parse(json.as_bytes(), "x".into());
        assert!(loaded.is_err() && to_json(&result).is_err() | (result.schema != SCHEMA));
        loaded.expect_err("refused").to_string()
    };
    assert!(refused(|r| r.schema = "amdahl.mem/9".into()).contains("amdahl.mem/9"));
    assert!(refused(|r| r.faults.kinds[0].max_s = 1.0).contains("faults.kinds.0.max_s"));
    assert!(refused(|r| r.huge.free[0].unusable = 2.0).contains("huge.free.0.unusable"));
    assert!(refused(|r| r.huge.mappings[0].huge_bytes = 1 << 40).contains("huge.mappings.0"));
    assert!(refused(|r| r.duration_s = -1.0).contains("duration_s"));
    assert!(parse(b"[", "x".into()).is_err());
}

#[test]
fn every_number_on_the_page_is_in_the_file() {
    let result = sample("fill");
    let json: serde_json::Value = serde_json::to_value(&result).expect("serialised");
    let page = html::render(&result, &[]);
    let mut figures = 0;
    for piece in page.split("data-figure=\"").skip(1) {
        let (path, rest) = piece.split_once('"').expect("a path");
        let value = rest.split("data-value=\"").nth(1).expect("a value");
        let value: f64 = value
            .split('"')
            .next()
            .expect("a value")
            .parse()
            .expect("a number");
        let mut found = &json;
        for step in path.split('.') {
            found = match step.parse::<usize>() {
                Ok(at) if found.is_array() => &found[at],
                _ => &found[step],
            };
        }
        assert_eq!(found.as_f64(), Some(value), "{path}");
        figures += 1;
    }
    assert!(figures > 30, "{figures}");
}

#[test]
fn hostile_text_stays_text() {
    let evil = "<script>alert(1)</script>\u{1b}[2J\u{202e}\"'&\n";
    let rows = [SampleRow {
        cause: "first-touch".into(),
        stack: evil.into(),
        charged_ns: 10_000,
        ..SampleRow::default()
    }];
    let page = html::render(&sample(evil), &rows);
    assert!(!page.contains("<script") && !page.contains('\u{1b}') && !page.contains('\u{202e}'));
    let text = terminal::render(&sample(evil), 80, Style::default());
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    let csv = csv::render(&sample(evil));
    assert!(
        !csv.contains('\u{1b}') && csv.lines().count() == csv_of(&sample("fill")).len() + 1,
        "{csv}"
    );
}

#[test]
fn an_empty_result_is_shown() {
    let result = MemResult {
        schema: SCHEMA.into(),
        ..MemResult::default()
    };
    assert!(terminal::render(&result, 80, Style::default()).contains("How it was measured"));
    assert!(html::render(&result, &[]).contains("Nothing was seen."));
    assert!(to_json(&result).is_ok());
}

proptest! {
    #[test]
    fn lines_fit(width in 40usize..120, text in "\\PC{0,60}", unicode: bool) {
        let shown = terminal::render(&sample(&text), width, Style { color: false, unicode });
        for line in shown.lines() {
            prop_assert!(line.width() <= width, "{}: {line}", line.width());
        }
    }

    #[test]
    fn any_file_is_read_or_refused(text in "[\\[\\]{}\":,a-z0-9]{0,80}") {
        let _ = parse(text.as_bytes(), "x".into());
    }
}
