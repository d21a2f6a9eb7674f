//! `amdahl pager demo-vm`: threads that write memory, and can be asked to move.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use amdahl_migrate::door::{Door, Visit};
use amdahl_migrate::{Departure, DepartureStats, Error};
use amdahl_pager::{Backing, Mapping, PAGE};
use serde_json::json;

use super::migrate::arrive::take_in;
use super::migrate::demo::{Demo, Settings, Stopped};
use super::migrate::{failure, millis, tell};
use crate::cli::migrate::PagerDemoVm;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen;

/// How often it is looked at whether the threads run and are to go on.
const OFTEN: Duration = Duration::from_millis(100);

pub fn main(args: &PagerDemoVm) -> Result<u8, Failure> {
    let (memory, mut demo) = match &args.listen {
        Some(way) => {
            let arrived = take_in(&args.way, way, args.demo.memory)?;
            (arrived.memory, arrived.demo)
        }
        None => {
            let memory = Mapping::new(args.demo.memory, Backing::Small)
                .map_err(|error| Failure::machine(error.to_string()))?;
            let memory = Arc::new(memory);
            let demo = Demo::new(Stopped::new(memory.clone(), Settings::of(&args.demo)));
            (memory, demo)
        }
    };
    let interrupt = Interrupt::catch();
    let door = Door::open().map_err(failure)?;
    let pid = std::process::id();
    tell(
        args.way.quiet,
        &format!("runs: amdahl pager migrate --pid {pid} --to WHERE moves it"),
    );
    let moved = loop {
        if interrupt.asked() || demo.has_failed() {
            break None;
        }
        let Some(visit) = door.visit(OFTEN).map_err(failure)? else {
            continue;
        };
        if let ControlFlow::Break(stats) = move_by(visit, args, &interrupt, &memory, &mut demo)? {
            break Some(stats);
        }
    };
    let pages = memory.len() / PAGE;
    // Those that have moved are checked where they are.
    if moved.is_none()
        && let Err(page) = demo.end()
    {
        return Err(Failure::result(format!(
            "page {page} is wrong: please report this"
        )));
    }
    screen::print(&match (args.way.json, &moved) {
        (true, _) => format!(
            "{:#}\n",
            json!({
                "format": "amdahl.pager.demo-vm/1",
                "outcome": if moved.is_some() { "moved" } else { "ended" },
                "pages": pages,
            })
        ),
        (false, Some(stats)) => format!(
            "moved: stood still for {}, {} pages were fetched afterwards\n",
            millis(stats.downtime),
            stats.left_pages
        ),
        (false, None) => format!("ended: all {pages} pages are right\n"),
    })
}

/// Does what somebody asks for. `Break`: it has moved, and is here no more.
fn move_by(
    visit: Visit,
    args: &PagerDemoVm,
    interrupt: &Interrupt,
    memory: &Arc<Mapping>,
    demo: &mut Demo,
) -> Result<ControlFlow<DepartureStats>, Failure> {
    tell(args.way.quiet, &format!("moves to {}", visit.request().to));
    let _calls_off = interrupt.sets(&visit.cancel());
    // SAFETY: the demonstration's threads alone write to the memory, and none does while they are paused or after they have left.
    match unsafe { visit.run(&Departure::default(), memory, demo) } {
        Ok(stats) => Ok(ControlFlow::Break(stats)),
        Err(error @ Error::Unknown(_)) => Err(failure(error)),
        Err(error) => {
            tell(args.way.quiet, &format!("stays: {error}"));
            Ok(ControlFlow::Continue(()))
        }
    }
}
