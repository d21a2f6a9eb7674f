//! Workloads as the engine runs them: programs are flat arrays of operations of 16 bytes.
//!
//! Made by [`crate::workload`] from files; also the way to build one in code.

use std::collections::BTreeMap;

use crate::random::Dist;
use crate::time::Ns;

/// No task, no CPU, no object.
pub(crate) const NONE: u32 = u32::MAX;

const INDIRECT: u32 = 1 << 31;

/// A number: small and fixed, or computed by an expression when it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Val(u32);

impl Val {
    /// The largest that needs no expression.
    pub const MAX: u32 = INDIRECT - 1;

    /// Always this number, at most [`Val::MAX`].
    pub const fn constant(value: u32) -> Val {
        assert!(value < INDIRECT);
        Val(value)
    }

    pub(crate) const fn expression(index: u32) -> Val {
        Val(index | INDIRECT)
    }

    #[inline]
    pub(crate) fn split(self) -> Result<u32, usize> {
        match self.0 & INDIRECT {
            0 => Ok(self.0),
            _ => Err((self.0 & !INDIRECT) as usize),
        }
    }
}

/// An object of some kind (lock, pipe, ...): one, or one of an array by an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object(u32);

impl Object {
    /// No object.
    pub const NONE: Object = Object(INDIRECT - 1);

    /// The object with this index.
    pub const fn one(index: u32) -> Object {
        assert!(index < INDIRECT);
        Object(index)
    }

    pub(crate) const fn of_array(reference: u32) -> Object {
        Object(reference | INDIRECT)
    }

    #[inline]
    pub(crate) fn split(self) -> Result<u32, usize> {
        match self.0 & INDIRECT {
            0 => Ok(self.0),
            _ => Err((self.0 & !INDIRECT) as usize),
        }
    }
}

/// A member of an array of objects.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// The array's first object.
    pub base: u32,
    /// How many there are; the index is taken modulo this.
    pub len: u32,
    /// Which one.
    pub index: Val,
}

/// A step of an expression, in postfix order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A number.
    Const(i64),
    /// A variable of the task.
    Var(u8),
    /// A number that all tasks share.
    Number(u32),
    /// Nanoseconds since the run began.
    Now,
    /// A random number from 0 to below the top.
    Random,
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient, rounded down; 0 when dividing by 0.
    Div,
    /// Remainder, never negative; 0 when dividing by 0.
    Rem,
    /// Less: 1 or 0.
    Lt,
    /// Less or equal.
    Le,
    /// Equal.
    Eq,
    /// Both are not 0.
    And,
    /// One is not 0.
    Or,
    /// It is 0.
    Not,
}

/// How deep an expression may be nested.
pub const STACK: usize = 16;

/// How long something takes.
#[derive(Clone, Copy, Debug)]
pub enum Time {
    /// Drawn from a distribution.
    Dist(Dist),
    /// An expression, in nanoseconds; negative is 0.
    Val(Val),
    /// The work of the job that the task has taken from a graph, or inherited.
    Job,
}

/// One operation. Indices point into the tables of [`Workload`].
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Computes: so long on a CPU of full speed.
    Compute(u32),
    /// Occupies the CPU for so long, whatever its speed.
    Occupy(u32),
    /// Sleeps.
    Sleep(u32),
    /// Sleeps until the next multiple of a period, counted in a variable.
    Period {
        /// The variable that holds the next time.
        var: u8,
        /// A miss does not delay the following ones.
        is_absolute: bool,
        /// The period.
        time: u32,
    },
    /// Takes a lock.
    Lock {
        /// Which.
        lock: Object,
        /// As a reader.
        is_shared: bool,
    },
    /// Gives a lock back.
    Unlock(Object),
    /// Takes the address-space lock of the own process.
    LockSpace {
        /// As a reader.
        is_shared: bool,
    },
    /// Gives it back.
    UnlockSpace,
    /// Kernel work of a page fault.
    Fault,
    /// Waits for a condition, without the lock meanwhile.
    Await {
        /// The condition.
        condition: Object,
        /// The lock.
        lock: Object,
    },
    /// Wakes one, or all, that wait for a condition.
    Signal {
        /// The condition.
        condition: Object,
        /// All.
        is_all: bool,
    },
    /// Waits until all are here.
    Barrier {
        /// Which.
        barrier: Object,
        /// How many must come, the same for all who come; 0: as many as the barrier says.
        parties: Val,
    },
    /// Sets a number that all tasks share.
    Put {
        /// Which.
        number: u32,
        /// To what.
        value: Val,
    },
    /// Sets a number that all tasks share to the threads of a region that begins.
    Resize {
        /// Which number.
        number: u32,
        /// Of which team.
        team: u32,
    },
    /// Takes bytes out of a pipe: what is there, up to this many; waits for the first.
    Read {
        /// Which.
        pipe: Object,
        /// At most so many.
        bytes: Val,
    },
    /// Puts bytes into a pipe, all of them, waiting for room.
    Write {
        /// Which.
        pipe: Object,
        /// How many.
        bytes: Val,
    },
    /// Waits for a device to serve a request.
    Io {
        /// Which device.
        device: Object,
        /// The service time, or `NONE` for the device's own.
        time: u32,
    },
    /// Waits for a notice, or takes one that is there.
    Suspend(Object),
    /// Leaves a notice.
    Resume(Object),
    /// Updates a shared cache line.
    Touch(Object),
    /// Makes tasks of a template.
    Spawn {
        /// Which.
        template: u32,
        /// How many.
        count: Val,
        /// In processes of their own.
        is_process: bool,
    },
    /// Waits until all children have ended.
    Join,
    /// Replaces the program: its cost.
    Exec,
    /// Lets others run.
    Yield,
    /// Changes how nice the task is, or all of its children.
    Nice {
        /// -20 to 19.
        nice: i8,
        /// Of the children instead.
        is_children: bool,
    },
    /// Adds to a counter of the workload.
    Count {
        /// Which.
        counter: u32,
        /// How much.
        amount: Val,
    },
    /// Starts a stopwatch in a variable.
    Start {
        /// Which variable.
        var: u8,
    },
    /// Reads the stopwatch into a histogram.
    Stop {
        /// Which variable.
        var: u8,
        /// Which histogram.
        histogram: u32,
    },
    /// Takes a job whose predecessors are done; waits for one; jumps when none will come.
    Take {
        /// Of which graph.
        graph: u32,
        /// Where to go when all are taken.
        done: u32,
    },
    /// The job that was taken is done.
    Finish,
    /// Sets a variable.
    Set {
        /// Which.
        var: u8,
        /// To what.
        value: Val,
    },
    /// Adds one to `var`; goes back to `to` while it is below `end`.
    Next {
        /// The counter.
        var: u8,
        /// The variable with the bound.
        end: u8,
        /// The loop's first operation.
        to: u32,
    },
    /// Goes elsewhere.
    Jump(u32),
    /// Goes elsewhere unless the value is not 0.
    Unless {
        /// What is tested.
        value: Val,
        /// Where to go if it is 0.
        to: u32,
    },
    /// Ends the task.
    Exit,
}

const _: () = assert!(size_of::<Op>() <= 16);

/// How a lock works, which decides what a hand-over costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Test-and-set: whoever comes first; each spinner's attempt delays the release.
    TestAndSet,
    /// Ticket: first come, first served; all spinners read the line again at each hand-over.
    Ticket,
    /// Queued (MCS): each spins on a line of its own.
    Queued,
    /// Queued reader-writer spin lock whose readers share a counter.
    ReaderWriter,
    /// Sleeps; a running thread may overtake who is being woken.
    Mutex,
    /// Sleeps; reader-writer, in order, handed over.
    Semaphore,
}

impl LockKind {
    /// Whoever waits for it does so on its CPU for as long as it takes.
    pub(crate) fn spins(self) -> bool {
        !matches!(self, LockKind::Mutex | LockKind::Semaphore)
    }
}

/// A lock.
#[derive(Clone, Copy, Debug)]
pub struct LockSpec {
    /// How it works.
    pub kind: LockKind,
    /// How long a waiter of a sleeping lock spins first.
    pub spin: Ns,
    /// A spin lock of a kernel: who spins for it or holds it keeps its CPU until it has given it back.
    pub keeps_cpu: bool,
}

/// How a thread waits before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// It spins for some time, and sleeps if it loses its CPU.
    Spin,
    /// It counts the turns of its spin loop, as GCC's libgomp does: it goes on when it has its CPU back.
    Stubborn,
    /// As `amdahl-openmp` decides: it spins as long as nobody takes CPUs from the team.
    Openmp,
}

/// A barrier.
#[derive(Clone, Copy, Debug)]
pub struct BarrierSpec {
    /// How many must come.
    pub parties: u32,
    /// How long a waiter spins first.
    pub spin: Ns,
    /// How it does.
    pub waits: Waits,
}

/// Whose page of `amdahl-phantom` a program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// That of the machine, which watches the team's threads: who has their CPUs are others here.
    Host,
    /// That of a guest in which each thread of the team has a virtual CPU, and which reads the host's: a hypervisor takes CPUs.
    Guest,
    /// The same where the host publishes nothing: how much was stolen is all that is known.
    Steal,
}

/// A team of threads that has as many as `amdahl-openmp` decides.
#[derive(Clone, Debug)]
pub struct TeamSpec {
    /// The kinds of tasks that its threads are.
    pub tasks: Vec<u32>,
    /// What it reads.
    pub page: Page,
    /// How often that is renewed.
    pub tick: Ns,
}

/// A pipe.
#[derive(Clone, Copy, Debug)]
pub struct PipeSpec {
    /// Bytes it holds.
    pub capacity: u32,
    /// Who waits for room is woken when no more than this is left in it, and then all are, as with sockets; with
    /// the capacity, one as soon as there is room, as with pipes.
    pub low_water: u32,
    /// Cache lines beside the data that a read takes from the cache of who wrote last: headers, counters.
    pub lines: u32,
    /// How long a waiter spins first.
    pub spin: PipeSpin,
}

/// How long who waits at a pipe spins before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipeSpin {
    /// So long.
    Fixed(Ns),
    /// As the channels of `amdahl-pool`: each side learns from its own waits ([`amdahl_placement::Spinner`]).
    Adaptive,
}

/// A device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSpec {
    /// Requests it serves at a time.
    pub parallelism: u32,
    /// How long one takes.
    pub service: Dist,
}

/// Jobs and what must be done before each.
#[derive(Clone, Debug, Default)]
pub struct GraphSpec {
    /// Work of each job; drawn when a run begins, the same for all policies.
    pub work: Vec<Dist>,
    /// Jobs that wait for each.
    pub successors: Vec<Vec<u32>>,
}

/// A kind of task.
#[derive(Clone, Debug)]
pub struct Template {
    /// What results call it.
    pub name: String,
    /// How many start with the run.
    pub count: u32,
    /// Its first operation.
    pub entry: u32,
    /// When it starts.
    pub start: Time,
    /// The run does not wait for it.
    pub is_daemon: bool,
    /// Each is a process of its own, or all of them are one.
    pub is_process: bool,
    /// -20 to 19.
    pub nice: i8,
    /// Where it may run: an index into [`Workload::masks`], if not everywhere.
    pub mask: Option<u32>,
    /// Its memory's node; that on which it first runs, if not given.
    pub node: Option<u32>,
    /// Share of its time that depends on memory, in thousandths.
    pub memory_permille: u32,
}

/// Names of objects, for results.
#[derive(Clone, Debug)]
pub struct Named {
    /// What the workload calls it; members of arrays have an index.
    pub name: String,
    /// First index.
    pub base: u32,
    /// How many.
    pub len: u32,
    /// It is an array.
    pub is_array: bool,
}

/// Changes of the machine while the workload runs.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// CPUs of a mask go away.
    Offline(u32),
    /// They come back.
    Online(u32),
    /// Their speed changes to so many thousandths.
    Frequency(u32, u32),
}

/// What the tasks of a workload are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Threads of a kernel, which asks its policy at each wake-up.
    #[default]
    Threads,
    /// Jobs of `amdahl-pool`, whose workers are the CPUs: who makes one ready keeps it where the policy lets it
    /// ([`Policy::may_keep`](amdahl_placement::Policy::may_keep)).
    Jobs,
}

/// What runs.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// What results call it.
    pub name: String,
    /// Parameters as they are, for results.
    pub params: BTreeMap<String, i64>,
    /// What its tasks are.
    pub level: Level,
    /// All programs.
    pub ops: Vec<Op>,
    /// Times that operations point to.
    pub times: Vec<Time>,
    /// Expressions: where in `steps`.
    pub expressions: Vec<(u32, u32)>,
    /// Steps of all expressions.
    pub steps: Vec<Step>,
    /// Elements of arrays that operations point to.
    pub elements: Vec<Element>,
    /// Variables of each task. The first is its number within its template, the second the total count of
    /// these.
    pub vars: usize,
    /// Kinds of tasks.
    pub templates: Vec<Template>,
    /// Sets of CPUs by kernel number.
    pub masks: Vec<amdahl_topology::CpuSet>,
    /// Locks.
    pub locks: Vec<LockSpec>,
    /// Conditions.
    pub conditions: u32,
    /// Barriers.
    pub barriers: Vec<BarrierSpec>,
    /// Pipes.
    pub pipes: Vec<PipeSpec>,
    /// Devices.
    pub devices: Vec<DeviceSpec>,
    /// Notices, by how many are left at the beginning.
    pub notices: Vec<u64>,
    /// Shared cache lines.
    pub lines: u32,
    /// Graphs of jobs.
    pub graphs: Vec<GraphSpec>,
    /// Teams whose size is decided for each region.
    pub teams: Vec<TeamSpec>,
    /// Numbers that all tasks share, as they are at the beginning.
    pub numbers: Vec<i64>,
    /// Counters, by name.
    pub counters: Vec<String>,
    /// Histograms, by name.
    pub histograms: Vec<String>,
    /// Names of locks, conditions, barriers, pipes, devices, notices, lines and graphs, in this order.
    pub names: [Vec<Named>; 8],
    /// Changes of the machine, in order of time.
    pub changes: Vec<(Ns, Change)>,
    /// The run ends then, whatever still runs.
    pub duration: Option<Ns>,
}

/// A kind of object, and its index in [`Workload::names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Lock,
    Condition,
    Barrier,
    Pipe,
    Device,
    Notice,
    Line,
    Graph,
}

/// The variable that holds a task's number within its template.
pub const VAR_INDEX: u8 = 0;
/// The variable that holds how many tasks of its template start with the run.
pub const VAR_COUNT: u8 = 1;
/// The variable that holds the number of the job that was taken or inherited.
pub const VAR_JOB: u8 = 2;
/// The first variable that programs may use as they like.
pub const VARS_FREE: u8 = 3;

impl Workload {
    /// What the workload calls an object.
    pub fn object_name(&self, kind: Kind, index: u32) -> String {
        let named = self.names[kind as usize]
            .iter()
            .find(|named| (named.base..named.base + named.len).contains(&index));
        match named {
            Some(named) if named.is_array => format!("{}[{}]", named.name, index - named.base),
            Some(named) => named.name.clone(),
            None => format!("{kind:?} {index}").to_lowercase(),
        }
    }

    /// Adds an expression.
    pub fn expression(&mut self, steps: &[Step]) -> Val {
        if let [Step::Const(value)] = *steps
            && let Ok(value) = u32::try_from(value)
            && value <= Val::MAX
        {
            return Val::constant(value);
        }
        let start = self.steps.len() as u32;
        self.steps.extend_from_slice(steps);
        self.expressions.push((start, steps.len() as u32));
        Val::expression(self.expressions.len() as u32 - 1)
    }

    /// Adds a time.
    pub fn time(&mut self, time: Time) -> u32 {
        self.times.push(time);
        self.times.len() as u32 - 1
    }

    /// Adds a reference to a member of an array.
    pub fn element(&mut self, element: Element) -> Object {
        if let Ok(index) = element.index.split() {
            return Object::one(element.base + index % element.len.max(1));
        }
        self.elements.push(element);
        Object::of_array(self.elements.len() as u32 - 1)
    }
}
