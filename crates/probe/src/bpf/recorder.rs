//! Loads the programs, attaches them, and drains what they write.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData, RingBuf};
use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::programs::{BtfTracePoint, PerfEvent};
use aya::{Btf, Ebpf, EbpfLoader};

use super::mapping::Mapping;
use super::perf::{self, Counter, SideBand, SideBandRing};
use super::wire::{Ring, Rings, Slot, Stack, Totals, stack_kind};

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
    /// Clock of the fastest CPU in Hz, to turn `sample_hz` into a period of cycles.
    pub clock_hz: u64,
}

/// Everything that happened between `begin` and `end`.
#[derive(Debug, Default)]
pub struct Recording {
    /// Slots per watched CPU, each in the order of that CPU.
    pub slots: Vec<Vec<Slot>>,
    /// Stacks, roughly in order of time.
    pub stacks: Vec<Stack>,
    /// Address-space changes of all processes.
    pub side_band: Vec<SideBand>,
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
    /// Samples are taken by cycles (else by a software clock, blind while interrupts are off).
    pub sampled_by_cycles: bool,
    /// User instructions per instruction sample.
    pub instruction_period: u64,
    /// Nanoseconds between two samples of time on one CPU.
    pub sample_ns: u64,
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
    watched: Array<MapData, u32>,
    tasks: HashMap<MapData, u32, [u32; 6]>,
    shared: Arc<Shared>,
    cpus: Vec<u32>,
    totals_before: Vec<(u32, Totals)>,
    drain: Option<JoinHandle<Drained>>,
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
}

#[derive(Default)]
struct Drained {
    slots: Vec<Vec<Slot>>,
    stacks: Vec<Stack>,
    side_band: Vec<SideBand>,
    /// Bytes of slots kept.
    bytes: usize,
    cut: Option<u64>,
    /// One on-CPU sample in this many is kept, as a power of two.
    thinned: u32,
    samples: u64,
}

/// Memory for the events of one run. What comes later is left out, and said so.
const SLOT_BYTES_MAX: usize = 1 << 30;
/// Stacks kept of one run (about 3 KiB each). Beyond it every second sample is given up, again
/// and again: all of them stand for equal time still.
const STACKS_MAX: usize = 1 << 16;

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
        let mut loader = EbpfLoader::new();
        loader
            .btf(Some(&btf))
            .override_global("slots_per_cpu", &slots_per_cpu, true)
            .override_global("ncpus", &cpu_slots, true)
            .override_global("has_counters", &has_counters, true)
            .map_max_entries("slots", per_cpu as u32 * cpu_slots)
            .map_max_entries("rings", cpu_slots)
            .map_max_entries("totals", cpu_slots)
            .map_max_entries("watched", cpu_slots)
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
        let watched: Array<MapData, u32> = convert(take(&mut bpf, "watched"))?;
        let tasks: HashMap<MapData, u32, [u32; 6]> = convert(take(&mut bpf, "tasks"))?;
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
            program.load().map_err(|error| hook(chain(&error)))?;
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
        });
        Ok(Recorder {
            bpf,
            watched,
            tasks,
            shared,
            cpus: settings.cpus.clone(),
            totals_before: Vec::new(),
            drain: None,
            loaded,
            links: Vec::new(),
        })
    }

    /// Instructions and cycles are counted by hardware.
    pub fn counts_instructions(&self) -> bool {
        self.shared.events.by_cycles && !self.shared.events.instructions.is_empty()
    }

    /// Starts recording on `cpus`. Threads are added with [`Recorder::add`].
    pub fn begin(&mut self, cpus: &[u32]) -> Result<(), RecorderError> {
        self.discard();
        self.totals_before = self.totals()?;
        for &cpu in &self.cpus {
            let on = u32::from(cpus.contains(&cpu));
            self.watched
                .set(cpu, on, 0)
                .map_err(|error| RecorderError::Load(chain(&error)))?;
        }
        detach(&mut self.bpf, std::mem::take(&mut self.links));
        self.links = attach(&mut self.bpf, &self.loaded)?;
        self.enable(true)?;
        let shared = Arc::clone(&self.shared);
        shared.stop.store(false, Ordering::Relaxed);
        self.drain = Some(
            std::thread::Builder::new()
                .name("amdahl-drain".into())
                .spawn(move || shared.drain_until_stopped())
                .map_err(system("start a thread"))?,
        );
        Ok(())
    }

    /// Makes thread `tid` of process `pid` part of the workload; its children follow.
    pub fn add(&mut self, tid: u32, pid: u32) -> Result<(), RecorderError> {
        self.tasks
            .insert(tid, [pid, 0, 0, 0, 0, 0], 0)
            .map_err(|error| RecorderError::Load(chain(&error)))
    }

    /// Stops recording and returns what happened.
    pub fn end(&mut self) -> Result<Recording, RecorderError> {
        self.enable(false)?;
        for &cpu in &self.cpus {
            let _ = self.watched.set(cpu, 0, 0);
        }
        detach(&mut self.bpf, std::mem::take(&mut self.links));
        let left: Vec<u32> = self.tasks.keys().flatten().collect();
        for tid in left {
            let _ = self.tasks.remove(&tid);
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        let drained = match self.drain.take() {
            Some(thread) => {
                thread.thread().unpark();
                thread.join().unwrap_or_default()
            }
            None => Drained::default(),
        };
        let (mut instructions, mut cycles, mut stacks_lost) = (0, 0, 0);
        for ((_, before), (_, after)) in self.totals_before.iter().zip(self.totals()?) {
            instructions += after.instructions - before.instructions;
            cycles += after.cycles - before.cycles;
            stacks_lost += after.samples_lost - before.samples_lost;
        }
        let counted = self.counts_instructions();
        let lost = self
            .cpus
            .iter()
            .map(|&cpu| (cpu, self.shared.rings.lost(cpu as usize)));
        Ok(Recording {
            slots: drained.slots,
            stacks: drained.stacks,
            side_band: drained.side_band,
            cut: drained.cut,
            lost: lost.collect(),
            stacks_lost,
            instructions: counted.then_some(instructions),
            cycles: counted.then_some(cycles),
            sampled_by_cycles: self.shared.events.by_cycles,
            instruction_period: self.shared.events.instruction_period,
            sample_ns: self.shared.events.sample_ns,
        })
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

    fn discard(&self) {
        let mut drained = Drained::default();
        drained.slots.resize_with(self.cpus.len(), Vec::new);
        self.shared.drain_once(&mut drained);
    }
}

impl Shared {
    fn drain_once(&self, into: &mut Drained) {
        for (&cpu, slots) in self.cpus.iter().zip(&mut into.slots) {
            let before = slots.len();
            self.rings.drain(cpu as usize, slots);
            into.bytes += (slots.len() - before) * size_of::<Slot>();
            if let Some(cut) = into.cut {
                into.bytes -= (slots.len() - before) * size_of::<Slot>();
                let keep = before + slots[before..].partition_point(|slot| slot.ts <= cut);
                slots.truncate(keep);
            }
        }
        if into.bytes > SLOT_BYTES_MAX && into.cut.is_none() {
            // Up to where every CPU has been read.
            into.cut = into
                .slots
                .iter()
                .filter_map(|ring| ring.last())
                .map(|slot| slot.ts)
                .min();
        }
        let mut stacks = self.stacks.lock().expect("no panic while draining");
        while let Some(item) = stacks.next() {
            if let Some(stack) = Stack::parse(&item) {
                into.keep(stack);
            }
        }
        for ring in &self.events.side_band {
            ring.drain(&mut into.side_band);
        }
    }

    fn drain_until_stopped(&self) -> Drained {
        let mut drained = Drained::default();
        drained.slots.resize_with(self.cpus.len(), Vec::new);
        while !self.stop.load(Ordering::Relaxed) {
            self.drain_once(&mut drained);
            std::thread::park_timeout(Duration::from_millis(20));
        }
        self.drain_once(&mut drained);
        drained
    }
}

impl Drained {
    fn keep(&mut self, stack: Stack) {
        if is_sample(&stack) {
            self.samples += 1;
            if !self.samples.is_multiple_of(1 << self.thinned) {
                return;
            }
        } else if self.stacks.len() >= 2 * STACKS_MAX {
            return;
        }
        self.stacks.push(stack);
        if self.stacks.len() >= STACKS_MAX << self.thinned.min(1) {
            self.thinned += 1;
            let mut at = 0u64;
            self.stacks.retain(|stack| {
                at += u64::from(is_sample(stack));
                !is_sample(stack) || at.is_multiple_of(2)
            });
        }
    }
}

fn is_sample(stack: &Stack) -> bool {
    matches!(stack.kind, stack_kind::TIME | stack_kind::INSTRUCTIONS)
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
    program.load(hook, btf).map_err(|error| chain(&error))
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

    #[test]
    fn samples_are_thinned_evenly_and_waits_are_kept() {
        let mut drained = Drained::default();
        for ts in 0..10 * STACKS_MAX as u64 {
            let kind = if ts % 100 == 0 {
                stack_kind::WAIT
            } else {
                stack_kind::TIME
            };
            drained.keep(Stack {
                ts,
                kind,
                ..Stack::default()
            });
        }
        assert!(drained.stacks.len() <= 2 * STACKS_MAX);
        let waits = drained
            .stacks
            .iter()
            .filter(|stack| !is_sample(stack))
            .count();
        assert_eq!(waits, STACKS_MAX / 10 + 1);
        // Both halves of the run are seen alike.
        let middle = 5 * STACKS_MAX as u64;
        let samples: Vec<_> = drained
            .stacks
            .iter()
            .filter(|stack| is_sample(stack))
            .collect();
        let early = samples.iter().filter(|stack| stack.ts < middle).count() as f64;
        assert!(
            (early / samples.len() as f64 - 0.5).abs() < 0.1,
            "{early} of {}",
            samples.len()
        );
    }
}
