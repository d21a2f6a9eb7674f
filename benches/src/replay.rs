//! `amdahl-bench replay`: hours of scheduling on a large machine, made up, through the analysis and
//! onto the disk as `amdahl sched record` takes them, in less time than they would last.

use std::path::PathBuf;

use amdahl_sched::event::{Event, Ns, Off, Tid, Waker};
use amdahl_sched::recording::{FolderWriter, Meta};
use amdahl_sched::{Analysis, Settings};
use amdahl_topology::Topology;

/// Flags of `amdahl-bench replay`.
#[derive(clap::Args)]
pub struct Arguments {
    /// How long the made-up recording is
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    seconds: u64,
    /// Events in each second
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    rate: u64,
    /// Bound of the events on disk
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    max_disk: u64,
    /// Folder for the events
    #[arg(long, value_name = "FOLDER")]
    folder: PathBuf,
    /// File that gets the number of events
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

/// CPUs of the machine.
const CPUS: u32 = 64;
/// Threads that live at any time, and how many of them end and begin in a second.
const THREADS: u32 = 4_000;
const CHURN: u64 = 200;
const SECOND: Ns = 1_000_000_000;

/// Threads that come and go, and switches among them.
struct Machine {
    random: u64,
    on: Vec<Tid>,
    live: Vec<Tid>,
    next: Tid,
}

impl Machine {
    fn new() -> Machine {
        Machine {
            random: 0x9e37_79b9_7f4a_7c15,
            on: vec![0; CPUS as usize],
            live: Vec::new(),
            next: 1,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        // Xorshift: the same machine each time.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn begin_one(&mut self, ts: Ns, give: &mut impl FnMut(Event)) {
        let (child, pid) = (self.next, self.next / 50 * 50 + 1);
        self.next += 1;
        self.live.push(child);
        let cpu = self.below(u64::from(CPUS)) as u32;
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
        let cpu = self.below(u64::from(CPUS)) as u32;
        let at = self.below(self.live.len() as u64) as usize;
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

/// Makes up, analyses and writes; tells how many events there were.
pub fn main(arguments: &Arguments) -> Result<u8, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let cpus = (0..CPUS).collect();
    let topology = Topology::flat(&cpus).ok_or("no CPUs")?;
    let meta = Meta {
        topology: topology.clone(),
        tick_ns: 4_000_000,
        begin: 0,
        is_everyone: true,
    };
    std::fs::create_dir_all(&arguments.folder).map_err(|error| failed(&error))?;
    let mut settings = Settings::new(topology);
    settings.begin = Some(0);
    let mut analysis = Analysis::new(settings);
    let mut writer = FolderWriter::new(&arguments.folder, meta, arguments.max_disk << 20);
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
    let steps = arguments.rate / 2;
    for second in 0..arguments.seconds {
        for step in 0..steps {
            let ts = second * SECOND + step * (SECOND / steps);
            let churns = step % (steps / CHURN).max(1) == 0;
            machine.step(ts, churns, &mut give);
            if churns && machine.live.len() < THREADS as usize {
                machine.begin_one(ts, &mut give);
            }
        }
    }
    if let Some(error) = unwritten {
        return Err(failed(&error));
    }
    writer.finish().map_err(|error| failed(&error))?;
    let outcome = analysis.outcome(arguments.seconds * SECOND);
    println!("{count} events, {} switches", outcome.totals.switches);
    std::fs::write(&arguments.to, count.to_string()).map_err(|error| failed(&error))?;
    Ok(0)
}
