//! The tables of a result as one table of comma-separated values (RFC 4180).
//!
//! The first column, `table`, says what a row is:
//!
//! | `table` | row |
//! |---|---|
//! | `thread` | a thread, or several of one name that are gone (`count`); its latencies are those after a wake-up |
//! | `cpu` | a CPU; `count` are its switches, the latencies those that ended on it |
//! | `latency` | the distribution that `name` says: `wake-up`, `preemption`, `slice` |
//! | `wasted` | idle time while threads waited, for the reason in `name` |
//! | `wasted-pair` | the same of one pair: `cpu` idled, a thread waited for `other_cpu`; `count` stretches |
//! | `waker` | wake-ups of `name` by `other_name`; `migrations` are those to another last-level cache |
//! | `migration` | how many there were of this distance |
//! | `guest` | a guest's CPU `cpu`: in `wait_s` its phantom time in run queues, in `sleep_s` that blocked in the host |
//! | `steal` | what the hypervisor took of a CPU |
//! | `chain` | the chain of wake-ups number `chain`, begun by `name`, with `count` threads; `other_name` is `cut` if it goes further back |
//! | `chain-link` | a thread of it: woken `woken_s` after its beginning, waited `wait_s`, then active for `run_s` |
//!
//! What a table does not have, or is not known, is empty.

use super::schema::{Latency, SchedResult};
use crate::cell::field;

const HEADER: &str = "table,name,other_name,pid,tid,cpu,other_cpu,count,total_s,run_s,wait_s,idle_s,wasted_s,\
sleep_s,mean_s,p50_s,p90_s,p99_s,max_s,preempted,yielded,blocked,migrations,chain,woken_s";

/// One row.
#[derive(Default)]
struct Row<'a> {
    table: &'a str,
    name: &'a str,
    other_name: &'a str,
    pid: Option<u32>,
    tid: Option<u32>,
    cpu: Option<u32>,
    other_cpu: Option<u32>,
    count: Option<u64>,
    total_s: Option<f64>,
    run_s: Option<f64>,
    wait_s: Option<f64>,
    idle_s: Option<f64>,
    wasted_s: Option<f64>,
    sleep_s: Option<f64>,
    latency: Option<&'a Latency>,
    mean_s: Option<f64>,
    p99_s: Option<f64>,
    max_s: Option<f64>,
    preempted: Option<u64>,
    yielded: Option<u64>,
    blocked: Option<u64>,
    migrations: Option<u64>,
    chain: Option<u64>,
    woken_s: Option<f64>,
}

impl Row<'_> {
    fn line(&self) -> String {
        let number = |n: Option<u64>| n.map_or(String::new(), |n| n.to_string());
        let time = |s: Option<f64>| s.map_or(String::new(), |s| format!("{s:.9}"));
        let of = |part: fn(&Latency) -> f64| self.latency.map(part);
        let cells = [
            field(self.table),
            field(self.name),
            field(self.other_name),
            number(self.pid.map(u64::from)),
            number(self.tid.map(u64::from)),
            number(self.cpu.map(u64::from)),
            number(self.other_cpu.map(u64::from)),
            number(self.count),
            time(self.total_s),
            time(self.run_s),
            time(self.wait_s),
            time(self.idle_s),
            time(self.wasted_s),
            time(self.sleep_s),
            time(self.mean_s.or(of(|latency| latency.mean_s))),
            time(of(|latency| latency.p50_s)),
            time(of(|latency| latency.p90_s)),
            time(self.p99_s.or(of(|latency| latency.p99_s))),
            time(self.max_s.or(of(|latency| latency.max_s))),
            number(self.preempted),
            number(self.yielded),
            number(self.blocked),
            number(self.migrations),
            number(self.chain),
            time(self.woken_s),
        ];
        cells.join(",") + "\r\n"
    }
}

/// All rows with a header, lines ended by CR LF.
pub fn render(result: &SchedResult) -> String {
    let mut rows = threads(result);
    rows.extend(cpus(result));
    rows.extend(distributions(result));
    rows.extend(guests(result));
    rows.extend(chains(result));
    let lines: String = rows.iter().map(Row::line).collect();
    format!("{HEADER}\r\n{lines}")
}

fn threads(result: &SchedResult) -> Vec<Row<'_>> {
    let has_events = result.has_events();
    let rows = result.threads.iter().map(|row| Row {
        table: "thread",
        name: &row.name,
        pid: Some(row.pid),
        tid: Some(row.tid),
        cpu: row.last_cpu,
        count: Some(row.threads),
        run_s: Some(row.run_s),
        wait_s: Some(row.wait_s),
        wasted_s: has_events.then_some(row.wasted_s),
        sleep_s: has_events.then_some(row.sleep_s),
        latency: has_events.then_some(&row.wake_latency),
        preempted: has_events.then_some(row.preempted),
        yielded: has_events.then_some(row.yielded),
        blocked: has_events.then_some(row.blocked),
        migrations: has_events.then(|| row.migrations.total()),
        ..Row::default()
    });
    rows.collect()
}

fn cpus(result: &SchedResult) -> Vec<Row<'_>> {
    let has_events = result.has_events();
    let cpus = result.cpus.iter().map(|cpu| Row {
        table: "cpu",
        cpu: Some(cpu.cpu),
        count: has_events.then_some(cpu.switches),
        run_s: Some(cpu.run_s),
        idle_s: Some(cpu.idle_s),
        wasted_s: has_events.then_some(cpu.idle_wasted_s),
        latency: has_events.then_some(&cpu.latency),
        preempted: has_events.then_some(cpu.preemptions),
        ..Row::default()
    });
    let steal = result.steal.iter().map(|entry| Row {
        table: "steal",
        cpu: Some(entry.cpu),
        total_s: Some(entry.steal_s),
        ..Row::default()
    });
    cpus.chain(steal).collect()
}

/// What only events tell.
fn distributions(result: &SchedResult) -> Vec<Row<'_>> {
    if !result.has_events() {
        return Vec::new();
    }
    let latencies = [
        ("wake-up", &result.wake_latency),
        ("preemption", &result.preempt_latency),
        ("slice", &result.slices),
    ];
    let latencies = latencies.into_iter().map(|(name, latency)| Row {
        table: "latency",
        name,
        count: Some(latency.count),
        total_s: Some(latency.total_s),
        latency: Some(latency),
        ..Row::default()
    });
    let wasted = &result.wasted;
    let reasons = wasted.by_reason().into_iter().map(|(name, seconds)| Row {
        table: "wasted",
        name,
        wasted_s: Some(seconds),
        ..Row::default()
    });
    let pairs = wasted.pairs.iter().map(|pair| Row {
        table: "wasted-pair",
        name: &pair.reason,
        cpu: Some(pair.idle_cpu),
        other_cpu: Some(pair.busy_cpu),
        count: Some(pair.stretches),
        wasted_s: Some(pair.total_s),
        max_s: Some(pair.longest_s),
        ..Row::default()
    });
    let wakers = result.wakers.iter().map(|row| Row {
        table: "waker",
        name: &row.woken,
        other_name: &row.waker,
        count: Some(row.count),
        mean_s: Some(row.latency_mean_s),
        max_s: Some(row.latency_max_s),
        migrations: Some(row.to_other_llc),
        ..Row::default()
    });
    let moves = &result.migrations;
    let distances = [
        ("core", moves.core),
        ("llc", moves.llc),
        ("node", moves.node),
        ("across", moves.across),
        ("unknown", moves.unknown),
    ];
    let distances = distances.into_iter().map(|(name, count)| Row {
        table: "migration",
        name,
        count: Some(count),
        ..Row::default()
    });
    let wasted = reasons.chain(pairs);
    latencies
        .chain(wasted)
        .chain(wakers)
        .chain(distances)
        .collect()
}

fn guests(result: &SchedResult) -> Vec<Row<'_>> {
    let rows = result.guests.iter().map(|guest| Row {
        table: "guest",
        name: &guest.vmm,
        pid: Some(guest.pid),
        tid: Some(guest.tid),
        cpu: guest.guest_cpu,
        run_s: Some(guest.run_s),
        wait_s: Some(guest.phantom_s),
        sleep_s: Some(guest.blocked_s),
        p99_s: Some(guest.phantom_p99_s),
        max_s: Some(guest.phantom_max_s),
        preempted: Some(guest.preempted),
        ..Row::default()
    });
    rows.collect()
}

fn chains(result: &SchedResult) -> Vec<Row<'_>> {
    let chains = result.chains.iter().zip(1..);
    let rows = chains.flat_map(|(chain, number)| {
        let head = Row {
            table: "chain",
            name: &chain.began_by,
            other_name: if chain.is_cut { "cut" } else { "" },
            count: Some(chain.links.len() as u64),
            total_s: Some(chain.total_s),
            chain: Some(number),
            ..Row::default()
        };
        let links = chain.links.iter().map(move |link| Row {
            table: "chain-link",
            name: &link.name,
            tid: Some(link.tid),
            run_s: Some(link.active_s),
            wait_s: Some(link.waited_s),
            chain: Some(number),
            woken_s: Some(link.woken_s),
            ..Row::default()
        });
        std::iter::once(head).chain(links)
    });
    rows.collect()
}
