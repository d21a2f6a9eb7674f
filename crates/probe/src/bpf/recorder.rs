//! Loads the programs, attaches them, and drains what they write.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use aya::maps::{Map, MapData, RingBuf};
use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::programs::{BtfTracePoint, PerfEvent, ProgramError};
use aya::util::KernelVersion;
use aya::{Btf, Ebpf, EbpfLoader};

use super::tasks::{self, Task, Tasks};
use super::wire::{Ring, Rings, Slot, Stack, Totals, flag, kind};
use crate::clock;
use crate::mapping::Mapping;
use crate::perf::{self, Counter, SideBand, SideBandRing};

#[cfg(target_arch = "x86_64")]
static OBJECT: &[u8] = aya::include_bytes_aligned!("record.x86_64.bpf.o");
#[cfg(target_arch = "aarch64")]
static OBJECT: &[u8] = aya::include_bytes_aligned!("record.aarch64.bpf.o");
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static OBJECT: &[u8] = &[];

/// Why there is no recorder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecorderError {
    /// The kernel has no type information.
    #[error(
        "the kernel has no BTF (/sys/kernel/btf/vmlinux): {0}; use a kernel built with CONFIG_DEBUG_INFO_BTF=y"
    )]
    NoBtf(String),
    /// The kernel lacks what the programs use.
    #[error("BPF programs as used here need Linux {needed} or newer: {why}")]
    TooOld {
        /// The oldest that has all.
        needed: &'static str,
        /// What the kernel said.
        why: String,
    },
    /// Not allowed, or not supported.
    #[error("cannot load the BPF programs: {0}")]
    Load(String),
    /// A program could not be attached.
    #[error("cannot attach to {hook}: {why}")]
    Attach {
        /// Tracepoint or event.
        hook: String,
        /// What the kernel said.
        why: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// errno.
        source: io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(io::Error) -> RecorderError {
    move |source| RecorderError::System { what, source }
}

/// How to record.
#[derive(Clone, Debug)]
pub struct Settings {
    /// All CPUs that any run will use.
    pub cpus: Vec<u32>,
    /// On-CPU samples per CPU and second.
    pub sample_hz: u32,
    /// Bytes of event rings over all CPUs, at most.
    pub ring_bytes: usize,
    /// Bytes of events and stacks that are held at a time, at most. A part is handed over when it
    /// has a quarter of that; where analysis does not keep up, recording ends, and that is said.
    pub memory_bytes: usize,
    /// Every thread of the machine is of the workload.
    pub everyone: bool,
    /// Clock of the fastest CPU in Hz, to turn `sample_hz` into a period of cycles.
    pub clock_hz: u64,
}

/// What happened during a stretch of a recording: since the part before it, or since `begin`.
#[derive(Debug, Default)]
pub struct Part {
    /// Slots per watched CPU, each in the order of that CPU.
    pub slots: Vec<Vec<Slot>>,
    /// Stacks, roughly in order of time.
    pub stacks: Vec<Stack>,
    /// Address-space changes of all processes.
    pub side_band: Vec<SideBand>,
    /// User instructions per instruction sample.
    pub instruction_period: u64,
    /// Nanoseconds between two samples of time on one CPU.
    pub sample_ns: u64,
    /// Its memory, of all that is held.
    held: Held,
}

/// Bytes held by a part, until it is dropped.
#[derive(Debug, Default)]
struct Held {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What is known when a recording has ended.
#[derive(Debug, Default)]
pub struct Counts {
    /// Events lost, per CPU number.
    pub lost: Vec<(u32, u64)>,
    /// When the memory for events was used up; later events are not there.
    pub cut: Option<u64>,
    /// Stacks lost.
    pub stacks_lost: u64,
    /// User instructions of the workload, where counted.
    pub instructions: Option<u64>,
    /// Cycles of the workload, where counted.
    pub cycles: Option<u64>,
}

struct Events {
    time: Vec<OwnedFd>,
    instructions: Vec<OwnedFd>,
    by_cycles: bool,
    instruction_period: u64,
    sample_ns: u64,
    side_band: Vec<SideBandRing>,
}

/// Loaded and attached programs. Dropping it detaches everything.
pub struct Recorder {
    bpf: Ebpf,
    tasks: Tasks,
    shared: Arc<Shared>,
    cpus: Vec<u32>,
    totals_before: Vec<(u32, Totals)>,
    lost_before: Vec<u64>,
    /// Returns when the recording was cut, if it was.
    drain: Option<JoinHandle<Option<u64>>>,
    /// Program and tracepoint of what the kernel has taken.
    loaded: Vec<(&'static str, &'static str)>,
    /// While recording: runs without the probe must not pay for it.
    links: Links,
}

type Links = Vec<(&'static str, BtfTracePointLinkId)>;

struct Shared {
    rings: Rings,
    events: Events,
    stacks: std::sync::Mutex<RingBuf<MapData>>,
    stop: AtomicBool,
    cpus: Vec<u32>,
    memory_bytes: usize,
}

/// What is being gathered into the next part.
struct Drained {
    part: Part,
    /// Bytes of it.
    bytes: usize,
    /// Bytes of the parts that are being analysed or wait for it.
    held: Arc<AtomicUsize>,
    cut: Option<u64>,
}

/// What happened this long ago has been written to the rings, on all CPUs.
const SETTLED_NS: u64 = 20_000_000;

const TRACEPOINTS: &[(&str, &str, bool)] = &[
    // program, tracepoint, needed
    ("on_switch", "sched_switch", true),
    ("on_waking", "sched_waking", true),
    ("on_migrate", "sched_migrate_task", true),
    ("on_fork", "sched_process_fork", true),
    ("on_rename", "task_rename", false),
    ("on_contention_begin", "contention_begin", false),
    ("on_contention_end", "contention_end", false),
    ("on_hrtimer_expire_entry", "hrtimer_expire_entry", false),
    ("on_hrtimer_expire_exit", "hrtimer_expire_exit", false),
    ("on_timer_expire_entry", "timer_expire_entry", false),
    ("on_timer_expire_exit", "timer_expire_exit", false),
    ("on_irq_handler_entry", "irq_handler_entry", false),
    ("on_irq_handler_exit", "irq_handler_exit", false),
];

impl Recorder {
    /// Loads and attaches the programs.
    pub fn new(settings: &Settings) -> Result<Recorder, RecorderError> {
        let btf = Btf::from_sys_fs().map_err(|error| RecorderError::NoBtf(error.to_string()))?;
        // CPU numbers can have holes: maps are sized by the largest number possible.
        let cpu_slots = cpus_possible().max(settings.cpus.iter().max().map_or(1, |max| max + 1));
        let per_cpu = settings.ring_bytes / size_of::<Slot>() / cpu_slots as usize;
        let per_cpu = (per_cpu.max(2048) + 1).next_power_of_two() / 2;
        let per_cpu = per_cpu.min(1 << 17);
        let slots_per_cpu = per_cpu as u32;
        let events = open_events(settings)?;
        let has_counters = u32::from(!events.instructions.is_empty() && events.by_cycles);
        let everyone = u32::from(settings.everyone);
        let mut loader = EbpfLoader::new();
        loader
            .btf(Some(&btf))
            .override_global("slots_per_cpu", &slots_per_cpu, true)
            .override_global("everyone", &everyone, true)
            .override_global("has_counters", &has_counters, true)
            .map_max_entries("slots", per_cpu as u32 * cpu_slots)
            .map_max_entries("rings", cpu_slots)
            .map_max_entries("totals", cpu_slots)
            .map_max_entries("instructions", cpu_slots)
            .map_max_entries("cycles", cpu_slots)
            .map_max_entries("stacks", stack_ring_bytes(settings.cpus.len()));
        let mut bpf = loader
            .load(OBJECT)
            .map_err(|error| RecorderError::Load(chain(&error)))?;

        let take = |bpf: &mut Ebpf, name: &'static str| -> Map {
            bpf.take_map(name)
                .unwrap_or_else(|| panic!("the object has the map {name}"))
        };
        let table = map(&bpf, "tasks", tasks::ENTRIES * size_of::<Task>())?;
        let tasks = Tasks::new(table, convert(take(&mut bpf, "crowd"))?);
        let stacks: RingBuf<MapData> = convert(take(&mut bpf, "stacks"))?;
        let slots = map(
            &bpf,
            "slots",
            per_cpu * cpu_slots as usize * size_of::<Slot>(),
        )?;
        let rings = map(&bpf, "rings", cpu_slots as usize * size_of::<Ring>())?;
        if has_counters != 0 {
            for (fds, name) in [
                (&events.instructions, "instructions"),
                (&events.time, "cycles"),
            ] {
                let map_fd = map_fd(&bpf, name)?;
                for (&cpu, event) in settings.cpus.iter().zip(fds) {
                    update_element(map_fd, cpu, event.as_raw_fd() as u32)
                        .map_err(system("give a perf event to BPF"))?;
                }
            }
        }
        let mut loaded = Vec::new();
        for &(program, tracepoint, needed) in TRACEPOINTS {
            match load(&mut bpf, program, tracepoint, &btf) {
                Ok(()) => loaded.push((program, tracepoint)),
                Err(why) if needed && is_too_old() => {
                    let needed = OLDEST.1;
                    return Err(RecorderError::TooOld { needed, why });
                }
                Err(why) if needed => {
                    let hook = tracepoint.to_owned();
                    return Err(RecorderError::Attach { hook, why });
                }
                Err(_) => {}
            }
        }
        for (program, fds) in [
            ("on_time", &events.time),
            ("on_instructions", &events.instructions),
        ] {
            if fds.is_empty() {
                continue;
            }
            let hook = |why: String| RecorderError::Attach {
                hook: program.to_owned(),
                why,
            };
            let program: &mut PerfEvent = bpf
                .program_mut(program)
                .expect("the object has this program")
                .try_into()
                .expect("it is a perf event program");
            program.load().map_err(|error| hook(refusal(&error)))?;
            let fd = program.fd().map_err(|error| hook(chain(&error)))?.as_fd();
            for event in fds {
                perf::set_program(event, fd).map_err(|error| hook(error.to_string()))?;
            }
        }
        // Tried once, so that a refusal shows now and not in the middle of a sweep.
        let links = attach(&mut bpf, &loaded)?;
        detach(&mut bpf, links);
        let shared = Arc::new(Shared {
            rings: Rings::new(slots, rings, per_cpu, cpu_slots as usize),
            events,
            stacks: std::sync::Mutex::new(stacks),
            stop: AtomicBool::new(false),
            cpus: settings.cpus.clone(),
            memory_bytes: settings.memory_bytes,
        });
        Ok(Recorder {
            bpf,
            tasks,
            shared,
            cpus: settings.cpus.clone(),
            totals_before: Vec::new(),
            lost_before: Vec::new(),
            drain: None,
            loaded,
            links: Vec::new(),
        })
    }

    /// Samples are taken by cycles (else by a software clock, blind while interrupts are off).
    pub fn samples_cycles(&self) -> bool {
        self.shared.events.by_cycles
    }

    /// Instructions and cycles are counted by hardware.
    pub fn counts_instructions(&self) -> bool {
        self.shared.events.by_cycles && !self.shared.events.instructions.is_empty()
    }

    /// Starts recording on `cpus`. Threads are added with [`Recorder::add`]. What happens comes
    /// in one or more parts; the last one comes at [`Recorder::end`].
    pub fn begin(&mut self, cpus: &[u32]) -> Result<Receiver<Part>, RecorderError> {
        self.discard();
        self.totals_before = self.totals()?;
        self.lost_before = self.lost();
        for &cpu in &self.cpus {
            self.shared.rings.watch(cpu as usize, cpus.contains(&cpu));
        }
        detach(&mut self.bpf, std::mem::take(&mut self.links));
        self.links = attach(&mut self.bpf, &self.loaded)?;
        self.enable(true)?;
        let shared = Arc::clone(&self.shared);
        shared.stop.store(false, Ordering::Relaxed);
        let (give, parts) = mpsc::channel();
        self.drain = Some(
            std::thread::Builder::new()
                .name("amdahl-drain".into())
                .spawn(move || shared.drain_until_stopped(&give))
                .map_err(system("start a thread"))?,
        );
        Ok(parts)
    }

    /// Makes thread `tid` of process `pid` part of the workload; its children follow.
    pub fn add(&mut self, tid: u32, pid: u32) -> Result<(), RecorderError> {
        self.tasks
            .enter(tid, pid)
            .map_err(|error| RecorderError::Load(chain(&error)))
    }

    /// Stops recording. The last part is given out by now.
    pub fn end(&mut self) -> Result<Counts, RecorderError> {
        let disabled = self.enable(false);
        for &cpu in &self.cpus {
            self.shared.rings.watch(cpu as usize, false);
        }
        detach(&mut self.bpf, std::mem::take(&mut self.links));
        self.tasks.clear();
        let cut = self.stop_draining();
        disabled?;
        let (mut instructions, mut cycles, mut stacks_lost) = (0, 0, 0);
        for ((_, before), (_, after)) in self.totals_before.iter().zip(self.totals()?) {
            instructions += after.instructions - before.instructions;
            cycles += after.cycles - before.cycles;
            stacks_lost += after.samples_lost - before.samples_lost;
        }
        let counted = self.counts_instructions();
        let lost = self.cpus.iter().zip(self.lost()).zip(&self.lost_before);
        Ok(Counts {
            lost: lost
                .map(|((&cpu, after), before)| (cpu, after - before))
                .collect(),
            cut,
            stacks_lost,
            instructions: counted.then_some(instructions),
            cycles: counted.then_some(cycles),
        })
    }

    /// Lets the draining thread give out the last part and end.
    fn stop_draining(&mut self) -> Option<u64> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let thread = self.drain.take()?;
        thread.thread().unpark();
        thread.join().ok().flatten()
    }

    /// Events lost so far, in the order of `cpus`.
    fn lost(&self) -> Vec<u64> {
        let rings = &self.shared.rings;
        self.cpus
            .iter()
            .map(|&cpu| rings.lost(cpu as usize))
            .collect()
    }

    fn totals(&self) -> Result<Vec<(u32, Totals)>, RecorderError> {
        let map_fd = map_fd(&self.bpf, "totals")?;
        self.cpus
            .iter()
            .map(|&cpu| {
                let mut totals = Totals::default();
                lookup_element(map_fd, cpu, &mut totals).map_err(system("read BPF totals"))?;
                Ok((cpu, totals))
            })
            .collect()
    }

    fn enable(&self, on: bool) -> Result<(), RecorderError> {
        let events = &self.shared.events;
        for event in events.time.iter().chain(&events.instructions) {
            perf::enable(event, on).map_err(system("switch a perf event"))?;
        }
        for ring in &events.side_band {
            ring.enable(on).map_err(system("switch the side band"))?;
        }
        Ok(())
    }

    fn discard(&mut self) {
        // A run that could not be started has left its recording unended.
        self.stop_draining();
        let mut unwanted = Drained::new(self.shared.empty_part());
        self.shared.drain_once(&mut unwanted);
    }
}

impl Shared {
    fn empty_part(&self) -> Part {
        let events = &self.events;
        Part::empty(self.cpus.len(), events.sample_ns, events.instruction_period)
    }

    /// Takes what there is. Returns the time up to which that is everything.
    fn drain_once(&self, into: &mut Drained) -> u64 {
        let settled = clock::monotonic().saturating_sub(SETTLED_NS);
        for (&cpu, slots) in self.cpus.iter().zip(&mut into.part.slots) {
            let before = slots.len();
            self.rings.drain(cpu as usize, slots);
            if let Some(cut) = into.cut {
                let keep = slots[before..].partition_point(|slot| slot.ts <= cut);
                slots.truncate(before + keep);
            }
            into.bytes += (slots.len() - before) * size_of::<Slot>();
        }
        let mut stacks = self.stacks.lock().expect("no panic while draining");
        while let Some(item) = stacks.next() {
            let stack = Stack::parse(&item);
            if let Some(stack) = stack.filter(|stack| into.cut.is_none_or(|cut| stack.ts <= cut)) {
                into.bytes += stack.bytes_held();
                into.part.stacks.push(stack);
            }
        }
        for ring in &self.events.side_band {
            ring.drain(&mut into.part.side_band);
        }
        settled
    }

    fn drain_until_stopped(&self, give: &Sender<Part>) -> Option<u64> {
        keep_up();
        let mut drained = Drained::new(self.empty_part());
        while !self.stop.load(Ordering::Relaxed) {
            let settled = self.drain_once(&mut drained);
            if drained.bytes + drained.held.load(Ordering::Relaxed) > self.memory_bytes {
                drained.cut.get_or_insert(settled);
            } else if drained.bytes > self.memory_bytes / 4 {
                let part = drained.split(settled);
                // Nobody takes it where a run has failed.
                let _ = give.send(part);
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        self.drain_once(&mut drained);
        let (part, cut) = (drained.split(u64::MAX), drained.cut);
        let _ = give.send(part);
        cut
    }
}

impl Drained {
    fn new(part: Part) -> Drained {
        Drained {
            part,
            bytes: 0,
            held: Arc::default(),
            cut: None,
        }
    }

    /// Hands over what happened up to `until`; what is newer stays.
    fn split(&mut self, until: u64) -> Part {
        let part = &mut self.part;
        let mut rest = Part::empty(part.slots.len(), part.sample_ns, part.instruction_period);
        for (old, new) in part.slots.iter_mut().zip(&mut rest.slots) {
            mend_chain(old);
            let keep = old.partition_point(|slot| slot.ts <= until);
            *new = old.split_off(keep);
        }
        let stacks = std::mem::take(&mut part.stacks);
        (part.stacks, rest.stacks) = stacks.into_iter().partition(|stack| stack.ts <= until);
        let left = rest.bytes();
        let mut part = std::mem::replace(&mut self.part, rest);
        let bytes = self.bytes.saturating_sub(left);
        self.bytes = left;
        self.held.fetch_add(bytes, Ordering::Relaxed);
        part.held = Held {
            all: Arc::clone(&self.held),
            bytes,
        };
        part
    }
}

impl Part {
    pub(crate) fn empty(cpus: usize, sample_ns: u64, instruction_period: u64) -> Part {
        Part {
            slots: (0..cpus).map(|_| Vec::new()).collect(),
            sample_ns,
            instruction_period,
            ..Part::default()
        }
    }

    fn bytes(&self) -> usize {
        let slots = self.slots.iter().map(|ring| ring.len() * size_of::<Slot>());
        let stacks = self.stacks.iter().map(Stack::bytes_held);
        slots.sum::<usize>() + stacks.sum::<usize>()
    }
}

/// Makes the switches of one CPU a chain: who comes on at one switch leaves at the next.
///
/// Where that does not hold, a switch between them was not seen: lost, or hidden by the kernel
/// (some do not trace the processes of their own supervisor). Who was seen leaving is then taken
/// to have been there since the earlier switch, since those hidden ones run only shortly.
fn mend_chain(ring: &mut [Slot]) {
    let mut leaving: Option<(u32, bool)> = None;
    for slot in ring
        .iter_mut()
        .rev()
        .filter(|slot| slot.kind == kind::SWITCH)
    {
        if let Some((tid, workload)) = leaving.filter(|&(tid, _)| tid != slot.other) {
            slot.other = tid;
            slot.flags &= !flag::NEXT_WORKLOAD;
            slot.flags |= if workload { flag::NEXT_WORKLOAD } else { 0 };
        }
        leaving = Some((slot.tid, slot.flags & flag::PREV_WORKLOAD != 0));
    }
}

fn open_events(settings: &Settings) -> Result<Events, RecorderError> {
    let hz = u64::from(settings.sample_hz.max(1));
    let cycles = settings.clock_hz / hz;
    // Primes, so as not to march in step with the program.
    let each = |counter, period: u64| -> io::Result<Vec<OwnedFd>> {
        settings
            .cpus
            .iter()
            .map(|&cpu| perf::sampling(counter, period | 1, cpu))
            .collect()
    };
    let (time, by_cycles) = match each(Counter::Cycles, cycles) {
        Ok(events) => (events, true),
        Err(_) => match each(Counter::Clock, 1_000_000_000 / hz) {
            Ok(events) => (events, false),
            Err(error) => return Err(system("open a sampling event")(error)),
        },
    };
    // About as many at one instruction per cycle, at most four times as many.
    let instruction_period = cycles | 1;
    let instructions = each(Counter::UserInstructions, instruction_period).unwrap_or_default();
    let side_band = settings
        .cpus
        .iter()
        .map(|&cpu| SideBandRing::open(cpu, 64))
        .collect::<io::Result<Vec<_>>>()
        .map_err(system("open the side band of mappings"))?;
    Ok(Events {
        time,
        instructions,
        by_cycles,
        instruction_period,
        sample_ns: 1_000_000_000 / hz,
        side_band,
    })
}

fn tracepoint<'a>(bpf: &'a mut Ebpf, program: &str) -> Result<&'a mut BtfTracePoint, String> {
    bpf.program_mut(program)
        .ok_or("not in the object")?
        .try_into()
        .map_err(|error: aya::programs::ProgramError| chain(&error))
}

fn load(bpf: &mut Ebpf, program: &str, hook: &str, btf: &Btf) -> Result<(), String> {
    let program = tracepoint(bpf, program)?;
    program.load(hook, btf).map_err(|error| refusal(&error))
}

/// What the programs need is `bpf_task_pt_regs`, and atomic operations that return the old value,
/// which arm64 got later.
const OLDEST: (KernelVersion, &str) = if cfg!(target_arch = "aarch64") {
    (KernelVersion::new(5, 18, 0), "5.18")
} else {
    (KernelVersion::new(5, 15, 0), "5.15")
};

/// Asked only after a refusal: distributions add what is newer to older kernels.
fn is_too_old() -> bool {
    KernelVersion::current().is_ok_and(|kernel| kernel < OLDEST.0)
}

fn refusal(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => match verdict(&verifier_log.to_string()) {
            "" => io_error.to_string(),
            verdict => format!("{io_error}: {verdict}"),
        },
        other => chain(other),
    }
}

/// The verifier's last word: before it are the instructions, after it statistics.
fn verdict(log: &str) -> &str {
    const STATISTICS: &[&str] = &["verification time ", "stack depth ", "processed "];
    let is_statistics = |line: &&str| STATISTICS.iter().any(|text| line.starts_with(text));
    let mut lines = log.lines().map(str::trim).rev();
    lines
        .find(|line| !line.is_empty() && !is_statistics(line))
        .unwrap_or_default()
}

fn attach(bpf: &mut Ebpf, loaded: &[(&'static str, &'static str)]) -> Result<Links, RecorderError> {
    let mut links = Links::new();
    for &(program, hook) in loaded {
        let link = tracepoint(bpf, program)
            .and_then(|program| program.attach().map_err(|error| chain(&error)));
        match link {
            Ok(link) => links.push((program, link)),
            Err(why) => {
                detach(bpf, links);
                let hook = hook.to_owned();
                return Err(RecorderError::Attach { hook, why });
            }
        }
    }
    Ok(links)
}

fn detach(bpf: &mut Ebpf, links: Links) {
    for (program, link) in links {
        if let Ok(program) = tracepoint(bpf, program) {
            // A link that is gone already is what is wanted.
            let _ = program.detach(link);
        }
    }
}

fn convert<T: TryFrom<Map>>(map: Map) -> Result<T, RecorderError>
where
    T::Error: std::error::Error,
{
    T::try_from(map).map_err(|error| RecorderError::Load(chain(&error)))
}

/// Lets the calling thread run beside many others that are always runnable, where that is allowed.
pub fn keep_up() {
    const NICE: i32 = -10;
    // On Linux this is about the thread, not its process.
    let _ = rustix::process::setpriority_process(None, NICE);
}

fn map_fd<'a>(bpf: &'a Ebpf, name: &str) -> Result<BorrowedFd<'a>, RecorderError> {
    let map = bpf
        .map(name)
        .unwrap_or_else(|| panic!("the object has the map {name}"));
    let (Map::Array(data) | Map::PerfEventArray(data)) = map else {
        panic!("{name} is an array");
    };
    Ok(data.fd().as_fd())
}

fn map(bpf: &Ebpf, name: &str, len: usize) -> Result<Mapping, RecorderError> {
    let page = rustix::param::page_size();
    Mapping::new(map_fd(bpf, name)?, len.next_multiple_of(page)).map_err(system("map a BPF ring"))
}

fn stack_ring_bytes(cpus: usize) -> u32 {
    (cpus.next_power_of_two() as u32 * (4 << 20)).clamp(8 << 20, 128 << 20)
}

fn cpus_possible() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text
        .trim()
        .rsplit([',', '-'])
        .next()
        .and_then(|last| last.parse::<u32>().ok());
    last.map_or(1, |last| last + 1)
}

#[repr(C)]
struct ElementAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;

fn element<T>(
    command: libc::c_long,
    map: BorrowedFd<'_>,
    key: u32,
    value: *mut T,
) -> io::Result<()> {
    let attr = ElementAttr {
        map_fd: map.as_raw_fd() as u32,
        pad: 0,
        key: &raw const key as u64,
        value: value as u64,
        flags: 0,
    };
    // SAFETY: attr is the prefix of union bpf_attr for these commands, key and value are valid
    // for the sizes that the callers' maps have (u32 keys; the value types are asserted there).
    let rc = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            &raw const attr,
            size_of::<ElementAttr>(),
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn update_element(map: BorrowedFd<'_>, key: u32, mut value: u32) -> io::Result<()> {
    element(BPF_MAP_UPDATE_ELEM, map, key, &raw mut value)
}

fn lookup_element(map: BorrowedFd<'_>, key: u32, value: &mut Totals) -> io::Result<()> {
    element(BPF_MAP_LOOKUP_ELEM, map, key, value)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(tid: u32, other: u32, flags: u8) -> Slot {
        Slot {
            kind: kind::SWITCH,
            tid,
            other,
            flags,
            ..Slot::default()
        }
    }

    #[test]
    fn the_verifier_s_verdict_is_one_line() {
        let log = "0: (bf) r6 = r1\nBPF_STX uses reserved fields\nverification time 185 usec\n\
                   stack depth 0\nprocessed 0 insns (limit 1000000) max_states_per_insn 0\n";
        assert_eq!(verdict(log), "BPF_STX uses reserved fields");
        assert_eq!(verdict(""), "");
    }

    #[test]
    fn unseen_switches_are_bridged() {
        // The kernel did not tell that 75 left: 9 was seen leaving next.
        let mut ring = [
            switch(8, 75, 0),
            switch(9, 0, flag::PREV_WORKLOAD),
            switch(0, 9, flag::NEXT_WORKLOAD),
        ];
        mend_chain(&mut ring);
        assert_eq!((ring[0].other, ring[0].flags), (9, flag::NEXT_WORKLOAD));
        assert_eq!(ring[1].other, 0);
        assert_eq!((ring[2].other, ring[2].flags), (9, flag::NEXT_WORKLOAD));
    }

    #[test]
    fn a_part_has_what_happened_until_then_and_is_held_until_dropped() {
        let slot = |ts| Slot {
            ts,
            ..Slot::default()
        };
        let stack = |ts| Stack {
            ts,
            bytes: vec![0; 2048].into(),
            ..Stack::default()
        };
        let mut drained = Drained::new(Part::empty(2, 0, 0));
        drained.part.slots = vec![vec![slot(1), slot(5), slot(9)], vec![slot(7)]];
        drained.part.stacks = vec![stack(9), stack(5)];
        drained.bytes = drained.part.bytes();
        let (all, held) = (drained.bytes, Arc::clone(&drained.held));
        let part = drained.split(5);
        let times = |part: &Part| -> Vec<Vec<u64>> {
            let slots = part.slots.iter();
            slots
                .map(|ring| ring.iter().map(|slot| slot.ts).collect())
                .collect()
        };
        assert_eq!(times(&part), [vec![1, 5], vec![]]);
        assert_eq!(times(&drained.part), [vec![9], vec![7]]);
        assert_eq!((part.stacks[0].ts, drained.part.stacks[0].ts), (5, 9));
        assert_eq!(held.load(Ordering::Relaxed) + drained.bytes, all);
        assert!(held.load(Ordering::Relaxed) > 2048);
        drop(part);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
