//! Follows a recording of waits and adds it up.

use std::path::Path;

use amdahl_locks::{Event, Limits, ThreadName, Tracker};
use amdahl_probe::bpf::{self, Decoded, Decoder, LockFact, Part};
use amdahl_speedup::event::Tid;

use crate::watch::Follow;
use crate::watch::later::Later;

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
}

impl Follower {
    /// Knows nothing yet. With `without` it is of the whole system, but for the waits of that process.
    ///
    /// Up to `later_bytes_max` of parts are left for [`Follower::finish`]; what they add up to keeps within `limits`, and its
    /// stacks within `stack_bytes_max`.
    pub fn new(
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
            decoder.locks(part, decoded, |fact| match fact {
                LockFact::Stack(place, stack) => self.tracker.learn(place, stack),
                LockFact::Event(event) if is_of(&event, self.without) => {}
                LockFact::Event(event) => self.tracker.feed(&event),
            });
            // Nobody tells of their ends.
            let lives = |tid: Tid| Path::new("/proc").join(tid.to_string()).exists();
            self.decoded.forget_names(|| self.tracker.told(), lives);
        }
    }

    /// What is known only when recording has ended.
    pub fn feed(&mut self, events: &[Event]) {
        for event in events.iter().filter(|event| !is_of(event, self.without)) {
            self.tracker.feed(event);
        }
    }
}

fn is_of(event: &Event, pid: Option<u32>) -> bool {
    matches!(event, Event::Wait(wait) if pid == Some(wait.pid))
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
        for (tid, name) in threads {
            let name = bpf::ThreadName {
                pid,
                name: name.clone(),
            };
            self.decoded.threads.entry(*tid).or_insert(name);
        }
    }

    fn take(&mut self, mut part: Part) {
        let slots: usize = part.slots.iter().map(Vec::len).sum();
        self.events += slots as u64;
        self.decoder.look(&mut part);
        self.later.push(part);
        self.add_up();
    }
}
