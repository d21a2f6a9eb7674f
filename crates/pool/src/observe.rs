//! What waited where inside of a pool: as numbers, and in the form of `amdahl locks`.

use std::sync::atomic::Ordering as StdOrdering;

use serde_json::{Value, json};

use crate::pool::Pool;
use crate::sync::Ordering;
use crate::waits::{P99_ERROR, WaitCount};

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

    /// The waits inside of the pool since it was made, longest in all first. Free locks and queues count nothing
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
            .chain([
                registry.offers.waits(),
                registry.outside_waits(),
                &registry.sleeps,
                &registry.join_waits,
                &registry.range_waits,
            ]);
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
        let rows: Vec<Value> = self
            .waits()
            .iter()
            .filter(|row| row.count.times > 0)
            .map(row)
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

fn row(row: &PoolWaits) -> Value {
    let s = |ns: u64| ns as f64 / 1e9;
    let count = row.count;
    json!({
        "what": format!("pool: {}", row.what),
        "class": if is_lock(row.what) { "lock" } else { "partner" },
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

/// Whether somebody held it, or something had not happened yet.
fn is_lock(what: &str) -> bool {
    !matches!(what, "idle worker" | "join" | "helpers of a parallel range")
}
