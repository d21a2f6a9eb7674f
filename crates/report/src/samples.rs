//! Samples as Parquet, for pandas and DuckDB.
//!
//! One row per [`SampleRow`], columns named as its fields: counts and ids as unsigned integers of
//! their width, times as signed 64-bit nanoseconds (values beyond 2^63 - 1 saturate), texts as
//! dictionary-encoded UTF-8. No column has nulls. Snappy compression.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};

use crate::schema::SampleRow;

/// Rows of one row group; what the writer keeps in memory at most.
const ROWS_PER_GROUP: usize = 64 << 10;

/// Why samples could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the samples after {rows} rows: {source}")]
#[non_exhaustive]
pub struct SamplesError {
    /// Rows that were taken so far.
    pub rows: u64,
    /// What the file or the format said.
    #[source]
    pub source: ParquetError,
}

/// How a column is stored and where it comes from.
enum Column {
    Unsigned(&'static str, fn(&SampleRow) -> u32),
    Wide(&'static str, fn(&SampleRow) -> u64),
    Text(&'static str, fn(&SampleRow) -> &str),
}

const COLUMNS: [Column; 14] = [
    Column::Unsigned("cpus", |row| row.cpus),
    Column::Unsigned("run", |row| row.run),
    Column::Unsigned("pid", |row| row.pid),
    Column::Unsigned("tid", |row| row.tid),
    Column::Text("process", |row| &row.process),
    Column::Text("thread", |row| &row.thread),
    Column::Text("cause", |row| &row.cause),
    Column::Wide("charged_ns", |row| row.charged_ns),
    Column::Wide("count", |row| row.count),
    Column::Text("symbol", |row| &row.symbol),
    Column::Text("file", |row| &row.file),
    Column::Unsigned("line", |row| row.line),
    Column::Text("stack", |row| &row.stack),
    Column::Text("object", |row| &row.object),
];

impl Column {
    fn schema(&self) -> Result<TypePtr, ParquetError> {
        let (name, physical, logical) = match self {
            Column::Unsigned(name, _) => {
                let logical = LogicalType::integer(32, false);
                (name, Physical::INT32, Some(logical))
            }
            Column::Wide(name, _) => (name, Physical::INT64, None),
            Column::Text(name, _) => (name, Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let column = Type::primitive_type_builder(name, physical)
            .with_repetition(Repetition::REQUIRED)
            .with_logical_type(logical)
            .build()?;
        Ok(Arc::new(column))
    }
}

/// Writes rows in the order they come, one row group in memory at a time.
pub struct Writer<W: Write + Send> {
    file: SerializedFileWriter<W>,
    pending: Vec<SampleRow>,
    rows: u64,
}

impl<W: Write + Send> Writer<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// When the beginning cannot be written.
    pub fn new(out: W) -> Result<Self, SamplesError> {
        let begin = || {
            let columns = COLUMNS
                .iter()
                .map(Column::schema)
                .collect::<Result<Vec<_>, _>>()?;
            let schema = Type::group_type_builder("samples")
                .with_fields(columns)
                .build()?;
            let properties = WriterProperties::builder()
                .set_compression(Compression::SNAPPY)
                .set_dictionary_enabled(true)
                // Statistics of whole stacks would be larger than what they save.
                .set_statistics_enabled(EnabledStatistics::None)
                .build();
            SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))
        };
        let file = begin().map_err(|source| SamplesError { rows: 0, source })?;
        Ok(Writer {
            file,
            pending: Vec::new(),
            rows: 0,
        })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// When a full row group cannot be written, e.g. because the disk is full.
    pub fn write(&mut self, row: SampleRow) -> Result<(), SamplesError> {
        self.pending.push(row);
        self.rows += 1;
        if self.pending.len() < ROWS_PER_GROUP {
            Ok(())
        } else {
            self.end_group()
        }
    }

    /// Writes the last rows and the footer, and gives the inner writer back, flushed.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn finish(mut self) -> Result<W, SamplesError> {
        if !self.pending.is_empty() {
            self.end_group()?;
        }
        let rows = self.rows;
        let failed = |source| SamplesError { rows, source };
        let mut out = self.file.into_inner().map_err(failed)?;
        out.flush().map_err(|e| failed(e.into()))?;
        Ok(out)
    }

    fn end_group(&mut self) -> Result<(), SamplesError> {
        let rows = self.rows;
        self.try_end_group()
            .map_err(|source| SamplesError { rows, source })
    }

    fn try_end_group(&mut self) -> Result<(), ParquetError> {
        let rows = &self.pending;
        let mut group = self.file.next_row_group()?;
        for column in &COLUMNS {
            let Some(mut writer) = group.next_column()? else {
                break;
            };
            match column {
                Column::Unsigned(_, get) => {
                    // The format stores unsigned numbers in the bits of signed ones.
                    let values: Vec<i32> = rows.iter().map(|row| get(row).cast_signed()).collect();
                    writer
                        .typed::<Int32Type>()
                        .write_batch(&values, None, None)?;
                }
                Column::Wide(_, get) => {
                    let saturated = |row| i64::try_from(get(row)).unwrap_or(i64::MAX);
                    let values: Vec<i64> = rows.iter().map(saturated).collect();
                    writer
                        .typed::<Int64Type>()
                        .write_batch(&values, None, None)?;
                }
                Column::Text(_, get) => {
                    let values: Vec<ByteArray> = rows.iter().map(|row| get(row).into()).collect();
                    writer
                        .typed::<ByteArrayType>()
                        .write_batch(&values, None, None)?;
                }
            }
            writer.close()?;
        }
        group.close()?;
        self.pending.clear();
        Ok(())
    }
}

/// Writes all rows of an iterator.
///
/// # Errors
/// As [`Writer::write`] and [`Writer::finish`].
pub fn write<W: Write + Send>(
    rows: impl IntoIterator<Item = SampleRow>,
    out: W,
) -> Result<W, SamplesError> {
    let mut writer = Writer::new(out)?;
    for row in rows {
        writer.write(row)?;
    }
    writer.finish()
}
