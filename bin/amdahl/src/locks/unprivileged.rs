//! Locks without privileges: pthread waits from the preload library where the program takes it, the
//! other waits from polls of `/proc`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amdahl_locks::unprivileged::{Polls, place_of_call, place_of_copy};
use amdahl_locks::{Limits, Table, Tracker};
use amdahl_probe::bpf::{Decoded, ThreadName};
use amdahl_probe::clock;
use amdahl_probe::symbol::Symbolizer;
use amdahl_probe::unprivileged::preload::{self, Records};
use amdahl_probe::unprivileged::{Blindness, Poller, Scope};
use amdahl_report::locks::schema::LocksResult;
use amdahl_report::schema::Source;
use amdahl_topology::CpuSet;

use super::follow::name;
use super::{Observed, result, source};
use crate::child::Child;
use crate::cli::{LocksBy, Selection};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::scratch::{self, Scratch};
use crate::watch::preload::{HIDDEN, Seen};
use crate::watch::{self, preload as library};

/// What the poller's thread brings back.
struct Polled {
    tracker: Tracker,
    symbols: Symbolizer,
    decoded: Decoded,
    blindness: Blindness,
}

/// Watches a command or a process. `why` says why BPF is not used, and `remedy` what helps.
pub fn observe(
    selection: &Selection,
    cpus: &CpuSet,
    interrupt: &Interrupt,
    why: &str,
    remedy: &str,
) -> Result<Observed, Failure> {
    if selection.system || selection.cgroup.is_some() {
        return Err(not_polled(selection, why, remedy));
    }
    let failed = |error: &dyn std::fmt::Display| Failure::machine(error.to_string());
    scratch::clean_up_after_the_killed();
    let folder = Scratch::new().map_err(|error| failed(&error))?;
    let env = match selection.command.first() {
        Some(program) => library::env(program, folder.path()),
        None => Vec::new(),
    };
    let child = watch::start(selection, cpus, &env)?;
    let root = selection.pid.or(child.as_ref().map(Child::pid));
    let scope = Scope {
        root: root.expect("a command or a process"),
        adopter: None,
        cgroup: None,
    };
    let poller = Poller::new(scope)
        .map_err(|error| failed(&error))?
        .copy_stacks(0);
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let is_preloaded = !env.is_empty();
    let limits = super::sums_within(selection.memory_bytes());
    let polling = std::thread::Builder::new()
        .name("amdahl-poll".into())
        .spawn(move || poll(poller, &is_over, is_preloaded, limits))
        .map_err(|error| failed(&error))?;
    let from = clock::monotonic();
    let ended = watch::run(selection, child, interrupt, || ());
    let to = clock::monotonic();
    over.store(true, Ordering::Relaxed);
    polling.thread().unpark();
    let mut polled = polling
        .join()
        .map_err(|_| failed(&"the poller ended early"))?;
    let ended = ended?;
    let records = preload::read_dir(folder.path()).map_err(|error| failed(&error))?;
    take_records(&records, &mut polled, to);
    let threads = polled.decoded.threads.iter();
    let threads = threads.map(|(&tid, name)| (tid, name.pid));
    let seen = Seen::new(polled.blindness, threads, &records);
    Ok(Observed {
        from,
        to,
        sources: sources(&selection.command, seen, why, remedy),
        warnings: seen.notices(),
        tracker: polled.tracker,
        decoded: polled.decoded,
        events: polled.blindness.polls,
        events_lost: 0,
        stacks_lost: 0,
        ended,
        interrupted: interrupt.asked(),
    })
}

/// Why a system or a control group is not watched without BPF, and what helps.
pub fn not_polled(selection: &Selection, why: &str, remedy: &str) -> Failure {
    Failure::machine(format!(
        "{} cannot be watched for locks{why}: without BPF, waits are polled from /proc, which is done for one \
         process and its descendants alone. Watch a command or --pid, or {remedy}; see amdahl doctor",
        selection.target()
    ))
}

/// Polls of a process and its descendants, added up.
pub struct Polling {
    poller: Poller,
    tracker: Tracker,
    polls: Polls,
    symbols: Symbolizer,
    known: std::collections::HashSet<u32>,
    /// What the preload library times is not polled as well.
    is_preloaded: bool,
    sources: Vec<Source>,
}

impl Polling {
    fn new(poller: Poller, is_preloaded: bool, limits: Limits) -> Polling {
        Polling {
            poller,
            tracker: Tracker::new(limits),
            polls: Polls::default(),
            symbols: Symbolizer::new(),
            known: std::collections::HashSet::new(),
            is_preloaded,
            sources: Vec::new(),
        }
    }

    /// Of process `root`, for a live view. `why` says why BPF is not used, and `remedy` what helps.
    pub fn of(root: u32, why: &str, remedy: &str) -> Result<Polling, Failure> {
        let scope = Scope {
            root,
            adopter: None,
            cgroup: None,
        };
        let poller = Poller::new(scope).map_err(|error| Failure::machine(error.to_string()))?;
        let mut polling = Polling::new(poller.copy_stacks(0), false, Limits::default());
        polling.sources = polled_sources(why, remedy);
        Ok(polling)
    }

    /// Polls once. Returns after which time to do it again.
    pub fn step(&mut self) -> std::time::Duration {
        let snapshot = self.poller.poll();
        for copy in self.poller.take_stacks() {
            if self.known.insert(copy.pid) {
                let _ = self.symbols.maps_mut().snapshot(copy.pid);
                self.symbols.touch(copy.pid);
            }
            let stack = Arc::new(self.symbols.resolve_copy(&copy));
            self.tracker.learn(place_of_copy(copy.stack), &stack);
        }
        self.polls
            .take(&snapshot, self.is_preloaded, &mut self.tracker);
        self.poller.pause()
    }

    fn decoded(&self) -> Decoded {
        let mut decoded = Decoded::default();
        let names = self.poller.names().iter();
        decoded.threads.extend(names.map(|(&tid, name)| {
            let (pid, name) = (name.pid, name.name.clone());
            (tid, ThreadName { pid, name })
        }));
        decoded
    }

    /// What was seen so far.
    pub fn result(&self, by: LocksBy) -> LocksResult {
        let decoded = self.decoded();
        let names = |tid| name(&decoded, tid);
        let table = Table::new(&self.tracker, self.tracker.tally(), by.into(), &names);
        let mut found = result::result(&table, by);
        let blindness = self.poller.blindness();
        found.events = blindness.polls;
        found.sources = self.sources.clone();
        found
            .warnings
            .extend(library::unread_notice(blindness.unread));
        result::note_goroutines(&mut found, "/proc");
        found
    }

    fn finish(mut self) -> Polled {
        let decoded = self.decoded();
        self.polls.finish(&mut self.tracker);
        Polled {
            tracker: self.tracker,
            symbols: self.symbols,
            decoded,
            blindness: self.poller.blindness(),
        }
    }
}

/// Polls until it is over.
fn poll(poller: Poller, over: &AtomicBool, is_preloaded: bool, limits: Limits) -> Polled {
    let mut polling = Polling::new(poller, is_preloaded, limits);
    loop {
        let is_last = over.load(Ordering::Relaxed);
        let pause = polling.step();
        if is_last {
            return polling.finish();
        }
        std::thread::park_timeout(pause);
    }
}

/// Adds what the library recorded.
fn take_records(records: &Records, polled: &mut Polled, until: u64) {
    for process in &records.processes {
        let callers = process
            .totals
            .iter()
            .map(|total| total.caller)
            .chain(process.waits.iter().map(|wait| wait.caller));
        let callers: std::collections::HashSet<u64> = callers.collect();
        for caller in callers {
            let stack = polled.symbols.resolve_full(process.pid, &[caller], &[]);
            let place = place_of_call(process.pid, caller);
            polled.tracker.learn(place, &Arc::new(stack));
        }
        polled.tracker.process(process, until);
    }
}

fn sources(command: &[String], seen: Seen, why: &str, remedy: &str) -> Vec<Source> {
    let mut sources = vec![library::source(command)];
    seen.correct(&mut sources);
    sources.extend(polled_sources(why, remedy));
    if seen.hidden > 0 {
        let [missing, remedy] = HIDDEN;
        sources.push(source("system calls", "missing", missing, remedy));
    }
    sources
}

/// Of waits that are only polled.
fn polled_sources(why: &str, remedy: &str) -> Vec<Source> {
    let missing = format!(
        "Other waits are polled{why}: counts are lower bounds, short waits are seen by chance, locks \
         of the kernel have no address, and nobody knows who released them."
    );
    let spinning = "Nobody tells who spins in the kernel.";
    vec![
        source("waits", "/proc", &missing, remedy),
        source("spin locks of the kernel", "missing", spinning, remedy),
    ]
}
