//! A trace that Perfetto's UI and Chrome's tracing page open: JSON events, gzip.
//!
//! A process of its own has one track per CPU that shows who ran; every thread of the workload has
//! a track under its process that shows where it ran and what it waited for. Slices of one track
//! must not overlap; their order is free.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use crate::schema::Slice;

/// Name for the file.
pub const TRACE_FILE: &str = "trace.json.gz";

/// Ids of the CPU tracks start here, beyond the kernel's largest thread id (2^22), because
/// Perfetto joins tracks by thread id.
const CPU_TRACKS: u32 = 1 << 30;

/// Names of the tracks.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Of the process that has the tracks of the CPUs; `CPUs` if empty.
    pub cpus: String,
    /// Process id to name.
    pub processes: BTreeMap<u32, String>,
    /// (Process id, thread id) to name.
    pub threads: BTreeMap<(u32, u32), String>,
}

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    ph: &'static str,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<Micros>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<Micros>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Args<'a> {
    Name { name: &'a str },
    Order { sort_index: i64 },
    Cpu { cpu: u32 },
}

/// Nanoseconds written as microseconds, exact: a double would round long runs.
struct Micros(u64);

impl Serialize for Micros {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Doubles hold integers below 2^53, so up to 104 days this prints every nanosecond.
        if self.0.is_multiple_of(1000) {
            serializer.serialize_u64(self.0 / 1000)
        } else {
            serializer.serialize_f64(self.0 as f64 / 1000.0)
        }
    }
}

/// Writes slices as they come and gives the inner writer back, flushed. Keeps nothing but the
/// set of CPUs and threads seen.
///
/// # Errors
/// What `out` says, e.g. that the disk is full.
pub fn write<W: Write>(
    slices: impl IntoIterator<Item = Slice>,
    names: &Names,
    out: W,
) -> io::Result<W> {
    let gzip = GzEncoder::new(out, Compression::new(4));
    let mut events = Events {
        out: BufWriter::with_capacity(64 << 10, gzip),
        any: false,
    };
    events
        .out
        .write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let name = match names.cpus.as_str() {
        "" => "CPUs",
        name => name,
    };
    events.meta("process_name", CPU_TRACKS, CPU_TRACKS, Args::Name { name })?;
    events.meta(
        "process_sort_index",
        CPU_TRACKS,
        CPU_TRACKS,
        Args::Order { sort_index: -1 },
    )?;
    for (&pid, name) in &names.processes {
        events.meta("process_name", pid, pid, Args::Name { name })?;
    }
    for (&(pid, tid), name) in &names.threads {
        events.meta("thread_name", pid, tid, Args::Name { name })?;
    }
    let mut cpus = BTreeSet::new();
    for slice in slices {
        let (ts, dur) = (slice.start_ns, slice.len_ns);
        if let Some(cpu) = slice.cpu {
            let track = CPU_TRACKS.saturating_add(cpu).saturating_add(1);
            if cpus.insert(cpu) {
                let name = format!("CPU {cpu}");
                events.meta("thread_name", CPU_TRACKS, track, Args::Name { name: &name })?;
                let order = Args::Order {
                    sort_index: i64::from(cpu),
                };
                events.meta("thread_sort_index", CPU_TRACKS, track, order)?;
            }
            events.complete(&slice.label, CPU_TRACKS, track, ts, dur, None)?;
            if slice.pid != 0 {
                let args = Some(Args::Cpu { cpu });
                events.complete("running", slice.pid, slice.tid, ts, dur, args)?;
            }
        } else {
            events.complete(&slice.label, slice.pid, slice.tid, ts, dur, None)?;
        }
    }
    events.out.write_all(b"\n]}\n")?;
    let gzip = events
        .out
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?;
    let mut out = gzip.finish()?;
    out.flush()?;
    Ok(out)
}

struct Events<W: Write> {
    out: W,
    any: bool,
}

impl<W: Write> Events<W> {
    fn meta(&mut self, name: &str, pid: u32, tid: u32, args: Args<'_>) -> io::Result<()> {
        self.event(&Event {
            name,
            ph: "M",
            pid,
            tid,
            ts: None,
            dur: None,
            args: Some(args),
        })
    }

    fn complete(
        &mut self,
        name: &str,
        pid: u32,
        tid: u32,
        start_ns: u64,
        len_ns: u64,
        args: Option<Args<'_>>,
    ) -> io::Result<()> {
        let (ts, dur) = (Some(Micros(start_ns)), Some(Micros(len_ns)));
        self.event(&Event {
            name,
            ph: "X",
            pid,
            tid,
            ts,
            dur,
            args,
        })
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.out.write_all(if self.any { b",\n" } else { b"\n" })?;
        self.any = true;
        serde_json::to_writer(&mut self.out, event).map_err(io::Error::from)
    }
}
