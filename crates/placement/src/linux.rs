//! How much of a cache Linux looks at for a woken task.

use crate::affine::Search;
use crate::answer::{Cost, Waking};
use crate::bounded::{Core, idle_core};
use crate::find::usable;
use crate::{CpuId, CpuState, View};

/// Linux' search for an idle CPU: a whole idle core if there may be one, else some CPUs in order.
///
/// # Source
/// `select_idle_core` and `select_idle_cpu`; the limits are those of `SIS_PROP` (P. Zijlstra, Linux 4.12) and
/// `SIS_UTIL` (Chen Yu, Linux 6.0). The older one forgets an idle CPU that the search for a core has seen, begins
/// with the target, which is known to be busy, and ends before the last CPU of its limit (`if (!--nr) return -1`):
/// of four it looks at two others. The newer one (from 5.12 on) has none of these three.
///
/// # Cost model
/// O(LLC): with [`Scan::Utilisation`] less the busier the cache is, nothing from 85 % on.
///
/// # Known bad case
/// [`Scan::Proportional`]: many short idle periods: two other CPUs are looked at for each wake-up, and all others that
/// are idle are missed. [`Scan::Utilisation`]: above 85 % the remaining idle CPUs are not looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// As many CPUs as the average idle time pays for, at least four.
    Proportional,
    /// The fewer, the busier the cache has been.
    Utilisation,
}

impl Scan {
    /// The `imbalance_pct` of the LLC's domain.
    const IMBALANCE: u64 = 117;

    /// How many CPUs of a cache of `cpus` that was used for `utilisation` of 1024 are looked at: parabolically
    /// fewer, none from 1024 / 117 % on.
    pub fn limit(utilisation: u32, cpus: u32) -> u32 {
        let used = u64::from(utilisation).pow(2) * Self::IMBALANCE.pow(2) / (10_000 * 1024);
        (1024_u64.saturating_sub(used) * u64::from(cpus) / 1024) as u32
    }
}

impl Search for Scan {
    fn search(
        &self,
        state: &mut CpuState,
        view: &dyn View,
        task: &Waking,
        target: CpuId,
        cost: &mut Cost,
    ) -> Option<CpuId> {
        let machine = view.machine();
        let llc = machine.llc(target);
        let cpus = machine.llc_cpus(llc).len() as u32;
        let is_newer = *self == Scan::Utilisation;
        if view.has_idle_core(llc) {
            if is_newer && Scan::limit(view.utilisation(llc), cpus) == 0 {
                return None;
            }
            match idle_core(view, task, target, cost) {
                Core::Idle(cpu) => return Some(cpu),
                Core::Cpu(cpu) if is_newer => return Some(cpu),
                Core::Nothing if is_newer => return None,
                // Forgotten.
                Core::Cpu(_) | Core::Nothing => {}
            }
        }
        let (first, limit) = match self {
            Scan::Proportional => (0, state.scan_worth(cpus).clamp(4, cpus.max(4).into()) - 1),
            Scan::Utilisation => (1, Scan::limit(view.utilisation(llc), cpus).into()),
        };
        let mut seen = 0;
        let around = machine.scan_from(target).skip(first).take(limit as usize);
        let found = around.into_iter().find(|&cpu| {
            seen += 1;
            view.idle().test(cpu) && usable(view, task, cpu)
        });
        cost.examined += seen;
        if *self == Scan::Proportional {
            state.note_scan(seen);
        }
        // Then the own core's other threads.
        found.or_else(|| {
            machine.siblings(target).find(|&cpu| {
                cost.examined += 1;
                view.idle().test(cpu) && usable(view, task, cpu)
            })
        })
    }

    fn misses(&self) -> &'static str {
        match self {
            Scan::Proportional => "the only idle CPU is beyond the few that the search looks at",
            Scan::Utilisation => "a CPU is idle in a cache that was used for more than 85 %",
        }
    }
}

#[cfg(test)]
mod tests {
    use amdahl_topology::Topology;

    use super::*;
    use crate::testing::{Toy, ToyTask};
    use crate::{Machine, policy};

    /// A task runs on each CPU but on those that are `idle`.
    fn busy(machine: &str, idle: &[CpuId]) -> Toy {
        let machine = Machine::new(&Topology::synthetic(machine).unwrap());
        let cpus = machine.cpus();
        let mut toy = Toy::new(machine, policy("groups-apart=1").unwrap());
        for cpu in (0..cpus).filter(|cpu| !idle.contains(cpu)) {
            let last = Some(cpu);
            toy.wake(
                None,
                ToyTask {
                    last,
                    ..ToyTask::new(cpu.into())
                },
            );
        }
        toy
    }

    fn found(scan: Scan, toy: &mut Toy) -> Option<CpuId> {
        let (state, view) = toy.state_mut(0);
        state.idle_ns = 0;
        scan.search(state, view, &Waking::default(), 0, &mut Cost::default())
    }

    /// The kernel of the time counts down before it looks and begins with the target: of four CPUs it sees two others. With all
    /// four the base found idle CPUs that it missed on the machine.
    #[test]
    fn the_old_scan_sees_two_others() {
        // A thread of a core whose other one is busy, so that it is no idle core.
        let machine = "16 core x 2 thread";
        for (nth, seen) in [(1, true), (2, true), (3, false), (4, false)] {
            let all = busy(machine, &[]);
            let idle = all.view().machine().scan_from(0).nth(nth).unwrap();
            let mut toy = busy(machine, &[idle]);
            let hit = found(Scan::Proportional, &mut toy);
            assert_eq!(hit, seen.then_some(idle), "CPU {idle}");
            toy.view_mut().utilisation = Some(0);
            assert_eq!(found(Scan::Utilisation, &mut toy), Some(idle));
        }
    }

    #[test]
    fn a_search_for_a_core_tells_an_idle_thread_from_an_idle_core() {
        let mut toy = busy("4 core x 2 thread", &[5]);
        let task = Waking::default();
        let search = |toy: &Toy| idle_core(toy.view(), &task, 0, &mut Cost::default());
        assert!(matches!(search(&toy), Core::Cpu(5)));
        toy.stop(4);
        assert!(matches!(search(&toy), Core::Idle(4)));
        let all = busy("4 core x 2 thread", &[]);
        assert!(matches!(search(&all), Core::Nothing));
    }

    #[test]
    fn the_scan_ends_at_85_percent() {
        assert_eq!(Scan::limit(0, 112), 112);
        assert_eq!(Scan::limit(512, 112), 73);
        assert_eq!(
            [870, 876, 1024].map(|used| Scan::limit(used, 112)),
            [1, 0, 0]
        );
    }
}
