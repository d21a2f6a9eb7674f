//! `amdahl mem`: page faults, huge pages, the address-space lock, TLB misses, placement.

mod accounted;
mod follow;
pub mod live;
mod look;
mod mapped;
mod names;
mod pages;
mod result;
mod sources;
mod unprivileged;

use std::time::Duration;

use amdahl_mem::tlb;
use amdahl_probe::bpf::{Mappings, Recorder, Settings};
use amdahl_probe::perf::{Count, Counted};
use amdahl_report::load::RESULT_FILE;
use amdahl_report::mem::schema::{MemResult, SCHEMA, Tlb};
use amdahl_report::mem::{csv, html, terminal, to_json};
use amdahl_report::schema::{Notice, SampleRow};
use amdahl_report::{html::REPORT_FILE, save};
use amdahl_topology::CpuSet;

use crate::child::Ended;
use crate::cli::{Mem, ProbeKind, Selection};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen;
use crate::watch::{self, machine};
use follow::Followed;
use look::{Looked, Looker};
use pages::Machine;

/// Parts are taken this often, so that processes are looked at while they live.
const PART_AFTER: Duration = Duration::from_secs(1);

/// A result and the stacks that go with it.
struct Outcome {
    result: MemResult,
    rows: Vec<SampleRow>,
    ended: Option<Ended>,
}

/// Watches, writes and shows.
pub fn main(args: &Mem) -> Result<u8, Failure> {
    let failed = |error: save::SaveError| Failure::result(error.to_string());
    // Tried before anything is measured.
    let folder = args.output.output.as_deref().map(save::Folder::create);
    let folder = folder.transpose().map_err(failed)?;
    let cpus = watch::cpus(args.selection.pid)?;
    let interrupt = Interrupt::catch();
    let outcome = measure(args, &cpus, &interrupt)?;
    let json = to_json(&outcome.result).map_err(failed)?;
    if let Some(folder) = folder {
        write(folder, &outcome, &json).map_err(failed)?;
    }
    let text = if args.output.json {
        json
    } else if args.output.csv {
        csv::render(&outcome.result)
    } else {
        terminal::render(&outcome.result, screen::width(), screen::style())
    };
    screen::print(&text)?;
    watch::finished(&args.selection, outcome.ended.as_ref(), interrupt.asked())
}

fn write(folder: save::Folder, outcome: &Outcome, json: &str) -> Result<(), save::SaveError> {
    let page = html::render(&outcome.result, &outcome.rows);
    folder.write(REPORT_FILE, page.as_bytes())?;
    folder.samples(outcome.rows.iter().cloned())?;
    folder.write(RESULT_FILE, json.as_bytes())?;
    folder.commit()
}

fn measure(args: &Mem, cpus: &CpuSet, interrupt: &Interrupt) -> Result<Outcome, Failure> {
    let recorder = match args.selection.probe {
        ProbeKind::Proc => Err(None),
        _ => Recorder::new(&settings(args, cpus)).map_err(Some),
    };
    let (before, started) = (Machine::now(), machine::now());
    let looker = Looker::new(&args.selection);
    let (mut outcome, looked, touches) = match recorder {
        Ok(recorder) => recorded(args, cpus, recorder, &looker, interrupt)?,
        Err(Some(error)) if args.selection.probe == ProbeKind::Bpf => {
            return Err(watch::refused(&error));
        }
        Err(why) => unprivileged::watched(args, cpus, why, &looker, interrupt)?,
    };
    let after = Machine::now();
    let pages = pages::pages(&before, &after, &looked, &touches);
    let result = &mut outcome.result;
    (result.huge, result.processes, result.numa) = (pages.huge, pages.processes, pages.numa);
    result.schema = SCHEMA.to_owned();
    result.amdahl_version = env!("CARGO_PKG_VERSION").to_owned();
    result.command = args.selection.whom();
    result.started = started;
    result.machine = machine::describe();
    result.sources.extend(sources::looked(&looked));
    result
        .sources
        .extend(sources::blocks(after.no_block_types()));
    after.warn_of_hints(&before, result);
    if interrupt.asked() {
        let text = "This is what was seen until then.".to_owned();
        let code = "interrupted".to_owned();
        result.warnings.push(Notice { code, text });
    }
    Ok(outcome)
}

fn settings(args: &Mem, cpus: &CpuSet) -> Settings {
    Settings {
        everyone: args.selection.system,
        mappings: Mappings::All,
        part_after: PART_AFTER,
        ..Settings::new(sources::programs(args.holds), cpus.iter().collect())
            .within(args.selection.memory_bytes())
    }
}

type Parts = (Outcome, Looked, amdahl_mem::first_touch::Touches);

/// Runs `watch` while the processes are looked at.
fn while_looking<T: Send>(
    looker: &Looker,
    interrupt: &Interrupt,
    watch: impl FnOnce() -> T,
) -> (T, Looked) {
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| looker.look(interrupt));
        // It must also end where the watching panics.
        struct Stop<'a>(&'a Looker);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.stop();
            }
        }
        let stop = Stop(looker);
        let watched = watch();
        drop(stop);
        looking.thread().unpark();
        (watched, looking.join().expect("looking does not panic"))
    })
}

fn recorded(
    args: &Mem,
    cpus: &CpuSet,
    mut recorder: Recorder,
    looker: &Looker,
    interrupt: &Interrupt,
) -> Result<Parts, Failure> {
    let missing: Vec<&str> = recorder.missing().collect();
    let mut followed = Followed::new(looker, &missing, args.selection.memory_bytes() / 4);
    if args.selection.system {
        followed.tlb.count_all(cpus);
    }
    let (watched, looked) = while_looking(looker, interrupt, || {
        watch::watch(
            &args.selection,
            cpus,
            &mut recorder,
            interrupt,
            &mut followed,
        )
    });
    let watched = watched?;
    followed.finish();
    let counts = &watched.counts;
    let lost: u64 = counts.lost.iter().map(|(_, count)| count).sum();
    let mut faults = followed.fault_tables(true);
    faults.lost = lost;
    faults.accounted = watched
        .ended
        .as_ref()
        .map(|ended| ended.faults + ended.major_faults);
    let lock = followed.lock_tables(args.holds);
    let (tlb, tlb_source) = tlb_misses(&followed.tlb, &args.selection);
    let mut sources = sources::recorded(&missing, args.holds);
    sources.extend(sources::hidden_names());
    sources.push(tlb_source);
    let mut warnings = warnings_of(counts.stacks_lost, &followed);
    if let Some(when) = counts.cut {
        let after = when.saturating_sub(watched.from) as f64 * 1e-9;
        warnings.push(cut(&format!(" after {after:.1} s")));
    }
    let rows = result::sample_rows(&faults, &lock);
    let result = MemResult {
        duration_s: watched.to.saturating_sub(watched.from) as f64 * 1e-9,
        vmalloc: (!missing.contains(&"alloc_vmap_area")).then(|| followed.vmalloc_table()),
        faults,
        mmap_lock: lock,
        tlb,
        sources,
        warnings,
        ..MemResult::default()
    };
    let outcome = Outcome {
        result,
        rows,
        ended: watched.ended,
    };
    Ok((outcome, looked, followed.touches))
}

/// Of a recording that had no more memory for events, `when`.
fn cut(when: &str) -> Notice {
    Notice {
        code: "memory".to_owned(),
        text: format!(
            "The memory for events was used up{when}: later ones are missing. Give more with --memory."
        ),
    }
}

/// What the reader of the tables that were made last must know: lost call stacks and changes of address spaces, code without names.
fn warnings_of(stacks_lost: u64, followed: &Followed<'_>) -> Vec<Notice> {
    let mut warnings = Vec::new();
    let left_out = followed.places.left_out();
    if left_out > 0 {
        warnings.push(Notice {
            code: "stacks-left-out".to_owned(),
            text: format!(
                "There was no room for {left_out} call stacks, of so many different places: some faults and waits have no \
                 code, or only its innermost part."
            ),
        });
    }
    if stacks_lost > 0 {
        warnings.push(Notice {
            code: "stacks-lost".to_owned(),
            text: format!(
                "{stacks_lost} call stacks were lost: some faults and waits have no code."
            ),
        });
    }
    if followed.maps_lost > 0 {
        warnings.push(Notice {
            code: "mappings-lost".to_owned(),
            text: format!(
                "{} changes of address spaces were not told, so many came at once: faults there may be of kind unknown, \
                 or of what was mapped before.",
                followed.maps_lost
            ),
        });
    }
    warnings.extend(followed.java.notice());
    warnings
}

/// What the counters of whom `selection` says tell, and where it comes from.
fn tlb_misses(
    counted: &follow::Tlb,
    selection: &Selection,
) -> (Option<Tlb>, amdahl_report::schema::Source) {
    let mut sums = [Count::default(); 4];
    let mut is_there = [false; 4];
    for (what, count) in counted.counters.iter().flat_map(|counters| counters.read()) {
        let at = what as usize;
        is_there[at] = true;
        sums[at].value += count.value;
        sums[at].enabled += count.enabled;
        sums[at].running += count.running;
    }
    let of = |what: Counted| {
        let Count {
            value,
            enabled,
            running,
        } = sums[what as usize];
        let reading = tlb::Reading {
            value,
            enabled,
            running,
        };
        is_there[what as usize].then_some(reading)
    };
    let scaled = |what| of(what).and_then(tlb::Reading::scaled);
    let data = match (
        scaled(Counted::DataLoadMisses),
        scaled(Counted::DataStoreMisses),
    ) {
        (None, None) => None,
        (loads, stores) => Some(loads.unwrap_or(0.0) + stores.unwrap_or(0.0)),
    };
    let shares = Counted::ALL
        .into_iter()
        .filter_map(of)
        .map(tlb::Reading::share);
    let counts = tlb::Counts {
        instructions: scaled(Counted::Instructions),
        data,
        fetches: scaled(Counted::FetchMisses),
        counted: shares.fold(1.0, f64::min),
    };
    let table = counts.instructions.map(|instructions| Tlb {
        instructions,
        data_misses: counts.data,
        instruction_misses: counts.fetches,
        data_per_thousand: counts.data_per_thousand(),
        instruction_per_thousand: counts.fetches_per_thousand(),
        counted: counts.counted,
    });
    let source = sources::tlb(counted.refused.as_ref(), table.is_some(), selection);
    (table, source)
}
