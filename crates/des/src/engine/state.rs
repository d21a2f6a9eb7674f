//! The state of the simulated machine, and how policies see it.

use amdahl_placement::{CpuId, Flips, Machine, QueueId, Queues, View};
use std::cell::Cell;

use amdahl_spread::{CpuMask, SparseMask};

use super::queue::RunQueue;
use crate::program::NONE;
use crate::random::Rng;
use crate::time::Ns;

/// What a CPU's time goes into. Each nanosecond of each CPU is in one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    User,
    System,
    Stall,
    Spin,
    Search,
    Switch,
    Interrupt,
    Poll,
    Idle,
    Offline,
}

pub(crate) const USES: usize = 10;
pub(crate) const USE_NAMES: [&str; USES] = [
    "user",
    "system",
    "stall",
    "spin",
    "search",
    "switch",
    "interrupt",
    "poll",
    "idle",
    "offline",
];

/// What a CPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Offline,
    /// Sleeps until it is notified.
    Idle,
    /// Comes out of sleep.
    Waking,
    /// Looks out for work.
    Polling,
    /// Its policy looks for work; what it found is carried out at the end.
    Searching,
    /// On the way to `task`.
    Switching,
    /// Runs `task`.
    Running,
    /// Has just left a task and is about to find another; no time passes.
    Between,
    /// Assigns tasks of the inbox.
    Dispatching,
}

impl Mode {
    /// The hardware thread uses its core.
    pub fn is_active(self) -> bool {
        matches!(
            self,
            Mode::Searching | Mode::Switching | Mode::Running | Mode::Between | Mode::Dispatching
        )
    }

    /// Runs a task or is about to.
    pub fn has_task(self) -> bool {
        matches!(
            self,
            Mode::Switching | Mode::Running | Mode::Between | Mode::Dispatching
        )
    }
}

/// What the search of an idle CPU has found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    Take(u32),
    Steal {
        from: u32,
        count: u32,
        home: Option<u32>,
    },
    Ask {
        dispatcher: u32,
        spin: Ns,
    },
    Sleep {
        spin: Ns,
    },
}

pub(crate) struct Cpu {
    pub mode: Mode,
    /// What the running stretch of time counts as, and since when.
    pub use_: Use,
    pub since: Ns,
    pub task: u32,
    /// The running segment ends then; never if it waits for others.
    pub end: Ns,
    /// Since when the work of the task has not been brought up to date.
    pub settled: Ns,
    /// Work per nanosecond, in 1/1024.
    pub rate: u64,
    pub next_tick: Ns,
    pub slice_start: Ns,
    pub idle_since: Ns,
    /// Time that was spent already by what is told elsewhere, and that who runs next has to wait for.
    pub debt: Ns,
    pub plan: Plan,
    /// Tasks that were queued anywhere when the search began.
    pub seen: u64,
    /// Whoever runs should look whether somebody else is due.
    pub resched_at: Ns,
    /// The same was due while who runs kept the CPU.
    pub must_resched: bool,
    pub core: u32,
    pub llc: u32,
    pub node: u32,
    pub queue: u32,
    /// In 1/1024 of full speed.
    pub capacity: u64,
    pub used: [i64; USES],
    pub searches_failed: u32,
    /// The job that comes next here, in no queue, and how many such came in a row.
    pub next: u32,
    pub in_a_row: u32,
    /// Somebody else's tick woke it to balance.
    pub must_balance: bool,
    /// The task that it assigns, and to whom.
    pub assigning: (u32, u32),
    pub idle_entries: u64,
    pub steals: u64,
    pub switches: u64,
    pub tasks_run: u64,
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The slot is free.
    Gone,
    /// Waits for a CPU.
    Ready,
    /// Is on a CPU or on its way there.
    OnCpu,
    /// Waits for something else.
    Blocked,
}

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Nothing,
    Timer,
    Start,
    Device(u32),
    Lock(u32),
    Condition(u32),
    Barrier(u32),
    PipeData(u32),
    PipeRoom(u32),
    Notice(u32),
    Children,
    Job(u32),
}

pub(crate) struct Task {
    pub pc: u32,
    pub phase: Phase,
    /// How far the operation at `pc` is.
    pub step: u8,
    /// The wait is over: go on with the next operation.
    pub is_granted: bool,
    /// Waits on its CPU, not asleep.
    pub is_spinning: bool,
    /// It goes on spinning when it gets its CPU back, for what is left of its time.
    pub is_stubborn: bool,
    /// CPU time that was taken from it since it last looked.
    pub lost: Ns,
    /// Locks that it has or waits for and that let nobody else onto its CPU.
    pub keeps_cpu: u32,
    pub wait: Wait,
    /// CPU on which it runs or ran last.
    pub cpu: u32,
    pub queue: u32,
    pub template: u32,
    pub process: u32,
    pub parent: u32,
    pub parent_serial: u32,
    pub serial: u32,
    pub children: u32,
    /// Left to do of the running segment, in 1/1024 ns of a CPU of full speed.
    pub work: u64,
    pub vruntime: u64,
    /// 1024 / weight, in 1/1024.
    pub share: u64,
    pub nice: i8,
    /// The present segment counts as this.
    pub use_: Use,
    /// Takes so long whatever the CPU's speed.
    pub is_fixed: bool,
    /// Speed on other nodes than `node`, in 1/1024.
    pub remote_rate: u64,
    pub node: u32,
    pub mask: u32,
    pub wait_since: Ns,
    pub ready_since: Ns,
    pub since: Ns,
    pub woken_at: Ns,
    /// How long it took from the wake-up until it ran; `NEVER` if it has not slept in its present wait.
    pub woken_after: Ns,
    pub spin_until: Ns,
    pub bytes_left: u32,
    /// Of which graph its job is.
    pub graph: u32,
    pub rng: Rng,
    /// As it was at first.
    pub seed: Rng,
    /// Children that it has made until now.
    pub made: u64,
    pub flips: Flips,
    /// CPU on which it was when it last woke another one.
    pub recent: u32,
    pub ran: Ns,
    pub waited: Ns,
    pub slept: Ns,
    pub spun: Ns,
    pub started: Ns,
    pub migrations: u32,
    pub switches: u32,
}

/// The machine and its queues.
pub(crate) struct Sched {
    pub now: Ns,
    pub machine: Machine,
    pub layout: Queues,
    pub queues: Vec<RunQueue>,
    pub cpus: Vec<Cpu>,
    pub online: CpuMask,
    pub idle: CpuMask,
    pub overloaded: SparseMask,
    /// How many hardware threads of each core are active.
    pub core_active: Vec<u32>,
    /// Busy CPUs of each LLC, how many there are, the average as of a time.
    pub load: Vec<Load>,
    /// How often anything was queued.
    pub queued: u64,
    /// CPUs that look out for work.
    pub pollers: u32,
    /// LLCs in which a core has become idle since a search found none: the kernel's `has_idle_cores`.
    pub idle_core: Vec<Cell<bool>>,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Load {
    pub busy: u32,
    pub cpus: u32,
    /// 0 to 2^20.
    average: u64,
    at: Ns,
}

/// Utilisation is averaged over about this time, as the kernel's load tracking does.
const LOAD_WINDOW: Ns = 32_000_000;

impl Load {
    /// To be called before `busy` changes.
    #[inline]
    pub fn settle(&mut self, now: Ns) {
        let passed = (now - self.at).min(LOAD_WINDOW);
        // Small steps would be rounded away.
        if passed >= 4_096 {
            self.average = self.at(now);
            self.at = now;
        }
    }

    fn at(&self, now: Ns) -> u64 {
        let passed = (now - self.at).min(LOAD_WINDOW);
        let target = (u64::from(self.busy) << 20) / u64::from(self.cpus.max(1));
        let moved =
            (target.abs_diff(self.average) as u128 * passed as u128 / LOAD_WINDOW as u128) as u64;
        if target > self.average {
            self.average + moved
        } else {
            self.average - moved
        }
    }
}

impl Sched {
    #[inline]
    pub fn distance(&self, a: u32, b: u32) -> usize {
        if a == b || a == NONE || b == NONE {
            return 0;
        }
        let (x, y) = (&self.cpus[a as usize], &self.cpus[b as usize]);
        if x.core == y.core {
            1
        } else if x.llc == y.llc {
            2
        } else if x.node == y.node {
            3
        } else {
            4
        }
    }

    /// After a change of who waits or runs.
    #[inline]
    pub fn note_overload(&mut self, queue: u32) {
        let state = &mut self.queues[queue as usize];
        let free = state.online.saturating_sub(state.busy);
        let is_overloaded = state.len() > free;
        if is_overloaded == state.is_overloaded {
            return;
        }
        state.is_overloaded = is_overloaded;
        if let Some(lead) = self.layout.lead(QueueId(queue)) {
            let noted = if is_overloaded {
                self.overloaded.set(lead)
            } else {
                self.overloaded.clear(lead)
            };
            noted.expect("the mask has all CPUs");
        }
    }

    pub fn set_idle(&mut self, cpu: u32, is_idle: bool) {
        let noted = if is_idle {
            self.idle.set(cpu)
        } else {
            self.idle.clear(cpu)
        };
        noted.expect("the mask has all CPUs");
        let state = &self.cpus[cpu as usize];
        let hint = &self.idle_core[state.llc as usize];
        if is_idle && !hint.get() {
            let mut core = self.machine.core_cpus(state.core);
            hint.set(core.all(|cpu| self.idle.test(cpu)));
        }
    }
}

impl View for Sched {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn queues(&self) -> &Queues {
        &self.layout
    }

    fn waiting(&self, queue: QueueId) -> u32 {
        self.queues[queue.index()].len()
    }

    fn running(&self, cpu: CpuId) -> bool {
        // Who was notified takes its task from the queue, where it is counted as waiting until then.
        self.cpus[cpu as usize].mode.has_task()
    }

    fn online(&self) -> &CpuMask {
        &self.online
    }

    fn idle(&self) -> &CpuMask {
        &self.idle
    }

    fn overloaded(&self) -> &SparseMask {
        &self.overloaded
    }

    fn utilisation(&self, llc: u32) -> u32 {
        (self.load[llc as usize].at(self.now) >> 10) as u32
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn has_idle_core(&self, llc: u32) -> bool {
        self.idle_core[llc as usize].get()
    }

    fn no_idle_core(&self, llc: u32) {
        self.idle_core[llc as usize].set(false);
    }
}
