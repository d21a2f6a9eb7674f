//! Threads of ours move to another amdahl.

use std::sync::Arc;
use std::time::Duration;

use amdahl_migrate::door::{Figures, RoundFigures};
use amdahl_migrate::{Departed, Departure, Error, Limits, Redial, Round, Stream, Trust, Way};
use amdahl_pager::{Backing, Mapping};
use serde::Serialize;

use super::demo::{Demo, Settings, Stopped};
use super::{failure, millis, tell, tells};
use crate::cli::migrate::PagerMigrate;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen;

/// What is done while the destination is away.
pub const TRIES: &str = "pages are served on, and the destination is tried again";

pub fn main(args: &PagerMigrate, way: &Way) -> Result<u8, Failure> {
    let memory = Mapping::new(args.demo.memory, Backing::Small)
        .map_err(|error| Failure::machine(error.to_string()))?;
    let memory = Arc::new(memory);
    let connection = args
        .way
        .trusting(|trust| way.connect(trust, args.way.timeout()))
        .map_err(failure)?;
    let interrupt = Interrupt::catch();
    let mut demo = Demo::new(Stopped::new(memory.clone(), Settings::of(&args.demo)));
    let quiet = args.way.quiet;
    let departure = Departure {
        limits: Limits {
            downtime_max: Duration::from_millis(args.downtime),
            rounds_max: args.rounds,
            post_copy: !args.no_post_copy,
            throttle: args.auto_converge,
        },
        timeout: args.way.timeout(),
        listen: connection.here,
        credentials: args.way.tls.credentials(),
        progress: Some(Arc::new(move |now: &Round| {
            tell(quiet, &round(&now.into()))
        })),
        redial: args.way.recovery().map(|within| {
            let way = way.clone();
            let connect = move |within, trust: Trust<'_>| way.connect(trust, within);
            Redial {
                within,
                connect: Arc::new(args.way.by(connect)),
                give_up: Arc::default(),
                tell: tells(quiet, TRIES),
            }
        }),
        ..Departure::default()
    };
    let _calls_off = interrupt.sets(&departure.cancel);
    // SAFETY: the demonstration's threads alone write to the memory, and none does while they are paused or after they have left.
    let departed = unsafe { departure.run(&memory, connection.stream, &mut demo) };
    let mut departed = match departed {
        Ok(departed) => departed,
        Err(error) => {
            // They have gone on here.
            let kept = match demo.end() {
                Ok(()) => "the threads went on here, on their own memory".to_owned(),
                Err(page) => format!("page {page} is wrong here: please report this"),
            };
            let mut failure = failure(error);
            failure.message = format!("{}; {kept}", failure.message);
            return Err(failure);
        }
    };
    let mut is_told = false;
    let waited = departed.wait(|missing| {
        tell(quiet, &format!("{missing} pages to be fetched"));
        if interrupt.asked() && !is_told {
            is_told = true;
            tell(
                quiet,
                "the threads run at the other side, which needs these pages: they are served until all are there. Two more Ctrl-C end this at once, and they are lost",
            );
        }
    });
    if let Err(error) = waited {
        // It may run there, and need what is here.
        keep_serving(&departed, quiet, &error, &interrupt, args.way.timeout());
        return Err(failure(error));
    }
    let figures = Figures::from(departed.stats());
    screen::print(&match args.way.json {
        true => json(None, "moved", Some(&figures)),
        false => text(&figures),
    })
}

/// Goes on serving pages until it is interrupted, or nobody has been connected for so long.
fn keep_serving<S: Stream>(
    departed: &Departed<S>,
    quiet: bool,
    why: &Error,
    interrupt: &Interrupt,
    alone: Duration,
) {
    if departed.stats().left_pages == 0 {
        return;
    }
    tell(
        quiet,
        &format!(
            "{why}; pages are served until nobody has been connected for {} s, or Ctrl-C",
            alone.as_secs()
        ),
    );
    departed.serve_on(alone, || interrupt.asked());
}

/// A round as a line.
pub fn round(round: &RoundFigures) -> String {
    format!(
        "{} pages in {}, {} written meanwhile: would stand still for {}",
        round.pages,
        millis(Duration::from_nanos(round.took_ns)),
        round.dirty_pages,
        estimate(round.downtime_estimate_ns),
    )
}

/// Nobody knows better than that.
fn estimate(ns: u64) -> String {
    match Duration::from_nanos(ns) {
        long if long > Duration::from_secs(3600) => "more than an hour".to_owned(),
        time => millis(time),
    }
}

/// The source's document.
#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    side: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    outcome: &'a str,
    #[serde(flatten)]
    figures: Option<&'a Figures>,
}

pub fn json(pid: Option<u32>, outcome: &str, figures: Option<&Figures>) -> String {
    let document = Document {
        format: "amdahl.pager.migrate/1",
        side: "source",
        pid,
        outcome,
        figures,
    };
    let text = serde_json::to_string_pretty(&document).expect("text and numbers");
    text + "\n"
}

pub fn text(figures: &Figures) -> String {
    let mut text = format!(
        "moved: {} rounds, {} bytes, {:.0} pages a second written during the last\n",
        figures.rounds.len(),
        figures.sent_bytes,
        figures.dirty_pages_per_s
    );
    text += &format!(
        "stood still for {} ({} expected); {} pages sent then, {} left to be fetched\n",
        millis(Duration::from_nanos(figures.downtime_ns)),
        estimate(figures.downtime_estimate_ns),
        figures.paused_pages,
        figures.left_pages
    );
    if figures.outages > 0 {
        text += &format!("recovered {} times\n", figures.outages);
    }
    if figures.throttle_percent > 0 {
        text += &format!("slowed down by up to {} %\n", figures.throttle_percent);
    }
    text
}
