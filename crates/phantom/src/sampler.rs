//! Where readings come from: the best source there is, and what all of them read beside it.

use std::path::PathBuf;

use amdahl_phantom_page::Source;
use amdahl_topology::{Bandwidth, CpuSet};
use rustc_hash::FxHashMap;

use crate::clock;
use crate::error::SourceError;
use crate::host_page::HostPage;
use crate::machine::Machine;
use crate::proc::cpus::{self, Text, tick_ns};
use crate::proc::text::{self, CpuTicks};
use crate::proc::threads::{Members, ThreadSums};
use crate::reading::{QuotaReading, Reading};

/// About whom.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Our threads.
    pub members: Members,
    /// The control group, if it is one that we ask about: its quotas hold, not those of its processes.
    pub group: Option<PathBuf>,
    /// Virtual CPUs, if our threads are those.
    pub virtual_cpus: Option<u32>,
}

/// By what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// BPF at the scheduler's events; `keeps_takers` for [`Sampler::takers`].
    #[cfg(feature = "bpf")]
    Bpf {
        /// Time of others is kept by process.
        keeps_takers: bool,
    },
    /// What everybody may read.
    Proc,
}

#[cfg_attr(
    feature = "bpf",
    expect(clippy::large_enum_variant, reason = "there is one of it")
)]
enum Counted {
    #[cfg(feature = "bpf")]
    Bpf(crate::bpf::Followed),
    Threads(ThreadSums),
    /// Everybody's together are what CPUs do.
    Everyone,
}

/// Makes readings.
pub struct Sampler {
    scope: Scope,
    counted: Counted,
    online: CpuSet,
    /// All that our threads were ever seen to be allowed: a runtime that confines its threads to fewer CPUs, because
    /// there are fewer, must find out when there are more.
    seen: CpuSet,
    allowed: CpuSet,
    quotas: Vec<Bandwidth>,
    machine: Machine,
    /// Others look together with us, and say when.
    is_together: bool,
    pressure: Option<Text>,
    ticks: CpuTicks,
    /// Of CPUs that are not allowed.
    elsewhere: u64,
    host: Option<HostPage>,
    /// Of which reading of `/proc/stat` the ticks are; 0 of none.
    stat_number: u64,
    last_ns: u64,
    last_ours_ns: u64,
    others_ns: u64,
    crowd_ns: u64,
}

impl Sampler {
    /// Begins to follow `scope`.
    ///
    /// # Errors
    /// [`SourceError`]; with [`How::Proc`] only where `/proc` or sysfs are missing.
    pub fn new(scope: Scope, how: How) -> Result<Sampler, SourceError> {
        Sampler::of(scope, how, Machine::open()?, false)
    }

    /// The same together with others, who share `machine`: its files are read once for each [`Machine::begin_look`], which is to come
    /// before the reading of all.
    ///
    /// # Errors
    /// As [`Sampler::new`].
    pub fn together(scope: Scope, how: How, machine: &Machine) -> Result<Sampler, SourceError> {
        Sampler::of(scope, how, machine.clone(), true)
    }

    fn of(
        scope: Scope,
        how: How,
        machine: Machine,
        is_together: bool,
    ) -> Result<Sampler, SourceError> {
        let online = amdahl_topology::online()?;
        let counted = match how {
            #[cfg(feature = "bpf")]
            How::Bpf { keeps_takers } => Counted::Bpf(crate::bpf::Followed::new(
                &scope.members,
                &online,
                keeps_takers,
            )?),
            How::Proc if scope.members == Members::Everyone => Counted::Everyone,
            How::Proc => Counted::Threads(ThreadSums::new()),
        };
        let of_group = scope
            .group
            .as_ref()
            .and_then(|group| Text::open(group.join("cpu.pressure").to_str()?).ok());
        let mut sampler = Sampler {
            counted,
            seen: CpuSet::new(),
            allowed: online.clone(),
            online,
            quotas: Vec::new(),
            machine,
            is_together,
            pressure: of_group.or_else(|| Text::open("/proc/pressure/cpu").ok()),
            ticks: CpuTicks::default(),
            elsewhere: 0,
            host: None,
            stat_number: 0,
            last_ns: 0,
            last_ours_ns: 0,
            others_ns: 0,
            crowd_ns: 0,
            scope,
        };
        sampler.look_around()?;
        Ok(sampler)
    }

    /// Takes what the host says of this guest into its readings.
    pub fn follow_host(&mut self, page: HostPage) {
        self.host = Some(page);
    }

    /// The host's page, if one is followed.
    pub fn host(&self) -> Option<&HostPage> {
        self.host.as_ref()
    }

    /// Where its figures come from.
    pub fn source(&self) -> Source {
        match &self.counted {
            #[cfg(feature = "bpf")]
            Counted::Bpf(_) => Source::Bpf,
            Counted::Threads(sums) if !sums.has_waits() => Source::Pressure,
            _ => Source::Proc,
        }
    }

    /// CPUs that our threads may use.
    pub fn allowed(&self) -> &CpuSet {
        &self.allowed
    }

    /// All CPUs that are online are allowed.
    pub fn has_all(&self) -> bool {
        self.allowed == self.online
    }

    /// Threads of ours that are missing because there are too many.
    pub fn lost(&self) -> u64 {
        match &self.counted {
            #[cfg(feature = "bpf")]
            Counted::Bpf(followed) => followed.lost(),
            _ => 0,
        }
    }

    /// Looks again at what changes seldom: who is ours, which CPUs, which quotas. About once a second is meant.
    ///
    /// # Errors
    /// [`SourceError`]; a process that has ended is none.
    pub fn refresh(&mut self, members: Members) -> Result<(), SourceError> {
        self.scope.members = members;
        self.online = amdahl_topology::online()?;
        #[cfg(feature = "bpf")]
        if let Counted::Bpf(followed) = &mut self.counted {
            followed.refresh(&self.scope.members, &self.online)?;
        }
        self.look_around()
    }

    fn look_around(&mut self) -> Result<(), SourceError> {
        for (_, tid) in self.scope.members.threads() {
            // It may have ended.
            if let Ok(mask) = amdahl_topology::allowed_of(tid) {
                self.seen = self.seen.union(&mask);
            }
        }
        let seen = self.seen.intersection(&self.online);
        self.allowed = if seen.is_empty() {
            self.online.clone()
        } else {
            seen
        };
        #[cfg(feature = "bpf")]
        if let Counted::Bpf(followed) = &self.counted {
            followed.watch(&self.allowed);
        }
        // Other CPUs may be allowed: the ticks of before are not theirs.
        self.stat_number = 0;
        self.quotas = match (&self.scope.group, self.scope.members.processes().first()) {
            (Some(group), _) => amdahl_topology::bandwidth_around(group)?,
            (None, Some(&pid)) => match amdahl_topology::bandwidth_of(pid) {
                // What cannot be read of a process that has ended was not needed.
                Err(_) if amdahl_topology::allowed_of(pid).is_err() => Vec::new(),
                quotas => quotas?,
            },
            (None, None) => Vec::new(),
        };
        Ok(())
    }

    /// What the counters say now.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be read.
    pub fn read(&mut self) -> Result<Reading, SourceError> {
        let now_ns = clock::monotonic_ns();
        let elapsed_ns = match self.last_ns {
            0 => 0,
            last_ns => now_ns.saturating_sub(last_ns),
        };
        if !self.is_together {
            self.machine.begin_look();
        }
        self.read_stat(now_ns)?;
        let runnable = self.machine.files().runnable();
        let tick_ns = tick_ns();
        let in_ns = |ticks: u64| ticks.saturating_mul(tick_ns);
        let mut reading = Reading {
            at_ns: now_ns,
            idle_ns: in_ns(self.ticks.idle),
            steal_ns: in_ns(self.ticks.steal),
            irq_ns: in_ns(self.ticks.irq),
            allowed: self.allowed.len() as u32,
            limit: self.scope.virtual_cpus,
            quotas: self.quotas.iter().map(quota).collect(),
            elsewhere_ns: in_ns(self.elsewhere),
            host: self.host.as_mut().and_then(|host| host.look(now_ns)),
            ..Reading::default()
        };
        let ours_now = match &mut self.counted {
            #[cfg(feature = "bpf")]
            Counted::Bpf(followed) => {
                let totals = followed.totals(now_ns, &self.allowed);
                reading.run_ns = totals.run_ns;
                reading.run_has_steal = true;
                reading.wait_ns = Some(totals.wait_ns);
                reading.idle_ns = totals.idle_ns;
                totals.runnable_now as f64
            }
            Counted::Threads(sums) => {
                sums.look(&self.scope.members.threads(), now_ns);
                reading.run_ns = sums.run_ns;
                reading.wait_ns = sums.has_waits().then_some(sums.wait_ns);
                if reading.wait_ns.is_none() {
                    let pressure = self.pressure.as_mut();
                    reading.pressure_ns =
                        pressure.and_then(|pressure| text::some_pressure(pressure.read(0).ok()?));
                }
                // On average over the tick; how many there are at this moment is not known.
                let ours_ns = sums.run_ns.saturating_add(sums.wait_ns);
                let ours =
                    ours_ns.saturating_sub(self.last_ours_ns) as f64 / elapsed_ns.max(1) as f64;
                self.last_ours_ns = ours_ns;
                ours
            }
            Counted::Everyone => {
                reading.run_ns = in_ns(self.ticks.busy);
                let crowd = runnable
                    .unwrap_or(0)
                    .saturating_sub(self.allowed.len() as u64);
                self.crowd_ns = self
                    .crowd_ns
                    .saturating_add(crowd.saturating_mul(elapsed_ns));
                reading.wait_ns = Some(self.crowd_ns);
                0.0
            }
        };
        if self.scope.members != Members::Everyone {
            let others = (runnable.unwrap_or(0) as f64 - ours_now).max(0.0);
            self.others_ns = self
                .others_ns
                .saturating_add((others * elapsed_ns as f64) as u64);
        }
        reading.others_ns = self.others_ns;
        self.last_ns = now_ns;
        Ok(reading)
    }

    fn read_stat(&mut self, now_ns: u64) -> Result<(), SourceError> {
        let is_all = self.allowed == self.online;
        // The sum is the first line, that of a CPU less than 200 bytes.
        let bytes = if is_all {
            1
        } else {
            200 * (2 + self.online.last().unwrap_or(0) as usize)
        };
        let is_detail = match &self.counted {
            #[cfg(feature = "bpf")]
            Counted::Bpf(_) => true,
            _ => false,
        };
        let mut files = self.machine.files();
        let stat = files.stat(now_ns, bytes, is_detail);
        let (stat, number) = stat.map_err(|source| SourceError::Read {
            path: "/proc/stat",
            source,
        })?;
        if number != self.stat_number {
            self.ticks = cpus::sum(stat, &self.allowed, is_all);
            self.elsewhere = cpus::busy_elsewhere(stat, self.ticks, is_all);
            self.stat_number = number;
        }
        Ok(())
    }

    /// What processes of others had of the allowed CPUs so far: nanoseconds and names, by process. `None` without BPF.
    pub fn takers(&self) -> Option<FxHashMap<u32, (u64, String)>> {
        match &self.counted {
            #[cfg(feature = "bpf")]
            Counted::Bpf(followed) if self.scope.members != Members::Everyone => {
                Some(followed.takers(clock::monotonic_ns(), &self.allowed))
            }
            _ => None,
        }
    }
}

fn quota(bandwidth: &Bandwidth) -> QuotaReading {
    let used = bandwidth.read();
    QuotaReading {
        cpus: bandwidth.cpus,
        period_ns: bandwidth.period_us.saturating_mul(1000),
        usage_ns: used.usage_ns,
        throttled_ns: used.throttled_ns,
    }
}
