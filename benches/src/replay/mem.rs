//! Page faults, waits for `mmap_lock` and mappings, through what `amdahl mem` adds up: processes come and go, and map more and
//! more while they live.

use std::sync::Arc;

use amdahl_mem::fault::{Fault, Faults, Reason};
use amdahl_mem::first_touch::Touches;
use amdahl_mem::mapping::Backing;
use amdahl_mem::mmap_lock::{MmapLock, Mode, Operation, Site, Stranger};
use amdahl_mem::spaces::{Region, Spaces};

use super::{CPUS, Length, Random};

/// Processes that live at any time, and how many of them end and begin in a second.
const PROCESSES: u32 = 2_000;
const CHURN: u64 = 100;
/// Mappings of a program that begins.
const MAPPED: u64 = 40;
const PAGE: u64 = 4096;
const REGION: u64 = 256 * PAGE;
/// Nodes of the machine.
const NODES: u32 = 4;
/// Code where faults are.
const PLACES: u64 = 1 << 16;

struct Process {
    pid: u32,
    /// How much it has mapped.
    mapped: u64,
}

#[derive(Default)]
struct Machine {
    random: Random,
    live: Vec<Process>,
    next: u32,
    spaces: Spaces,
    touches: Touches,
    lock: MmapLock,
    count: u64,
}

impl Machine {
    fn begin_one(&mut self) {
        self.next += 1;
        let pid = self.next;
        self.spaces.fork(1, pid);
        self.spaces.exec(pid);
        self.count += 2;
        let mut process = Process { pid, mapped: 0 };
        for _ in 0..MAPPED {
            self.map(&mut process);
        }
        self.live.push(process);
    }

    fn map(&mut self, process: &mut Process) {
        let start = REGION * (1 + process.mapped);
        let is_file = self.random.one_in(2);
        let name = if is_file {
            format!("/usr/lib/library-{}.so", self.random.below(1000))
        } else {
            String::new()
        };
        let region = Region {
            start,
            end: start + REGION,
            backing: if is_file {
                Backing::File
            } else {
                Backing::Anonymous
            },
            is_shared: false,
            name: Arc::from(name),
        };
        self.spaces.map(process.pid, region);
        process.mapped += 1;
        self.count += 1;
    }

    fn end_one(&mut self) {
        let at = self.random.below(self.live.len() as u64) as usize;
        let ended = self.live.swap_remove(at);
        self.spaces.exit(ended.pid);
        self.count += 1;
    }

    fn step(&mut self, ts: u64, faults: &mut Faults) {
        let at = self.random.below(self.live.len() as u64) as usize;
        let (pid, mapped) = (self.live[at].pid, self.live[at].mapped);
        let place = 1 + self.random.below(PLACES) as u32;
        let ns = 200 + self.random.length(16);
        match self.random.below(50) {
            0 => {
                let mut process = self.live.swap_remove(at);
                self.map(&mut process);
                self.live.push(process);
                return;
            }
            1 => self.lock.hold(Operation::Mmap, Mode::Write, ns),
            2 => {
                let site = Site {
                    operation: Operation::Fault,
                    mode: Mode::Read,
                    pid,
                    place,
                };
                self.lock.wait(site, ns);
            }
            3 => {
                let stranger = Stranger {
                    operation: Operation::ProcReader,
                    mode: Mode::Read,
                    pid: self.next + place,
                    of: pid,
                };
                self.lock.hold_by_stranger(stranger, ns);
            }
            _ => {
                let cpu = self.random.below(u64::from(CPUS)) as u32;
                let region = self.random.below(mapped);
                let fault = Fault {
                    at: ts,
                    ns,
                    pid,
                    tid: pid,
                    cpu,
                    address: REGION * (1 + region) + PAGE * self.random.below(256),
                    reason: Some(Reason {
                        present: false,
                        write: self.random.one_in(2),
                        fetch: false,
                    }),
                    is_major: self.random.one_in(100),
                    syscall: None,
                    place,
                    allocated: Some(1),
                };
                let found = self.spaces.find(pid, fault.address);
                let kind = faults.add(&fault, found);
                let placed = fault.placed(kind);
                if placed > 0 {
                    let start = found.map_or(0, |region| region.start);
                    self.touches.add(pid, start, cpu % NODES, placed);
                }
            }
        }
        self.count += 1;
    }
}

/// Makes up and adds up; how many events there were. The tables are made as well.
pub fn replay(length: Length) -> u64 {
    let mut machine = Machine::default();
    let mut faults = Faults::new(PAGE);
    (0..PROCESSES).for_each(|_| machine.begin_one());
    for (ts, churns) in length.steps(1, CHURN) {
        if churns {
            machine.end_one();
            machine.begin_one();
        }
        machine.step(ts, &mut faults);
    }
    println!(
        "{} events, {} places of faults, {} of waits, {} strangers",
        machine.count,
        faults.sites().len(),
        machine.lock.sites().len(),
        machine.lock.strangers_holds().len()
    );
    machine.count
}
