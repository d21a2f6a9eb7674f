//! Counters beside what people count with.

use std::arch::asm;
use std::cell::Cell;
use std::hint::black_box;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use amdahl_figures::{Figure, Target, Unit};
use amdahl_spread::{Counter, LlcMap, Placement};
use amdahl_topology::Topology;
use contatori::counters::unsigned::Unsigned;
use crossbeam_utils::CachePadded;

use super::measure::{Contender, label, race, ratio, ratio_to_fastest, time};
use crate::Effort;

thread_local! {
    static LOCAL: Cell<u64> = const { Cell::new(0) };
}

static STATIC: LazyLock<Counter> = LazyLock::new(Counter::new);

/// Keeps the compiler from making one addition of many; no instruction.
#[inline(always)]
fn barrier() {
    // SAFETY: does nothing.
    unsafe { asm!("", options(nostack, preserves_flags)) };
}

#[inline(always)]
fn times(n: u64, mut once: impl FnMut()) {
    for _ in 0..n {
        once();
        barrier();
    }
}

/// The value passes through a place that the compiler knows nothing of: on some processors the faster way to write this loop, as they need not
/// wait for what they have just stored at a segment's address; on others the next is.
#[inline(never)]
fn thread_local(n: u64) {
    for _ in 0..n {
        LOCAL.with(|local| local.set(black_box(local.get().wrapping_add(1))));
    }
}

/// One instruction, `inc` at the segment's address, as in code that does other things between.
#[inline(never)]
fn thread_local_inc(n: u64) {
    times(n, || LOCAL.set(LOCAL.get().wrapping_add(1)));
}

/// What other work does in 10 to 20 ns: nothing with memory.
#[inline(always)]
fn work(n: u64) -> u64 {
    let mut x = n;
    for _ in 0..16 {
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (x >> 29);
    }
    x
}

#[inline(never)]
fn amid_work(n: u64, mut once: impl FnMut()) {
    for n in 0..n {
        black_box(work(n));
        once();
        barrier();
    }
}

#[inline(never)]
fn spread(counter: &Counter, n: u64) {
    times(n, || counter.add(1));
}

#[inline(never)]
fn spread_static(n: u64) {
    times(n, || STATIC.add(1));
}

#[inline(never)]
fn atomic(counter: &AtomicU64, n: u64) {
    times(n, || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
}

/// One of several atomics, found by an index that does not change.
#[inline(never)]
fn shard(shards: &[CachePadded<AtomicU64>], index: usize, n: u64) {
    times(n, || {
        shards[index].fetch_add(1, Ordering::Relaxed);
    });
}

fn padded(shards: usize) -> Vec<CachePadded<AtomicU64>> {
    (0..shards).map(|_| CachePadded::default()).collect()
}

pub fn figures(effort: &Effort, threads: usize) -> Vec<Figure> {
    let mut figures = Vec::new();
    for threads in 1..=threads {
        figures.extend(adding(effort, threads));
        figures.extend(adding_amid_work(effort, threads));
    }
    figures.extend(independent(&figures, threads));
    figures.extend(reading(effort));
    figures
}

const PER_CPU: &str = "Counter per CPU";
const PER_LLC: &str = "Counter per LLC";
const THREAD_LOCAL: &str = "thread-local Cell";
const THREAD_LOCAL_INC: &str = "thread-local Cell as one inc";
const SHARED: &str = "shared AtomicU64";
const WORK: &str = "work alone";
const WORK_LOCAL: &str = "work and a thread-local Cell";
const WORK_PER_CPU: &str = "work and a Counter per CPU";
const WORK_PER_LLC: &str = "work and a Counter per LLC";
const WORK_SHARD: &str = "work and a padded shard of the LLC";
const SHARD: &str = "padded shard of the LLC";

fn adding(effort: &Effort, threads: usize) -> Vec<Figure> {
    let (per_cpu, per_llc) = (Counter::with(Placement::PerCpu), Counter::per_llc());
    let shared = CachePadded::new(AtomicU64::new(0));
    let (of_llc, of_threads) = (padded(1), padded(threads));
    let contatori = Unsigned::new();
    let contenders = [
        Contender::new(THREAD_LOCAL, |_, n| thread_local(n)),
        Contender::new(THREAD_LOCAL_INC, |_, n| thread_local_inc(n)),
        Contender::new(PER_CPU, |_, n| spread(&per_cpu, n)),
        Contender::new("Counter per CPU in a static", |_, n| spread_static(n)),
        Contender::new(SHARED, |_, n| atomic(&shared, n)),
        Contender::new(PER_LLC, |_, n| spread(&per_llc, n)),
        Contender::new(SHARD, |_, n| shard(&of_llc, black_box(0), n)),
        Contender::new("padded shard of the thread", |thread, n| {
            shard(&of_threads, thread, n)
        }),
        Contender::new("contatori", |_, n| times(n, || contatori.add(1))),
    ];
    eprintln!("spread: counters, {threads} threads");
    let times = race(effort, threads, &contenders);
    let label = label(threads);
    let mut figures = vec![ratio_to_fastest(
        &times,
        PER_CPU,
        &[THREAD_LOCAL, THREAD_LOCAL_INC],
        &label,
        Target::AtMost(1.1),
    )];
    if threads > 1 {
        figures.push(ratio(
            &times,
            SHARED,
            PER_CPU,
            &label,
            Target::AtLeast(20.0),
        ));
        // What the same threads would gain with nothing shared at all: a counter that can be read cannot do better.
        figures.push(ratio(&times, SHARED, THREAD_LOCAL, &label, Target::Stated));
    }
    figures.push(ratio(&times, PER_LLC, SHARD, &label, Target::AtMost(1.5)));
    figures.extend(contenders.iter().map(|c| time(&times, c.name, &label)));
    figures
}

/// A loop whose threads do something else most of the time is never in the lucky state in which one of
/// them keeps the line for several additions.
fn adding_amid_work(effort: &Effort, threads: usize) -> Vec<Figure> {
    let (per_cpu, per_llc) = (Counter::with(Placement::PerCpu), Counter::per_llc());
    let shared = CachePadded::new(AtomicU64::new(0));
    let of_llc = padded(1);
    let contenders = [
        Contender::new(WORK, |_, n| amid_work(n, || ())),
        Contender::new(WORK_LOCAL, |_, n| {
            amid_work(n, || LOCAL.set(LOCAL.get().wrapping_add(1)))
        }),
        Contender::new(WORK_PER_CPU, |_, n| amid_work(n, || per_cpu.add(1))),
        Contender::new(WORK_PER_LLC, |_, n| amid_work(n, || per_llc.add(1))),
        Contender::new(WORK_SHARD, |_, n| {
            let index = black_box(0);
            amid_work(n, || {
                of_llc[index].fetch_add(1, Ordering::Relaxed);
            })
        }),
        Contender::new("work and a shared AtomicU64", |_, n| {
            amid_work(n, || {
                shared.fetch_add(1, Ordering::Relaxed);
            })
        }),
    ];
    let times = race(effort, threads, &contenders);
    let label = label(threads);
    let row = |contender: &Contender| time(&times, contender.name, &label);
    let beside = |of, to, most| ratio(&times, of, to, &label, Target::AtMost(most));
    let ratios = [
        beside(WORK_PER_CPU, WORK_LOCAL, 1.1),
        beside(WORK_PER_LLC, WORK_SHARD, 1.5),
    ];
    let rows = contenders.iter().map(row);
    ratios.into_iter().chain(rows).collect()
}

/// What this machine gives to threads that share nothing: CPUs may be two threads of one core, or taken away.
fn independent(figures: &[Figure], threads: usize) -> Option<Figure> {
    let wall = |threads| {
        let name = format!("spread: {WORK}, {}", label(threads));
        let row = figures.iter().find(|figure| figure.name == name)?;
        row.value.as_ref().ok().copied()
    };
    let (one, all) = (wall(1)?, wall(threads)?);
    (threads > 1).then(|| Figure {
        name: format!("spread: throughput of {threads} threads that share nothing / of one"),
        value: Ok(threads as f64 * one / all),
        unit: Unit::Ratio,
        target: Target::Stated,
        versus: "the rows of work alone".to_owned(),
    })
}

fn reading(effort: &Effort) -> Vec<Figure> {
    let large = Topology::synthetic("8 node x 4 llc x 8 core x 2 thread").expect("valid");
    let large = std::sync::Arc::new(LlcMap::new(&large, 512));
    let here = LlcMap::of_this_machine();
    let counters = [
        Counter::on(Placement::PerCpu, here.clone()),
        Counter::on(Placement::PerLlc, here),
        Counter::on(Placement::PerCpu, large.clone()),
        Counter::on(Placement::PerLlc, large),
    ];
    let names = [
        "read per CPU, this machine",
        "read per LLC, this machine",
        "read per CPU, 512 CPUs",
        "read per LLC, 32 LLCs",
    ];
    let contenders: Vec<Contender> = names
        .iter()
        .zip(&counters)
        .map(|(&name, counter)| {
            Contender::new(name, move |_, n| {
                times(n, || {
                    black_box(counter.read());
                })
            })
        })
        .collect();
    let times = race(effort, 1, &contenders);
    let label = "parts in the cache of one thread";
    names.map(|name| time(&times, name, label)).to_vec()
}
