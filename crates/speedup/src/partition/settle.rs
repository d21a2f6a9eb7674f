//! The end of a run: what only the whole of it tells.

use rustc_hash::FxHashMap;

use super::waits::{Futex, PendingKey, Tier};
use super::{Charge, ChargeKey, Partition, QUOTA, RunPartition};
use crate::cause::Cause;
use crate::event::{CpuId, Ns, Occupant, Off, StackId, Tid};
use crate::wait::Resolved;

impl Partition {
    /// Ends the run at `to`.
    pub fn finish(mut self, to: Ns) -> RunPartition {
        self.look_until(to);
        self.advance(to);
        let cpus: Vec<CpuId> = self.watched.keys().copied().collect();
        for cpu in cpus {
            self.switch(to, cpu, Occupant::Idle, Off::Exited, Occupant::Idle);
        }
        let tids: Vec<Tid> = self.threads.keys().copied().collect();
        for tid in tids {
            self.leave(tid);
        }
        for (&tid, thread) in &self.threads {
            self.out.processes.entry(tid).or_insert(thread.pid);
        }
        self.out.to = to.max(self.now);
        if self.out.gaps_ns > 0 {
            let wall = (self.out.to - self.out.from) as f64;
            self.out.missing_ns = (wall - self.clock).clamp(0.0, wall);
        }
        self.settle_waits();
        self.settle_throttling();
        self.settle_samples();
        self.out
    }

    fn settle_waits(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let mut crews = std::mem::take(&mut self.crews);
        let mut unsettled: Vec<(Tid, PendingKey, Charge)> = Vec::new();
        for (&pid, crew) in &mut crews {
            let ns = crew.settle(self.integral[Tier::Active as usize]);
            let resolved = Resolved::AsOthers;
            let key = PendingKey {
                resolved,
                tid: 0,
                from: None,
                place: 0,
                object: 0,
                futex: Futex::default(),
            };
            unsettled.push((pid, key, Charge { ns, count: 0 }));
        }
        for (key, charge) in pending {
            match key.resolved {
                Resolved::Cause(cause) => self.put_wait(&key, cause, charge, 1.0),
                Resolved::Futex => {
                    self.put_wait(&key, self.futex_cause(key.futex), charge, 1.0);
                }
                Resolved::AsOthers => {
                    let pid = self.out.processes.get(&key.tid).copied().unwrap_or(key.tid);
                    unsettled.push((pid, key, charge));
                }
            }
        }
        for (pid, key, charge) in unsettled {
            let mix = crews.get(&pid).map(|crew| &crew.mix);
            let total: f64 = mix.map_or(0.0, |mix| mix.values().sum());
            let Some(mix) = mix.filter(|_| total > 0.0) else {
                self.serial_ns += charge.ns;
                continue;
            };
            for (&cause, ns) in mix {
                if cause == Cause::Serial {
                    self.serial_ns += charge.ns * ns / total;
                } else if charge.ns > 0.0 {
                    self.put_wait(&key, cause, charge, ns / total);
                }
            }
        }
        spread(
            &mut self.out.off,
            Cause::Serial,
            self.serial_ns,
            &self.serial_weights,
        );
    }

    /// Charges a wait to the stacks that were sampled at its place, or to its waker's.
    pub(super) fn put_wait(&mut self, key: &PendingKey, cause: Cause, charge: Charge, share: f64) {
        let at_place = self
            .places
            .get(&key.place)
            .map_or(&[][..], |place| &place.stacks);
        let stacks = match &key.from {
            Some(from) => &[(*from, 1.0)][..],
            None => at_place,
        };
        let total: f64 = stacks.iter().map(|(_, time)| time).sum();
        let mut put = |stack: Option<StackId>, share: f64| {
            let key = ChargeKey {
                cause,
                tid: key.tid,
                stack,
                object: key.object,
            };
            let entry = self.out.off.entry(key).or_default();
            entry.ns += charge.ns * share;
            entry.count += charge.count;
        };
        if total > 0.0 {
            for &(stack, time) in stacks {
                put(Some(stack), share * time / total);
            }
        } else {
            put(None, share);
        }
    }

    fn settle_throttling(&mut self) {
        // Stranded: runnable on an idle CPU without a wake-up under way. What a quota explains has
        // been moved to `stolen` already; the rest is a placement that did not happen.
        let quota = ChargeKey {
            cause: Cause::Stolen,
            tid: 0,
            stack: None,
            object: QUOTA,
        };
        let throttled = self.out.off.get(&quota).map_or(0.0, |charge| charge.ns);
        let from_stranded = throttled.min(self.stranded_ns);
        let left = self.stranded_ns - from_stranded;
        if left > 0.0 {
            let key = ChargeKey {
                cause: Cause::Placement,
                tid: 0,
                stack: None,
                object: 0,
            };
            self.out.off.entry(key).or_default().ns += left;
        }
        let over = throttled - from_stranded;
        let placed: f64 = self.total(Cause::Placement);
        if over > 0.0 && placed > 0.0 {
            let keep = 1.0 - (over / placed).min(1.0);
            for (key, charge) in &mut self.out.off {
                if key.cause == Cause::Placement {
                    charge.ns *= keep;
                }
            }
        }
        // Name placement by what ran meanwhile on the crowded CPUs.
        let placed = self.total(Cause::Placement);
        if placed > 0.0 && !self.placement_weights.is_empty() {
            self.out.off.retain(|key, _| key.cause != Cause::Placement);
            spread(
                &mut self.out.off,
                Cause::Placement,
                placed,
                &self.placement_weights,
            );
        }
    }

    fn total(&self, cause: Cause) -> f64 {
        let of_cause = self.out.off.iter().filter(|(key, _)| key.cause == cause);
        of_cause.map(|(_, charge)| charge.ns).sum()
    }

    fn settle_samples(&mut self) {
        if self.sampled_ns <= 0.0 {
            return;
        }
        // A quota takes CPUs from the code that would have gone on running.
        let quota = ChargeKey {
            cause: Cause::Stolen,
            tid: 0,
            stack: None,
            object: QUOTA,
        };
        if let Some(taken) = self.out.off.remove(&quota) {
            for (&(_, tid, stack), charge) in &self.out.on {
                let key = ChargeKey {
                    tid,
                    stack: Some(stack),
                    ..quota
                };
                let share = self.out.off.entry(key).or_default();
                share.ns += taken.ns * charge.ns / self.sampled_ns;
                share.count += taken.count;
            }
        }
        for charge in self.out.on.values_mut() {
            charge.ns *= self.out.on_cpu_ns / self.sampled_ns;
        }
    }
}

fn spread(
    into: &mut FxHashMap<ChargeKey, Charge>,
    cause: Cause,
    ns: f64,
    weights: &FxHashMap<(Tid, StackId), f64>,
) {
    if ns <= 0.0 {
        return;
    }
    let total: f64 = weights.values().sum();
    if total <= 0.0 {
        let key = ChargeKey {
            cause,
            tid: 0,
            stack: None,
            object: 0,
        };
        into.entry(key).or_default().ns += ns;
        return;
    }
    for (&(tid, stack), weight) in weights {
        let key = ChargeKey {
            cause,
            tid,
            stack: Some(stack),
            object: 0,
        };
        let charge = into.entry(key).or_default();
        charge.ns += ns * weight / total;
        charge.count += 1;
    }
}
