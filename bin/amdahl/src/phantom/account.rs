//! What was seen over all the time, from what was seen at each look.

use amdahl_phantom::{Averages, Estimate};

/// A figure over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Figure {
    /// Weighted by time.
    pub mean: f64,
    /// The smallest of a window.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// That of the last window.
    pub last: f64,
}

impl Figure {
    fn add(&mut self, value: f64, weight: f64, before: f64) {
        if before == 0.0 {
            (self.min, self.max) = (value, value);
        }
        self.mean += (value - self.mean) * weight / (before + weight);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.last = value;
    }
}

/// All figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Figures {
    /// CPUs that the threads ran on or that were free for them.
    pub runnable_cpus: Figure,
    /// Threads that could run and did not.
    pub phantom_avg: Figure,
    /// CPUs that have been free for a while.
    pub idle_avg: Figure,
    /// CPUs that ran them.
    pub running: Figure,
    /// Threads of others that ran or could run.
    pub others_threads: Figure,
    /// CPUs that ran others.
    pub others: Figure,
    /// CPUs that idled.
    pub idle: Figure,
    /// CPUs that the hypervisor took.
    pub steal: Figure,
    /// What of the phantoms it made.
    pub phantom_by_steal: Figure,
    /// CPUs that were in interrupts.
    pub interrupts: Figure,
    /// CPUs that a quota held back.
    pub throttled: Figure,
}

/// What the host's page was used for.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostAccount {
    /// CPUs that the guest as a whole could run on.
    pub runnable_cpus: Figure,
    /// For how long it was used.
    pub seconds: f64,
    /// Steal is what it says of that, at the last look.
    pub tells_steal: bool,
}

/// Adds up looks.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// What they say together.
    pub figures: Figures,
    /// How many there were.
    pub ticks: u64,
    /// CPUs that may be used, at the last one.
    pub allowed: f64,
    /// The tightest quota, at the last one.
    pub quota: Option<f64>,
    /// What the host said, while it was heard.
    pub host: HostAccount,
    pub(super) seconds: f64,
}

impl Account {
    /// Takes a look that stands for the last `seconds`.
    pub fn add(&mut self, estimate: &Estimate, seconds: f64) {
        let Averages {
            allowed,
            running,
            others,
            idle,
            steal,
            irq,
            phantom,
            phantom_by_steal,
            throttled,
            quota,
            runnable,
            others_threads,
            host_runnable,
            steal_is_by_host,
            ..
        } = estimate.window;
        let f = &mut self.figures;
        for (figure, value) in [
            (&mut f.runnable_cpus, runnable),
            (&mut f.phantom_avg, phantom),
            (&mut f.idle_avg, estimate.idle_avg),
            (&mut f.running, running),
            (&mut f.others_threads, others_threads),
            (&mut f.others, others),
            (&mut f.idle, idle),
            (&mut f.steal, steal),
            (&mut f.phantom_by_steal, phantom_by_steal),
            (&mut f.interrupts, irq),
            (&mut f.throttled, throttled),
        ] {
            figure.add(value, seconds.max(1e-9), self.seconds);
        }
        if let Some(cpus) = host_runnable {
            let host = &mut self.host;
            host.runnable_cpus
                .add(cpus, seconds.max(1e-9), host.seconds);
            host.seconds += seconds.max(1e-9);
            host.tells_steal = steal_is_by_host;
        }
        self.seconds += seconds.max(1e-9);
        self.ticks += 1;
        (self.allowed, self.quota) = (allowed, quota);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_weighted_by_time() {
        let mut figure = Figure::default();
        figure.add(1.0, 1.0, 0.0);
        figure.add(4.0, 3.0, 1.0);
        assert_eq!(
            (figure.mean, figure.min, figure.max, figure.last),
            (3.25, 1.0, 4.0, 4.0)
        );
        figure.add(0.0, 4.0, 4.0);
        assert_eq!((figure.mean, figure.min, figure.last), (1.625, 0.0, 0.0));
    }
}
