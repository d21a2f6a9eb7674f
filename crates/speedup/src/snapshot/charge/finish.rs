//! The end of a run: charges in proportion become nanoseconds that add up.

use rustc_hash::FxHashSet;

use crate::cause::Cause;
use crate::event::{Ns, StackId, Tid};
use crate::partition::{Activity, Charge, ChargeKey, HYPERVISOR, INTERRUPTS, QUOTA, RunPartition};
use crate::snapshot::polled::Why;
use crate::snapshot::resolve::Resolver;
use crate::snapshot::user_wait::Objects;
use crate::snapshot::{CpuTimes, ProcessWaits, WaitKind};

use super::{Charger, CpuUsage, idle_of};

/// Shorter looks at the CPUs say nothing.
const GLIMPSE_NS: f64 = 50e6;

impl Charger {
    /// Ends the run at `to`.
    ///
    /// * `usage`: CPU time of the whole workload; without it, that of the threads that were polled.
    /// * `waits`: what the processes recorded themselves; empty without the preload library.
    /// * `site`: the stack that stands for a return address in a process.
    /// * `blank`: the stack of CPU time that nobody sampled.
    pub fn finish(
        mut self,
        to: Ns,
        usage: Option<CpuUsage>,
        waits: &[ProcessWaits],
        mut site: impl FnMut(Tid, u64) -> Option<StackId>,
        blank: StackId,
    ) -> RunPartition {
        self.settle(None, 0.0);
        let mut out = RunPartition {
            from: self.from,
            to: to.max(self.from),
            cpus: self.cpus.len() as u32,
            events: self.polls,
            processes: std::mem::take(&mut self.processes),
            ..RunPartition::default()
        };
        let capacity = out.capacity_ns();
        let ran: f64 = self.ran.values().flatten().sum();
        let polled = [0, 1].map(|mode| self.ran.values().map(|ran| ran[mode]).sum::<f64>());
        // Of a process that nobody has waited for only polls tell.
        let [user, system] = match usage {
            Some(usage) if (usage.user_ns + usage.system_ns) as f64 >= ran => {
                [usage.user_ns as f64, usage.system_ns as f64]
            }
            _ => polled,
        };
        out.on_cpu_ns = (user + system).min(capacity);
        let fit = if user + system > 0.0 {
            out.on_cpu_ns / (user + system)
        } else {
            0.0
        };
        let [user, system] = [user * fit, system * fit];
        self.run(&mut out, [user, system], ran, waits, blank);
        if !self.sampled.is_empty() {
            self.sampled.divide(user, system, blank, &mut out);
        }
        if let Some(faults) = usage.and_then(|usage| usage.faults_ns) {
            let faults = faults as f64 * fit;
            self.sampled.set_faults_apart(faults, blank, &mut out);
        }
        self.stolen(&mut out);
        out.idle_ns = (capacity - out.on_cpu_ns - out.other_ns).max(0.0);
        let waiters: FxHashSet<Tid> = self.by_index.iter().map(|key| key.tid).collect();
        let trace = std::mem::take(&mut self.trace);
        let known = Resolver {
            objects: Objects::new(waits),
            futexes: &self.futexes,
            is_alone: waiters.len() < 2,
        };
        self.idle(&mut out, &known, &mut site, blank);
        let cause = |key| known.cause(&self.by_index[key as usize]);
        trace.finish([self.last, out.to], cause, &mut out);
        out
    }

    /// CPU time by thread, in the proportions of the polls; without samples also what for.
    fn run(
        &self,
        out: &mut RunPartition,
        [user, system]: [f64; 2],
        ran: f64,
        waits: &[ProcessWaits],
        blank: StackId,
    ) {
        let spun: f64 = waits
            .iter()
            .flat_map(|process| &process.by_kind)
            .filter(|(kind, ..)| *kind == WaitKind::Spin)
            .map(|&(_, _, ns)| ns as f64)
            .sum();
        let spun = spun.min(user);
        // Threads that came and went between two polls were never seen: their time is nobody's.
        let seen = if ran > 0.0 {
            (user + system).min(ran) / ran
        } else {
            0.0
        };
        let mut left = user + system;
        let mut put = |tid: Tid, ns: f64, of: f64| {
            if ns <= 0.0 {
                return;
            }
            *out.threads.entry(tid).or_default() += ns;
            if !self.sampled.is_empty() {
                return;
            }
            let in_user = user / of;
            let spins = spun / of;
            for (activity, share) in [
                (Activity::User, in_user - spins),
                (Activity::UserSpin, spins),
                (Activity::Kernel, system / of),
            ] {
                if share > 0.0 {
                    let charge = out.on.entry((activity, tid, blank)).or_default();
                    charge.ns += ns * share;
                    charge.count += 1;
                }
            }
        };
        let of = user + system;
        for (&tid, ran) in &self.ran {
            let ns = (ran[0] + ran[1]) * seen;
            left -= ns;
            put(tid, ns, of);
        }
        if left > of * 1e-9 {
            put(0, left, of);
        }
    }

    /// Time that others took from the CPUs: what two ways of counting agree on.
    fn stolen(&self, out: &mut RunPartition) {
        let Some(clock) = &self.cpu_times else { return };
        let span = clock.last.0.saturating_sub(clock.first.0) as f64;
        let run = (out.to - out.from) as f64;
        // The kernel counts in units of 10 ms: from a glimpse nothing is inferred for the whole.
        if span < GLIMPSE_NS || span < 0.1 * run {
            return;
        }
        let whole = run / span;
        let delta = |of: fn(&CpuTimes) -> Ns| {
            of(&clock.last.1).saturating_sub(of(&clock.first.1)) as f64 * whole
        };
        let steal = delta(|times| times.steal_ns);
        let irq = delta(|times| times.irq_ns);
        let busy = delta(|times| times.user_ns + times.system_ns) + steal + irq;
        let not_idle = out.capacity_ns() - delta(idle_of);
        // Busy time is counted by ticks and idle time by the clock: where they disagree, the
        // smaller one is certain.
        let stolen = (busy.min(not_idle) - out.on_cpu_ns)
            .clamp(0.0, (out.capacity_ns() - out.on_cpu_ns).max(0.0));
        let hypervisor = steal.min(stolen);
        let interrupts = irq.min(stolen - hypervisor);
        let others = stolen - hypervisor - interrupts;
        for (object, ns) in [
            (HYPERVISOR, hypervisor),
            (INTERRUPTS, interrupts),
            (0, others),
        ] {
            if ns > 0.0 {
                let key = ChargeKey {
                    cause: Cause::Stolen,
                    tid: 0,
                    stack: None,
                    object,
                };
                out.off.insert(key, Charge { ns, count: 1 });
            }
        }
        out.other_ns = stolen;
    }

    /// Idle time in the proportions in which the intervals were charged.
    fn idle(
        &self,
        out: &mut RunPartition,
        known: &Resolver<'_>,
        site: &mut impl FnMut(Tid, u64) -> Option<StackId>,
        blank: StackId,
    ) {
        if out.idle_ns <= 0.0 {
            return;
        }
        let waits = self.by_index.iter().zip(&self.charged);
        let seen = waits.clone().filter(|(key, _)| key.why != Why::Unseen);
        let charged = seen.clone().map(|(_, charge)| charge.ns).sum::<f64>()
            + self.serial.values().sum::<f64>()
            + self.placement.values().sum::<f64>()
            + self.throttled;
        if charged <= 0.0 {
            // Too short to be polled twice, or never idle at a poll.
            let key = ChargeKey {
                cause: Cause::Unexplained,
                tid: 0,
                stack: None,
                object: 0,
            };
            out.off.insert(
                key,
                Charge {
                    ns: out.idle_ns,
                    count: 1,
                },
            );
            return;
        }
        let scale = out.idle_ns / charged;
        let mut put = |key: ChargeKey, charge: Charge| {
            let sum = out.off.entry(key).or_default();
            sum.ns += charge.ns * scale;
            sum.count += charge.count;
        };
        // A quota takes CPUs from the code that would have gone on running.
        let ran: f64 = out.on.values().map(|charge| charge.ns).sum();
        let mut throttled = |tid: Tid, stack: Option<StackId>, share: f64| {
            let key = ChargeKey {
                cause: Cause::Stolen,
                tid,
                stack,
                object: QUOTA,
            };
            let ns = self.throttled * share;
            if ns > 0.0 {
                put(key, Charge { ns, count: 1 });
            }
        };
        for (&(_, tid, stack), charge) in &out.on {
            let stack = Some(stack).filter(|&stack| stack != blank);
            throttled(tid, stack, charge.ns / ran);
        }
        if ran <= 0.0 {
            throttled(0, None, 1.0);
        }
        let by_thread = self.sampled.by_thread();
        for (cause, charges) in [
            (Cause::Serial, &self.serial),
            (Cause::Placement, &self.placement),
        ] {
            for (&(tid, stack), &ns) in charges {
                let mut put = |stack: Option<StackId>, ns: f64| {
                    let key = ChargeKey {
                        cause,
                        tid,
                        stack,
                        object: 0,
                    };
                    put(key, Charge { ns, count: 1 });
                };
                match by_thread.get(&tid).filter(|_| stack.is_none()) {
                    // Not sampled just then: as at other times.
                    Some(places) => {
                        let all: f64 = places.iter().map(|(_, count)| count).sum();
                        for &(stack, count) in places {
                            put(Some(stack), ns * count / all);
                        }
                    }
                    None => put(stack, ns),
                }
            }
        }
        for (key, charge) in seen {
            if charge.ns > 0.0 {
                known.resolve(key, *charge, site, &mut put);
            }
        }
    }
}
