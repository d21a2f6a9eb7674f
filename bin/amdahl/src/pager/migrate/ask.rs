//! Another process is asked to move.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use amdahl_migrate::Way;
use amdahl_migrate::door::{Asking, Files, News, Request, RoundFigures};

use super::depart::{TRIES, json, round, text};
use super::{failure, millis, paused, recovered, tell};
use crate::cli::migrate::PagerMigrate;
use crate::cli::tls::Tls;
use crate::failure::Failure;
use crate::interrupt::{ABANDONED, Interrupt};
use crate::screen;

/// How often we look whether we are to end.
const OFTEN: Duration = Duration::from_millis(100);

/// How far it has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Asked,
    Copying,
    /// There is no way back. So many pages are to be fetched.
    There(u64),
}

pub fn main(args: &PagerMigrate, pid: u32, way: &Way) -> Result<u8, Failure> {
    let quiet = args.way.quiet;
    let interrupt = Interrupt::catch();
    let mut request = Request::new(&absolute_way(way));
    request.downtime_ms = args.downtime;
    request.rounds = args.rounds;
    request.post_copy = !args.no_post_copy;
    request.throttle = args.auto_converge;
    request.timeout_ms = args.way.timeout * 1000;
    request.recover_ms = args.way.recover * 1000;
    request.tls = files(&args.way.tls);
    let mut asking = Asking::begin(pid, &request).map_err(failure)?;
    let mut phase = Phase::Asked;
    let asked = Instant::now();
    let mut is_called_off = false;
    loop {
        if interrupt.asked() && !is_called_off {
            is_called_off = true;
            if let Phase::There(pages) = phase {
                return Err(Failure {
                    message: format!(
                        "it runs at {way}, which cannot be undone: process {pid} goes on serving the {pages} pages that are missing there until all have arrived"
                    ),
                    code: ABANDONED,
                });
            }
            tell(quiet, "calling it off");
            asking.cancel();
        }
        let news = match asking.next(OFTEN) {
            Ok(None) if phase == Phase::Asked && asked.elapsed() > args.way.timeout() => {
                return Err(Failure::result(format!(
                    "process {pid} does not answer: is it on the move already?"
                )));
            }
            Ok(None) => continue,
            Ok(Some(news)) => news,
            Err(error) => return Err(Failure::result(ended(&error.to_string(), way, phase))),
        };
        match news {
            News::Begun { memory_bytes } => {
                phase = Phase::Copying;
                tell(
                    quiet,
                    &format!("process {pid}: {memory_bytes} bytes to {way}"),
                );
            }
            News::Round {
                number,
                pages,
                bytes,
                took_ns,
                dirty_pages,
                downtime_estimate_ns,
            } => {
                let figures = RoundFigures {
                    pages,
                    bytes,
                    took_ns,
                    dirty_pages,
                    downtime_estimate_ns,
                };
                tell(quiet, &format!("round {number}: {}", round(&figures)));
            }
            News::SwitchedOver {
                downtime_ns,
                left_pages,
            } => {
                phase = Phase::There(left_pages);
                let stood = millis(Duration::from_nanos(downtime_ns));
                tell(
                    quiet,
                    &format!(
                        "it runs at {way}; stood still for {stood}; {left_pages} pages to be fetched"
                    ),
                );
            }
            News::ToFetch { pages } => {
                phase = Phase::There(pages);
                tell(quiet, &format!("{pages} pages to be fetched"));
            }
            News::InDoubt { why } => tell(
                quiet,
                &format!(
                    "{why}; pages are served until nobody has been connected for {} s",
                    args.way.timeout
                ),
            ),
            News::Paused { why, within_ms } => {
                tell(
                    quiet,
                    &paused(&why, Duration::from_millis(within_ms), TRIES),
                );
            }
            News::Recovered { away_ns } => {
                tell(quiet, &recovered(Duration::from_nanos(away_ns)));
            }
            News::Moved { figures } => {
                return screen::print(&match args.way.json {
                    true => json(Some(pid), "moved", Some(&figures)),
                    false => text(&figures),
                });
            }
            News::Stayed { why } => {
                let why = format!("{why}; process {pid} goes on here, as if nothing had been");
                return refused(args, pid, "stayed", why);
            }
            News::Unknown { why } => {
                let why = format!("{why}. Process {pid} stands still");
                return refused(args, pid, "unknown", why);
            }
            // Of a later version.
            _ => {}
        }
    }
}

fn refused(args: &PagerMigrate, pid: u32, outcome: &str, why: String) -> Result<u8, Failure> {
    if args.way.json {
        screen::print(&json(Some(pid), outcome, None))?;
    }
    Err(Failure::result(why))
}

/// What it means that the process says no more.
fn ended(error: &str, way: &Way, phase: Phase) -> String {
    match phase {
        Phase::Asked | Phase::Copying => format!(
            "{error}. The switch-over was not heard of: look at {way}, where it runs only if that was said there"
        ),
        Phase::There(0) => format!("{error}. It runs at {way}, and all of its pages are there"),
        Phase::There(pages) => format!(
            "{error}. It runs at {way} with {pages} pages missing, which are lost if the process has ended: then it stops there when it needs one"
        ),
    }
}

/// The other process is in another folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn absolute_way(way: &Way) -> Way {
    match way {
        Way::Unix(path) => Way::Unix(absolute(path)),
        way => way.clone(),
    }
}

fn files(tls: &Tls) -> Option<Files> {
    Some(Files {
        certificate: absolute(tls.tls_certificate.as_deref()?),
        key: absolute(tls.tls_key.as_deref()?),
        authorities: absolute(tls.tls_authorities.as_deref()?),
        name: tls.tls_name.clone(),
    })
}
