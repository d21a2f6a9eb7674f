//! Scheduling, through the analysis and onto the disk as `amdahl sched record` takes it.

use std::path::Path;

use amdahl_sched::event::{Event, Ns, Off, Tid, Waker};
use amdahl_sched::recording::{FolderWriter, Meta};
use amdahl_sched::{Analysis, Settings};
use amdahl_topology::Topology;

use super::{CHURN, CPUS, Length, Random, SECOND, THREADS};

/// Threads that come and go, and switches among them.
struct Machine {
    random: Random,
    on: Vec<Tid>,
    live: Vec<Tid>,
    next: Tid,
}

impl Machine {
    fn new() -> Machine {
        Machine {
            random: Random::default(),
            on: vec![0; CPUS as usize],
            live: Vec::new(),
            next: 1,
        }
    }

    fn begin_one(&mut self, ts: Ns, give: &mut impl FnMut(Event)) {
        let (child, pid) = (self.next, self.next / 50 * 50 + 1);
        self.next += 1;
        self.live.push(child);
        let cpu = self.random.below(u64::from(CPUS)) as u32;
        give(Event::Fork {
            ts,
            parent: 1,
            child,
            pid,
            cpu,
        });
        give(Event::Thread {
            ts,
            tid: child,
            pid,
            is_kernel: false,
            name: format!("worker-{}", child % 97).into(),
        });
    }

    /// Somebody is woken and comes on a CPU, in place of who ends or sleeps there.
    fn step(&mut self, ts: Ns, ends: bool, give: &mut impl FnMut(Event)) {
        let cpu = self.random.below(u64::from(CPUS)) as u32;
        let at = self.random.below(self.live.len() as u64) as usize;
        let tid = self.live[at];
        let prev = self.on[cpu as usize];
        if self.on.contains(&tid) {
            return;
        }
        give(Event::Waking {
            ts,
            tid,
            waker: Waker::Thread(prev),
            cpu,
            last_cpu: cpu,
        });
        let is_end = ends && prev != 0;
        give(Event::Switch {
            ts: ts + 2_000,
            cpu,
            prev,
            off: if is_end {
                Off::Exited
            } else {
                Off::Blocked {
                    in_iowait: false,
                    uninterruptible: false,
                }
            },
            next: tid,
        });
        self.on[cpu as usize] = tid;
        if is_end {
            self.live.retain(|live| *live != prev);
        }
    }
}

/// Makes up, analyses and writes to `folder`, of which `max_disk` bytes are kept; how many events there were.
pub fn replay(length: Length, folder: &Path, max_disk: u64) -> Result<u64, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let cpus = (0..CPUS).collect();
    let topology = Topology::flat(&cpus).ok_or("no CPUs")?;
    let meta = Meta {
        topology: topology.clone(),
        tick_ns: 4_000_000,
        begin: 0,
        is_everyone: true,
    };
    std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    let mut settings = Settings::new(topology);
    settings.begin = Some(0);
    let mut analysis = Analysis::new(settings);
    let mut writer = FolderWriter::new(folder, meta, max_disk);
    let mut count = 0_u64;
    let mut unwritten = None;
    let mut give = |event: Event| {
        count += 1;
        analysis.event(&event);
        if let Err(error) = writer.add(event) {
            unwritten.get_or_insert(error);
        }
    };
    let mut machine = Machine::new();
    for _ in 0..THREADS {
        machine.begin_one(0, &mut give);
    }
    // A wake-up and a switch.
    for (ts, churns) in length.steps(2, CHURN) {
        machine.step(ts, churns, &mut give);
        if churns && machine.live.len() < THREADS as usize {
            machine.begin_one(ts, &mut give);
        }
    }
    if let Some(error) = unwritten {
        return Err(failed(&error));
    }
    writer.finish().map_err(|error| failed(&error))?;
    let outcome = analysis.outcome(length.seconds * SECOND);
    println!("{count} events, {} switches", outcome.totals.switches);
    Ok(count)
}
