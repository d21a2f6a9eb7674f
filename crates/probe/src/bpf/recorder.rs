//! Loads the programs, attaches them, and drains what they write.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use aya::maps::{Array, Map, MapData};
use aya::programs::PerfEvent;
use aya::{Btf, Ebpf, EbpfLoader};

use super::calibrate::{self, Pair, Rounds};
use super::drain::{Drained, Part, Shared};
use super::duty::HookBudget;
use super::elements::{convert, lookup_element, map, map_fd, update_element};
use super::error::{RecorderError, chain, system};
use super::events::Events;
use super::goroutines::GOROUTINES_MAX;
use super::hooks::{Hooks, Windows};
use super::programs::{self, Held, Links, Programs, Tracepoint, attach, detach, refusal};
use super::stack_ring::StackRing;
use super::tasks::{self, Task, Tasks};
use super::wire::{Lost, Ring, Rings, Slot, Totals};
use crate::clock;
use crate::mapping::Mapping;
use crate::perf;

/// Mappings that are recorded as they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mappings {
    /// None: nothing is named.
    Nothing,
    /// Those of code, for its names.
    Code,
    /// Those of data too.
    All,
}

/// How to record.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is recorded.
    pub programs: &'static Programs,
    /// Constants of these programs, by name.
    pub constants: Vec<(&'static str, u32)>,
    /// All CPUs that any run will use.
    pub cpus: Vec<u32>,
    /// On-CPU samples per CPU and second, in the beginning.
    pub sample_hz: u32,
    /// When a CPU has been sampled for a while, one in this many of them is taken.
    pub sample_one_in: u32,
    /// Bytes of event rings over all CPUs, at most.
    pub ring_bytes: usize,
    /// Bytes of events and stacks that are held at a time, at most. A part is handed over when it
    /// has a quarter of that; where analysis does not keep up, recording ends, and that is said.
    pub memory_bytes: usize,
    /// A part is handed over after this time at the latest.
    pub part_after: Duration,
    /// Every thread of the machine is of the workload.
    pub everyone: bool,
    /// Share of the CPU time of a run's CPUs that the hooks may take: where switches are too frequent for that, they are
    /// recorded in windows. `None` records all. Of use for programs that know windows, those of `SCALE`.
    pub budget_share: Option<f64>,
    /// The waits of goroutines are to be timed ([`Recorder::goroutine_probes`]), which needs memory. Of use for those of `LOCKS`.
    pub goroutines: bool,
    /// Which mappings the side band tells of.
    pub mappings: Mappings,
    /// Clock of the fastest CPU in Hz, to turn `sample_hz` into a period of cycles.
    pub clock_hz: u64,
}

impl Settings {
    /// The usual ones: `programs` on `cpus`, 499 samples a second, 256 MiB of rings, 1 GiB held.
    pub fn new(programs: &'static Programs, cpus: Vec<u32>) -> Settings {
        Settings {
            programs,
            constants: Vec::new(),
            cpus,
            sample_hz: 499,
            sample_one_in: 1,
            ring_bytes: 256 << 20,
            memory_bytes: 1 << 30,
            part_after: Duration::MAX,
            everyone: false,
            budget_share: None,
            goroutines: false,
            mappings: Mappings::Code,
            clock_hz: 2_000_000_000,
        }
    }

    /// Events and stacks within so many bytes, and the rings of events within a quarter of that; where there are many CPUs up
    /// to all of it, so that each has room for what comes between two looks.
    pub fn within(self, memory_bytes: usize) -> Settings {
        let enough = cpu_slots(&self.cpus) as usize * SLOTS_ENOUGH * size_of::<Slot>();
        Settings {
            memory_bytes,
            ring_bytes: (memory_bytes / 4).max(enough.min(memory_bytes)),
            ..self
        }
    }
}

/// Events of a CPU for which there is room between two looks at its ring, 20 ms, if one of them is late: of page faults there
/// are less than a million in a second.
const SLOTS_ENOUGH: usize = 1 << 15;

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

/// What a recording that goes on has lost so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    /// Events, on all CPUs.
    pub events: u64,
    /// Stacks.
    pub stacks: u64,
    /// The memory for events was used up; later events are not there.
    pub is_cut: bool,
}

/// Loaded and attached programs. Dropping it detaches everything.
pub struct Recorder {
    pub(super) bpf: Ebpf,
    tasks: Tasks,
    shared: Arc<Shared>,
    cpus: Vec<u32>,
    totals_before: Vec<(u32, Totals)>,
    lost_before: Vec<Lost>,
    /// Returns when the recording was cut, if it was.
    drain: Option<JoinHandle<Option<u64>>>,
    programs: &'static Programs,
    /// What the kernel has taken.
    loaded: Vec<&'static Tracepoint>,
    links: Links,
    budget: Option<HookBudget>,
}

impl Recorder {
    /// Loads and attaches the programs.
    pub fn new(settings: &Settings) -> Result<Recorder, RecorderError> {
        super::namespace::thread_ids_are_the_kernels()?;
        let btf = Btf::from_sys_fs().map_err(|error| RecorderError::NoBtf(error.to_string()))?;
        let cpu_slots = cpu_slots(&settings.cpus);
        let per_cpu = settings.ring_bytes / size_of::<Slot>() / cpu_slots as usize;
        let per_cpu = (per_cpu.max(2048) + 1).next_power_of_two() / 2;
        let per_cpu = per_cpu.min(1 << 19);
        let slots_per_cpu = per_cpu as u32;
        let stack_bytes = stack_ring_bytes(settings.cpus.len(), settings.memory_bytes);
        let mut events = Events::open(settings)?;
        let has_counters = u32::from(!events.instructions.is_empty() && events.by_cycles);
        let everyone = u32::from(settings.everyone);
        let mut loader = EbpfLoader::new();
        loader
            .btf(Some(&btf))
            .override_global("slots_per_cpu", &slots_per_cpu, true)
            .override_global("everyone", &everyone, true)
            .override_global("has_counters", &has_counters, settings.programs.samples)
            .map_max_entries("slots", per_cpu as u32 * cpu_slots)
            .map_max_entries("rings", cpu_slots)
            .map_max_entries("totals", cpu_slots)
            .map_max_entries("instructions", cpu_slots)
            .map_max_entries("cycles", cpu_slots)
            .map_max_entries("stacks", stack_bytes);
        if settings.goroutines {
            loader.map_max_entries("goroutines", GOROUTINES_MAX);
        }
        for (name, value) in &settings.constants {
            loader.override_global(name, value, true);
        }
        let mut bpf = loader
            .load(settings.programs.object)
            .map_err(|error| RecorderError::Load(chain(&error)))?;

        let take = |bpf: &mut Ebpf, name: &'static str| -> Map {
            bpf.take_map(name)
                .unwrap_or_else(|| panic!("the object has the map {name}"))
        };
        let table = map(&bpf, "tasks", tasks::ENTRIES * size_of::<Task>())?;
        let tasks = Tasks::new(table, convert(take(&mut bpf, "crowd"))?);
        let stacks = bpf
            .take_map("stacks")
            .map(|map| {
                StackRing::new(convert(map)?, stack_bytes as usize)
                    .map_err(system("map the ring of stacks"))
            })
            .transpose()?;
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
        let loaded = programs::load_all(settings.programs, &mut bpf, &btf)?;
        events.open_each(&settings.cpus, |program| bpf.program(program).is_some())?;
        let sampling = [
            ("on_time", &events.time),
            ("on_instructions", &events.instructions),
        ];
        let each = events.each.iter().map(|(program, fds)| (*program, fds));
        for (program, fds) in sampling.into_iter().chain(each) {
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
        let links = attach(&mut bpf, &loaded, |_| true)?;
        detach(&mut bpf, links);
        let shared = Arc::new(Shared {
            rings: Rings::new(slots, rings, per_cpu, cpu_slots as usize),
            events,
            stacks: std::sync::Mutex::new(stacks),
            stop: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            cpus: settings.cpus.clone(),
            memory_bytes: settings.memory_bytes,
            part_after: settings.part_after,
            sample_one_in: settings.sample_one_in,
        });
        let mut recorder = Recorder {
            bpf,
            tasks,
            shared,
            cpus: settings.cpus.clone(),
            totals_before: Vec::new(),
            lost_before: Vec::new(),
            drain: None,
            programs: settings.programs,
            loaded,
            links: Vec::new(),
            budget: None,
        };
        if let Some(share) = settings.budget_share {
            let event_ns = recorder.event_ns()?.unwrap_or(calibrate::USUAL_NS);
            recorder.budget = Some(HookBudget { share, event_ns });
        }
        Ok(recorder)
    }

    /// What an event costs, if that can be measured.
    fn event_ns(&mut self) -> Result<Option<f64>, RecorderError> {
        let Some(&cpu) = self.cpus.first() else {
            return Ok(None);
        };
        // Where its CPU is not ours, or there may be no more threads, the usual must do.
        let Ok(pair) = Pair::new(cpu) else {
            return Ok(None);
        };
        for tid in pair.tids {
            self.add(tid, std::process::id())?;
        }
        let Recorder {
            bpf,
            loaded,
            shared,
            ..
        } = self;
        let rings = &shared.rings;
        rings.watch(cpu as usize, true);
        let (mut hooks, mut unwanted) = (None, Vec::new());
        let rounds = Rounds::measure(&pair, |on| {
            hooks = None;
            // A full ring would make the rounds after it cheap.
            rings.drain(cpu as usize, &mut unwanted);
            unwanted.clear();
            if on {
                hooks = Some(Hooks::attach(bpf, loaded)?);
            }
            Ok(rings.written(&[cpu]))
        });
        drop(hooks);
        rings.watch(cpu as usize, false);
        pair.end();
        self.tasks.clear();
        Ok(rounds?.and_then(Rounds::event_ns))
    }

    /// Samples are taken by cycles (else by a software clock, blind while interrupts are off).
    pub fn samples_cycles(&self) -> bool {
        self.shared.events.by_cycles
    }

    /// Instructions and cycles are counted by hardware.
    pub fn counts_instructions(&self) -> bool {
        self.shared.events.by_cycles && !self.shared.events.instructions.is_empty()
    }

    /// Tracepoints that this kernel does not have, or does not let be used.
    pub fn missing(&self) -> impl Iterator<Item = &'static str> {
        let all = self.programs.tracepoints.iter().map(|wanted| wanted.hook);
        all.filter(|hook| !self.loaded.iter().any(|loaded| loaded.hook == *hook))
    }

    /// All CPUs that any run may use.
    pub(super) fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// A table of the programs, `bytes` long, as it is now: they may write while it is read.
    pub(super) fn table(&self, name: &'static str, bytes: usize) -> Result<Mapping, RecorderError> {
        map(&self.bpf, name, bytes)
    }

    /// The only variable of the programs that begins with 0, which is `name`: an array of one `u32`.
    pub(super) fn variable(&self, name: &'static str) -> Result<OwnedFd, RecorderError> {
        let map = self.bpf.map(".bss");
        let map = map.unwrap_or_else(|| panic!("the object has the variable {name}"));
        // Refuses one of another size.
        Array::<&MapData, u32>::try_from(map)
            .map_err(|error| RecorderError::Load(chain(&error)))?;
        let fd = map_fd(&self.bpf, ".bss")?;
        fd.try_clone_to_owned()
            .map_err(system("keep a variable of BPF"))
    }

    /// Starts recording on `cpus`. Threads are added with [`Recorder::add`]. What happens comes
    /// in one or more parts; the last one comes at [`Recorder::end`]. Who gives up meanwhile ends it too, or the
    /// programs stay attached. After an error nothing is.
    pub fn begin(&mut self, cpus: &[u32]) -> Result<Receiver<Part>, RecorderError> {
        self.discard();
        let begun = self.attach(cpus);
        if begun.is_err() {
            // What it counted is of no use.
            let _ = self.end();
        }
        begun
    }

    fn attach(&mut self, cpus: &[u32]) -> Result<Receiver<Part>, RecorderError> {
        self.totals_before = self.totals()?;
        self.lost_before = self.lost();
        for &cpu in &self.cpus {
            self.shared.rings.watch(cpu as usize, cpus.contains(&cpu));
        }
        detach(&mut self.bpf, std::mem::take(&mut self.links));
        self.shared.rings.begin();
        let keeps_to_budget = self.budget.is_some();
        self.links = attach(&mut self.bpf, &self.loaded, |held| match held {
            Held::Throughout => true,
            Held::InWindows => !keeps_to_budget,
            Held::SinceGaps => false,
        })?;
        let windows = match self.budget {
            Some(budget) => {
                let hooks = Hooks::attach(&mut self.bpf, &self.loaded)?;
                let rings = &self.shared.rings;
                Some(Windows::new(hooks, budget, cpus, rings, clock::monotonic()))
            }
            None => None,
        };
        self.shared.full_rate();
        self.shared.events.enable(true)?;
        let shared = Arc::clone(&self.shared);
        shared.stop.store(false, Ordering::Relaxed);
        shared.is_cut.store(false, Ordering::Relaxed);
        let (give, parts) = mpsc::channel();
        self.drain = Some(
            std::thread::Builder::new()
                .name("amdahl-drain".into())
                .spawn(move || shared.drain_until_stopped(&give, windows))
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

    /// Threads of the workload whose last switch is still to be told; none where the programs do not tell it, and
    /// with [`Settings::everyone`]. Looks through a table of 4 MiB.
    pub fn without_last_switch(&self) -> Vec<u32> {
        if self.programs.tell_last_switch {
            self.tasks.present()
        } else {
            Vec::new()
        }
    }

    /// Stops recording. The last part is given out by now.
    pub fn end(&mut self) -> Result<Counts, RecorderError> {
        let disabled = self.shared.events.enable(false);
        for &cpu in &self.cpus {
            self.shared.rings.watch(cpu as usize, false);
        }
        detach(&mut self.bpf, std::mem::take(&mut self.links));
        // Detaches the rest.
        let cut = self.stop_draining();
        self.tasks.clear();
        disabled?;
        let (mut instructions, mut cycles) = (0, 0);
        for ((_, before), (_, after)) in self.totals_before.iter().zip(self.totals()?) {
            instructions += after.instructions - before.instructions;
            cycles += after.cycles - before.cycles;
        }
        let counted = self.counts_instructions();
        let lost: Vec<(u32, Lost)> = self
            .cpus
            .iter()
            .zip(self.lost())
            .zip(&self.lost_before)
            .map(|((&cpu, after), &before)| (cpu, after - before))
            .collect();
        Ok(Counts {
            stacks_lost: lost.iter().map(|(_, lost)| lost.stacks).sum(),
            lost: lost.iter().map(|&(cpu, lost)| (cpu, lost.slots)).collect(),
            cut,
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

    /// What was lost since [`Recorder::begin`].
    pub fn losses(&self) -> Losses {
        let mut losses = Losses {
            is_cut: self.shared.is_cut.load(Ordering::Relaxed),
            ..Losses::default()
        };
        for (now, &before) in self.lost().into_iter().zip(&self.lost_before) {
            let lost = now - before;
            losses.events += lost.slots;
            losses.stacks += lost.stacks;
        }
        losses
    }

    /// What was lost so far, in the order of `cpus`.
    fn lost(&self) -> Vec<Lost> {
        let rings = &self.shared.rings;
        self.cpus
            .iter()
            .map(|&cpu| rings.lost(cpu as usize))
            .collect()
    }

    fn totals(&self) -> Result<Vec<(u32, Totals)>, RecorderError> {
        if !self.programs.samples {
            return Ok(Vec::new());
        }
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

    fn discard(&mut self) {
        // A run that could not be started has left its recording unended.
        self.stop_draining();
        let mut unwanted = Drained::new(self.shared.empty_part());
        self.shared.drain_all(&mut unwanted);
    }
}

impl Drop for Recorder {
    /// The hooks of windows are the draining thread's.
    fn drop(&mut self) {
        self.stop_draining();
    }
}

/// Of the ring of stacks: by the number of CPUs, and half of what may be held at most.
fn stack_ring_bytes(cpus: usize, memory_bytes: usize) -> u32 {
    let wanted = cpus.next_power_of_two().saturating_mul(4 << 20);
    let most = (memory_bytes / 2 + 1).next_power_of_two() / 2;
    wanted.min(most).clamp(8 << 20, 128 << 20) as u32
}

/// Elements of what there is of each CPU: CPU numbers can have holes, so by the largest number possible.
fn cpu_slots(cpus: &[u32]) -> u32 {
    cpus_possible().max(cpus.iter().max().map_or(1, |max| max + 1))
}

/// One more than the largest CPU number that can be.
pub(super) fn cpus_possible() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text
        .trim()
        .rsplit([',', '-'])
        .next()
        .and_then(|last| last.parse::<u32>().ok());
    last.map_or(1, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::LOCKS;

    /// Rings kept 256 MiB, whatever was allowed.
    #[test]
    fn rings_are_within_what_is_allowed() {
        let cpus = |count: u32| (0..count).collect::<Vec<u32>>();
        let ring = |count, mib: usize| {
            let settings = Settings::new(&LOCKS, cpus(count)).within(mib << 20);
            assert_eq!(settings.memory_bytes, mib << 20);
            settings.ring_bytes >> 20
        };
        let possible = cpus_possible();
        if possible > 64 {
            println!("SKIPPED: there may be {possible} CPUs");
            return;
        }
        assert_eq!(
            (ring(64, 16), ring(64, 256), ring(64, 1024)),
            (16, 128, 256)
        );
        // Each CPU has room for 32,768 events, or as before for its part of 256 MiB.
        assert_eq!((ring(256, 256), ring(1024, 256)), (256, 256));
        if possible <= 4 {
            assert_eq!(ring(4, 16), 8);
        }
    }

    #[test]
    fn the_ring_of_stacks_is_a_power_of_two_within_half() {
        let mib = |cpus, memory: usize| stack_ring_bytes(cpus, memory << 20) >> 20;
        assert_eq!((mib(1, 256), mib(3, 256), mib(8, 256)), (8, 16, 32));
        assert_eq!((mib(512, 256), mib(512, 100), mib(64, 16)), (128, 32, 8));
        for memory in [0, 1, usize::MAX / 2] {
            assert!(stack_ring_bytes(usize::MAX / 8, memory).is_power_of_two());
        }
    }
}
