//! How much of a cache Linux looks at for a woken task.

use crate::affine::Search;
use crate::answer::{Cost, Waking};
use crate::bounded::idle_core;
use crate::find::usable;
use crate::{CpuId, CpuState, View};

/// Linux' search for an idle CPU: a whole idle core if there may be one, else some CPUs in order.
///
/// # Source
/// `select_idle_core` and `select_idle_cpu`; the limits are those of `SIS_PROP` (P. Zijlstra, Linux 4.12) and
/// `SIS_UTIL` (Chen Yu, Linux 6.0).
///
/// # Cost model
/// O(LLC): with [`Scan::Utilisation`] less the busier the cache is, nothing from 85 % on.
///
/// # Known bad case
/// [`Scan::Proportional`]: many short idle periods: four CPUs are looked at for each wake-up, whether or not any is
/// idle, and others that are idle are missed. [`Scan::Utilisation`]: above 85 % the remaining idle CPUs are not looked for.
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
        let may_have_core = view.has_idle_core(llc);
        let is_full = *self == Scan::Utilisation && Scan::limit(view.utilisation(llc), cpus) == 0;
        if may_have_core {
            return match is_full {
                true => None,
                false => idle_core(view, task, target, cost),
            };
        }
        let limit = match self {
            Scan::Proportional => state.scan_worth(cpus).clamp(4, cpus.max(4).into()) as u32,
            Scan::Utilisation => Scan::limit(view.utilisation(llc), cpus),
        };
        let mut seen = 0;
        let behind = machine.scan_from(target).skip(1).take(limit as usize);
        let found = behind.into_iter().find(|&cpu| {
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
    use super::*;

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
