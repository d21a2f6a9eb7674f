//! `amdahl locks`: which locks threads wait for, where, how long and because of whom.

mod follow;
pub mod live;
mod result;
mod unprivileged;

use amdahl_locks::{Limits, Table, Tracker};
use amdahl_probe::bpf::{
    Decoded, LOCKS, LOCKS_AND_HOLDS, Programs, Recorder, RecorderError, Settings, lock_constants,
};
use amdahl_report::locks::schema::LocksResult;
use amdahl_report::locks::{self, Shown};
use amdahl_report::samples::SAMPLES_FILE;
use amdahl_report::schema::{Notice, SampleRow, Source};
use amdahl_report::{html, save};
use amdahl_topology::CpuSet;

use crate::child::Ended;
use crate::cli::{Locks, ProbeKind, Selection, Top};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::java;
use crate::run::look;
use crate::screen;
use crate::watch;
use crate::watch::machine::{self, SpinLocks};
use follow::{Follower, name};

/// Parts are taken this often, so that processes are looked at while they live.
const PART_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

/// What was seen, by whatever means.
pub struct Observed {
    tracker: Tracker,
    decoded: Decoded,
    from: u64,
    to: u64,
    events: u64,
    events_lost: u64,
    stacks_lost: u64,
    sources: Vec<Source>,
    /// Where goroutines are timed.
    goroutines: Option<Source>,
    warnings: Vec<Notice>,
    ended: Option<Ended>,
    interrupted: bool,
}

fn source(what: &str, how: &str, missing: &str, remedy: &str) -> Source {
    Source {
        what: what.to_owned(),
        how: how.to_owned(),
        missing: missing.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// Watches and reports. Returns the exit code.
pub fn main(args: &Locks) -> Result<u8, Failure> {
    if args.live {
        return crate::top::main(&Top::from(args));
    }
    let cpus = watch::cpus(args.selection.pid)?;
    let interrupt = Interrupt::catch();
    let folder = match &args.output.output {
        Some(folder) => {
            Some(save::Folder::create(folder).map_err(|error| Failure::result(error.to_string()))?)
        }
        None => None,
    };
    let started = machine::now();
    let observed = observe(args, &cpus, &interrupt)?;
    let names = |tid| name(&observed.decoded, tid);
    let tracker = &observed.tracker;
    let table = Table::new(tracker, tracker.tally(), args.by.into(), &names);
    let table = table.sorted_by(args.sort.into());
    let mut found = result::result(&table, args.by);
    complete(&mut found, args, &observed);
    found.started = started;
    if let Some(folder) = folder {
        write(folder, &found, result::samples(tracker, &names))?;
    }
    show(args, &found)?;
    watch::finished(
        &args.selection,
        observed.ended.as_ref(),
        observed.interrupted,
    )
}

fn observe(args: &Locks, cpus: &CpuSet, interrupt: &Interrupt) -> Result<Observed, Failure> {
    let selection = &args.selection;
    if selection.probe == ProbeKind::Proc {
        return polled(args, cpus, interrupt, "", "leave --probe proc away");
    }
    let settings = Settings {
        constants: lock_constants(),
        everyone: selection.system,
        // Programs are looked at when they have begun: the waits until then are those of threads.
        part_after: if args.goroutines {
            PART_AFTER / 10
        } else {
            PART_AFTER
        },
        goroutines: args.goroutines,
        ..Settings::new(programs(args.owner), cpus.iter().collect())
            .within(selection.memory_bytes())
    };
    match Recorder::new(&settings) {
        Ok(recorder) => recorded(args, cpus, interrupt, recorder),
        Err(error) if selection.probe == ProbeKind::Bpf => Err(watch::refused(&error)),
        Err(error) => {
            let why = format!(", since BPF cannot be used ({error})");
            polled(args, cpus, interrupt, &why, watch::bpf_remedy(&error))
        }
    }
}

/// Without BPF, which `why` tells; what was asked for in vain is named.
fn polled(
    args: &Locks,
    cpus: &CpuSet,
    interrupt: &Interrupt,
    why: &str,
    remedy: &str,
) -> Result<Observed, Failure> {
    let mut observed = unprivileged::observe(&args.selection, cpus, interrupt, why, remedy)?;
    observed
        .sources
        .extend(args.owner.then(|| no_holds(remedy)));
    if args.goroutines {
        let text = "Goroutines are timed by probes in their program, which need BPF.";
        observed.goroutines = Some(source("waits of goroutines", "missing", text, remedy));
    }
    Ok(observed)
}

/// Who asks for owners without BPF is told of those of other locks alone.
fn no_holds(remedy: &str) -> Source {
    let text = "How long mmap_lock is held is told by BPF alone.";
    source("mmap_lock holds", "missing", text, remedy)
}

/// Sums take half as much as the events that they are made of.
fn sums_within(memory_bytes: usize) -> Limits {
    Limits::within(memory_bytes / 2)
}

/// What records; with `owners` also how long `mmap_lock` is held.
fn programs(owners: bool) -> &'static Programs {
    if owners { &LOCKS_AND_HOLDS } else { &LOCKS }
}

fn recorded(
    args: &Locks,
    cpus: &CpuSet,
    interrupt: &Interrupt,
    mut recorder: Recorder,
) -> Result<Observed, Failure> {
    let failed = |error: RecorderError| Failure::machine(error.to_string());
    recorder.clear_waits().map_err(failed)?;
    let waits = recorder.wait_table().map_err(failed)?;
    let memory = args.selection.memory_bytes();
    let without = without(&args.selection);
    let mut follower = Follower::new(waits, without, memory / 4, sums_within(memory), memory);
    if args.goroutines {
        let mut probes = recorder.goroutine_probes().map_err(failed)?;
        // Before it begins.
        let program = args.selection.command.first();
        if let Some(Ok(program)) = program.map(|typed| look::find(typed.as_ref())) {
            probes.look_at_program(&program).map_err(failed)?;
        }
        follower.time_goroutines(probes);
    }
    let watched = watch::watch(
        &args.selection,
        cpus,
        &mut recorder,
        interrupt,
        &mut follower,
    )?;
    follower.finish();
    follower.feed_open(watched.to);
    let mut sources = recorded_sources(&recorder, args.owner);
    sources.extend(watched.counts.cut.map(|_| cut_source()));
    Ok(Observed {
        from: watched.from,
        to: watched.counts.cut.unwrap_or(watched.to),
        events: follower.events,
        events_lost: watched.counts.lost.iter().map(|(_, lost)| lost).sum(),
        stacks_lost: watched.counts.stacks_lost,
        warnings: follower.warnings(),
        goroutines: follower
            .goroutines()
            .map(|(are_any, failure)| result::of_timed_goroutines(are_any, failure)),
        tracker: follower.tracker,
        decoded: follower.decoded,
        sources,
        ended: watched.ended,
        interrupted: watched.interrupted,
    })
}

/// A view of the whole system is not about our own threads.
fn without(selection: &Selection) -> Option<u32> {
    selection.system.then(std::process::id)
}

/// Of a recording that had no more memory for events.
fn cut_source() -> Source {
    source(
        "the end",
        "missing",
        "There was not enough memory for events: the last part was not looked at.",
        "raise --memory, or watch less",
    )
}

fn recorded_sources(recorder: &Recorder, owners: bool) -> Vec<Source> {
    let missing: Vec<&str> = recorder.missing().collect();
    let mut sources = kernel_sources(&missing, machine::spin_locks());
    sources.extend(watch::hidden_names(
        "its code is told by addresses, waits for RCU and for the readers of a per-CPU rwsem not at all.",
    ));
    if owners {
        sources.push(holds_source(&missing));
    }
    sources
}

/// Of holds, where the tracepoints in `missing` were not to be had.
fn holds_source(missing: &[&str]) -> Source {
    let lacks = |hook: &str| missing.contains(&hook);
    if lacks("mmap_lock_acquire_returned") || lacks("mmap_lock_released") {
        return source(
            "mmap_lock holds",
            "missing",
            "This kernel does not tell how long mmap_lock is held.",
            "use Linux 5.11 or newer",
        );
    }
    source("mmap_lock holds", "bpf", "", "")
}

/// Where waits come from, and what this kernel does not tell of them.
fn kernel_sources(missing: &[&str], spin_locks: SpinLocks) -> Vec<Source> {
    let lacks = |hook: &str| missing.contains(&hook);
    let kernel = if lacks("contention_begin") || lacks("contention_end") {
        source(
            "kernel locks",
            "missing",
            "This kernel does not tell of contended locks: only futexes are in the table.",
            "use Linux 5.19 or newer",
        )
    } else {
        let missing = format!("{} {}", watch::SPINNING_FOR_RWSEM, unseen(spin_locks));
        let remedy = "amdahl scale samples who spins in the kernel (kernel-lock, mmap-lock)";
        source("kernel locks", "bpf", missing.trim_end(), remedy)
    };
    vec![source("futex waits", "bpf", "", ""), kernel]
}

/// Waiters for spin locks of whom the kernel does not tell.
fn unseen(spin_locks: SpinLocks) -> &'static str {
    match spin_locks {
        SpinLocks::All => "",
        SpinLocks::Queued => {
            "Of a spin lock those who queue up behind another waiter are told, who waits alone is not."
        }
        SpinLocks::None => {
            "Nobody who waits for a spin lock is told: the hypervisor of this virtual machine does not help with \
             them (no \"PV spinlocks enabled\" in the kernel's log)."
        }
        SpinLocks::Unknown => {
            "If the hypervisor of this virtual machine does not help with spin locks nobody who waits for one is told. \
             The kernel's log begins with \"PV spinlocks enabled\" if it does; that cannot be read any more."
        }
    }
}

/// Empty for a command that is watched alone.
fn target(selection: &Selection) -> String {
    if selection.command.is_empty() || selection.system {
        selection.target()
    } else {
        String::new()
    }
}

fn complete(found: &mut LocksResult, args: &Locks, observed: &Observed) {
    found.target = target(&args.selection);
    found.command = args.selection.command.clone();
    found.seconds = observed.to.saturating_sub(observed.from) as f64 * 1e-9;
    found.machine = machine::describe();
    found.sources = observed.sources.clone();
    found.warnings.extend(observed.warnings.iter().cloned());
    let is_polled = found.sources.iter().any(|source| source.how == "/proc");
    match &observed.goroutines {
        Some(source) => found.sources.push(source.clone()),
        None => result::note_goroutines(found, if is_polled { "/proc" } else { "bpf" }),
    }
    found
        .warnings
        .extend(java::notice(&observed.decoded.stacks));
    found.events = observed.events;
    found.events_lost += observed.events_lost;
    found.stacks_lost = observed.stacks_lost;
    found.partial = observed.interrupted;
    if let Some(Err(what)) = observed.ended.as_ref().map(|ended| &ended.outcome) {
        found.warnings.push(Notice {
            code: "failed".to_owned(),
            text: format!("The program failed: {what}."),
        });
    }
}

fn write(folder: save::Folder, found: &LocksResult, rows: Vec<SampleRow>) -> Result<(), Failure> {
    let failed = |error: save::SaveError| Failure::result(error.to_string());
    let json = locks::to_json(found).map_err(failed)?;
    folder
        .write(amdahl_report::load::RESULT_FILE, json.as_bytes())
        .map_err(failed)?;
    let page = locks::render_html(found, &rows);
    folder
        .write(html::REPORT_FILE, page.as_bytes())
        .map_err(failed)?;
    folder.samples(rows).map_err(failed)?;
    folder.commit().map_err(failed)
}

fn show(args: &Locks, found: &LocksResult) -> Result<(), Failure> {
    let text = if args.output.json {
        locks::to_json(found).map_err(|error| Failure::result(error.to_string()))?
    } else if args.output.csv {
        locks::csv(found)
    } else {
        let shown = Shown {
            rows: args.rows,
            owners: args.owner,
        };
        let mut text = locks::render(found, screen::width(), screen::style(), shown);
        if let Some(folder) = &args.output.output {
            text += &format!(
                "\nWritten to {}/: result.json, report.html, {SAMPLES_FILE}\n",
                folder.display()
            );
        }
        text
    };
    screen::print(&text).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_are_missing_where_the_kernel_does_not_tell_them() {
        assert_eq!(holds_source(&[]).how, "bpf");
        for missing in ["mmap_lock_released", "mmap_lock_acquire_returned"] {
            let source = holds_source(&[missing]);
            assert_eq!(source.how, "missing");
            assert!(!source.missing.is_empty() && !source.remedy.is_empty());
        }
    }

    /// The kernel locks were told by `bpf` with nothing missing, whoever spun unseen.
    #[test]
    fn who_spins_unseen_is_named() {
        let kernel = |missing: &[&str], spin_locks| {
            let mut sources = kernel_sources(missing, spin_locks);
            sources.pop().expect("kernel locks come last")
        };
        let of = |spin_locks| kernel(&[], spin_locks);
        for (spin_locks, said) in [
            (SpinLocks::Queued, "who waits alone is not"),
            (SpinLocks::None, "Nobody who waits for a spin lock"),
            (SpinLocks::Unknown, "cannot be read"),
        ] {
            let source = of(spin_locks);
            assert_eq!(source.how, "bpf");
            assert!(source.missing.contains(said), "{}", source.missing);
            assert!(source.missing.contains("rwsem") && !source.remedy.is_empty());
        }
        let told = of(SpinLocks::All).missing;
        assert!(
            told.contains("rwsem") && !told.contains("spin lock"),
            "{told}"
        );
        assert_eq!(kernel(&["contention_begin"], SpinLocks::All).how, "missing");
    }
}
