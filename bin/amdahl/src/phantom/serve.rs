//! `amdahl phantom --serve`: publishes what is seen in a page of shared memory.

use std::path::{Path, PathBuf};

use amdahl_phantom_page::{ENVIRONMENT, Publisher, Subject, directory, path, remove_abandoned};
use amdahl_topology::CpuSet;

use super::look::{Looking, Sink};
use super::whom::Whom;
use super::{is_endless, look_while};
use crate::child::Child;
use crate::cli::{Phantom, Selection};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::{screen, watch};

/// Publishes until it is ended, the command or the process has ended, or time is up.
pub fn main(
    args: &Phantom,
    selection: &Selection,
    cpus: &CpuSet,
    interrupt: &Interrupt,
) -> Result<u8, Failure> {
    // A command must know the path before it has a process id: its page has ours.
    let has_command = !selection.command.is_empty();
    let whom = if has_command {
        None
    } else {
        Some(Whom::new(args, None)?)
    };
    let subject = whom
        .as_ref()
        .map_or(Subject::Process(std::process::id()), Whom::subject);
    let path = match &args.page {
        Some(page) => kept(page)?,
        None => path(subject).map_err(|error| Failure::result(error.to_string()))?,
    };
    let name = ENVIRONMENT.to_str().expect("plain text");
    let text = path.to_str().ok_or_else(|| {
        Failure::result(format!(
            "the page cannot be {}: the name is not UTF-8; choose another with --page, or another folder with XDG_RUNTIME_DIR",
            path.display()
        ))
    })?;
    let child = watch::start_to_last(selection, cpus, &[(name.to_owned(), text.to_owned())])?;
    let whom = match (whom, &child) {
        (Some(whom), _) => whom,
        (None, child) => Whom::new(args, child.as_ref().map(Child::pid))?,
    };
    let looking = Looking::new(args, whom.clone())?;
    let publisher = if args.page.is_some() {
        Publisher::keeping(&path, looking.source())
    } else {
        Publisher::create(&path, looking.source())
    };
    let publisher = publisher.map_err(|error| Failure::result(error.to_string()))?;
    // Not before: what a killed server has left at our own path is taken over, so that its readers go on.
    if args.page.is_none()
        && let Some(directory) = path.parent()
    {
        remove_abandoned(directory);
    }
    if !args.quiet {
        say(&whom, &looking);
    }
    screen::print(&format!("{text}\n"))?;
    let (found, ended) = look_while(
        selection,
        child,
        looking,
        Sink::Publish(publisher),
        interrupt,
    )?;
    // The command is what was asked for; that its page is gone was said.
    if let Some(failure) = found.failed.filter(|_| !has_command) {
        return Err(failure);
    }
    let is_early = interrupt.asked() && !is_endless(args);
    watch::finished(selection, ended.as_ref(), is_early)
}

/// The file that somebody has named, as a path that holds in any folder.
fn kept(page: &Path) -> Result<PathBuf, Failure> {
    let path = std::path::absolute(page)
        .map_err(|error| Failure::usage(format!("--page {}: {error}", page.display())))?;
    let real = |folder: &Path| folder.canonicalize().ok();
    // Made if it is not there yet.
    let cleaned = directory().ok().and_then(|folder| real(&folder));
    if cleaned.is_some() && cleaned == path.parent().and_then(real) {
        return Err(Failure::usage(format!(
            "--page {}: files in this folder are removed when their writer is gone, and this one is to stay; choose another folder",
            page.display()
        )));
    }
    Ok(path)
}

fn say(whom: &Whom, looking: &Looking) {
    use std::io::Write;
    let mut err = anstream::stderr();
    let interval = looking.interval().as_millis();
    let how = looking.source().name();
    // Nobody may read it.
    let _ = writeln!(
        err,
        "amdahl: publishing about {} every {interval} ms, by {how}",
        whom.words()
    );
    for source in &looking.sources {
        if !source.missing.is_empty() {
            let _ = writeln!(
                err,
                "amdahl: {} To get more: {}",
                source.missing, source.remedy
            );
        }
    }
}
