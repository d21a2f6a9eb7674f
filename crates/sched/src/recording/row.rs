//! Events as rows of a table.

use amdahl_topology::CpuSet;

use crate::event::{Event, Off, Waker};

/// One row; texts are from fixed lists but for `text`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row<'a> {
    pub ts: u64,
    pub kind: &'a str,
    pub cpu: u32,
    pub tid: u32,
    pub other: u32,
    pub detail: &'a str,
    pub place: u32,
}

fn off_word(off: Off) -> &'static str {
    match off {
        Off::Preempted => "preempted",
        Off::Yielded => "yielded",
        Off::Exited => "exited",
        Off::Blocked {
            in_iowait,
            uninterruptible,
        } => match (uninterruptible, in_iowait) {
            (false, false) => "blocked",
            (false, true) => "iowait",
            (true, false) => "unint",
            (true, true) => "unint-iowait",
        },
    }
}

fn off_of(word: &str) -> Option<Off> {
    let blocked = |uninterruptible, in_iowait| Off::Blocked {
        in_iowait,
        uninterruptible,
    };
    Some(match word {
        "preempted" => Off::Preempted,
        "yielded" => Off::Yielded,
        "exited" => Off::Exited,
        "blocked" => blocked(false, false),
        "iowait" => blocked(false, true),
        "unint" => blocked(true, false),
        "unint-iowait" => blocked(true, true),
        _ => return None,
    })
}

/// An event as a row and its text.
pub(super) fn row_of(event: &Event) -> (Row<'static>, String) {
    let mut text = String::new();
    let row = |kind, ts| Row {
        ts,
        kind,
        ..Row::default()
    };
    let row = match *event {
        Event::Switch {
            ts,
            cpu,
            prev,
            off,
            next,
        } => Row {
            cpu,
            tid: prev,
            other: next,
            detail: off_word(off),
            ..row("switch", ts)
        },
        Event::Waking {
            ts,
            tid,
            waker,
            cpu,
            last_cpu,
        } => {
            let (detail, other) = match waker {
                Waker::Thread(by) => ("thread", by),
                Waker::Timer => ("timer", 0),
                Waker::Interrupt => ("interrupt", 0),
            };
            Row {
                cpu,
                tid,
                other,
                detail,
                place: last_cpu,
                ..row("waking", ts)
            }
        }
        Event::Migrate { ts, tid, from, to } => Row {
            cpu: to,
            tid,
            place: from,
            ..row("migrate", ts)
        },
        Event::Fork {
            ts,
            parent,
            child,
            pid,
            cpu,
        } => Row {
            cpu,
            tid: child,
            other: parent,
            place: pid,
            ..row("fork", ts)
        },
        Event::Thread {
            ts,
            tid,
            pid,
            is_kernel,
            ref name,
        } => {
            text.push_str(name);
            let detail = if is_kernel { "kernel" } else { "user" };
            Row {
                tid,
                other: pid,
                detail,
                ..row("thread", ts)
            }
        }
        Event::Allowed { ts, tid, ref cpus } => {
            let detail = if cpus.is_none() { "everywhere" } else { "list" };
            if let Some(cpus) = cpus {
                text = cpus.to_string();
            }
            Row {
                tid,
                detail,
                ..row("allowed", ts)
            }
        }
        Event::Lost { ts, cpu, count } => {
            let other = u32::try_from(count).unwrap_or(u32::MAX);
            Row {
                cpu,
                other,
                ..row("lost", ts)
            }
        }
    };
    (row, text)
}

/// The way back; `None` if the row is not one of ours.
pub(super) fn event_of(row: &Row<'_>, text: &str) -> Option<Event> {
    let Row {
        ts,
        kind,
        cpu,
        tid,
        other,
        detail,
        place,
    } = *row;
    Some(match kind {
        "switch" => Event::Switch {
            ts,
            cpu,
            prev: tid,
            off: off_of(detail)?,
            next: other,
        },
        "waking" => {
            let waker = match detail {
                "thread" => Waker::Thread(other),
                "timer" => Waker::Timer,
                "interrupt" => Waker::Interrupt,
                _ => return None,
            };
            Event::Waking {
                ts,
                tid,
                waker,
                cpu,
                last_cpu: place,
            }
        }
        "migrate" => Event::Migrate {
            ts,
            tid,
            from: place,
            to: cpu,
        },
        "fork" => Event::Fork {
            ts,
            parent: other,
            child: tid,
            pid: place,
            cpu,
        },
        "thread" => Event::Thread {
            ts,
            tid,
            pid: other,
            is_kernel: match detail {
                "kernel" => true,
                "user" => false,
                _ => return None,
            },
            name: text.into(),
        },
        "allowed" => {
            let cpus = match detail {
                "everywhere" => None,
                "list" => Some(text.parse::<CpuSet>().ok()?),
                _ => return None,
            };
            Event::Allowed { ts, tid, cpus }
        }
        "lost" => Event::Lost {
            ts,
            cpu,
            count: u64::from(other),
        },
        _ => return None,
    })
}
