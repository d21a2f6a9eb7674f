//! `amdahl sched record` without privileges: sums from `/proc`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amdahl_report::sched::schema::{
    CpuEntry, Elsewhere, GuestEntry, Latency, SCHEMA, SchedResult, StealEntry, ThreadEntry,
};
use amdahl_report::schema::{Notice, Source};
use amdahl_sched::proc::{Looks, ThreadLook, ThreadRan, thread_look};
use amdahl_topology::CpuSet;

use super::facts;
use super::guests::{Guests, Visits};
use crate::child::{Child, Ended};
use crate::cli::{SchedRecord, Selection};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::watch::{self, machine};

/// How often to look: a thread that lives shorter may be missed.
const PAUSE: Duration = Duration::from_millis(100);
const ROWS: usize = 1_000;

/// What a result has none of.
const MISSING: &str = "Sums of run time, run queue latency and time slices per thread, and use per CPU, only. No distributions of \
run queue latency and of time slices; no switches, preemptions, yields and sleeps; no wake-ups, wakers and wake-up chains; no \
migrations; no wasted time and overloaded CPUs, no lengths of queues; no forks and exits; of CPUs of guests the time that they ran and their phantom time in run \
queues, but not its longest stretches and percentiles, nor the time blocked in the host; no pictures of threads on CPUs and of threads over time (timelines), and no events on disk. Threads that lived less than \
0.1 s may be missing.";

/// Records sums per thread and CPU. `remedy` is what would give more; `begun` is called when the command has started.
pub fn record(
    args: &SchedRecord,
    cpus: &CpuSet,
    interrupt: &Interrupt,
    remedy: String,
    begun: impl FnOnce() -> Result<(), Failure>,
) -> Result<(SchedResult, Option<Ended>), Failure> {
    let selection = &args.selection;
    let mut child = watch::start(selection, cpus, &[])?;
    let root = selection.pid.or(child.as_ref().map(Child::pid));
    let from = Instant::now();
    let started = machine::now();
    let stop = AtomicBool::new(false);
    let ((sums, visits), ended) = std::thread::scope(|scope| {
        let looking = std::thread::Builder::new()
            .name("amdahl-look".into())
            .spawn_scoped(scope, || look(selection, root, &stop))
            .map_err(|error| Failure::machine(format!("cannot start a thread: {error}")))?;
        let ended = watch::begin(&mut child)
            .and_then(|()| begun())
            .and_then(|()| watch::run(selection, child, interrupt, || ()));
        stop.store(true, Ordering::Relaxed);
        looking.thread().unpark();
        let seen = looking.join().expect("looking does not panic");
        Ok((seen, ended?))
    })?;
    let mut result = result(&sums, visits.known(), from.elapsed(), remedy);
    result.command = selection.whom();
    result.started = started;
    result.machine = machine::describe();
    Ok((result, ended))
}

fn look(selection: &Selection, root: Option<u32>, stop: &AtomicBool) -> (Sums, Visits) {
    let (mut sums, mut visits) = (Sums::new(), Visits::new());
    loop {
        let is_last = stop.load(Ordering::Relaxed);
        sums.look(selection, root);
        visits.look(selection, root);
        if is_last {
            return (sums, visits);
        }
        std::thread::park_timeout(PAUSE);
    }
}

/// What `/proc` told so far.
pub struct Sums {
    looks: Looks,
    has_schedstat: bool,
    /// Threads that were there and could not be read, at the look where they were most.
    unread: usize,
}

impl Sums {
    /// Nothing yet.
    pub fn new() -> Sums {
        Sums {
            looks: Looks::default(),
            has_schedstat: Path::new("/proc/self/schedstat").exists(),
            unread: 0,
        }
    }

    /// Adds what is there now.
    pub fn look(&mut self, selection: &Selection, root: Option<u32>) {
        let present = watch::present(selection, root);
        let threads = present
            .iter()
            .flat_map(|(pid, tids)| tids.iter().map(|tid| (*pid, *tid)));
        let (mut found, mut unread) = (Vec::new(), 0);
        for (pid, tid) in threads {
            match self.thread(pid, tid) {
                Ok(thread) => found.push(thread),
                Err(why) => unread += usize::from(!is_gone(&why)),
            }
        }
        self.unread = self.unread.max(unread);
        self.looks.add(found, facts::cpus_now());
    }

    fn thread(&self, pid: u32, tid: u32) -> std::io::Result<ThreadLook> {
        let read = |name| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}"));
        let stat = read("stat")?;
        let schedstat = match self.has_schedstat {
            true => Some(read("schedstat")?),
            false => None,
        };
        let look = thread_look(pid, &stat, schedstat.as_deref(), facts::clock_tick_ns());
        look.ok_or_else(|| ErrorKind::InvalidData.into())
    }

    fn notices(&self) -> Vec<Notice> {
        let notice = |code: &str, text: String| Notice {
            code: code.to_owned(),
            text,
        };
        let no_schedstat = (!self.has_schedstat).then(|| {
            let text = "This kernel keeps no /proc/PID/schedstat (CONFIG_SCHED_INFO): run time is told in clock ticks, and \
                        nothing is known of time in run queues, with it of phantom time, and of time slices.";
            notice("no-schedstat", text.to_owned())
        });
        let unread = (self.unread > 0).then(|| {
            let text = format!(
                "{} threads could not be read although they were there, for want of descriptors, memory or rights: what they \
                 did then is missing.",
                self.unread
            );
            notice("threads-unread", text)
        });
        no_schedstat.into_iter().chain(unread).collect()
    }
}

/// It was there when its process was listed, and has ended.
fn is_gone(why: &std::io::Error) -> bool {
    why.kind() == ErrorKind::NotFound || why.raw_os_error() == Some(libc::ESRCH)
}

/// Sums so far; `guests` says which threads are CPUs of guests.
pub fn result(sums: &Sums, guests: &Guests, wall: Duration, remedy: String) -> SchedResult {
    let looks = &sums.looks;
    let tick_s = facts::clock_tick_ns() as f64 / 1e9;
    let mut rows: Vec<ThreadRan<'_>> = looks.threads();
    // A CPU that the guest has halted is one all the same.
    let guests = guest_entries(&rows, guests);
    rows.retain(|row| row.run_ns + row.wait_ns > 0);
    let cpus = looks.cpus();
    SchedResult {
        schema: SCHEMA.to_owned(),
        amdahl_version: env!("CARGO_PKG_VERSION").to_owned(),
        wall_s: wall.as_secs_f64(),
        sources: vec![Source {
            what: "scheduling".to_owned(),
            how: "/proc".to_owned(),
            missing: MISSING.to_owned(),
            remedy,
        }],
        warnings: sums.notices(),
        guests,
        cpus: cpus
            .iter()
            .map(|cpu| CpuEntry {
                cpu: cpu.cpu,
                run_s: cpu.busy_ticks as f64 * tick_s,
                idle_s: cpu.idle_ticks as f64 * tick_s,
                ..CpuEntry::default()
            })
            .collect(),
        steal: cpus
            .iter()
            .filter(|cpu| cpu.steal_ticks > 0)
            .map(|cpu| StealEntry {
                cpu: cpu.cpu,
                steal_s: cpu.steal_ticks as f64 * tick_s,
            })
            .collect(),
        threads: rows.iter().take(ROWS).map(entry).collect(),
        threads_elsewhere: rows
            .iter()
            .skip(ROWS)
            .fold(Elsewhere::default(), |sum, row| Elsewhere {
                threads: sum.threads + row.threads,
                run_s: sum.run_s + s(row.run_ns),
                wait_s: sum.wait_s + s(row.wait_ns),
            }),
        ..SchedResult::default()
    }
}

fn guest_entries(rows: &[ThreadRan<'_>], guests: &Guests) -> Vec<GuestEntry> {
    let single = rows.iter().filter(|row| row.tid != 0);
    let entries = single.filter_map(|row| {
        let cpu = guests.guest_cpu(row.pid, row.tid, row.name)?;
        Some(GuestEntry {
            vmm: cpu.vmm,
            pid: row.pid,
            tid: row.tid,
            guest_cpu: cpu.index,
            run_s: s(row.run_ns),
            phantom_s: s(row.wait_ns),
            ..GuestEntry::default()
        })
    });
    let mut entries: Vec<GuestEntry> = entries.collect();
    entries.sort_by_key(|guest| (guest.pid, guest.guest_cpu, guest.tid));
    entries.truncate(ROWS);
    entries
}

fn s(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn entry(row: &ThreadRan<'_>) -> ThreadEntry {
    ThreadEntry {
        tid: row.tid,
        pid: row.pid,
        name: row.name.to_owned(),
        threads: row.threads,
        last_cpu: row.cpu,
        run_s: s(row.run_ns),
        wait_s: s(row.wait_ns),
        slices: Latency {
            count: row.slices,
            total_s: s(row.run_ns),
            mean_s: s(row.run_ns) / row.slices.max(1) as f64,
            ..Latency::default()
        },
        ..ThreadEntry::default()
    }
}

#[cfg(test)]
mod tests {
    use amdahl_sched::proc::CpuLook;
    use serde_json::Value;

    use super::*;

    fn sums(threads: u32) -> Sums {
        let at = |time: u64| {
            let thread = |tid| ThreadLook {
                tid,
                pid: 7,
                // A guest that needs no KVM.
                name: "CPU 0/TCG".to_owned(),
                run_ns: time,
                wait_ns: time,
                slices: time,
                cpu: 1,
                ..ThreadLook::default()
            };
            let cpu = CpuLook {
                cpu: 1,
                busy_ticks: time,
                idle_ticks: time,
                steal_ticks: time,
            };
            ((1..=threads).map(thread).collect(), vec![cpu])
        };
        let mut looks = Looks::default();
        for time in [0, 1_000_000_000] {
            let (threads, cpus) = at(time);
            looks.add(threads, cpus);
        }
        Sums {
            looks,
            has_schedstat: true,
            unread: 0,
        }
    }

    fn result_of(sums: &Sums) -> SchedResult {
        let remedy = "be root".to_owned();
        result(sums, &Guests::default(), Duration::from_secs(1), remedy)
    }

    fn json(value: &impl serde::Serialize) -> Value {
        serde_json::to_value(value).expect("a value")
    }

    /// Fields of `found` that say no more than those of `nothing`, by their names.
    fn empty(found: &Value, nothing: &Value) -> Vec<String> {
        let fields = found.as_object().expect("fields").iter();
        let empty = fields.filter(|(name, value)| nothing[*name] == **value);
        empty.map(|(name, _)| name.clone()).collect()
    }

    /// Guests, chains and timelines were empty, and nobody said so.
    #[test]
    fn all_that_is_empty_is_named() {
        let found = result_of(&sums(1));
        let missing = &found.sources[0].missing;
        let whole = empty(&json(&found), &json(&SchedResult::default()));
        let of_cpus = empty(&json(&found.cpus[0]), &json(&CpuEntry::default()));
        let of_threads = empty(&json(&found.threads[0]), &json(&ThreadEntry::default()));
        let of_guests = empty(&json(&found.guests[0]), &json(&GuestEntry::default()));
        assert!(whole.len() > 10 && of_cpus.len() > 5 && of_threads.len() > 10);
        for field in [whole, of_cpus, of_threads, of_guests].concat() {
            let name = match &*field {
                // Of the recording, and told by who made it; and what is no lack.
                "command" | "started" | "machine" | "warnings" | "threads_elsewhere"
                | "is_kernel" => continue,
                "totals" => "switches",
                "wake_latency" | "preempt_latency" | "latency" => {
                    "distributions of run queue latency"
                }
                "slices" => "and of time slices",
                "migrations" | "migrations_at_wake" => "migrations",
                "wasted" | "wasted_s" | "idle_wasted_s" => "wasted time",
                "overloaded_s" => "overloaded CPUs",
                "queue_mean" | "queue_max" => "lengths of queues",
                "sleep_s" | "iowait_s" | "uninterruptible_s" | "blocked" => "sleeps",
                "preempted" | "preemptions" => "preemptions",
                "yielded" => "yields",
                "wakers" => "wakers",
                "chains" => "wake-up chains",
                "phantom_max_s" | "phantom_p99_s" => "its longest stretches and percentiles",
                "blocked_s" | "blocked_max_s" => "blocked in the host",
                "picture" => "pictures of threads on CPUs",
                "timelines" => "timelines",
                "recording" | "events_lost" | "events_refused" => "events",
                "switches" => "switches",
                other => panic!("{other} is empty, and nothing is known of that"),
            };
            assert!(missing.contains(name), "{field}: no {name:?} in {missing}");
        }
    }

    /// Those beyond the rows were left out without a word.
    #[test]
    fn threads_without_a_row_are_added_up() {
        let found = result_of(&sums(ROWS as u32 + 5));
        assert_eq!(found.threads.len(), ROWS);
        let expected = Elsewhere {
            threads: 5,
            run_s: 5.0,
            wait_s: 5.0,
        };
        assert_eq!(found.threads_elsewhere, expected);
    }

    /// There were no rows of guests, though what they waited in run queues was known.
    #[test]
    fn guests_have_their_time_in_run_queues() {
        let found = result_of(&sums(1));
        let [guest] = &found.guests[..] else {
            panic!("{:?}", found.guests);
        };
        assert_eq!((&*guest.vmm, guest.guest_cpu), ("QEMU", Some(0)));
        assert_eq!((guest.run_s, guest.phantom_s), (1.0, 1.0));
        assert!(found.warnings.is_empty());
    }

    /// Threads without it were left out without a word.
    #[test]
    fn what_could_not_be_read_is_told() {
        let mut sums = sums(1);
        (sums.has_schedstat, sums.unread) = (false, 3);
        let warnings = result_of(&sums).warnings;
        let codes: Vec<&str> = warnings.iter().map(|notice| &*notice.code).collect();
        assert_eq!(codes, ["no-schedstat", "threads-unread"]);
        assert!(warnings[1].text.starts_with("3 threads"));
    }
}
