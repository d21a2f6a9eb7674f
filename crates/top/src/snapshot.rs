//! What there is to show at one moment.

use amdahl_report::locks::schema::LocksResult;
use amdahl_report::mem::schema::MemResult;
use amdahl_report::plain::plain;
use amdahl_report::sched::schema::SchedResult;
use amdahl_report::schema::Source;

use crate::views;

/// One of the views.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    /// Waits for locks.
    #[default]
    Locks,
    /// What the scheduler does.
    Sched,
    /// Page faults and the address-space lock.
    Mem,
}

impl Tab {
    /// In the order of the screen.
    pub const ALL: [Tab; 3] = [Tab::Locks, Tab::Sched, Tab::Mem];

    /// As it is called.
    pub fn name(self) -> &'static str {
        ["locks", "sched", "mem"][self as usize]
    }

    /// What makes a row there, the usual first.
    pub fn groupings(self) -> &'static [By] {
        match self {
            Tab::Locks => &[By::Site, By::Thread, By::Process, By::Lock, By::Stack],
            Tab::Sched => &[By::Thread, By::Process, By::Cpu, By::Guest],
            Tab::Mem => &[By::Site, By::Process, By::Kind, By::Mapping],
        }
    }
}

/// What makes a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// A line of code.
    #[default]
    Site,
    /// A thread.
    Thread,
    /// A process.
    Process,
    /// A lock, by its address.
    Lock,
    /// A whole call stack.
    Stack,
    /// A kind of event.
    Kind,
    /// A mapping, by its process and address.
    Mapping,
    /// A CPU.
    Cpu,
    /// A CPU of a guest that runs here.
    Guest,
}

impl By {
    /// As it is called.
    pub fn name(self) -> &'static str {
        [
            "site", "thread", "process", "lock", "stack", "kind", "mapping", "cpu", "guest",
        ][self as usize]
    }
}

/// How a table is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// What makes a row.
    pub by: By,
    /// Rows of locks name who released, or held, them.
    pub owners: bool,
}

/// A result so far.
#[derive(Clone, Debug)]
pub enum Data {
    /// Of the locks.
    Locks(LocksResult),
    /// Of the scheduler.
    Sched(SchedResult),
    /// Of memory.
    Mem(MemResult),
}

/// A result so far, and what it costs.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The result.
    pub data: Data,
    /// Since when it adds up.
    pub seconds: f64,
    /// CPU time of this program for each second, without that of the probe in other programs.
    pub own_cpu: Option<f64>,
    /// Events that were lost.
    pub lost: u64,
    /// The memory for events was used up: what came later is not in it.
    pub is_cut: bool,
}

impl Snapshot {
    /// Whose it is.
    pub fn tab(&self) -> Tab {
        match self.data {
            Data::Locks(_) => Tab::Locks,
            Data::Sched(_) => Tab::Sched,
            Data::Mem(_) => Tab::Mem,
        }
    }

    /// What the reader must know of these figures: what was lost, and what to do about it.
    pub fn notices(&self) -> Vec<String> {
        let (mut notices, warnings) = match &self.data {
            Data::Locks(result) => (amdahl_report::locks::losses(result), &result.warnings),
            Data::Sched(result) => (Vec::new(), &result.warnings),
            Data::Mem(result) => (Vec::new(), &result.warnings),
        };
        notices.extend(views::left_out(self));
        notices.extend(warnings.iter().map(|warning| plain(&warning.text)));
        notices
    }

    /// Where the figures come from, and what is missing.
    pub fn sources(&self) -> &[Source] {
        match &self.data {
            Data::Locks(result) => &result.sources,
            Data::Sched(result) => &result.sources,
            Data::Mem(result) => &result.sources,
        }
    }
}
