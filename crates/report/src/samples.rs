//! Samples as Parquet, for pandas and DuckDB.
//!
//! One row per [`SampleRow`], columns named as its fields: counts and ids as unsigned integers of
//! their width, times as signed 64-bit nanoseconds (values beyond 2^63 - 1 saturate), texts as
//! dictionary-encoded UTF-8. No column has nulls. Snappy compression.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use amdahl_contain::contained;
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{ChunkReader, FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};

use crate::schema::SampleRow;

/// Name of the file in the folder of a result.
pub const SAMPLES_FILE: &str = "samples.parquet";

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

/// The column that older files lack: a thread for each CPU is taken for it.
const THREADS: &str = "threads";

/// How a column is stored and which field it is.
enum Column {
    Unsigned(&'static str, fn(&mut SampleRow) -> &mut u32),
    Wide(&'static str, fn(&mut SampleRow) -> &mut u64),
    Text(&'static str, fn(&mut SampleRow) -> &mut String),
}

const COLUMNS: [Column; 15] = [
    Column::Unsigned("cpus", |row| &mut row.cpus),
    Column::Unsigned(THREADS, |row| &mut row.threads),
    Column::Unsigned("run", |row| &mut row.run),
    Column::Unsigned("pid", |row| &mut row.pid),
    Column::Unsigned("tid", |row| &mut row.tid),
    Column::Text("process", |row| &mut row.process),
    Column::Text("thread", |row| &mut row.thread),
    Column::Text("cause", |row| &mut row.cause),
    Column::Wide("charged_ns", |row| &mut row.charged_ns),
    Column::Wide("count", |row| &mut row.count),
    Column::Text("symbol", |row| &mut row.symbol),
    Column::Text("file", |row| &mut row.file),
    Column::Unsigned("line", |row| &mut row.line),
    Column::Text("stack", |row| &mut row.stack),
    Column::Text("object", |row| &mut row.object),
];

impl Column {
    fn name(&self) -> &'static str {
        match self {
            Column::Unsigned(name, _) | Column::Wide(name, _) | Column::Text(name, _) => name,
        }
    }

    fn schema(&self) -> Result<TypePtr, ParquetError> {
        let (physical, logical) = match self {
            Column::Unsigned(..) => (Physical::INT32, Some(LogicalType::integer(32, false))),
            Column::Wide(..) => (Physical::INT64, None),
            Column::Text(..) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let column = Type::primitive_type_builder(self.name(), physical)
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
        let rows = &mut self.pending;
        let mut group = self.file.next_row_group()?;
        for column in &COLUMNS {
            let Some(mut writer) = group.next_column()? else {
                break;
            };
            match column {
                Column::Unsigned(_, get) => {
                    // The format stores unsigned numbers in the bits of signed ones.
                    let values: Vec<i32> =
                        rows.iter_mut().map(|row| get(row).cast_signed()).collect();
                    writer
                        .typed::<Int32Type>()
                        .write_batch(&values, None, None)?;
                }
                Column::Wide(_, get) => {
                    let saturated = |row| i64::try_from(*get(row)).unwrap_or(i64::MAX);
                    let values: Vec<i64> = rows.iter_mut().map(saturated).collect();
                    writer
                        .typed::<Int64Type>()
                        .write_batch(&values, None, None)?;
                }
                Column::Text(_, get) => {
                    let text = |row| ByteArray::from(get(row).as_str());
                    let values: Vec<ByteArray> = rows.iter_mut().map(text).collect();
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

/// Rows of a file at most; those that are written have thousands.
const ROWS_MAX: usize = 4 << 20;
/// Bytes of all texts of a file at most.
const TEXT_BYTES_MAX: usize = 512 << 20;

/// Samples could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {why}; measure again", path.display())]
#[non_exhaustive]
pub struct UnreadableSamples {
    /// Which file.
    pub path: std::path::PathBuf,
    /// Why not.
    pub why: String,
}

/// Reads the rows of a file, which may come from anybody.
///
/// # Errors
/// When it cannot be opened, is damaged, or has other columns or far more rows than are written.
pub fn read(path: &Path) -> Result<Vec<SampleRow>, UnreadableSamples> {
    let failed = |why: String| UnreadableSamples {
        path: path.to_owned(),
        why: crate::plain::elide(&crate::plain::plain(&why), 200, "..."),
    };
    // Asked before opening: opening a pipe would wait for a writer.
    let is_file = std::fs::metadata(path).map(|metadata| metadata.is_file());
    if !is_file.map_err(|error| failed(error.to_string()))? {
        return Err(failed("it is not a regular file".to_owned()));
    }
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    read_from(file).map_err(failed)
}

/// As [`read`], from bytes or an open file.
///
/// # Errors
/// As [`read`]: what is wrong.
pub fn read_from(from: impl ChunkReader + 'static) -> Result<Vec<SampleRow>, String> {
    // The library is not hardened against files that lie; what it asserts is an error here.
    contained(|| try_read(from)).unwrap_or_else(|| Err("it is damaged".to_owned()))
}

fn try_read(from: impl ChunkReader + 'static) -> Result<Vec<SampleRow>, String> {
    let failed = |error: ParquetError| error.to_string();
    let file = SerializedFileReader::new(from).map_err(failed)?;
    let metadata = file.metadata();
    let found = metadata.file_metadata().schema_descr().columns();
    let has_threads = found.iter().any(|column| column.name() == THREADS);
    let wanted = |column: &&Column| has_threads || column.name() != THREADS;
    let columns: Vec<&Column> = COLUMNS.iter().filter(wanted).collect();
    let expected = columns.iter().map(|column| column.schema());
    let expected = expected.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let are_ours = found
        .iter()
        .zip(&expected)
        .all(|(found, ours)| found.self_type_ptr() == *ours);
    if found.len() != expected.len() || !are_ours {
        return Err("its columns are not those of samples".to_owned());
    }
    let (mut rows, mut text_bytes) = (Vec::new(), 0);
    for index in 0..metadata.num_row_groups() {
        let count = usize::try_from(metadata.row_group(index).num_rows());
        let count = count.map_err(|_| "a number of rows is negative".to_owned())?;
        if rows.len() + count > ROWS_MAX {
            return Err(format!("it has more than {ROWS_MAX} rows"));
        }
        let group = file.get_row_group(index).map_err(failed)?;
        read_group(&*group, &columns, count, &mut rows, &mut text_bytes)?;
    }
    if !has_threads {
        rows.iter_mut().for_each(|row| row.threads = row.cpus);
    }
    Ok(rows)
}

/// Appends the `count` rows that the group claims to have.
fn read_group(
    group: &dyn RowGroupReader,
    columns: &[&Column],
    count: usize,
    all: &mut Vec<SampleRow>,
    text_bytes: &mut usize,
) -> Result<(), String> {
    let begin = all.len();
    for (index, column) in columns.iter().enumerate() {
        match column {
            Column::Unsigned(_, field) => {
                let values = read_column::<Int32Type>(group, index, count)?;
                // The first column shows that they are there before there is memory for them.
                all.resize(begin + count, SampleRow::default());
                let rows = &mut all[begin..];
                for (row, value) in rows.iter_mut().zip(values) {
                    *field(row) = value.cast_unsigned();
                }
            }
            Column::Wide(_, field) => {
                let values = read_column::<Int64Type>(group, index, count)?;
                let rows = &mut all[begin..];
                for (row, value) in rows.iter_mut().zip(values) {
                    *field(row) = u64::try_from(value).map_err(|_| "a time is negative")?;
                }
            }
            Column::Text(_, field) => {
                let values = read_column::<ByteArrayType>(group, index, count)?;
                let rows = &mut all[begin..];
                for (row, value) in rows.iter_mut().zip(values) {
                    *text_bytes += value.len();
                    if *text_bytes > TEXT_BYTES_MAX {
                        return Err("its texts are larger than those of any run".to_owned());
                    }
                    let text = value.as_utf8().map_err(|error| error.to_string())?;
                    text.clone_into(field(row));
                }
            }
        }
    }
    Ok(())
}

fn read_column<T: DataType>(
    group: &dyn RowGroupReader,
    index: usize,
    rows: usize,
) -> Result<Vec<T::T>, String> {
    let failed = |error: ParquetError| error.to_string();
    let column = group.get_column_reader(index).map_err(failed)?;
    let mut reader = get_typed_column_reader::<T>(column);
    let mut values = Vec::new();
    let (read, ..) = reader
        .read_records(rows, None, None, &mut values)
        .map_err(failed)?;
    if read != rows || values.len() != rows {
        return Err("a column is shorter than its rows".to_owned());
    }
    Ok(values)
}
