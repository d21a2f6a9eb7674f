//! A folder of `amdahl sched record` as a workload.

use std::collections::BTreeMap;
use std::path::Path;

use amdahl_des::program::Workload;
use amdahl_des::workload::Replay;
use amdahl_report::sched::EVENTS_FOLDER;
use amdahl_sched::event::{Event, Off, Tid, Waker};
use amdahl_sched::recording::FolderReader;

use crate::failure::Failure;

/// Whether it looks like a recording.
pub fn is_recording(folder: &Path) -> bool {
    folder.join(EVENTS_FOLDER).is_dir()
}

/// Reads the events; the text tells recordings apart.
pub fn read(folder: &Path) -> Result<(Workload, String), Failure> {
    let events = folder.join(EVENTS_FOLDER);
    let events = if events.is_dir() {
        events
    } else {
        folder.to_owned()
    };
    let failed = |error: String| {
        Failure::result(format!(
            "cannot read the recording {}: {error}",
            folder.display()
        ))
    };
    let parts = FolderReader::open(&events).map_err(|error| failed(error.to_string()))?;
    let (mut replay, mut last, mut count, mut lost) = (Replay::new(), 0, 0u64, 0u64);
    let mut begin = None;
    // Who is told of by name: threads of the selection. Others only take its CPUs away.
    let mut known: BTreeMap<Tid, ()> = BTreeMap::new();
    for part in parts {
        let part = part.map_err(|error| failed(error.to_string()))?;
        begin.get_or_insert(part.meta.begin);
        for event in &part.events {
            (last, count) = (event.ts(), count + 1);
            match *event {
                Event::Thread {
                    ts,
                    tid,
                    pid,
                    ref name,
                    ..
                } if tid != 0 && pid != 0 => {
                    known.insert(tid, ());
                    replay.name(tid, name, ts);
                }
                Event::Switch {
                    ts,
                    prev,
                    off,
                    next,
                    ..
                } => {
                    if known.contains_key(&prev) {
                        replay.off(
                            prev,
                            ts,
                            matches!(off, Off::Blocked { .. }),
                            off == Off::Exited,
                        );
                        if off == Off::Exited {
                            known.remove(&prev);
                        }
                    }
                    if known.contains_key(&next) {
                        replay.on(next, ts);
                    }
                }
                Event::Waking { ts, tid, waker, .. } if known.contains_key(&tid) => {
                    let by = match waker {
                        Waker::Thread(by) => Some(by),
                        Waker::Timer | Waker::Interrupt => None,
                    };
                    replay.woken(tid, by, ts);
                }
                Event::Fork {
                    ts, parent, child, ..
                } => {
                    known.insert(child, ());
                    replay.forked(parent, child, ts);
                }
                Event::Lost { count, .. } => lost += count,
                _ => {}
            }
        }
    }
    let name = folder.file_name().map_or("recording".into(), |name| {
        name.to_string_lossy().into_owned()
    });
    let Some((workload, is_cut)) = replay.finish(&name, last) else {
        return Err(failed("no thread of it ran".to_owned()));
    };
    if is_cut || lost > 0 {
        let _ = std::io::Write::write_fmt(
            &mut anstream::stderr(),
            format_args!(
                "amdahl: the recording is not whole ({lost} events lost{}): the replay is not either\n",
                if is_cut { ", and it is too long" } else { "" }
            ),
        );
    }
    let identity = format!(
        "recording {} {} {last} {count}",
        name,
        begin.unwrap_or_default()
    );
    Ok((workload, identity))
}
