//! Samples and trace: what other programs read.

mod fixture;

use std::io::Read;

use amdahl_report::schema::{SampleRow, Slice};
use amdahl_report::trace::Names;
use amdahl_report::{samples, trace};
use flate2::read::GzDecoder;
use parquet::basic::{Compression, LogicalType, Type as Physical};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::Value;

fn text(field: &Field) -> String {
    match field {
        Field::Str(text) => text.clone(),
        other => panic!("{other:?}"),
    }
}

fn number(field: &Field) -> u64 {
    match *field {
        Field::UInt(n) => n.into(),
        Field::Long(n) => n.try_into().unwrap(),
        ref other => panic!("{other:?}"),
    }
}

fn read_back(bytes: Vec<u8>) -> Vec<SampleRow> {
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    let small = |field: &Field| u32::try_from(number(field)).unwrap();
    reader
        .get_row_iter(None)
        .unwrap()
        .map(|row| {
            let row = row.unwrap();
            let fields: Vec<&Field> = row.get_column_iter().map(|(_, field)| field).collect();
            SampleRow {
                cpus: small(fields[0]),
                threads: small(fields[1]),
                run: small(fields[2]),
                pid: small(fields[3]),
                tid: small(fields[4]),
                process: text(fields[5]),
                thread: text(fields[6]),
                cause: text(fields[7]),
                charged_ns: number(fields[8]),
                count: number(fields[9]),
                symbol: text(fields[10]),
                file: text(fields[11]),
                line: small(fields[12]),
                stack: text(fields[13]),
                object: text(fields[14]),
            }
        })
        .collect()
}

#[test]
fn samples_are_read_back() {
    let mut rows = fixture::hostile_rows();
    rows[0].pid = u32::MAX;
    rows[0].charged_ns = i64::MAX as u64;
    rows[1].stack = String::new();
    rows[2].threads = 32;
    let bytes = samples::write(rows.clone(), Vec::new()).unwrap();
    assert_eq!(
        samples::read_from(bytes::Bytes::from(bytes.clone())).unwrap(),
        rows
    );
    assert_eq!(read_back(bytes), rows);
}

/// What versions without the column `threads` wrote.
const WITHOUT_THREADS: &[u8] = include_bytes!("without-threads.parquet");

#[test]
fn rows_of_older_files_have_a_thread_for_each_cpu() {
    let rows = samples::read_from(bytes::Bytes::from_static(WITHOUT_THREADS)).unwrap();
    let mut expected = fixture::rows();
    expected.truncate(3);
    (expected[0].cpus, expected[0].threads) = (1, 1);
    assert_eq!(rows, expected);
}

#[test]
fn damaged_samples_are_an_error() {
    let good = samples::write(fixture::hostile_rows(), Vec::new()).unwrap();
    let read = |bytes: Vec<u8>| samples::read_from(bytes::Bytes::from(bytes));
    for len in 0..good.len() {
        assert!(read(good[..len].to_vec()).is_err(), "{len} bytes");
    }
    // What a changed byte does cannot be told, but it ends well.
    for at in 0..good.len() {
        for with in [0, 0x7f, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = with;
            let _ = read(bytes);
        }
    }
    let other = include_bytes!("tables.rs").to_vec();
    assert!(read(other).is_err());
}

#[test]
fn no_samples_are_a_file_too() {
    let bytes = samples::write([], Vec::new()).unwrap();
    assert_eq!(read_back(bytes), []);
}

#[test]
fn times_beyond_the_type_saturate() {
    let row = SampleRow {
        charged_ns: u64::MAX,
        ..SampleRow::default()
    };
    let bytes = samples::write([row], Vec::new()).unwrap();
    assert_eq!(read_back(bytes)[0].charged_ns, i64::MAX as u64);
}

#[test]
fn columns_have_the_types_that_readers_expect() {
    let rows = (0..70_000).map(|i| SampleRow {
        tid: i,
        cause: "work".into(),
        ..SampleRow::default()
    });
    let bytes = samples::write(rows, Vec::new()).unwrap();
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    let metadata = reader.metadata();
    assert_eq!(metadata.file_metadata().num_rows(), 70_000);
    assert_eq!(metadata.num_row_groups(), 2, "rows are written in groups");
    for column in metadata.row_group(0).columns() {
        let descriptor = column.column_descr();
        assert_eq!(
            column.compression(),
            Compression::SNAPPY,
            "{}",
            descriptor.name()
        );
        match descriptor.name() {
            "charged_ns" | "count" => assert_eq!(descriptor.physical_type(), Physical::INT64),
            "cpus" | "threads" | "run" | "pid" | "tid" | "line" => {
                assert_eq!(
                    descriptor.logical_type_ref(),
                    Some(&LogicalType::integer(32, false))
                );
            }
            name => {
                assert_eq!(
                    descriptor.logical_type_ref(),
                    Some(&LogicalType::String),
                    "{name}"
                );
                assert!(
                    column.dictionary_page_offset().is_some(),
                    "{name} has a dictionary"
                );
            }
        }
    }
}

#[test]
fn a_full_disk_names_the_rows_written() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let error = samples::write(fixture::rows(), full).unwrap_err();
    assert_eq!(error.rows, fixture::rows().len() as u64);
    assert!(error.to_string().contains("No space left"), "{error}");
}

fn slice(cpu: Option<u32>, pid: u32, tid: u32, start_ns: u64, len_ns: u64, label: &str) -> Slice {
    Slice {
        cpu,
        pid,
        tid,
        start_ns,
        len_ns,
        label: label.to_owned(),
    }
}

fn traced(slices: Vec<Slice>, names: &Names) -> Vec<Value> {
    let bytes = trace::write(slices, names, Vec::new()).unwrap();
    let mut json = String::new();
    GzDecoder::new(&bytes[..])
        .read_to_string(&mut json)
        .unwrap();
    let document: Value = serde_json::from_str(&json).unwrap();
    document["traceEvents"].as_array().unwrap().clone()
}

#[test]
fn a_trace_has_a_track_per_cpu_and_thread() {
    let mut names = Names::default();
    names.processes.insert(70, "sort \"x\"\u{1}".to_owned());
    names.threads.insert((70, 71), "worker".to_owned());
    let events = traced(
        vec![
            slice(Some(3), 70, 71, 0, 1_500, "worker"),
            slice(Some(3), 0, 0, 1_500, 500, "idle"),
            slice(None, 70, 71, 1_500, 999_000_000_001, "lock-wait"),
        ],
        &names,
    );
    let named = |kind: &str| -> Vec<(&Value, &str)> {
        let metadata = events
            .iter()
            .filter(|e| e["ph"] == "M" && e["name"] == kind);
        metadata
            .map(|e| (&e["tid"], e["args"]["name"].as_str().unwrap()))
            .collect()
    };
    let processes: Vec<&str> = named("process_name")
        .into_iter()
        .map(|(_, name)| name)
        .collect();
    assert_eq!(processes, ["CPUs", "sort \"x\"\u{1}"]);
    let threads: Vec<&str> = named("thread_name")
        .into_iter()
        .map(|(_, name)| name)
        .collect();
    assert_eq!(threads, ["worker", "CPU 3"]);
    let cpu_track = named("thread_name")[1].0;

    let complete: Vec<&Value> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert_eq!(
        complete.len(),
        4,
        "a running slice is on the CPU and on the thread: {complete:?}"
    );
    assert_eq!(
        (&complete[0]["tid"], &complete[0]["name"]),
        (cpu_track, &Value::from("worker"))
    );
    assert_eq!(complete[0]["dur"].as_f64(), Some(1.5));
    assert_eq!(
        (
            complete[1]["tid"].as_u64(),
            complete[1]["args"]["cpu"].as_u64()
        ),
        (Some(71), Some(3))
    );
    assert_eq!(
        (&complete[2]["tid"], &complete[2]["name"]),
        (cpu_track, &Value::from("idle"))
    );
    assert_eq!(
        (&complete[3]["name"], complete[3]["dur"].as_f64()),
        (&Value::from("lock-wait"), Some(999_000_000.001))
    );
}

#[test]
fn traces_stream() {
    /// Counts what reaches it while the slices still come.
    struct Counting(std::rc::Rc<std::cell::Cell<usize>>);
    impl std::io::Write for Counting {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.set(self.0.get() + bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let written = std::rc::Rc::new(std::cell::Cell::new(0));
    let mut at_half = 0;
    let slices = (0..200_000_u64).map(|i| {
        if i == 100_000 {
            at_half = written.get();
        }
        slice(Some(i as u32 % 64), 5, 6, i * 977, i % 976, "worker")
    });
    trace::write(slices, &Names::default(), Counting(written.clone())).unwrap();
    assert!(
        at_half > written.get() / 4,
        "{at_half} of {}",
        written.get()
    );
}

#[test]
fn a_trace_on_a_full_disk_fails() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let error = trace::write([], &Names::default(), full).unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::NOSPC.raw_os_error())
    );
}
