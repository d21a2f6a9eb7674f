//! Follows a recording of waits and adds it up.

use std::path::Path;

use amdahl_locks::{Event, Limits, Parked, ThreadName, Tracker, Wait};
use amdahl_probe::bpf::{
    self, Before, Decoded, Decoder, GoroutineProbes, LockFact, Looked, Part, RecorderError,
    WaitTable,
};
use amdahl_probe::perf::SideBand;
use amdahl_report::schema::Notice;
use amdahl_speedup::event::{Ns, Tid};

use crate::watch::later::Later;
use crate::watch::{Follow, Present};

/// Parts become a tally; names are kept for the table.
pub struct Follower {
    decoder: Decoder,
    /// Stacks and names.
    pub decoded: Decoded,
    /// What was added up.
    pub tracker: Tracker,
    /// Slots and stacks that were seen.
    pub events: u64,
    /// The whole system is followed, without this process, which follows it.
    without: Option<u32>,
    later: Later,
    waits: WaitTable,
    /// Waits that began before.
    looked: Looked,
    goroutines: Option<Goroutines>,
}

/// Programs whose goroutines are timed.
struct Goroutines {
    probes: GoroutineProbes,
    /// Why some are not.
    failure: Option<RecorderError>,
}

impl Follower {
    /// Knows nothing yet of the waits in the table `waits`. With `without` it is of the whole system, but for the waits of that
    /// process.
    ///
    /// Up to `later_bytes_max` of parts are left for [`Follower::finish`]; what they add up to keeps within `limits`, and its
    /// stacks within `stack_bytes_max`.
    pub fn new(
        waits: WaitTable,
        without: Option<u32>,
        later_bytes_max: usize,
        limits: Limits,
        stack_bytes_max: usize,
    ) -> Follower {
        Follower {
            decoder: Decoder::new(),
            decoded: Decoded::within(stack_bytes_max),
            tracker: Tracker::new(limits),
            events: 0,
            without,
            later: Later::new(later_bytes_max),
            waits,
            looked: Looked::default(),
            goroutines: None,
        }
    }

    /// Times goroutines by `probes` of all programs that are seen from now on.
    pub fn time_goroutines(&mut self, probes: GoroutineProbes) {
        self.goroutines = Some(Goroutines {
            probes,
            failure: None,
        });
    }

    /// What came of timing goroutines, if that was asked for: whether any are, and why some are not.
    pub fn goroutines(&self) -> Option<(bool, Option<&RecorderError>)> {
        let of = self.goroutines.as_ref()?;
        Some((of.probes.are_any(), of.failure.as_ref()))
    }

    /// Programs of Go begin and end.
    fn take_changes(&mut self, changes: &[SideBand]) {
        if self.goroutines.is_none() {
            return;
        }
        for change in changes {
            let (SideBand::Exec { ts, pid } | SideBand::Exit { ts, pid }) = change else {
                continue;
            };
            if let Some(of) = &mut self.goroutines
                && self.tracker.are_goroutines_told(*pid)
            {
                for wait in of.probes.ended(*pid, *ts) {
                    self.tracker
                        .feed(&Event::Parked(Parked { wait, before: 0 }));
                }
            }
            if matches!(change, SideBand::Exec { .. }) {
                self.look_for_goroutines(*pid);
            }
        }
    }

    /// Times the goroutines of a process that was not seen before, or runs another program now.
    fn look_for_goroutines(&mut self, pid: u32) {
        let Some(of) = &mut self.goroutines else {
            return;
        };
        match of.probes.look_at(pid) {
            Ok(Some(since)) => self.tracker.goroutines_are_told(pid, since),
            Ok(None) => {}
            Err(error) => of.failure = Some(error),
        }
    }

    /// Adds up what was left for later.
    pub fn finish(&mut self) {
        self.later.no_longer();
        self.add_up();
    }

    fn add_up(&mut self) {
        while let Some(part) = self.later.due() {
            let (decoder, decoded) = (&mut self.decoder, &mut self.decoded);
            let before = &self.looked.before;
            decoder.locks(part, decoded, |fact| match fact {
                LockFact::Stack(place, stack) => self.tracker.learn(place, stack),
                LockFact::Event(event) => {
                    if let Some(event) = told(event, self.without, before) {
                        self.tracker.feed(&event);
                    }
                }
            });
            // Nobody tells of their ends.
            let lives = |tid: Tid| Path::new("/proc").join(tid.to_string()).exists();
            self.decoded.forget_names(|| self.tracker.told(), lives);
        }
    }

    /// Adds what had not ended when recording did, at `until`.
    pub fn feed_open(&mut self, until: Ns) {
        for wait in self.open(until) {
            self.tracker.feed(&Event::Wait(wait));
        }
        let open = self.goroutines.as_ref().map(|of| of.probes.open(until));
        for wait in open.into_iter().flatten() {
            self.tracker
                .feed(&Event::Parked(Parked { wait, before: 0 }));
        }
    }

    /// What has not ended by now, `until`.
    pub fn open(&self, until: Ns) -> Vec<Wait> {
        let open = self.waits.open(until).into_iter();
        let told = open.filter_map(|event| told(event, self.without, &self.looked.before));
        told.filter_map(|event| match event {
            Event::Wait(wait) => Some(wait),
            _ => None,
        })
        .collect()
    }

    /// What the look at those who waited before has left out.
    pub fn warnings(&self) -> Vec<Notice> {
        let notice = |count: u64, code: &str, why: &str| {
            let code = code.to_owned();
            let text = format!(
                "{count} threads may have waited since before the recording without being in the table: {why}."
            );
            (count > 0).then_some(Notice { code, text })
        };
        let Looked {
            hidden, left_out, ..
        } = self.looked;
        let hides = "the kernel does not let them be looked at (run as root)";
        let too_many = "there are too many to look at meanwhile";
        [
            notice(hidden, "waits-before-hidden", hides),
            notice(left_out, "waits-before-left-out", too_many),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// What an event says to those who look: nothing if it is of process `without`, or of a wait that was over before it could
/// be told.
fn told(event: Event, without: Option<u32>, before: &Before) -> Option<Event> {
    match event {
        Event::Wait(wait) if without == Some(wait.pid) => None,
        Event::Wait(wait) => before.told(wait).map(Event::Wait),
        other => Some(other),
    }
}

/// Who a thread is, as far as was seen.
pub fn name(decoded: &Decoded, tid: Tid) -> ThreadName {
    let Some(thread) = decoded.threads.get(&tid) else {
        return ThreadName {
            process: String::new(),
            thread: match tid {
                0 => String::new(),
                tid => format!("[{tid}]"),
            },
        };
    };
    let process = decoded.threads.get(&thread.pid).unwrap_or(thread);
    ThreadName {
        process: process.name.clone(),
        thread: thread.name.clone(),
    }
}

impl Follow for Follower {
    fn attach(&mut self, pid: u32, threads: &[(u32, String)]) {
        // On a large machine there are many processes, and most wait for nothing: those of the whole
        // system are looked at when they do. Others may have ended by then.
        if self.without.is_none() {
            self.decoder.attach(pid);
        }
        self.look_for_goroutines(pid);
        for (tid, name) in threads {
            let name = bpf::ThreadName {
                pid,
                name: name.clone(),
            };
            self.decoded.threads.entry(*tid).or_insert(name);
        }
    }

    fn look_back(&mut self, present: &Present) {
        let of_others = |pid: &u32| self.without != Some(*pid);
        let threads = present
            .threads
            .iter()
            .filter(|(pid, _)| of_others(pid))
            .flat_map(|(pid, tids)| tids.iter().map(|&tid| (*pid, tid)));
        self.looked = self.waits.look(threads, present.since, &present.is_over);
        let part = std::mem::take(&mut self.looked.part);
        self.take(part);
    }

    fn take(&mut self, mut part: Part) {
        let slots: usize = part.slots.iter().map(Vec::len).sum();
        self.events += slots as u64;
        self.take_changes(&part.side_band);
        self.decoder.look(&mut part);
        self.later.push(part);
        self.add_up();
    }
}
