//! Snapshots one after the other, for scripts.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use amdahl_top::{Filter, Shape, Snapshot, json, text};

use super::{Message, Shown};
use crate::failure::Failure;
use crate::screen;

/// How late Ctrl-C is seen, and that nobody reads on, at most.
const LOOK: Duration = Duration::from_millis(200);

/// Prints `count` snapshots, or fewer where the command or the user ends it, or nobody reads on.
pub fn print(shown: &Shown<'_>, count: u32, received: &Receiver<Message>) -> Result<u8, Failure> {
    let (_, by) = super::first(shown.args)?;
    let owners = shown.args.owner;
    let shape = Shape { by, owners };
    let filter = Filter::new(&shown.args.filter);
    let mut printed = 0;
    let mut ended = None;
    while printed < count && !shown.interrupt.asked() {
        match received.recv_timeout(LOOK) {
            Ok(Message::Snapshot(_, snapshot)) => {
                if !print_one(shown, &snapshot, shape, &filter, printed == 0)? {
                    return Ok(0);
                }
                printed += 1;
                if ended.is_some() {
                    break;
                }
            }
            Ok(Message::Notice(_, why)) => return Err(Failure::machine(why)),
            // What it did last is in one more.
            Ok(Message::Ended(how)) => ended = Some(how),
            Ok(Message::Key(_) | Message::Resized | Message::Gone) => {}
            Err(RecvTimeoutError::Timeout) if screen::is_unread() => return Ok(0),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    match ended {
        Some(Err(how)) if !shown.interrupt.asked() => {
            let program = &shown.args.command[0];
            Err(Failure::program(format!("{program}: {how}")))
        }
        _ => Ok(0),
    }
}

/// Whether anybody reads on.
fn print_one(
    shown: &Shown<'_>,
    snapshot: &Snapshot,
    shape: Shape,
    filter: &Filter,
    is_first: bool,
) -> Result<bool, Failure> {
    let args = shown.args;
    let text = if args.json {
        let line = json(snapshot).map_err(|error| Failure::result(error.to_string()))?;
        line + "\n"
    } else {
        let gap = if is_first { "" } else { "\n" };
        let (width, style) = (screen::width(), screen::style());
        gap.to_owned() + &text(snapshot, shape, filter, args.rows, width, style)
    };
    screen::print_on(&text)
}
