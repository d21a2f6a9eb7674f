//! `compare` and `report` on files of others: damaged, hostile, or no files at all.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::process::Command;

use amdahl_report::samples;
use amdahl_report::schema::{
    CauseReport, Notice, Point, SCHEMA, SampleRow, ScaleResult, Site, Spread,
};
use serde_json::{Value, json};

use crate::tool::{Place, Ran, has};

fn spread(runs: &[f64]) -> Spread {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    Spread {
        median: sorted[sorted.len() / 2],
        min: sorted[0],
        max: sorted[sorted.len() - 1],
        runs: runs.to_vec(),
    }
}

/// A result whose times on one and on two CPUs are `factor` times the usual ones.
fn result(factor: f64) -> ScaleResult {
    let point = |cpus: u32, wall: f64| {
        let runs: Vec<f64> = (0..7)
            .map(|i| factor * wall * (1.0 + f64::from(i) / 1000.0))
            .collect();
        Point {
            cpus,
            threads: cpus,
            wall_s: spread(&runs),
            probed_wall_s: spread(&runs),
            speedup: 4.0 / wall,
            speedup_range: [4.0 / wall, 4.0 / wall],
            efficiency: 4.0 / wall / f64::from(cpus),
            capacity_s: factor * wall * f64::from(cpus),
            stack: [("work".to_owned(), 0.75), ("lock-wait".to_owned(), 0.25)].into(),
            ..Point::default()
        }
    };
    ScaleResult {
        schema: SCHEMA.to_owned(),
        command: vec!["prog".to_owned(), "-j{cpus}".to_owned()],
        points: vec![point(1, 4.0), point(2, 2.5)],
        causes: vec![CauseReport {
            id: "lock-wait".to_owned(),
            fraction: 0.25,
            text: "Threads wait for a lock.".to_owned(),
            sites: vec![Site {
                symbol: "queue_push".to_owned(),
                fraction: 0.25,
                ..Site::default()
            }],
        }],
        ..ScaleResult::default()
    }
}

fn value() -> Value {
    serde_json::to_value(result(1.0)).expect("plain data")
}

/// Runs the tool with 2 GiB of address space, so that who reads without a bound fails.
fn bounded(place: &Place, args: &[&str]) -> Ran {
    if !has("prlimit") {
        return place.amdahl(args);
    }
    let mut command = Command::new("prlimit");
    command
        .args(["--as=2147483648", env!("CARGO_BIN_EXE_amdahl")])
        .args(args);
    place.run(place.here(command))
}

/// All ways to read a result refuse `name` with one line.
#[track_caller]
fn assert_refused(place: &Place, name: &str, reason: &str) {
    fs::write(place.join("good.json"), value().to_string()).expect("a file");
    let ways: [&[&str]; 5] = [
        &["report", name],
        &["report", "--html", "page.html", name],
        &["compare", name, "good.json"],
        &["compare", "good.json", name],
        &["compare", "--json", name, name],
    ];
    for args in ways {
        let ran = bounded(place, args).ends_with(1);
        let message = ran.message();
        assert!(
            message.contains(reason),
            "{args:?}: no {reason:?} in {message}"
        );
        assert!(message.contains(name), "{message}");
        assert!(message.len() < 1000 && !message.contains('\n'), "{message}");
        assert!(!message.contains(char::is_control), "{message:?}");
        assert!(ran.out.is_empty());
    }
    assert!(!place.join("page.html").exists(), "no page of nothing");
}

#[track_caller]
fn assert_text_refused(text: &[u8], reason: &str) {
    let place = Place::new();
    fs::write(place.join("bad.json"), text).expect("a file");
    assert_refused(&place, "bad.json", reason);
}

#[test]
fn good_results_are_shown_and_compared() {
    let place = Place::new();
    for (name, factor) in [("before", 1.0), ("after", 0.5)] {
        fs::create_dir(place.join(name)).expect("a folder");
        let text = serde_json::to_string(&result(factor)).expect("plain data");
        fs::write(place.join(&format!("{name}/result.json")), text).expect("a file");
    }
    place
        .amdahl(["report", "before"])
        .ends_with(0)
        .says("prog -j{cpus}")
        .says("queue_push");
    place
        .amdahl(["report", "before/result.json"])
        .ends_with(0)
        .says("queue_push");
    place
        .amdahl(["report", "--html", "page.html", "before"])
        .ends_with(0);
    let page = place.read("page.html");
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("queue_push"));
    assert!(!page.contains("id=\"flames\""), "there are no samples");

    let text = place.amdahl(["compare", "before", "after"]).ends_with(0);
    text.says("On 2 CPUs it is 2.00× as fast as before, more than noise.");
    let data = place
        .amdahl(["compare", "--json", "before", "after"])
        .ends_with(0)
        .json();
    assert_eq!(data["points"][1]["ratio"], json!(0.5));
    assert_eq!(data["points"][1]["verdict"], "faster");
    let data = place
        .amdahl(["compare", "--json", "after", "before"])
        .ends_with(0)
        .json();
    assert_eq!(data["points"][1]["verdict"], "slower");
    let data = place
        .amdahl(["compare", "--json", "before", "before"])
        .ends_with(0)
        .json();
    assert_eq!(data["points"][1]["verdict"], "no-difference");
    assert_eq!((&data["code"], &data["growth"]), (&json!([]), &json!([])));
}

#[test]
fn the_code_that_changed_is_named_in_text_and_data() {
    let place = Place::new();
    let mut after = result(0.5);
    let site = &mut after.causes[0].sites[0];
    (site.symbol, site.fraction) = ("queue_pop".to_owned(), 0.2);
    for (name, result) in [("before", result(1.0)), ("after", after)] {
        let text = serde_json::to_string(&result).expect("plain data");
        fs::write(place.join(name), text).expect("a file");
    }
    let data = place
        .amdahl(["compare", "--json", "before", "after"])
        .ends_with(0)
        .json();
    let changes: Vec<(&Value, f64)> = data["code"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| {
            (
                &entry["symbol"],
                entry["change"].as_f64().expect("a number"),
            )
        })
        .collect();
    assert_eq!(
        changes,
        [(&json!("queue_push"), -0.25), (&json!("queue_pop"), 0.2)]
    );
    place
        .amdahl(["compare", "before", "after"])
        .ends_with(0)
        .says("queue_pop lock-wait: +20.0 points (0.0 % to 20.0 %)")
        .says("queue_push lock-wait: -25.0 points (25.0 % to 0.0 %)");
}

#[test]
fn what_is_not_there_is_refused() {
    let place = Place::new();
    fs::create_dir(place.join("empty")).expect("a folder");
    fs::create_dir_all(place.join("nested/result.json")).expect("folders");
    fs::write(place.join("file"), "").expect("a file");
    for (link, target) in [
        ("here", "there"),
        ("there", "here"),
        ("dangling", "nowhere"),
    ] {
        std::os::unix::fs::symlink(target, place.join(link)).expect("a link");
    }
    assert_refused(&place, "missing", "No such file");
    assert_refused(&place, "empty", "No such file");
    assert_refused(&place, "nested", "not a regular file");
    assert_refused(&place, "file/result.json", "Not a directory");
    assert_refused(&place, "here", "Too many levels of symbolic links");
    assert_refused(&place, "dangling", "No such file");
}

/// It was once told that `result.json` is missing, or that Parquet is damaged JSON.
/// They were said to be damaged.
#[test]
fn of_several_results_one_must_be_taken() {
    let place = Place::new();
    let line = value().to_string() + "\n";
    fs::write(place.join("one.json"), &line).expect("a file");
    place.amdahl(["report", "one.json"]).ends_with(0);
    fs::write(place.join("all.json"), line.repeat(3)).expect("a file");
    let ran = place.amdahl(["report", "all.json"]);
    assert_ne!(ran.status.code(), Some(0));
    for said in [
        "several results",
        "top --batch --json",
        "tail -n 1 all.json",
    ] {
        assert!(ran.message().contains(said), "{}", ran.err);
    }
}

#[test]
fn samples_and_folders_without_their_result_are_refused_by_name() {
    let place = Place::new();
    fs::create_dir(place.join("alone")).expect("a folder");
    fs::write(place.join("alone/samples.parquet"), "PAR1").expect("a file");
    for path in ["alone", "alone/samples.parquet"] {
        let ran = place.amdahl(["report", path]).ends_with(1);
        let message = ran.message();
        assert!(
            message.contains("stacks but no result.json") && message.contains("measure again"),
            "{message}"
        );
    }
    fs::create_dir_all(place.join("killed/events")).expect("folders");
    let ran = place.amdahl(["report", "killed"]).ends_with(1);
    assert!(ran.message().contains("record again"), "{}", ran.err);
    fs::write(place.join("alone/result.json"), value().to_string()).expect("a file");
    place.amdahl(["report", "alone"]).ends_with(0);
}

#[test]
fn devices_and_pipes_are_refused_unread() {
    let place = Place::new();
    let status = Command::new("mkfifo")
        .arg(place.join("pipe"))
        .status()
        .expect("mkfifo");
    assert!(status.success());
    for path in ["/dev/zero", "/dev/stdin", "pipe"] {
        assert_refused(&place, path, "not a regular file");
    }
}

#[test]
fn files_that_are_too_large_are_refused() {
    let place = Place::new();
    for (name, bytes) in [("large", 100 << 20), ("endless", 1 << 40)] {
        File::create(place.join(name))
            .and_then(|f| f.set_len(bytes))
            .expect("a sparse file");
        assert_refused(&place, name, "is larger than");
    }
    // Valid from its first byte on.
    let mut file = BufWriter::new(File::create(place.join("padded")).expect("a file"));
    let text = value().to_string();
    file.write_all(text.as_bytes()).expect("written");
    for _ in 0..100 {
        file.write_all(&[b' '; 1 << 20]).expect("written");
    }
    file.into_inner().expect("flushed");
    assert_refused(&place, "padded", "is larger than");
}

/// Three bytes each in the file were hundreds in memory: 60 MB needed 12 GB.
#[test]
fn lists_without_end_do_not_fill_memory() {
    let place = Place::new();
    for (field, entry) in [
        ("points", "{}"),
        ("command", "\"\""),
        ("warnings", "{}"),
        ("causes", "{}"),
    ] {
        let mut file = BufWriter::new(File::create(place.join("long")).expect("a file"));
        write!(file, r#"{{"schema": "{SCHEMA}", "{field}": [{entry}"#).expect("written");
        for _ in 0..20_000_000 {
            write!(file, ",{entry}").expect("written");
        }
        file.write_all(b"]}").expect("written");
        file.into_inner().expect("flushed");
        assert!(fs::metadata(place.join("long")).expect("it").len() < 64 << 20);
        let ran = bounded(&place, &["compare", "long", "long"]).ends_with(1);
        assert!(ran.message().contains("long is damaged: `"), "{}", ran.err);
    }
}

#[test]
fn damaged_json_is_refused() {
    let text = value().to_string();
    for cut in [0, 1, text.len() / 2, text.len() - 1] {
        assert_text_refused(&text.as_bytes()[..cut], "not a readable result");
    }
    assert_text_refused(format!("{text}{text}").as_bytes(), "not a readable result");
    assert_text_refused(b"\0\0\0\0", "not a readable result");
    assert_text_refused(b"\xff\xfe{\0}\0", "not a readable result");
    assert_text_refused(b"[1, 2, 3]", "bad.json");
    assert_text_refused(b"null", "bad.json");
    assert_text_refused(b"{}", "has the schema none");
    assert_text_refused(
        &text.replace("prog", "pr\u{0}og").into_bytes(),
        "not a readable result",
    );
}

#[test]
fn deep_nesting_is_refused() {
    let deep = |open: &str, close: &str| {
        let mut text = format!(r#"{{"schema": "{SCHEMA}", "points": "#);
        text += &open.repeat(1_000_000);
        text += &close.repeat(1_000_000);
        text + "}"
    };
    assert_text_refused(deep("[", "]").as_bytes(), "not a readable result");
    assert_text_refused(deep(r#"{"a":"#, "}").as_bytes(), "not a readable result");
    assert_text_refused("[".repeat(10_000_000).as_bytes(), "not a readable result");
}

/// Fields that nobody knows are skipped, however deep they are.
#[test]
fn unknown_fields_are_no_reason_to_refuse() {
    let place = Place::new();
    let mut later = value();
    later["future"] = json!({"a": [1, {"b": null}]});
    fs::write(place.join("later.json"), later.to_string()).expect("a file");
    place
        .amdahl(["report", "later.json"])
        .ends_with(0)
        .says("queue_push");
    let text = value().to_string();
    let deep = format!(
        "{{\"x\":{}{},{}",
        "[".repeat(100_000),
        "]".repeat(100_000),
        &text[1..]
    );
    fs::write(place.join("deep.json"), deep).expect("a file");
    let ran = bounded(&place, &["report", "deep.json"]);
    assert!(matches!(ran.status.code(), Some(0 | 1)), "{ran:?}");
}

#[test]
fn other_schemas_are_refused() {
    for schema in [
        "amdahl.scale/2",
        "amdahl.compare/2",
        "",
        "\u{1b}[2J",
        &"x".repeat(1 << 20),
    ] {
        let mut value = value();
        value["schema"] = json!(schema);
        assert_text_refused(value.to_string().as_bytes(), "has the schema");
    }
    let mut value = value();
    value["schema"] = json!(1);
    assert_text_refused(value.to_string().as_bytes(), "not a readable result");
}

#[test]
fn figures_that_cannot_be_true_are_refused() {
    let at = |place: &[&str], figure: Value, reason: &str| {
        let mut value = value();
        let mut here = &mut value;
        for step in place {
            here = match step.parse::<usize>() {
                Ok(index) => &mut here[index],
                Err(_) => &mut here[*step],
            };
        }
        *here = figure;
        assert_text_refused(value.to_string().as_bytes(), reason);
    };
    at(
        &["points", "0", "speedup"],
        json!(1e300),
        "points.0.speedup",
    );
    at(&["points", "0", "speedup"], json!(-1.0), "points.0.speedup");
    at(
        &["points", "0", "speedup"],
        json!("fast"),
        "not a readable result",
    );
    at(
        &["points", "0", "speedup"],
        json!(null),
        "not a readable result",
    );
    at(
        &["points", "0", "cpus"],
        json!(4_000_000_000_u32),
        "points.0.cpus",
    );
    at(&["points", "0", "cpus"], json!(-1), "not a readable result");
    at(
        &["points", "0", "cpus"],
        json!(1e40),
        "not a readable result",
    );
    at(
        &["points", "0", "wall_s", "runs", "3"],
        json!(1e19),
        "points.0.wall_s.runs.3",
    );
    at(
        &["points", "1", "stack", "work"],
        json!(0.1),
        "points.1.stack",
    );
    at(
        &["points", "1", "stack", "<script>"],
        json!(0.0),
        "points.1.stack",
    );
    at(
        &["points", "1", "speedup_range"],
        json!([3, 2]),
        "points.1.speedup_range",
    );
    at(&["causes", "0", "fraction"], json!(7), "causes.0.fraction");
    // JSON has no such numbers; readers that take them let them spread.
    for number in ["NaN", "Infinity", "-Infinity", "1e999", "0x10", "1e", "--1"] {
        let text = value()
            .to_string()
            .replace("\"fraction\":0.25", &format!("\"fraction\":{number}"));
        assert_text_refused(text.as_bytes(), "not a readable result");
    }
}

const HOSTILE: &str = "<script>alert(1)</script>\u{1b}]0;owned\u{7}\u{1b}[2J\r\n\u{202e}\"'>&lt;";

#[test]
fn hostile_text_is_harmless_wherever_it_is_shown() {
    let place = Place::new();
    let mut result = result(1.0);
    let evil = || HOSTILE.to_owned();
    result.command = vec![evil(), evil()];
    result.machine.cpu_model = evil();
    result.machine.kernel = evil();
    result.warnings = vec![Notice {
        code: evil(),
        text: evil(),
    }];
    result.models.note = evil();
    result.causes[0].text = evil();
    result.causes[0].sites[0] = Site {
        symbol: evil(),
        file: Some(evil()),
        object: evil(),
        ..Site::default()
    };
    fs::write(
        place.join("evil.json"),
        serde_json::to_string(&result).expect("plain data"),
    )
    .expect("a file");
    fs::write(place.join("good.json"), value().to_string()).expect("a file");

    let shown = |args: &[&str]| {
        let ran = place.amdahl(args).ends_with(0);
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!ran.out.contains(bad), "{args:?}: {:?}", ran.out);
        assert!(ran.err.is_empty(), "{}", ran.err);
    };
    shown(&["report", "evil.json"]);
    shown(&["compare", "evil.json", "good.json"]);
    shown(&["compare", "good.json", "evil.json"]);
    place
        .amdahl(["report", "--html", "page.html", "evil.json"])
        .ends_with(0);
    let page = place.read("page.html");
    assert!(
        page.contains("&lt;script&gt;alert(1)"),
        "the text is there, as text"
    );
    assert!(!page.contains("<script>") && !page.contains(['\u{1b}', '\u{202e}']));
    // As data it goes on unchanged, escaped as JSON has it.
    let data = place
        .amdahl(["compare", "--json", "evil.json", "good.json"])
        .ends_with(0);
    assert_eq!(data.json()["before"][0], HOSTILE);
    assert!(!data.out.contains('\u{1b}'));
}

#[test]
fn a_page_made_later_has_the_flame_graphs_of_the_samples() {
    let place = Place::new();
    let text = serde_json::to_string(&result(1.0)).expect("plain data");
    fs::write(place.join("result.json"), text).expect("a file");
    let row = SampleRow {
        cpus: 2,
        cause: "lock-wait".to_owned(),
        charged_ns: 1_000_000,
        stack: "queue_push;main".to_owned(),
        ..SampleRow::default()
    };
    let samples = samples::write([row], Vec::new()).expect("a file in memory");
    fs::write(place.join("samples.parquet"), &samples).expect("a file");
    let page = ["report", "--html", "page.html", "."];
    let ran = place.amdahl(page).ends_with(0);
    assert!(ran.err.is_empty(), "{}", ran.err);
    assert!(place.read("page.html").contains("id=\"flames\""));
    fs::write(place.join("samples.parquet"), &samples[..samples.len() / 2]).expect("a file");
    let ran = place.amdahl(page).ends_with(1);
    assert!(
        ran.message().contains("samples.parquet"),
        "{}",
        ran.message()
    );
}

#[test]
fn pages_that_cannot_be_written_are_told() {
    let place = Place::new();
    fs::write(place.join("good.json"), value().to_string()).expect("a file");
    fs::create_dir(place.join("folder")).expect("a folder");
    for (page, reason) in [
        ("missing/page.html", "No such file"),
        ("folder", "directory"),
        ("/dev/full", "No space left"),
    ] {
        let ran = place
            .amdahl(["report", "--html", page, "good.json"])
            .ends_with(1);
        let message = ran.message();
        assert!(
            message.contains(page) && message.contains(reason),
            "{message}"
        );
    }
}
