//! An outcome as a result.

use amdahl_report::sched::schema::{
    ChainEntry, ChainLink, CpuEntry, Elsewhere, GuestEntry, Latency, Migrations, Picture,
    PictureCpu, PictureThread, SCHEMA, SchedResult, ThreadEntry, Timeline, Timelines, Totals,
    WakerEntry, Wasted, WastedPair,
};
use amdahl_sched::event::{Tid, Waker};
use amdahl_sched::vmm::GuestCpu;
use amdahl_sched::{Analysis, Chain, Histogram, Outcome, Spent, ThreadRow};
use rustc_hash::FxHashMap;

/// Rows of tables that are kept.
const ROWS: usize = 1_000;
/// Threads that the picture can name.
const NAMED: usize = 4_000;
/// Threads that have a timeline: as many as one can see.
const TIMELINES: usize = 300;

fn s(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// All that the outcome tells, with the pictures of `drawn`, whose outcome it is.
pub fn result(outcome: &Outcome, drawn: Option<&Analysis>) -> SchedResult {
    let wall = outcome.wall_ns();
    let totals = outcome.totals;
    let rows: Vec<&ThreadRow> = outcome.threads.iter().filter(|row| row.pid != 0).collect();
    let rest = rows.iter().skip(ROWS);
    SchedResult {
        schema: SCHEMA.to_owned(),
        amdahl_version: env!("CARGO_PKG_VERSION").to_owned(),
        wall_s: s(wall),
        totals: Totals {
            switches: totals.switches,
            preemptions: outcome.cpus.iter().map(|cpu| cpu.preemptions).sum(),
            wakeups: totals.wakeups,
            forks: totals.forks,
            exits: totals.exits,
            migrations: totals.migrations,
            events: totals.events,
            events_lost: totals.lost,
            events_refused: totals.refused,
            switches_mended: totals.mended,
        },
        wake_latency: latency(&outcome.wake_wait, true),
        preempt_latency: latency(&outcome.preempt_wait, true),
        slices: latency(&outcome.slices, true),
        migrations: migrations(outcome.migrations),
        wasted: wasted(outcome),
        cpus: outcome
            .cpus
            .iter()
            .map(|cpu| cpu_entry(cpu, wall))
            .collect(),
        threads: rows.iter().take(ROWS).map(|row| thread(row)).collect(),
        threads_elsewhere: rest.fold(Elsewhere::default(), |sum, row| Elsewhere {
            threads: sum.threads + row.threads,
            run_s: sum.run_s + s(row.run_ns),
            wait_s: sum.wait_s + s(row.wait_ns()),
        }),
        wakers: outcome.wakers.iter().take(ROWS).map(waker).collect(),
        chains: outcome.chains.iter().map(chain).collect(),
        picture: drawn.map(|analysis| picture(&analysis.picture(outcome.end), outcome)),
        timelines: drawn.map(|analysis| timelines(&analysis.timelines(outcome.end), outcome)),
        ..SchedResult::default()
    }
}

fn latency(histogram: &Histogram, has_buckets: bool) -> Latency {
    let buckets = if has_buckets {
        histogram.by_power_of_two()
    } else {
        Vec::new()
    };
    Latency {
        count: histogram.count(),
        total_s: s(histogram.sum_ns()),
        mean_s: s(histogram.mean_ns()),
        p50_s: s(histogram.quantile_ns(0.5)),
        p90_s: s(histogram.quantile_ns(0.9)),
        p99_s: s(histogram.quantile_ns(0.99)),
        max_s: s(histogram.max_ns()),
        histogram: buckets
            .into_iter()
            .map(|(ns, count)| (s(ns), count))
            .collect(),
    }
}

fn migrations([core, llc, node, across, unknown]: [u64; 5]) -> Migrations {
    Migrations {
        core,
        llc,
        node,
        across,
        unknown,
    }
}

fn wasted(outcome: &Outcome) -> Wasted {
    let [affinity_s, placement_s, balancing_s, transient_s] = outcome.wasted.by_reason.map(s);
    let pairs = &outcome.wasted.pairs;
    let rest: u64 = pairs.iter().skip(ROWS).map(|pair| pair.ns).sum();
    Wasted {
        affinity_s,
        placement_s,
        balancing_s,
        transient_s,
        brief_s: s(outcome.wasted.brief_ns),
        brief_limit_s: s(amdahl_sched::BRIEF_NS),
        pairs: pairs
            .iter()
            .take(ROWS)
            .map(|pair| WastedPair {
                idle_cpu: pair.idle,
                busy_cpu: pair.busy,
                reason: pair.reason.id().to_owned(),
                total_s: s(pair.ns),
                stretches: pair.stretches,
                longest_s: s(pair.longest_ns),
            })
            .collect(),
        other_pairs_s: s(rest + outcome.wasted.other_pairs_ns),
    }
}

fn cpu_entry(cpu: &amdahl_sched::CpuRow, wall: u64) -> CpuEntry {
    CpuEntry {
        cpu: cpu.cpu,
        run_s: s(cpu.run_ns),
        idle_s: s(cpu.idle_ns),
        idle_wasted_s: s(cpu.idle_wasted_ns),
        overloaded_s: s(cpu.overloaded_ns),
        switches: cpu.switches,
        preemptions: cpu.preemptions,
        queue_mean: if wall > 0 {
            cpu.queued_ns as f64 / wall as f64
        } else {
            0.0
        },
        queue_max: cpu.queued_max as u64,
        latency: latency(&cpu.wait, false),
        events_lost: cpu.lost,
    }
}

fn thread(row: &ThreadRow) -> ThreadEntry {
    ThreadEntry {
        tid: row.tid,
        pid: row.pid,
        name: row.name.to_string(),
        is_kernel: row.is_kernel,
        threads: row.threads,
        last_cpu: row.last_cpu,
        run_s: s(row.run_ns),
        wait_s: s(row.wait_ns()),
        wasted_s: s(row.wasted_ns),
        sleep_s: s(row.sleep_ns),
        iowait_s: s(row.iowait_ns),
        uninterruptible_s: s(row.uninterruptible.sum_ns()),
        wake_latency: latency(&row.wake_wait, false),
        preempt_latency: latency(&row.preempt_wait, false),
        slices: latency(&row.slices, false),
        preempted: row.preempted,
        yielded: row.yielded,
        blocked: row.blocked,
        migrations: migrations(row.migrations),
        migrations_at_wake: row.migrations_at_wake,
    }
}

fn waker(row: &amdahl_sched::WakeRow) -> WakerEntry {
    WakerEntry {
        waker: row.waker.to_string(),
        woken: row.woken.to_string(),
        count: row.count,
        to_other_llc: row.to_other_llc,
        latency_mean_s: s(row.waited_ns) / row.count.max(1) as f64,
        latency_max_s: s(row.waited_max_ns),
    }
}

fn chain(chain: &Chain) -> ChainEntry {
    let begin = chain.links.first().map_or(0, |link| link.woken_at);
    let began_by = match chain.began_by {
        Some(Waker::Timer) => "timer",
        Some(Waker::Interrupt) => "interrupt",
        Some(Waker::Thread(_)) | None => "thread",
    };
    ChainEntry {
        total_s: s(chain.ns()),
        began_by: began_by.to_owned(),
        is_cut: chain.is_cut,
        links: chain
            .links
            .iter()
            .map(|link| ChainLink {
                tid: link.tid,
                name: link.name.to_string(),
                woken_s: s(link.woken_at.saturating_sub(begin)),
                waited_s: s(link.waited_ns),
                active_s: s(link.active_ns),
            })
            .collect(),
    }
}

/// Threads that are CPUs of guests, as `guest_cpu` says.
pub fn guests(
    outcome: &Outcome,
    guest_cpu: impl Fn(&ThreadRow) -> Option<GuestCpu>,
) -> Vec<GuestEntry> {
    let mut guests = Vec::new();
    for row in outcome.threads.iter().filter(|row| row.tid != 0) {
        let Some(cpu) = guest_cpu(row) else {
            continue;
        };
        let mut waits = row.wake_wait.clone();
        waits.merge(&row.preempt_wait);
        guests.push(GuestEntry {
            vmm: cpu.vmm,
            pid: row.pid,
            tid: row.tid,
            guest_cpu: cpu.index,
            run_s: s(row.run_ns),
            phantom_s: s(row.wait_ns()),
            phantom_max_s: s(waits.max_ns()),
            phantom_p99_s: s(waits.quantile_ns(0.99)),
            blocked_s: s(row.uninterruptible.sum_ns()),
            blocked_max_s: s(row.uninterruptible.max_ns()),
            preempted: row.preempted,
        });
    }
    guests.sort_by_key(|guest| (guest.pid, guest.guest_cpu, guest.tid));
    guests.truncate(ROWS);
    guests
}

fn picture(picture: &amdahl_sched::Picture, outcome: &Outcome) -> Picture {
    let column_ns = picture.column_ns();
    let rows = picture.rows();
    let columns = rows.iter().map(|row| row.cells.len()).max().unwrap_or(0);
    let names: FxHashMap<Tid, &str> = outcome
        .threads
        .iter()
        .map(|row| (row.tid, &*row.name))
        .collect();
    let mut threads: Vec<PictureThread> = Vec::new();
    let mut index: FxHashMap<Tid, u32> = FxHashMap::default();
    let mut index_of = |tid: Tid| {
        *index.entry(tid).or_insert_with(|| {
            if threads.len() >= NAMED {
                return 0;
            }
            let name = names
                .get(&tid)
                .map_or_else(|| "[gone]".to_owned(), |name| (*name).to_owned());
            threads.push(PictureThread { tid, name });
            threads.len() as u32
        })
    };
    let cpus = rows
        .iter()
        .map(|row| {
            let mut runs: Vec<[u32; 3]> = Vec::new();
            for cell in &row.cells {
                let load = (cell.busy_ns * 16).div_ceil(column_ns).min(16) as u32;
                let who = if load > 0 { index_of(cell.tid) } else { 0 };
                match runs.last_mut() {
                    Some(run) if run[1..] == [who, load] => run[0] += 1,
                    _ => runs.push([1, who, load]),
                }
            }
            PictureCpu { cpu: row.cpu, runs }
        })
        .collect();
    Picture {
        column_s: s(column_ns),
        columns: columns as u32,
        threads,
        cpus,
    }
}

fn timelines(found: &amdahl_sched::Timelines, outcome: &Outcome) -> Timelines {
    let column_ns = found.column_ns();
    let mut rows = found.rows();
    rows.truncate(TIMELINES);
    let columns = rows.iter().map(|row| row.cells.len()).max().unwrap_or(0);
    let all: u64 = outcome.selected().map(|row| row.threads).sum();
    let threads: Vec<Timeline> = rows
        .into_iter()
        .map(|row| {
            let mut runs: Vec<[u32; 5]> = Vec::new();
            for cell in &row.cells {
                let parts = sixteenths(cell, column_ns);
                match runs.last_mut() {
                    Some(run) if run[1..] == parts => run[0] += 1,
                    _ => runs.push([1, parts[0], parts[1], parts[2], parts[3]]),
                }
            }
            Timeline {
                tid: row.tid,
                pid: row.pid,
                name: row.name.into(),
                runs,
            }
        })
        .collect();
    Timelines {
        column_s: s(column_ns),
        columns: columns as u32,
        elsewhere: all.saturating_sub(threads.len() as u64),
        threads,
    }
}

/// Each part rounded up, so that a short run is seen too, as far as the sixteen are not used up.
fn sixteenths(cell: &Spent, column_ns: u64) -> [u32; 4] {
    let mut left = 16;
    cell.map(|ns| {
        let part = ns.saturating_mul(16).div_ceil(column_ns).min(left);
        left -= part;
        part as u32
    })
}

#[cfg(test)]
mod tests {
    use super::sixteenths;

    #[test]
    fn parts_of_a_column_are_never_more_than_the_column() {
        assert_eq!(sixteenths(&[0, 0, 0, 1600], 1600), [0, 0, 0, 16]);
        assert_eq!(sixteenths(&[1, 1, 1, 1597], 1600), [1, 1, 1, 13]);
        assert_eq!(sixteenths(&[800, 400, 0, 0], 1600), [8, 4, 0, 0]);
        // As a recording with lost events may tell.
        assert_eq!(sixteenths(&[3000, 9, 9, u64::MAX], 1600), [16, 0, 0, 0]);
    }
}
