//! A trace as importers read it: the rules of the Trace Event Format and of Perfetto's importer of JSON
//! (`src/trace_processor/importers/json`), which leaves out in silence what it does not understand.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use serde_json::{Map, Value};

/// One slice; times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    pub start: u64,
    pub end: u64,
    pub name: String,
}

/// What an importer makes of a file.
#[derive(Debug, Default)]
pub struct Trace {
    pub processes: BTreeMap<u64, String>,
    /// By process and thread.
    pub threads: BTreeMap<(u64, u64), String>,
    /// Slices by the same, in the order of the file.
    pub tracks: BTreeMap<(u64, u64), Vec<Slice>>,
}

/// Reads a file, or says what in it an importer would leave out or show wrongly.
pub fn read(gzip: &[u8]) -> Result<Trace, String> {
    let mut json = String::new();
    GzDecoder::new(gzip)
        .read_to_string(&mut json)
        .map_err(|error| format!("not gzip: {error}"))?;
    parse(&json)
}

/// The same of what was packed.
pub fn parse(json: &str) -> Result<Trace, String> {
    let document: Value =
        serde_json::from_str(json).map_err(|error| format!("not JSON: {error}"))?;
    if let Some(unit) = document.get("displayTimeUnit")
        && unit != "ms"
        && unit != "ns"
    {
        return Err(format!("displayTimeUnit is {unit}"));
    }
    let events = document["traceEvents"].as_array();
    let mut trace = Trace::default();
    for event in events.ok_or("no traceEvents")? {
        trace
            .event(event)
            .map_err(|what| format!("{what}: {event}"))?;
    }
    trace.check()?;
    Ok(trace)
}

/// What identifies threads and processes is 32 bits wide.
fn id(event: &Map<String, Value>, key: &str) -> Result<u64, String> {
    let id = event.get(key).and_then(Value::as_u64);
    // 0 is the idle thread of every CPU.
    id.filter(|id| (1..=u64::from(u32::MAX)).contains(id))
        .ok_or_else(|| format!("no {key}"))
}

/// Microseconds, to the nanosecond.
fn time(event: &Map<String, Value>, key: &str) -> Result<u64, String> {
    let time = event.get(key).and_then(Value::as_f64);
    time.filter(|time| (0.0..1e15).contains(time))
        .map(|micros| (micros * 1e3).round() as u64)
        .ok_or_else(|| format!("no {key}"))
}

impl Trace {
    fn event(&mut self, event: &Value) -> Result<(), String> {
        let event = event.as_object().ok_or("no object")?;
        let text = |key: &str| {
            let text = event.get(key).and_then(Value::as_str).unwrap_or("");
            (!text.is_empty())
                .then(|| text.to_owned())
                .ok_or_else(|| format!("no {key}"))
        };
        let (name, track) = (text("name")?, (id(event, "pid")?, id(event, "tid")?));
        match &*text("ph")? {
            "X" => {
                let start = time(event, "ts")?;
                let end = start + time(event, "dur")?;
                let slice = Slice { start, end, name };
                self.tracks.entry(track).or_default().push(slice);
                Ok(())
            }
            "M" => self.metadata(&name, track, event.get("args").unwrap_or(&Value::Null)),
            phase => Err(format!("phase {phase}")),
        }
    }

    fn metadata(&mut self, name: &str, track: (u64, u64), args: &Value) -> Result<(), String> {
        let named = || {
            let name = args["name"].as_str().filter(|name| !name.is_empty());
            name.map(str::to_owned).ok_or("no args.name")
        };
        let before = match name {
            "process_name" => self.processes.insert(track.0, named()?),
            "thread_name" => self.threads.insert(track, named()?),
            "process_sort_index" | "thread_sort_index" if args["sort_index"].is_i64() => None,
            _ => return Err("unknown metadata".to_owned()),
        };
        before.map_or(Ok(()), |_| Err("named twice".to_owned()))
    }

    fn check(&self) -> Result<(), String> {
        let mut owners: BTreeMap<u64, u64> = BTreeMap::new();
        for (track @ (pid, tid), slices) in &self.tracks {
            if !self.processes.contains_key(pid) || !self.threads.contains_key(track) {
                return Err(format!("{track:?} has no name"));
            }
            // Perfetto knows threads by their ids alone.
            if let Some(other) = owners.insert(*tid, *pid) {
                return Err(format!("thread {tid} is of {other} and of {pid}"));
            }
            // Those that overlap without one holding the other are drawn as if they had ended.
            for two in slices.windows(2) {
                if two[1].start < two[0].end {
                    return Err(format!("overlap in {track:?}: {two:?}"));
                }
            }
        }
        Ok(())
    }
}
