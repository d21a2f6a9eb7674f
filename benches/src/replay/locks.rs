//! Waits for locks, through what `amdahl locks` adds up: threads and processes come and go, locks are made and forgotten,
//! code is loaded that nobody has seen.

use std::sync::Arc;

use amdahl_locks::{
    Event, GroupBy, Hold, Kind, Limits, LockId, Place, Table, ThreadName, Tracker, Wait, Waker,
};
use amdahl_speedup::event::{CallStack, Frame, Tid};
use amdahl_speedup::primitive::KernelPrimitive;

use super::{CHURN, Length, Random, SECOND, THREADS};

/// Places where most waits are, and of all others.
const HOT_PLACES: u64 = 2_000;
const PLACES: u64 = 1 << 20;
/// Stacks that the places have.
const STACKS: u64 = 4_000;
const FRAMES: u64 = 20;
/// Locks of one process at one time.
const LOCKS: u64 = 64;
/// Locks of the kernel at one time; all are others a minute later.
const KERNEL_LOCKS: u64 = 10_000;

struct Machine {
    random: Random,
    live: Vec<Tid>,
    next: Tid,
}

impl Machine {
    fn begin_one(&mut self) {
        self.live.push(self.next);
        self.next += 1;
    }

    fn anybody(&mut self) -> Tid {
        let at = self.random.below(self.live.len() as u64) as usize;
        self.live[at]
    }

    fn place(&mut self) -> Place {
        let limit = if self.random.one_in(10) {
            PLACES
        } else {
            HOT_PLACES
        };
        Place(1 + self.random.below(limit))
    }

    fn event(&mut self, ts: u64) -> Event {
        let (tid, place) = (self.anybody(), self.place());
        let pid = process_of(tid);
        let length = self.random.length(20);
        let begin = ts.saturating_sub(length);
        if self.random.one_in(10) {
            return Event::Hold(Hold {
                tid,
                lock: LockId { pid, address: 1 },
                kind: Kind::Kernel(KernelPrimitive::MmapWrite),
                begin,
                end: ts,
                place,
            });
        }
        let (kind, lock) = if self.random.one_in(3) {
            let generation = ts / (60 * SECOND);
            let address = generation * KERNEL_LOCKS + self.random.below(KERNEL_LOCKS) + 1;
            let kind = Kind::Kernel(KernelPrimitive::Mutex);
            (kind, LockId { pid: 0, address })
        } else {
            let address = 64 * (1 + self.random.below(LOCKS));
            (Kind::Futex, LockId { pid, address })
        };
        let waker = Waker {
            tid: self.anybody(),
            ts: ts.saturating_sub(self.random.below(5_000)),
            place: self.place(),
        };
        Event::Wait(Wait {
            tid,
            pid,
            lock,
            kind,
            begin,
            end: ts,
            place,
            waker: (!self.random.one_in(10)).then_some(waker),
            expected: 2,
            is_open: false,
            began_before: false,
            is_polled: false,
        })
    }
}

/// Processes have fifty threads.
fn process_of(tid: Tid) -> Tid {
    tid / 50 * 50 + 1
}

fn stack(number: u64) -> Arc<CallStack> {
    let frame = |depth: u64| {
        let (symbol, module) = match depth {
            0 => ("pthread_mutex_lock".to_owned(), "/lib/libc.so.6".to_owned()),
            _ => (
                format!("function_{number}_{depth}"),
                "/usr/bin/server".to_owned(),
            ),
        };
        Frame {
            symbol,
            module,
            file: Some(format!("source_{}.cc", number % 100)),
            line: Some(depth as u32),
        }
    };
    Arc::new(CallStack {
        user: (0..FRAMES).map(frame).collect(),
        ..CallStack::default()
    })
}

/// Makes up and adds up; how many events there were. The tables are made as well.
pub fn replay(length: Length) -> u64 {
    let stacks: Vec<Arc<CallStack>> = (0..STACKS).map(stack).collect();
    let mut tracker = Tracker::new(Limits::default());
    let mut machine = Machine {
        random: Random::default(),
        live: Vec::new(),
        next: 1,
    };
    (0..THREADS).for_each(|_| machine.begin_one());
    let mut count = 0;
    for (ts, churns) in length.steps(1, CHURN) {
        if churns {
            let at = machine.random.below(machine.live.len() as u64) as usize;
            machine.live.swap_remove(at);
            machine.begin_one();
        }
        let event = machine.event(ts);
        // The probe takes a stack of a place now and then.
        if let Event::Wait(Wait { place, .. }) = event
            && machine.random.one_in(64)
        {
            tracker.learn(place, &stacks[(place.0 % STACKS) as usize]);
        }
        tracker.feed(&event);
        count += 1;
    }
    let name = |tid: Tid| ThreadName {
        process: format!("server-{}", process_of(tid)),
        thread: format!("worker-{tid}"),
    };
    for by in [GroupBy::Site, GroupBy::Thread, GroupBy::Lock] {
        let table = Table::new(&tracker, tracker.tally(), by, &name);
        println!("{count} events, {} rows", table.rows.len());
    }
    count
}
