//! Perf events that the programs are attached to or read, and the side band of mappings.

use std::io;
use std::os::fd::OwnedFd;

use super::error::{RecorderError, system};
use super::recorder::{Mappings, Settings};
use crate::perf::{self, Counter, SideBandRing};

/// Programs that run at each event, not at one in many.
const EACH: [(&str, Counter); 3] = [
    ("on_fault", Counter::PageFaults),
    ("on_minor_fault", Counter::MinorFaults),
    ("on_major_fault", Counter::MajorFaults),
];

/// An instruction sample stands for as many instructions as a sample of time for cycles, times this. Samples only share among
/// functions what counters count, so that fewer do; there are about as many of both where three instructions take a cycle.
const INSTRUCTIONS_PER_CYCLE: u64 = 3;

/// Open events, one of each kind on each CPU.
#[derive(Default)]
pub struct Events {
    /// Samples of time.
    pub time: Vec<OwnedFd>,
    /// Samples of user instructions; none where there are no counters.
    pub instructions: Vec<OwnedFd>,
    /// `time` counts cycles.
    pub by_cycles: bool,
    /// User instructions per sample.
    pub instruction_period: u64,
    /// Cycles, or nanoseconds, per sample of time.
    time_period: u64,
    /// Nanoseconds per sample of time.
    pub sample_ns: u64,
    /// Those that run one program each time that something happens.
    pub each: Vec<(&'static str, Vec<OwnedFd>)>,
    /// Mappings of processes.
    pub side_band: Vec<SideBandRing>,
}

impl Events {
    /// Opens them on the CPUs of `settings`. Where no programs take samples only the side band.
    pub fn open(settings: &Settings) -> Result<Events, RecorderError> {
        let cpus = if settings.mappings != Mappings::Nothing {
            &settings.cpus[..]
        } else {
            &[]
        };
        let is_all = settings.mappings == Mappings::All;
        let pages = if is_all { 256 } else { 64 };
        let side_band = cpus
            .iter()
            .map(|&cpu| SideBandRing::open(cpu, pages, is_all))
            .collect::<io::Result<Vec<_>>>()
            .map_err(system("open the side band of mappings"))?;
        if !settings.programs.samples {
            return Ok(Events {
                side_band,
                ..Events::default()
            });
        }
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
        let failed = system("open a sampling event");
        let sample_ns = 1_000_000_000 / hz;
        let (time, by_cycles, time_period) = match each(Counter::Cycles, cycles) {
            Ok(events) => (events, true, cycles),
            Err(error) if perf::lacks_descriptors(&error) => return Err(failed(error)),
            Err(_) => match each(Counter::Clock, sample_ns) {
                Ok(events) => (events, false, sample_ns),
                Err(error) => return Err(failed(error)),
            },
        };
        let instruction_period = (INSTRUCTIONS_PER_CYCLE * cycles) | 1;
        let instructions = match each(Counter::UserInstructions, instruction_period) {
            Err(error) if perf::lacks_descriptors(&error) => return Err(failed(error)),
            opened => opened.unwrap_or_default(),
        };
        Ok(Events {
            time,
            instructions,
            by_cycles,
            instruction_period,
            time_period,
            sample_ns,
            side_band,
            each: Vec::new(),
        })
    }

    /// Opens the events for each time, of those programs of [`EACH`] that `has` has.
    pub fn open_each(
        &mut self,
        cpus: &[u32],
        has: impl Fn(&str) -> bool,
    ) -> Result<(), RecorderError> {
        for &(program, counter) in EACH.iter().filter(|(program, _)| has(program)) {
            let events = cpus.iter().map(|&cpu| perf::sampling(counter, 1, cpu));
            let events = events
                .collect::<io::Result<Vec<_>>>()
                .map_err(system("open an event of page faults"))?;
            self.each.push((program, events));
        }
        Ok(())
    }

    /// Lets a sample of the CPU at `at` stand for `weight` periods of the full rate from now on.
    pub fn set_weight(&self, at: usize, weight: u32) -> io::Result<()> {
        let set = |events: &[OwnedFd], period: u64| match events.get(at) {
            Some(event) => perf::set_period(event, (period * u64::from(weight)) | 1),
            None => Ok(()),
        };
        set(&self.instructions, self.instruction_period)?;
        set(&self.time, self.time_period)
    }

    /// Switches all of them on or off.
    pub fn enable(&self, on: bool) -> Result<(), RecorderError> {
        let each = self.each.iter().flat_map(|(_, events)| events);
        for event in self.time.iter().chain(&self.instructions).chain(each) {
            perf::enable(event, on).map_err(system("switch a perf event"))?;
        }
        for ring in &self.side_band {
            ring.enable(on).map_err(system("switch the side band"))?;
        }
        Ok(())
    }
}
