//! Where the figures come from, and what takes some of them away.

use amdahl_probe::bpf::{MEM, MEM_HOLDS, Programs};
use amdahl_report::schema::Source;

use super::look::Looked;
use crate::cli::Selection;
use crate::watch;

/// Pages by the node of the CPU that used them first.
const FIRST_USES: &str = "first uses by node";
/// The tracepoint that tells what is allocated for a fault.
pub const ALLOCATED: &str = "mm_page_alloc";
const HOLDS: &str = "holds of mmap_lock";

fn source(what: &str, how: &str, missing: impl Into<String>, remedy: &str) -> Source {
    Source {
        what: what.to_owned(),
        how: how.to_owned(),
        missing: missing.into(),
        remedy: remedy.to_owned(),
    }
}

/// Of a recording by BPF, for which the tracepoints in `missing` were not to be had.
pub fn recorded(missing: &[&str], has_holds: bool) -> Vec<Source> {
    let lacks = |hook: &str| missing.contains(&hook);
    let mut sources = Vec::new();
    sources.push(if lacks("page_fault_user") {
        let text = "what the processor says of a fault is not told by this kernel: copies on writing count as first touch.";
        source("page faults", "bpf", text, "this is known on x86-64 only")
    } else {
        source("page faults", "bpf", "", "")
    });
    sources.push(if lacks("contention_begin") {
        let text = "the kernel does not tell of waits for locks.";
        source(
            "waits for mmap_lock",
            "missing",
            text,
            "use Linux 5.19 or newer",
        )
    } else {
        let remedy = "amdahl scale samples who spins for it (mmap-lock)";
        source(
            "waits for mmap_lock",
            "bpf",
            watch::SPINNING_FOR_RWSEM,
            remedy,
        )
    });
    if !has_holds {
        let text = "telling how long the lock is held costs every fault.";
        sources.push(source(HOLDS, "missing", text, "--holds"));
    } else {
        sources.push(
            if lacks("mmap_lock_acquire_returned") || lacks("mmap_lock_released") {
                let text = "the kernel does not tell who holds the lock.";
                source(HOLDS, "missing", text, "use Linux 5.11 or newer")
            } else {
                source(HOLDS, "bpf", "", "")
            },
        );
    }
    sources.push(if lacks(ALLOCATED) {
        let text = "the kernel does not tell what it allocates: each first use counts as one page, of whatever size.";
        source(FIRST_USES, "bpf", text, "use a kernel with the tracepoint kmem:mm_page_alloc")
    } else {
        source(FIRST_USES, "bpf", "", "")
    });
    sources.push(if lacks("alloc_vmap_area") {
        let text = "the kernel does not tell of its own address ranges.";
        source("vmalloc", "missing", text, "use Linux 6.2 or newer")
    } else {
        source("vmalloc", "bpf", "", "")
    });
    sources
}

/// Of a recording where the kernel hides its names.
pub fn hidden_names() -> Option<Source> {
    watch::hidden_names("its own code that takes address ranges is told by addresses.")
}

/// Without BPF, for the reason `why`; of holds only if they were asked for.
pub fn not_recorded(why: &str, remedy: &str, has_holds: bool) -> Vec<Source> {
    let mut all = vec!["waits for mmap_lock"];
    all.extend(has_holds.then_some(HOLDS));
    all.extend([FIRST_USES, "vmalloc"]);
    let missing = all.into_iter();
    missing
        .map(|what| source(what, "missing", why, remedy))
        .collect()
}

/// What records; with `holds` how long the lock is held.
pub fn programs(holds: bool) -> &'static Programs {
    if holds { &MEM_HOLDS } else { &MEM }
}

/// What a live view leaves out.
pub fn not_live() -> Source {
    source(
        "huge pages of each mapping",
        "missing",
        "looking takes the lock that is watched: of the whole machine only is told what is in huge pages.",
        "amdahl mem --pid PID",
    )
}

/// Of TLB misses of whom `selection` says; `refused` is why they cannot be counted. Where they can be there may be none
/// all the same.
pub fn tlb(refused: Option<&std::io::Error>, is_counted: bool, selection: &Selection) -> Source {
    let of_all = selection.system;
    let Some(error) = refused else {
        return if is_counted {
            source("TLB misses", "perf events", "", "")
        } else if of_all {
            let text = "no program ran while it was counted.";
            source("TLB misses", "missing", text, "watch for longer (--for)")
        } else {
            source(
                "TLB misses",
                "missing",
                "nobody of those who are watched ran while it was counted.",
                "watch while they run, or a command, or, as root, --system",
            )
        };
    };
    let (text, remedy) = match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => (
            "this machine has no hardware counters, as many virtual machines.".to_owned(),
            "measure on real hardware, or let the hypervisor pass the counters on (virtual PMU)",
        ),
        Some(libc::EACCES | libc::EPERM) => (
            format!("counters may not be used ({error})."),
            if of_all {
                "run as root, with CAP_PERFMON, or lower kernel.perf_event_paranoid to 0"
            } else {
                "run as root, with CAP_PERFMON, or lower kernel.perf_event_paranoid to 2"
            },
        ),
        Some(libc::EMFILE) => (
            "too many threads or CPUs for the files that may be open.".to_owned(),
            if of_all {
                "raise the limit (ulimit -n)"
            } else {
                "raise the limit (ulimit -n), or use --system"
            },
        ),
        _ => (format!("counters cannot be used ({error})."), ""),
    };
    source("TLB misses", "missing", text, remedy)
}

/// Of what blocks are used for, which the administrator alone may read; `refused` is why that is not known.
pub fn blocks(refused: Option<&str>) -> Option<Source> {
    let why = refused?;
    Some(source(
        "pages of the kernel in the way",
        "missing",
        format!("what free and used blocks hold may not be seen ({why})."),
        "run as root",
    ))
}

/// Of the mappings that were seen.
pub fn mappings(looked: &Looked) -> Source {
    match &looked.refused {
        Some(why) => source(
            "mappings",
            "/proc",
            format!("some processes could not be looked at ({why})."),
            "run as root, or as the user whose processes they are, with CAP_SYS_PTRACE",
        ),
        None if looked.seen.is_empty() => source(
            "mappings",
            "missing",
            "no process lived long enough to be looked at.",
            "watch one that runs for some 20 ms or longer",
        ),
        None => source("mappings", "/proc", "", ""),
    }
}

/// Of where memory is.
fn nodes(looked: &Looked) -> Source {
    let mut seen = looked.seen.values();
    if seen.any(|seen| !seen.process.placements.is_empty()) {
        return source("memory by node", "/proc", "", "");
    }
    let (text, remedy) = if looked.seen.is_empty() {
        (
            "no process was seen with its memory.",
            "see what is missing of mappings",
        )
    } else {
        (
            "the kernel tells no node of any memory (/proc/PID/numa_maps).",
            "use a kernel with CONFIG_NUMA",
        )
    };
    source("memory by node", "missing", text, remedy)
}

/// Of what a live view does not look up.
pub fn no_sizes_live() -> Source {
    source(
        "sizes of pages",
        "missing",
        "a live view does not look pages up one by one.",
        "amdahl mem --pid PID",
    )
}

/// Of sizes of pages, as far as they were looked up.
fn sizes(looked: &Looked) -> Source {
    let seen = || looked.seen.values();
    if seen().all(|seen| seen.sizes.is_empty()) {
        if let Some(why) = &looked.no_sizes {
            return source(
                "sizes of pages",
                "missing",
                format!("page frames may not be seen ({why})."),
                "run as root (CAP_SYS_ADMIN)",
            );
        }
        return source(
            "sizes of pages",
            "missing",
            "no process lived long enough, or kept its memory long enough, for its pages to be looked at.",
            "watch one that runs for some 20 ms or longer",
        );
    }
    let mut missing = Vec::new();
    match seen().filter(|seen| seen.sizes.is_empty()).count() {
        0 => {}
        count => missing.push(format!(
            "those of {count} processes, which ended or gave their memory back while they were looked at."
        )),
    }
    let (mut left_out, mut in_part) = (0, 0);
    for seen in seen() {
        left_out += seen.sizes.iter().filter(|sizes| sizes.is_none()).count();
        let known = seen.sizes.iter().flatten();
        in_part += known.filter(|sizes| sizes.is_part()).count();
    }
    if left_out > 0 {
        missing.push(format!(
            "those of {left_out} mappings, for which there was no time beside larger ones, or whose memory is too scattered."
        ));
    }
    if in_part > 0 {
        missing.push(format!(
            "of {in_part} mappings parts were looked at (sizes_seen_bytes), and the rest is taken to be alike."
        ));
    }
    let remedy = match missing.is_empty() {
        true => "",
        false => {
            "watch one process (--pid, with --for) while it has its memory; huge_bytes is complete in any case"
        }
    };
    source("sizes of pages", "/proc", missing.join(" "), remedy)
}

/// Of what was seen by looking.
pub fn looked(looked: &Looked) -> Vec<Source> {
    let mut sizes = sizes(looked);
    if looked.left_out > 0 {
        sizes.missing += &format!(
            " There was no time at the end for {} processes: they are told as they were before, or not at all.",
            looked.left_out
        );
        sizes.missing = sizes.missing.trim_start().to_owned();
        if sizes.remedy.is_empty() {
            sizes.remedy = "watch fewer: --pid, --cgroup".to_owned();
        }
    }
    vec![mappings(looked), sizes, nodes(looked)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without `--holds` there were none, and nobody said why.
    #[test]
    fn holds_that_were_not_asked_for_are_missing() {
        let of = |has_holds| {
            let mut sources = recorded(&[], has_holds).into_iter();
            sources
                .find(|source| source.what == HOLDS)
                .expect("a source")
        };
        assert_eq!(
            (&*of(false).how, &*of(false).remedy),
            ("missing", "--holds")
        );
        assert_ne!(of(true).remedy, "--holds");
    }
}
