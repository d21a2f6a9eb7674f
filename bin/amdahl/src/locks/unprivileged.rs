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
use amdahl_report::schema::{Notice, Source};
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

/// Threads of a system or a control group that are polled, at most.
const THREADS_MAX: usize = 4096;

/// Whether all of a system or a control group is polled: nobody of them takes the preload library.
fn is_wide(selection: &Selection) -> bool {
    selection.system || selection.cgroup.is_some()
}

/// Polls whom `selection` says; `root` is its process.
fn poller(selection: &Selection, root: Option<u32>) -> Result<Poller, Failure> {
    let scope = Scope {
        root: root.filter(|_| !is_wide(selection)),
        adopter: None,
        cgroup: selection.cgroup.clone(),
    };
    let poller = Poller::new(scope).map_err(|error| Failure::machine(error.to_string()))?;
    Ok(match is_wide(selection) {
        true => poller.copy_stacks_of_locks(0).at_most(THREADS_MAX),
        false => poller.copy_stacks(0),
    })
}

/// Watches whom `selection` says. `why` says why BPF is not used, and `remedy` what helps.
pub fn observe(
    selection: &Selection,
    cpus: &CpuSet,
    interrupt: &Interrupt,
    why: &str,
    remedy: &str,
) -> Result<Observed, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::machine(error.to_string());
    scratch::clean_up_after_the_killed();
    let folder = Scratch::new().map_err(|error| failed(&error))?;
    let env = match selection.command.first() {
        Some(program) if !is_wide(selection) => library::env(program, folder.path()),
        _ => Vec::new(),
    };
    let child = watch::start(selection, cpus, &env)?;
    let root = selection.pid.or(child.as_ref().map(Child::pid));
    let poller = poller(selection, root)?;
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let limits = super::sums_within(selection.memory_bytes());
    let begun = Polling {
        is_preloaded: !env.is_empty(),
        ..Polling::new(poller, limits)
    };
    let polling = std::thread::Builder::new()
        .name("amdahl-poll".into())
        .spawn(move || poll(begun, &is_over))
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
    let left_out = left_out_notice(polled.blindness);
    Ok(Observed {
        from,
        to,
        sources: sources(selection, seen, why, remedy),
        goroutines: None,
        warnings: seen.notices().into_iter().chain(left_out).collect(),
        tracker: polled.tracker,
        decoded: polled.decoded,
        events: polled.blindness.polls,
        events_lost: 0,
        stacks_lost: 0,
        ended,
        interrupted: interrupt.asked(),
    })
}

/// Of threads that there was no time for.
fn left_out_notice(blindness: Blindness) -> Option<Notice> {
    let left_out = blindness.left_out;
    (left_out > 0).then(|| Notice {
        code: "threads-left-out".to_owned(),
        text: format!(
            "{left_out} threads were not polled, since there are more than {THREADS_MAX}: their waits are not in the table."
        ),
    })
}

/// Polls, added up.
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
    fn new(poller: Poller, limits: Limits) -> Polling {
        Polling {
            poller,
            tracker: Tracker::new(limits),
            polls: Polls::default(),
            symbols: Symbolizer::new(),
            known: std::collections::HashSet::new(),
            is_preloaded: false,
            sources: Vec::new(),
        }
    }

    /// For a live view of `selection`, which is to show `owners`. `why` says why BPF is not used, and `remedy` what helps.
    pub fn of(
        selection: &Selection,
        owners: bool,
        why: &str,
        remedy: &str,
    ) -> Result<Polling, Failure> {
        let poller = poller(selection, selection.pid)?;
        let mut sources = polled_sources(is_wide(selection), why, remedy);
        sources.extend(owners.then(|| super::no_holds(remedy)));
        Ok(Polling {
            sources,
            ..Polling::new(poller, super::sums_within(selection.memory_bytes()))
        })
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
        let open: Vec<_> = self.polls.open().collect();
        let tally = self.tracker.tally();
        let table = Table::with_open(&self.tracker, tally, &open, by.into(), &names);
        let mut found = result::result(&table, by);
        let blindness = self.poller.blindness();
        found.events = blindness.polls;
        found.sources = self.sources.clone();
        found
            .warnings
            .extend(library::unread_notice(blindness.unread));
        found.warnings.extend(left_out_notice(blindness));
        found.sources.extend(hidden_source(blindness.hidden));
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
fn poll(mut polling: Polling, over: &AtomicBool) -> Polled {
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

fn sources(selection: &Selection, seen: Seen, why: &str, remedy: &str) -> Vec<Source> {
    let is_wide = is_wide(selection);
    let mut sources = Vec::new();
    if !is_wide {
        sources.push(library::source(&selection.command));
        seen.correct(&mut sources);
    }
    sources.extend(polled_sources(is_wide, why, remedy));
    sources.extend(hidden_source(seen.hidden));
    sources
}

fn hidden_source(hidden: u64) -> Option<Source> {
    let [missing, remedy] = HIDDEN;
    (hidden > 0).then(|| source("system calls", "missing", missing, remedy))
}

/// Of waits that are only polled.
fn polled_sources(is_wide: bool, why: &str, remedy: &str) -> Vec<Source> {
    let which = if is_wide { "Waits" } else { "Other waits" };
    let mut missing = format!(
        "{which} are polled{why}: counts are lower bounds, short waits are seen by chance, locks \
         of the kernel have no address, and nobody knows who released them."
    );
    if is_wide {
        missing += &format!(
            " At most {THREADS_MAX} threads are polled, none of the kernel, and the more they are the more seldom: the \
             time between two polls grows from 5 ms to a second, so that polling takes a hundredth of a CPU. Waits for \
             pthread locks are polled as well: only a command that is watched alone loads the library that times them."
        );
    }
    let spinning = "Nobody tells who spins in the kernel.";
    vec![
        source("waits", "/proc", &missing, remedy),
        source("spin locks of the kernel", "missing", spinning, remedy),
    ]
}
