//! Samples of one workload, by events on its own threads.
//!
//! The events are opened on the first process before its program starts, or on all threads of one that
//! runs, one on each CPU, and inherited by all threads and processes that come of them: a ring can be
//! mapped only for events that are bound to a CPU. All of a CPU write into one ring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use perf_event_open_sys as sys;
use rustc_hash::FxHashMap;
use sys::bindings as b;

use super::ring::Ring;
use super::samples::Samples;
use super::{
    Counter, SideBand, count_of, enable, lacks_descriptors, open, overflowing, sample, side_band,
};
use crate::bpf::wire::{STACK_BYTES, stack_kind};
use crate::bpf::{Counts, Part, keep_up};

/// Page faults for each sample of one.
pub const FAULTS_PER_SAMPLE: u64 = 997;
/// Pages of a ring, as long as the kernel lets us lock so many, and at least.
const PAGES_MAX: usize = 64;
const PAGES_MIN: usize = 8;
/// Memory that a [`Sampler`] locks for each CPU, as long as it may, where pages have 4 KiB.
pub const RING_BYTES: u64 = (PAGES_MAX as u64 + 1) * 4096;
/// Addresses of a call chain, kernel and user.
const CHAIN_MAX: u16 = 64;

/// What the kernel lets us see of our own programs, by `kernel.perf_event_paranoid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// User and kernel code.
    Whole,
    /// User code only.
    User,
}

impl View {
    /// Tries it.
    ///
    /// # Errors
    /// Those of `perf_event_open`: `EACCES` where it is for privileged users only, `ENOSYS` or
    /// `EPERM` where it is not there at all.
    pub fn allowed() -> io::Result<View> {
        let tried = |view: View| {
            let mut attr = of_workload(Counter::Clock, 10_000_000, view);
            open(&mut attr, 0, -1).map(|_| view)
        };
        tried(View::Whole).or_else(|_| tried(View::User))
    }
}

/// How often to sample.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Samples per CPU and second.
    pub hz: u32,
    /// Clock of the fastest CPU in Hz, to turn it into a period of cycles.
    pub clock_hz: u64,
}

/// When sampling starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// With the program that the process will become.
    AtExec,
    /// When all events are open.
    AtOnce,
}

/// Samples a process and all that come of it. Dropping it ends that.
pub struct Sampler {
    shared: Arc<Shared>,
    drain: Option<JoinHandle<Drained>>,
    rate: Rate,
    left_out: Vec<LeftOut>,
}

/// Events of a kind that there were too few descriptors for.
#[derive(Debug)]
pub struct LeftOut {
    /// Their kind: [`Counter::UserInstructions`] or [`Counter::PageFaults`].
    pub counter: Counter,
    /// `EMFILE` or `ENFILE`.
    pub error: io::Error,
}

struct Shared {
    rings: Vec<Ring>,
    events: Vec<OwnedFd>,
    /// Of those that count user instructions.
    instructions: Vec<OwnedFd>,
    /// What an overflow of each event is a sample of.
    kinds: FxHashMap<u64, u8>,
    stop: AtomicBool,
}

#[derive(Default)]
struct Drained {
    samples: Samples,
    side_band: Vec<SideBand>,
}

impl Sampler {
    /// Opens the events on process `pid`, which must not have become its program yet: they start
    /// with that.
    ///
    /// # Errors
    /// Those of `perf_event_open` and `mmap`.
    pub fn new(pid: u32, cpus: &[u32], view: View, rate: Rate) -> io::Result<Sampler> {
        Sampler::open(&[pid], Start::AtExec, cpus, view, rate)
    }

    /// Opens the events on threads that run already; those that have ended meanwhile are left out. It
    /// takes up to three descriptors for each thread on each CPU.
    ///
    /// # Errors
    /// Those of `perf_event_open` and `mmap`: `EACCES` for a process of another user, `EMFILE` where there
    /// are too many threads even for the events of the time, `ESRCH` where none is left.
    pub fn of_running(tids: &[u32], cpus: &[u32], view: View, rate: Rate) -> io::Result<Sampler> {
        Sampler::open(tids, Start::AtOnce, cpus, view, rate)
    }

    fn open(
        tids: &[u32],
        start: Start,
        cpus: &[u32],
        view: View,
        rate: Rate,
    ) -> io::Result<Sampler> {
        let mut shared = Shared {
            rings: Vec::new(),
            events: Vec::new(),
            instructions: Vec::new(),
            kinds: FxHashMap::default(),
            stop: AtomicBool::new(false),
        };
        let hz = u64::from(rate.hz.max(1));
        let cycles = (rate.clock_hz / hz) | 1;
        let on = |tid: u32, counter: Counter, period: u64, cpu: u32| {
            let mut attr = of_workload(counter, period, view);
            attr.set_enable_on_exec(u64::from(start == Start::AtExec));
            open(&mut attr, tid as i32, cpu as i32)
        };
        // Cycles of user code only would not pass in the kernel. The clock does: an interrupt
        // that comes due there is put off until the call returns now and then, and tells who
        // called.
        let any_on = |cpu: u32| {
            tids.iter()
                .any(|&tid| on(tid, Counter::Cycles, cycles, cpu).is_ok())
        };
        let has_cycles = view == View::Whole && cpus.first().is_some_and(|&cpu| any_on(cpu));
        // Samples of the kernel tell what is a fault, if it has names.
        let tells_faults = view == View::Whole && crate::symbol::kernel_names_are_readable();
        // All of the time first: the others may be done without, and it may not for want of the descriptors they have.
        let mut places = Vec::new();
        for &cpu in cpus {
            // The event whose ring all others of this CPU write into.
            let mut first: Option<RawFd> = None;
            for &tid in tids {
                let time = if has_cycles {
                    on(tid, Counter::Cycles, cycles, cpu)
                } else {
                    on(tid, Counter::Clock, (1_000_000_000 / hz) | 1, cpu)
                };
                let time = match time {
                    Err(error) if has_ended(&error) => continue,
                    opened => opened?,
                };
                let into = match first {
                    Some(first) => {
                        redirect(&time, first)?;
                        first
                    }
                    None => {
                        shared.rings.push(ring(&time)?);
                        *first.insert(time.as_raw_fd())
                    }
                };
                places.push((tid, cpu, into));
                shared.kinds.insert(id(&time)?, stack_kind::TIME);
                shared.events.push(time);
            }
            if first.is_none() {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        let mut left_out = Vec::new();
        for (counter, period, kind) in [
            (Counter::UserInstructions, cycles, stack_kind::INSTRUCTIONS),
            (Counter::PageFaults, FAULTS_PER_SAMPLE, stack_kind::FAULT),
        ] {
            if counter == Counter::PageFaults && tells_faults {
                continue;
            }
            let mut events = Vec::new();
            let mut has_all = true;
            for &(tid, cpu, into) in &places {
                let event = match on(tid, counter, period, cpu) {
                    Ok(event) => event,
                    Err(error) if has_ended(&error) => continue,
                    // Those of some threads would be taken for those of all.
                    Err(error) if lacks_descriptors(&error) => {
                        left_out.push(LeftOut { counter, error });
                        events.clear();
                        break;
                    }
                    // What is not there is done without.
                    Err(_) => {
                        has_all = false;
                        continue;
                    }
                };
                redirect(&event, into)?;
                shared.kinds.insert(id(&event)?, kind);
                events.push(event);
            }
            if kind != stack_kind::INSTRUCTIONS {
                shared.events.extend(events);
            } else if has_all {
                shared.instructions = events;
            }
        }
        if start == Start::AtOnce {
            for event in shared.events.iter().chain(&shared.instructions) {
                enable(event, true)?;
            }
        }
        let shared = Arc::new(shared);
        let drained = Arc::clone(&shared);
        let drain = std::thread::Builder::new()
            .name("amdahl-drain".into())
            .spawn(move || drained.drain_until_stopped())?;
        Ok(Sampler {
            shared,
            drain: Some(drain),
            rate,
            left_out,
        })
    }

    /// What it does without because too many files are open, besides what this machine does not have.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Stops sampling and returns what was seen. There are no slots in it.
    pub fn end(mut self) -> (Part, Counts) {
        for event in self.shared.events.iter().chain(&self.shared.instructions) {
            // An event that cannot be stopped ends with its descriptor.
            let _ = enable(event, false);
        }
        let instructions = &self.shared.instructions;
        let counted: io::Result<Vec<u64>> = instructions.iter().map(count_of).collect();
        let counted = counted.ok().filter(|counts| !counts.is_empty());
        let drained = self.stop();
        let lost = drained.side_band.iter().map(|event| match event {
            SideBand::Lost(count) => *count,
            _ => 0,
        });
        let counts = Counts {
            stacks_lost: lost.sum(),
            instructions: counted.map(|counts| counts.iter().sum()),
            ..Counts::default()
        };
        let hz = u64::from(self.rate.hz.max(1));
        let mut part = Part::empty(0, 1_000_000_000 / hz, (self.rate.clock_hz / hz) | 1);
        part.stacks = drained.samples.into_stacks();
        part.side_band = drained.side_band;
        (part, counts)
    }

    fn stop(&mut self) -> Drained {
        self.shared.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.drain.take() else {
            return Drained::default();
        };
        thread.thread().unpark();
        thread.join().unwrap_or_default()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn drain_once(&self, into: &mut Drained) {
        for ring in &self.rings {
            ring.drain(|record| {
                if let Some((event, mut stack)) = sample::parse(record) {
                    if let Some(&kind) = self.kinds.get(&event) {
                        stack.kind = kind;
                        into.samples.keep(stack);
                    }
                } else {
                    into.side_band.extend(side_band::parse(record));
                }
            });
        }
    }

    fn drain_until_stopped(&self) -> Drained {
        keep_up();
        let mut drained = Drained::default();
        while !self.stop.load(Ordering::Relaxed) {
            self.drain_once(&mut drained);
            std::thread::park_timeout(Duration::from_millis(20));
        }
        self.drain_once(&mut drained);
        drained
    }
}

/// The thread is gone.
fn has_ended(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

/// Lets `event` write into the ring of the event `into`, of the same CPU.
fn redirect(event: &OwnedFd, into: RawFd) -> io::Result<()> {
    // SAFETY: the first is an open perf event, the second a descriptor of one by value; the call keeps neither.
    if unsafe { sys::ioctls::SET_OUTPUT(event.as_raw_fd(), into) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// An event that all threads and processes inherit and that starts with the program.
fn of_workload(counter: Counter, period: u64, view: View) -> b::perf_event_attr {
    let mut attr = overflowing(counter, period);
    attr.sample_type = sample::KINDS.into();
    attr.sample_regs_user = sample::REGISTER_MASK;
    attr.sample_stack_user = STACK_BYTES as u32;
    attr.sample_max_stack = CHAIN_MAX;
    attr.set_inherit(1);
    attr.set_enable_on_exec(1);
    if view == View::User {
        attr.set_exclude_kernel(1);
        attr.set_exclude_callchain_kernel(1);
    }
    side_band::report(&mut attr);
    if matches!(counter, Counter::UserInstructions | Counter::PageFaults) {
        // The event of the same ring that takes the time reports already.
        attr.set_mmap(0);
        attr.set_mmap2(0);
        attr.set_comm(0);
        attr.set_task(0);
    }
    attr
}

/// The largest ring that may be locked in memory.
fn ring(event: &OwnedFd) -> io::Result<Ring> {
    let mut pages = PAGES_MAX;
    loop {
        match Ring::new(event, pages) {
            Err(_) if pages > PAGES_MIN => pages /= 2,
            done => return done,
        }
    }
}

fn id(event: &OwnedFd) -> io::Result<u64> {
    let mut id = 0;
    // SAFETY: the descriptor is an open perf event, the pointer that of a local u64.
    if unsafe { sys::ioctls::ID(event.as_raw_fd(), &raw mut id) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(id)
}
