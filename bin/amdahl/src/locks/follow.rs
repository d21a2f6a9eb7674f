//! Follows a recording of waits and adds it up.

use std::collections::HashSet;

use amdahl_locks::{Event, Limits, ThreadName, Tracker};
use amdahl_probe::bpf::{self, Decoded, Decoder, LockFact, Part};
use amdahl_speedup::event::Tid;

use crate::watch::Follow;

/// Parts become a tally; names are kept for the table.
pub struct Follower<'a> {
    decoder: Decoder,
    /// Stacks and names.
    pub decoded: Decoded,
    /// What was added up.
    pub tracker: Tracker,
    /// Slots and stacks that were seen.
    pub events: u64,
    /// Processes that were there before and whose mappings are not known yet.
    unknown: HashSet<u32>,
    /// A process whose waits are left out.
    without: u32,
    /// Called after each part.
    shown: Box<dyn FnMut(&Seen<'_>) + Send + 'a>,
}

/// What there is to show after a part.
pub struct Seen<'a> {
    /// What was added up.
    pub tracker: &'a Tracker,
    /// Names of threads.
    pub names: &'a dyn Fn(Tid) -> ThreadName,
}

impl<'a> Follower<'a> {
    /// Knows nothing yet; `shown` is called after each part. Waits of process `without` (0: none) are
    /// left out: a view of the whole system is not about its own threads.
    pub fn new(without: u32, shown: impl FnMut(&Seen<'_>) + Send + 'a) -> Follower<'a> {
        Follower {
            decoder: Decoder::new(),
            decoded: Decoded::default(),
            tracker: Tracker::new(Limits::default()),
            events: 0,
            unknown: HashSet::new(),
            without,
            shown: Box::new(shown),
        }
    }

    /// What is known only when recording has ended.
    pub fn feed(&mut self, events: &[Event]) {
        for event in events.iter().filter(|event| !is_of(event, self.without)) {
            self.tracker.feed(event);
        }
    }
}

fn is_of(event: &Event, pid: u32) -> bool {
    matches!(event, Event::Wait(wait) if pid != 0 && wait.pid == pid)
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

impl Follow for Follower<'_> {
    fn attach(&mut self, pid: u32, threads: &[(u32, String)]) {
        self.unknown.insert(pid);
        for (tid, name) in threads {
            let name = bpf::ThreadName {
                pid,
                name: name.clone(),
            };
            self.decoded.threads.entry(*tid).or_insert(name);
        }
    }

    fn take(&mut self, part: Part) {
        // On a large machine there are many processes, and most wait for nothing.
        let pids: HashSet<u32> = part.stacks.iter().map(|stack| stack.pid).collect();
        for pid in pids {
            if self.unknown.remove(&pid) {
                self.decoder.attach(pid);
            }
        }
        let slots: usize = part.slots.iter().map(Vec::len).sum();
        self.events += slots as u64;
        let (decoder, decoded) = (&mut self.decoder, &mut self.decoded);
        decoder.locks(part, decoded, |fact| match fact {
            LockFact::Stack(place, stack) => self.tracker.learn(place, stack),
            LockFact::Event(event) if is_of(&event, self.without) => {}
            LockFact::Event(event) => self.tracker.feed(&event),
        });
        let names = |tid| name(&self.decoded, tid);
        (self.shown)(&Seen {
            tracker: &self.tracker,
            names: &names,
        });
    }
}
