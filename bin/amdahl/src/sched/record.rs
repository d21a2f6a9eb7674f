//! `amdahl sched record`.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use amdahl_probe::bpf::{Mappings, Recorder, SCHED, Settings};
use amdahl_probe::clock;
use amdahl_report::sched::schema::{Recording, SchedResult, StealEntry};
use amdahl_report::sched::{
    EVENTS_FOLDER, PICTURE_FILE, TIMELINES_FILE, csv, html, picture, terminal, timelines, to_json,
};
use amdahl_report::schema::{Notice, Source};
use amdahl_report::{load::RESULT_FILE, save, trace as perfetto};
use amdahl_sched::Analysis;
use amdahl_sched::proc::CpuLook;
use amdahl_sched::recording::{FolderReader, FolderWriter, Kept, Meta, is_part};
use amdahl_topology::CpuSet;
use rustix::fs::{Access, AtFlags};

use super::follow::Following;
use super::guests::Guests;
use super::{facts, polled, summary, trace};
use crate::child::Ended;
use crate::cli::{ProbeKind, SchedRecord};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen;
use crate::watch::{self, machine};

/// Where a recording goes that says nothing else.
const FOLDER: &str = "amdahl-sched";
/// What a kill loses at most.
const PART_AFTER: Duration = Duration::from_secs(5);

/// The folder of a recording, claimed for as long as it is written.
struct Target {
    folder: save::Folder,
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl Target {
    /// Tried before anything is recorded. What an earlier recording left stays until [`clear`](Self::clear).
    fn new(path: &Path) -> Result<Target, Failure> {
        let events = path.join(EVENTS_FOLDER);
        fs::create_dir_all(&events).map_err(|error| refused("create", &events, error))?;
        let lock = File::open(&events).map_err(|error| refused("open", &events, error))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(
            |_| {
                Failure::result(format!(
                    "{} is being recorded into already; another folder: --output FOLDER",
                    path.display()
                ))
            },
        )?;
        rustix::fs::accessat(
            rustix::fs::CWD,
            &events,
            Access::WRITE_OK | Access::EXEC_OK,
            AtFlags::EACCESS,
        )
        .map_err(|error| refused("write to", &events, error.into()))?;
        let folder =
            save::Folder::create(path).map_err(|error| Failure::result(error.to_string()))?;
        Ok(Target {
            folder,
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Removes the events of an earlier recording, and its result, which would be shown for this one if this one is
    /// killed.
    fn clear(&self) -> Result<(), Failure> {
        let events = self.events();
        for entry in fs::read_dir(&events)
            .map_err(|error| refused("read", &events, error))?
            .flatten()
        {
            if is_part(&entry.path()) {
                fs::remove_file(entry.path())
                    .map_err(|error| refused("remove from", &events, error))?;
            }
        }
        let result = self.path.join(RESULT_FILE);
        match fs::remove_file(&result) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(refused("remove", &result, error))
            }
            _ => Ok(()),
        }
    }

    fn events(&self) -> PathBuf {
        self.path.join(EVENTS_FOLDER)
    }
}

fn refused(what: &str, path: &Path, error: std::io::Error) -> Failure {
    let path = path.display();
    Failure::result(format!(
        "cannot {what} {path}: {error}; another folder: --output FOLDER"
    ))
}

/// Records and shows.
pub fn main(args: &SchedRecord) -> Result<u8, Failure> {
    let prints = args.json || args.csv;
    let target = match (&args.output, prints) {
        (None, true) => None,
        (output, _) => Some(Target::new(output.as_deref().unwrap_or(Path::new(FOLDER)))?),
    };
    // A recording that cannot begin costs no earlier one.
    let clear = || target.as_ref().map_or(Ok(()), Target::clear);
    let cpus = watch::cpus(args.selection.pid)?;
    let interrupt = Interrupt::catch();
    let mut settings =
        Settings::new(&SCHED, cpus.iter().collect()).within(args.selection.memory_bytes());
    settings.part_after = PART_AFTER;
    settings.everyone = args.selection.system;
    settings.mappings = Mappings::Nothing;
    let recorder = match args.selection.probe {
        ProbeKind::Proc => None,
        kind => match Recorder::new(&settings) {
            Ok(recorder) => Some(recorder),
            Err(error) if kind == ProbeKind::Bpf => return Err(watch::refused(&error)),
            Err(error) => {
                note(
                    args,
                    &format!("without BPF ({error}): sums from /proc alone"),
                );
                let remedy = watch::bpf_remedy(&error).to_owned();
                let found = polled::record(args, &cpus, &interrupt, remedy, clear)?;
                return finish(args, target, found, &interrupt);
            }
        },
    };
    let Some(mut recorder) = recorder else {
        let remedy = "record with --probe auto".to_owned();
        let found = polled::record(args, &cpus, &interrupt, remedy, clear)?;
        return finish(args, target, found, &interrupt);
    };
    let found = record(args, &cpus, &mut recorder, &interrupt, target.as_ref())?;
    finish(args, target, found, &interrupt)
}

fn note(args: &SchedRecord, text: &str) {
    if !args.selection.quiet {
        // Nobody may be reading.
        let _ = writeln!(anstream::stderr(), "amdahl: {text}");
    }
}

fn record(
    args: &SchedRecord,
    cpus: &CpuSet,
    recorder: &mut Recorder,
    interrupt: &Interrupt,
    target: Option<&Target>,
) -> Result<(SchedResult, Option<Ended>), Failure> {
    let topology = machine::topology(cpus)?;
    let (begin, tick_ns) = (clock::monotonic(), facts::tick_ns());
    let is_everyone = args.selection.system;
    let meta = Meta {
        topology: topology.clone(),
        tick_ns,
        begin,
        is_everyone,
    };
    let mut settings = amdahl_sched::Settings::new(topology);
    (settings.begin, settings.tick_ns) = (Some(begin), tick_ns);
    let bytes_max = u64::from(args.max_disk) << 20;
    let writer = target.map(|target| FolderWriter::new(&target.events(), meta, bytes_max));
    let mut following = Following::new(Analysis::new(settings), writer, is_everyone, cpus);
    let (started, looks) = (machine::now(), facts::cpus_now());
    let selection = &args.selection;
    // A command is a descendant of ours.
    let root = selection.pid.unwrap_or_else(std::process::id);
    let (recording, until) = mpsc::channel();
    let (watched, guests) = std::thread::scope(|scope| {
        let looking = std::thread::Builder::new()
            .name("amdahl-look".into())
            .spawn_scoped(scope, move || Guests::follow(selection, Some(root), &until))
            .map_err(|error| Failure::machine(format!("cannot start a thread: {error}")))?;
        let clear = || target.map_or(Ok(()), Target::clear);
        let watched =
            watch::watch_and_say(selection, cpus, recorder, interrupt, &mut following, clear);
        drop(recording);
        let guests = looking.join().expect("looking does not panic");
        Ok((watched?, guests))
    })?;
    let steal = steal(&looks, &facts::cpus_now());

    let outcome = following.analysis.outcome(watched.to);
    let mut result = summary::result(&outcome, Some(&following.analysis));
    result.command = args.selection.whom();
    result.started = started;
    result.machine = machine::describe();
    result.sources = sources(recorder, is_everyone);
    result.guests = summary::guests(&outcome, |row| {
        guests.guest_cpu(row.pid, row.tid, &row.name)
    });
    result.steal = steal;
    result.totals.events_lost = watched.counts.lost.iter().map(|&(_, lost)| lost).sum();
    let mut kept = None;
    match (following.writer, following.failure) {
        (Some(writer), _) => match writer.finish() {
            Ok(done) => kept = Some(done),
            Err(error) => result.warnings.push(unsaved(&error.to_string())),
        },
        (None, Some(error)) => result.warnings.push(unsaved(&error.to_string())),
        (None, None) => {}
    }
    result.recording = kept.map(
        |Kept {
             bytes,
             events,
             events_dropped,
             ..
         }| Recording {
            bytes,
            events,
            events_dropped,
        },
    );
    result.warnings.extend(watched.counts.cut.map(|_| cut()));
    Ok((result, watched.ended))
}

/// Of a recording that had no more memory for events.
pub fn cut() -> Notice {
    Notice {
        code: "cut".to_owned(),
        text: "The analysis did not keep up and the memory for events was used up: recording ended early. Give more \
               with --memory."
            .to_owned(),
    }
}

fn unsaved(why: &str) -> Notice {
    Notice {
        code: "unsaved".to_owned(),
        text: format!("The events are not on disk from some time on: {why}."),
    }
}

pub fn sources(recorder: &Recorder, is_everyone: bool) -> Vec<Source> {
    let missing: Vec<&str> = recorder.missing().collect();
    let scheduling = Source {
        what: "scheduling".to_owned(),
        how: "bpf".to_owned(),
        missing: match missing.is_empty() {
            true => String::new(),
            false => format!(
                "The kernel does not tell of {}: some wakers and names are unknown.",
                missing.join(", ")
            ),
        },
        remedy: String::new(),
    };
    let others = Source {
        what: "other threads".to_owned(),
        how: if is_everyone {
            "bpf"
        } else {
            "bpf, on CPUs only"
        }
        .to_owned(),
        missing: match is_everyone {
            true => String::new(),
            false => "Queues hold the threads of the selection only.".to_owned(),
        },
        remedy: if is_everyone {
            String::new()
        } else {
            "Record with --system.".to_owned()
        },
    };
    vec![scheduling, others]
}

/// What the hypervisor took between two looks, of CPUs of which it took something.
pub fn steal(before: &[CpuLook], after: &[CpuLook]) -> Vec<StealEntry> {
    let tick_s = facts::clock_tick_ns() as f64 / 1e9;
    let rows = after.iter().filter_map(|now| {
        let then = before.iter().find(|then| then.cpu == now.cpu)?;
        let ticks = now.steal_ticks.saturating_sub(then.steal_ticks);
        let steal_s = ticks as f64 * tick_s;
        (ticks > 0).then_some(StealEntry {
            cpu: now.cpu,
            steal_s,
        })
    });
    rows.collect()
}

/// Writes the folder and prints.
fn finish(
    args: &SchedRecord,
    target: Option<Target>,
    (mut result, ended): (SchedResult, Option<Ended>),
    interrupt: &Interrupt,
) -> Result<u8, Failure> {
    if let Some(target) = target {
        write(&target, &mut result)?;
        let path = target.path.clone();
        target
            .folder
            .commit()
            .map_err(|error| Failure::result(error.to_string()))?;
        note(args, &format!("wrote {}", path.display()));
    }
    let text = if args.json {
        to_json(&result).map_err(|error| Failure::result(error.to_string()))?
    } else if args.csv {
        csv::render(&result)
    } else {
        terminal::render(&result, screen::width(), screen::style())
    };
    screen::print(&text)?;
    watch::finished(&args.selection, ended.as_ref(), interrupt.asked())
}

fn write(target: &Target, result: &mut SchedResult) -> Result<(), Failure> {
    let failed = |error: save::SaveError| Failure::result(error.to_string());
    let folder = &target.folder;
    if result.recording.is_some() {
        let parts = FolderReader::open(&target.events())
            .map_err(|error| Failure::result(error.to_string()))?;
        let slices = trace::Slices::new(parts, trace::SLICES_MAX)
            .map_err(|error| Failure::result(error.to_string()))?;
        let is_cut = slices.is_cut();
        let (slices, names) = slices.into_slices();
        let file = folder.file(perfetto::TRACE_FILE).map_err(failed)?;
        perfetto::write(slices, &names, file)
            .and_then(|mut file| file.flush())
            .map_err(|error| failed(folder.write_error(perfetto::TRACE_FILE, error)))?;
        if is_cut {
            result.warnings.push(Notice {
                code: "trace".to_owned(),
                text: format!("trace.json.gz holds the first {} stretches; `amdahl sched show --trace` writes all.", trace::SLICES_MAX),
            });
        }
    }
    let json = to_json(result).map_err(failed)?;
    folder.write(RESULT_FILE, json.as_bytes()).map_err(failed)?;
    folder
        .write(
            amdahl_report::html::REPORT_FILE,
            html::render(result).as_bytes(),
        )
        .map_err(failed)?;
    for (file, drawing) in [
        (PICTURE_FILE, picture::file(result)),
        (TIMELINES_FILE, timelines::file(result)),
    ] {
        if let Some(drawing) = drawing {
            folder.write(file, drawing.as_bytes()).map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_what_came_between_two_looks() {
        let look = |cpu, steal_ticks| CpuLook {
            cpu,
            busy_ticks: 5 * steal_ticks,
            idle_ticks: 7,
            steal_ticks,
        };
        // CPU 2 lost nothing, 5 came later, 6 is gone, 9 counts anew.
        let before = [
            look(0, 40),
            look(2, 7),
            look(6, 1),
            look(9, 90),
            look(17, 0),
        ];
        let after = [
            look(0, 140),
            look(2, 7),
            look(5, 80),
            look(9, 3),
            look(17, 1),
        ];
        let tick_s = facts::clock_tick_ns() as f64 / 1e9;
        let expected = [(0, 100.0), (17, 1.0)].map(|(cpu, ticks)| StealEntry {
            cpu,
            steal_s: ticks * tick_s,
        });
        assert_eq!(steal(&before, &after), expected);
        assert!(steal(&[], &after).is_empty());
    }
}
