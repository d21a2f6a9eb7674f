//! Without BPF: what `/proc`, the accounting of processes and samples of page faults tell.

use std::io;

use amdahl_mem::first_touch::Touches;
use amdahl_probe::bpf::wire::stack_kind;
use amdahl_probe::bpf::{Part, Places, RecorderError};
use amdahl_probe::perf::{Counter, FAULTS_PER_SAMPLE, LeftOut, Rate, Sampler, View, Whose};
use amdahl_report::mem::schema::{FaultKind, FaultSite, Faults, MemResult};
use amdahl_report::schema::{Notice, Source};
use amdahl_topology::CpuSet;

use super::follow::Tlb;
use super::look::Looker;
use super::{Outcome, Parts, result, sources, tlb_misses, while_looking};
use crate::child::{Child, Ended};
use crate::cli::Mem;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::watch::{self, processes};

/// Samples of time are not wanted: as few as there can be.
const RATE: Rate = Rate {
    hz: 1,
    clock_hz: 2_000_000_000,
};

/// Watches without BPF; `why` it cannot be used, if that was tried.
pub fn watched(
    args: &Mem,
    cpus: &CpuSet,
    why: Option<RecorderError>,
    looker: &Looker,
    interrupt: &Interrupt,
) -> Result<Parts, Failure> {
    let begun = std::time::Instant::now();
    let mut tlb = Tlb::default();
    let selection = &args.selection;
    let child = watch::start(selection, cpus, &[])?;
    let root = selection.pid.or(child.as_ref().map(Child::pid));
    let tids = root.map(processes::threads).unwrap_or_default();
    if !tids.is_empty() {
        tlb.count(Whose::Threads(&tids));
    }
    let mut warnings = Vec::new();
    let sampler = child.as_ref().and_then(|child| {
        looker.begin_at(child.pid());
        let all: Vec<u32> = cpus.iter().collect();
        let sampler = View::allowed();
        match sampler.and_then(|_| Sampler::new(child.pid(), &all, View::User, RATE)) {
            Ok(sampler) => {
                let faults = |left: &&LeftOut| left.counter == Counter::PageFaults;
                let left_out = sampler.left_out().iter().find(faults);
                warnings.extend(left_out.map(|left| unsampled(&left.error)));
                Some(sampler)
            }
            // The sources say by what means faults are seen.
            Err(error) if is_refused(&error) => None,
            Err(error) => {
                warnings.push(unsampled(&error));
                None
            }
        }
    });
    let (ended, looked) = while_looking(looker, interrupt, || {
        watch::run(selection, child, interrupt, || ())
    });
    let (ended, part) = (ended?, sampler.map(|sampler| sampler.end().0));
    let faults = faults(ended.as_ref(), part);
    let (tlb, tlb_source) = tlb_misses(&tlb);
    let mut all = without(why.as_ref(), &faults, args.holds);
    all.push(tlb_source);
    let result = MemResult {
        duration_s: begun.elapsed().as_secs_f64(),
        tlb,
        sources: all,
        faults,
        warnings,
        ..MemResult::default()
    };
    let rows = result::sample_rows(&result.faults, &result.mmap_lock);
    let outcome = Outcome {
        result,
        rows,
        ended,
    };
    Ok((outcome, looked, Touches::default()))
}

/// Perf events are not for this user, or are not there.
fn is_refused(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported
    )
}

/// What is allowed may fail for want of memory or descriptors.
fn unsampled(error: &io::Error) -> Notice {
    Notice {
        code: "unsampled".to_owned(),
        text: format!(
            "Page faults were not sampled ({error}): they are counted, and their code is not known. Where too many \
             files are open: ulimit -n 65536."
        ),
    }
}

/// Counts by the kernel's accounting, code by samples.
fn faults(ended: Option<&Ended>, part: Option<Part>) -> Faults {
    let Some(ended) = ended else {
        return Faults::default();
    };
    let kind = |kind: &str, count: u64| FaultKind {
        kind: kind.to_owned(),
        count,
        ..FaultKind::default()
    };
    let count = ended.faults + ended.major_faults;
    let sites = part.map(sites).unwrap_or_default();
    let listed: u64 = sites.iter().map(|site| site.count).sum();
    Faults {
        count,
        accounted: Some(count),
        kinds: vec![
            kind("minor", ended.faults),
            kind("major", ended.major_faults),
        ],
        left_out: count.saturating_sub(listed),
        sites,
        ..Faults::default()
    }
}

/// One sample stands for many faults.
fn sites(mut part: Part) -> Vec<FaultSite> {
    part.stacks.retain(|stack| stack.kind == stack_kind::FAULT);
    let mut by_code: std::collections::HashMap<_, FaultSite> = Default::default();
    let mut places = Places::default();
    for (pid, stack) in places.name(&mut part) {
        let code = result::code(Some(&stack));
        let key = (pid, code.stack.clone(), code.line);
        let site = by_code.entry(key).or_insert_with(|| FaultSite {
            kind: "sampled".to_owned(),
            pid,
            code,
            ..FaultSite::default()
        });
        site.count += FAULTS_PER_SAMPLE;
    }
    let mut sites: Vec<FaultSite> = by_code.into_values().collect();
    sites.sort_by_key(|site| std::cmp::Reverse((site.count, site.pid)));
    sites.truncate(500);
    sites
}

fn without(why: Option<&RecorderError>, faults: &Faults, has_holds: bool) -> Vec<Source> {
    let text = match why {
        Some(error) => format!("BPF cannot be used ({error})."),
        None => "not asked for (--probe proc).".to_owned(),
    };
    let remedy = match why {
        Some(error) => watch::bpf_remedy(error),
        None => "leave out --probe proc, as root",
    };
    let how = if faults.sites.is_empty() {
        "rusage"
    } else {
        "rusage and perf events"
    };
    let how = if faults.count == 0 { "missing" } else { how };
    let mut sources = vec![Source {
        what: "page faults".to_owned(),
        how: how.to_owned(),
        missing: format!("kinds and times of faults: {text}"),
        remedy: remedy.to_owned(),
    }];
    sources.extend(sources::not_recorded(&text, remedy, has_holds));
    sources
}
