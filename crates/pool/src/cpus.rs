//! Where a pool learns which CPUs it may use.

use std::sync::{Arc, Mutex, PoisonError};

use amdahl_phantom_page::{Finder, Followed, Snapshot, coarse_now_ns};
use amdahl_topology::{CpuSet, Throttle, ThrottleStat, Topology};

use crate::sys::CpuStat;

/// Tells which CPUs may be used now. The pool asks every few ms while it works, when it wakes up, and on
/// [`Pool::refresh`](crate::Pool::refresh).
pub trait CpuSource: Send {
    /// All CPUs that may ever come. Asked once.
    fn topology(&mut self) -> Topology;

    /// The CPUs that may be used now, by the kernel's numbers; those beyond the topology are not used. Empty: the
    /// pool keeps what it has, for work must run somewhere.
    fn allowed(&mut self) -> CpuSet;

    /// CPU-seconds per second that may be used, if there is a limit.
    fn quota(&mut self) -> Option<f64> {
        None
    }

    /// What the quota took away until now.
    fn throttled(&mut self) -> Option<ThrottleStat> {
        None
    }

    /// What a hypervisor took away of the allowed CPUs until now, if it can be told.
    fn stolen(&mut self) -> Option<StealStat> {
        None
    }

    /// What somebody publishes of the CPUs that this process can have, if it is fresh. Asked while CPUs are taken away, and from then on as
    /// long as there is something.
    fn published(&mut self) -> Option<Snapshot> {
        None
    }

    /// Whether threads can be bound to these CPUs.
    fn is_real(&self) -> bool {
        false
    }
}

/// Times of CPUs since the machine started, added up, of all that runs there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StealStat {
    /// For so many nanoseconds there was something to run, and the hypervisor did not let the CPU.
    pub stolen_ns: u64,
    /// For so many it ran.
    pub ran_ns: u64,
}

impl StealStat {
    /// Of `cpus`, from `/proc/stat`, whose unit is `tick_ns`. `None` where no steal is counted: kernels of before 2.6.11.
    fn parse(stat: &str, cpus: &CpuSet, tick_ns: u64) -> Option<Self> {
        let mut sum = StealStat::default();
        let lines = stat.lines().map_while(|line| line.strip_prefix("cpu"));
        // The sum of all is the one without a number.
        for line in lines.filter(|line| !line.starts_with(' ')) {
            let mut words = line.split_ascii_whitespace();
            if !cpus.contains(words.next()?.parse().ok()?) {
                continue;
            }
            let mut ticks = [0u64; 8];
            for tick in &mut ticks {
                *tick = words.next()?.parse().ok()?;
            }
            let [user, nice, system, _idle, _io, interrupt, soft, steal] = ticks;
            sum.stolen_ns += steal * tick_ns;
            sum.ran_ns += (user + nice + system + interrupt + soft) * tick_ns;
        }
        Some(sum)
    }
}

/// The machine this runs on: CPU affinity and cpuset of the thread that asks, CPUs online, quota of the control groups, the page of
/// `amdahl phantom` where there is one.
#[derive(Debug)]
pub struct ThisMachine {
    throttle: Option<Throttle>,
    quota: Option<f64>,
    looks: u32,
    stat: Option<CpuStat>,
    stolen: Option<StealStat>,
    steal_looks: u32,
    page: Option<Followed>,
}

impl ThisMachine {
    /// How often in looks the quota is read again: it is several files.
    const QUOTA_EVERY: u32 = 20;

    /// The same for `/proc/stat`: the kernel adds up the interrupts of all CPUs for it.
    const STEAL_EVERY: u32 = 50;

    /// Reads nothing yet.
    pub fn new() -> Self {
        ThisMachine {
            throttle: Throttle::open_for(std::process::id()).ok(),
            quota: None,
            looks: 0,
            stat: CpuStat::open(),
            stolen: None,
            steal_looks: 0,
            // Miri knows none of the calls.
            page: (!cfg!(miri)).then(|| Followed::new(Finder::from_environment())),
        }
    }
}

impl Default for ThisMachine {
    fn default() -> Self {
        Self::new()
    }
}

impl CpuSource for ThisMachine {
    fn topology(&mut self) -> Topology {
        let allowed = amdahl_topology::allowed().unwrap_or_default();
        // One that is offline now may come.
        Topology::read_present()
            .ok()
            .or_else(|| Topology::flat(&allowed))
            .unwrap_or_else(|| {
                Topology::flat(&CpuSet::from_iter([0])).expect("one CPU is a machine")
            })
    }

    fn allowed(&mut self) -> CpuSet {
        amdahl_topology::allowed().unwrap_or_default()
    }

    fn quota(&mut self) -> Option<f64> {
        if self.looks.is_multiple_of(Self::QUOTA_EVERY) {
            self.quota = amdahl_topology::quota()
                .ok()
                .flatten()
                .map(|quota| quota.cpus);
        }
        self.looks = self.looks.wrapping_add(1);
        self.quota
    }

    fn throttled(&mut self) -> Option<ThrottleStat> {
        self.throttle.as_ref()?.read()
    }

    fn stolen(&mut self) -> Option<StealStat> {
        if self.steal_looks.is_multiple_of(Self::STEAL_EVERY) {
            let cpus = amdahl_topology::allowed().unwrap_or_default();
            self.stolen = self
                .stat
                .as_mut()
                .and_then(|stat| StealStat::parse(stat.read()?, &cpus, crate::sys::tick_ns()));
        }
        self.steal_looks = self.steal_looks.wrapping_add(1);
        self.stolen
    }

    fn published(&mut self) -> Option<Snapshot> {
        self.page.as_mut()?.read(coarse_now_ns())
    }

    fn is_real(&self) -> bool {
        true
    }
}

/// CPUs that come and go as a test or a simulation says. Clones are the same CPUs.
///
/// ```
/// use amdahl_pool::{Pool, SimulatedCpus};
/// use amdahl_topology::{CpuSet, Topology};
///
/// let cpus = SimulatedCpus::new(Topology::synthetic("2 llc x 4 core")?);
/// let pool = Pool::builder().cpus(cpus.clone()).build()?;
/// cpus.set_allowed(CpuSet::from_iter([1, 6]));
/// pool.refresh();
/// let ran = pool.queue_on(&CpuSet::from_iter([0, 6]), || "CPU 0 is gone, this is 6's");
/// assert!(ran.join().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SimulatedCpus {
    topology: Topology,
    now: Arc<Mutex<(CpuSet, Option<f64>)>>,
}

impl SimulatedCpus {
    /// All of the machine's CPUs, without a quota.
    pub fn new(topology: Topology) -> Self {
        let all = topology.cpu_set();
        SimulatedCpus {
            topology,
            now: Arc::new(Mutex::new((all, None))),
        }
    }

    fn now(&self) -> std::sync::MutexGuard<'_, (CpuSet, Option<f64>)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the pool's next look on.
    pub fn set_allowed(&self, cpus: CpuSet) {
        self.now().0 = cpus;
    }

    /// From the pool's next look on.
    pub fn set_quota(&self, cpus: Option<f64>) {
        self.now().1 = cpus;
    }
}

impl CpuSource for SimulatedCpus {
    fn topology(&mut self) -> Topology {
        self.topology.clone()
    }
    fn allowed(&mut self) -> CpuSet {
        self.now().0.clone()
    }
    fn quota(&mut self) -> Option<f64> {
        self.now().1
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn steal_is_that_of_the_cpus_which_may_be_used() {
        let stat = "cpu  99 99 99 99 99 99 99 99 0 0
cpu0 1 2 3 1000 1000 4 5 6 1 0
cpu1 10 20 30 1000 1000 40 50 60 0 0
cpu12 100 200 300 1000 1000 400 500 600 0 0
intr 12345 0 0
";
        let of = |cpus: &[u32], stat: &str| {
            let cpus = cpus.iter().copied().collect();
            StealStat::parse(stat, &cpus, 10).map(|sum| (sum.stolen_ns, sum.ran_ns))
        };
        assert_eq!(of(&[0, 12, 70], stat), Some((6060, 15_150)));
        assert_eq!(of(&[1], stat), Some((600, 1500)));
        assert_eq!(of(&[0], "cpu0 1 2 3 4 5 6"), None, "an old kernel");
    }

    #[test]
    fn this_machine_tells_what_its_cpus_ran() {
        let mut machine = ThisMachine::new();
        let first = machine.stolen().expect("Linux has it");
        assert!(first.ran_ns > 0);
        assert_eq!(machine.stolen(), Some(first), "read now and then");
    }
}
