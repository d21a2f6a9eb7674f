//! Slots to events.

use amdahl_probe::bpf::wire::{Slot, flag, kind};
use amdahl_sched::event::{CpuId, Event, Ns, Off, Tid, Waker};
use amdahl_topology::CpuSet;
use rustc_hash::FxHashMap;

use super::facts;

/// Threads of which is remembered what was told about them.
const KNOWN_MAX: usize = 1 << 18;

#[derive(Clone, Debug)]
struct Known {
    /// On how many CPUs it may run.
    allowed: u32,
    /// On which, if they are not all and that was told.
    cpus: Option<CpuSet>,
}

/// A thread's name and affinity, from outside.
type Look = fn(Tid, &CpuSet) -> (Option<String>, Option<CpuSet>);

/// Turns slots into events, and tells who a thread is before its first one.
pub struct Decoder {
    /// Every thread of the machine is recorded.
    is_everyone: bool,
    online: CpuSet,
    known: FxHashMap<Tid, Known>,
    /// Slots that each CPU had lost when last told.
    lost: FxHashMap<CpuId, u64>,
    look: Look,
}

impl Decoder {
    pub fn new(is_everyone: bool, online: CpuSet) -> Decoder {
        Decoder {
            is_everyone,
            online,
            known: FxHashMap::default(),
            lost: FxHashMap::default(),
            look: |tid, online| (facts::name_of(tid), facts::allowed(tid, online)),
        }
    }

    /// A thread that was there before.
    pub fn attach(
        &mut self,
        ts: Ns,
        pid: Tid,
        tid: Tid,
        name: &str,
        is_kernel: bool,
        out: &mut Vec<Event>,
    ) {
        let cpus = facts::allowed(tid, &self.online);
        let allowed = cpus.as_ref().map_or(self.online.len(), CpuSet::len) as u32;
        self.known.insert(
            tid,
            Known {
                allowed,
                cpus: cpus.clone(),
            },
        );
        out.push(Event::Thread {
            ts,
            tid,
            pid,
            is_kernel,
            name: name.into(),
        });
        if cpus.is_some() {
            out.push(Event::Allowed { ts, tid, cpus });
        }
    }

    /// The events of one slot, in order.
    pub fn slot(&mut self, slot: &Slot, out: &mut Vec<Event>) {
        let Slot {
            ts,
            cpu,
            tid,
            other,
            place,
            ..
        } = *slot;
        match slot.kind {
            kind::SCHED_SWITCH => self.switch(slot, out),
            kind::SCHED_WAKE => {
                self.meet(slot, tid, 0, out);
                let waker = match slot.flags {
                    flags if flags & flag::WAKER_TIMER != 0 => Waker::Timer,
                    flags if flags & flag::WAKER_IRQ != 0 => Waker::Interrupt,
                    _ => Waker::Thread(other),
                };
                out.push(Event::Waking {
                    ts,
                    tid,
                    waker,
                    cpu,
                    last_cpu: place,
                });
            }
            kind::SCHED_MIGRATE => {
                // Who may run on one CPU only is taken there; who is taken to where it might not run before may run on others now, if
                // on as many.
                if slot.syscall == 1 {
                    let cpus = Some(CpuSet::from_iter([cpu]));
                    let known = Known {
                        allowed: 1,
                        cpus: cpus.clone(),
                    };
                    self.known.insert(tid, known);
                    out.push(Event::Allowed { ts, tid, cpus });
                } else if let Some(known) = self.known.get_mut(&tid)
                    && known.cpus.as_ref().is_some_and(|cpus| !cpus.contains(cpu))
                {
                    // No number of CPUs: it is looked at again.
                    known.allowed = 0;
                    self.meet(slot, tid, 0, out);
                }
                out.push(Event::Migrate {
                    ts,
                    tid,
                    from: place,
                    to: cpu,
                });
            }
            kind::SCHED_NEW => {
                self.known.remove(&tid);
                out.push(Event::Fork {
                    ts,
                    parent: other,
                    child: tid,
                    pid: place,
                    cpu,
                });
                self.name(slot, out);
                self.meet(slot, tid, place, out);
            }
            kind::SCHED_NAME => self.name(slot, out),
            _ => {}
        }
    }

    fn switch(&mut self, slot: &Slot, out: &mut Vec<Event>) {
        let Slot {
            ts,
            cpu,
            tid,
            other,
            flags,
            ..
        } = *slot;
        let lost = self.lost.entry(cpu).or_insert(slot.arg[0]);
        let count = slot.arg[0].saturating_sub(*lost);
        *lost = slot.arg[0];
        if count > 0 {
            out.push(Event::Lost { ts, cpu, count });
        }
        let is_ours = flags & flag::SCHED_OURS != 0;
        if tid != 0 {
            self.meet(slot, tid, if is_ours { slot.place } else { 0 }, out);
        }
        let off = if flags & flag::SCHED_EXITED != 0 {
            Off::Exited
        } else if flags & flag::SCHED_RUNNABLE != 0 && (is_ours || self.is_everyone) {
            if flags & flag::SCHED_YIELDED != 0 {
                Off::Yielded
            } else {
                Off::Preempted
            }
        } else {
            // What strangers do off their CPU is not recorded.
            Off::Blocked {
                in_iowait: flags & flag::SCHED_IOWAIT != 0,
                uninterruptible: flags & flag::SCHED_UNINT != 0,
            }
        };
        out.push(Event::Switch {
            ts,
            cpu,
            prev: tid,
            off,
            next: other,
        });
        if off == Off::Exited {
            self.known.remove(&tid);
        }
    }

    fn name(&mut self, slot: &Slot, out: &mut Vec<Event>) {
        out.push(Event::Thread {
            ts: slot.ts,
            tid: slot.tid,
            pid: slot.place,
            is_kernel: slot.lock_kind != 0,
            name: slot.comm().into(),
        });
    }

    /// Tells who a thread is that was not seen before, and where it may run if that has changed.
    fn meet(&mut self, slot: &Slot, tid: Tid, pid: Tid, out: &mut Vec<Event>) {
        let ts = slot.ts;
        let allowed = slot.syscall.max(0).cast_unsigned();
        let before = self.known.get(&tid).map(|known| known.allowed);
        let everywhere = self.online.len() as u32;
        let is_same = |before: u32| before == allowed || before.min(allowed) >= everywhere;
        if before.is_some_and(is_same) {
            return;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(
            tid,
            Known {
                allowed,
                cpus: None,
            },
        );
        let is_restricted = allowed > 0 && allowed < everywhere;
        let is_new = before.is_none() && slot.kind != kind::SCHED_NEW;
        if !is_new && !is_restricted && before.is_none() {
            return;
        }
        let (name, cpus) = (self.look)(tid, &self.online);
        if is_new && (pid != 0 || name.is_some()) {
            let name = name.unwrap_or_default().into();
            let is_kernel = slot.lock_kind != 0;
            out.push(Event::Thread {
                ts,
                tid,
                pid,
                is_kernel,
                name,
            });
        }
        if is_restricted {
            // A thread that is gone and had one CPU had that on which it was seen.
            let here = if slot.kind == kind::SCHED_WAKE {
                slot.place
            } else {
                slot.cpu
            };
            let alone = (allowed == 1).then(|| CpuSet::from_iter([here]));
            let fits = cpus.filter(|cpus| cpus.len() as u32 == allowed);
            if let Some(cpus) = fits.or(alone) {
                if let Some(known) = self.known.get_mut(&tid) {
                    known.cpus = Some(cpus.clone());
                }
                out.push(Event::Allowed {
                    ts,
                    tid,
                    cpus: Some(cpus),
                });
            }
        } else if before.is_some() {
            out.push(Event::Allowed {
                ts,
                tid,
                cpus: None,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder(is_everyone: bool) -> Decoder {
        Decoder {
            look: |tid, _| (Some(format!("t{tid}")), Some(CpuSet::from_iter([1, 3]))),
            ..Decoder::new(is_everyone, CpuSet::from_iter([0, 1, 2, 3]))
        }
    }

    fn slot(kind: u8, flags: u8, allowed: i32) -> Slot {
        Slot {
            ts: 9,
            kind,
            flags,
            tid: 5,
            other: 6,
            cpu: 2,
            place: 4,
            syscall: allowed,
            ..Slot::default()
        }
    }

    fn events(decoder: &mut Decoder, slot: &Slot) -> Vec<Event> {
        let mut out = Vec::new();
        decoder.slot(slot, &mut out);
        out
    }

    #[test]
    fn a_thread_is_named_once_and_its_affinity_told_when_it_changes() {
        let mut decoder = decoder(true);
        let first = events(&mut decoder, &slot(kind::SCHED_SWITCH, flag::SCHED_OURS, 4));
        assert!(matches!(
            &first[..],
            [
                Event::Thread { tid: 5, pid: 4, .. },
                Event::Switch {
                    prev: 5,
                    next: 6,
                    ..
                }
            ]
        ));
        assert_eq!(events(&mut decoder, &slot(kind::SCHED_WAKE, 0, 8)).len(), 1);
        let pinned = events(&mut decoder, &slot(kind::SCHED_WAKE, 0, 1));
        assert_eq!(
            pinned[0],
            Event::Allowed {
                ts: 9,
                tid: 5,
                cpus: Some(CpuSet::from_iter([4]))
            }
        );
        let two = events(&mut decoder, &slot(kind::SCHED_WAKE, 0, 2));
        assert_eq!(
            two[0],
            Event::Allowed {
                ts: 9,
                tid: 5,
                cpus: Some(CpuSet::from_iter([1, 3]))
            }
        );
        let free = events(&mut decoder, &slot(kind::SCHED_WAKE, 0, 4));
        assert_eq!(
            free[0],
            Event::Allowed {
                ts: 9,
                tid: 5,
                cpus: None
            }
        );
    }

    #[test]
    fn who_may_run_on_as_many_other_cpus_is_told_when_it_goes_there() {
        let mut decoder = decoder(true);
        let first = events(&mut decoder, &slot(kind::SCHED_WAKE, 0, 2));
        let allowed = |events: &[Event]| {
            let mut found = events.iter().filter_map(|event| match event {
                Event::Allowed { cpus, .. } => Some(cpus.clone()),
                _ => None,
            });
            (found.next(), found.next())
        };
        let odd = Some(Some(CpuSet::from_iter([1, 3])));
        assert_eq!(allowed(&first), (odd, None));
        let to = |cpu| Slot {
            cpu,
            ..slot(kind::SCHED_MIGRATE, 0, 2)
        };
        assert_eq!(allowed(&events(&mut decoder, &to(3))), (None, None));
        decoder.look = |_, _| (None, Some(CpuSet::from_iter([0, 2])));
        let moved = events(&mut decoder, &to(2));
        let even = Some(Some(CpuSet::from_iter([0, 2])));
        assert_eq!(allowed(&moved), (even, None));
        assert!(matches!(moved.last(), Some(Event::Migrate { to: 2, .. })));
        // Once.
        assert_eq!(allowed(&events(&mut decoder, &to(0))), (None, None));
    }

    #[test]
    fn strangers_are_never_taken_to_wait() {
        let preempted = slot(kind::SCHED_SWITCH, flag::SCHED_RUNNABLE, 4);
        let theirs = events(&mut decoder(false), &preempted);
        assert!(matches!(
            theirs.last(),
            Some(Event::Switch {
                off: Off::Blocked { .. },
                ..
            })
        ));
        assert!(matches!(theirs[0], Event::Thread { pid: 0, .. }));
        let ours = Slot {
            flags: flag::SCHED_RUNNABLE | flag::SCHED_OURS,
            ..preempted
        };
        let ours = events(&mut decoder(false), &ours);
        assert!(matches!(
            ours.last(),
            Some(Event::Switch {
                off: Off::Preempted,
                ..
            })
        ));
    }

    #[test]
    fn lost_slots_are_told_where_they_are_missing() {
        let mut decoder = decoder(true);
        let switch = |lost| Slot {
            arg: [lost, 0, 0],
            ..slot(kind::SCHED_SWITCH, flag::SCHED_OURS, 4)
        };
        events(&mut decoder, &switch(3));
        let after = events(&mut decoder, &switch(10));
        assert_eq!(
            after[0],
            Event::Lost {
                ts: 9,
                cpu: 2,
                count: 7
            }
        );
    }
}
