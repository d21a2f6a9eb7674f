//! A part to events. Files may come from anybody.

use amdahl_contain::contained;
use amdahl_topology::{Cpu, Topology};
use bytes::Bytes;
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};

use super::row::{Row, event_of};
use super::write::Meta;
use super::{PART_ROWS_MAX, SCHEMA};
use crate::event::Event;

/// CPUs of the machine of a recording at most.
const CPUS_MAX: usize = 1 << 16;

/// Why a part could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Not Parquet, or damaged.
    #[error("it is not a readable Parquet file: {0}")]
    Parquet(String),
    /// Another format or version.
    #[error("it has the schema `{found}`, this version reads `{SCHEMA}`")]
    Schema {
        /// What it claims to be, cut after 40 characters.
        found: String,
    },
    /// Well-formed, but not what a writer writes.
    #[error("{what}")]
    Invalid {
        /// What is wrong.
        what: &'static str,
    },
}

impl From<ParquetError> for ReadError {
    fn from(error: ParquetError) -> ReadError {
        ReadError::Parquet(error.to_string().chars().take(200).collect())
    }
}

/// What a part holds.
#[derive(Clone, Debug)]
pub struct Part {
    /// About the recording.
    pub meta: Meta,
    /// In order of time.
    pub events: Vec<Event>,
}

/// Reads one part. Takes memory for a million events at most.
///
/// # Errors
/// Every way in which the file can be unreadable, see [`ReadError`].
pub fn read_part(bytes: Vec<u8>) -> Result<Part, ReadError> {
    // The library is not hardened against files that lie; what it asserts is an error here.
    let read = contained(|| read(Bytes::from(bytes)));
    read.unwrap_or_else(|| Err(ReadError::Parquet("it is damaged".to_owned())))
}

fn invalid<T>(what: &'static str) -> Result<T, ReadError> {
    Err(ReadError::Invalid { what })
}

fn read(bytes: Bytes) -> Result<Part, ReadError> {
    let file = SerializedFileReader::new(bytes)?;
    let metadata = file.metadata();
    let meta = meta(
        metadata
            .file_metadata()
            .key_value_metadata()
            .map_or(&[], Vec::as_slice),
    )?;
    let columns = metadata.file_metadata().schema_descr().columns();
    let names: Vec<&str> = columns.iter().map(|column| column.name()).collect();
    if names
        != [
            "ts", "kind", "cpu", "tid", "other", "detail", "place", "text",
        ]
    {
        return invalid("its columns are not those of a recording");
    }
    if columns
        .iter()
        .any(|column| column.max_def_level() != 0 || column.max_rep_level() != 0)
    {
        return invalid("its columns may be empty or repeated");
    }
    let rows: i64 = metadata
        .row_groups()
        .iter()
        .map(|group| group.num_rows().max(0))
        .fold(0, i64::saturating_add);
    if rows > PART_ROWS_MAX as i64 || metadata.num_row_groups() > 1024 {
        return invalid("it has more rows than a part of a recording");
    }
    let mut events = Vec::new();
    for i in 0..metadata.num_row_groups() {
        let rows = metadata.row_group(i).num_rows();
        let Ok(rows) = usize::try_from(rows) else {
            return invalid("a number of rows is negative");
        };
        read_group(file.get_row_group(i)?.as_ref(), rows, &mut events)?;
    }
    // A writer's rows are in order; whoever wrote others gets the same analysis.
    events.sort_by_key(Event::ts);
    Ok(Part { meta, events })
}

fn read_group(
    group: &dyn RowGroupReader,
    rows: usize,
    events: &mut Vec<Event>,
) -> Result<(), ReadError> {
    let ts = match group.get_column_reader(0)? {
        ColumnReader::Int64ColumnReader(mut column) => {
            let mut values = Vec::new();
            column.read_records(rows, None, None, &mut values)?;
            values
        }
        _ => return invalid("a column has another type"),
    };
    let numbers = |at: usize| -> Result<Vec<i32>, ReadError> {
        match group.get_column_reader(at)? {
            ColumnReader::Int32ColumnReader(mut column) => {
                let mut values = Vec::new();
                column.read_records(rows, None, None, &mut values)?;
                Ok(values)
            }
            _ => invalid("a column has another type"),
        }
    };
    let texts = |at: usize| -> Result<Vec<ByteArray>, ReadError> {
        match group.get_column_reader(at)? {
            ColumnReader::ByteArrayColumnReader(mut column) => {
                let mut values = Vec::new();
                column.read_records(rows, None, None, &mut values)?;
                Ok(values)
            }
            _ => invalid("a column has another type"),
        }
    };
    let (kind, cpu, tid, other) = (texts(1)?, numbers(2)?, numbers(3)?, numbers(4)?);
    let (detail, place, text) = (texts(5)?, numbers(6)?, texts(7)?);
    let lengths = [
        kind.len(),
        cpu.len(),
        tid.len(),
        other.len(),
        detail.len(),
        place.len(),
        text.len(),
    ];
    if ts.len() != rows || lengths.iter().any(|&len| len != rows) {
        return invalid("a column is shorter than the others");
    }
    for i in 0..rows {
        let row = Row {
            ts: ts[i].max(0).cast_unsigned(),
            kind: word(&kind[i])?,
            cpu: cpu[i].cast_unsigned(),
            tid: tid[i].cast_unsigned(),
            other: other[i].cast_unsigned(),
            detail: word(&detail[i])?,
            place: place[i].cast_unsigned(),
        };
        match event_of(&row, word(&text[i])?) {
            Some(event) => events.push(event),
            None => return invalid("a row is not an event"),
        }
    }
    Ok(())
}

fn word(bytes: &ByteArray) -> Result<&str, ReadError> {
    match std::str::from_utf8(bytes.data()) {
        Ok(text) if text.len() <= 1 << 16 => Ok(text),
        _ => invalid("a text is not one"),
    }
}

fn meta(pairs: &[parquet::file::metadata::KeyValue]) -> Result<Meta, ReadError> {
    let get = |key: &str| {
        let pair = pairs.iter().find(|pair| pair.key == key)?;
        pair.value.as_deref()
    };
    let found = get("schema").unwrap_or("none");
    if found != SCHEMA {
        let found = found.chars().filter(|c| !c.is_control()).take(40).collect();
        return Err(ReadError::Schema { found });
    }
    let number = |key| get(key).and_then(|text| text.parse::<u64>().ok());
    let topology = get("topology").and_then(topology_of);
    match (topology, number("tick_ns"), number("begin_ns")) {
        (Some(topology), Some(tick_ns), Some(begin)) => Ok(Meta {
            topology,
            tick_ns,
            begin,
            is_everyone: get("everyone") == Some("true"),
        }),
        _ => invalid("what it says of the machine is missing or damaged"),
    }
}

fn topology_of(text: &str) -> Option<Topology> {
    let cpus = text.split(',').take(CPUS_MAX + 1).map(|cpu| {
        let mut numbers = cpu.split(':').map(|number| number.parse::<u32>().ok());
        let mut next = || numbers.next().flatten();
        Some(Cpu {
            id: next()?,
            core: next()?,
            llc: next()?,
            node: next()?,
            package: next()?,
            thread: 0,
            capacity: Topology::FULL_CAPACITY,
        })
    });
    let cpus: Vec<Cpu> = cpus.collect::<Option<_>>()?;
    if cpus.len() > CPUS_MAX {
        return None;
    }
    Topology::from_cpus(&cpus)
}
