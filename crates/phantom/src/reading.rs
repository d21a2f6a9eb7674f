//! What a source tells at one moment: counters that only grow.

/// Counters since some beginning, the same for all readings of one source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// When, `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// Nanoseconds that our threads ran, summed over threads.
    pub run_ns: u64,
    /// Time that the hypervisor took while one of our threads was on the CPU is in `run_ns`.
    pub run_has_steal: bool,
    /// Nanoseconds that our threads could run and did not, summed over threads; `None` where nobody knows.
    pub wait_ns: Option<u64>,
    /// Nanoseconds in which at least one thread of ours (or, where only that is known, of anybody) waited for a CPU.
    pub pressure_ns: Option<u64>,
    /// Nanoseconds that the allowed CPUs idled, summed over CPUs.
    pub idle_ns: u64,
    /// Nanoseconds that the hypervisor took from the allowed CPUs; 0 as long as it has told of none.
    pub steal_ns: u64,
    /// Nanoseconds of interrupts on the allowed CPUs.
    pub irq_ns: u64,
    /// Integral over time of how many threads of others ran or could run on the machine, in thread nanoseconds.
    pub others_ns: u64,
    /// CPUs that our threads may use.
    pub allowed: u32,
    /// CPUs that can run at once for another reason: virtual CPUs that there are.
    pub limit: Option<u32>,
    /// The quotas that hold for us.
    pub quotas: Vec<QuotaReading>,
    /// Nanoseconds that CPUs which are not allowed ran somebody, summed over CPUs.
    pub elsewhere_ns: u64,
    /// What the host says of all CPUs of this guest, as long as that is fresh.
    pub host: Option<HostReading>,
}

/// Integrals over time of what the host's page says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostReading {
    /// Nanoseconds in which it was known.
    pub known_ns: u64,
    /// CPUs that the whole guest could run on, in CPU nanoseconds.
    pub runnable_ns: u64,
    /// Virtual CPUs that could run and did not, in CPU nanoseconds: what the guest calls steal.
    pub steal_ns: u64,
    /// The host's other threads that ran or could run while no quota held the virtual CPUs back, over time.
    pub others_ns: u64,
}

/// One quota and what was used of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuotaReading {
    /// CPU-seconds per second.
    pub cpus: f64,
    /// After which time they are granted again.
    pub period_ns: u64,
    /// Nanoseconds that all who share it used.
    pub usage_ns: Option<u64>,
    /// Nanoseconds that it held CPUs back.
    pub throttled_ns: Option<u64>,
}

impl Reading {
    /// Differences to an earlier reading mean something.
    pub(crate) fn continues(&self, earlier: &Reading) -> bool {
        let quotas = |reading: &Reading| -> Vec<(u64, u64)> {
            let quotas = reading.quotas.iter();
            quotas
                .map(|quota| (quota.cpus.to_bits(), quota.period_ns))
                .collect()
        };
        self.at_ns > earlier.at_ns
            && self.allowed == earlier.allowed
            && self.limit == earlier.limit
            && self.run_has_steal == earlier.run_has_steal
            && self.wait_ns.is_some() == earlier.wait_ns.is_some()
            && quotas(self) == quotas(earlier)
    }
}
