//! Where a pool learns which CPUs it may use.

use std::sync::{Arc, Mutex, PoisonError};

use amdahl_topology::{CpuSet, Throttle, ThrottleStat, Topology};

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

    /// Whether threads can be bound to these CPUs.
    fn is_real(&self) -> bool {
        false
    }
}

/// The machine this runs on: CPU affinity and cpuset of the thread that asks, CPUs online, quota of the control groups.
#[derive(Debug)]
pub struct ThisMachine {
    throttle: Option<Throttle>,
    quota: Option<f64>,
    looks: u32,
}

impl ThisMachine {
    /// How often in looks the quota is read again: it is several files.
    const QUOTA_EVERY: u32 = 20;

    /// Reads nothing yet.
    pub fn new() -> Self {
        ThisMachine {
            throttle: Throttle::open_for(std::process::id()).ok(),
            quota: None,
            looks: 0,
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
