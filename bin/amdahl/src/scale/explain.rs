//! Which code each cause is charged to, and one line in plain words about it.

use std::collections::{BTreeMap, HashMap};

use amdahl_probe::bpf::{Decoded, Decoder};
use amdahl_report::point::PointId;
use amdahl_report::schema::{CauseReport, ProfileEntry, SampleRow, Site};
use amdahl_speedup::cause::Cause;
use amdahl_speedup::event::{CallStack, Frame, StackId, Tid};
use amdahl_speedup::partition::{Activity, ChargeKey, HYPERVISOR, INTERRUPTS, QUOTA};
use amdahl_speedup::primitive::seen_frames;
use amdahl_speedup::stack::{FunctionGrowth, Stack, UserGrowth, function_id};
use amdahl_speedup::wait::{INTERPRETER, is_libc, is_runtime};

use super::run::Probed;
use super::sites;

/// A charge with its place.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) cause: Cause,
    pub(super) tid: Tid,
    pub(super) stack: Option<StackId>,
    pub(super) object: u64,
    pub(super) ns: f64,
    count: u64,
}

/// All charges of a run, on and off CPU, by cause, as far as it is accounted for standing for all of it. `growth` is that of the
/// whole point.
fn pieces(run: &Probed, growth: &UserGrowth, stack: &Stack) -> Vec<Piece> {
    let (partition, decoded) = (&run.partition, &run.decoded);
    let capacity = run.measured.capacity_ns;
    let stands_for = capacity / partition.capacity_ns().max(f64::MIN_POSITIVE);
    let mut pieces = Vec::new();
    let mut push = |cause, tid, stack, object, ns, count| {
        if ns > 0.0 {
            pieces.push(Piece {
                cause,
                tid,
                stack,
                object,
                ns,
                count,
            });
        }
    };
    for (
        &ChargeKey {
            cause,
            tid,
            stack,
            object,
        },
        charge,
    ) in &partition.off
    {
        let ns = charge.ns * stands_for;
        push(cause, tid, stack, object, ns, charge.count);
    }
    let share = |cause| stack.get(cause);
    // What no event tells has no place.
    let untold = share(Cause::Unexplained) * capacity - run.measured.off(Cause::Unexplained);
    push(Cause::Unexplained, 0, None, 0, untold, 0);
    // What the hypervisor took was taken from whatever ran.
    let stolen = run.measured.steal_ns;
    push(Cause::Stolen, 0, None, HYPERVISOR, stolen, 0);
    let ran = (partition.on_cpu_ns * stands_for).max(1.0);
    let stands_for = stands_for * (1.0 - stolen / ran).max(0.0);
    let on = |of: Activity| {
        let charges = partition.on.iter();
        let charges = charges.filter(|((activity, ..), _)| *activity == of);
        charges.map(|(_, charge)| charge.ns).sum::<f64>() * stands_for
    };
    // Tracepoints time what spins with interrupts off, where samples are blind and see other kernel code instead.
    let spun_unseen = (run.measured.on(Activity::KernelLock) - on(Activity::KernelLock)).max(0.0);
    let spun: f64 = partition.spun.values().map(|charge| charge.ns).sum();
    let mut samples: HashMap<u64, u64> = HashMap::new();
    for (&(lock, ..), &count) in &partition.spun_at {
        *samples.entry(lock).or_default() += count;
    }
    let spun_of = |lock: u64| {
        let charge = partition.spun.get(&lock).copied().unwrap_or_default();
        let ns = spun_unseen * charge.ns / spun.max(f64::MIN_POSITIVE);
        (ns, charge.count)
    };
    for &lock in partition.spun.keys() {
        if !samples.contains_key(&lock) {
            let (ns, count) = spun_of(lock);
            push(Cause::KernelLock, 0, None, lock, ns, count);
        }
    }
    for (&(lock, tid, stack), &count) in &partition.spun_at {
        let (ns, times) = spun_of(lock);
        let part = count as f64 / samples[&lock] as f64;
        let times = (times as f64 * part) as u64;
        push(Cause::KernelLock, tid, Some(stack), lock, ns * part, times);
    }
    let not_spun = (1.0 - spun_unseen / on(Activity::Kernel).max(1.0)).max(0.0);
    let function = |id: StackId| {
        let stack = decoded.stacks.get(id.0 as usize);
        let frame = stack.and_then(|stack| stack.user.first());
        function_id(frame.map_or("", |frame| frame.symbol.as_str()))
    };
    let mut user: HashMap<u64, f64> = HashMap::new();
    for (&(activity, _, id), charge) in &partition.on {
        if activity == Activity::User {
            *user.entry(function(id)).or_default() += charge.ns * stands_for;
        }
    }
    // Of kernel code that one CPU runs too, the part beyond it is the cause's, the rest is work.
    let beyond = |total: f64, cause: Cause| (share(cause) * capacity / total.max(1.0)).min(1.0);
    let extra_kernel = beyond(on(Activity::Kernel) * not_spun, Cause::ExtraKernel);
    let extra_faults = beyond(on(Activity::PageFault), Cause::PageFault);
    for (&(activity, tid, id), charge) in &partition.on {
        let (ns, count) = (charge.ns * stands_for, charge.count);
        match activity {
            Activity::User => {
                let function = function(id);
                let of_function = growth.functions.get(&function).copied().unwrap_or_default();
                let (extra, slow) = (of_function.extra_ns, of_function.slow_ns);
                let part = ns / user[&function].max(1.0);
                let extra = if share(Cause::ExtraWork) > 0.0 {
                    (extra * part).max(0.0).min(ns)
                } else {
                    0.0
                };
                let slow = if share(Cause::SlowWork) > 0.0 {
                    (slow * part).max(0.0).min(ns - extra)
                } else {
                    0.0
                };
                push(Cause::ExtraWork, tid, Some(id), 0, extra, count);
                push(Cause::SlowWork, tid, Some(id), 0, slow, count);
                push(Cause::Work, tid, Some(id), 0, ns - extra - slow, count);
            }
            Activity::UserSpin => push(Cause::UserSpin, tid, Some(id), 0, ns, count),
            Activity::PageFault => {
                push(Cause::PageFault, tid, Some(id), 0, ns * extra_faults, count);
                push(
                    Cause::Work,
                    tid,
                    Some(id),
                    0,
                    ns * (1.0 - extra_faults),
                    count,
                );
            }
            Activity::KernelLock => push(Cause::KernelLock, tid, Some(id), 0, ns, count),
            Activity::MmapLock => push(Cause::MmapLock, tid, Some(id), 0, ns, count),
            Activity::Interrupt => push(Cause::Stolen, tid, Some(id), INTERRUPTS, ns, count),
            Activity::Kernel => {
                let ns = ns * not_spun;
                let extra = ns * extra_kernel;
                push(Cause::ExtraKernel, tid, Some(id), 0, extra, count);
                push(Cause::Work, tid, Some(id), 0, ns - extra, count);
            }
        }
    }
    pieces
}

pub(super) fn thread_names(decoded: &Decoded, tid: Tid) -> (String, String, Tid) {
    match decoded.threads.get(&tid) {
        Some(thread) => {
            let process = decoded
                .threads
                .get(&thread.pid)
                .map_or(&thread.name, |main| &main.name);
            (process.clone(), thread.name.clone(), thread.pid)
        }
        None if tid == 0 => Default::default(),
        None => (String::new(), format!("[{tid}]"), tid),
    }
}

/// Below it programs have no memory.
const LOWEST_ADDRESS: u64 = 0x1000;

pub(super) fn object_text(decoded: &Decoded, cause: Cause, object: u64) -> String {
    match (cause, object) {
        (Cause::Stolen, QUOTA) => "CPU quota".to_owned(),
        (Cause::Stolen, HYPERVISOR) => "hypervisor".to_owned(),
        (Cause::Stolen, INTERRUPTS) => "interrupts".to_owned(),
        (Cause::Stolen, 0) => "other processes".to_owned(),
        (_, 0) => String::new(),
        (Cause::Stolen, tid) => match decoded.others.get(&(tid as Tid)) {
            Some(name) => format!("{name} [{tid}]"),
            None => format!("thread {tid}"),
        },
        (Cause::Partner | Cause::Io, tid) if tid < 1 << 22 => {
            let name = decoded
                .threads
                .get(&(tid as Tid))
                .map(|thread| &thread.name);
            match name.or_else(|| decoded.others.get(&(tid as Tid))) {
                Some(name) => format!("woken by {name} [{tid}]"),
                None => format!("woken by thread {tid}"),
            }
        }
        // flock and fcntl are told which descriptor, semop which set; no lock lies at such an address.
        (Cause::LockWait, number) if number < LOWEST_ADDRESS => {
            format!("file descriptor or semaphore set {number}")
        }
        (Cause::LockWait | Cause::Barrier | Cause::KernelLock | Cause::MmapLock, address) => {
            format!("lock {address:#x}")
        }
        // Of a condition that nothing names, where nobody was seen who ended the wait.
        (Cause::Partner, address) => format!("futex {address:#x}"),
        _ => String::new(),
    }
}

/// The frame that a reader should look at: the innermost of the program's own code.
pub(super) fn own_frame(stack: &CallStack) -> Option<&Frame> {
    let named = |frame: &&Frame| !frame.symbol.is_empty() && frame.symbol != "[unknown]";
    stack
        .user
        .iter()
        .filter(named)
        .find(|frame| !is_runtime(frame))
        .or_else(|| stack.user.iter().find(|frame| frame.symbol == INTERPRETER))
        .or_else(|| {
            stack
                .user
                .iter()
                .filter(named)
                .find(|frame| !is_libc(frame))
        })
        .or_else(|| stack.user.iter().find(named))
        .or(stack.kernel.first())
}

pub(super) fn frames(stack: &CallStack) -> Vec<String> {
    seen_frames(stack)
        .iter()
        .chain(&stack.user)
        .map(|frame| frame.symbol.clone())
        .collect()
}

/// Functions of the profile at most.
const PROFILE_MAX: usize = 50;

/// User code whose time has grown or shrunk most, against the same work on one CPU.
pub fn profile(run: &Probed, growth: &UserGrowth) -> Vec<ProfileEntry> {
    let capacity = run.measured.capacity_ns.max(1.0);
    let change = |of: &FunctionGrowth| (of.ns - of.base_ns).abs();
    let mut functions: Vec<_> = growth
        .functions
        .iter()
        .filter(|(_, of)| change(of) > 0.002 * capacity)
        .collect();
    functions.sort_by(|a, b| change(b.1).total_cmp(&change(a.1)));
    functions.truncate(PROFILE_MAX);
    let stacks = run.decoded.stacks.iter();
    let innermost = stacks.filter_map(|stack| stack.user.first());
    let names: HashMap<u64, &Frame> = innermost
        .map(|frame| (function_id(&frame.symbol), frame))
        .collect();
    // What only other runs have seen has no name here.
    let named = functions
        .into_iter()
        .filter_map(|(id, of)| Some((names.get(id)?, of)));
    named
        .map(|(frame, of)| ProfileEntry {
            symbol: frame.symbol.clone(),
            module: frame.module.clone(),
            user_s: of.ns * 1e-9,
            base_user_s: of.base_ns * 1e-9,
            extra_work: of.extra_ns / capacity,
            slow_work: of.slow_ns / capacity,
            instructions_ratio: of.instructions_ratio,
            slowdown: of.slowdown,
        })
        .collect()
}

/// The causes of one point in falling order without `work`, with their sites.
pub fn causes(
    run: &Probed,
    decoder: &mut Decoder,
    growth: &UserGrowth,
    stack: &Stack,
) -> Vec<CauseReport> {
    let pieces = pieces(run, growth, stack);
    let mut reports: Vec<CauseReport> = Cause::ALL
        .into_iter()
        .filter(|&cause| cause != Cause::Work && stack.get(cause) > 0.0005)
        .map(|cause| {
            let mine: Vec<&Piece> = pieces.iter().filter(|piece| piece.cause == cause).collect();
            let sites = sites::sites(run, decoder, cause, &mine, stack.get(cause));
            let fraction = stack.get(cause);
            let by = match cause {
                Cause::Stolen => taken_by(fraction, &mine, &run.decoded),
                _ => about(sites.first()),
            };
            let mut text = text(cause, fraction, sites.first(), &by, growth);
            if lacks_call_site(cause, &mine, &run.decoded) {
                text += LOCKS_TELLS;
            }
            CauseReport {
                id: cause.id().to_owned(),
                fraction,
                text,
                sites,
            }
        })
        .collect();
    reports.sort_by(|a, b| b.fraction.total_cmp(&a.fraction));
    reports
}

/// What a site is about, to be said after where it is, unless it stands there.
fn about(site: Option<&Site>) -> String {
    match site {
        Some(site) if !site.object.is_empty() && site.object != site.symbol => {
            format!(", {}", site.object)
        }
        _ => String::new(),
    }
}

/// Who took most of what was taken, whatever code that came between.
fn taken_by(fraction: f64, pieces: &[&Piece], decoded: &Decoded) -> String {
    let mut takers: BTreeMap<String, f64> = BTreeMap::new();
    for piece in pieces {
        let taker = object_text(decoded, Cause::Stolen, piece.object);
        *takers.entry(taker).or_default() += piece.ns;
    }
    let all: f64 = takers.values().sum();
    match takers.iter().max_by(|a, b| a.1.total_cmp(b.1)) {
        Some((taker, ns)) if takers.len() > 1 => {
            format!(", most by {taker}: {:.1} %", fraction * ns / all * 100.0)
        }
        Some((taker, _)) => format!(" by {taker}"),
        None => String::new(),
    }
}

/// Without BPF there are kernel stacks of samples at most.
const LOCKS_TELLS: &str =
    " Where in the kernel: amdahl locks -- COMMAND tells the call site (with BPF).";

/// Most of the time that a lock of the kernel cost is of threads whose kernel stack is not known.
fn lacks_call_site(cause: Cause, pieces: &[&Piece], decoded: &Decoded) -> bool {
    if !matches!(cause, Cause::KernelLock | Cause::MmapLock) {
        return false;
    }
    let is_known = |piece: &&&Piece| {
        let stack = piece.stack.and_then(|id| decoded.stacks.get(id.0 as usize));
        stack.is_some_and(|stack| !stack.kernel.is_empty())
    };
    let all: f64 = pieces.iter().map(|piece| piece.ns).sum();
    let known: f64 = pieces.iter().filter(is_known).map(|piece| piece.ns).sum();
    known * 2.0 < all
}

fn text(cause: Cause, fraction: f64, top: Option<&Site>, by: &str, growth: &UserGrowth) -> String {
    use amdahl_speedup::stack::ToldBy;
    let percent = format!("{:.1} %", fraction * 100.0);
    let at = match top {
        Some(site) if !site.symbol.is_empty() => {
            let place = match (&site.file, site.line) {
                (Some(file), Some(line)) => {
                    format!(" ({}:{line})", file.rsplit('/').next().unwrap_or(file))
                }
                _ => String::new(),
            };
            format!(", most in {}{place}", site.symbol)
        }
        _ => String::new(),
    };
    match cause {
        Cause::ExtraWork => {
            format!("{percent} went to code that one CPU does not run, or runs less often{at}.")
        }
        Cause::SlowWork => {
            let how = match growth.told_by {
                ToldBy::Instructions => "by instruction counts",
                ToldBy::Progress => "by the speed of its loops; no instruction counter here",
                ToldBy::Nothing => {
                    "growth of user time; no instruction counter here, so it may be extra work"
                }
            };
            format!(
                "{percent} because the same code runs slower ({how}): caches, memory, shared lines{at}."
            )
        }
        Cause::ExtraKernel => format!("{percent} is kernel time that one CPU does not need{at}."),
        Cause::PageFault => {
            format!("{percent} is time in page faults that one CPU does not need{at}.")
        }
        Cause::UserSpin => format!("{percent} was burnt in spin loops{at}."),
        Cause::KernelLock => format!("{percent} was spent on locks inside the kernel{at}{by}."),
        Cause::MmapLock => format!(
            "{percent} was spent on the address-space lock (mmap, munmap, page faults){at}."
        ),
        Cause::LockWait => format!("{percent} idle while threads waited for a lock{at}{by}."),
        Cause::Barrier => {
            format!("{percent} idle while threads waited for others at a barrier{at}.")
        }
        Cause::Partner => {
            format!("{percent} idle while threads waited for another thread or process{at}{by}.")
        }
        Cause::Serial => format!(
            "{percent} idle because fewer threads had work than there are CPUs; meanwhile ran{}.",
            at.trim_start_matches(", most in").to_owned()
                + if at.is_empty() {
                    " nothing of the program"
                } else {
                    ""
                }
        ),
        Cause::Io => {
            format!("{percent} idle while threads waited for storage or an outside peer{at}{by}.")
        }
        Cause::Sleep => format!("{percent} idle while threads slept until a timer{at}."),
        Cause::Placement => {
            format!("{percent} idle although a thread was ready to run on a busy CPU{at}.")
        }
        Cause::Stolen => format!("{percent} was taken away{by}."),
        Cause::Unexplained => format!("{percent} could not be explained{at}."),
        _ => format!("{percent}{at}."),
    }
}

/// Rows for the Parquet file.
pub fn rows(
    run: &Probed,
    decoder: &mut Decoder,
    growth: &UserGrowth,
    stack: &Stack,
    on: PointId,
    number: u32,
    full: bool,
) -> Vec<SampleRow> {
    let pieces = pieces(run, growth, stack);
    let mut known: HashMap<StackId, (Frame, String)> = HashMap::new();
    let mut rows = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let (process, thread, pid) = thread_names(&run.decoded, piece.tid);
        let (frame, stack) = match piece.stack {
            Some(id) => known
                .entry(id)
                .or_insert_with(|| {
                    let stack = if full {
                        decoder.full(&run.decoded, id)
                    } else {
                        (*run.decoded.stacks[id.0 as usize]).clone()
                    };
                    (
                        own_frame(&stack).cloned().unwrap_or_default(),
                        frames(&stack).join(";"),
                    )
                })
                .clone(),
            None => Default::default(),
        };
        rows.push(SampleRow {
            cpus: on.cpus(),
            threads: on.threads(),
            run: number,
            pid,
            tid: piece.tid,
            process,
            thread,
            cause: piece.cause.id().to_owned(),
            charged_ns: piece.ns as u64,
            count: piece.count,
            symbol: frame.symbol,
            file: frame.file.unwrap_or_default(),
            line: frame.line.unwrap_or(0),
            stack,
            object: object_text(&run.decoded, piece.cause, piece.object),
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use amdahl_probe::bpf::Counts;
    use amdahl_speedup::partition::{Charge, RunPartition};
    use amdahl_speedup::stack::speedup_stack;

    use super::*;
    use crate::child::Ended;
    use crate::scale::analysis::Analysed;

    fn decoded() -> Decoded {
        let frame = Frame {
            symbol: "function".to_owned(),
            ..Frame::default()
        };
        let user = CallStack {
            user: vec![frame.clone()],
            ..CallStack::default()
        };
        let kernel = CallStack {
            kernel: vec![frame],
            ..user.clone()
        };
        Decoded::after(vec![Arc::new(user), Arc::new(kernel)])
    }

    fn piece(cause: Cause, stack: Option<u32>, ns: f64) -> Piece {
        Piece {
            cause,
            tid: 1,
            stack: stack.map(StackId),
            object: 0,
            ns,
            count: 1,
        }
    }

    /// One CPU for a second, of which the hypervisor took a quarter from who ran: what was seen of others, and of a lock, is next
    /// to nothing.
    fn with_steal_and_spinning() -> Probed {
        let charge = |ns| Charge { ns, count: 1 };
        let key = |cause, object| ChargeKey {
            cause,
            tid: 7,
            stack: None,
            object,
        };
        let mut partition = RunPartition {
            to: 1_000_000_000,
            cpus: 1,
            on_cpu_ns: 0.9e9,
            other_ns: 0.01e9,
            idle_ns: 0.09e9,
            spun_ns: 0.3e9,
            ..RunPartition::default()
        };
        partition.off.extend([
            (key(Cause::Stolen, 77), charge(0.01e9)),
            (key(Cause::KernelLock, 0xabc), charge(0.09e9)),
        ]);
        partition.on.extend([
            ((Activity::User, 1, StackId(0)), charge(0.5e9)),
            ((Activity::Kernel, 1, StackId(1)), charge(0.4e9)),
        ]);
        partition.spun.insert(0xdef, charge(0.3e9));
        let analysed = Analysed {
            partition,
            decoded: decoded(),
            seconds: 0.0,
            covered: 1.0,
            cut: 1.0,
        };
        let ended = Ended {
            outcome: Ok(()),
            wall: std::time::Duration::from_secs(1),
            timed_out: false,
            user_s: 0.5,
            system_s: 0.4,
            faults: 0,
            major_faults: 0,
            stdout: String::new(),
            stderr: String::new(),
        };
        Probed::new(ended, analysed, 250_000_000, &Counts::default())
    }

    #[test]
    fn pieces_add_up_to_the_stack_and_name_what_took_most() {
        let run = with_steal_and_spinning();
        let (stack, growth) = speedup_stack(&run.measured, None);
        let pieces = pieces(&run, &growth, &stack);
        for cause in Cause::ALL {
            let mine = pieces.iter().filter(|piece| piece.cause == cause);
            let sum: f64 = mine.map(|piece| piece.ns).sum();
            let (found, told) = (sum / run.measured.capacity_ns, stack.get(cause));
            assert!((found - told).abs() < 1e-9, "{cause:?}: {found} for {told}");
        }
        let reports = causes(&run, &mut Decoder::new(), &growth, &stack);
        let first = |cause: Cause| {
            let report = reports.iter().find(|report| report.id == cause.id());
            report.map_or(String::new(), |report| report.sites[0].object.clone())
        };
        assert_eq!(first(Cause::Stolen), "hypervisor");
        let stolen = reports.iter().find(|report| report.id == "stolen");
        let text = &stolen.expect("a quarter is").text;
        assert!(text.contains("taken away, most by hypervisor: "), "{text}");
        assert_eq!(first(Cause::KernelLock), "lock 0xdef");
    }

    #[test]
    fn locks_on_files_have_no_address() {
        let text = |cause, object| object_text(&decoded(), cause, object);
        assert_eq!(
            text(Cause::LockWait, 4),
            "file descriptor or semaphore set 4"
        );
        assert_eq!(text(Cause::LockWait, 0x7f00), "lock 0x7f00");
        assert_eq!(text(Cause::KernelLock, 4), "lock 0x4");
        assert_eq!(text(Cause::LockWait, 0), "");
        assert_eq!(text(Cause::Partner, 0), "");
    }

    #[test]
    fn a_condition_without_a_name_has_the_address_of_its_futex() {
        let text = object_text(&decoded(), Cause::Partner, 0x7f00_0000_1000);
        assert_eq!(text, "futex 0x7f0000001000");
    }

    #[test]
    fn spinning_that_samples_do_not_see_is_named_by_the_stacks_of_the_lock() {
        let mut run = with_steal_and_spinning();
        run.partition
            .spun_at
            .extend([((0xdef, 3, StackId(1)), 2), ((0xdef, 4, StackId(0)), 1)]);
        run.partition.spun.insert(
            0xfed,
            Charge {
                ns: 0.1e9,
                count: 1,
            },
        );
        let (stack, growth) = speedup_stack(&run.measured, None);
        let pieces = pieces(&run, &growth, &stack);
        let spun: BTreeMap<(u64, Tid), f64> = pieces
            .iter()
            .filter(|piece| piece.cause == Cause::KernelLock && piece.object != 0xabc)
            .map(|piece| ((piece.object, piece.tid), piece.ns))
            .collect();
        let all: f64 = spun.values().sum();
        let is = |lock, tid, part: f64| (spun[&(lock, tid)] / all - part).abs() < 1e-9;
        assert!(
            is(0xdef, 3, 0.5) && is(0xdef, 4, 0.25) && is(0xfed, 0, 0.25) && spun.len() == 3,
            "{spun:?}"
        );
        let reports = causes(&run, &mut Decoder::new(), &growth, &stack);
        let locks = reports.iter().find(|report| report.id == "kernel-lock");
        let locks = locks.expect("a third is");
        assert_eq!(locks.sites[0].symbol, "function");
        assert!(
            locks.text.contains(" most in function, lock 0xdef in the"),
            "{}",
            locks.text
        );
    }

    /// Two lines of one function that want two locks were one site, which had the address of the one and the time of both.
    #[test]
    fn waits_on_different_lines_are_different_sites() {
        let wait = |line| {
            let frame = Frame {
                symbol: "take_both".to_owned(),
                file: Some("both.c".to_owned()),
                line: Some(line),
                ..Frame::default()
            };
            Arc::new(CallStack {
                user: vec![frame],
                ..CallStack::default()
            })
        };
        let mut run = with_steal_and_spinning();
        run.decoded = Decoded::after(vec![wait(7), wait(9), wait(9)]);
        let waits = [
            (0, 0xa000, 3.0),
            (1, 0xb000, 1.0),
            (2, 0xb000, 0.5),
            (1, 0xc000, 0.5),
        ];
        let pieces = waits.map(|(stack, object, ns)| Piece {
            object,
            ..piece(Cause::LockWait, Some(stack), ns)
        });
        let pieces: Vec<&Piece> = pieces.iter().collect();
        let told = |cause| {
            let sites = sites::sites(&run, &mut Decoder::new(), cause, &pieces, 0.5);
            let told = sites.into_iter();
            told.map(|site| (site.line, (site.fraction * 1e3).round() as u32, site.object))
                .collect::<Vec<_>>()
        };
        let of_b = "lock 0xb000 (75 %) and another".to_owned();
        assert_eq!(
            told(Cause::LockWait),
            [
                (Some(7), 300, "lock 0xa000".to_owned()),
                (Some(9), 200, of_b.clone())
            ]
        );
        // What runs on several lines is one piece of code.
        assert_eq!(told(Cause::Serial).len(), 1);
    }

    #[test]
    fn what_no_event_tells_has_no_place() {
        let mut run = with_steal_and_spinning();
        let unknown = ChargeKey {
            cause: Cause::Unexplained,
            tid: 7,
            stack: Some(StackId(0)),
            object: 0,
        };
        let little = Charge {
            ns: 0.01e9,
            count: 1,
        };
        run.partition.off.insert(unknown, little);
        run.measured.off_ns.insert(Cause::Unexplained, little.ns);
        run.partition
            .off
            .retain(|key, _| key.cause != Cause::KernelLock);
        run.measured.off_ns.remove(&Cause::KernelLock);
        let (stack, growth) = speedup_stack(&run.measured, None);
        let reports = causes(&run, &mut Decoder::new(), &growth, &stack);
        let report = reports.iter().find(|report| report.id == "unexplained");
        let report = report.expect("a tenth is");
        assert!((report.fraction - 0.09).abs() < 1e-9, "{}", report.fraction);
        let places: Vec<_> = report
            .sites
            .iter()
            .map(|site| (site.stack.is_empty(), site.fraction))
            .collect();
        assert!(
            matches!(places[..], [(true, most), (false, least)] if most > 0.079 && least < 0.011),
            "{places:?}"
        );
    }

    #[test]
    fn locks_is_named_where_most_of_the_time_has_no_place_in_the_kernel() {
        let decoded = decoded();
        for (cause, stacks, lacks) in [
            (Cause::KernelLock, [Some(0), Some(1)], true),
            (Cause::MmapLock, [None, Some(1)], true),
            (Cause::MmapLock, [Some(1), Some(0)], false),
            (Cause::LockWait, [Some(0), Some(0)], false),
        ] {
            let [most, rest] = stacks;
            let pieces = [piece(cause, most, 7.0), piece(cause, rest, 3.0)];
            let pieces: Vec<&Piece> = pieces.iter().collect();
            assert_eq!(
                lacks_call_site(cause, &pieces, &decoded),
                lacks,
                "{cause:?} {stacks:?}"
            );
        }
    }
}
