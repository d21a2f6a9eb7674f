//! Samples as Parquet, for pandas and DuckDB.
//!
//! One row per [`SampleRow`], columns named as its fields: counts and ids as unsigned integers of
//! their width, times as signed 64-bit nanoseconds (values beyond 2^63 - 1 saturate), texts as
//! dictionary-encoded UTF-8. No column has nulls. Snappy compression.
//!
//! What is written can be read: both sides have the same bounds. Of more rows the smallest become one for each run and
//! cause.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
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

/// Writes rows in the order they come, one row group in memory at a time. It has no bounds of its own: `write` has.
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

/// Writes all rows of an iterator. Where they are more than is read again, the smallest become rows without thread and
/// stack, one for each run and cause: sums by cause stay what they are.
///
/// # Errors
/// As [`Writer::write`] and [`Writer::finish`].
pub fn write<W: Write + Send>(
    rows: impl IntoIterator<Item = SampleRow>,
    out: W,
) -> Result<W, SamplesError> {
    let mut writer = Writer::new(out)?;
    for row in bounded(rows.into_iter().collect(), &BOUNDS) {
        writer.write(row)?;
    }
    writer.finish()
}

/// What a file may have at most.
struct Bounds {
    rows: usize,
    /// Bytes of its texts, each distinct one once: what the file holds.
    distinct: usize,
    /// Bytes of the texts of all rows: what they take in memory.
    all: usize,
}

/// Most files have thousands of rows, and some megabytes of texts.
const BOUNDS: Bounds = Bounds {
    rows: 4 << 20,
    distinct: 512 << 20,
    all: 2 << 30,
};

/// What there is so far.
struct Taken {
    rows: usize,
    distinct: usize,
    all: usize,
    /// Hashes of the texts that were counted; with a random key, so that nobody can make them collide.
    seen: HashSet<u64>,
    hasher: RandomState,
}

impl Taken {
    fn nothing() -> Taken {
        Taken {
            rows: 0,
            distinct: 0,
            all: 0,
            seen: HashSet::new(),
            hasher: RandomState::new(),
        }
    }

    fn text(&mut self, text: &[u8]) {
        self.all = self.all.saturating_add(text.len());
        if !text.is_empty() && self.seen.insert(self.hasher.hash_one(text)) {
            self.distinct = self.distinct.saturating_add(text.len());
        }
    }

    fn row(&mut self, row: &SampleRow) {
        self.rows += 1;
        for text in texts(row) {
            self.text(text.as_bytes());
        }
    }

    fn fits(&self, bounds: &Bounds) -> bool {
        self.rows <= bounds.rows && self.distinct <= bounds.distinct && self.all <= bounds.all
    }
}

fn texts(row: &SampleRow) -> [&str; 7] {
    let SampleRow {
        process,
        thread,
        cause,
        symbol,
        file,
        stack,
        object,
        ..
    } = row;
    [process, thread, cause, symbol, file, stack, object].map(String::as_str)
}

/// The stack of a row that stands for many.
const OTHERS: &str = "[others]";

/// The rows, or the largest of them and the sums of the others. O(n log n).
fn bounded(rows: Vec<SampleRow>, bounds: &Bounds) -> Vec<SampleRow> {
    let mut all = Taken::nothing();
    rows.iter().for_each(|row| all.row(row));
    if all.fits(bounds) {
        return rows;
    }
    let key = |row: &SampleRow| (row.cpus, row.threads, row.run, row.cause.clone());
    let rest = |row: &SampleRow| SampleRow {
        cpus: row.cpus,
        threads: row.threads,
        run: row.run,
        cause: row.cause.clone(),
        stack: OTHERS.to_owned(),
        ..SampleRow::default()
    };
    // There is room for all of these before there is any for others.
    let mut others: BTreeMap<_, SampleRow> = BTreeMap::new();
    let mut taken = Taken::nothing();
    for row in &rows {
        others.entry(key(row)).or_insert_with(|| {
            let rest = rest(row);
            taken.row(&rest);
            rest
        });
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse((rows[at].charged_ns, rows[at].count)));
    let mut is_kept = vec![false; rows.len()];
    for at in order {
        taken.row(&rows[at]);
        if !taken.fits(bounds) {
            break;
        }
        is_kept[at] = true;
    }
    let mut kept = Vec::new();
    for (row, is_kept) in rows.into_iter().zip(is_kept) {
        if is_kept {
            kept.push(row);
        } else if let Some(sum) = others.get_mut(&key(&row)) {
            sum.charged_ns = sum.charged_ns.saturating_add(row.charged_ns);
            sum.count = sum.count.saturating_add(row.count);
        }
    }
    let others = others.into_values();
    kept.extend(others.filter(|row| row.charged_ns > 0 || row.count > 0));
    kept
}

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
    contained(|| try_read(from, &BOUNDS)).unwrap_or_else(|| Err("it is damaged".to_owned()))
}

fn try_read(from: impl ChunkReader + 'static, bounds: &Bounds) -> Result<Vec<SampleRow>, String> {
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
    let (mut rows, mut taken) = (Vec::new(), Taken::nothing());
    for index in 0..metadata.num_row_groups() {
        let count = usize::try_from(metadata.row_group(index).num_rows());
        let count = count.map_err(|_| "a number of rows is negative".to_owned())?;
        if rows.len().saturating_add(count) > bounds.rows {
            return Err(format!("it has more than {} rows", bounds.rows));
        }
        let group = file.get_row_group(index).map_err(failed)?;
        read_group(&*group, &columns, count, &mut rows, (&mut taken, bounds))?;
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
    (taken, bounds): (&mut Taken, &Bounds),
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
                    taken.text(value.data());
                    if !taken.fits(bounds) {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(run: u32, tid: u32, cause: &str, charged_ns: u64, stack: &str) -> SampleRow {
        SampleRow {
            cpus: 2,
            threads: 2,
            run,
            pid: 1,
            tid,
            process: "p".to_owned(),
            thread: "t".to_owned(),
            cause: cause.to_owned(),
            charged_ns,
            count: 1,
            symbol: "f".to_owned(),
            stack: stack.to_owned(),
            ..SampleRow::default()
        }
    }

    fn back(rows: Vec<SampleRow>, bounds: &Bounds) -> Result<Vec<SampleRow>, String> {
        let mut writer = Writer::new(Vec::new()).expect("a beginning");
        for row in rows {
            writer.write(row).expect("in memory");
        }
        let bytes = writer.finish().expect("in memory");
        try_read(bytes::Bytes::from(bytes), bounds)
    }

    /// A large sweep has the same stacks in each run; they were counted for each row, and its own file was refused.
    #[test]
    fn a_text_counts_once() {
        let bounds = Bounds {
            rows: 1_000,
            distinct: 1_000,
            all: 1 << 20,
        };
        let deep = "frame;".repeat(100);
        let rows: Vec<_> = (1..=100).map(|tid| row(1, tid, "work", 5, &deep)).collect();
        assert_eq!(bounded(rows.clone(), &bounds), rows);
        assert_eq!(back(rows.clone(), &bounds), Ok(rows));
        let other = (0..100).map(|tid| row(1, tid, "work", 5, &format!("{tid};{deep}")));
        assert!(back(other.collect(), &bounds).is_err());
    }

    fn sums(rows: &[SampleRow]) -> BTreeMap<(u32, String), (u64, u64)> {
        let mut sums = BTreeMap::new();
        for row in rows {
            let sum: &mut (u64, u64) = sums.entry((row.run, row.cause.clone())).or_default();
            *sum = (sum.0 + row.charged_ns, sum.1 + row.count);
        }
        sums
    }

    proptest! {
        /// The writer had no bounds, and the reader refused what was beyond its own.
        #[test]
        fn what_is_written_is_read_and_sums_stay(
            rows in prop::collection::vec((0..3u32, 1..20u32, 0..3usize, 0..9u64, 0..40usize), 0..200),
            limits in (10..150usize, 150..900usize, 400..4_000usize),
        ) {
            let causes = ["work", "lock-wait", "serial"];
            let rows: Vec<_> = rows
                .into_iter()
                .map(|(run, tid, cause, ns, depth)| row(run, tid, causes[cause], ns, &"f;".repeat(depth)))
                .collect();
            let bounds = Bounds {
                rows: limits.0,
                distinct: limits.1,
                all: limits.2,
            };
            let kept = bounded(rows.clone(), &bounds);
            prop_assert_eq!(sums(&kept), sums(&rows));
            prop_assert_eq!(back(kept.clone(), &bounds), Ok(kept.clone()));
            let (others, kept): (Vec<_>, Vec<_>) =
                kept.into_iter().partition(|row| row.stack == OTHERS);
            prop_assert!(others.len() <= 9 && others.iter().all(|row| row.tid == 0));
            if others.is_empty() {
                prop_assert_eq!(kept, rows);
            } else if let Some(least) = kept.iter().map(|row| row.charged_ns).min() {
                // None of those that are left out is larger.
                let larger = |rows: &[SampleRow]| rows.iter().filter(|row| row.charged_ns > least).count();
                prop_assert_eq!(larger(&kept), larger(&rows));
            }
        }
    }
}
