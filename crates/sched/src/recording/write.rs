//! Events to a part.

use std::io::Write;
use std::sync::Arc;

use amdahl_topology::Topology;
use bytes::Bytes;
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use rustc_hash::{FxHashMap, FxHashSet};

use super::row::{Row, row_of};
use super::{PART_EVENTS_MAX, SCHEMA};
use crate::event::{Event, Ns, Off, Tid};

/// Living threads about which facts are kept for the parts to come.
const FACTS_MAX: usize = 1 << 18;

/// What is known of a recording besides its events.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    /// The machine.
    pub topology: Topology,
    /// Length of a scheduler tick.
    pub tick_ns: Ns,
    /// When recording began.
    pub begin: Ns,
    /// It holds every thread of the machine, not only those of a selection.
    pub is_everyone: bool,
}

/// Why a part could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write a part of the recording: {source}")]
#[non_exhaustive]
pub struct WriteError {
    /// What the file or the format said.
    #[source]
    pub source: ParquetError,
}

impl From<ParquetError> for WriteError {
    fn from(source: ParquetError) -> WriteError {
        WriteError { source }
    }
}

#[derive(Clone, Debug, Default)]
struct Facts {
    thread: Option<Event>,
    allowed: Option<Event>,
}

/// Gathers the events of a part and remembers facts for the parts to come.
#[derive(Debug)]
pub struct PartWriter {
    meta: Meta,
    events: Vec<Event>,
    /// As they were when the part began.
    before: FxHashMap<Tid, Facts>,
}

impl PartWriter {
    /// Nothing is gathered yet.
    pub fn new(meta: Meta) -> PartWriter {
        PartWriter {
            meta,
            events: Vec::new(),
            before: FxHashMap::default(),
        }
    }

    /// The recording begins now, whatever its description says. To be told before any event.
    pub fn begin_at(&mut self, begin: Ns) {
        self.meta.begin = begin;
    }

    /// Adds an event; events are expected in order of time. True if the part is full.
    pub fn add(&mut self, event: Event) -> bool {
        self.events.push(event);
        self.events.len() >= PART_EVENTS_MAX
    }

    /// Time of the oldest event gathered.
    pub fn first(&self) -> Option<Ns> {
        self.events.first().map(Event::ts)
    }

    /// How many are gathered.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// None are.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Writes what is gathered as one complete file and begins the next part. On an error the events
    /// are given up.
    ///
    /// # Errors
    /// When the file cannot be written, e.g. because the disk is full.
    pub fn write<W: Write + Send>(&mut self, out: W) -> Result<W, WriteError> {
        let events = std::mem::take(&mut self.events);
        let ts = events.first().map_or(self.meta.begin, Event::ts);
        let known = self.known_of(&events, ts);
        self.remember(&events);
        let rows: Vec<(Row<'static>, String)> = known.iter().chain(&events).map(row_of).collect();
        let mut file = begin(&self.meta, out)?;
        write_group(&mut file, &rows)?;
        let mut out = file.into_inner()?;
        out.flush().map_err(ParquetError::from)?;
        Ok(out)
    }

    /// What was known before the part of the threads that occur in it.
    fn known_of(&self, events: &[Event], ts: Ns) -> Vec<Event> {
        let mut tids: Vec<Tid> = events
            .iter()
            .flat_map(tids_of)
            .collect::<FxHashSet<_>>()
            .into_iter()
            .collect();
        tids.sort_unstable();
        let facts = tids.iter().filter_map(|tid| self.before.get(tid));
        let known = facts.flat_map(|facts| [&facts.thread, &facts.allowed]);
        known.flatten().map(|fact| at(fact, ts)).collect()
    }

    fn remember(&mut self, events: &[Event]) {
        for event in events {
            match *event {
                Event::Thread { tid, .. } | Event::Allowed { tid, .. } => {
                    if self.before.len() >= FACTS_MAX && !self.before.contains_key(&tid) {
                        continue;
                    }
                    let facts = self.before.entry(tid).or_default();
                    let is_name = matches!(event, Event::Thread { .. });
                    let fact = if is_name {
                        &mut facts.thread
                    } else {
                        &mut facts.allowed
                    };
                    *fact = Some(event.clone());
                }
                Event::Switch {
                    prev,
                    off: Off::Exited,
                    ..
                } => {
                    self.before.remove(&prev);
                }
                _ => {}
            }
        }
    }
}

fn tids_of(event: &Event) -> [Tid; 2] {
    match *event {
        Event::Switch { prev, next, .. } => [prev, next],
        Event::Waking {
            tid,
            waker: crate::event::Waker::Thread(by),
            ..
        } => [tid, by],
        Event::Waking { tid, .. } | Event::Migrate { tid, .. } => [tid, 0],
        Event::Fork { parent, .. } => [parent, 0],
        Event::Thread { .. } | Event::Allowed { .. } | Event::Lost { .. } => [0, 0],
    }
}

fn at(fact: &Event, now: Ns) -> Event {
    let mut fact = fact.clone();
    if let Event::Thread { ts, .. } | Event::Allowed { ts, .. } = &mut fact {
        *ts = now;
    }
    fact
}

/// CPU, core, LLC, node and package of each CPU.
fn topology_text(topology: &Topology) -> String {
    let cpus = topology.cpus().iter().map(|cpu| {
        format!(
            "{}:{}:{}:{}:{}",
            cpu.id, cpu.core, cpu.llc, cpu.node, cpu.package
        )
    });
    cpus.collect::<Vec<_>>().join(",")
}

fn column(
    name: &str,
    physical: Physical,
    logical: Option<LogicalType>,
) -> Result<TypePtr, ParquetError> {
    let column = Type::primitive_type_builder(name, physical)
        .with_repetition(Repetition::REQUIRED)
        .with_logical_type(logical)
        .build()?;
    Ok(Arc::new(column))
}

fn begin<W: Write + Send>(meta: &Meta, out: W) -> Result<SerializedFileWriter<W>, ParquetError> {
    let number = || Some(LogicalType::integer(32, false));
    let text = || Some(LogicalType::String);
    let schema = Type::group_type_builder("events")
        .with_fields(vec![
            column("ts", Physical::INT64, None)?,
            column("kind", Physical::BYTE_ARRAY, text())?,
            column("cpu", Physical::INT32, number())?,
            column("tid", Physical::INT32, number())?,
            column("other", Physical::INT32, number())?,
            column("detail", Physical::BYTE_ARRAY, text())?,
            column("place", Physical::INT32, number())?,
            column("text", Physical::BYTE_ARRAY, text())?,
        ])
        .build()?;
    let key_values = vec![
        KeyValue::new("schema".to_owned(), SCHEMA.to_owned()),
        KeyValue::new("topology".to_owned(), topology_text(&meta.topology)),
        KeyValue::new("tick_ns".to_owned(), meta.tick_ns.to_string()),
        KeyValue::new("begin_ns".to_owned(), meta.begin.to_string()),
        KeyValue::new("everyone".to_owned(), meta.is_everyone.to_string()),
    ];
    let ts = ColumnPath::from("ts");
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_dictionary_enabled(true)
        .set_column_dictionary_enabled(ts.clone(), false)
        .set_column_encoding(ts, Encoding::DELTA_BINARY_PACKED)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_key_value_metadata(Some(key_values))
        .build();
    SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))
}

fn write_group<W: Write + Send>(
    file: &mut SerializedFileWriter<W>,
    rows: &[(Row<'static>, String)],
) -> Result<(), ParquetError> {
    let mut group = file.next_row_group()?;
    let times: Vec<i64> = rows
        .iter()
        .map(|(row, _)| i64::try_from(row.ts).unwrap_or(i64::MAX))
        .collect();
    let mut next = group.next_column()?.expect("the schema has eight columns");
    next.typed::<Int64Type>().write_batch(&times, None, None)?;
    next.close()?;
    let numbers = |group: &mut parquet::file::writer::SerializedRowGroupWriter<'_, W>,
                   get: fn(&Row<'_>) -> u32|
     -> Result<(), ParquetError> {
        // The format stores unsigned numbers in the bits of signed ones.
        let values: Vec<i32> = rows.iter().map(|(row, _)| get(row).cast_signed()).collect();
        let mut next = group.next_column()?.expect("the schema has eight columns");
        next.typed::<Int32Type>().write_batch(&values, None, None)?;
        next.close()
    };
    let fixed = |word: &'static str| Bytes::from_static(word.as_bytes());
    texts(&mut group, rows.iter().map(|(row, _)| fixed(row.kind)))?;
    numbers(&mut group, |row| row.cpu)?;
    numbers(&mut group, |row| row.tid)?;
    numbers(&mut group, |row| row.other)?;
    texts(&mut group, rows.iter().map(|(row, _)| fixed(row.detail)))?;
    numbers(&mut group, |row| row.place)?;
    let texts_of_rows = rows
        .iter()
        .map(|(_, text)| Bytes::copy_from_slice(text.as_bytes()));
    texts(&mut group, texts_of_rows)?;
    group.close()?;
    Ok(())
}

/// A column of texts; those of fixed lists are not copied.
fn texts<W: Write + Send>(
    group: &mut parquet::file::writer::SerializedRowGroupWriter<'_, W>,
    texts: impl Iterator<Item = Bytes>,
) -> Result<(), ParquetError> {
    let values: Vec<ByteArray> = texts.map(ByteArray::from).collect();
    let mut next = group.next_column()?.expect("the schema has eight columns");
    next.typed::<ByteArrayType>()
        .write_batch(&values, None, None)?;
    next.close()
}
