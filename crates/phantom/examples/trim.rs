//! `trim FOLDER FILE`: what `amdahl sched record --system` saw of the load of the tests (`tests/data/load.py`), in one file.
//!
//! Threads are numbered anew. Whatever else ran on the machine is idling here: its share beside the load is so small.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;

use amdahl_sched::event::{Event, Waker};
use amdahl_sched::recording::{FolderReader, PartWriter};

/// Names of the load's threads.
const KNOWN: [&str; 3] = ["ours", "other", "taker"];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, file] = &arguments[..] else {
        return Err("trim FOLDER FILE".into());
    };
    let parts = FolderReader::open(folder.as_ref())?.collect::<Result<Vec<_>, _>>()?;
    let meta = parts.first().ok_or("there is nothing in it")?.meta.clone();
    let events: Vec<Event> = parts.into_iter().flat_map(|part| part.events).collect();
    let mut numbers = BTreeMap::new();
    for event in &events {
        if let Event::Thread { tid, name, .. } = event
            && KNOWN.contains(&&**name)
        {
            let number = numbers.len() as u32 + 1;
            numbers.entry(*tid).or_insert(number);
        }
    }
    let number = |tid| numbers.get(&tid).copied().unwrap_or(0);
    let mut writer = PartWriter::new(meta);
    let trimmed = events.into_iter().filter_map(|event| match event {
        Event::Switch {
            ts,
            cpu,
            prev,
            off,
            next,
        } => {
            let (prev, next) = (number(prev), number(next));
            let switch = Event::Switch {
                ts,
                cpu,
                prev,
                off,
                next,
            };
            ((prev, next) != (0, 0)).then_some(Ok(switch))
        }
        Event::Waking {
            ts,
            tid,
            cpu,
            last_cpu,
            ..
        } => {
            let waking = Event::Waking {
                ts,
                tid: number(tid),
                waker: Waker::Timer,
                cpu,
                last_cpu,
            };
            (number(tid) != 0).then_some(Ok(waking))
        }
        Event::Fork { ts, child, cpu, .. } => {
            let child = number(child);
            let fork = Event::Fork {
                ts,
                parent: 0,
                child,
                pid: child,
                cpu,
            };
            (child != 0).then_some(Ok(fork))
        }
        Event::Thread { ts, tid, name, .. } => {
            let tid = number(tid);
            let thread = Event::Thread {
                ts,
                tid,
                pid: tid,
                is_kernel: false,
                name,
            };
            (tid != 0).then_some(Ok(thread))
        }
        Event::Lost { .. } => Some(Err("events were lost: record it again")),
        _ => None,
    });
    for event in trimmed {
        writer.add(event?);
    }
    println!("{file}: {} events", writer.len());
    writer.write(File::create(file)?)?;
    Ok(())
}
