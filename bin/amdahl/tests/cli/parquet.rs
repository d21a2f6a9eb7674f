//! Parquet files as the libraries read them that users have.

use std::process::Command;

use serde_json::Value;

use crate::tool::{Place, alone, has, skipped};
use crate::workload::{BUSY, compiled};

/// Prints a list of rows, each an object, of a file or of all files in a folder.
const READ: &str = r#"
import glob, json, os, sys
library, path = sys.argv[1:]
files = sorted(glob.glob(path + "/*.parquet")) if os.path.isdir(path) else [path]
rows = []
for file in files:
    if library == "pyarrow":
        from pyarrow import parquet
        rows += parquet.ParquetFile(file).read().to_pylist()
    elif library == "pandas":
        import pandas
        frame = pandas.read_parquet(file)
        rows += frame.astype(object).where(frame.notna(), None).to_dict("records")
    else:
        import duckdb
        found = duckdb.sql(f"select * from read_parquet('{file}')")
        rows += [dict(zip(found.columns, row)) for row in found.fetchall()]
print(json.dumps(rows, default=str))
"#;

/// Libraries that can read Parquet, each with what tells that it is there: pandas needs another one.
const LIBRARIES: [(&str, &str); 3] = [
    ("pyarrow", "import pyarrow.parquet"),
    ("duckdb", "import duckdb"),
    (
        "pandas",
        "import pandas; pandas.io.parquet.get_engine('auto')",
    ),
];

fn python(place: &Place, args: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(args);
    place.here(command)
}

/// The libraries that are installed; none with SKIPPED.
pub fn libraries(place: &Place) -> Vec<&'static str> {
    if !has("python3") {
        skipped("python3 is not installed");
        return Vec::new();
    }
    let is_there = |import: &str| {
        let ran = place.run(python(place, &["-c", import]));
        ran.status.success()
    };
    let found = LIBRARIES.iter().filter(|(_, import)| is_there(import));
    let found: Vec<&str> = found.map(|&(library, _)| library).collect();
    if found.is_empty() {
        skipped(
            "no pyarrow, pandas or DuckDB for python3; Debian 12 has no package that reads Parquet \
             (in a virtual environment: pip install pyarrow duckdb)",
        );
    }
    found
}

/// The rows of a file or folder, as a library reads them.
#[track_caller]
pub fn rows(place: &Place, library: &str, path: &str) -> Vec<Value> {
    let ran = place.run(python(place, &["-c", READ, library, path]));
    let rows = ran.ends_with(0).json();
    rows.as_array().expect("a list").clone()
}

#[test]
fn samples_are_what_we_read_to_others() {
    let _alone = alone();
    let place = Place::new();
    let libraries = libraries(&place);
    if libraries.is_empty() {
        return;
    }
    let Some(program) = compiled(&place, "busy", BUSY, &["-g"]) else {
        return;
    };
    let program = program.to_str().expect("UTF-8");
    let args = [
        "scale",
        "--cpus",
        "1",
        "--oversubscribe",
        "2",
        "--runs",
        "1",
        "--bare-runs",
        "0",
        "--no-warmup",
        "-q",
        "-o",
        "r",
        "--",
        program,
        "{cpus}",
    ];
    place.amdahl(args).ends_with(0);
    let path = place.join("r/samples.parquet");
    let ours = amdahl_report::samples::read(&path).expect("our own file");
    assert!(!ours.is_empty());
    for library in libraries {
        let theirs = rows(&place, library, "r/samples.parquet");
        assert_eq!(theirs.len(), ours.len(), "{library}");
        for (theirs, ours) in theirs.iter().zip(&ours) {
            let expected = serde_json::json!({
                "cpus": ours.cpus,
                "threads": ours.threads,
                "run": ours.run,
                "pid": ours.pid,
                "tid": ours.tid,
                "process": ours.process,
                "thread": ours.thread,
                "cause": ours.cause,
                "charged_ns": ours.charged_ns,
                "count": ours.count,
                "symbol": ours.symbol,
                "file": ours.file,
                "line": ours.line,
                "stack": ours.stack,
                "object": ours.object,
            });
            assert_eq!(theirs, &expected, "{library}");
        }
    }
}
