//! Without BPF: what `/proc`, the accounting of processes and samples of page faults tell.

use std::io;

use amdahl_mem::first_touch::Touches;
use amdahl_probe::bpf::wire::stack_kind;
use amdahl_probe::bpf::{Part, Places, RecorderError};
use amdahl_probe::perf::{Counter, FAULTS_PER_SAMPLE, LeftOut, Rate, Sampler, View, Whose};
use amdahl_report::mem::schema::{FaultKind, FaultSite, Faults, MemResult};
use amdahl_report::schema::{Notice, Source};
use amdahl_topology::CpuSet;

use super::accounted::Accounted;
use super::follow::Tlb;
use super::look::Looker;
use super::{Outcome, Parts, result, sources, tlb_misses, while_looking};
use crate::child::{Child, Ended};
use crate::cli::{Mem, Selection};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::watch;

/// Events are opened on those who are there, and inherited by what they start.
const JOINED: &str = "processes that joined the control group later";

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
    let selection = &args.selection;
    let child = watch::start(selection, cpus, &[])?;
    if let Some(child) = &child {
        looker.begin_at(child.pid());
    }
    let tlb = count_misses(selection, child.as_ref(), cpus);
    let mut places = Places::default();
    let mut warnings = Vec::new();
    let sampler = match sampler(selection, child.as_ref(), cpus, &mut places) {
        Ok(sampler) => {
            let faults = |left: &&LeftOut| left.counter == Counter::PageFaults;
            let left_out = sampler.iter().flat_map(Sampler::left_out).find(faults);
            warnings.extend(left_out.map(|left| unsampled(&left.error)));
            sampler
        }
        // The sources say by what means faults are seen.
        Err(error) if is_refused(&error) => None,
        Err(error) => {
            warnings.push(unsampled(&error));
            None
        }
    };
    // The kernel tells of a command that has ended what all its processes had.
    let mut accounted = (child.is_none() || selection.system).then(|| Accounted::new(selection));
    let (ended, looked) = while_looking(looker, interrupt, || {
        let watch = || watch::run(selection, child, interrupt, || ());
        match &mut accounted {
            Some(accounted) => accounted.while_looking(watch),
            None => watch(),
        }
    });
    let (ended, part) = (ended?, sampler.map(|sampler| sampler.end().0));
    let sites = part.map(|part| sites(part, places)).unwrap_or_default();
    let is_sampled = !sites.is_empty();
    let faults = match (&accounted, &ended) {
        (Some(accounted), _) => with_code(accounted.faults(), sites),
        (None, Some(ended)) => faults(ended, sites),
        (None, None) => Faults::default(),
    };
    let (tlb, mut tlb_source) = tlb_misses(&tlb, selection);
    let mut all = without(why.as_ref(), selection, is_sampled, args.holds);
    if selection.cgroup.is_some() && tlb.is_some() {
        tlb_source.missing = format!("those of {JOINED}.");
        tlb_source.remedy = all[0].remedy.clone();
    }
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

/// Counts misses of TLBs from now on; of processes, in all that come of them.
fn count_misses(selection: &Selection, child: Option<&Child>, cpus: &CpuSet) -> Tlb {
    let mut tlb = Tlb::default();
    if selection.system {
        tlb.count_all(cpus);
        return tlb;
    }
    let root = selection.pid.or(child.map(Child::pid));
    for (_, tids) in watch::present(selection, root) {
        tlb.count(Whose::Threads(&tids));
    }
    tlb
}

/// Samples page faults, but for those of the whole system, where each sample would be of everybody. `places` gets to
/// know who runs already.
fn sampler(
    selection: &Selection,
    child: Option<&Child>,
    cpus: &CpuSet,
    places: &mut Places,
) -> io::Result<Option<Sampler>> {
    if selection.system {
        return Ok(None);
    }
    View::allowed()?;
    let cpus: Vec<u32> = cpus.iter().collect();
    if let Some(child) = child {
        return Sampler::new(child.pid(), &cpus, View::User, RATE).map(Some);
    }
    let mut all = Vec::new();
    for (pid, tids) in watch::present(selection, selection.pid) {
        places.attach(pid);
        all.extend(tids);
    }
    if all.is_empty() {
        return Ok(None);
    }
    match Sampler::of_running(&all, &cpus, View::User, RATE) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        sampler => sampler.map(Some),
    }
}

/// Counts by the kernel's accounting, code by samples.
fn faults(ended: &Ended, sites: Vec<FaultSite>) -> Faults {
    let kind = |kind: &str, count: u64| FaultKind {
        kind: kind.to_owned(),
        count,
        ..FaultKind::default()
    };
    let count = ended.faults + ended.major_faults;
    let counted = Faults {
        count,
        kinds: vec![
            kind("minor", ended.faults),
            kind("major", ended.major_faults),
        ],
        left_out: count,
        ..Faults::default()
    };
    with_code(counted, sites)
}

/// Places in the code instead of processes, where they are known.
fn with_code(counted: Faults, sites: Vec<FaultSite>) -> Faults {
    let accounted = Some(counted.count);
    if sites.is_empty() {
        return Faults {
            accounted,
            ..counted
        };
    }
    let listed: u64 = sites.iter().map(|site| site.count).sum();
    Faults {
        accounted,
        left_out: counted.count.saturating_sub(listed),
        sites,
        ..counted
    }
}

/// One sample stands for many faults.
fn sites(mut part: Part, mut places: Places) -> Vec<FaultSite> {
    part.stacks.retain(|stack| stack.kind == stack_kind::FAULT);
    let mut by_code: std::collections::HashMap<_, FaultSite> = Default::default();
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

/// What is missing without BPF, which cannot be used for the reason `why`.
fn without(
    why: Option<&RecorderError>,
    selection: &Selection,
    is_sampled: bool,
    has_holds: bool,
) -> Vec<Source> {
    let text = match why {
        Some(error) => format!("BPF cannot be used ({error})."),
        None => "not asked for (--probe proc).".to_owned(),
    };
    let remedy = match why {
        Some(error) => watch::bpf_remedy(error),
        None => "leave out --probe proc, as root",
    };
    let is_command = !selection.command.is_empty() && !selection.system;
    let counts = if is_command { "rusage" } else { "/proc" };
    let (how, code) = match is_sampled {
        true => (format!("{counts} and perf events"), ""),
        false => (counts.to_owned(), ", and their code"),
    };
    let mut missing = format!("kinds and times of faults{code}: {text}");
    if !is_command {
        missing += " Processes are looked at twice a second, more seldom if there are thousands: what they had between the \
                    last look and their end counts only where who started them waits for them and is watched, too.";
    }
    if is_sampled && selection.cgroup.is_some() {
        missing += &format!(" The code of {JOINED}.");
    }
    let mut sources = vec![Source {
        what: "page faults".to_owned(),
        how,
        missing,
        remedy: remedy.to_owned(),
    }];
    sources.extend(sources::not_recorded(&text, remedy, has_holds));
    sources
}
