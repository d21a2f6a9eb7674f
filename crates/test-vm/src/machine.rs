//! A machine, stopped and running.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use amdahl_pager::{Mapping, PAGE};
use thiserror::Error;

use crate::model::{self, Cpu, Sum};
use crate::{BOOT_PAGES, stand_in};

/// What the CPUs of a machine are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Those of a guest.
    Kvm,
    /// Threads of this process.
    Threads,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Kvm => "KVM",
            Kind::Threads => "threads",
        })
    }
}

/// Why a machine cannot be or go on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// KVM does not do something.
    #[error("KVM: {operation}: {why}")]
    Kvm {
        /// What.
        operation: &'static str,
        /// Why, for people.
        why: String,
    },
    /// Memory or state that no machine has.
    #[error("{0}")]
    Wrong(&'static str),
}

/// What kinds of machines can be had here: those of KVM only if a guest runs and counts right.
///
/// What is not there is said, with the reason, once for each call.
pub fn kinds() -> Vec<Kind> {
    match probe() {
        Ok(()) => vec![Kind::Kvm, Kind::Threads],
        Err(why) => {
            println!("SKIPPED: machines of KVM, threads stand in: {why}");
            vec![Kind::Threads]
        }
    }
}

/// Runs a tiny guest.
fn probe() -> Result<(), Refusal> {
    let memory = Mapping::new((BOOT_PAGES + 2) * PAGE, amdahl_pager::Backing::Small)
        .map_err(|_| Refusal::Wrong("no memory"))?;
    let memory = Arc::new(memory);
    Machine::boot(&memory);
    let before = contents(&memory);
    let sums = Machine::new(Kind::Kvm, memory, 1)?.run()?.sums()?;
    match sums[0] == model::expected(&before, 1, 0, sums[0].steps) {
        true => Ok(()),
        false => Err(Refusal::Wrong("the guest does not compute what it should")),
    }
}

/// All of a memory.
pub fn contents(memory: &Mapping) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

/// A machine that does not run.
#[derive(Debug)]
pub struct Machine {
    kind: Kind,
    memory: Arc<Mapping>,
    cpus: Vec<Cpu>,
}

/// What the host wants of the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Run,
    Pause,
    Sum,
}

#[derive(Debug, Default)]
pub(crate) struct Control(AtomicUsize);

impl Control {
    pub fn order(&self) -> Order {
        match self.0.load(Ordering::Relaxed) {
            0 => Order::Run,
            1 => Order::Pause,
            _ => Order::Sum,
        }
    }
}

/// What a CPU was when it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Itself.
    pub cpu: Cpu,
    /// What it said, if it was asked.
    pub sum: Option<Sum>,
}

/// A machine that runs. Dropped, it is stopped.
#[derive(Debug)]
pub struct Running {
    kind: Kind,
    memory: Arc<Mapping>,
    control: Arc<Control>,
    steps: Arc<Vec<AtomicU64>>,
    threads: Vec<JoinHandle<Result<Stopped, Refusal>>>,
}

impl Machine {
    /// Writes what a guest needs to start into its memory: page tables and code.
    ///
    /// # Panics
    /// If the memory is smaller than that.
    pub fn boot(memory: &Mapping) {
        #[cfg(target_arch = "x86_64")]
        memory.write(0, &crate::kvm::boot());
        assert!(memory.len() > BOOT_PAGES * PAGE);
    }

    /// Of a memory that somebody has [booted](Machine::boot), or that will arrive.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn new(kind: Kind, memory: Arc<Mapping>, cpus: usize) -> Result<Machine, Refusal> {
        Machine::of(kind, memory, (0..cpus).map(Cpu::new).collect())
    }

    fn of(kind: Kind, memory: Arc<Mapping>, cpus: Vec<Cpu>) -> Result<Machine, Refusal> {
        let pages = memory.len() / PAGE;
        if cpus.is_empty() || pages < BOOT_PAGES + cpus.len() || memory.len() > 1 << 30 {
            return Err(Refusal::Wrong("a machine needs CPUs, and a page for each"));
        }
        Ok(Machine { kind, memory, cpus })
    }

    /// What it knows besides its memory.
    pub fn state(&self) -> Vec<u8> {
        let words = self.cpus.iter().flat_map(|cpu| [cpu.random, cpu.steps]);
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Of what another one knew.
    ///
    /// # Errors
    /// [`Refusal`]: no machine has that state.
    pub fn of_state(kind: Kind, memory: Arc<Mapping>, state: &[u8]) -> Result<Machine, Refusal> {
        if !state.len().is_multiple_of(16) {
            return Err(Refusal::Wrong("this is no state of a machine"));
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let cpus = state.chunks_exact(16).map(|cpu| Cpu {
            random: word(&cpu[..8]),
            steps: word(&cpu[8..]),
        });
        Machine::of(kind, memory, cpus.collect())
    }

    /// Lets it run: a thread for each CPU.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn run(self) -> Result<Running, Refusal> {
        let control = Arc::new(Control::default());
        let steps = self.cpus.iter().map(|cpu| AtomicU64::new(cpu.steps));
        let steps: Arc<Vec<AtomicU64>> = Arc::new(steps.collect());
        let pages = self.memory.len() / PAGE;
        let count = self.cpus.len();
        let mut running = Running {
            kind: self.kind,
            memory: self.memory.clone(),
            control: control.clone(),
            steps: steps.clone(),
            threads: Vec::new(),
        };
        #[cfg(target_arch = "x86_64")]
        let guest = match self.kind {
            Kind::Kvm => Some(crate::kvm::Guest::new(self.memory.clone())?),
            Kind::Threads => None,
        };
        #[cfg(not(target_arch = "x86_64"))]
        if self.kind == Kind::Kvm {
            return Err(Refusal::Wrong("guests are for x86_64 alone"));
        }
        for (number, mut cpu) in self.cpus.into_iter().enumerate() {
            let slice = model::slice(pages, count, number);
            let (control, steps) = (control.clone(), steps.clone());
            let memory = self.memory.clone();
            #[cfg(target_arch = "x86_64")]
            let virtual_cpu = guest
                .as_ref()
                .map(|guest| guest.cpu(number, &slice, &cpu))
                .transpose()?;
            let run = move || {
                #[cfg(target_arch = "x86_64")]
                if let Some(mut virtual_cpu) = virtual_cpu {
                    return virtual_cpu.run(&control, &steps[number]);
                }
                let sum = stand_in::run(&memory, &slice, &mut cpu, &control, &steps[number]);
                Ok(Stopped { cpu, sum })
            };
            running.threads.push(thread::spawn(run));
        }
        Ok(running)
    }
}

impl Running {
    /// Steps that the slowest CPU has done.
    pub fn steps(&self) -> u64 {
        let steps = self.steps.iter().map(|steps| steps.load(Ordering::Relaxed));
        steps.min().unwrap_or(0)
    }

    /// Whether a CPU has ended by itself, which it does only when it cannot go on.
    pub fn has_failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Returns when each CPU has done so many steps, or one cannot go on.
    pub fn wait_for(&self, steps: u64) {
        while self.steps() < steps && !self.has_failed() {
            thread::yield_now();
        }
    }

    /// Returns when each CPU has done so many steps more than now, whichever was ahead, or one cannot go on.
    pub fn wait_for_more(&self, steps: u64) {
        let now = self.steps.iter().map(|at| at.load(Ordering::Relaxed));
        let until: Vec<u64> = now.map(|now| now + steps).collect();
        let is_there = || {
            let mut all = self.steps.iter().zip(&until);
            all.all(|(at, until)| at.load(Ordering::Relaxed) >= *until)
        };
        while !is_there() && !self.has_failed() {
            thread::yield_now();
        }
    }

    fn end(&mut self, order: usize) -> Result<Vec<Stopped>, Refusal> {
        self.control.0.store(order, Ordering::Relaxed);
        let ended: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        let dead = |_| Refusal::Wrong("a CPU panicked");
        ended
            .into_iter()
            .map(|ended| ended.map_err(dead)?)
            .collect()
    }

    /// Stops it: nobody writes to its memory afterwards.
    ///
    /// # Errors
    /// [`Refusal`]: a CPU could not go on.
    pub fn pause(mut self) -> Result<Machine, Refusal> {
        let stopped = self.end(1)?;
        let cpus = stopped.into_iter().map(|stopped| stopped.cpu).collect();
        Machine::of(self.kind, self.memory.clone(), cpus)
    }

    /// Has each CPU sum up its slice, and stops it.
    ///
    /// # Errors
    /// [`Refusal`]: a CPU could not go on.
    pub fn sums(mut self) -> Result<Vec<Sum>, Refusal> {
        let stopped = self.end(2)?;
        let sums: Option<Vec<Sum>> = stopped.into_iter().map(|stopped| stopped.sum).collect();
        sums.ok_or(Refusal::Wrong("a CPU stopped without its sum"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.end(1);
    }
}
