//! `amdahl sched show`: what was recorded, maybe by others.

use std::path::{Path, PathBuf};
use std::time::Duration;

use amdahl_report::load::{LoadError, RESULT_FILE};
use amdahl_report::sched::schema::SchedResult;
use amdahl_report::sched::{EVENTS_FOLDER, csv, html, load, picture, terminal, timelines, to_json};
use amdahl_report::schema::Notice;
use amdahl_report::trace as perfetto;
use amdahl_sched::event::Event;
use amdahl_sched::recording::{FolderError, FolderReader, Part, Window, is_part};
use amdahl_sched::vmm::{ProcessFacts, ThreadFacts, guest_cpu};
use amdahl_sched::{Analysis, Settings};

use super::{summary, trace};
use crate::cli::SchedShow;
use crate::failure::Failure;
use crate::screen;
use crate::whole_file::{self, WholeFile};

/// Shows, or writes one file.
pub fn main(args: &SchedShow) -> Result<u8, Failure> {
    let window = window(args)?;
    if let Some(file) = &args.trace {
        return write_trace(&events_of(&args.recording), window, file);
    }
    let result = match window {
        Some(window) => analyse(&events_of(&args.recording), Some(window), &args.recording)?,
        None => read(&args.recording)?,
    };
    for (file, drawing) in [
        (&args.svg, picture::file as fn(&SchedResult) -> _),
        (&args.timelines, timelines::file),
    ] {
        let Some(file) = file else {
            continue;
        };
        let drawing = drawing(&result).ok_or_else(|| {
            Failure::result(
                "there is no such picture: it was recorded without events, or by an older version, of which \
                 FOLDER/events has it"
                    .to_owned(),
            )
        })?;
        return whole_file::write(file, &drawing).map(|()| 0);
    }
    if let Some(file) = &args.html {
        let page = html::render(&result);
        return whole_file::write(file, &page).map(|()| 0);
    }
    let text = if args.json {
        to_json(&result).map_err(|error| Failure::result(error.to_string()))?
    } else if args.csv {
        csv::render(&result)
    } else {
        terminal::render(&result, screen::width(), screen::style())
    };
    screen::print(&text)
}

/// The part of the time that is asked for.
fn window(args: &SchedShow) -> Result<Option<Window>, Failure> {
    if args.from.is_none() && args.to.is_none() {
        return Ok(None);
    }
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let (from, to) = (args.from.map_or(0, ns), args.to.map_or(u64::MAX, ns));
    if from >= to {
        return Err(Failure::usage("--from must be before --to".to_owned()));
    }
    Ok(Some(Window::new(from, to)))
}

/// `from 2 s to 3 s`.
fn window_text(window: Window) -> String {
    let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
    match window.to {
        u64::MAX => format!("from {} s on", seconds(window.from)),
        to => format!("from {} s to {} s", seconds(window.from), seconds(to)),
    }
}

/// Where the events of a recording are.
fn events_of(path: &Path) -> PathBuf {
    let inside = path.join(EVENTS_FOLDER);
    if inside.is_dir() {
        inside
    } else {
        path.to_owned()
    }
}

/// Events without a result: of a recording that was killed, or passed on without the rest.
pub fn is_without_result(path: &Path) -> bool {
    if path.is_dir() {
        let mut files = path.read_dir().into_iter().flatten().flatten();
        let has_events =
            path.join(EVENTS_FOLDER).is_dir() || files.any(|file| is_part(&file.path()));
        return has_events && !path.join(RESULT_FILE).exists();
    }
    is_part(path)
}

/// The result of a folder, or of events alone: those of a recording that was killed have no other.
fn read(path: &Path) -> Result<SchedResult, Failure> {
    if is_without_result(path) {
        return analyse(&events_of(path), None, path);
    }
    load::load(path).map_err(|error: LoadError| Failure::result(error.to_string()))
}

fn refused(error: FolderError) -> Failure {
    Failure::result(match error {
        FolderError::Empty { .. } => {
            format!("{error}: it is none, or was ended before any were on disk; record again")
        }
        _ => error.to_string(),
    })
}

/// Parts, in a window if there is one.
fn parts(events: &Path, window: Option<Window>) -> Result<FolderReader, Failure> {
    let parts = FolderReader::open(events).map_err(refused)?;
    Ok(parts.within(window.unwrap_or_default()))
}

fn analyse(events: &Path, window: Option<Window>, path: &Path) -> Result<SchedResult, Failure> {
    let mut analysis: Option<Analysis> = None;
    let mut end = 0;
    let (mut number, mut begin) = (0u64, 0);
    for part in parts(events, window)? {
        let Part { meta, events } = part.map_err(refused)?;
        // Who was there before is told again in later parts.
        if window.is_some() && !events.iter().any(is_of_the_scheduler) {
            continue;
        }
        let analysis = analysis.get_or_insert_with(|| {
            // The oldest parts may have given way.
            begin = events.first().map_or(meta.begin, Event::ts);
            let mut settings = Settings::new(meta.topology);
            (settings.tick_ns, settings.begin) = (meta.tick_ns, Some(begin));
            Analysis::new(settings)
        });
        for event in &events {
            analysis.event(event);
            end = event.ts().max(end);
        }
        number += 1;
    }
    let Some(analysis) = analysis else {
        let when = window.map_or_else(String::new, |window| {
            format!(
                " {}: --from and --to count from its beginning",
                window_text(window)
            )
        });
        return Err(Failure::result(format!(
            "{} holds no events{when}",
            path.display()
        )));
    };
    let outcome = analysis.outcome(end);
    let mut result = summary::result(&outcome, Some(&analysis));
    result.command = vec![
        number.to_string(),
        "parts".into(),
        "of".into(),
        "events".into(),
        "in".into(),
        path.display().to_string(),
    ];
    // Of the processes nothing is known but the names of their threads.
    result.guests = summary::guests(&outcome, |row| {
        guest_cpu(&row.name, ThreadFacts::default(), &ProcessFacts::default())
    });
    let (code, text) = match window {
        Some(window) => (
            "window",
            format!(
                "These figures are of a part of the recording, {}, made of its events alone: the machine and steal are missing, \
                 and who ran or waited when it began is known from the first event of each thread on.",
                window_text(window)
            ),
        ),
        None => (
            "events-alone",
            "These figures are made of the events alone, as those of a recording that was killed: the last \
             seconds of that one are missing, and so are the machine, steal, and how many events were lost."
                .to_owned(),
        ),
    };
    result.warnings.push(Notice {
        code: code.to_owned(),
        text,
    });
    Ok(result)
}

/// What a thread did, not what is known of it.
fn is_of_the_scheduler(event: &Event) -> bool {
    !matches!(event, Event::Thread { .. } | Event::Allowed { .. })
}

fn write_trace(events: &Path, window: Option<Window>, path: &Path) -> Result<u8, Failure> {
    // Read twice, because a trace begins with the names and would not fit into memory.
    let parts = || parts(events, window);
    let names = trace::names(parts()?).map_err(refused)?;
    let mut stretches = trace::Stretches::new(parts()?);
    let mut file = WholeFile::create(path)?;
    perfetto::write(&mut stretches, &names, &mut file.out)
        .map(|_| ())
        .map_err(|error| file.failed(&error))?;
    stretches.finish().map_err(refused)?;
    file.finish()?;
    Ok(0)
}
