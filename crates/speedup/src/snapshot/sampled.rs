//! On-CPU samples taken besides the polls, and CPU time divided by them.
//!
//! Who may sample the kernel knows what each nanosecond was spent on, as with events. Who may
//! sample user code only knows that for user time. System time then belongs to the code that
//! calls the kernel: a sample that comes due inside a call where interrupts are off is taken
//! when the call returns, so there are some. How much of it page faults took is told by their
//! number.

use rustc_hash::FxHashMap;

use crate::activity::classify;
use crate::event::{Sample, SampledBy, StackId, StackTable, Tid};
use crate::partition::{Activity, Charge, RunPartition};

type Place = (Activity, Tid, StackId);

/// Samples of one place.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    count: u64,
    /// What they stand for, time or faults.
    weight: u64,
}

impl Seen {
    fn add(&mut self, weight: u64) {
        self.count += 1;
        self.weight += weight;
    }
}

/// Samples of a run.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    /// Samples of time.
    on: FxHashMap<Place, Seen>,
    /// Those of them in which a thread came out of a system call.
    calls: FxHashMap<Place, Seen>,
    faults: FxHashMap<Place, Seen>,
    instructions: FxHashMap<(Tid, StackId), u64>,
    samples: u64,
    sees_kernel: bool,
    /// What ran since the last poll.
    recent: Vec<(Tid, StackId)>,
}

impl Sampled {
    pub(super) fn add(&mut self, sample: &Sample, stacks: &StackTable) {
        let Sample { tid, stack, .. } = *sample;
        match sample.by {
            SampledBy::Instructions(count) => {
                *self.instructions.entry((tid, stack)).or_default() += count;
            }
            SampledBy::PageFaults(count) => {
                let place = (Activity::PageFault, tid, stack);
                self.faults.entry(place).or_default().add(count);
            }
            SampledBy::Time(ns) => {
                let Some(known) = stacks.get(stack.0 as usize) else {
                    return;
                };
                let activity = classify(known, sample.user_mode);
                self.samples += 1;
                self.sees_kernel |= !sample.user_mode;
                let place = (activity, tid, stack);
                self.on.entry(place).or_default().add(ns);
                self.recent.push((tid, stack));
                if known.after_system_call {
                    let activity = match activity {
                        Activity::UserSpin => activity,
                        _ => Activity::Kernel,
                    };
                    let place = (activity, tid, stack);
                    self.calls.entry(place).or_default().add(ns);
                }
            }
        }
    }

    /// What ran since the last call, in order of threads.
    pub(super) fn take_recent(&mut self) -> Vec<(Tid, StackId)> {
        let mut recent = std::mem::take(&mut self.recent);
        recent.sort_unstable();
        recent
    }

    /// There is nothing to divide CPU time by.
    pub(super) fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Divides CPU time among what was sampled.
    pub(super) fn divide(&self, user: f64, system: f64, blank: StackId, out: &mut RunPartition) {
        out.samples = self.samples;
        out.instructions.clone_from(&self.instructions);
        if self.sees_kernel {
            spread(&self.on, user + system, blank, out);
        } else {
            spread(&self.on, user, blank, out);
            spread(&self.calls, system, blank, out);
        }
    }

    /// Takes what page faults took, by their number, out of kernel time.
    pub(super) fn set_faults_apart(&self, ns: f64, blank: StackId, out: &mut RunPartition) {
        let mut kernel: Vec<&mut Charge> = out
            .on
            .iter_mut()
            .filter(|((activity, ..), _)| *activity == Activity::Kernel)
            .map(|(_, charge)| charge)
            .collect();
        let all: f64 = kernel.iter().map(|charge| charge.ns).sum();
        if all <= 0.0 || ns <= 0.0 {
            return;
        }
        let faults = ns.min(all);
        for charge in &mut kernel {
            charge.ns *= 1.0 - faults / all;
        }
        if self.faults.is_empty() {
            let place = (Activity::PageFault, 0, blank);
            let one = Seen {
                count: 1,
                weight: 1,
            };
            spread(&FxHashMap::from_iter([(place, one)]), faults, blank, out);
        } else {
            spread(&self.faults, faults, blank, out);
        }
    }

    /// Where each thread was seen, and how often.
    pub(super) fn by_thread(&self) -> FxHashMap<Tid, Vec<(StackId, f64)>> {
        let mut by_thread: FxHashMap<Tid, Vec<(StackId, f64)>> = FxHashMap::default();
        for (&(_, tid, stack), seen) in &self.on {
            by_thread
                .entry(tid)
                .or_default()
                .push((stack, seen.weight as f64));
        }
        by_thread
    }
}

/// Gives each place its part of `ns`; without a place it is unnamed kernel time.
fn spread(places: &FxHashMap<Place, Seen>, ns: f64, blank: StackId, out: &mut RunPartition) {
    if ns <= 0.0 {
        return;
    }
    let all: f64 = places.values().map(|seen| seen.weight as f64).sum();
    for (&place, seen) in places {
        let charge = out.on.entry(place).or_default();
        charge.ns += ns * seen.weight as f64 / all;
        charge.count += seen.count;
    }
    if places.is_empty() {
        let place = (Activity::Kernel, 0, blank);
        out.on.entry(place).or_default().ns += ns;
    }
}
