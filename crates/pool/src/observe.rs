//! What waited where inside of a pool: as numbers, and in the form of `amdahl locks`.

use std::sync::atomic::Ordering as StdOrdering;

use serde_json::{Value, json};

use crate::pool::Pool;
use crate::registry::Registry;
use crate::sync::Ordering;
use crate::waits::{self, P99_ERROR, WaitCount, Waits};

/// Waits at one place of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolWaits {
    /// What was waited for.
    pub what: &'static str,
    /// How many such places were added up: queues of CPUs, for instance.
    pub places: u64,
    /// Their waits.
    pub count: WaitCount,
}

/// What a pool is doing, and what it did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolState {
    /// Workers that run something.
    pub busy: u32,
    /// Workers that look for work.
    pub searching: u32,
    /// Workers that sleep.
    pub sleeping: u32,
    /// Threads of the program that work in the pool.
    pub guests: u32,
    /// How many may run, as [`Pool::threads`] says.
    pub limit: u32,
    /// Others take the CPUs away: nobody spins.
    pub is_crowded: bool,
    /// How helpers of parallel ranges are lowered.
    pub lowering: crate::Lowering,
    /// How often work was given to another CPU because its own had gone.
    pub taken_over: u64,
    /// How often something escaped from work and the worker went on.
    pub restarts: u64,
}

impl Pool {
    /// What the pool is doing now.
    pub fn state(&self) -> PoolState {
        let registry = &self.registry;
        let counts = registry.counts.load();
        PoolState {
            busy: counts.awake().saturating_sub(counts.searching()),
            searching: counts.searching(),
            sleeping: counts.sleeping(),
            guests: counts.guests(),
            limit: counts.limit(),
            is_crowded: registry.crowd.is_crowded(),
            lowering: crate::priority::lowering(),
            taken_over: registry.homeless.taken_over.load(StdOrdering::Relaxed),
            restarts: registry.restarts.load(Ordering::Relaxed),
        }
    }

    /// The waits inside of the pool since it was made, longest in all first: of every queue and lock, and of those who wait
    /// for work or its end. Handles and channels belong to no pool; theirs are of the whole process. Free locks and queues count nothing
    /// and cost nothing; a wait costs two looks at the clock. O(CPUs).
    pub fn waits(&self) -> Vec<PoolWaits> {
        let registry = &self.registry;
        let workers = &registry.slots[..registry.cpus() as usize];
        let queues = registry
            .queues
            .iter()
            .chain([&registry.high, &registry.low]);
        let all = queues
            .map(|queue| queue.waits())
            .chain(workers.iter().map(|slot| slot.bound.waits()))
            .chain(registry.slots.iter().map(|slot| &slot.helping.waits))
            .chain(registry.lock_waits())
            .chain([
                registry.offers.waits(),
                &registry.range_locks,
                &registry.scope_locks,
                &waits::HANDLES,
                &waits::CHANNELS,
            ])
            .chain(registry.partner_waits());
        let mut rows: Vec<PoolWaits> = Vec::new();
        for waits in all {
            let count = waits.count();
            match rows.iter_mut().find(|row| row.what == waits.what) {
                Some(row) => {
                    row.places += 1;
                    row.count = row.count.plus(count);
                }
                None => rows.push(PoolWaits {
                    what: waits.what,
                    places: 1,
                    count,
                }),
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.count.total_ns));
        rows
    }

    /// The waits as `result.json` of `amdahl locks` (schema `amdahl.locks/1`), which `amdahl report` shows and
    /// `amdahl compare` compares.
    pub fn waits_json(&self) -> String {
        let seconds = self.registry.now_ns() as f64 / 1e9;
        let partners = self.registry.partner_waits().map(|waits| waits.what);
        let rows: Vec<Value> = self
            .waits()
            .iter()
            .filter(|row| row.count.times > 0)
            .map(|row| row_of(row, !partners.contains(&row.what)))
            .collect();
        let workers = self.registry.cpus();
        let result = json!({
            "schema": "amdahl.locks/1",
            "amdahl_version": env!("CARGO_PKG_VERSION"),
            "target": format!("pool `{}` of process {}", self.registry.settings.name, std::process::id()),
            "seconds": seconds,
            "by": "type",
            "p99_error": P99_ERROR,
            "machine": { "cpus_online": workers, "cpus_allowed": self.registry.online_mask().count(), "topology": format!("policy {}", self.registry.policy.name()) },
            "sources": [{
                "what": "waits",
                "how": "counted by the pool itself",
            }],
            "rows": rows,
            "events": self.waits().iter().map(|row| row.count.times).sum::<u64>(),
        });
        format!("{result:#}\n")
    }
}

fn row_of(row: &PoolWaits, is_lock: bool) -> Value {
    let s = |ns: u64| ns as f64 / 1e9;
    let count = row.count;
    json!({
        "what": format!("pool: {}", row.what),
        "class": if is_lock { "lock" } else { "partner" },
        "site": { "symbol": "amdahl_pool", "module": "amdahl-pool" },
        "pid": std::process::id(),
        "times": count.times,
        "sleeps": count.sleeps,
        "total_s": s(count.total_ns),
        "max_s": s(count.max_ns),
        "mean_s": s(count.total_ns) / count.times as f64,
        "p99_s": s(count.p99_ns),
        "locks": row.places,
    })
}

impl Registry {
    /// Waits for what has not happened yet, not for who holds something.
    fn partner_waits(&self) -> [&Waits; 9] {
        [
            &self.sleeps,
            &self.join_waits,
            &self.range_waits,
            &self.guest_waits,
            &self.flushes,
            &self.offline,
            &waits::HANDLE_JOINS,
            &waits::SENDERS,
            &waits::RECEIVERS,
        ]
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use std::sync::Arc;

    use amdahl_topology::{CpuSet, Topology};

    use super::*;
    use crate::SimulatedCpus;

    fn pool() -> (Arc<Pool>, SimulatedCpus) {
        let cpus = SimulatedCpus::new(Topology::synthetic("2 core").unwrap());
        let builder = Pool::builder().cpus(cpus.clone()).follows_load(false);
        (Arc::new(builder.build().unwrap()), cpus)
    }

    fn times(pool: &Pool, what: &str) -> u64 {
        let waits = pool.waits();
        let row = waits.iter().find(|row| row.what == what);
        row.unwrap_or_else(|| panic!("no row `{what}`")).count.times
    }

    /// Somebody else does `waits`, is seen asleep in it, and goes on after `then`. Whether that was counted.
    fn is_counted(pool: &Arc<Pool>, what: &str, waits: impl FnOnce() + Send, then: impl FnOnce()) {
        let before = times(pool, what);
        std::thread::scope(|scope| {
            let (to, from) = std::sync::mpsc::channel();
            let waiter = scope.spawn(move || {
                to.send(crate::sys::thread_id()).unwrap();
                drop(to);
                waits();
            });
            let thread = from.recv().unwrap();
            while !crate::sys::is_asleep(thread) {
                std::thread::yield_now();
            }
            then();
            waiter.join().unwrap();
        });
        assert!(times(pool, what) > before, "{what}");
    }

    /// Half of the locks, and who waits for work to end, were in no row.
    #[test]
    fn every_wait_is_in_a_row() {
        let (pool, cpus) = pool();
        let registry = pool.registry.clone();
        let control = registry.control.lock();
        is_counted(
            &pool,
            "changes of the CPUs",
            || pool.refresh(),
            || drop(control),
        );
        let roaming = registry.hold_roaming();
        let asks = || drop(registry.roaming());
        is_counted(&pool, "where workers may be", asks, || drop(roaming));
        let helping = registry.slots[0].helping.lock();
        let helps = || drop(registry.slots[0].helping.lock());
        is_counted(&pool, "priority of a helper", helps, || drop(helping));
        let works = registry.homeless.works.lock();
        let adopts = || registry.adopt(0);
        is_counted(&pool, "work without a CPU", adopts, || drop(works));

        let gate = || {
            let (to, from) = std::sync::mpsc::channel::<()>();
            (to, move || assert!(from.recv().is_err()))
        };
        let (open, blocks) = gate();
        let handle = pool.spawn(blocks);
        let joins = || handle.join().unwrap();
        is_counted(&pool, "threads outside: end of work", joins, || drop(open));
        let (open, blocks) = gate();
        drop(pool.queue_on(&CpuSet::from_iter([0]), blocks));
        is_counted(&pool, "flush", || pool.flush(), || drop(open));
        let (to, from) = crate::channel::<()>(1);
        let receives = || assert!(from.recv().is_err());
        is_counted(&pool, "channels: receivers asleep", receives, || drop(to));
        let (to, from) = crate::channel(1);
        to.send(()).unwrap();
        let sends = || assert!(to.send(()).is_err());
        is_counted(&pool, "channels: senders asleep", sends, || drop(from));

        cpus.set_allowed(CpuSet::from_iter([0]));
        pool.refresh();
        let offline = times(&pool, "worker without a CPU");
        let slot = &registry.slots[1];
        while !crate::sys::is_asleep(slot.thread_id.load(Ordering::Relaxed))
            || registry.online_mask().test(1)
        {
            std::thread::yield_now();
        }
        cpus.set_allowed(CpuSet::from_iter([0, 1]));
        pool.refresh();
        while times(&pool, "worker without a CPU") == offline {
            // It may have slept for want of work, and not have seen yet that its CPU had gone.
            pool.queue_on(&CpuSet::from_iter([1]), || ())
                .join()
                .unwrap();
            cpus.set_allowed(CpuSet::from_iter([0]));
            pool.refresh();
            std::thread::yield_now();
            cpus.set_allowed(CpuSet::from_iter([0, 1]));
            pool.refresh();
        }
    }
}
